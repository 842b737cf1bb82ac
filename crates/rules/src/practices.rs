//! Rules that work, but that practice advises against. `tollgate doctor` shows them.

use tollgate_core::{Algorithm, Rate};

use crate::policy::Policy;
use crate::rule::{FailurePolicy, Rule, RuleState};
use crate::warnings::Warning;

/// A burst above this many times the amount of the rate is unusual.
const MOST_BURST: u64 = 5;
/// A log of more entries costs much memory for each subject.
const LONG_LOG: u64 = 1_000;
/// Parts of the names of actions and paths that guess secrets.
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
            found.extend(large_burst(rule));
            found.extend(long_log(rule));
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

fn large_burst(rule: &Rule) -> Option<Warning> {
    let numbers = &rule.counting.numbers;
    let (rate, burst): (Rate, u64) = match rule.algorithm() {
        Algorithm::Gcra => (numbers.rate.as_ref()?.0?, numbers.burst.as_ref()?.0),
        Algorithm::TokenBucket => (numbers.refill.as_ref()?.0?, numbers.capacity.as_ref()?.0?),
        _ => return None,
    };
    let times = burst / rate.amount();
    (burst > rate.amount().saturating_mul(MOST_BURST)).then(|| {
        let message = format!("the burst of {burst} is {times} times the rate of {rate}");
        let help =
            "check that the service behind can take such a burst; 1 to 5 times the rate is usual";
        warning(rule, message, help)
    })
}

fn long_log(rule: &Rule) -> Option<Warning> {
    let limit = rule.limit().capacity();
    let is_log = rule.algorithm() == Algorithm::SlidingLog;
    (is_log && (LONG_LOG + 1..=tollgate_core::MAX_AMOUNT).contains(&limit)).then(|| {
        let message = format!("the log keeps up to {limit} entries for each subject");
        let help =
            "use `sliding-counter`: it needs the same memory for any limit, and its error is small";
        warning(rule, message, help)
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
            ["the burst of 51 is 5 times the rate of 10/s"]
        );
        assert_eq!(
            burst("algorithm: token-bucket, capacity: 100, refill: 60/m"),
            [""; 0]
        );
        assert_eq!(
            burst("algorithm: token-bucket, capacity: 100, refill: 1/s").len(),
            1
        );
        assert_eq!(burst("algorithm: gcra, rate: unlimited"), [""; 0]);
        assert_eq!(
            burst("algorithm: gcra, rate: 1/s, burst: 99, state: disabled"),
            [""; 0]
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
