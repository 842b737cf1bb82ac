//! What a running instance counts about one rule, read at its admin door: `tollgate advise --live`.

use serde::Deserialize;
use tollgate::Span;
use tollgate_simulate::demand::LiveCounts;

use crate::connect::{Call, ConnectArgs, SHORT};
use crate::failed;

const HELP: &str = "give the address of the instance's admin door with --live; `server.admin` in the config opens it";

/// The part of `GET /v1/overview` that matters here.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Overview {
    at_epoch_millis: u64,
    config_loaded_at_epoch_millis: u64,
    rules: Vec<RuleFigures>,
    hot_keys: Vec<HotKey>,
    process: Process,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RuleFigures {
    rule_id: String,
    state: String,
    limit: Option<u64>,
    allowed: u64,
    denied: u64,
    shadow_denied: u64,
}

impl RuleFigures {
    fn checks(&self) -> u64 {
        self.allowed + self.denied + self.shadow_denied
    }
}

#[derive(Deserialize)]
struct HotKey {
    rule: String,
    share: f64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Process {
    started_at_epoch_millis: Option<u64>,
}

/// The counts of a rule, and its state.
pub(crate) struct LiveRule {
    pub(crate) counts: LiveCounts,
    pub(crate) id: String,
    pub(crate) state: String,
}

/// Reads the counts of the rule `id` at the instance with the admin door `live`.
pub(crate) fn read(live: &str, id: &str, connect: &ConnectArgs) -> Result<LiveRule, String> {
    let door = connect.door(live, SHORT, HELP)?;
    let response = door.call("/v1/overview", &Call::Get(&[]))?;
    let overview = door.json("/v1/overview", response)?;
    let overview: Overview = serde_json::from_value(overview).map_err(failed)?;
    find(&overview, id)
}

fn find(overview: &Overview, id: &str) -> Result<LiveRule, String> {
    let all_checks = overview.rules.iter().map(RuleFigures::checks).sum();
    let ids: Vec<&str> = overview
        .rules
        .iter()
        .map(|it| it.rule_id.as_str())
        .collect();
    let known = ids.join(", ");
    let rule = overview.rules.iter().find(|it| it.rule_id == id);
    let rule = rule
        .ok_or_else(|| format!("error: the instance has no rule `{id}`: its rules are {known}"))?;
    let limit = rule
        .limit
        .ok_or_else(|| format!("error: the rule `{id}` is unlimited, so it denies nothing"))?;
    if rule.checks() == 0 {
        return Err(format!(
            "error: the rule `{id}` was not asked since the instance started: send it traffic first"
        ));
    }
    let of_rule = overview.hot_keys.iter().filter(|it| it.rule == id);
    let started = overview
        .process
        .started_at_epoch_millis
        .unwrap_or(overview.config_loaded_at_epoch_millis);
    Ok(LiveRule {
        counts: LiveCounts {
            checks: rule.checks(),
            denied: rule.denied + rule.shadow_denied,
            all_checks,
            busiest_share: of_rule.map(|it| it.share).fold(0.0, f64::max),
            counted_for: Span::from_millis(overview.at_epoch_millis.saturating_sub(started)),
            limit,
        },
        id: rule.rule_id.clone(),
        state: rule.state.clone(),
    })
}
