//! The metrics of this process, under the names that Prometheus' own libraries use.

use std::fmt::Display;

use super::Page;
use crate::process::Process;

impl Page {
    /// Writes the numbers that the system reports.
    pub(super) fn process(&mut self, process: &Process) {
        let mut number = |name, kind, help, value: Option<&dyn Display>| {
            if let Some(value) = value {
                self.single(name, kind, help, &[], value);
            }
        };
        let cpu = process.cpu_ticks.map(Hundredths);
        let started = process.started_ticks.map(Hundredths);
        let name = "process_cpu_seconds_total";
        let help = "Processor time of the process, in seconds.";
        number(name, "counter", help, shown(cpu.as_ref()));
        let name = "process_resident_memory_bytes";
        let help = "Memory of the process, in bytes.";
        number(name, "gauge", help, shown(process.resident_bytes.as_ref()));
        let (name, help) = ("process_open_fds", "Open files and connections.");
        number(name, "gauge", help, shown(process.open_fds.as_ref()));
        let help = "How many files and connections may be open.";
        number(
            "process_max_fds",
            "gauge",
            help,
            shown(process.max_fds.as_ref()),
        );
        let name = "process_start_time_seconds";
        let help = "When the process started, in seconds since the epoch.";
        number(name, "gauge", help, shown(started.as_ref()));
    }
}

fn shown(value: Option<&impl Display>) -> Option<&dyn Display> {
    value.map(|value| value as &dyn Display)
}

/// Hundredths of a second, shown in seconds.
struct Hundredths(u64);

impl Display for Hundredths {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:02}", self.0 / 100, self.0 % 100)
    }
}
