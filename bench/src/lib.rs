//! Shared by the benchmark programs: the workload, tables, and figures of processes.

pub mod process;
pub mod table;
pub mod workload;
