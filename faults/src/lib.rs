//! Injects faults into real servers while the real limiter is under steady load.
//!
//! * [`fault`]: the faults, and how to inject them.
//! * [`policy`]: the rules under load, one for each failure policy, and what each promises.
//! * [`run`]: one fault from warm-up to recovery, and everything observed.
//! * [`judge`]: compares observations with promises.
//! * [`report`]: writes docs/faults.md.
//!
//! Everything is measured from outside, by the answers of the limiter and their times. The invariant of a
//! run: each answer is one [`Sample`](load::Sample), and every figure is computed from samples.

pub mod allowance;
pub mod clock;
pub mod fault;
pub mod judge;
pub mod load;
pub mod policy;
pub mod report;
pub mod run;
pub mod scheduling;
