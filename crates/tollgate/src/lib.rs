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
//! assert!(limiter.check(&ann).is_allowed());
//! assert!(limiter.check(&ann).is_allowed());
//!
//! let refused = limiter.check(&ann);
//! assert!(!refused.is_allowed());
//! assert_eq!(refused.rule().unwrap().rule().id(), "login");
//! assert!(refused.retry_after().unwrap().as_secs_ceil() <= 600);
//!
//! // Somebody else is not affected, and neither is something else.
//! assert!(limiter.check(&Attributes::from([("action", "login"), ("user", "bob")])).is_allowed());
//! assert!(limiter.check(&Attributes::from([("action", "search"), ("user", "ann")])).is_allowed());
//! # Ok::<(), tollgate::ConfigError>(())
//! ```
//!
//! [`Limiter`] keeps state in this process. [`SharedLimiter`] keeps it in a store that a fleet
//! shares, and has a policy for when that fails. [`Engine`] is whichever of the two a config names.
//!
//! The one path of a request: attributes -> [`RuleSet::resolve`] -> charges -> the store's `apply`
//! (one call) -> [`Decision`]. Transports translate to and from the two ends and add nothing.

// Without a store elsewhere, what serves only those is not used.
#![cfg_attr(not(feature = "redis"), allow(dead_code))]

mod active_config;
mod batch;
#[cfg(feature = "redis")]
mod books;
mod candidates;
mod decision;
#[cfg(feature = "redis")]
mod denials;
#[cfg(feature = "redis")]
mod engine;
mod entry;
mod events;
#[cfg(feature = "redis")]
mod failures;
mod fallback;
#[cfg(feature = "redis")]
mod holds;
mod hot_keys;
#[cfg(feature = "redis")]
mod kept;
mod limiter;
mod metrics;
mod pace;
mod parties;
mod path;
mod rejections;
#[cfg(feature = "redis")]
mod shared;
#[cfg(feature = "redis")]
mod snapshot;
mod throttle;
mod trace;

pub use active_config::{ActiveConfig, Reloaded};
pub use batch::{BatchDecision, Demand, DemandError, Effect, MAX_CHARGES, Numbers};
#[cfg(feature = "redis")]
pub use books::{
    Accounts, Drift, MOST_DRIFTS, PostError, Posted, Posting, Reconciled, Repair, Standing,
};
pub use candidates::Comparison;
pub use decision::{Decision, Grace, Kind, Reason, RuleDecision};
#[cfg(feature = "redis")]
pub use engine::{Engine, StartError};
pub use events::{EVENTS, Event, EventCount, EventId, EventKind, Events};
#[cfg(feature = "redis")]
pub use holds::{
    Acquire, AcquireOutcome, BadHoldName, DEFAULT_TTL, Hold, HoldError, HoldName, Holders,
    LEAST_TTL, LeaseToken, MOST_TTL, MOST_WAIT, Reserve, ReserveOutcome,
};
pub use limiter::Limiter;
pub use metrics::{HotKey, Metrics, RuleCounts, ThrottleCounts};
pub use rejections::REJECTIONS;
#[cfg(feature = "redis")]
pub use shared::{SharedLimiter, SharedOptions};
#[cfg(feature = "redis")]
pub use snapshot::Snapshot;
pub use throttle::Throttled;
pub use tollgate_config::{
    Attributes, Config, ConfigError, Explanation, FailurePolicy, Override, Rule, RuleSet,
};
pub use tollgate_core::{
    Admission, Algorithm, Limit, Outcome, ParamError, Period, Rate, Span, Subject, Time,
};
#[cfg(feature = "redis")]
pub use tollgate_redis::{Finding, Level};
pub use tollgate_store::{
    Ask, Clock, Guarantee, HoldState, ManualClock, MemoryStore, Store, StoreError, SystemClock,
    Usage,
};
pub use trace::TRACES;
