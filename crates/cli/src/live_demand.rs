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

/// `GET /v1/rules/{rule}/subjects`: the busiest subjects of a rule.
#[derive(Deserialize)]
struct Subjects {
    subjects: Vec<Subject>,
}

/// A subject, with its share of the recent checks of the rule.
#[derive(Deserialize)]
struct Subject {
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
    let get = |path: &str| {
        let response = door.call(path, &Call::Get(&[]))?;
        door.json(path, response)
    };
    let overview: Overview = serde_json::from_value(get("/v1/overview")?).map_err(failed)?;
    let mut rule = find(&overview, id)?;
    // The overview has the busiest subjects of all rules together, and may have none of this rule.
    let subjects = get(&format!("/v1/rules/{}/subjects", rule.id))?;
    let subjects: Subjects = serde_json::from_value(subjects).map_err(failed)?;
    let shares = subjects.subjects.iter().map(|it| it.share);
    rule.counts.busiest_share = shares.fold(0.0, f64::max);
    Ok(rule)
}

/// Finds the counts of a rule. The share of its busiest subject is not among them.
fn find(overview: &Overview, id: &str) -> Result<LiveRule, String> {
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
    let started = overview
        .process
        .started_at_epoch_millis
        .unwrap_or(overview.config_loaded_at_epoch_millis);
    Ok(LiveRule {
        counts: LiveCounts {
            checks: rule.checks(),
            denied: rule.denied + rule.shadow_denied,
            busiest_share: 0.0,
            counted_for: Span::from_millis(overview.at_epoch_millis.saturating_sub(started)),
            limit,
        },
        id: rule.rule_id.clone(),
        state: rule.state.clone(),
    })
}
