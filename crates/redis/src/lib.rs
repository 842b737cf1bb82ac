//! The Redis store: state that a fleet shares.
//!
//! * [`RedisStore`] is the [`Store`](tollgate_store::Store): it turns charges into requests and waits for
//!   answers, at most for its timeout.
//! * `lua/` has the script that decides, one file for each algorithm. `request` makes requests from charges,
//!   `call_plan` lays them out for the script, and `reply` reads its answers.
//! * Each server is a `node` with a queue, a breaker, and workers with a connection each. Requests that wait
//!   for the same server are sent in one call.
//! * In a cluster, a request goes to the server of its cluster slot. If the keys of a request are in several
//!   cluster slots, `multi_slot` charges slot by slot, and refunds the charges if a later slot denies.
//! * `census` counts keys, memory and clocks in the background. `room` has the bounds that result from the
//!   counts. `shared_states` has the rules whose new subjects share a state because there is no room.
//! * `holds` keeps the records of reservations and leases.
//! * [`SharedValues`] has the few texts that instances share: overrides, and versions of the config.
//!   [`SharedLog`] has their audit trail.
//! * [`Deployment`] says how the instances of a namespace hash subjects.
//! * [`inspect()`] checks the servers for `doctor`.

mod call_plan;
mod census;
mod connect;
mod deployment;
mod error;
mod holds;
mod inspect;
mod key_name;
mod metrics;
mod multi_slot;
mod node;
mod options;
mod reply;
mod request;
mod room;
mod script;
mod shared_log;
mod shared_states;
mod shared_values;
mod startup;
mod store;
mod topology;

pub use census::{Census, RuleCensus, ServerCensus};
pub use deployment::Deployment;
pub use inspect::{Finding, Level, inspect};
pub use key_name::state_key;
pub use metrics::{HistogramCounts, Metrics};
pub use options::{Address, ClockSource, Login, Options, Servers, Tls};
pub use shared_log::SharedLog;
pub use shared_values::SharedValues;
pub use startup::StartError;
pub use store::RedisStore;
pub use tollgate_store::{BreakerOptions, BreakerState};
