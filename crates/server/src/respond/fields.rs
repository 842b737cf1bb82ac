//! The rate limit header fields, in three families.
//!
//! * `ietf`: `RateLimit-Policy` and `RateLimit`, structured fields (RFC 9651) of the IETF draft.
//! * `ratelimit`: `RateLimit-Limit`, `-Remaining`, `-Reset` (seconds from now).
//! * `x-ratelimit`: the same with `X-`, `-Reset` being seconds since the epoch.
//!
//! `Retry-After` comes with every refusal that a wait can cure: whole seconds, rounded up, at
//! least 1.

use http::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use sfv::{Integer, KeyRef, ListSerializer, StringRef};
use tollgate::{Decision, RuleDecision, RuleSet};
use tollgate_rules::Families;

const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const RATELIMIT_LIMIT: HeaderName = HeaderName::from_static("ratelimit-limit");
const RATELIMIT_REMAINING: HeaderName = HeaderName::from_static("ratelimit-remaining");
const RATELIMIT_RESET: HeaderName = HeaderName::from_static("ratelimit-reset");
const X_RATELIMIT_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const X_RATELIMIT_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const X_RATELIMIT_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// The largest integer of a structured field.
const MAX_SFV: u64 = 999_999_999_999_999;

/// All fields of all families, `Retry-After` and what an answer has besides: one allocation.
const MOST_FIELDS: usize = 14;

/// Writes the fields of a decision.
pub(super) struct Fields {
    families: Families,
    /// Each rule's policy, ready to send; `None` for a rule without a bound.
    policies: Vec<Option<HeaderValue>>,
}

impl Fields {
    pub(super) fn new(families: Families, rules: &RuleSet) -> Fields {
        let policies = rules.rules().iter().map(|rule| {
            let limit = rule.limit();
            let bounded = limit.capacity() != tollgate::Outcome::UNLIMITED;
            let window = limit.window().as_secs_ceil();
            bounded
                .then(|| item(rule.id(), &[("q", limit.capacity()), ("w", window)]))
                .flatten()
        });
        Fields {
            families,
            policies: policies.collect(),
        }
    }

    /// Adds the fields of the rule that decides, and the policies of all that enforce.
    pub(super) fn write(&self, decision: &Decision, headers: &mut HeaderMap) {
        let Some(rule) = decision.rule() else {
            return;
        };
        headers.reserve(MOST_FIELDS);
        if let Some(wait) = rule.retry_after() {
            headers.insert(RETRY_AFTER, wait.as_secs_ceil().max(1).into());
        }
        let (Some(limit), Some(remaining)) = (rule.limit(), rule.remaining()) else {
            return;
        };
        let reset = rule.reset_after().as_secs_ceil();
        if self.families.ietf {
            self.write_policies(decision, headers);
            if let Some(state) = item(rule.rule().id(), &[("r", remaining), ("t", reset)]) {
                headers.insert(RATELIMIT, state);
            }
        }
        if self.families.ratelimit {
            headers.insert(RATELIMIT_LIMIT, limit.into());
            headers.insert(RATELIMIT_REMAINING, remaining.into());
            headers.insert(RATELIMIT_RESET, reset.into());
        }
        if self.families.x_ratelimit {
            headers.insert(X_RATELIMIT_LIMIT, limit.into());
            headers.insert(X_RATELIMIT_REMAINING, remaining.into());
            headers.insert(
                X_RATELIMIT_RESET,
                rule.reset_at().as_millis_ceil().div_ceil(1000).into(),
            );
        }
    }

    fn write_policies(&self, decision: &Decision, headers: &mut HeaderMap) {
        let enforcing = decision.rules().filter(|rule| !rule.is_shadow());
        let policies = enforcing.filter_map(|rule| self.policy(&rule));
        for policy in policies {
            headers.append(RATELIMIT_POLICY, policy.clone());
        }
    }

    fn policy(&self, rule: &RuleDecision<'_>) -> Option<&HeaderValue> {
        self.policies.get(rule.index()).and_then(Option::as_ref)
    }
}

/// A list of one string with integer parameters: `"api-rate";q=20;w=12`.
fn item(id: &str, parameters: &[(&'static str, u64)]) -> Option<HeaderValue> {
    let mut list = ListSerializer::new();
    let mut item = list.bare_item(StringRef::from_str(id).ok()?);
    for (name, value) in parameters {
        let value = Integer::try_from((*value).min(MAX_SFV)).ok()?;
        item = item.parameter(KeyRef::from_str(name).ok()?, value);
    }
    let _ = item.finish();
    HeaderValue::try_from(list.finish()?).ok()
}
