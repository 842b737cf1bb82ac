//! The Redis store: state that a fleet shares.
//!
//! * `lua/` is the script that decides, one file for each algorithm.
//! * [`RedisStore`] is the [`Store`](tollgate_store::Store): it turns charges into requests and waits
//!   for answers, never longer than it was told.
//! * Each server has a queue, a breaker, and workers with a connection each. Requests that wait for
//!   the same server leave in one call.
//! * In a cluster, requests go to the server of their slot; those whose keys are in several slots
//!   are taken slot by slot, and given back if one refuses.
//! * Holds have records of their own, which say what has become of them: `holds`.
//! * [`SharedValues`] keeps the few texts that instances share besides: overrides.
//! * [`inspect()`] looks at the servers as an operator would, and says what is not right with them.

mod check;
mod connect;
mod crossing;
mod error;
mod holds;
mod inspect;
mod metrics;
mod name;
mod node;
mod options;
mod plan;
mod reply;
mod script;
mod shared_values;
mod store;
mod topology;
mod wire;

pub use check::StartError;
pub use inspect::{Finding, Level, inspect};
pub use metrics::{HistogramCounts, Metrics};
pub use options::{Address, ClockSource, Login, Options, Servers, Tls};
pub use shared_values::SharedValues;
pub use store::RedisStore;
pub use tollgate_store::{BreakerOptions, BreakerState};
