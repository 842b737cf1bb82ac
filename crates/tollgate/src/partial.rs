//! Requests that only some of several stores have answered.
//!
//! The stores that answered have allowed the request, and taken its units. The failure policies of the other
//! rules decide the rest. If they deny, or grant fewer units, the difference is given back to the stores that
//! answered, each at the time of its own decision. Nothing is asked twice, so nothing is charged twice.

use std::ops::Deref;

use smallvec::SmallVec;
use tollgate_config::Resolution;
use tollgate_core::{Charge, Limit};
use tollgate_store::{Applied, Ask, Store, Unanswered};

use crate::active_config::ActiveConfig;
use crate::reply::{Reply, is_denied};
use crate::rule_outcome::{RuleOutcome, RuleOutcomes};
use crate::snapshot::Snapshot;

impl<S: Store, C: Deref<Target = ActiveConfig>> Snapshot<'_, S, C> {
    /// Makes the reply from an answer that lacks the charges of a store that failed.
    pub(crate) async fn reply_in_part(
        &self,
        mut applied: Applied,
        resolution: &Resolution<'_>,
        ask: Ask,
        take: bool,
    ) -> Reply {
        let Some(unanswered) = applied.unanswered.take() else {
            return applied.into();
        };
        let (limiter, fallbacks) = (self.limiter, self.active.fallbacks());
        let missing = missing(resolution, &applied);
        let ask = match ask {
            Ask::Exactly(units) => Ask::Exactly(units),
            // The other rules have granted this many.
            Ask::UpTo(_) => Ask::UpTo(applied.granted),
        };
        let takes = take && !is_denied(resolution);
        let decided = limiter.fallback.decide(fallbacks, &missing, ask, takes);
        if take {
            limiter.failures.count(decided.policies.as_deref());
            limiter.failures.log(decided.applied.now, &unanswered.error);
        }
        let granted = decided.applied.granted.min(applied.granted);
        let beyond = applied.granted - granted;
        if takes && beyond > 0 {
            let denied = !decided.applied.allowed;
            self.give_back(&unanswered, resolution, &mut applied, beyond, denied)
                .await;
        }
        applied.allowed &= decided.applied.allowed;
        applied.granted = if applied.allowed { granted } else { 0 };
        let mut policies = decided
            .policies
            .map(|it| *it)
            .unwrap_or_default()
            .into_iter();
        let charges = resolution.charges.iter().zip(&resolution.rules);
        let outcomes = charges
            .zip(&applied.outcomes)
            .filter_map(|((charge, rule), outcome)| {
                if !outcome.is_decided() {
                    return policies.next();
                }
                let mut decided = RuleOutcome::of(charge, *rule, *outcome);
                if let Limit::Quota(quota) = charge.limit {
                    decided.apply_period(quota, applied.now);
                }
                Some(decided)
            });
        let outcomes: RuleOutcomes = outcomes.collect();
        if take {
            limiter.fallback.follow(fallbacks, resolution, &applied);
        }
        Reply {
            applied,
            policies: Some(Box::new(outcomes)),
            latency: None,
        }
    }

    /// Gives back `units` that stores have taken. A `denied` request stays charged where denied requests are
    /// charged.
    async fn give_back(
        &self,
        unanswered: &Unanswered,
        resolution: &Resolution<'_>,
        applied: &mut Applied,
        units: u64,
        denied: bool,
    ) {
        for (store, charged_at) in &unanswered.taken {
            let charges = resolution.charges.iter().zip(&applied.outcomes).enumerate();
            let taken = charges.filter(|(_, (charge, outcome))| {
                let took = charge.limit.has_amount() && outcome.is_allowed();
                charge.store == *store && took && !(denied && charge.counts_denied())
            });
            let (places, charges): (Vec<usize>, SmallVec<[Charge<'_>; 6]>) =
                taken.map(|(place, (charge, _))| (place, *charge)).unzip();
            if charges.is_empty() {
                continue;
            }
            let refunded = self.limiter.store.refund(&charges, units, *charged_at);
            match refunded.await {
                Ok(refunded) => {
                    for (place, after) in places.into_iter().zip(&refunded.outcomes) {
                        let outcome = &mut applied.outcomes[place];
                        (outcome.remaining, outcome.reset_at) = (after.remaining, after.reset_at);
                    }
                }
                // The refund may have been made, so it must not be repeated.
                Err(error) => {
                    tracing::warn!(%error, "the units of a denied request stay taken until they refill or expire");
                }
            }
        }
    }
}

/// Returns the charges that no store has decided.
fn missing<'r>(resolution: &Resolution<'r>, applied: &Applied) -> Resolution<'r> {
    let charges = resolution.charges.iter().zip(&resolution.rules);
    let missing = charges.zip(&applied.outcomes);
    let missing = missing.filter(|(_, outcome)| !outcome.is_decided());
    let (charges, rules) = missing.map(|((charge, rule), _)| (*charge, *rule)).unzip();
    Resolution {
        charges,
        rules,
        ..Resolution::default()
    }
}
