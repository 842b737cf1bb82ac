//! What the benchmarks share: their workload, and how they report.

pub mod table;
pub mod workload;
