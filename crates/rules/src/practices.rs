//! Rules that work, but that practice advises against. `tollgate doctor` shows them.

use tollgate_core::{Algorithm, Rate, Span};

use crate::limits::Numbers;
use crate::policy::Policy;
use crate::rule::{FailurePolicy, Rule, RuleState};
use crate::tiers::Patches;
use crate::warnings::Warning;

/// A burst above this many times the rate is unusual.
const MOST_BURST: u128 = 5;
/// A burst is compared with what the rate gives in one of these times: the shortest in which the rate gives at least
/// [`LEAST`]. So it does not matter whether a rate is written as `1/s` or as `60/m`.
const UNITS: [(&str, Span); 4] = [
    ("s", Span::SECOND),
    ("m", Span::MINUTE),
    ("h", Span::HOUR),
    ("d", Span::from_secs(86_400)),
];
const LEAST: u128 = 10;
/// A log of more entries costs much memory for each subject.
const LONG_LOG: u64 = 1_000;
/// Parts of the names of actions and paths where clients can guess secrets.
const GUESSED: [&str; 11] = [
    "login", "log-in", "log_in", "signin", "sign-in", "sign_in", "otp", "password", "passwd",
    "2fa", "mfa",
];

impl Policy {
    /// Returns the rules that work, but that practice advises against.
    ///
    /// ```
    /// # use tollgate_rules::Policy;
    /// let policy = Policy::parse("rules.yaml", "
    /// version: 1
    /// rules: [{ id: api, per: [user], algorithm: gcra, rate: 10/s, burst: 100 }]
    /// ")?;
    /// let advice = policy.practices();
    /// assert!(advice[0].to_string().starts_with("rule `api`: the burst of 100 is 10 times the rate"));
    /// # Ok::<(), tollgate_rules::ConfigError>(())
    /// ```
    #[must_use]
    pub fn practices(&self) -> Vec<Warning> {
        let active = || {
            self.rules
                .iter()
                .filter(|it| it.state != RuleState::Disabled)
        };
        let mut found = Vec::new();
        for rule in active() {
            found.extend(self.numbers(rule));
            if guesses(rule) {
                found.extend(weak_login(rule));
            }
        }
        let by_address = |rule: &Rule| rule.per.iter().any(|name| name == "ip");
        let logins: Vec<&Rule> = active().filter(|rule| guesses(rule)).collect();
        if let Some(first) = logins.iter().find(|rule| !rule.per.is_empty())
            && !logins.iter().any(|rule| by_address(rule))
        {
            let per = first.per.join(", ");
            found.push(warning(
                first,
                format!("attempts are limited by {per} only: one address can try many of them"),
                "add a rule for the same requests with `per: [ip]` and a higher limit",
            ));
        }
        found
    }

    /// Finds numbers of a rule that are unusual: its own, and those of plans and tenants.
    fn numbers(&self, rule: &Rule) -> Vec<Warning> {
        let own = &rule.counting.numbers;
        let mut found: Vec<Warning> = unusual(rule, own)
            .map(|(message, help)| warning(rule, message, help))
            .into_iter()
            .collect();
        let of_layer = |patches: &Patches| {
            let (_, patch) = patches.iter().find(|(name, _)| name == rule.allowance())?;
            unusual(rule, &own.with(patch))
        };
        for plan in &self.tiers.plans {
            if let Some((message, help)) = of_layer(&plan.patches) {
                let message = format!("for the plan `{}`, {message}", plan.name);
                found.push(warning(rule, message, help));
            }
        }
        let tenants = self.tiers.tenants.iter().filter_map(|(name, tenant)| {
            let (message, help) = of_layer(&tenant.patches)?;
            Some((name, message, help))
        });
        let tenants: Vec<_> = tenants.collect();
        let first = tenants.iter().min_by_key(|(name, ..)| *name);
        if let Some((name, message, help)) = first {
            let more = match tenants.len() {
                1 => String::new(),
                2 => "; so has 1 more tenant".to_owned(),
                count => format!("; so have {} more tenants", count - 1),
            };
            let message = format!("for the tenant `{name}`, {message}{more}");
            found.push(warning(rule, message, help));
        }
        found
    }
}

fn warning(rule: &Rule, message: String, help: &str) -> Warning {
    Warning {
        rule: rule.shared_id(),
        message,
        help: help.to_owned(),
    }
}

/// Whether a rule limits attempts to guess a secret.
fn guesses(rule: &Rule) -> bool {
    let of_request = rule
        .conditions
        .iter()
        .filter(|it| ["action", "path"].contains(&it.attribute.as_str()));
    let mut patterns = of_request.flat_map(|it| it.accepted.iter());
    patterns.any(|pattern| {
        let text = pattern.to_string().to_ascii_lowercase();
        GUESSED.iter().any(|part| text.contains(part))
    })
}

/// Returns what is unusual about numbers of a rule, and the remedy.
fn unusual(rule: &Rule, numbers: &Numbers) -> Option<(String, &'static str)> {
    match rule.algorithm() {
        Algorithm::Gcra => large_burst(numbers.rate.as_ref()?.0?, numbers.burst.as_ref()?.0),
        Algorithm::TokenBucket => {
            large_burst(numbers.refill.as_ref()?.0?, numbers.capacity.as_ref()?.0?)
        }
        Algorithm::SlidingLog => long_log(numbers.limit.as_ref()?.0?),
        _ => None,
    }
}

fn large_burst(rate: Rate, burst: u64) -> Option<(String, &'static str)> {
    let (amount, period) = (
        u128::from(rate.amount()),
        u128::from(rate.period().as_micros()),
    );
    let in_unit = |unit: Span| amount * u128::from(unit.as_micros());
    let [.., day] = UNITS;
    let enough = UNITS
        .into_iter()
        .find(|(_, unit)| in_unit(*unit) >= LEAST * period);
    let (name, unit) = enough.unwrap_or(day);
    let (burst_periods, gives) = (u128::from(burst) * period, in_unit(unit));
    (burst_periods > MOST_BURST * gives).then(|| {
        let tenths = (burst_periods * 10).div_ceil(gives);
        let times = match tenths % 10 {
            0 => (tenths / 10).to_string(),
            tenth => format!("{}.{tenth}", tenths / 10),
        };
        let per_unit = gives as f64 / period as f64;
        let message = format!(
            "the burst of {burst} is {times} times the rate of {}/{name}",
            (per_unit * 10.0).round() / 10.0
        );
        let help =
            "check that the service behind can take such a burst; 1 to 5 times the rate is usual";
        (message, help)
    })
}

fn long_log(limit: u64) -> Option<(String, &'static str)> {
    (LONG_LOG + 1..=tollgate_core::MAX_AMOUNT).contains(&limit).then(|| {
        let message = format!("the log keeps up to {limit} entries for each subject");
        let help =
            "use `sliding-counter`: it needs the same memory for any limit, and its error is small";
        (message, help)
    })
}

/// Finds what makes a limit on attempts weak.
fn weak_login(rule: &Rule) -> Vec<Warning> {
    let mut found = Vec::new();
    if rule.algorithm() == Algorithm::FixedWindow {
        found.push(warning(
            rule,
            "a fixed window admits twice its limit of attempts around its edge".to_owned(),
            "use `sliding-log`: it is exact, and logins are few",
        ));
    }
    if rule.on_store_failure == Some(FailurePolicy::FailOpen) {
        found.push(warning(
            rule,
            "while the store is down, attempts are not limited".to_owned(),
            "use `on_store_failure: fail-closed` or `local-fallback`",
        ));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(rules: &str) -> Vec<String> {
        let text = format!("version: 1\nrules:\n{rules}");
        let policy = Policy::parse("rules.yaml", &text).unwrap();
        policy
            .practices()
            .iter()
            .map(|it| it.message.clone())
            .collect()
    }

    #[test]
    fn burst_above_five_times_the_rate_is_found() {
        let burst = |numbers: &str| found(&format!("  - {{ id: r, per: [user], {numbers} }}\n"));
        assert_eq!(burst("algorithm: gcra, rate: 10/s, burst: 50"), [""; 0]);
        assert_eq!(
            burst("algorithm: gcra, rate: 10/s, burst: 51"),
            ["the burst of 51 is 5.1 times the rate of 10/s"]
        );
        assert_eq!(
            burst("algorithm: gcra, rate: 10000/s, burst: 50001"),
            ["the burst of 50001 is 5.1 times the rate of 10000/s"]
        );
        assert_eq!(burst("algorithm: gcra, rate: unlimited"), [""; 0]);
        assert_eq!(
            burst("algorithm: gcra, rate: 10/s, burst: 99, state: disabled"),
            [""; 0]
        );
    }

    #[test]
    fn spelling_of_a_rate_does_not_matter() {
        let bucket = |numbers: &str| {
            found(&format!(
                "  - {{ id: r, per: [user], algorithm: token-bucket, {numbers} }}\n"
            ))
        };
        for rate in ["1/s", "60/m", "3600/h"] {
            assert_eq!(bucket(&format!("capacity: 100, refill: {rate}")), [""; 0]);
            assert_eq!(
                bucket(&format!("capacity: 450, refill: {rate}")),
                ["the burst of 450 is 7.5 times the rate of 60/m"]
            );
        }
        for rate in ["100/s", "6000/m", "1000/10s"] {
            assert_eq!(
                bucket(&format!("capacity: 6000, refill: {rate}")),
                ["the burst of 6000 is 60 times the rate of 100/s"]
            );
        }
        for rate in ["1/d", "7/7d"] {
            assert_eq!(bucket(&format!("capacity: 5, refill: {rate}")), [""; 0]);
            assert_eq!(
                bucket(&format!("capacity: 6, refill: {rate}")),
                ["the burst of 6 is 6 times the rate of 1/d"]
            );
        }
    }

    #[test]
    fn numbers_of_plans_and_tenants_are_found() {
        let rules = "  - { id: r, per: [tenant], algorithm: gcra, rate: 10/s, burst: 10 }
  - { id: log, per: [tenant], algorithm: sliding-log, limit: 10, window: 1m }
plans:
  free: { r: { burst: 50 } }
  pro: { r: { rate: 100/s, burst: 1000 }, log: { limit: 5000 } }
tenants:
  acme: { plan: pro, overrides: { r: { burst: 90 } } }
  bolt: { overrides: { r: { rate: 1/s } } }
  cory: { overrides: { r: { burst: 60 } } }
";
        assert_eq!(
            found(rules),
            [
                "for the plan `pro`, the burst of 1000 is 10 times the rate of 100/s",
                "for the tenant `acme`, the burst of 90 is 9 times the rate of 10/s; so has 1 more tenant",
                "for the plan `pro`, the log keeps up to 5000 entries for each subject"
            ]
        );
    }

    #[test]
    fn long_log_is_found() {
        let log = |limit: &str| {
            found(&format!(
                "  - {{ id: r, per: [user], algorithm: sliding-log, limit: {limit}, window: 1m }}\n"
            ))
        };
        assert_eq!(log("1000"), [""; 0]);
        assert_eq!(
            log("1001"),
            ["the log keeps up to 1001 entries for each subject"]
        );
        assert_eq!(log("unlimited"), [""; 0]);
    }

    #[test]
    fn weak_limits_of_logins_are_found() {
        let by_ip =
            "  - { id: ip, match: { action: login }, per: [ip], algorithm: gcra, rate: 9/m }\n";
        let user = |numbers: &str| {
            format!("  - {{ id: r, match: {{ action: login }}, per: [user], {numbers} }}\n")
        };
        let log = "algorithm: sliding-log, limit: 5, window: 10m, on_store_failure: fail-closed";
        assert_eq!(found(&(user(log) + by_ip)), [""; 0]);
        assert_eq!(
            found(&user(log)),
            ["attempts are limited by user only: one address can try many of them"]
        );
        let weak = "algorithm: fixed-window, limit: 5, window: 10m, on_store_failure: fail-open";
        assert_eq!(found(&(user(weak) + by_ip)).len(), 2);
        let other = user(weak).replace("login", "search");
        assert_eq!(found(&other), [""; 0]);
        let path = user(log).replace("action: login", "path: \"/api/password-reset*\"");
        assert_eq!(found(&path).len(), 1);
    }
}
