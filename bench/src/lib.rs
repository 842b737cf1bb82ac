//! What the benchmarks share: their workload, and how they report.

pub mod process;
pub mod table;
pub mod workload;
