//! The limiter of a fleet: rules, a store that others use too, and a policy for when it fails.

mod asking;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_config::{
    Attributes, Config, Explanation, Override, RequestLimits, Resolution, RuleSet,
};
use tollgate_core::{Keyring, Limit, Span, Time};
use tollgate_ledger::Ledger;
use tollgate_store::{Applied, Ask, Clock, HoldStore, Store, StoreError, SystemClock};

use crate::active_config::{ActiveConfig, Current, Reloaded};
use crate::batch::{BatchDecision, Demand, DemandError, Effect, Plan, Told};
use crate::books::{Books, Given};
use crate::decision::Decision;
use crate::denials::{ANY, Denials, learn};
use crate::failures::Failures;
use crate::fallback::{Fallback, Share};
use crate::metrics::{Metrics, Throttles};
use crate::parties::{Parties, Party};
use crate::path::{conclude, is_refused};
use crate::rejections::Rejections;
use crate::throttle::{self, Throttle, Throttled};
use crate::trace::Traced;

/// Decides requests by rules, with state in a store that a fleet shares.
///
/// A request that the store cannot decide is decided by the failure policies of its rules: `ask`
/// always has an answer, and never later than the store's timeout.
pub struct SharedLimiter<S, C = SystemClock> {
    pub(crate) current: Current,
    pub(crate) store: Traced<S>,
    pub(crate) denials: Option<Denials>,
    fallback: Fallback<Arc<C>>,
    pub(crate) clock: Arc<C>,
    throttles: Arc<Throttles>,
    rejections: Rejections,
    throttle: Throttle,
    failures: Failures,
    known_denials: AtomicU64,
    pub(crate) books: Option<Arc<Books>>,
}

/// How a shared limiter treats its store.
#[derive(Clone, Copy, Debug)]
pub struct SharedOptions {
    /// How many instances share the store.
    pub replicas: u32,
    /// How much of its share an instance allows by itself, in hundredths of a percent.
    pub fallback_factor: u32,
    /// How long a refusal is remembered at most; none if it is not.
    pub denial_cache: Option<Span>,
}

impl Default for SharedOptions {
    fn default() -> SharedOptions {
        SharedOptions {
            replicas: 1,
            fallback_factor: 10_000,
            denial_cache: Some(Span::SECOND),
        }
    }
}

impl<S: HoldStore> SharedLimiter<S> {
    /// A limiter with the rules of a validated config, on a store.
    ///
    /// Instances that share a store need the config's secret in common: without one, subjects are
    /// hashed with no secret, alike everywhere.
    #[must_use]
    pub fn new(config: &Config, store: S, options: SharedOptions) -> SharedLimiter<S> {
        SharedLimiter::with_clock(config, store, options, SystemClock::new())
    }
}

impl<S: HoldStore, C: Clock> SharedLimiter<S, C> {
    /// The same, with another clock for what is decided without the store.
    #[must_use]
    pub fn with_clock(
        config: &Config,
        store: S,
        options: SharedOptions,
        clock: C,
    ) -> SharedLimiter<S, C> {
        let clock = Arc::new(clock);
        let secret = config.subjects.hash_secret.as_ref();
        let secret = secret.map_or(&[][..], |secret| secret.expose());
        let keyring = Keyring::new(secret, &config.namespace);
        let share = Share {
            numerator: options.fallback_factor,
            denominator: options.replicas.saturating_mul(10_000),
        };
        let (throttle, throttles) = (Throttle::new(&keyring), Arc::default());
        let fallback = Fallback::new(config, share, Arc::clone(&clock));
        let plans = fallback.plans(config);
        SharedLimiter {
            throttle,
            current: Current::new(config, keyring, Arc::clone(&throttles), plans),
            store: Traced(store),
            denials: options.denial_cache.map(Denials::new),
            fallback,
            clock,
            throttles,
            rejections: Rejections::new(config.telemetry.rejections_per_second),
            failures: Failures::default(),
            known_denials: AtomicU64::new(0),
            books: None,
        }
    }

    /// The same with a ledger behind it, if there is one.
    #[must_use]
    pub fn with_ledger(mut self, ledger: Option<Ledger>) -> SharedLimiter<S, C> {
        if let Some(ledger) = ledger {
            let live = self.current.hold();
            self.books = Some(Arc::new(Books::new(ledger, &live.config().namespace)));
            self.current
                .keep_books(|config| self.fallback.plans(config));
        }
        self
    }

    /// May this request proceed now? If so, one unit is taken from every rule that applies to it.
    pub async fn check(&self, attributes: &Attributes<'_>) -> Decision {
        self.ask(attributes, Ask::Exactly(1)).await
    }

    /// The same for as many units as `ask` says.
    pub async fn ask(&self, attributes: &Attributes<'_>, ask: Ask) -> Decision {
        self.ask_under(&self.current.hold(), attributes, ask).await
    }

    pub(crate) async fn ask_under(
        &self,
        live: &ActiveConfig,
        attributes: &Attributes<'_>,
        ask: Ask,
    ) -> Decision {
        let request_limits = RequestLimits::default();
        let resolution = live.rules().resolve(attributes, &request_limits);
        let told = if is_refused(&resolution) {
            self.count_refused(live, &resolution, ask).await
        } else {
            let parties = Parties::One(attributes);
            self.decide(live, &resolution, ask, &parties).await
        };
        if !is_refused(&resolution) {
            live.notice_told(&resolution.charges, &told, |_| Party::of(attributes));
        }
        let asked_at = told.asked_at;
        let decision = told.conclude(live.rules(), &resolution);
        live.metrics().count(decision.entries(), resolution.plan);
        if !decision.is_allowed() {
            self.log_refusal(&decision, attributes, asked_at);
        }
        decision
    }

    /// What [`ask`](Self::ask) would decide now. Takes nothing, and is not counted.
    pub async fn peek(&self, attributes: &Attributes<'_>, ask: Ask) -> Decision {
        self.peek_under(&self.current.hold(), attributes, ask).await
    }

    pub(crate) async fn peek_under(
        &self,
        live: &ActiveConfig,
        attributes: &Attributes<'_>,
        ask: Ask,
    ) -> Decision {
        let request_limits = RequestLimits::default();
        let resolution = live.rules().resolve(attributes, &request_limits);
        let told = self.look(live, &resolution, ask).await;
        told.conclude(live.rules(), &resolution)
    }

    /// Decides several demands as one request: if all of them are met, what they want to take is
    /// taken, in one call of the store; if not, nothing is.
    ///
    /// # Errors
    /// If a demand brings numbers that a rule cannot have, or all together make more than
    /// [`MAX_CHARGES`](crate::MAX_CHARGES) charges: nothing was taken then. Also if the store takes
    /// nothing back.
    pub async fn ask_all(&self, demands: &[Demand<'_>]) -> Result<BatchDecision, DemandError> {
        self.ask_all_under(&self.current.hold(), demands).await
    }

    pub(crate) async fn ask_all_under(
        &self,
        live: &ActiveConfig,
        demands: &[Demand<'_>],
    ) -> Result<BatchDecision, DemandError> {
        let request_limits = RequestLimits::default();
        let (mut limits, mut plan) = (Vec::new(), Plan::default());
        plan.prepare(live.rules(), demands, &request_limits, &mut limits)?;
        let one = Ask::Exactly(1);
        let mut refused = plan.is_refused();
        let mut looked = Told::nothing(Time::default());
        if !plan.look.charges.is_empty() {
            looked = self.look(live, &plan.look, one).await;
            refused |= !looked.allowed;
        }
        let mut taken = Told::nothing(self.clock.now());
        if plan.take.charges.is_empty() {
            // Whatever else is asked, there is nothing to take.
        } else if refused {
            taken = self.count_refused(live, &plan.take, one).await;
        } else {
            let parties = plan.parties(demands, |wish| matches!(wish, Effect::Take(_)));
            taken = match plan.renumbered {
                // Refusals are known by key, and not by the numbers they were made with.
                true => self.apply(live, &plan.take, one, &parties, None).await,
                false => self.decide(live, &plan.take, one, &parties).await,
            };
        }
        let allowed = taken.allowed && !refused;
        let mut given = Told::nothing(taken.now);
        if allowed && !plan.give.charges.is_empty() {
            let parties = plan.parties(demands, |wish| matches!(wish, Effect::GiveBack(_)));
            let give = &plan.give;
            let applied = self.give_back(live, give, 1, Time::MAX, &parties).await?;
            given = Told::by_store(give, &applied);
        }
        let told = [&taken, &looked, &given];
        let together = plan.conclude(live.rules(), live.metrics(), allowed, told);
        if allowed {
            live.notice_told(&plan.take.charges, &taken, |place| {
                plan.taker(demands, place)
            });
        } else {
            for (demand, decision) in demands.iter().zip(together.decisions()) {
                if !decision.is_allowed() {
                    let asked_at = match demand.effect {
                        Effect::Look => looked.asked_at,
                        _ => taken.asked_at,
                    };
                    self.log_refusal(decision, &demand.attributes, asked_at);
                }
            }
        }
        Ok(together)
    }

    /// Gives back `units` that were taken by a decision at `charged_at`
    /// ([`Decision::decided_at`]), and tells how things stand then.
    ///
    /// # Errors
    /// If the store cannot be asked. Nothing was given back then, unless the answer was lost.
    pub async fn refund(
        &self,
        attributes: &Attributes<'_>,
        units: u64,
        charged_at: Time,
    ) -> Result<Decision, StoreError> {
        let live = self.current.hold();
        self.refund_under(&live, attributes, units, charged_at)
            .await
    }

    pub(crate) async fn refund_under(
        &self,
        live: &ActiveConfig,
        attributes: &Attributes<'_>,
        units: u64,
        charged_at: Time,
    ) -> Result<Decision, StoreError> {
        let request_limits = RequestLimits::default();
        let resolution = live.rules().resolve(attributes, &request_limits);
        let parties = Parties::One(attributes);
        let applied = self
            .give_back(live, &resolution, units, charged_at, &parties)
            .await?;
        Ok(conclude(live.rules(), &resolution, &applied))
    }

    /// Gives back `units` of what was taken at `charged_at`, in the store and in the books.
    async fn give_back(
        &self,
        live: &ActiveConfig,
        resolution: &Resolution<'_>,
        units: u64,
        charged_at: Time,
        parties: &Parties<'_, '_>,
    ) -> Result<Applied, StoreError> {
        let charges = &resolution.charges;
        let applied = match self.books_of(charges) {
            None => self.store.refund(charges, units, charged_at).await,
            Some(books) => {
                let given = Given { units, charged_at };
                books
                    .refund(&self.store, live, resolution, given, parties)
                    .await
            }
        };
        self.forget(charges);
        applied
    }

    /// Takes `cost` from the allowance of `key` under `limit`, which no rule knows, if there is as
    /// much. A cost of 0 only looks.
    ///
    /// # Errors
    /// If the store cannot be asked: no rule, and so no failure policy, has a say.
    pub async fn throttle(
        &self,
        key: &[u8],
        limit: &Limit,
        cost: u64,
    ) -> Result<Throttled, StoreError> {
        let charge = self.throttle.charge(key, limit);
        let known_as = throttle::with_numbers(&charge);
        let asked_at = self.clock.now();
        if let Some(denials) = &self.denials
            && let Some(known) = denials.known(&known_as, ANY, cost, asked_at)
        {
            self.known_denials.fetch_add(1, Ordering::Relaxed);
            self.throttles.count(Some(false));
            let told = Throttled {
                outcome: known.outcome,
                decided_at: known.store_time(asked_at),
            };
            let (log, live) = (&self.rejections, self.current.load());
            log.log_throttle(asked_at, &charge, &told, live.rules(), None);
            return Ok(told);
        }
        let ask = Ask::Exactly(cost);
        match self.store.apply(std::slice::from_ref(&charge), ask).await {
            Ok(applied) => {
                if let Some(denials) = &self.denials {
                    learn(denials, ANY, &[known_as], &applied, ask, asked_at);
                }
                self.throttles.count(Some(applied.allowed));
                let told = Throttled {
                    outcome: applied.outcomes[0],
                    decided_at: applied.now,
                };
                if !applied.allowed {
                    let now = self.clock.now();
                    let latency = Some(now.since(asked_at));
                    let (log, live) = (&self.rejections, self.current.load());
                    log.log_throttle(now, &charge, &told, live.rules(), latency);
                }
                Ok(told)
            }
            Err(error) => {
                self.throttles.count(None);
                self.failures.log(asked_at, &error);
                Err(error)
            }
        }
    }

    /// Forgets what the subjects of this request have used.
    ///
    /// # Errors
    /// If the store cannot be asked.
    pub async fn reset(&self, attributes: &Attributes<'_>) -> Result<(), StoreError> {
        self.reset_under(&self.current.hold(), attributes).await
    }

    pub(crate) async fn reset_under(
        &self,
        live: &ActiveConfig,
        attributes: &Attributes<'_>,
    ) -> Result<(), StoreError> {
        let request_limits = RequestLimits::default();
        let resolution = live.rules().resolve(attributes, &request_limits);
        let reset = match self.books_of(&resolution.charges) {
            None => self.store.reset(&resolution.charges).await,
            Some(books) => {
                let parties = Parties::One(attributes);
                books.reset(&self.store, live, &resolution, &parties).await
            }
        };
        self.forget(&resolution.charges);
        self.fallback.forget(&resolution.charges);
        reset
    }

    /// Puts another config in force, for requests that come from now on. State stays: what was used
    /// under a rule is carried over to the rule of the same id. What needs a restart is left as it is,
    /// and named.
    ///
    /// Refusals that are known are known no more: a limit that was raised acts at once.
    pub fn reload(&self, config: &Config) -> Reloaded {
        self.current
            .reload(config, |config| self.fallback.plans(config))
    }

    /// Puts these overrides in force, instead of those that were, for requests that come from now on.
    /// They stay over a reload.
    pub fn set_overrides(&self, overrides: Arc<[Arc<Override>]>) {
        self.current
            .set_overrides(overrides, |config| self.fallback.plans(config));
    }

    /// Which rules apply to this request, and why the others do not.
    #[must_use]
    pub fn explain(&self, attributes: &Attributes<'_>) -> Vec<Explanation> {
        self.current.load().rules().explain(attributes)
    }

    /// The config in force, and what was made of it.
    #[must_use]
    pub fn live(&self) -> Arc<ActiveConfig> {
        self.current.hold()
    }

    /// The rules in force.
    #[must_use]
    pub fn rules(&self) -> Arc<RuleSet> {
        Arc::clone(self.current.load().rules())
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &S {
        &self.store.0
    }

    /// What the rules in force have decided so far.
    #[must_use]
    pub fn metrics(&self) -> Arc<Metrics> {
        Arc::clone(self.current.load().metrics())
    }

    /// How many requests each failure policy has decided, by its name; `none` for rules without
    /// one.
    pub fn fallbacks(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.failures.by_policy()
    }

    /// How many requests were refused without a question, as their refusal was known.
    #[must_use]
    pub fn known_denials(&self) -> u64 {
        self.known_denials.load(Ordering::Relaxed)
    }

    /// Forgets expired state of what was decided without the store.
    pub fn sweep(&self) {
        self.fallback.sweep();
    }

    /// Notes what the store has said for those whose policy goes on from there.
    #[inline]
    pub(crate) fn follow(
        &self,
        live: &ActiveConfig,
        resolution: &Resolution<'_>,
        applied: &Applied,
    ) {
        self.fallback.follow(live.plans(), resolution, applied);
    }
}
