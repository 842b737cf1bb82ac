//! The contract of a store, and the store in memory.
//!
//! A [`Store`] decides all charges of a request in one atomic step, on its own clock. Stores know
//! charges, but not rules or transports. [`MemoryStore`] keeps the states of one process. The crate
//! `tollgate-conformance` is the test suite that every store passes.

mod answer;
pub mod breaker;
pub mod clock;
mod contract;
mod holds;
mod memory;

pub use answer::{Answer, AnswerFuture};
pub use breaker::{Breaker, BreakerOptions, BreakerState, Permit};
pub use clock::{Clock, ManualClock, MonotonicClock, Started, Stopwatch, SystemClock};
pub use contract::{
    AllowanceLevel, Applied, Ask, GRACE, Guarantee, Immediate, Outcomes, Reply, Store, StoreError,
    Unanswered, Usage,
};
pub use holds::{
    Extended, Held, HeldCharge, HoldRecord, HoldState, MAX_CHARGES, MAX_MEMO, MAX_OWNER, MAX_TTL,
    NewHold, OpenBound, Purpose, RETAIN, RecordError, Settle, Settled, Wait,
};
pub use memory::MemoryStore;
pub use tollgate_core::Balance;
