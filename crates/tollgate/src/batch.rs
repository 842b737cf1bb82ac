//! Several demands decided as one request: all of them are met, or nothing is taken.
//!
//! Each demand is resolved on its own, as if it were alone. Then one call of the store takes the
//! charges of all demands, or none of them. Charges of the same key add up.
//!
//! Demands may want different amounts. So the units of each demand are multiplied into the costs of its
//! charges, and the store is asked for one unit. Demands that take nothing are decided in an earlier
//! call. Demands that give units back are met in a later call.
//!
//! A key has one set of numbers in a request. If a demand brings [`Numbers`], they apply to every
//! charge of that key. If several demands bring numbers for one key, the numbers of the first demand
//! apply.

use std::ops::{Deref, Range};
use std::sync::Arc;

use smallvec::SmallVec;
use tollgate_config::{Attributes, Overridden, RequestLimits, RequestSource, Resolution, RuleSet};
use tollgate_core::{Limit, ParamError, Span, Time};
use tollgate_store::{Ask, Store, StoreError};

use crate::active_config::ActiveConfig;
use crate::decision::Decision;
use crate::reply::{Part, Reply, conclude, is_denied};
use crate::rule_outcome::RuleOutcome;
use crate::snapshot::Snapshot;

/// The most charges that the demands of one request may make together.
pub const MAX_CHARGES: usize = 255;

/// One of several demands that are decided together.
#[derive(Clone, Debug)]
pub struct Demand<'a> {
    /// The subject, the action and the other attributes.
    pub attributes: Attributes<'a>,
    /// Whether to take units, to take nothing, or to give units back.
    pub effect: Effect,
    /// Numbers that replace the numbers of the rules that apply, for this request.
    ///
    /// A rule that counts in this process while its store fails (`local-fallback`, `emergency-limit`)
    /// uses its own numbers.
    pub numbers: Option<Numbers>,
}

impl<'a> Demand<'a> {
    /// Makes a demand to take `units`.
    #[must_use]
    pub fn take(attributes: Attributes<'a>, units: u64) -> Demand<'a> {
        Demand {
            attributes,
            effect: Effect::Take(units),
            numbers: None,
        }
    }
}

/// The effect of a demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Take this many units. The demand is met if that many are left.
    Take(u64),
    /// Take nothing. The demand is met if one unit is left.
    Look,
    /// Give back this many units, if the request is allowed. The demand is always met.
    GiveBack(u64),
}

impl Effect {
    /// Returns an index: demands with the same effect share a resolution and a reply.
    fn place(self) -> usize {
        match self {
            Effect::Take(_) => 0,
            Effect::Look => 1,
            Effect::GiveBack(_) => 2,
        }
    }
}

/// Numbers for a rule: an amount per period. See [`Limit::renumbered`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// The amount.
    pub amount: u64,
    /// The period.
    pub period: Span,
}

/// Why a batch was not decided.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DemandError {
    /// A demand brings numbers that a rule cannot use.
    #[error("the rule {rule} cannot use the numbers of demand {demand}: {error}")]
    Numbers {
        /// The index of the demand.
        demand: usize,
        /// The rule's name.
        rule: Arc<str>,
        /// The reason.
        error: ParamError,
    },
    /// More rules apply than can be decided at once.
    #[error("the demands make {charges} charges together; at most {MAX_CHARGES} are allowed")]
    TooMany {
        /// How many charges the rules make.
        charges: usize,
    },
    /// The store failed to give units back.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The decision about a batch of demands.
///
/// Each demand has a decision of its own, made by the rules that apply to it. Units were taken only if all
/// demands are met: see [`is_allowed`](Self::is_allowed).
#[derive(Clone, Debug)]
pub struct BatchDecision {
    allowed: bool,
    decisions: Vec<Decision>,
}

impl BatchDecision {
    /// Returns whether every demand is met, and everything was taken.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.allowed
    }

    /// Returns the decision of each demand, in order.
    #[must_use]
    pub fn decisions(&self) -> &[Decision] {
        &self.decisions
    }

    /// Returns how long a denial is held back: see [`Decision::denial_delay`].
    #[must_use]
    pub fn denial_delay(&self) -> Span {
        let delays = self.decisions.iter().map(Decision::denial_delay);
        delays.max().filter(|_| !self.allowed).unwrap_or(Span::ZERO)
    }

    /// Lets the waits of all decisions count from a later time: see [`Decision::answer_later`].
    pub fn answer_later(&mut self, by: Span) {
        for decision in &mut self.decisions {
            decision.answer_later(by);
        }
    }

    /// Returns the decision that settles the batch. For a denied batch, this is the denial with the
    /// longest wait. For an allowed batch, this is the decision with the least left. `None` if no
    /// enforcing rule applies.
    #[must_use]
    pub fn deciding(&self) -> Option<&Decision> {
        let all = self.decisions.iter();
        if self.allowed {
            let ruled = all.filter_map(|it| it.rule().map(|rule| (it, rule.remaining())));
            let least = ruled.min_by_key(|(_, left)| left.unwrap_or(u64::MAX));
            return least.map(|(it, _)| it);
        }
        // If several waits are equal, the first denial counts.
        let denied = all.rev().filter(|it| !it.is_allowed());
        denied.max_by_key(|it| it.retry_after().map_or(u64::MAX, Span::as_micros))
    }
}

impl<S: Store, C: Deref<Target = ActiveConfig>> Snapshot<'_, S, C> {
    /// Decides several demands as one request. If all of them are met, one call of the store takes
    /// their units. Otherwise nothing is taken.
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
    /// If a demand brings numbers that a rule cannot use, or all demands together make more than
    /// [`MAX_CHARGES`] charges. In both cases nothing was taken. Also if the store fails to give units back.
    pub async fn ask_all(&self, demands: &[Demand<'_>]) -> Result<BatchDecision, DemandError> {
        if let Some(blocked) = self.blocked_batch(demands) {
            return Ok(blocked);
        }
        let (request_limits, mut limits) = (RequestLimits::default(), Vec::new());
        let mut plan = BatchPlan::default();
        let rules = self.active.rules();
        plan.prepare(rules, demands, &request_limits, &mut limits)?;
        for resolution in &mut plan.resolutions {
            self.adjust(resolution, &request_limits);
        }
        let [take, look, give] = &plan.resolutions;
        let one = Ask::Exactly(1);
        let mut denied = is_denied(take) || is_denied(look);
        let mut looked = Reply::nothing(Time::default());
        if !look.charges.is_empty() {
            looked = self.look(look, one).await;
            denied |= !looked.applied.allowed;
        }
        let taken = if take.charges.is_empty() {
            Reply::nothing(self.limiter.clock.now())
        } else if denied {
            self.count_denied(take, one).await
        } else {
            let answer = self.limiter.store.apply(&take.charges, one);
            self.reply_to(answer, take, one, true).await
        };
        let allowed = taken.applied.allowed && !denied;
        let mut given = Reply::nothing(taken.applied.now);
        if !give.charges.is_empty() {
            let store = &self.limiter.store;
            given = match allowed {
                true => store.refund(&give.charges, 1, Time::MAX).await?.into(),
                false => self.look(give, Ask::Exactly(0)).await,
            };
        }
        let replies = [taken, looked, given];
        let decisions = plan.parts.iter().zip(demands).map(|(part, demand)| {
            let place = part.effect.place();
            let (resolution, reply) = (&plan.resolutions[place], &replies[place]);
            let mut decision = part.decide(rules, resolution, reply, allowed);
            self.tell_time(&mut decision);
            if let Effect::Take(_) = part.effect {
                let metrics = self.active.metrics();
                metrics.count(decision.outcomes(), part.plan);
                let places = part.charges.clone();
                let (charges, rules) = (&resolution.charges, &resolution.rules);
                metrics.count_fair(&charges[places.clone()], &rules[places], &decision);
            }
            if !decision.is_allowed() {
                let (limiter, attributes) = (self.limiter, &demand.attributes);
                let from = (&*self.active, self.origin);
                let brought = demand.numbers.map(|_| RequestSource::Numbers);
                limiter.denied(from, &decision, attributes, reply.latency, brought);
            }
            decision
        });
        let decisions: Vec<Decision> = decisions.collect();
        if allowed {
            let taker = |charge| plan.taker(demands, charge);
            self.active.notice(&take.charges, &replies[0], taker);
        }
        Ok(BatchDecision { allowed, decisions })
    }
}

impl<S: Store, C: Deref<Target = ActiveConfig>> Snapshot<'_, S, C> {
    /// Denies a batch if a demand that asks for units is blocked. The other demands are not decided: their
    /// decisions allow, take nothing, and have no rules.
    fn blocked_batch(&self, demands: &[Demand<'_>]) -> Option<BatchDecision> {
        if self.active.blocks().is_empty() {
            return None;
        }
        let blocks = demands.iter().map(|demand| match demand.effect {
            Effect::GiveBack(_) => None,
            Effect::Take(_) | Effect::Look => self.block_of(&demand.attributes),
        });
        let blocks: SmallVec<[_; 4]> = blocks.collect();
        if blocks.iter().all(Option::is_none) {
            return None;
        }
        let now = self.limiter.clock.now();
        let decisions = blocks
            .iter()
            .zip(demands)
            .map(|(block, demand)| match block {
                Some(block) => self.deny_blocked(block, &demand.attributes),
                None => {
                    let mut decision = Decision::new(self.active.rules());
                    decision.decide(true, 0, &Reply::nothing(now).applied);
                    decision
                }
            });
        Some(BatchDecision {
            allowed: false,
            decisions: decisions.collect(),
        })
    }
}

/// The resolved demands of a batch.
#[derive(Default)]
struct BatchPlan<'l> {
    /// The charges, indexed by [`Effect::place`]: those to take, those to decide without taking, and
    /// those to give back.
    resolutions: [Resolution<'l>; 3],
    /// For each demand: its charges and its denials.
    parts: SmallVec<[DemandPart; 4]>,
}

/// The charges and denials of one demand in a batch.
struct DemandPart {
    effect: Effect,
    charges: Range<usize>,
    denials: Range<usize>,
    /// The plan of the demand's tenant.
    plan: Option<u16>,
}

impl<'l> BatchPlan<'l> {
    /// Resolves `demands`. `request_limits` and `limits` own the limits that the demands bring.
    fn prepare<'a: 'l>(
        &mut self,
        rules: &'l RuleSet,
        demands: &[Demand<'a>],
        request_limits: &'l RequestLimits,
        limits: &'l mut Vec<Limit>,
    ) -> Result<(), DemandError> {
        for demand in demands {
            let resolution = &mut self.resolutions[demand.effect.place()];
            let units = match demand.effect {
                Effect::Take(units) | Effect::GiveBack(units) => units,
                Effect::Look => 1,
            };
            let (charges, denials) = (resolution.charges.len(), resolution.denials.len());
            rules.resolve_into(&demand.attributes, request_limits, resolution);
            if units != 1 {
                for charge in &mut resolution.charges[charges..] {
                    charge.cost = charge.cost.saturating_mul(units);
                }
            }
            self.parts.push(DemandPart {
                effect: demand.effect,
                charges: charges..resolution.charges.len(),
                denials: denials..resolution.denials.len(),
                plan: resolution.plan,
            });
            let charges = self.resolutions.iter().map(|it| it.charges.len()).sum();
            if charges > MAX_CHARGES {
                return Err(DemandError::TooMany { charges });
            }
        }
        if demands.iter().any(|demand| demand.numbers.is_some()) {
            self.renumber(rules, demands, limits)?;
        }
        Ok(())
    }

    /// Replaces the numbers of rules by the numbers that demands bring.
    fn renumber(
        &mut self,
        rules: &RuleSet,
        demands: &[Demand<'_>],
        limits: &'l mut Vec<Limit>,
    ) -> Result<(), DemandError> {
        let mut keys = Vec::new();
        for (index, (demand, part)) in demands.iter().zip(&self.parts).enumerate() {
            let Some(Numbers { amount, period }) = demand.numbers else {
                continue;
            };
            let resolution = &self.resolutions[part.effect.place()];
            for place in part.charges.clone() {
                let (charge, rule) = (&resolution.charges[place], &resolution.rules[place]);
                let mut overrides = resolution.overridden.iter();
                let known = overrides.find(|(it, _)| *it == place);
                if known.is_some_and(|(_, it)| *it == Overridden::Fixed) {
                    continue;
                }
                let limit = charge.limit.renumbered(amount, period);
                let limit = limit.map_err(|error| DemandError::Numbers {
                    demand: index,
                    rule: rules.rules()[*rule as usize].shared_id(),
                    error,
                })?;
                let changed = known.and_then(|(_, it)| it.apply(&limit));
                limits.push(changed.unwrap_or(limit));
                keys.push(charge.key);
            }
        }
        let limits: &'l [Limit] = limits;
        let all = self.resolutions.iter_mut();
        for charge in all.flat_map(|it| &mut it.charges) {
            if let Some(known) = keys.iter().position(|key| *key == charge.key) {
                charge.limit = &limits[known];
            }
        }
        Ok(())
    }

    /// Returns the attributes of the demand that the charge at this index belongs to. The index counts
    /// the charges to take.
    fn taker<'q, 'a>(&self, demands: &'q [Demand<'a>], charge: usize) -> &'q Attributes<'a> {
        let mut takers = self.parts.iter().zip(demands).filter(|(part, _)| {
            matches!(part.effect, Effect::Take(_)) && part.charges.contains(&charge)
        });
        // Every charge belongs to a demand.
        let taker = takers.next().map_or(&demands[0], |(_, demand)| demand);
        &taker.attributes
    }
}

impl DemandPart {
    /// Makes the decision about this demand, in a batch that was `allowed` or not.
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
        let met = |outcomes: &[RuleOutcome]| {
            let mut enforcing = outcomes.iter().filter(|outcome| outcome.enforces());
            let granted = if allowed { units } else { 0 };
            (enforcing.all(RuleOutcome::is_allowed), granted)
        };
        let (part, mut decision) = (Part { charges, denials }, Decision::new(rules));
        conclude(resolution, &part, reply, met, &mut decision);
        decision
    }
}
