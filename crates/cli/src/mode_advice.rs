//! Recommends a mode and sharding for each rule, from the figures of a running instance: its busy subjects, and how
//! long the store takes to answer.

use std::time::Duration;

use serde::Deserialize;
use tollgate::{Config, Finding, Limit, ModeName, Placement, Rule, RuleState, Span};

use crate::connect::{Call, ConnectArgs, SHORT};
use crate::failed;

/// The time between the two readings.
const BETWEEN: Duration = Duration::from_secs(2);
const HELP: &str = "give the address of the instance's admin door with --live; `server.admin` in the config opens it";
/// From this many decisions per second on, a subject has enough requests in each slice of 100 ms for leased mode.
const BUSY: f64 = 100.0;
/// From this many store calls per second on, one key should be split. One thread of Redis serves about ten times as
/// many calls.
const HOT: f64 = 10_000.0;
/// With a p99 of the store above this, in microseconds, a slow store is felt in every answer.
const SLOW: u64 = 20_000;

/// The part of `GET /v1/overview` that matters here.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Overview {
    at_epoch_millis: u64,
    rules: Vec<RuleFigures>,
    store: StoreFigures,
    hot_keys: Vec<HotKey>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RuleFigures {
    rule_id: String,
    allowed: u64,
    denied: u64,
}

#[derive(Deserialize)]
struct StoreFigures {
    latency: Histogram,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Histogram {
    up_to: Vec<(u64, u64)>,
    count: u64,
}

impl Histogram {
    /// Returns the bound that 99% of the values since `before` are under, in microseconds; `None` without values.
    fn p99_since(&self, before: &Histogram) -> Option<u64> {
        let of = |bound: u64, it: &Histogram| {
            let found = it.up_to.iter().find(|(own, _)| *own == bound);
            found.map_or(0, |(_, count)| *count)
        };
        let count = self.count.saturating_sub(before.count);
        let mut bounds = self.up_to.iter();
        let is_within = |(bound, total): &&(u64, u64)| {
            (total.saturating_sub(of(*bound, before))).saturating_mul(100)
                >= count.saturating_mul(99)
        };
        let found = bounds.find(is_within).map(|(bound, _)| *bound);
        (count > 0).then(|| found.unwrap_or(u64::MAX))
    }
}

#[derive(Clone, Deserialize)]
struct HotKey {
    rule: String,
    subject: String,
    share: f64,
}

/// Reads the figures of the instance at `live` twice, and returns what they say about the modes of `config`.
pub(crate) fn find(
    live: &str,
    connect: &ConnectArgs,
    config: &Config,
) -> Result<Vec<Finding>, String> {
    let read = || -> Result<Overview, String> {
        let door = connect.door(live, SHORT, HELP)?;
        let response = door.call("/v1/overview", &Call::Get(&[]))?;
        let overview = door.json("/v1/overview", response)?;
        serde_json::from_value(overview).map_err(failed)
    };
    let before = read()?;
    std::thread::sleep(BETWEEN);
    let after = read()?;
    if config.is_local() && config.stores.is_empty() {
        let found = "the store is in memory: all modes decide in this process";
        return Ok(vec![Finding::ok("modes", found)]);
    }
    Ok(advise(&before, &after, config))
}

/// The load of one rule.
struct Load {
    /// Decisions per second of the busiest subject at this instance.
    busiest: f64,
    /// The busiest subject, as the first digits of its hash; `None` for a rule without `per`.
    subject: Option<String>,
    /// The share of denied requests.
    denied: f64,
}

#[allow(clippy::cast_precision_loss)] // Rates for people.
fn advise(before: &Overview, after: &Overview, config: &Config) -> Vec<Finding> {
    let seconds = after.at_epoch_millis.saturating_sub(before.at_epoch_millis) as f64 / 1000.0;
    let since = |rule: &RuleFigures| {
        let old = before.rules.iter().find(|it| it.rule_id == rule.rule_id);
        let (allowed, denied) = old.map_or((0, 0), |it| (it.allowed, it.denied));
        (
            rule.allowed.saturating_sub(allowed) as f64 / seconds.max(0.001),
            rule.denied.saturating_sub(denied) as f64 / seconds.max(0.001),
        )
    };
    let all: f64 = after.rules.iter().map(|it| since(it).0 + since(it).1).sum();
    let p99 = after.store.latency.p99_since(&before.store.latency);
    let mut findings = vec![latency(p99)];
    let mut quiet = true;
    for rule in config.policy.rules.iter().filter(|rule| is_shared(rule)) {
        let Some(figures) = after.rules.iter().find(|it| it.rule_id == rule.id()) else {
            continue;
        };
        let (allowed, denied) = since(figures);
        let hottest = after.hot_keys.iter().filter(|it| it.rule == rule.id());
        let hottest = hottest.max_by(|a, b| a.share.total_cmp(&b.share));
        let load = match (rule.per().is_empty(), hottest) {
            (true, _) => Load {
                busiest: allowed + denied,
                subject: None,
                denied: denied / (allowed + denied).max(1.0),
            },
            (false, Some(key)) => Load {
                busiest: key.share * all,
                subject: Some(key.subject.clone()),
                denied: denied / (allowed + denied).max(1.0),
            },
            (false, None) => continue,
        };
        let found = advise_rule(rule, &load, p99);
        quiet &= found.is_empty();
        findings.extend(found);
    }
    if quiet {
        let found = format!("{all:.0} decisions/s: no rule would gain from another mode");
        findings.push(Finding::ok("modes", found));
    }
    findings
}

fn latency(p99: Option<u64>) -> Finding {
    let told = |p99: u64| match p99 {
        u64::MAX => {
            "more than 1% of the calls took longer than all bounds of the histogram".to_owned()
        }
        p99 => format!("99% of the calls took up to {}", Span::from_micros(p99)),
    };
    match p99 {
        None => Finding::ok("store-latency", "the store was not asked"),
        Some(p99) if p99 > SLOW => Finding::warn(
            "store-latency",
            told(p99),
            "look at the server; `tollgate override set --everyone --rule RULE --mode async --for 1h` keeps answers \
             fast meanwhile, if a short excess does no harm",
        ),
        Some(p99) => Finding::ok("store-latency", told(p99)),
    }
}

/// Whether the requests of a rule may reach a shared store.
fn is_shared(rule: &Rule) -> bool {
    rule.state() != RuleState::Disabled
        && *rule.store() != tollgate::RuleStore::Local
        && !matches!(rule.limit(), Limit::Unlimited(_))
}

/// Returns what would help a rule with this load.
fn advise_rule(rule: &Rule, load: &Load, p99: Option<u64>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let whose = match &load.subject {
        Some(subject) => format!("{}: subject {subject} has about", rule.id()),
        None => format!("{}: its only key has about", rule.id()),
    };
    let found = format!(
        "{whose} {:.0} decisions/s here, mode {}",
        load.busiest,
        rule.mode().name()
    );
    let can_switch = rule.backoff().is_none() && rule.limit().can_be_async();
    let can_lease = can_switch && rule.limit().prepaid(Span::from_millis(100)).is_some();
    if rule.mode() == ModeName::Exact && load.busiest >= BUSY && can_switch {
        let is_slow = p99.is_some_and(|it| it > SLOW);
        let help = match (can_lease, load.denied > 0.5 || is_slow) {
            (true, false) => {
                "write `mode: leased`: the same limit, and few calls for busy subjects".to_owned()
            }
            (true, true) => "write `mode: leased`; or `mode: async`, which makes few calls above the limit too, if a \
                             short excess does no harm"
                .to_owned(),
            (false, _) => "write `mode: async` if a short excess does no harm; its numbers leave no room for \
                           `mode: leased`"
                .to_owned(),
        };
        findings.push(Finding::warn("modes", found.clone(), help));
    }
    let can_split = !matches!(rule.limit(), Limit::Fair(_))
        && !matches!(rule.placement(), Placement::Sharded(_));
    if rule.mode() == ModeName::Exact && load.busiest >= HOT && can_split {
        let help = "write `placement: sharded(16)`, which splits the allowance of a subject over 16 keys, if the \
                    rule has to stay exact";
        findings.push(Finding::warn("sharding", found, help));
    }
    findings
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use serde_json::{Value, json};

    use super::*;

    const RULES: &str = "
version: 1
subjects: { hash_secret: a secret of the tests of doctor }
store: { redis: { url: 'redis://127.0.0.1:1' } }
rules:
  - { id: api, per: [user], algorithm: gcra, rate: 1000/s, burst: 2000 }
  - { id: strict, per: [user], algorithm: gcra, rate: 5000/s, burst: 1 }
  - { id: done, per: [user], algorithm: gcra, rate: 1000/s, burst: 2000, mode: leased }
  - { id: all, algorithm: fixed-window, limit: 1000000, window: 1m }
  - { id: shared, algorithm: token-bucket, capacity: 50000, refill: 50000/s, fair: { per: [user] } }
";

    fn overview(millis: u64, counts: &[(&str, u64, u64)], calls: u64, hot: &Value) -> Overview {
        let rules = counts.iter().map(|(id, allowed, denied)| {
            json!({ "ruleId": id, "allowed": allowed, "denied": denied, "limit": 3 })
        });
        let document = json!({
            "atEpochMillis": millis,
            "rules": rules.collect::<Value>(),
            "store": { "latency": { "upTo": [[1000, 0], [50_000, calls]], "count": calls, "sum": 0 } },
            "hotKeys": hot,
        });
        serde_json::from_value(document).unwrap()
    }

    /// Returns the checks that are not ok, each with its rule and the modes or settings that its remedy names.
    fn found(after: &Overview) -> Vec<(&'static str, String)> {
        let config = tollgate::parse("rules.yaml", RULES, &|_| None).unwrap();
        let before = overview(10_000, &[], 0, &json!([]));
        let findings = advise(&before, after, &config);
        let findings = findings.into_iter().filter(|it| it.help.is_some());
        findings
            .map(|it| {
                let rule = it.found.split(':').next().unwrap();
                let help = it.help.unwrap();
                let mode = help.split('`').nth(1).unwrap().to_owned();
                (it.check, format!("{rule} {mode}"))
            })
            .collect()
    }

    #[test]
    fn busy_subjects_of_exact_rules_are_advised_a_mode() {
        let hot = json!([
            { "rule": "api", "subject": "6123", "checks": 9, "share": 0.5 },
            { "rule": "strict", "subject": "6123", "checks": 9, "share": 0.3 },
            { "rule": "done", "subject": "6123", "checks": 9, "share": 0.2 },
        ]);
        let counts = [("api", 2000, 0), ("strict", 1200, 0), ("done", 800, 0)];
        let busy = overview(12_000, &counts, 0, &hot);
        let expected = [
            ("modes", "api mode: leased"),
            ("modes", "strict mode: async"),
        ];
        let expected = expected.map(|(check, text)| (check, text.to_owned()));
        assert_eq!(found(&busy), expected);
        let counts = [("api", 100, 0), ("strict", 60, 0), ("done", 40, 0)];
        assert_eq!(found(&overview(12_000, &counts, 0, &hot)), []);
    }

    #[test]
    fn one_key_of_a_hot_rule_is_advised_to_be_split() {
        let busy = overview(12_000, &[("all", 30_000, 0)], 0, &json!([]));
        let expected = [
            ("modes", "all mode: leased"),
            ("sharding", "all placement: sharded(16)"),
        ];
        let expected = expected.map(|(check, text)| (check, text.to_owned()));
        assert_eq!(found(&busy), expected);
    }

    #[test]
    fn fair_rule_is_not_advised_what_it_cannot_be() {
        let busy = overview(12_000, &[("shared", 30_000, 0)], 0, &json!([]));
        assert_eq!(found(&busy), []);
    }

    #[test]
    fn a_slow_store_is_told_with_the_relief() {
        let slow = overview(12_000, &[("api", 10, 0)], 500, &json!([]));
        let findings = found(&slow);
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].0, "store-latency");
        assert!(findings[0].1.contains("--mode async"), "{findings:?}");
    }
}
