//! Stores that wrap stores. Each adds one thing, knows nothing of the others, and passes the conformance
//! suite. `engine.rs` puts the stack together.
//!
//! | wrapper | adds |
//! |---|---|
//! | [`Traced`] | a span for each call |
//! | [`Remembered`] | known denials, answered without a question |
//! | `Ledgered` (in `ledgered/`) | counts restored from a ledger, usage recorded there |
//!
//! [`Guarded`](tollgate_store::Guarded) (breaker, timeout, bound on calls in flight) is beside the contract
//! in the store crate, as stores use its parts too.

mod remembered;
mod traced;

pub use remembered::Remembered;
pub use traced::{TRACES, Traced};
