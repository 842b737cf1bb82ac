//! Stores that wrap stores. Each adds one thing, does not depend on the others, and passes the
//! conformance suite. `engine.rs` puts the stack together.
//!
//! | wrapper | adds |
//! |---|---|
//! | [`Traced`] | a span for each call |
//! | [`Routed`] | several stores: each charge goes to the store of its rule |
//! | [`Sharded`] | one allowance split over several keys |
//! | [`Remembered`] | known denials, answered without a call |
//! | [`Reported`] | async mode: decides from counts of its own, and reports them later |
//! | [`Prepaid`] | leased mode: decides from units drawn before |
//! | `Ledgered` (in `ledgered/`) | counts restored from a ledger, usage recorded there |
//! | `Guarded` | a breaker, a timeout and a limit on calls in flight |

mod background;
#[cfg(feature = "wait")]
mod guarded;
mod prepaid;
mod remembered;
mod reported;
mod routed;
mod sharded;
mod traced;

#[cfg(feature = "wait")]
pub use guarded::{GuardOptions, Guarded};
pub use prepaid::{Prepaid, PrepaidUsage};
pub use remembered::Remembered;
pub use reported::{Reported, ReportedUsage};
pub use routed::Routed;
pub use sharded::Sharded;
pub use traced::{TRACES, Traced};
