//! The limiter: rules, a store, and the fallback for when the store fails.

use std::fmt;
use std::sync::Arc;

use tollgate_config::{
    Attributes, Config, Explanation, NamedSubject, Override, RequestSource, Resolution, RuleSet,
};
use tollgate_core::{Charge, Key, Keyring, Limit, Span, Subject, Time};
use tollgate_store::{Ask, Clock, Immediate, MemoryStore, Store, StoreError, SystemClock};

use crate::active_config::{ActiveConfig, CurrentConfig, Loaded, Reloaded};
use crate::adaptive_limits::AdaptiveLimits;
use crate::batch::{BatchDecision, Demand, DemandError};
use crate::blocked::BlockedCounts;
use crate::decision::Decision;
use crate::denial::{DeniedRequest, RequestOrigin};
use crate::denial_delays::DenialDelays;
use crate::denial_feed::{DenialFeed, DenialReader, logs_all};
use crate::failures::Failures;
use crate::fallback::{Fallback, Share};
use crate::metrics::{Metrics, Throttles};
use crate::pace::Pace;
use crate::rejections::DenialLog;
use crate::snapshot::Snapshot;
use crate::stores::Traced;
use crate::throttle::Throttled;
#[cfg(feature = "wait")]
use crate::waiting::WaitingRoom;

/// Decides requests by rules, with state in a store.
///
/// A limiter works the same way on every store. If the store does not answer, the failure policies of
/// the rules decide. Wrap a limiter in an [`Arc`] to share it between threads and tasks.
///
/// Methods are asynchronous, because a store may be on another machine. A store in memory answers at
/// once. For such a store there are the same methods with the suffix `_now`, which need no runtime.
pub struct Limiter<S = Traced<MemoryStore>> {
    pub(crate) current: CurrentConfig,
    pub(crate) store: S,
    pub(crate) fallback: Fallback,
    pub(crate) failures: Failures,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) blocked: BlockedCounts,
    denial_log: DenialLog,
    denial_feed: DenialFeed,
    pub(crate) throttles: Arc<Throttles>,
    denial_delays: DenialDelays,
    #[cfg(feature = "wait")]
    pub(crate) waiting_room: WaitingRoom,
    pub(crate) adaptive_limits: AdaptiveLimits,
}

/// The bound of a denial in the log and in the feed.
struct Noted<'n> {
    /// Whether every denial is logged and recorded.
    is_all: bool,
    pace: &'n Pace,
    subject: u128,
}

/// Builds a limiter: see [`Limiter::builder`].
#[derive(Clone)]
pub struct LimiterBuilder<'c, S> {
    config: &'c Config,
    store: S,
    clock: Option<Arc<dyn Clock>>,
    replicas: u32,
    fallback_factor: u32,
    keyring: Option<Keyring>,
}

impl<S> fmt::Debug for Limiter<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter")
            .field("config", &*self.current.load())
            .finish_non_exhaustive()
    }
}

impl<S> fmt::Debug for LimiterBuilder<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimiterBuilder").finish_non_exhaustive()
    }
}

impl<S: Store> LimiterBuilder<'_, S> {
    /// Sets the clock that measures waits, and that failure policies count by. The default is the
    /// machine's clock.
    #[must_use]
    pub fn clock(mut self, clock: impl Clock + 'static) -> Self {
        self.clock = Some(Arc::new(clock));
        self
    }

    /// Sets how many instances share the store. The default is 1. While the store does not answer, each
    /// instance counts its share of a limit by itself.
    #[must_use]
    pub fn replicas(mut self, replicas: u32) -> Self {
        self.replicas = replicas;
        self
    }

    /// Sets how much of its share an instance admits by itself, in hundredths of a percent. The default
    /// is 10,000.
    #[must_use]
    pub fn fallback_factor(mut self, factor: u32) -> Self {
        self.fallback_factor = factor;
        self
    }

    /// Sets the keyring that hashes subjects. It replaces the keyring of the config's secret.
    #[cfg(any(feature = "ledger", feature = "redis"))]
    pub(crate) fn keyring(mut self, keyring: Keyring) -> Self {
        self.keyring = Some(keyring);
        self
    }

    /// Builds the limiter.
    #[must_use]
    pub fn build(self) -> Limiter<S> {
        let (config, store) = (self.config, self.store);
        let clock = self.clock.unwrap_or_else(|| Arc::new(SystemClock::new()));
        let share = Share {
            numerator: self.fallback_factor,
            denominator: self.replicas.saturating_mul(10_000),
        };
        let share = (!store.is_local()).then_some(share);
        let keyring = self.keyring;
        let keyring = keyring.unwrap_or_else(|| keyring_of(config, store.is_local()));
        let throttles: Arc<Throttles> = Arc::default();
        Limiter {
            current: CurrentConfig::new(
                config,
                keyring,
                Arc::clone(&throttles),
                store.records_usage(),
                share,
            ),
            fallback: Fallback::new(config.subjects.max_keys, Arc::clone(&clock)),
            failures: Failures::default(),
            blocked: BlockedCounts::default(),
            denial_log: DenialLog::new(config.telemetry.rejections_per_second),
            denial_feed: DenialFeed::new(config.telemetry.denials.per_second),
            throttles,
            denial_delays: DenialDelays::default(),
            #[cfg(feature = "wait")]
            waiting_room: WaitingRoom::default(),
            adaptive_limits: AdaptiveLimits::default(),
            clock,
            store,
        }
    }
}

impl<S: Store> Limiter<S> {
    /// Returns a builder of a limiter with the rules of a validated config, on `store`. The config's
    /// own `store` and `ledger` sections are ignored: [`Engine::start`](crate::Engine::start) builds
    /// the stores that they name.
    ///
    /// Subjects are hashed with the config's secret. If the config has none, a store in this process
    /// gets a random secret. A store that instances share gets no secret, so that all instances hash in
    /// the same way.
    pub fn builder(config: &Config, store: S) -> LimiterBuilder<'_, S> {
        LimiterBuilder {
            config,
            store,
            clock: None,
            replicas: 1,
            fallback_factor: 10_000,
            keyring: None,
        }
    }

    /// Returns the limiter with the config that is active now. A request that reads the config more
    /// than once holds one snapshot.
    pub fn snapshot(&self) -> Snapshot<'_, S> {
        Snapshot {
            limiter: self,
            active: self.current.get(),
            at: Time::default(),
            origin: RequestOrigin::default(),
        }
    }

    /// Returns the active config, for reading it at once. Cheaper than a [`snapshot`](Self::snapshot). Do not keep
    /// the returned value.
    #[inline]
    pub fn loaded(&self) -> Loaded {
        self.current.load()
    }

    /// Like `snapshot`, for a single call.
    #[inline]
    pub(crate) fn once(&self) -> Snapshot<'_, S, Loaded> {
        self.once_from(RequestOrigin::default())
    }

    /// Like [`snapshot`](Self::snapshot), for a single call of a request that came from `origin`.
    #[inline]
    pub fn once_from(&self, origin: RequestOrigin) -> Snapshot<'_, S, Loaded> {
        Snapshot {
            limiter: self,
            active: self.current.load(),
            at: Time::default(),
            origin,
        }
    }

    /// Returns the bound on denials that are held back, and their counts.
    #[must_use]
    pub fn denial_delays(&self) -> &DenialDelays {
        &self.denial_delays
    }

    /// Returns the queues of requests that wait for their turn.
    #[cfg(feature = "wait")]
    #[must_use]
    pub fn waiting_room(&self) -> &WaitingRoom {
        &self.waiting_room
    }

    /// Decides whether a request may proceed now. If so, takes one unit from every rule that applies.
    pub async fn check(&self, attributes: &Attributes<'_>) -> Decision {
        self.once().ask(attributes, Ask::Exactly(1)).await
    }

    /// Like [`check`](Self::check), for as many units as `ask` says.
    pub async fn ask(&self, attributes: &Attributes<'_>, ask: Ask) -> Decision {
        self.once().ask(attributes, ask).await
    }

    /// Returns what [`ask`](Self::ask) would decide now. Takes nothing, and is not counted.
    pub async fn peek(&self, attributes: &Attributes<'_>, ask: Ask) -> Decision {
        self.once().peek(attributes, ask).await
    }

    /// Decides several demands as one request: see [`Snapshot::ask_all`].
    ///
    /// # Errors
    /// The errors of [`Snapshot::ask_all`].
    pub async fn ask_all(&self, demands: &[Demand<'_>]) -> Result<BatchDecision, DemandError> {
        self.once().ask_all(demands).await
    }

    /// Gives back units that were taken: see [`Snapshot::refund`].
    ///
    /// # Errors
    /// If the store does not answer.
    pub async fn refund(
        &self,
        attributes: &Attributes<'_>,
        units: u64,
        charged_at: Time,
    ) -> Result<Decision, StoreError> {
        self.once().refund(attributes, units, charged_at).await
    }

    /// Forgets the usage of the subjects of this request.
    ///
    /// # Errors
    /// If the store does not answer.
    pub async fn reset(&self, attributes: &Attributes<'_>) -> Result<(), StoreError> {
        self.once().reset(attributes).await
    }

    /// Takes `cost` from the allowance of `key` under an ad-hoc `limit`, if enough is left. No rule
    /// applies. A cost of 0 takes nothing and returns the current state.
    ///
    /// # Errors
    /// If the store does not answer. Without a rule there is no failure policy.
    pub async fn throttle(
        &self,
        key: &[u8],
        limit: &Limit,
        cost: u64,
    ) -> Result<Throttled, StoreError> {
        self.once().throttle(key, limit, cost).await
    }

    /// Like [`throttle`](Self::throttle), if the store answers at once. Otherwise takes nothing and
    /// returns `None`.
    #[inline]
    pub fn try_throttle(&self, key: &[u8], limit: &Limit, cost: u64) -> Option<Throttled> {
        self.once().try_throttle(key, limit, cost)
    }

    /// Returns the time, in milliseconds since 1970, as overrides compare it with their ends.
    pub(crate) fn now_millis(&self) -> u64 {
        self.clock.now().as_millis_ceil()
    }

    /// Puts another config in force for requests that come from now on. Requests in flight end with the
    /// config they began with. State is kept: usage under a rule carries over to the rule with the same
    /// id. Settings that need a restart are not changed, and the result names them.
    ///
    /// ```
    /// # use tollgate::{Attributes, Limiter};
    /// # let with = |limit| format!("
    /// # version: 1
    /// # rules: [{{ id: all, algorithm: fixed-window, limit: {limit}, window: 30d }}]
    /// # ");
    /// # let parse = |limit| tollgate::parse("rules.yaml", &with(limit), &|_| None);
    /// let (two, three) = (parse(2)?, parse(3)?);
    /// let limiter = Limiter::new(&two)?;
    /// let nobody = Attributes::new();
    /// assert_eq!([0; 3].map(|_| limiter.check_now(&nobody).is_allowed()), [true, true, false]);
    /// assert!(limiter.reload(&three).needs_restart.is_empty());
    /// assert_eq!([0; 2].map(|_| limiter.check_now(&nobody).is_allowed()), [true, false]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reload(&self, config: &Config) -> Reloaded {
        let telemetry = &config.telemetry;
        self.denial_log.set_pace(telemetry.rejections_per_second);
        let without_rule = self.denial_feed.without_rule();
        without_rule.set(telemetry.denials.per_second);
        self.current.reload(config)
    }

    /// Puts these overrides in force for requests that come from now on, blocks included. They replace the
    /// current overrides, and stay in force after a reload.
    pub fn set_overrides(&self, overrides: Arc<[Arc<Override>]>) {
        self.current.set_overrides(overrides);
    }

    /// Returns which rules apply to this request, and why the other rules do not.
    #[must_use]
    pub fn explain(&self, attributes: &Attributes<'_>) -> Vec<Explanation> {
        self.current.load().rules().explain(attributes)
    }

    /// Returns the config in force, with the rules and tables derived from it.
    #[must_use]
    pub fn active(&self) -> Arc<ActiveConfig> {
        self.current.get()
    }

    /// Returns the rules in force.
    #[must_use]
    pub fn rules(&self) -> Arc<RuleSet> {
        Arc::clone(self.current.load().rules())
    }

    /// Returns the counts of decisions by the rules in force.
    #[must_use]
    pub fn metrics(&self) -> Arc<Metrics> {
        Arc::clone(self.current.load().metrics())
    }

    /// Returns the store.
    #[must_use]
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Returns how many requests each failure policy has decided, by the policy's name. The name is
    /// `none` for rules without a policy.
    pub fn fallbacks(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.failures.by_policy()
    }

    /// Returns how many reservations and leases found no room, by the reason: `subject` if their subject
    /// had too many open ones, `store` if the store was full of them.
    #[must_use]
    pub fn rejected_holds(&self) -> [(&'static str, u64); 2] {
        self.failures.rejected_holds()
    }

    /// Returns how many requests blocks have denied, by the attribute of the blocked subject. Attributes
    /// without a name of their own are counted as `other`.
    pub fn blocked(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.blocked.all()
    }

    /// Forgets some of the expired state in this process. Call this about twenty times a second in a
    /// long-lived process with changing subjects. Decisions do not depend on these calls.
    pub fn sweep(&self) {
        self.store.sweep();
        self.fallback.sweep();
    }

    /// Starts to send denials to the returned reader, with a queue of `capacity` denials. The rules and
    /// `telemetry.denials.per_second` say which denials are sent. `None` if there is a reader already.
    #[must_use]
    pub fn read_denials(&self, capacity: usize) -> Option<DenialReader> {
        self.denial_feed.open(capacity)
    }

    /// Logs and records a denial. `latency` is how long the request waited for its store; `None` if it did
    /// not wait. `brought` says that the request brought numbers beside its attributes.
    #[cold]
    pub(crate) fn denied(
        &self,
        (active, origin): (&ActiveConfig, RequestOrigin),
        decision: &Decision,
        attributes: &Attributes<'_>,
        latency: Option<Span>,
        brought: Option<RequestSource>,
    ) {
        if !self.notes_denials() {
            return;
        }
        // Every denial has a rule that denies.
        let Some(rule) = decision.rule() else { return };
        let (feed, index) = (&self.denial_feed, rule.index());
        let noted = Noted {
            is_all: logs_all(rule.rule()),
            pace: active
                .denial_paces()
                .of(index)
                .unwrap_or(feed.without_rule()),
            // The key is different for each rule of a subject.
            subject: rule.key().map_or(index as u128, Key::bits),
        };
        self.note(&noted, |at| {
            let rest = (latency, brought);
            DeniedRequest::of_decision((at, origin), decision, &rule, attributes, rest)
        });
    }

    /// Logs and records the denial of a blocked request.
    #[cold]
    pub(crate) fn denied_by_block(
        &self,
        (active, origin): (&ActiveConfig, RequestOrigin),
        decision: &Decision,
        block: &Arc<Override>,
        attributes: &Attributes<'_>,
    ) {
        if self.notes_denials() {
            let (rules, retry_after) = (active.rules(), decision.retry_after());
            let subject = block.subject().and_then(NamedSubject::hash);
            let noted = self.without_rule(subject.unwrap_or(0));
            self.note(&noted, |at| {
                let block = (block, retry_after);
                DeniedRequest::of_block((at, origin), block, attributes, rules)
            });
        }
    }

    /// Logs and records a reservation or a lease that was denied because its subject has `most` open ones.
    #[cold]
    pub(crate) fn denied_hold(
        &self,
        (active, origin): (&ActiveConfig, RequestOrigin),
        resolution: &Resolution<'_>,
        attributes: &Attributes<'_>,
        most: u64,
    ) {
        if self.notes_denials() {
            let rules = active.rules();
            let first = resolution.charges.first().map(Charge::subject);
            let noted = self.without_rule(first.map_or(0, Subject::bits));
            self.note(&noted, |at| {
                DeniedRequest::of_hold((at, origin), resolution, attributes, rules, most)
            });
        }
    }

    /// Logs and records a denial by an ad-hoc limit.
    #[cold]
    pub(crate) fn denied_throttle(
        &self,
        (active, origin): (&ActiveConfig, RequestOrigin),
        charge: &Charge<'_>,
        throttled: &Throttled,
        latency: Option<Span>,
    ) {
        if self.notes_denials() {
            let rules = active.rules();
            let noted = self.without_rule(charge.key.bits());
            self.note(&noted, |at| {
                DeniedRequest::of_throttle((at, origin), charge, throttled, rules, latency)
            });
        }
    }

    /// Returns whether anybody wants denials.
    #[inline]
    fn notes_denials(&self) -> bool {
        self.denial_feed.is_open() || DenialLog::is_on()
    }

    /// Returns the bound of a denial that no rule has made.
    fn without_rule(&self, subject: u128) -> Noted<'_> {
        Noted {
            is_all: false,
            pace: self.denial_feed.without_rule(),
            subject,
        }
    }

    /// Logs and records a denial, each if its bound permits.
    fn note(&self, noted: &Noted<'_>, denial: impl FnOnce(Time) -> DeniedRequest) {
        let (now, pace, feed) = (self.clock.now(), noted.pace, &self.denial_feed);
        let logs = self.denial_log.wants(now, noted.is_all);
        let records = match noted.is_all {
            true => feed.is_open(),
            false => feed.wants(now, pace, noted.subject),
        };
        if !logs && !records {
            return;
        }
        let denial = denial(now);
        if logs {
            self.denial_log.write(&denial);
        }
        if records {
            self.denial_feed.send(denial, pace);
        }
    }
}

/// For stores that answer at once: the same methods for synchronous code, without a runtime.
impl<S: Immediate> Limiter<S> {
    /// Like [`check`](Self::check), without a runtime.
    pub fn check_now(&self, attributes: &Attributes<'_>) -> Decision {
        self.ask_now(attributes, Ask::Exactly(1))
    }

    /// Like [`ask`](Self::ask), without a runtime.
    ///
    /// ```
    /// # use tollgate::{Ask, Attributes, Limiter};
    /// # let limiter = Limiter::from_yaml("rules.yaml", "
    /// # version: 1
    /// # rules: [{ id: tokens, per: [tenant], algorithm: token-bucket, capacity: 100, refill: 1/s }]
    /// # ")?;
    /// let acme = Attributes::from([("tenant", "acme")]);
    /// assert_eq!(limiter.ask_now(&acme, Ask::Exactly(70)).granted(), 70);
    /// assert_eq!(limiter.ask_now(&acme, Ask::Exactly(70)).granted(), 0);
    /// assert_eq!(limiter.ask_now(&acme, Ask::UpTo(70)).granted(), 30);
    /// # Ok::<(), tollgate::StartError>(())
    /// ```
    #[inline]
    pub fn ask_now(&self, attributes: &Attributes<'_>, ask: Ask) -> Decision {
        let snapshot = self.once();
        let mut decision = Decision::new(snapshot.active.rules());
        snapshot.ask_at_once(attributes, ask, &mut decision);
        decision
    }

    /// Like [`peek`](Self::peek), without a runtime.
    pub fn peek_now(&self, attributes: &Attributes<'_>, ask: Ask) -> Decision {
        now(self.peek(attributes, ask))
    }

    /// Like [`Snapshot::ask_all`], without a runtime.
    ///
    /// # Errors
    /// The errors of [`Snapshot::ask_all`].
    pub fn ask_all_now(&self, demands: &[Demand<'_>]) -> Result<BatchDecision, DemandError> {
        now(self.ask_all(demands))
    }

    /// Like [`refund`](Self::refund), without a runtime.
    ///
    /// # Errors
    /// If the store does not answer.
    pub fn refund_now(
        &self,
        attributes: &Attributes<'_>,
        units: u64,
        charged_at: Time,
    ) -> Result<Decision, StoreError> {
        now(self.refund(attributes, units, charged_at))
    }

    /// Like [`reset`](Self::reset), without a runtime.
    ///
    /// # Errors
    /// If the store does not answer.
    pub fn reset_now(&self, attributes: &Attributes<'_>) -> Result<(), StoreError> {
        now(self.reset(attributes))
    }

    /// Like [`throttle`](Self::throttle), without a runtime.
    ///
    /// ```
    /// # use tollgate::{Limit, Limiter, Rate, Span};
    /// # let limiter = Limiter::from_yaml("rules.yaml", "
    /// # version: 1
    /// # rules: [{ id: all, algorithm: fixed-window, limit: 9, window: 1s }]
    /// # ")?;
    /// let limit = Limit::gcra(Rate::new(30, Span::MINUTE)?, 16)?;
    /// let told = limiter.throttle_now(b"user123", &limit, 1)?;
    /// assert!(told.is_allowed());
    /// assert_eq!((told.limit(), told.remaining()), (16, 15));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If the store does not answer.
    pub fn throttle_now(
        &self,
        key: &[u8],
        limit: &Limit,
        cost: u64,
    ) -> Result<Throttled, StoreError> {
        now(self.throttle(key, limit, cost))
    }
}

/// Polls a future that waits only for an [`Immediate`] store, and returns its value. Such a future is
/// ready at once. If the store does wait, the thread blocks until the store answers.
#[inline]
pub(crate) fn now<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    loop {
        if let std::task::Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
        std::thread::yield_now();
    }
}

/// Returns the keyring that hashes subjects.
fn keyring_of(config: &Config, is_local: bool) -> Keyring {
    match &config.subjects.hash_secret {
        Some(secret) => Keyring::new(secret.expose(), &config.namespace),
        None if is_local => {
            let mut random = [0; 32];
            // Without entropy, subjects are hashed with a known key. Limits still work.
            let _ = getrandom::fill(&mut random);
            Keyring::of_process(&random, &config.namespace)
        }
        None => Keyring::new(&[], &config.namespace),
    }
}
