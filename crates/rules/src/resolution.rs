//! The result of applying rules to a request: charges, and denials that need no store.

use smallvec::SmallVec;
use tollgate_core::{Charge, Key, Limit, OnDenied, RuleSalt, Subject};

use crate::layers::scaled;

/// The charges of a request, and the rules that deny it without a store.
#[derive(Clone, Debug, Default)]
pub struct Resolution<'r> {
    /// The charges that the store applies, all or nothing.
    pub charges: SmallVec<[Charge<'r>; 6]>,
    /// The rule of each charge, as an index of [`RuleSet::rules`](crate::RuleSet::rules). A rule with a
    /// back-off has two charges: its own, and then the charge of the back-off.
    pub rules: SmallVec<[u32; 6]>,
    /// Rules that deny the request before any store is asked.
    pub denials: SmallVec<[RuleDenial; 1]>,
    /// The plan of the latest request's tenant, as an index of [`RuleSet::plans`](crate::RuleSet::plans).
    pub plan: Option<u16>,
    /// How overrides change limits that the request brings, by the index of the charge.
    pub overridden: SmallVec<[(usize, Overridden); 1]>,
}

/// How overrides change a limit that a request brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overridden {
    /// The limit of the request has no effect: an emergency override has set the numbers.
    Fixed,
    /// The limit is scaled to this share, in hundredths of a percent.
    Scaled(u32),
}

impl Overridden {
    /// Returns the limit that replaces `limit`; `None` if `limit` stays.
    #[must_use]
    pub fn apply(self, limit: &Limit) -> Option<Limit> {
        match self {
            Overridden::Fixed => None,
            Overridden::Scaled(scale) => Some(scaled(limit, scale, None)),
        }
    }
}

/// A rule that denies a request without asking a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleDenial {
    /// The rule, as an index of [`RuleSet::rules`](crate::RuleSet::rules).
    pub rule: u32,
    /// The kind of denial.
    pub reason: RuleDenialReason,
    /// Whether the rule only observes. If so, the denial is counted and has no effect.
    pub shadow: bool,
}

/// Why a rule denies a request without asking a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleDenialReason {
    /// The request lacks an attribute, and the rule says `missing: deny`.
    MissingAttribute,
    /// The values of the request break the rule's `when` or `cost`.
    BadExpression,
}

/// Adds the back-off charge that follows the denials of the latest charge.
pub(crate) fn push_companion<'r>(
    resolution: &mut Resolution<'r>,
    limit: &'r Limit,
    salt: RuleSalt,
    subject: Subject,
    (rule, id): (u32, &'r str),
) {
    let Some(watched) = resolution.charges.last().copied() else {
        return;
    };
    // A back-off refers to its charge with 8 bits, so it cannot follow a charge with a higher index.
    let Ok(place) = u8::try_from(resolution.charges.len() - 1) else {
        return;
    };
    resolution.charges.push(Charge {
        overflow: Key::overflow(salt),
        rule: id,
        tag: watched.tag,
        store: watched.store,
        // A charge of cost 0 is never denied.
        cost: watched.cost.min(1),
        enforcement: watched.enforcement,
        on_denied: OnDenied::Strike(place),
        anonymous: watched.anonymous,
        ..Charge::new(Key::new(salt, subject), limit)
    });
    resolution.rules.push(rule);
}
