//! The rate limit header fields, in three families.
//!
//! * `ietf`: `RateLimit-Policy` and `RateLimit`, structured fields (RFC 9651) of the IETF draft.
//! * `ratelimit`: `RateLimit-Limit`, `-Remaining`, `-Reset` (seconds from now, unless the config says epoch).
//! * `x-ratelimit`: the same names with `X-`. `-Reset` is in seconds since the epoch, unless the config says
//!   seconds.
//!
//! `Retry-After` comes with every denial where a wait helps: whole seconds, rounded up, at least 1.
//!
//! Every field agrees with `Retry-After`, or is left out. If the store did not decide, the state of the
//! limit is not known, and no family is written. If waiting does not help, there is no reset.

use std::sync::{Arc, Weak};

use http::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use sfv::{Integer, KeyRef, ListSerializer, StringRef};
use tollgate::{Decision, Kind, Rule, RuleDecision, RuleSet, Span};
use tollgate_config::{Families, Headers, ResetForm};

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

/// The value of a field.
#[derive(Debug)]
pub enum Value<'a> {
    /// A number.
    Number(u64),
    /// A text.
    Text(String),
    /// A text that was rendered before.
    Ready(&'a HeaderValue),
}

/// Writes the fields of a decision.
#[derive(Debug)]
pub struct Fields {
    families: Families,
    ratelimit_reset: ResetForm,
    x_ratelimit_reset: ResetForm,
    /// The rules whose policies are rendered. A weak reference, because the decision keeps its
    /// rules alive.
    rules: Weak<RuleSet>,
    /// The rendered policy of each rule; `None` for a rule without a bound.
    policies: Vec<Option<HeaderValue>>,
}

impl Fields {
    /// Prepares the fields of decisions of `rules`.
    #[must_use]
    pub fn new(headers: &Headers, rules: &Arc<RuleSet>) -> Fields {
        let policies = rules.rules().iter();
        let policies = policies.map(|rule| HeaderValue::try_from(policy_of(rule)?).ok());
        Fields {
            families: headers.families,
            ratelimit_reset: headers.ratelimit_reset,
            x_ratelimit_reset: headers.x_ratelimit_reset,
            rules: Arc::downgrade(rules),
            policies: policies.collect(),
        }
    }

    /// Returns how many fields a decision may have, `Retry-After` included. So their space is allocated
    /// once.
    #[must_use]
    pub fn most(&self, decision: &Decision) -> usize {
        let Families {
            ietf,
            ratelimit,
            x_ratelimit,
        } = self.families;
        match decision.rules().len() {
            0 => 0,
            rules => {
                let ietf = if ietf { rules + 1 } else { 0 };
                1 + ietf + 3 * (usize::from(ratelimit) + usize::from(x_ratelimit))
            }
        }
    }

    /// Adds the fields of a decision to the header of a response.
    pub fn write_to(&self, headers: &mut HeaderMap, decision: &Decision) {
        headers.reserve(self.most(decision));
        self.write(decision, |name, value| {
            let value = match value {
                Value::Number(value) => number(value),
                Value::Ready(value) => value.clone(),
                Value::Text(text) => match HeaderValue::try_from(text) {
                    Ok(value) => value,
                    // Structured fields are ASCII.
                    Err(_) => return,
                },
            };
            headers.append(name, value);
        });
    }

    /// Adds the fields of a decision to a header that may have fields of another limiter.
    pub fn replace_in(&self, headers: &mut HeaderMap, decision: &Decision) {
        if decision.rule().is_none() {
            return;
        }
        for name in [
            RATELIMIT,
            RATELIMIT_POLICY,
            RATELIMIT_LIMIT,
            RATELIMIT_REMAINING,
            RATELIMIT_RESET,
            X_RATELIMIT_LIMIT,
            X_RATELIMIT_REMAINING,
            X_RATELIMIT_RESET,
        ] {
            headers.remove(name);
        }
        self.write_to(headers, decision);
    }

    /// Adds the fields of the deciding rule, and the policies of all rules that are enforced.
    pub fn write(&self, decision: &Decision, mut add: impl FnMut(HeaderName, Value<'_>)) {
        if let Some(wait) = retry_after(decision) {
            add(RETRY_AFTER, Value::Number(wait));
        }
        let Some(rule) = decision.rule() else {
            return;
        };
        let (Some(limit), Some(remaining)) = (rule.limit(), rule.remaining()) else {
            return;
        };
        if self.families.ietf {
            let reset = reset(&rule, ResetForm::Seconds);
            self.write_policies(decision, &mut add);
            let left = ("r", remaining);
            let state = match reset {
                Some(reset) => item(rule.rule().id(), &[left, ("t", reset)]),
                None => item(rule.rule().id(), &[left]),
            };
            if let Some(state) = state {
                add(RATELIMIT, Value::Text(state));
            }
        }
        if self.families.ratelimit {
            add(RATELIMIT_LIMIT, Value::Number(limit));
            add(RATELIMIT_REMAINING, Value::Number(remaining));
            if let Some(reset) = reset(&rule, self.ratelimit_reset) {
                add(RATELIMIT_RESET, Value::Number(reset));
            }
        }
        if self.families.x_ratelimit {
            add(X_RATELIMIT_LIMIT, Value::Number(limit));
            add(X_RATELIMIT_REMAINING, Value::Number(remaining));
            if let Some(reset) = reset(&rule, self.x_ratelimit_reset) {
                add(X_RATELIMIT_RESET, Value::Number(reset));
            }
        }
    }

    fn write_policies(&self, decision: &Decision, add: &mut impl FnMut(HeaderName, Value<'_>)) {
        // The rendered policies belong to one set of rules only.
        let ready = std::ptr::eq(self.rules.as_ptr(), Arc::as_ptr(decision.rule_set()));
        for rule in decision.rules().filter(|rule| !rule.is_shadow()) {
            let value = if rule.is_renumbered() {
                let limit = rule.limit().unwrap_or(tollgate::Outcome::UNLIMITED);
                policy(rule.rule(), limit, rule.window()).map(Value::Text)
            } else if ready {
                let rendered = self.policies.get(rule.index());
                rendered.and_then(Option::as_ref).map(Value::Ready)
            } else {
                policy_of(rule.rule()).map(Value::Text)
            };
            if let Some(value) = value {
                add(RATELIMIT_POLICY, value);
            }
        }
    }
}

/// Adds `Retry-After` alone, if waiting helps.
pub fn write_retry_after(headers: &mut HeaderMap, decision: &Decision) {
    if let Some(wait) = retry_after(decision) {
        headers.insert(RETRY_AFTER, number(wait));
    }
}

/// Returns how long to wait, in whole seconds, rounded up, at least 1.
fn retry_after(decision: &Decision) -> Option<u64> {
    decision.retry_after().map(|it| it.as_secs_ceil().max(1))
}

/// Returns a number as a value, with one allocation: `HeaderValue::from` makes two.
fn number(number: u64) -> HeaderValue {
    HeaderValue::from_str(itoa::Buffer::new().format(number)).unwrap_or_else(|_| number.into())
}

/// Returns when the whole limit is back, in whole seconds, rounded up.
fn reset(rule: &RuleDecision<'_>, form: ResetForm) -> Option<u64> {
    match form {
        ResetForm::Seconds => rule.reset_after().map(Span::as_secs_ceil),
        ResetForm::Epoch => rule.reset_at().map(|at| at.as_millis_ceil().div_ceil(1000)),
    }
}

/// Returns the policy of a rule; `None` if it has no bound.
fn policy_of(rule: &Rule) -> Option<String> {
    let limit = rule.limit();
    let is_bounded = limit.capacity() != tollgate::Outcome::UNLIMITED;
    is_bounded.then(|| policy(rule, limit.soft_limit(), limit.window()))?
}

/// Returns the policy of a rule with this limit and window: `"api-rate";q=20;w=12`, or
/// `"in-flight";q=5;qu="concurrent-requests"`.
fn policy(rule: &Rule, limit: u64, window: Span) -> Option<String> {
    if Kind::of(rule) != Kind::Concurrency {
        return item(rule.id(), &[("q", limit), ("w", window.as_secs_ceil())]);
    }
    let item = item(rule.id(), &[("q", limit)])?;
    Some(item + ";qu=\"concurrent-requests\"")
}

/// Formats a list of one string with integer parameters: `"api-rate";r=7;t=3`.
fn item(id: &str, parameters: &[(&'static str, u64)]) -> Option<String> {
    let mut list = ListSerializer::new();
    let mut item = list.bare_item(StringRef::from_str(id).ok()?);
    for (name, value) in parameters {
        let value = Integer::try_from((*value).min(MAX_SFV)).ok()?;
        item = item.parameter(KeyRef::from_str(name).ok()?, value);
    }
    let _ = item.finish();
    list.finish()
}
