//! What a request comes to: charges, and refusals that need no store.

use smallvec::SmallVec;
use tollgate_core::{Charge, Key, Limit, OnDenied, RuleSalt, Subject};

use crate::layers::scaled;

/// What a request costs, and what refuses it outright.
#[derive(Clone, Debug, Default)]
pub struct Resolution<'r> {
    /// What the store is asked to charge, all or nothing.
    pub charges: SmallVec<[Charge<'r>; 6]>,
    /// The rule of each charge, as an index of [`RuleSet::rules`](crate::RuleSet::rules). A rule with a
    /// back-off has two, the second of which watches the first.
    pub rules: SmallVec<[u32; 6]>,
    /// Rules that refuse the request before any store is asked.
    pub denials: SmallVec<[RuleDenial; 1]>,
    /// The plan of the latest request's tenant, as an index of [`RuleSet::plans`](crate::RuleSet::plans).
    pub plan: Option<u16>,
    /// What overrides say to numbers that a request brings along, by the place of the charge.
    pub overridden: SmallVec<[(usize, Overridden); 1]>,
}

/// What overrides say to numbers that a request brings along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overridden {
    /// They have no effect: an emergency has set others.
    Fixed,
    /// So much of them is left, in hundredths of a percent.
    Scaled(u32),
}

impl Overridden {
    /// What becomes of `limit`; `None` if nothing does.
    #[must_use]
    pub fn apply(self, limit: &Limit) -> Option<Limit> {
        match self {
            Overridden::Fixed => None,
            Overridden::Scaled(scale) => Some(scaled(limit, scale, None)),
        }
    }
}

/// A rule that refuses a request without asking a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleDenial {
    /// The rule, as an index of [`RuleSet::rules`](crate::RuleSet::rules).
    pub rule: u32,
    /// Why.
    pub reason: RuleDenialReason,
    /// Whether the rule only observes: then the refusal is noted and has no effect.
    pub shadow: bool,
}

/// Why a rule refuses a request without asking a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleDenialReason {
    /// The request lacks an attribute, and the rule says `missing: deny`.
    MissingAttribute,
    /// The values of the request break the rule's `when` or `cost`.
    BadExpression,
}

/// Adds what watches the refusals of the latest charge.
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
    // No place beyond that can be named: what stands there is not watched.
    let Ok(place) = u8::try_from(resolution.charges.len() - 1) else {
        return;
    };
    resolution.charges.push(Charge {
        overflow: Key::overflow(salt),
        rule: id,
        tag: watched.tag,
        // A charge of cost 0 is never denied.
        cost: watched.cost.min(1),
        enforcement: watched.enforcement,
        on_denied: OnDenied::Strike(place),
        ..Charge::new(Key::new(salt, subject), limit)
    });
    resolution.rules.push(rule);
}
