//! The reply to a request, by its store or by failure policies, and the decision that follows from it.

use std::ops::Range;

use tollgate_config::{Resolution, RuleDenial};
use tollgate_core::{Span, Time};
use tollgate_store::Applied;

use crate::decision::Decision;
use crate::rule_outcome::{RuleOutcome, RuleOutcomes};

/// The outcomes of all charges of a request.
#[derive(Default)]
pub(crate) struct Reply {
    /// The answer of the store. It has no outcomes if failure policies decided.
    pub(crate) applied: Applied,
    /// The outcomes of failure policies, one for each charge, if the store did not answer.
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
    /// Makes the reply to a request that asked for nothing at `now`. Nothing is denied.
    pub(crate) fn nothing(now: Time) -> Reply {
        let applied = Applied {
            now,
            allowed: true,
            ..Applied::default()
        };
        applied.into()
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

/// Returns whether a rule denies the request before any store is asked.
#[inline]
pub(crate) fn is_denied(resolution: &Resolution<'_>) -> bool {
    resolution.denials.iter().any(|denial| !denial.shadow)
}

/// Makes the decision about a part of a request, from a reply and from the rules' own denials.
/// `granted` computes from the outcomes whether the part is allowed, and how many units it gets.
#[inline]
pub(crate) fn conclude(
    resolution: &Resolution<'_>,
    part: &Part<'_>,
    reply: &Reply,
    granted: impl FnOnce(&[RuleOutcome]) -> (bool, u64),
    decision: &mut Decision,
) {
    match &reply.policies {
        None => {
            // A store that was not asked has no outcomes.
            for place in part.charges.clone() {
                // Nor has a store after one that denied the request.
                if let Some(outcome) = reply.applied.outcomes.get(place)
                    && outcome.is_decided()
                {
                    let (charge, rule) = (&resolution.charges[place], resolution.rules[place]);
                    decision.add(charge, rule, *outcome, reply.applied.now);
                }
            }
        }
        Some(outcomes) => {
            for outcome in outcomes
                .iter()
                .take(part.charges.end)
                .skip(part.charges.start)
            {
                decision.add_other(*outcome);
            }
        }
    }
    if !part.denials.is_empty() {
        for denial in part.denials {
            decision.add_other(RuleOutcome::denied(denial));
        }
        decision.sort();
    }
    let (allowed, granted) = granted(decision.outcomes());
    decision.decide(allowed, granted, &reply.applied);
}
