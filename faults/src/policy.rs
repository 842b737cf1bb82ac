//! The rules under load: one for each failure policy, otherwise equal.

use std::fmt::Write as _;
use std::sync::Arc;

use tollgate::{
    Clock, Config, ConfigError, Decision, FailurePolicy, Limiter, Reason, Remembered, Span,
};
use tollgate_redis::RedisStore;

use crate::allowance::Allowance;

/// The limit of each subject under each rule.
pub const LIMIT: Allowance = Allowance {
    capacity: 50,
    per_second: 50,
};

/// The limit of `emergency-limit`, for all subjects of an instance together.
pub const EMERGENCY: Allowance = Allowance {
    capacity: 20,
    per_second: 20,
};

/// The configured number of instances: two, so that the share of one is less than the limit.
pub const REPLICAS: u32 = 2;

/// The limit of each subject under `local-fallback`.
pub const SHARE: Allowance = Allowance {
    capacity: LIMIT.capacity / REPLICAS as u64,
    per_second: LIMIT.per_second / REPLICAS as u64,
};

/// The retry time of requests that are denied because the store is unavailable.
const RETRY_AFTER: Span = Span::from_secs(5);

/// A failure policy; `None` for a rule without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy(pub Option<FailurePolicy>);

/// The part of the limiter that decided a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The store.
    Store,
    /// The policy, because the store did not answer.
    Policy,
    /// A cached denial of the store.
    KnownDenial,
}

impl Policy {
    /// All policies, in the order of the tables.
    pub const ALL: [Policy; 7] = [
        Policy(Some(FailurePolicy::FailOpen)),
        Policy(Some(FailurePolicy::FailClosed)),
        Policy(Some(FailurePolicy::LocalFallback)),
        Policy(Some(FailurePolicy::Degraded)),
        Policy(Some(FailurePolicy::Cached)),
        Policy(Some(FailurePolicy::EmergencyLimit)),
        Policy(None),
    ];

    /// Returns the name of the policy in configs. Its rule has this name as id and as action.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.0.map_or("none", FailurePolicy::name)
    }

    /// Returns what decided. `at_once` means that the decision was ready without waiting, so the store was not
    /// called.
    #[must_use]
    pub fn decided_by(self, decision: &Decision, at_once: bool) -> By {
        let reason = decision.rule().and_then(|rule| rule.reason());
        if decision.fallback().is_some() || reason == Some(Reason::StoreUnavailable) {
            By::Policy
        } else if at_once && !decision.is_allowed() {
            By::KnownDenial
        } else {
            By::Store
        }
    }

    /// Whether the policy may give this answer.
    #[must_use]
    pub fn may_answer(self, decision: &Decision, by: By) -> bool {
        let retry = decision.retry_after();
        if decision.is_allowed() == retry.is_some() {
            return false;
        }
        let allowed = decision.is_allowed();
        let degraded = decision.is_degraded();
        match by {
            By::Store => !degraded,
            By::KnownDenial => !allowed,
            By::Policy if decision.fallback() != self.0 => false,
            By::Policy => match self.0 {
                Some(FailurePolicy::FailOpen) => allowed && !degraded,
                Some(FailurePolicy::Degraded) => allowed && degraded,
                Some(FailurePolicy::FailClosed) | None => !allowed && retry == Some(RETRY_AFTER),
                Some(_) => !degraded,
            },
        }
    }
}

/// Returns a limiter on `store` with this clock. It remembers denials, as an engine does.
#[must_use]
pub fn limiter(
    config: &Config,
    store: RedisStore,
    clock: impl Clock + Clone + 'static,
) -> Limiter<Remembered<RedisStore>> {
    let remembered = Remembered::new(store, Span::SECOND, Arc::new(clock.clone()));
    Limiter::builder(config, remembered)
        .replicas(REPLICAS)
        .clock(clock)
        .build()
}

/// Returns the rules, as a config.
#[must_use]
pub fn rules() -> String {
    let mut text = String::from("rules:\n");
    for policy in Policy::ALL {
        let name = policy.name();
        let _ = write!(
            text,
            "  - {{ id: {name}, match: {{ action: {name} }}, per: [tenant, user], algorithm: gcra, \
             rate: {}/s, burst: {}",
            LIMIT.per_second, LIMIT.capacity,
        );
        if policy.0.is_some() {
            let _ = write!(text, ", on_store_failure: {name}");
        }
        if policy.0 == Some(FailurePolicy::EmergencyLimit) {
            let _ = write!(text, ", emergency_limit: {}/s", EMERGENCY.per_second);
        }
        text.push_str(" }\n");
    }
    text
}

/// Returns the validated config. The addresses of the servers are set elsewhere.
///
/// # Errors
/// If the rules are invalid, which is a bug in [`rules`].
pub fn config() -> Result<Config, ConfigError> {
    let shared = "version: 1\nstore: { redis: { url: \"redis://127.0.0.1\" } }\n\
                  subjects: { hash_secret: 0123456789abcdef0123456789abcdef }\n";
    tollgate_config::parse("rules.yaml", &[shared, &rules()].concat(), &|_| None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_has_its_rule() {
        let config = config().unwrap();
        assert_eq!(config.policy.rules.len(), Policy::ALL.len());
        for (rule, policy) in config.policy.rules.iter().zip(Policy::ALL) {
            assert_eq!(rule.on_store_failure(), policy.0);
            assert_eq!(rule.limit().capacity(), LIMIT.capacity);
        }
    }
}
