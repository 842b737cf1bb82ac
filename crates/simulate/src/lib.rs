//! Runs rules on a virtual clock: the production limiter in memory, without a server, a store or secrets.
//!
//! * [`rule_tests`]: tests of rules, read from a file.
//! * [`Simulation`]: requests through one config or two, and a [`report`].
//! * [`log`] and [`traffic`]: where the requests of a simulation come from.
//! * [`advise`]: a rule from the answers to ten questions. [`demand`]: limits from a log.
//! * [`plan`]: sizes of a deployment.
//! * [`redis_bytes`] and [`memory_bytes`]: the memory of Redis, and of a process, for the subjects of a rule.
//! * [`VirtualLimiter`]: a limiter whose time the caller sets.
//!
//! Nothing here reads a clock or listens. The same input always gives the same output.

pub mod advise;
pub mod demand;
pub mod log;
mod number;
pub mod plan;
pub mod report;
pub mod rule_tests;
mod simulation;
mod sizes;
mod stats;
pub mod traffic;
mod virtual_limiter;

pub use simulation::Simulation;
pub use sizes::{memory_bytes, redis_bytes};
pub use virtual_limiter::{VirtualLimiter, offline};
