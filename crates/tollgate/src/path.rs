//! What every limiter does before and after it asks its store.

use std::sync::Arc;

use tollgate_rules::{Resolution, RuleSet};
use tollgate_store::Applied;

use crate::decision::Decision;
use crate::entry::Entry;

/// Whether a rule refuses the request before any store is asked.
pub(crate) fn is_refused(resolution: &Resolution<'_>) -> bool {
    resolution.denials.iter().any(|refusal| !refusal.shadow)
}

/// The decision that the store's answer and the rules' own refusals make.
#[inline]
pub(crate) fn conclude(
    rules: &Arc<RuleSet>,
    resolution: &Resolution<'_>,
    applied: &Applied,
) -> Decision {
    let allowed = applied.allowed && !is_refused(resolution);
    let mut decision = Decision::new(Arc::clone(rules), allowed, applied.granted, applied.now);
    decision.guarantee = applied.guarantee;
    let decided = resolution.charges.iter().zip(&resolution.rules);
    let decided = decided.zip(&applied.outcomes);
    let decided =
        decided.map(|((charge, rule), outcome)| Entry::of(charge, *rule, *outcome, applied.now));
    let refused = resolution.denials.iter().map(Entry::refused);
    decision.conclude(decided.chain(refused), resolution.denials.is_empty());
    decision
}
