//! What happened between two readings of all instances: rates, percentiles, and what is wrong.

use std::collections::BTreeMap;

use serde_json::Value;

/// The document of one instance, or why there is none.
pub(super) type Answer = Result<Value, String>;

/// One reading of all instances, in the order of their addresses.
pub(super) type Reading = Vec<Answer>;

/// What all instances did between two readings.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Figures {
    /// Requests a second.
    pub(super) allowed: f64,
    pub(super) denied: f64,
    pub(super) unmatched: f64,
    pub(super) fallbacks: f64,
    /// What an operator must know: instances that do not answer, stores that are down, rejected configs.
    pub(super) problems: Vec<String>,
    pub(super) rules: Vec<RuleRates>,
    pub(super) instances: Vec<Instance>,
    pub(super) hot_keys: Vec<HotKey>,
}

/// What a rule did, in requests a second.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RuleRates {
    pub(super) id: String,
    pub(super) algorithm: String,
    pub(super) state: String,
    pub(super) allowed: f64,
    pub(super) denied: f64,
    pub(super) near_limit: f64,
    pub(super) shadow_denied: f64,
}

/// One instance.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Instance {
    pub(super) address: String,
    pub(super) is_up: bool,
    pub(super) config: String,
    pub(super) allowed: f64,
    pub(super) denied: f64,
    /// `memory`, `redis`, or the state of a breaker that is not closed.
    pub(super) store: String,
    /// The 99th percentile of calls to Redis, in microseconds: an upper bound.
    pub(super) store_p99: Option<u64>,
    pub(super) keys: u64,
    pub(super) resident_bytes: u64,
    /// The used part of a core.
    pub(super) cpu: Option<f64>,
}

/// A busy subject.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct HotKey {
    pub(super) rule: String,
    pub(super) subject: String,
    pub(super) checks: u64,
}

/// The orders of the rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Order {
    #[default]
    Denied,
    Allowed,
    Rule,
}

impl Order {
    pub(super) fn next(self) -> Order {
        match self {
            Order::Denied => Order::Allowed,
            Order::Allowed => Order::Rule,
            Order::Rule => Order::Denied,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Order::Denied => "denied",
            Order::Allowed => "allowed",
            Order::Rule => "rule",
        }
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn total(value: &Value) -> u64 {
    let values = value.as_object().into_iter().flat_map(|it| it.values());
    values.map(number).sum()
}

/// The time between two documents of one instance, for rates of its totals.
struct Between<'v> {
    before: &'v Value,
    after: &'v Value,
    seconds: f64,
}

impl<'v> Between<'v> {
    /// Returns `None` if there is no time between the documents, or if the instance was restarted, because its totals
    /// then start from zero.
    fn new(before: &'v Value, after: &'v Value) -> Option<Between<'v>> {
        let at = |document: &Value| number(&document["atEpochMillis"]);
        let started = |document: &Value| document["process"]["startedAtEpochMillis"].clone();
        let millis = at(after).checked_sub(at(before)).filter(|it| *it > 0)?;
        (started(before) == started(after)).then_some(Between {
            before,
            after,
            seconds: millis as f64 / 1000.0,
        })
    }

    /// Returns by how much a total grew in a second.
    fn rate(&self, of: impl Fn(&Value) -> u64) -> f64 {
        of(self.after).saturating_sub(of(self.before)) as f64 / self.seconds
    }

    /// Returns the bound below which `share` of the values lie. Uses only values between the two documents.
    fn percentile(&self, of: impl Fn(&Value) -> &Value, share: f64) -> Option<u64> {
        let counts = |document| -> BTreeMap<u64, u64> {
            let pairs = items(&of(document)["upTo"]).iter();
            pairs.map(|it| (number(&it[0]), number(&it[1]))).collect()
        };
        let count = |document| number(&of(document)["count"]);
        let (before, after) = (counts(self.before), counts(self.after));
        let came = count(self.after).saturating_sub(count(self.before)) as f64;
        if came == 0.0 {
            return None;
        }
        let grew =
            |bound: &u64, count: u64| count - before.get(bound).map_or(0, |it| count.min(*it));
        let mut bounds = after.iter();
        let found = bounds.find(|(bound, count)| grew(bound, **count) as f64 >= share * came);
        // Beyond the scale, the largest bound is all that is known.
        let last = after.keys().next_back();
        found.map(|(bound, _)| bound).or(last).copied()
    }
}

fn of_rule(document: &Value, id: &str, what: &str) -> u64 {
    let mut rules = items(&document["rules"]).iter();
    let rule = rules.find(|it| it["ruleId"].as_str() == Some(id));
    rule.map_or(0, |it| number(&it[what]))
}

/// Returns the requests of an instance. A request under several rules is counted once.
fn requests(document: &Value, what: &str) -> u64 {
    number(&document["requests"][what])
}

impl Figures {
    /// Compares two readings of the instances at `addresses`.
    pub(super) fn new(addresses: &[String], before: &Reading, after: &Reading) -> Figures {
        let mut figures = Figures::default();
        let mut rules: BTreeMap<String, (usize, RuleRates)> = BTreeMap::new();
        for ((address, before), after) in addresses.iter().zip(before).zip(after) {
            match after {
                Ok(after) => figures.add(address, before.as_ref().ok(), after, &mut rules),
                Err(problem) => {
                    let line = problem.lines().next().unwrap_or_default();
                    let line = line.trim_start_matches("error: ");
                    figures.problems.push(format!("{address}: {line}"));
                    figures.instances.push(Instance {
                        address: address.clone(),
                        ..Instance::default()
                    });
                }
            }
        }
        // In the order of the config file.
        let mut rules: Vec<_> = rules.into_values().collect();
        rules.sort_by_key(|(place, _)| *place);
        figures.rules = rules.into_iter().map(|(_, rule)| rule).collect();
        figures
            .hot_keys
            .sort_by_key(|it| std::cmp::Reverse(it.checks));
        figures
    }

    fn add(
        &mut self,
        address: &str,
        before: Option<&Value>,
        after: &Value,
        rules: &mut BTreeMap<String, (usize, RuleRates)>,
    ) {
        let between = before.and_then(|before| Between::new(before, after));
        let rate = |of: &dyn Fn(&Value) -> u64| between.as_ref().map_or(0.0, |it| it.rate(of));
        for rule in items(&after["rules"]) {
            let (id, place) = (text(&rule["ruleId"]), rules.len());
            let (_, sum) = rules.entry(id.clone()).or_insert_with(|| {
                let rates = RuleRates {
                    algorithm: text(&rule["algorithm"]),
                    state: text(&rule["state"]),
                    id: id.clone(),
                    ..RuleRates::default()
                };
                (place, rates)
            });
            sum.allowed += rate(&|it| of_rule(it, &id, "allowed"));
            sum.denied += rate(&|it| of_rule(it, &id, "denied"));
            sum.near_limit += rate(&|it| of_rule(it, &id, "nearLimit"));
            sum.shadow_denied += rate(&|it| of_rule(it, &id, "shadowDenied"));
        }
        let store = &after["store"];
        let mut breakers = store["breakers"].as_object().into_iter().flatten();
        let broken = breakers.find(|(_, state)| state.as_str() != Some("closed"));
        let instance = Instance {
            address: address.to_owned(),
            is_up: true,
            config: text(&after["configVersion"]),
            allowed: rate(&|it| requests(it, "allowed")),
            denied: rate(&|it| requests(it, "denied")),
            store: match broken {
                Some((_, state)) => format!("breaker {}", text(state)),
                None => text(&store["kind"]),
            },
            store_p99: between
                .as_ref()
                .and_then(|it| it.percentile(|document| &document["store"]["latency"], 0.99)),
            keys: number(&store["keys"]),
            resident_bytes: number(&after["process"]["residentBytes"]),
            cpu: between
                .as_ref()
                .map(|it| it.rate(|document| number(&document["process"]["cpuMillis"])) / 1000.0),
        };
        self.allowed += instance.allowed;
        self.denied += instance.denied;
        self.unmatched += rate(&|it| {
            let doors = items(&it["doors"]).iter();
            doors.map(|door| number(&door["unmatched"])).sum()
        });
        self.fallbacks += rate(&|it| total(&it["fallbacks"]));
        if let Some(problem) = store["problem"].as_str() {
            self.problems
                .push(format!("{address}: the store cannot be used: {problem}"));
        }
        if let Some(problem) = after["configRejected"].as_str() {
            let line = problem.lines().next().unwrap_or_default();
            self.problems
                .push(format!("{address}: the config file was rejected: {line}"));
        }
        if after["ledger"]["connected"].as_bool() == Some(false) {
            self.problems
                .push(format!("{address}: the ledger does not answer"));
        }
        self.instances.push(instance);
        let hot_keys = items(&after["hotKeys"]).iter();
        self.hot_keys.extend(hot_keys.map(|it| HotKey {
            rule: text(&it["rule"]),
            subject: text(&it["subject"]),
            checks: number(&it["checks"]),
        }));
    }

    /// Returns the rules whose id contains `filter`, in this order.
    pub(super) fn sorted(&self, order: Order, filter: &str) -> Vec<&RuleRates> {
        let rules = self.rules.iter();
        let mut rules: Vec<&RuleRates> = rules.filter(|rule| rule.id.contains(filter)).collect();
        match order {
            Order::Denied => rules.sort_by(|a, b| b.denied.total_cmp(&a.denied)),
            Order::Allowed => rules.sort_by(|a, b| b.allowed.total_cmp(&a.allowed)),
            Order::Rule => rules.sort_by(|a, b| a.id.cmp(&b.id)),
        }
        rules
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn document(millis: u64, allowed: u64, denied: u64) -> Value {
        json!({
            "atEpochMillis": millis, "configVersion": "v1", "blocked": 0, "fallbacks": {},
            "requests": { "allowed": 2 * allowed, "denied": denied },
            "rules": [
                { "ruleId": "a", "algorithm": "gcra", "state": "enforce", "allowed": allowed, "denied": denied,
                  "nearLimit": 0, "shadowDenied": 0 },
                { "ruleId": "b", "algorithm": "quota", "state": "shadow", "allowed": 2 * allowed, "denied": 0,
                  "nearLimit": 0, "shadowDenied": denied },
            ],
            "doors": [{ "unmatched": denied }],
            "store": { "kind": "redis", "problem": null, "keys": 7, "breakers": { "r1": "closed" },
                       "latency": { "upTo": [[100, allowed], [1000, 2 * allowed]], "count": 2 * allowed } },
            "hotKeys": [{ "rule": "a", "subject": "0af76519", "checks": allowed }],
            "process": { "cpuMillis": millis / 2, "residentBytes": 1, "startedAtEpochMillis": 5 },
        })
    }

    fn addresses(count: usize) -> Vec<String> {
        (0..count)
            .map(|number| format!("http://{number}"))
            .collect()
    }

    #[test]
    fn rates_of_all_instances_are_added() {
        let before = vec![Ok(document(1000, 100, 10)), Ok(document(1000, 0, 0))];
        let after = vec![Ok(document(3000, 300, 50)), Ok(document(3000, 20, 0))];
        let figures = Figures::new(&addresses(2), &before, &after);
        // The requests, and not the sums over both rules.
        assert_eq!((figures.allowed, figures.denied), (220.0, 20.0));
        assert_eq!(figures.unmatched, 20.0);
        let [a, b] = &figures.rules[..] else {
            panic!("two rules");
        };
        assert_eq!((a.allowed, a.denied), (110.0, 20.0));
        assert_eq!((b.allowed, b.shadow_denied), (220.0, 20.0));
        assert_eq!(figures.instances[0].cpu, Some(0.5));
        assert_eq!(figures.instances[0].store_p99, Some(1000));
        assert_eq!(figures.hot_keys[0].checks, 300);
        assert_eq!(figures.sorted(Order::Denied, "")[0].id, "a");
        assert_eq!(figures.sorted(Order::Allowed, "")[0].id, "b");
        assert_eq!(figures.sorted(Order::Rule, "b").len(), 1);
    }

    #[test]
    fn silent_and_restarted_instances_have_no_rates() {
        let mut restarted = document(3000, 5, 0);
        restarted["process"]["startedAtEpochMillis"] = json!(2500);
        restarted["store"]["problem"] = json!("connection refused");
        let before = vec![Ok(document(1000, 100, 10)), Ok(document(1000, 1, 0))];
        let silent = "error: request failed\nhelp: start it".to_owned();
        let after = vec![Ok(restarted), Err(silent)];
        let figures = Figures::new(&addresses(2), &before, &after);
        assert_eq!((figures.allowed, figures.denied), (0.0, 0.0));
        assert_eq!(
            figures.problems,
            [
                "http://0: the store cannot be used: connection refused",
                "http://1: request failed"
            ]
        );
        assert!(!figures.instances[1].is_up);
    }

    #[test]
    fn answer_of_another_program_is_no_panic() {
        let odd = json!({ "rules": 5, "store": [], "hotKeys": {}, "atEpochMillis": "now" });
        let figures = Figures::new(&addresses(1), &vec![Ok(odd.clone())], &vec![Ok(odd)]);
        assert_eq!(figures.rules, []);
    }
}
