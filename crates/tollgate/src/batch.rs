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

use std::ops::{Deref, Range};
use std::sync::Arc;

use smallvec::SmallVec;
use tollgate_config::{Attributes, Overridden, RequestLimits, Resolution, RuleSet};
use tollgate_core::{Limit, ParamError, Span, Time};
use tollgate_store::{Ask, Store, StoreError};

use crate::active_config::ActiveConfig;
use crate::decision::Decision;
use crate::reply::{Part, Reply, conclude, is_denied};
use crate::snapshot::Snapshot;

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

impl<S: Store, C: Deref<Target = ActiveConfig>> Snapshot<'_, S, C> {
    /// Decides several demands as one request: if all of them are met, what they want to take is taken,
    /// in one call of the store; if not, nothing is.
    ///
    /// ```
    /// # use tollgate::{Attributes, Demand, Limiter};
    /// # let limiter = Limiter::from_yaml("rules.yaml", "
    /// # version: 1
    /// # rules: [{ id: tokens, per: [tenant], algorithm: token-bucket, capacity: 100, refill: 1/s }]
    /// # ")?;
    /// let of = |tenant, units| Demand::take(Attributes::from([("tenant", tenant)]), units);
    /// let both = limiter.ask_all_now(&[of("acme", 70), of("corp", 10)])?;
    /// assert!(both.is_allowed());
    /// let denied = limiter.ask_all_now(&[of("acme", 70), of("corp", 10)])?;
    /// assert!(!denied.is_allowed());
    /// assert_eq!(denied.decisions()[1].rule().unwrap().remaining(), Some(90));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If a demand brings numbers that a rule cannot have, or all demands together make more than
    /// [`MAX_CHARGES`] charges: nothing was taken then. Also if the store does not answer when units are
    /// to be given back.
    pub async fn ask_all(&self, demands: &[Demand<'_>]) -> Result<BatchDecision, DemandError> {
        let (request_limits, mut limits) = (RequestLimits::default(), Vec::new());
        let mut plan = Plan::default();
        let rules = self.active.rules();
        plan.prepare(rules, demands, &request_limits, &mut limits)?;
        let one = Ask::Exactly(1);
        let mut denied = is_denied(&plan.take) || is_denied(&plan.look);
        let mut looked = Reply::nothing(Time::default());
        if !plan.look.charges.is_empty() {
            looked = self.look(&plan.look, one).await;
            denied |= !looked.applied.allowed;
        }
        let taken = if plan.take.charges.is_empty() {
            Reply::nothing(self.limiter.clock.now())
        } else if denied {
            self.count_denied(&plan.take, one).await
        } else {
            self.take(&plan.take, one).await
        };
        let allowed = taken.applied.allowed && !denied;
        let mut given = Reply::nothing(taken.applied.now);
        if !plan.give.charges.is_empty() {
            let store = &self.limiter.store;
            given = match allowed {
                true => store.refund(&plan.give.charges, 1, Time::MAX).await?.into(),
                false => self.look(&plan.give, Ask::Exactly(0)).await,
            };
        }
        let replies = Replies {
            taken,
            looked,
            given,
        };
        let decisions = plan.places.iter().zip(demands).map(|(place, demand)| {
            let (resolution, reply) = plan.part(place, &replies);
            let decision = place.decide(rules, resolution, reply, allowed);
            if let Effect::Take(_) = place.effect {
                let metrics = self.active.metrics();
                metrics.count(decision.entries(), place.plan);
            }
            if !decision.is_allowed() {
                let attributes = &demand.attributes;
                self.limiter
                    .log_denial(&decision, attributes, reply.latency);
            }
            decision
        });
        let decisions: Vec<Decision> = decisions.collect();
        if allowed {
            let taker = |charge| plan.taker(demands, charge);
            self.active
                .notice(&plan.take.charges, &replies.taken, taker);
        }
        Ok(BatchDecision { allowed, decisions })
    }
}

/// Demands resolved: what to ask a store for.
#[derive(Default)]
struct Plan<'l> {
    take: Resolution<'l>,
    look: Resolution<'l>,
    give: Resolution<'l>,
    /// Where each demand's part is.
    places: SmallVec<[Place; 4]>,
}

/// What was said to the three parts of a plan.
struct Replies {
    taken: Reply,
    looked: Reply,
    given: Reply,
}

/// One demand's part of a plan.
struct Place {
    effect: Effect,
    charges: Range<usize>,
    denials: Range<usize>,
    /// The plan of the demand's tenant.
    plan: Option<u16>,
}

impl<'l> Plan<'l> {
    /// Resolves `demands`. `request_limits` and `limits` keep the limits that they bring along.
    fn prepare<'a: 'l>(
        &mut self,
        rules: &'l RuleSet,
        demands: &[Demand<'a>],
        request_limits: &'l RequestLimits,
        limits: &'l mut Vec<Limit>,
    ) -> Result<(), DemandError> {
        for demand in demands {
            let (resolution, units) = match demand.effect {
                Effect::Take(units) => (&mut self.take, units),
                Effect::Look => (&mut self.look, 1),
                Effect::GiveBack(units) => (&mut self.give, units),
            };
            let (charges, denials) = (resolution.charges.len(), resolution.denials.len());
            rules.resolve_into(&demand.attributes, request_limits, resolution);
            if units != 1 {
                for charge in &mut resolution.charges[charges..] {
                    charge.cost = charge.cost.saturating_mul(units);
                }
            }
            self.places.push(Place {
                effect: demand.effect,
                charges: charges..resolution.charges.len(),
                denials: denials..resolution.denials.len(),
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

    /// Puts the numbers of the demands in the place of their rules' numbers.
    fn renumber(
        &mut self,
        rules: &RuleSet,
        demands: &[Demand<'_>],
        limits: &'l mut Vec<Limit>,
    ) -> Result<(), DemandError> {
        let mut keys = Vec::new();
        for (index, (demand, place)) in demands.iter().zip(&self.places).enumerate() {
            let Some(Numbers { amount, period }) = demand.numbers else {
                continue;
            };
            let resolution = match place.effect {
                Effect::Take(_) => &self.take,
                Effect::Look => &self.look,
                Effect::GiveBack(_) => &self.give,
            };
            for place in place.charges.clone() {
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

    /// The part of the plan that a demand belongs to, and what was said to it.
    fn part<'p>(&'p self, place: &Place, replies: &'p Replies) -> (&'p Resolution<'l>, &'p Reply) {
        match place.effect {
            Effect::Take(_) => (&self.take, &replies.taken),
            Effect::Look => (&self.look, &replies.looked),
            Effect::GiveBack(_) => (&self.give, &replies.given),
        }
    }

    /// The attributes of the demand that wants to take the charge at this place.
    fn taker<'q, 'a>(&self, demands: &'q [Demand<'a>], charge: usize) -> &'q Attributes<'a> {
        let mut takers = self.places.iter().zip(demands).filter(|(place, _)| {
            matches!(place.effect, Effect::Take(_)) && place.charges.contains(&charge)
        });
        // Every charge belongs to a demand.
        let taker = takers.next().map_or(&demands[0], |(_, demand)| demand);
        &taker.attributes
    }
}

impl Place {
    /// The decision about this demand, in a batch that was `allowed` or not.
    fn decide(
        &self,
        rules: &Arc<RuleSet>,
        resolution: &Resolution<'_>,
        reply: &Reply,
        allowed: bool,
    ) -> Decision {
        let (units, denials) = match self.effect {
            Effect::Take(units) => (units, &resolution.denials[self.denials.clone()]),
            Effect::Look => (0, &resolution.denials[self.denials.clone()]),
            Effect::GiveBack(_) => (0, &[][..]),
        };
        let charges = self.charges.clone();
        let mut entries = charges.clone().filter_map(|it| reply.entry(resolution, it));
        let met = denials.iter().all(|denial| denial.shadow)
            && entries.all(|entry| entry.is_allowed() || !entry.enforces());
        let granted = if allowed { units } else { 0 };
        let part = Part { charges, denials };
        conclude(rules, resolution, &part, reply, (met, granted))
    }
}
