//! Tollgate as a library: rules, a store and a decision.
//!
//! ```
//! use tollgate::{Attributes, Limit, Limiter, RuleBuilder, Span};
//!
//! let login = RuleBuilder::new("login", Limit::sliding_log(2, Span::from_secs(600))?)
//!     .matching("action", ["login"])
//!     .per(["user"])
//!     .build()?;
//! let limiter = Limiter::from_rules([login])?;
//!
//! let ann = Attributes::from([("action", "login"), ("user", "ann")]);
//! assert!(limiter.check_now(&ann).is_allowed());
//! assert!(limiter.check_now(&ann).is_allowed());
//!
//! let denied = limiter.check_now(&ann);
//! assert!(!denied.is_allowed());
//! assert_eq!(denied.rule().unwrap().rule().id(), "login");
//! assert!(denied.retry_after().unwrap().as_secs_ceil() <= 600);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! There is one [`Limiter`] for every kind of [`Store`]. [`Engine`] is a limiter on the store that a
//! config names. The path of a request: attributes -> [`RuleSet::resolve`] -> charges -> the store's
//! `apply` (one call) -> [`Decision`].
//!
//! # Tour
//!
//! Rules come from a file ([`load`], [`Limiter::load`]), from a text ([`parse`],
//! [`Limiter::from_yaml`]) or from code ([`RuleBuilder`], [`Limiter::from_rules`]). Methods are
//! asynchronous, because a store may be on another machine. For a store in memory there are the same
//! methods with the suffix `_now`, which need no runtime.
//!
//! | to | call |
//! |---|---|
//! | decide a request of one unit | [`check`](Limiter::check) |
//! | decide a request of many units, or take as many as there are | [`ask`](Limiter::ask) with [`Ask`] |
//! | look without taking | [`peek`](Limiter::peek) |
//! | give units back | [`refund`](Limiter::refund) |
//! | forget what a subject used | [`reset`](Limiter::reset) |
//! | decide several demands, all or none | [`ask_all`](Limiter::ask_all) |
//! | take an estimate, and settle it later | [`reserve`](Limiter::reserve), [`commit`](Limiter::commit), [`release`](Limiter::release) |
//! | decide a request, or let it wait for its turn | `ask_or_wait` of `HasLimiter` (feature `wait`) |
//! | hold a slot of a concurrency limit | [`try_acquire`](Limiter::try_acquire), [`renew`](Limiter::renew), [`free`](Limiter::free) |
//! | put another config in force | [`reload`](Limiter::reload) |
//! | learn why a rule applies or not, and what it would decide | [`explain`](Limiter::explain), [`applied`](Decision::applied) |
//! | count decisions by rule | [`metrics`](Limiter::metrics) |
//! | limit a key without a rule | [`throttle`](Limiter::throttle) |
//!
//! ```
//! use tollgate::{Ask, Attributes, Demand, Limiter, RuleEffect};
//!
//! let rules = |capacity| format!("
//! version: 1
//! rules:
//!   - {{ id: tokens, per: [tenant], algorithm: token-bucket, capacity: {capacity}, refill: 1/h }}
//! ");
//! let limiter = Limiter::from_yaml("rules.yaml", &rules(100))?;
//! let acme = Attributes::from([("tenant", "acme")]);
//!
//! // Ask for many units. `UpTo` takes as many as are left.
//! let taken = limiter.ask_now(&acme, Ask::Exactly(70));
//! assert_eq!(taken.granted(), 70);
//! assert_eq!(limiter.ask_now(&acme, Ask::UpTo(70)).granted(), 30);
//!
//! // Give units back, and see whether enough is left.
//! limiter.refund_now(&acme, 70, taken.decided_at())?;
//! assert!(limiter.peek_now(&acme, Ask::Exactly(70)).is_allowed());
//!
//! // Two demands as one request: the second is too large, so nothing is taken.
//! let demands = [Demand::take(acme.clone(), 10), Demand::take(acme.clone(), 65)];
//! assert!(!limiter.ask_all_now(&demands)?.is_allowed());
//!
//! // Change the numbers without losing the usage.
//! limiter.reload(&tollgate::parse("rules.yaml", &rules(200), &|_| None)?);
//! assert!(limiter.ask_all_now(&demands)?.is_allowed());
//!
//! // See which rules apply, and the counts.
//! let explained = &limiter.explain(&acme)[0];
//! assert!(matches!(explained.effect, RuleEffect::Applies { cost: 1, .. }));
//! assert!(limiter.metrics().counts()[0].allowed > 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Cookbook
//!
//! **Login protection.** Few attempts per user, and denials that lengthen the wait:
//!
//! ```
//! # use tollgate::{Attributes, Limiter};
//! let limiter = Limiter::from_yaml("rules.yaml", "
//! version: 1
//! rules:
//!   - id: login
//!     match: { action: login }
//!     per: [user]
//!     algorithm: sliding-log
//!     limit: 5
//!     window: 10m
//!     backoff: { after: 2, base: 30s, max: 1h }
//! ")?;
//! # let ann = Attributes::from([("action", "login"), ("user", "ann")]);
//! # assert!((0..5).all(|_| limiter.check_now(&ann).is_allowed()));
//! # assert!(!limiter.check_now(&ann).is_allowed());
//! # Ok::<(), tollgate::StartError>(())
//! ```
//!
//! **API tiers by plan.** The numbers of a plan replace those of the rule:
//!
//! ```
//! # use tollgate::{Ask, Attributes, Limiter};
//! let limiter = Limiter::from_yaml("rules.yaml", "
//! version: 1
//! default_plan: free
//! plans:
//!   free: { api: { rate: 10/m, burst: 10 } }
//!   pro: { api: { rate: 1000/m, burst: 200 } }
//! tenants:
//!   acme: { plan: pro }
//! rules:
//!   - { id: api, per: [tenant], algorithm: gcra, rate: 10/m }
//! ")?;
//! let most = |tenant| limiter.ask_now(&Attributes::from([("tenant", tenant)]), Ask::UpTo(500)).granted();
//! assert_eq!((most("acme"), most("other")), (200, 10));
//! # Ok::<(), tollgate::StartError>(())
//! ```
//!
//! **A token budget for a language model.** Reserve an estimate, and commit the real usage:
//!
//! ```
//! # use tollgate::{Attributes, Limiter, Reserve, ReserveOutcome};
//! # let limiter = Limiter::from_yaml("rules.yaml", "
//! # version: 1
//! # rules: [{ id: tokens, per: [tenant], algorithm: quota, limit: 10000, period: month }]
//! # ")?;
//! # let acme = Attributes::from([("tenant", "acme")]);
//! let estimate = Reserve { units: 4_000, ..Reserve::default() };
//! match limiter.reserve_now(&acme, &estimate)? {
//!     ReserveOutcome::Held { hold, .. } => {
//!         let used = 1_200; // Call the model here. If the call fails: `release_now`.
//!         limiter.commit_now(&hold.id, used)?;
//!     }
//!     ReserveOutcome::Denied(decision) => println!("wait {:?}", decision.retry_after()),
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **Concurrency with leases.** A lease ends by itself unless it is renewed:
//!
//! ```
//! # use tollgate::{Acquire, AcquireOutcome, Attributes, Limiter};
//! # let limiter = Limiter::from_yaml("rules.yaml", "
//! # version: 1
//! # rules: [{ id: exports, per: [tenant], algorithm: concurrency, limit: 1, lease: 30s }]
//! # ")?;
//! # let acme = Attributes::from([("tenant", "acme")]);
//! let acquire = Acquire { owner: "worker-1", ..Acquire::default() };
//! if let AcquireOutcome::Granted { lease, token, .. } = limiter.try_acquire_now(&acme, &acquire, None)? {
//!     limiter.renew_now(&lease.id, token, None)?; // Now and then, while the work goes on.
//! #   assert!(matches!(limiter.try_acquire_now(&acme, &acquire, None)?, AcquireOutcome::Denied(_)));
//!     limiter.free_now(&lease.id, token)?;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **Shadow a rule.** The rule is evaluated and counted, but denies nothing:
//!
//! ```
//! # use tollgate::{Attributes, Limit, Limiter, RuleBuilder, RuleState, Span};
//! let strict = RuleBuilder::new("strict", Limit::fixed_window(0, Span::MINUTE)?)
//!     .state(RuleState::Shadow)
//!     .build()?;
//! let limiter = Limiter::from_rules([strict])?;
//! let decision = limiter.check_now(&Attributes::new());
//! assert!(decision.is_allowed() && decision.shadow_denied());
//! assert_eq!(limiter.metrics().counts()[0].shadow_denied, 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **When Redis fails.** Each rule has a failure policy:
//!
//! ```no_run
//! # #[cfg(feature = "redis")]
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let config = tollgate::parse("config.yaml", r#"
//! version: 1
//! store: { redis: { url: "redis://127.0.0.1:6379" } }
//! subjects: { hash_secret: "${HASH_SECRET}" }
//! rules:
//!   - { id: api, per: [tenant], algorithm: gcra, rate: 100/m, on_store_failure: local-fallback }
//! "#, &|name| std::env::var(name).ok())?;
//! let engine = tollgate::Engine::start(&config).await?;
//! let decision = engine.check(&tollgate::Attributes::from([("tenant", "acme")])).await;
//! if let Some(policy) = decision.fallback() {
//!     println!("Redis did not answer: the policy {} decided", policy.name());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! The programs in `examples/` of this crate show more: `sync`, `redis`, `reservation` and `own_store`.
//!
//! # Features
//!
//! No feature is on by default: state is in memory, without a runtime and without network code.
//!
//! | feature | adds |
//! |---|---|
//! | `redis` | state in Redis or Valkey, shared by a fleet |
//! | `ledger-sqlite` | a ledger of quotas in SQLite |
//! | `ledger-postgres` | a ledger of quotas in PostgreSQL |
//! | `schema` | the JSON schema of config files |
//! | `wait` | waiting for a lease, or for a turn under a rule with `max_wait`, on Tokio's timer; the other features turn it on |
//!
//! # More
//!
//! - [`RuleBuilder`]: rules from code. [`Policy`] and [`Config`]: everything that a file can contain.
//! - [`Store`]: the contract of a store. The crate `tollgate-conformance` tests stores.
//! - [`Remembered`] and [`Traced`]: stores that wrap stores.
//! - [`algorithms`]: the guarantees of each algorithm.

#[cfg(feature = "ledger")]
mod accounts;
mod active_config;
mod adaptive_limits;
mod batch;
mod blocked;
mod candidates;
mod decision;
mod denial;
mod denial_delays;
mod denial_feed;
#[cfg(any(feature = "ledger", feature = "redis"))]
mod deployment;
mod engine;
mod events;
mod failures;
mod fair_counts;
mod fallback;
mod holds;
mod hot_keys;
#[cfg(feature = "ledger")]
mod ledgered;
mod limiter;
mod metrics;
mod pace;
mod partial;
mod rejections;
mod reply;
mod rule_outcome;
mod shedding;
mod snapshot;
mod start;
mod stores;
mod striped;
mod throttle;
#[cfg(feature = "wait")]
mod waiting;
mod words;

#[cfg(feature = "ledger")]
pub use accounts::Accounts;
pub use active_config::{ActiveConfig, Loaded, Reloaded};
pub use adaptive_limits::{AdaptedLimit, LatencyReport};
pub use batch::{BatchDecision, Demand, DemandError, Effect, MAX_CHARGES, Numbers};
pub use candidates::Comparison;
pub use decision::{Decision, Grace, Kind, Reason, RuleDecision};
pub use denial::{DeniedRequest, MAX_SUBJECTS, RequestOrigin};
pub use denial_delays::{DenialDelays, HeldDenial, MAX_DELAYED};
pub use denial_feed::DenialReader;
pub use engine::Engine;
pub use events::{EVENTS, Event, EventCount, EventId, EventKind, Events};
pub use fair_counts::{FairClass, FairRule};
pub use holds::{
    Acquire, AcquireOutcome, AskedLease, BadHoldName, DEFAULT_TTL, Hold, HoldError, HoldName,
    Holders, LEAST_TTL, LeaseToken, MOST_TTL, MOST_WAIT, Reserve, ReserveOutcome,
};
#[cfg(feature = "ledger")]
pub use ledgered::{
    Drift, LedgerSync, Ledgered, MOST_DRIFTS, PostError, Posted, Posting, Reconciled, Repair,
    Standing,
};
pub use limiter::{Limiter, LimiterBuilder};
pub use metrics::{HotKey, Metrics, RuleCounts, ThrottleCounts};
pub use rejections::REJECTIONS;
pub use shedding::{InFlight, Saturated, Shedder};
pub use snapshot::Snapshot;
pub use start::StartError;
#[cfg(feature = "wait")]
pub use stores::{GuardOptions, Guarded};
pub use stores::{
    Prepaid, PrepaidUsage, Remembered, Reported, ReportedUsage, Routed, Sharded, TRACES, Traced,
};
pub use striped::Striped;
pub use throttle::Throttled;
#[cfg(feature = "schema")]
pub use tollgate_config::json_schema;
pub use tollgate_config::{
    AttributeType, Attributes, Ceiling, Config, ConfigError, Durability, Effect as RuleEffect,
    Explanation, FailurePolicy, FairShares, LONGEST_MAX_WAIT, LimitSource, LogDenials, Missing,
    ModeName, NamedSubject, NumberFrom, Override, Placement, Policy, Problem, Rollout, Rule,
    RuleBuilder, RuleError, RuleProblem, RuleSet, RuleState, RuleStore, Scope, Waiting, load,
    parse,
};
/// The algorithms: pure functions of a state and an instant. A custom store decides with them.
#[doc(no_inline)]
pub use tollgate_core as algorithms;
pub use tollgate_core::adaptive::{Numbers as AdaptiveNumbers, Slow};
pub use tollgate_core::backoff::{Backoff, Schedule};
pub use tollgate_core::concurrency::Holder;
pub use tollgate_core::{
    Admission, Algorithm, Anchor, Balance, Calendar, CarryOver, Charge, Denial, Enforcement,
    HoldId, Key, Keyring, Leaky, Limit, Limiting, MAX_AMOUNT, MIN_SLICE, Mode, OnDenied, Outcome,
    ParamError, Period, Rate, Recorded, Span, StoreId, Subject, Tag, Time, Token, Unit, Zone,
};
#[cfg(feature = "redis")]
pub use tollgate_redis::{Finding, Level, state_key};
pub use tollgate_store::{
    Answer, Applied, Ask, Clock, Extended, GRACE, Guarantee, Held, HeldCharge, HoldRecord,
    HoldState, Immediate, ManualClock, MemoryStore, MonotonicClock, NewHold, Outcomes, Purpose,
    RETAIN, Reply, Settle, Settled, Started, Stopwatch, Store, StoreError, SystemClock, Unanswered,
    Usage, Wait,
};
#[cfg(feature = "wait")]
pub use waiting::{HasLimiter, MAX_SEATS, WAIT_BOUNDS, WaitCounts, WaitOutcome, WaitingRoom};
pub use words::{AppliedRule, wait_in_words};
