//! The reply to a request, by its store or by failure policies, and the decision that follows from it.

use std::ops::Range;
use std::sync::Arc;

use tollgate_config::{Resolution, RuleDenial, RuleSet};
use tollgate_core::{Span, Time};
use tollgate_store::Applied;

use crate::decision::Decision;
use crate::rule_outcome::{RuleOutcome, RuleOutcomes};

/// The outcomes of all charges of a request.
#[derive(Default)]
pub(crate) struct Reply {
    /// The answer of the store; it has no outcomes where failure policies decided.
    pub(crate) applied: Applied,
    /// The outcomes of failure policies where the store did not answer, one for each charge.
    pub(crate) policies: Option<Box<RuleOutcomes>>,
    /// How long the request waited for its store; `None` if the answer was there at once.
    pub(crate) latency: Option<Span>,
}

/// The part of a resolution that one decision is about: all of it, or one demand of a batch.
pub(crate) struct Part<'p> {
    pub(crate) charges: Range<usize>,
    pub(crate) denials: &'p [RuleDenial],
}

impl Reply {
    /// Nothing was asked at `now`, so nothing was denied.
    pub(crate) fn nothing(now: Time) -> Reply {
        let applied = Applied {
            now,
            allowed: true,
            ..Applied::default()
        };
        applied.into()
    }

    /// Returns the outcome of the charge at `place`, with its rule; `None` if the store was not asked.
    #[inline]
    pub(crate) fn rule_outcome(
        &self,
        resolution: &Resolution<'_>,
        place: usize,
    ) -> Option<RuleOutcome> {
        match &self.policies {
            Some(outcomes) => outcomes.get(place).copied(),
            None => {
                let outcome = self.applied.outcomes.get(place)?;
                let (charge, rule) = (&resolution.charges[place], resolution.rules[place]);
                Some(RuleOutcome::of(charge, rule, *outcome, self.applied.now))
            }
        }
    }
}

impl From<Applied> for Reply {
    #[inline]
    fn from(applied: Applied) -> Reply {
        Reply {
            applied,
            policies: None,
            latency: None,
        }
    }
}

impl<'p> Part<'p> {
    /// Returns the part that is the whole resolution.
    #[inline]
    pub(crate) fn whole(resolution: &'p Resolution<'_>) -> Part<'p> {
        Part {
            charges: 0..resolution.charges.len(),
            denials: &resolution.denials,
        }
    }
}

/// Whether a rule denies the request before any store is asked.
pub(crate) fn is_denied(resolution: &Resolution<'_>) -> bool {
    resolution.denials.iter().any(|denial| !denial.shadow)
}

/// The decision that a reply and the rules' own denials make about a part of a request.
#[inline]
pub(crate) fn conclude(
    rules: &Arc<RuleSet>,
    resolution: &Resolution<'_>,
    part: &Part<'_>,
    reply: &Reply,
    (allowed, granted): (bool, u64),
) -> Decision {
    let mut decision = Decision::new(rules, allowed, granted, &reply.applied);
    let charges = part.charges.clone();
    let decided = charges.filter_map(|place| reply.rule_outcome(resolution, place));
    let denied = part.denials.iter().map(RuleOutcome::denied);
    decision.add(decided.chain(denied), part.denials.is_empty());
    decision
}
