//! Faults, brought about on real servers while the real limiter is under steady load.
//!
//! * [`fault`]: what can go wrong, and how to make it so.
//! * [`policy`]: the rules under load, one for each failure policy, and what each promises.
//! * [`run`]: one fault from warm-up to recovery, and what was seen.
//! * [`judge`]: what was seen against what was promised.
//! * [`report`]: both, in words.
//!
//! Everything is counted from outside, by what the limiter answers and when. The invariant of a
//! run: each answer is one [`Sample`](load::Sample), and every figure is made from samples.

pub mod clock;
pub mod delay;
pub mod fault;
pub mod judge;
pub mod ledger;
pub mod load;
pub mod policy;
pub mod report;
pub mod run;
