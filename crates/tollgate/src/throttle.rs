//! Ad-hoc limits: who asks names a key and brings the numbers, and no rule has a say.
//!
//! Their keys are hashed like subjects, under a name that no attribute and no rule can have, so
//! that they never meet the state of a rule. As with rules, a key does not contain the numbers: who
//! comes back with others finds what it has used, carried over.

use tollgate_core::{
    Admission, Charge, Denial, Key, Keyring, Limit, Outcome, RuleSalt, Span, SubjectKind, Time,
};

/// Stands where a rule's id and a subject's attribute names do. No id and no attribute starts so.
const NAME: &str = "@throttle";

/// What an ad-hoc limit has decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Throttled {
    pub(crate) outcome: Outcome,
    pub(crate) decided_at: Time,
}

impl Throttled {
    /// Whether the request may proceed.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.outcome.is_allowed()
    }

    /// The most that can be admitted at once; [`Outcome::UNLIMITED`] if there is no bound.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.outcome.limit
    }

    /// What is left; [`Outcome::UNLIMITED`] if there is no bound.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.outcome.remaining
    }

    /// How long until the same cost would be admitted; `None` if it is, or no wait would help.
    #[must_use]
    pub fn retry_after(&self) -> Option<Span> {
        match self.outcome.admission {
            Admission::Denied(Denial::Until(at) | Denial::QueueFull(at)) => {
                Some(at.since(self.decided_at))
            }
            _ => None,
        }
    }

    /// How long until the whole allowance is back if nothing more is taken.
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

    /// The charge of a unit to `key` under `limit`.
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
