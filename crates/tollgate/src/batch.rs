//! Several demands decided as one request: all of them are met, or nothing is taken.
//!
//! Each demand is resolved on its own, as if it came alone. What all of them take is then asked of
//! the store in one call, so that it takes all or nothing; charges of the same key add up. As the
//! demands may want different amounts, the units of each are folded into the costs of its charges,
//! and the store is asked for one unit of the whole. What is only to be looked at is looked at
//! before that, and what is to be given back is given back after it, each in a call of its own.
//!
//! In one request a key has one set of numbers: if a demand brings [`Numbers`] of its own, they
//! hold for every charge of that key, and of several the first.

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;
use tollgate_core::{Limit, ParamError, Span, Time};
use tollgate_rules::{Attributes, Overridden, RequestLimits, Resolution, RuleSet};
use tollgate_store::{Applied, Guarantee, StoreError};

use crate::decision::Decision;
use crate::entry::Entry;
use crate::metrics::Metrics;
use crate::parties::{Parties, Party};
use crate::path::is_refused;

/// The most charges that the demands of one request may make together.
pub const MAX_CHARGES: usize = 255;

/// One of several demands that are decided together.
#[derive(Clone, Debug)]
pub struct Demand<'a> {
    /// Who and what.
    pub attributes: Attributes<'a>,
    /// What is to be done.
    pub effect: Effect,
    /// Numbers that replace those of the rules that apply, for this request.
    ///
    /// A rule that counts by itself while its store fails (`local-fallback`, `emergency-limit`)
    /// does so by its own numbers.
    pub numbers: Option<Numbers>,
}

impl<'a> Demand<'a> {
    /// The demand to take `units`.
    #[must_use]
    pub fn take(attributes: Attributes<'a>, units: u64) -> Demand<'a> {
        Demand {
            attributes,
            effect: Effect::Take(units),
            numbers: None,
        }
    }
}

/// What is to be done about a demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Take so many units. The demand is met if there are as many.
    Take(u64),
    /// Take nothing. The demand is met if there is one unit.
    Look,
    /// Give back so many units, if the request is allowed. The demand is always met.
    GiveBack(u64),
}

/// Numbers for a rule: so much in each period. See [`Limit::renumbered`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// How much.
    pub amount: u64,
    /// In which time.
    pub period: Span,
}

/// Why demands were not decided.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DemandError {
    /// Numbers that the rule cannot have.
    #[error("the numbers of demand {demand} do not suit the rule {rule}: {error}")]
    Numbers {
        /// Which of the demands.
        demand: usize,
        /// The rule's name.
        rule: Arc<str>,
        /// Why not.
        error: ParamError,
    },
    /// More rules apply than can be decided at once.
    #[error("the demands make {charges} charges together; at most {MAX_CHARGES}")]
    TooMany {
        /// How many charges they make.
        charges: usize,
    },
    /// The store could not be told what to give back.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What was decided about several demands.
///
/// The decision of a demand says what the rules that apply to it say. Whether anything was taken
/// depends on all: see [`is_allowed`](Self::is_allowed).
#[derive(Clone, Debug)]
pub struct BatchDecision {
    allowed: bool,
    decisions: Vec<Decision>,
}

impl BatchDecision {
    /// Whether every demand is met, and everything was taken.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.allowed
    }

    /// The decision of each demand, in order.
    #[must_use]
    pub fn decisions(&self) -> &[Decision] {
        &self.decisions
    }

    /// The decision that decides: of a refusal, the one that refuses longest; of an admission, the
    /// one with the least left. `None` if no enforcing rule applies to any demand.
    #[must_use]
    pub fn deciding(&self) -> Option<&Decision> {
        let all = self.decisions.iter();
        if self.allowed {
            let ruled = all.filter_map(|it| it.rule().map(|rule| (it, rule.remaining())));
            let least = ruled.min_by_key(|(_, left)| left.unwrap_or(u64::MAX));
            return least.map(|(it, _)| it);
        }
        // Of equals, the first.
        let refused = all.rev().filter(|it| !it.is_allowed());
        refused.max_by_key(|it| it.retry_after().map_or(u64::MAX, Span::as_micros))
    }
}

/// Demands resolved: what to ask a store for.
#[derive(Default)]
pub(crate) struct Plan<'l> {
    pub(crate) take: Resolution<'l>,
    pub(crate) look: Resolution<'l>,
    pub(crate) give: Resolution<'l>,
    /// Where each demand's part is.
    places: SmallVec<[Place; 4]>,
    /// Whether a demand brings numbers of its own.
    pub(crate) renumbered: bool,
}

struct Place {
    effect: Effect,
    charges: Range<usize>,
    refusals: Range<usize>,
    /// Of whose tenant.
    plan: Option<u16>,
}

impl<'l> Plan<'l> {
    /// Resolves `demands`. `request_limits` and `limits` keep the limits that they bring along.
    pub(crate) fn prepare(
        &mut self,
        rules: &'l RuleSet,
        demands: &[Demand<'_>],
        request_limits: &'l RequestLimits,
        limits: &'l mut Vec<Limit>,
    ) -> Result<(), DemandError> {
        for demand in demands {
            let (resolution, units) = match demand.effect {
                Effect::Take(units) => (&mut self.take, units),
                Effect::Look => (&mut self.look, 1),
                Effect::GiveBack(units) => (&mut self.give, units),
            };
            let (charges, refusals) = (resolution.charges.len(), resolution.denials.len());
            rules.resolve_into(&demand.attributes, request_limits, resolution);
            if units != 1 {
                for charge in &mut resolution.charges[charges..] {
                    charge.cost = charge.cost.saturating_mul(units);
                }
            }
            self.places.push(Place {
                effect: demand.effect,
                charges: charges..resolution.charges.len(),
                refusals: refusals..resolution.denials.len(),
                plan: resolution.plan,
            });
            let all = [&self.take, &self.look, &self.give];
            let charges = all.iter().map(|it| it.charges.len()).sum();
            if charges > MAX_CHARGES {
                return Err(DemandError::TooMany { charges });
            }
        }
        if demands.iter().any(|demand| demand.numbers.is_some()) {
            self.renumber(rules, demands, limits)?;
        }
        Ok(())
    }

    /// Puts the numbers of the demands in the place of their rules'.
    fn renumber(
        &mut self,
        rules: &RuleSet,
        demands: &[Demand<'_>],
        limits: &'l mut Vec<Limit>,
    ) -> Result<(), DemandError> {
        self.renumbered = true;
        let mut keys = Vec::new();
        for (index, (demand, place)) in demands.iter().zip(&self.places).enumerate() {
            let Some(Numbers { amount, period }) = demand.numbers else {
                continue;
            };
            let resolution = self.resolution(place);
            let range = place.charges.clone();
            for place in range {
                let (charge, rule) = (&resolution.charges[place], &resolution.rules[place]);
                let mut said = resolution.overridden.iter();
                let said = said.find(|(it, _)| *it == place);
                if said.is_some_and(|(_, said)| *said == Overridden::Fixed) {
                    continue;
                }
                let limit = charge.limit.renumbered(amount, period);
                let limit = limit.map_err(|error| DemandError::Numbers {
                    demand: index,
                    rule: rules.rules()[*rule as usize].shared_id(),
                    error,
                })?;
                let left = said.and_then(|(_, said)| said.apply(&limit));
                limits.push(left.unwrap_or(limit));
                keys.push(charge.key);
            }
        }
        let limits: &'l [Limit] = limits;
        let all = [&mut self.take, &mut self.look, &mut self.give];
        for charge in all.into_iter().flat_map(|it| &mut it.charges) {
            if let Some(known) = keys.iter().position(|key| *key == charge.key) {
                charge.limit = &limits[known];
            }
        }
        Ok(())
    }

    fn resolution(&self, place: &Place) -> &Resolution<'l> {
        match place.effect {
            Effect::Take(_) => &self.take,
            Effect::Look => &self.look,
            Effect::GiveBack(_) => &self.give,
        }
    }

    /// Whom the charges are about of those demands that wish so.
    pub(crate) fn parties<'q, 'a>(
        &self,
        demands: &'q [Demand<'a>],
        wished: impl Fn(Effect) -> bool,
    ) -> Parties<'q, 'a> {
        let all = self.places.iter().zip(demands);
        let all = all.filter(|(place, _)| wished(place.effect));
        let all = all.map(|(place, demand)| (place.charges.clone(), &demand.attributes));
        Parties::Several(all.collect())
    }

    /// Whom the charge at `place` is about, of what is to be taken.
    pub(crate) fn taker<'a>(&self, demands: &[Demand<'a>], place: usize) -> Party<'a> {
        self.parties(demands, |wish| matches!(wish, Effect::Take(_)))
            .of(place)
    }

    /// Whether a rule refuses a demand before any store is asked.
    pub(crate) fn is_refused(&self) -> bool {
        is_refused(&self.take) || is_refused(&self.look)
    }

    /// The decisions of what was told about what is to be taken, looked at and given back. What is
    /// taken, or would have been, is counted.
    pub(crate) fn conclude(
        &self,
        rules: &Arc<RuleSet>,
        metrics: &Metrics,
        allowed: bool,
        [taken, looked, given]: [&Told; 3],
    ) -> BatchDecision {
        let decide = |place: &Place| {
            let (told, units) = match place.effect {
                Effect::Take(units) => (taken, units),
                Effect::Look => (looked, 0),
                Effect::GiveBack(_) => (given, 0),
            };
            let resolution = self.resolution(place);
            let entries = told.entries.get(place.charges.clone()).unwrap_or_default();
            let entries = entries.iter().flatten().copied();
            let refusals = match place.effect {
                Effect::GiveBack(_) => &[],
                _ => &resolution.denials[place.refusals.clone()],
            };
            let refused = refusals.iter().map(Entry::refused);
            let met = |entry: Entry| entry.is_allowed() || !entry.enforces();
            let met = entries.clone().chain(refused.clone()).all(met);
            let granted = if allowed { units } else { 0 };
            let mut decision = Decision::new(Arc::clone(rules), met, granted, told.now);
            decision.guarantee = told.guarantee;
            decision.conclude(entries.chain(refused), refusals.is_empty());
            if let Effect::Take(_) = place.effect {
                metrics.count(decision.entries(), place.plan);
            }
            decision
        };
        BatchDecision {
            allowed,
            decisions: self.places.iter().map(decide).collect(),
        }
    }
}

/// What was said to the charges of a request, by the store or in its place.
pub(crate) struct Told {
    pub(crate) now: Time,
    pub(crate) allowed: bool,
    pub(crate) granted: u64,
    pub(crate) guarantee: Guarantee,
    /// By this instance's clock, when a store that others use was asked; none if it was not.
    pub(crate) asked_at: Option<Time>,
    /// One for each charge; `None` where nothing was said.
    pub(crate) entries: SmallVec<[Option<Entry>; 4]>,
}

impl Told {
    /// Nothing was asked at `now`, so nothing was refused.
    pub(crate) fn nothing(now: Time) -> Told {
        Told {
            now,
            allowed: true,
            granted: 0,
            guarantee: Guarantee::Atomic,
            asked_at: None,
            entries: SmallVec::new(),
        }
    }

    /// What the store said.
    pub(crate) fn by_store(resolution: &Resolution<'_>, applied: &Applied) -> Told {
        let charges = resolution.charges.iter().zip(&resolution.rules);
        let entries = charges
            .zip(&applied.outcomes)
            .map(|((charge, rule), it)| Some(Entry::of(charge, *rule, *it, applied.now)));
        Told {
            now: applied.now,
            allowed: applied.allowed,
            granted: applied.granted,
            guarantee: applied.guarantee,
            asked_at: None,
            entries: entries.collect(),
        }
    }

    /// The same, as the answer to what was asked at `at`.
    pub(crate) fn asked_at(mut self, at: Time) -> Told {
        self.asked_at = Some(at);
        self
    }

    /// The decision about a request of its own.
    pub(crate) fn conclude(self, rules: &Arc<RuleSet>, resolution: &Resolution<'_>) -> Decision {
        let allowed = self.allowed && !is_refused(resolution);
        let mut decision = Decision::new(Arc::clone(rules), allowed, self.granted, self.now);
        decision.guarantee = self.guarantee;
        let entries = self.entries.into_iter().flatten();
        let refused = resolution.denials.iter().map(Entry::refused);
        decision.conclude(entries.chain(refused), resolution.denials.is_empty());
        decision
    }
}
