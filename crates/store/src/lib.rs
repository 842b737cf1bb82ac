//! Where state lives: the contract of a store, the memory store, and the suite every store passes.
//!
//! A store knows charges and nothing of rules or transports. It decides all charges of a request in
//! one atomic step on its own clock: [`Store`]. [`MemoryStore`] is the store of one process;
//! [`conformance`] is what a store has to pass to be one.

pub mod clock;
pub mod conformance;
mod contract;
mod holds;
mod memory;

pub use clock::{Clock, ManualClock, SystemClock};
pub use contract::{Applied, Ask, GRACE, Guarantee, Outcomes, Store, StoreError, Usage};
pub use holds::{
    Extended, Held, HeldCharge, HoldRecord, HoldState, HoldStore, MAX_CHARGES, MAX_MEMO, MAX_OWNER,
    MAX_TTL, NewHold, Purpose, RETAIN, RecordError, Settle, Settled, Wait,
};
pub use memory::MemoryStore;
pub use tollgate_core::Balance;
