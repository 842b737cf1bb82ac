//! The limiter: rules and a store, and the path between them.

use std::path::Path;
use std::sync::Arc;

use tollgate_config::{
    Attributes, Config, ConfigError, Explanation, Override, RequestLimits, Resolution, RuleSet,
};
use tollgate_core::{Charge, Keyring, Limit, Time};
use tollgate_store::{Applied, Ask, Clock, MemoryStore, SystemClock, Usage};

use crate::active_config::{ActiveConfig, Current, Reloaded};
use crate::batch::{BatchDecision, Demand, DemandError, Plan, Told};
use crate::decision::Decision;
use crate::fallback::Plans;
use crate::metrics::{Metrics, Throttles};
use crate::parties::Party;
use crate::path::{conclude, is_refused};
use crate::rejections::Rejections;
use crate::throttle::{Throttle, Throttled};
use crate::trace::Traced;

/// Decides requests by rules, with state in this process's memory.
///
/// Cheap to share: wrap it in an [`Arc`] and call it from any thread.
pub struct Limiter<C = SystemClock> {
    pub(crate) current: Current,
    pub(crate) store: Traced<MemoryStore<C>>,
    throttles: Arc<Throttles>,
    rejections: Rejections,
    throttle: Throttle,
    max_keys: usize,
}

impl Limiter {
    /// A limiter with the rules of a file.
    ///
    /// # Errors
    /// If the file cannot be read, or anything in it is wrong; the error names each place.
    pub fn load(path: &Path) -> Result<Limiter, ConfigError> {
        Ok(Limiter::new(&tollgate_config::load(path)?))
    }

    /// A limiter with the rules of a text. `name` stands for the file in errors.
    ///
    /// # Errors
    /// If anything in the text is wrong; the error names each place.
    pub fn from_yaml(name: &str, text: &str) -> Result<Limiter, ConfigError> {
        let env = |variable: &str| std::env::var(variable).ok();
        Ok(Limiter::new(&tollgate_config::parse(name, text, &env)?))
    }

    /// A limiter with the rules of a validated config, on the machine's clock.
    #[must_use]
    pub fn new(config: &Config) -> Limiter {
        Limiter::with_clock(config, SystemClock::new())
    }
}

impl<C: Clock> Limiter<C> {
    /// A limiter on a clock of its own: for tests and simulations.
    ///
    /// Subjects are hashed with the config's secret, or, as the state does not outlive the process,
    /// with a random one.
    #[must_use]
    pub fn with_clock(config: &Config, clock: C) -> Limiter<C> {
        let keyring = match &config.subjects.hash_secret {
            Some(secret) => Keyring::new(secret.expose(), &config.namespace),
            None => Keyring::new(&random_secret(), &config.namespace),
        };
        let (throttle, throttles) = (Throttle::new(&keyring), Arc::default());
        Limiter {
            // State in this process does not fail, so there is nothing to plan.
            current: Current::new(config, keyring, Arc::clone(&throttles), Plans::default()),
            store: Traced(MemoryStore::with_clock(config.subjects.max_keys, clock)),
            throttles,
            rejections: Rejections::new(config.telemetry.rejections_per_second),
            throttle,
            max_keys: config.subjects.max_keys,
        }
    }

    /// May this request proceed now? If so, one unit is taken from every rule that applies to it.
    #[must_use]
    pub fn check(&self, attributes: &Attributes<'_>) -> Decision {
        self.ask(attributes, Ask::Exactly(1))
    }

    /// The same for as many units as `ask` says.
    ///
    /// ```
    /// # use tollgate::{Ask, Attributes, Limiter};
    /// # let limiter = Limiter::from_yaml("rules.yaml", "
    /// # version: 1
    /// # rules: [{ id: tokens, per: [tenant], algorithm: token-bucket, capacity: 100, refill: 1/s }]
    /// # ")?;
    /// let acme = Attributes::from([("tenant", "acme")]);
    /// assert_eq!(limiter.ask(&acme, Ask::Exactly(70)).granted(), 70);
    /// assert_eq!(limiter.ask(&acme, Ask::Exactly(70)).granted(), 0);
    /// assert_eq!(limiter.ask(&acme, Ask::UpTo(70)).granted(), 30);
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    #[must_use]
    pub fn ask(&self, attributes: &Attributes<'_>, ask: Ask) -> Decision {
        self.ask_under(&self.current.load(), attributes, ask)
    }

    #[inline]
    pub(crate) fn ask_under(
        &self,
        live: &ActiveConfig,
        attributes: &Attributes<'_>,
        ask: Ask,
    ) -> Decision {
        let request_limits = RequestLimits::default();
        let mut resolution = Resolution::default();
        live.rules()
            .resolve_into(attributes, &request_limits, &mut resolution);
        let mut applied = Applied::default();
        if is_refused(&resolution) {
            applied = self.count_refused(&resolution.charges, ask);
        } else {
            self.store
                .apply_into(&resolution.charges, ask, &mut applied);
        }
        let decision = conclude(live.rules(), &resolution, &applied);
        live.metrics().count(decision.entries(), resolution.plan);
        if decision.is_allowed() {
            live.notice(&resolution.charges, &applied, |_| Party::of(attributes));
        } else {
            self.log(&decision, attributes);
        }
        decision
    }

    /// What [`ask`](Self::ask) would decide now. Takes nothing, and is not counted.
    #[must_use]
    pub fn peek(&self, attributes: &Attributes<'_>, ask: Ask) -> Decision {
        self.peek_under(&self.current.load(), attributes, ask)
    }

    pub(crate) fn peek_under(
        &self,
        live: &ActiveConfig,
        attributes: &Attributes<'_>,
        ask: Ask,
    ) -> Decision {
        let request_limits = RequestLimits::default();
        let resolution = live.rules().resolve(attributes, &request_limits);
        let applied = self.store.peek(&resolution.charges, ask);
        conclude(live.rules(), &resolution, &applied)
    }

    /// Decides several demands as one request: if all of them are met, what they want to take is
    /// taken, in one step; if not, nothing is.
    ///
    /// ```
    /// # use tollgate::{Attributes, Demand, Limiter};
    /// # let limiter = Limiter::from_yaml("rules.yaml", "
    /// # version: 1
    /// # rules: [{ id: tokens, per: [tenant], algorithm: token-bucket, capacity: 100, refill: 1/s }]
    /// # ")?;
    /// let of = |tenant, units| Demand::take(Attributes::from([("tenant", tenant)]), units);
    /// let both = limiter.ask_all(&[of("acme", 70), of("corp", 10)]).unwrap();
    /// assert!(both.is_allowed());
    /// let refused = limiter.ask_all(&[of("acme", 70), of("corp", 10)]).unwrap();
    /// assert!(!refused.is_allowed());
    /// assert_eq!(refused.decisions()[1].rule().unwrap().remaining(), Some(90));
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    ///
    /// # Errors
    /// If a demand brings numbers that a rule cannot have, or all together make more than
    /// [`MAX_CHARGES`](crate::MAX_CHARGES) charges. Nothing was taken then.
    pub fn ask_all(&self, demands: &[Demand<'_>]) -> Result<BatchDecision, DemandError> {
        self.ask_all_under(&self.current.load(), demands)
    }

    pub(crate) fn ask_all_under(
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
            let peeked = self.store.peek(&plan.look.charges, one);
            looked = Told::by_store(&plan.look, &peeked);
            refused |= !looked.allowed;
        }
        let mut applied = Applied::default();
        if refused {
            applied = self.count_refused(&plan.take.charges, one);
        } else {
            self.store.apply_into(&plan.take.charges, one, &mut applied);
        }
        let taken = Told::by_store(&plan.take, &applied);
        let allowed = taken.allowed && !refused;
        let mut given = Told::nothing(taken.now);
        if !plan.give.charges.is_empty() {
            let applied = if allowed {
                self.store.refund(&plan.give.charges, 1, Time::MAX)
            } else {
                self.store.peek(&plan.give.charges, Ask::Exactly(0))
            };
            given = Told::by_store(&plan.give, &applied);
        }
        let told = [&taken, &looked, &given];
        let together = plan.conclude(live.rules(), live.metrics(), allowed, told);
        if allowed {
            live.notice(&plan.take.charges, &applied, |place| {
                plan.taker(demands, place)
            });
        } else {
            for (demand, decision) in demands.iter().zip(together.decisions()) {
                if !decision.is_allowed() {
                    self.log(decision, &demand.attributes);
                }
            }
        }
        Ok(together)
    }

    /// Gives back `units` that were taken by a decision at `charged_at`
    /// ([`Decision::decided_at`]), and tells how things stand then. What has come back by itself
    /// since is not given back twice.
    pub fn refund(&self, attributes: &Attributes<'_>, units: u64, charged_at: Time) -> Decision {
        self.refund_under(&self.current.load(), attributes, units, charged_at)
    }

    pub(crate) fn refund_under(
        &self,
        live: &ActiveConfig,
        attributes: &Attributes<'_>,
        units: u64,
        charged_at: Time,
    ) -> Decision {
        let request_limits = RequestLimits::default();
        let resolution = live.rules().resolve(attributes, &request_limits);
        let applied = self.store.refund(&resolution.charges, units, charged_at);
        conclude(live.rules(), &resolution, &applied)
    }

    /// Takes `cost` from the allowance of `key` under `limit`, which no rule knows, if there is as
    /// much. A cost of 0 only looks.
    ///
    /// ```
    /// # use tollgate::{Limit, Limiter, Rate, Span};
    /// # let limiter = Limiter::from_yaml("rules.yaml", "
    /// # version: 1
    /// # rules: [{ id: all, algorithm: fixed-window, limit: 9, window: 1s }]
    /// # ")?;
    /// let limit = Limit::gcra(Rate::new(30, Span::MINUTE)?, 16)?;
    /// let told = limiter.throttle(b"user123", &limit, 1);
    /// assert!(told.is_allowed());
    /// assert_eq!((told.limit(), told.remaining()), (16, 15));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn throttle(&self, key: &[u8], limit: &Limit, cost: u64) -> Throttled {
        let charge = self.throttle.charge(key, limit);
        let mut applied = Applied::default();
        let ask = Ask::Exactly(cost);
        self.store
            .apply_into(std::slice::from_ref(&charge), ask, &mut applied);
        self.throttles.count(Some(applied.allowed));
        let told = Throttled {
            outcome: applied.outcomes[0],
            decided_at: applied.now,
        };
        if !applied.allowed {
            let (log, live) = (&self.rejections, self.current.load());
            log.log_throttle(applied.now, &charge, &told, live.rules(), None);
        }
        told
    }

    /// Forgets what the subjects of this request have used.
    pub fn reset(&self, attributes: &Attributes<'_>) {
        self.reset_under(&self.current.load(), attributes);
    }

    pub(crate) fn reset_under(&self, live: &ActiveConfig, attributes: &Attributes<'_>) {
        let request_limits = RequestLimits::default();
        let resolution = live.rules().resolve(attributes, &request_limits);
        self.store.reset(&resolution.charges);
    }

    /// Puts another config in force, for requests that come from now on. State stays: what was used
    /// under a rule is carried over to the rule of the same id. What needs a restart is left as it is,
    /// and named.
    ///
    /// ```
    /// # use tollgate::{Attributes, Limiter};
    /// # let with = |limit| format!("
    /// # version: 1
    /// # rules: [{{ id: all, algorithm: fixed-window, limit: {limit}, window: 30d }}]
    /// # ");
    /// # let parse = |limit| tollgate_config::parse("rules.yaml", &with(limit), &|_| None);
    /// let (two, three) = (parse(2)?, parse(3)?);
    /// let limiter = Limiter::new(&two);
    /// let nobody = Attributes::new();
    /// assert_eq!([0; 3].map(|_| limiter.check(&nobody).is_allowed()), [true, true, false]);
    /// assert!(limiter.reload(&three).needs_restart.is_empty());
    /// assert_eq!([0; 2].map(|_| limiter.check(&nobody).is_allowed()), [true, false]);
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    pub fn reload(&self, config: &Config) -> Reloaded {
        self.current.reload(config, |_| Plans::default())
    }

    /// Puts these overrides in force, instead of those that were, for requests that come from now on.
    /// They stay over a reload.
    pub fn set_overrides(&self, overrides: Arc<[Arc<Override>]>) {
        self.current.set_overrides(overrides, |_| Plans::default());
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

    /// What the rules in force have decided so far.
    #[must_use]
    pub fn metrics(&self) -> Arc<Metrics> {
        Arc::clone(self.current.load().metrics())
    }

    /// How much state is kept.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.store.0.usage()
    }

    /// How much state may be kept: beyond that, new subjects of a rule share one.
    #[must_use]
    pub fn max_keys(&self) -> usize {
        self.max_keys
    }

    /// Forgets expired state, a small share of it at a time. Worth calling about twenty times a second in
    /// a long-lived process whose subjects come and go; decisions do not depend on it.
    pub fn sweep(&self) {
        self.store.0.sweep(SWEEP);
    }

    pub(crate) fn log(&self, decision: &Decision, attributes: &Attributes<'_>) {
        let now = decision.decided_at();
        self.rejections.log(now, decision, attributes, None);
    }

    /// A request that a rule has refused on sight takes nothing, but is counted where a rule counts
    /// refused requests.
    fn count_refused(&self, charges: &[Charge<'_>], ask: Ask) -> Applied {
        let mut applied = self.store.peek(charges, ask);
        let counted = charges
            .iter()
            .enumerate()
            .filter(|(_, charge)| charge.counts_denied());
        for (index, charge) in counted {
            let outcome = self.store.apply(std::slice::from_ref(charge), ask).outcomes[0];
            applied.outcomes[index] = outcome;
        }
        applied
    }
}

/// How many places of each table are looked at in a sweep: no request waits long for that.
pub(crate) const SWEEP: usize = 64;

fn random_secret() -> [u8; 32] {
    let mut secret = [0; 32];
    // Without entropy the subjects are hashed with a known key: still hashed, and still limited.
    let _ = getrandom::fill(&mut secret);
    secret
}
