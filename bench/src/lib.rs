//! Shared by the benchmark programs: the workload, tables, reports, and figures of processes.

pub mod process;
pub mod report;
pub mod table;
pub mod workload;
