//! Runs rules on a virtual clock: the production limiter in memory, without a server, a store or secrets.
//!
//! * [`rule_tests`]: tests of rules, read from a file.
//! * [`VirtualLimiter`]: a limiter whose time the caller sets.
//!
//! Nothing here reads a clock or listens. The same input always gives the same output.

pub mod rule_tests;
mod virtual_limiter;

pub use virtual_limiter::{VirtualLimiter, offline};
