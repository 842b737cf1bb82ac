//! The algorithms of Tollgate as pure functions, and the types that all other crates share.
//!
//! Nothing here reads a clock, allocates on the decision path, waits, or knows configuration, storage
//! or wire formats. Time and state come in as arguments; a verdict comes out.
//!
//! | algorithm | file | never admits more than |
//! |---|---|---|
//! | fixed window | [`fixed_window`] | `limit` in each aligned window, so `2 × limit` in any span of one window |
//! | sliding log | [`sliding_log`] | `limit` in any span of one window: exact |
//! | sliding counter, sub-buckets | [`sliding_counter`] | `limit` in any span of one window; a cost counts up to one sub-bucket too long |
//! | sliding counter, two windows | [`two_window`] | less than `2 × limit` in any span of one window; `limit` if traffic is even |
//! | token bucket | [`token_bucket`] | `capacity + rate × t` in any span `t`: exact |
//! | GCRA | [`gcra`] | `burst + rate × t` in any span `t`: exact |
//! | leaky bucket | [`leaky_bucket`] | `queue + 1 + rate × t` in any span `t`: exact |
//! | concurrency | [`concurrency`] | `limit` holders at any instant: exact |
//! | fair shares | [`fair`] | `capacity + refill × t` in any span `t`, divided by weight under contention: exact |
//! | quota | [`quota`] | `limit + grace` in each calendar period, plus the amounts carried over or granted |
//!
//! [`adaptive`] moves a limit on the requests in flight to a service, by the latency of the service.
//! [`backoff`] watches another limit, and blocks subjects that keep asking after a denial.
//!
//! Property tests check each promise against a reference model that keeps every event
//! (`tests/model/`). The docs of each module say what happens to a state when the numbers of its limit
//! change.
//!
//! All arithmetic is on integers that stay below 2^53. So a store that computes in doubles, as Redis
//! scripts do, gets the same answer to the last unit.
//!
//! ```
//! use tollgate_core::{Limiting, Rate, Span, Time, gcra};
//!
//! let limit = gcra::new(Rate::new(1, Span::SECOND)?, 2)?; // one a second, two at once
//! let now = Time::from_micros(1_700_000_000_000_000);
//! let mut state = Default::default();
//! for _ in 0..2 {
//!     assert!(limit.decide(&state, 1, now).is_allowed());
//!     limit.charge(&mut state, 1, now);
//! }
//! let denied = limit.decide(&state, 1, now);
//! assert_eq!(denied.retry_at(), Some(now + Span::SECOND));
//! # Ok::<(), tollgate_core::ParamError>(())
//! ```

pub mod adaptive;
pub mod backoff;
pub mod calendar;
mod carry_over;
mod charge;
pub mod concurrency;
mod divisor;
pub mod fair;
pub mod fixed_window;
pub mod gcra;
mod hold;
mod key;
pub mod leaky_bucket;
mod limit;
mod limiting;
pub mod meter;
mod mode;
mod param;
pub mod quota;
mod siphash;
pub mod sliding_counter;
pub mod sliding_log;
pub mod token_bucket;
pub mod two_window;
mod units;

pub use calendar::{Anchor, Around, Calendar, Period, Unit, Zone};
pub use carry_over::CarryOver;
pub use charge::{Charge, Enforcement, OnDenied, Recorded, StoreId, Tag};
pub use hold::{HoldId, HoldIdError, HoldStores, Token};
pub use key::{Key, Keyring, RuleSalt, Subject, SubjectHex, SubjectKind};
pub use leaky_bucket::Leaky;
pub use limit::{Algorithm, Limit};
pub use limiting::{Admission, Denial, Limiting, Outcome, Verdict};
pub use mode::{MIN_SLICE, Mode};
pub use param::{Inexact, ParamError, ParamProblem};
pub use quota::Balance;
pub use units::{MAX_AMOUNT, Rate, Span, Tick, Time};
