//! Tollgate as a library: rules, a store and a decision.
//!
//! ```
//! use tollgate::{Attributes, Limiter};
//!
//! let limiter = Limiter::from_yaml(
//!     "rules.yaml",
//!     r#"
//! version: 1
//! rules:
//!   - id: login
//!     match: { action: login }
//!     per: [user]
//!     algorithm: sliding-log
//!     limit: 2
//!     window: 10m
//! "#,
//! )?;
//! let ann = Attributes::from([("action", "login"), ("user", "ann")]);
//! assert!(limiter.check_now(&ann).is_allowed());
//! assert!(limiter.check_now(&ann).is_allowed());
//!
//! let denied = limiter.check_now(&ann);
//! assert!(!denied.is_allowed());
//! assert_eq!(denied.rule().unwrap().rule().id(), "login");
//! assert!(denied.retry_after().unwrap().as_secs_ceil() <= 600);
//!
//! // Another user is not affected, and neither is another action.
//! assert!(limiter.check_now(&Attributes::from([("action", "login"), ("user", "bob")])).is_allowed());
//! assert!(limiter.check_now(&Attributes::from([("action", "search"), ("user", "ann")])).is_allowed());
//! # Ok::<(), tollgate::StartError>(())
//! ```
//!
//! There is one [`Limiter`], for every [`Store`]. [`Engine`] is a limiter on the store that a config names.
//!
//! The one path of a request: attributes -> [`RuleSet::resolve`] -> charges -> the store's `apply`
//! (one call) -> [`Decision`]. Transports translate to and from the two ends and add nothing.

#[cfg(feature = "ledger")]
mod accounts;
mod active_config;
mod batch;
mod candidates;
mod decision;
mod engine;
mod events;
mod failures;
mod fallback;
mod holds;
mod hot_keys;
#[cfg(feature = "ledger")]
mod ledgered;
mod limiter;
mod metrics;
mod pace;
mod rejections;
mod reply;
mod rule_outcome;
mod snapshot;
mod start;
mod stores;
mod throttle;

#[cfg(feature = "ledger")]
pub use accounts::Accounts;
pub use active_config::{ActiveConfig, Loaded, Reloaded};
pub use batch::{BatchDecision, Demand, DemandError, Effect, MAX_CHARGES, Numbers};
pub use candidates::Comparison;
pub use decision::{Decision, Grace, Kind, Reason, RuleDecision};
pub use engine::Engine;
pub use events::{EVENTS, Event, EventCount, EventId, EventKind, Events};
pub use holds::{
    Acquire, AcquireOutcome, BadHoldName, DEFAULT_TTL, Hold, HoldError, HoldName, Holders,
    LEAST_TTL, LeaseToken, MOST_TTL, MOST_WAIT, Reserve, ReserveOutcome,
};
#[cfg(feature = "ledger")]
pub use ledgered::{
    Drift, LedgerSync, Ledgered, MOST_DRIFTS, PostError, Posted, Posting, Reconciled, Repair,
    Standing,
};
pub use limiter::{Limiter, LimiterBuilder};
pub use metrics::{HotKey, Metrics, RuleCounts, ThrottleCounts};
pub use rejections::REJECTIONS;
pub use snapshot::Snapshot;
pub use start::StartError;
#[cfg(feature = "wait")]
pub use stores::{GuardOptions, Guarded};
pub use stores::{Remembered, TRACES, Traced};
pub use throttle::Throttled;
pub use tollgate_config::{
    AttributeType, Attributes, Ceiling, Config, ConfigError, Durability, Effect as RuleEffect,
    Explanation, FailurePolicy, Missing, NumberFrom, Override, Placement, Policy, Problem, Rollout,
    Rule, RuleBuilder, RuleError, RuleProblem, RuleSet, RuleState, Scope, load, parse,
};
/// The algorithms: pure functions of a state and an instant. A store of one's own decides with them.
#[doc(no_inline)]
pub use tollgate_core as algorithms;
pub use tollgate_core::backoff::{Backoff, Schedule};
pub use tollgate_core::concurrency::Holder;
pub use tollgate_core::{
    Admission, Algorithm, Anchor, Balance, Calendar, CarryOver, Charge, Denial, Enforcement,
    HoldId, Key, Keyring, Leaky, Limit, Limiting, MAX_AMOUNT, OnDenied, Outcome, ParamError,
    Period, Rate, Recorded, Span, Subject, Tag, Time, Token, Unit, Zone,
};
#[cfg(feature = "redis")]
pub use tollgate_redis::{Finding, Level};
pub use tollgate_store::{
    Answer, Applied, Ask, Clock, Extended, GRACE, Guarantee, Held, HeldCharge, HoldRecord,
    HoldState, Immediate, ManualClock, MemoryStore, NewHold, Outcomes, Purpose, RETAIN, Reply,
    Settle, Settled, Store, StoreError, SystemClock, Usage, Wait,
};
