//! Ad-hoc limits: the caller names a key and brings the limit. No rule applies.
//!
//! Keys are hashed like subjects, under a name that no attribute and no rule can have. So ad-hoc limits
//! never share state with a rule. As with rules, a stored key does not contain the numbers of the
//! limit. If a caller brings other numbers for the same key, the usage is kept.

use tollgate_core::{
    Admission, Charge, Denial, Key, Keyring, Limit, Outcome, RuleSalt, Span, Subject, SubjectKind,
    Time,
};

use crate::decision::Reason;
use crate::rule_outcome::reason_of;

/// Used as the id of the rule and as the attribute of the subject. Ids and attributes never start with
/// `@`.
pub(crate) const NAME: &str = "@throttle";

/// The decision of an ad-hoc limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Throttled {
    pub(crate) outcome: Outcome,
    pub(crate) decided_at: Time,
    /// Whether the key is blocked.
    pub(crate) is_blocked: bool,
}

impl Throttled {
    /// Makes the decision about a blocked key. `ends_at` is the end of the block, in milliseconds since
    /// 1970; `None` if it has no end.
    #[cold]
    pub(crate) fn blocked(limit: &Limit, ends_at: Option<u64>, now: Time) -> Throttled {
        let ends_at = ends_at.map(|millis| Time::from_micros(millis.saturating_mul(1000)).max(now));
        let denial = match ends_at {
            Some(at) => Denial::Until(at),
            None => Denial::Never,
        };
        Throttled {
            outcome: Outcome {
                admission: Admission::Denied(denial),
                limit: limit.capacity(),
                remaining: 0,
                reset_at: ends_at.unwrap_or(now),
            },
            decided_at: now,
            is_blocked: true,
        }
    }

    /// Returns why the request is denied, if it is.
    #[must_use]
    pub fn reason(&self) -> Option<Reason> {
        match self.is_blocked {
            true => Some(Reason::Blocked),
            false => reason_of(&self.outcome),
        }
    }

    /// Returns whether the request may proceed.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.outcome.is_allowed()
    }

    /// Returns the largest amount that can be admitted at once; [`Outcome::UNLIMITED`] if unlimited.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.outcome.limit
    }

    /// Returns the amount that is left; [`Outcome::UNLIMITED`] if unlimited.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.outcome.remaining
    }

    /// Returns how long to wait before the same cost can be admitted. `None` if the cost was admitted,
    /// or if waiting does not help.
    #[must_use]
    pub fn retry_after(&self) -> Option<Span> {
        match self.outcome.admission {
            Admission::Denied(Denial::Until(at) | Denial::QueueFull(at)) => {
                Some(at.since(self.decided_at))
            }
            _ => None,
        }
    }

    /// Returns how long until the whole allowance is back if nothing more is taken.
    #[must_use]
    pub fn reset_after(&self) -> Span {
        self.outcome.reset_at.since(self.decided_at)
    }
}

/// Makes the charges of ad-hoc limits.
pub(crate) struct Throttle {
    kind: SubjectKind,
    salt: RuleSalt,
}

impl Throttle {
    pub(crate) fn new(keyring: &Keyring) -> Throttle {
        Throttle {
            kind: keyring.kind([NAME]),
            salt: keyring.rule(NAME),
        }
    }

    /// Returns the hashed subject of a key.
    pub(crate) fn subject(&self, key: &[u8]) -> Subject {
        self.kind.subject_of(key)
    }

    /// Makes a charge of one unit to `key` under `limit`.
    #[inline]
    pub(crate) fn charge<'l>(&self, key: &[u8], limit: &'l Limit) -> Charge<'l> {
        let subject = self.kind.subject_of(key);
        Charge {
            overflow: Key::overflow(self.salt),
            rule: NAME,
            tag: subject.tag(),
            ..Charge::new(Key::new(self.salt, subject), limit)
        }
    }
}
