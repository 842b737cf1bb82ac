//! The code, the message and the HTTP status of a denial, the same at every door.

use std::borrow::Cow;

use http::StatusCode;
use tollgate::{Decision, Kind, Reason, RuleDecision};

/// The code of a denial by a block.
const BLOCKED: &str = "BLOCKED";

/// Returns the HTTP status of a check: 200 if allowed, else 429, or 403 if a subject is blocked, or 503 if
/// a queue is full or the store does not answer.
#[must_use]
pub fn status(decision: &Decision) -> StatusCode {
    match decision.reason() {
        _ if decision.is_allowed() => StatusCode::OK,
        Some(Reason::Blocked) => StatusCode::FORBIDDEN,
        Some(Reason::QueueFull | Reason::StoreUnavailable) => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::TOO_MANY_REQUESTS,
    }
}

/// Returns the code that tells programs which kind of limit was hit.
#[must_use]
pub fn code(kind: Kind, reason: Reason) -> &'static str {
    match reason {
        Reason::Exceeded | Reason::BackedOff | Reason::NeverFits => match kind {
            Kind::Rate => "RATE_LIMIT",
            Kind::Budget => "BUDGET",
            Kind::Quota => "QUOTA",
            Kind::Concurrency => "CONCURRENCY",
        },
        Reason::QueueFull => "QUEUE_FULL",
        Reason::MissingAttribute => "MISSING_ATTRIBUTE",
        Reason::BadExpression => "BAD_ATTRIBUTE",
        Reason::StoreFailed => "STORE_FAILED",
        Reason::StoreUnavailable => "STORE_UNAVAILABLE",
        Reason::Blocked => BLOCKED,
    }
}

/// Returns the code of a denial; `None` if the request is allowed.
#[must_use]
pub fn denial_code(decision: &Decision) -> Option<&'static str> {
    if decision.blocked_by().is_some() {
        return Some(BLOCKED);
    }
    let rule = decision.rule()?;
    Some(code(rule.kind(), rule.reason()?))
}

/// Returns the code and the message of a denial; `None` if the request is allowed.
#[must_use]
pub fn denial(decision: &Decision) -> Option<(&'static str, Cow<'_, str>)> {
    if decision.blocked_by().is_some() {
        return Some((BLOCKED, Cow::Owned(blocked(decision))));
    }
    let rule = decision.rule()?;
    let reason = rule.reason()?;
    // The message of the rule is only for an allowance that is used up.
    let is_used_up = matches!(
        reason,
        Reason::Exceeded | Reason::BackedOff | Reason::QueueFull
    );
    let message = match rule.rule().message().filter(|_| is_used_up) {
        Some(message) => Cow::Borrowed(message),
        None => Cow::Owned(message(&rule, reason)),
    };
    Some((code(rule.kind(), reason), message))
}

/// Returns the message for a blocked client. The reason of the operator is not for clients.
fn blocked(decision: &Decision) -> String {
    match decision.retry_after() {
        Some(wait) => {
            let wait = wait.as_secs_ceil().max(1);
            format!("Access is blocked. Try again in {wait} s.")
        }
        None => "Access is blocked.".to_owned(),
    }
}

/// Returns the message for a rule without a message of its own. All subjects get the same message.
fn message(rule: &RuleDecision<'_>, reason: Reason) -> String {
    let wait = rule
        .retry_after()
        .map_or(1, |wait| wait.as_secs_ceil().max(1));
    match reason {
        Reason::Exceeded if rule.kind() == Kind::Quota => match rule.remaining() {
            Some(0) => format!("The quota is used up. Try again in {wait} s."),
            _ => {
                format!("The request needs more than the rest of the quota. Try again in {wait} s.")
            }
        },
        Reason::Exceeded if rule.kind() == Kind::Concurrency => {
            format!("Too many requests at once. Try again in {wait} s.")
        }
        Reason::Exceeded | Reason::BackedOff => {
            format!("Too many requests. Try again in {wait} s.")
        }
        Reason::QueueFull => format!("The queue is full. Try again in {wait} s."),
        Reason::NeverFits => {
            "The request costs more than this limit ever allows at once.".to_owned()
        }
        Reason::MissingAttribute => "The request lacks an attribute it must carry.".to_owned(),
        Reason::BadExpression => "An attribute of the request has no usable value.".to_owned(),
        Reason::StoreFailed | Reason::StoreUnavailable => {
            format!("Limits cannot be checked at the moment. Try again in {wait} s.")
        }
        // A rule never denies for this reason.
        Reason::Blocked => "Access is blocked.".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_allowance_has_its_own_code() {
        let exceeded = Kind::ALL.map(|kind| code(kind, Reason::Exceeded));
        assert_eq!(exceeded, ["RATE_LIMIT", "BUDGET", "QUOTA", "CONCURRENCY"]);
        let failed = Kind::ALL.map(|kind| code(kind, Reason::StoreFailed));
        assert_eq!(failed, ["STORE_FAILED"; 4]);
    }
}
