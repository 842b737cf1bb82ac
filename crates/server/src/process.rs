//! What the system knows of this process: processor time, memory, open files and its start. Read from
//! `/proc`, so only Linux has it.

use std::fs;

/// How many ticks the kernel counts in a second, for programs. A constant of Linux on all processors that
/// Tollgate runs on.
const TICKS: u64 = 100;

/// The numbers of a process. A number that the system does not report is missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Process {
    /// Processor time of all threads, in hundredths of a second.
    pub(crate) cpu_ticks: Option<u64>,
    pub(crate) resident_bytes: Option<u64>,
    pub(crate) open_fds: Option<u64>,
    /// The bound on open files; missing if there is none.
    pub(crate) max_fds: Option<u64>,
    /// When the process started, in hundredths of a second since the epoch.
    pub(crate) started_ticks: Option<u64>,
}

impl Process {
    /// Reads the numbers of this process.
    pub(crate) fn read() -> Process {
        let read = |path: &str| fs::read_to_string(path).ok();
        let stat = read("/proc/self/stat");
        let stat = stat.as_deref();
        let booted = read("/proc/stat").as_deref().and_then(boot_time);
        let started = stat.and_then(|stat| field(stat, 22));
        Process {
            cpu_ticks: stat.and_then(|stat| Some(field(stat, 14)? + field(stat, 15)?)),
            resident_bytes: read("/proc/self/status").as_deref().and_then(resident),
            open_fds: open_files(),
            max_fds: read("/proc/self/limits").as_deref().and_then(max_files),
            started_ticks: booted
                .zip(started)
                .map(|(boot, ticks)| boot * TICKS + ticks),
        }
    }
}

/// Returns a field of `/proc/self/stat`, counted from 1 as in the manual.
fn field(stat: &str, number: usize) -> Option<u64> {
    // The second field is the name of the program in parentheses. It may have blanks and parentheses.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(number - 3)?.parse().ok()
}

/// Returns when the system started, in seconds since the epoch.
fn boot_time(stat: &str) -> Option<u64> {
    let line = stat.lines().find_map(|line| line.strip_prefix("btime "));
    line?.trim().parse().ok()
}

fn resident(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes: u64 = line?.split_whitespace().next()?.parse().ok()?;
    Some(kilobytes * 1024)
}

fn max_files(limits: &str) -> Option<u64> {
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"));
    line?.split_whitespace().next()?.parse().ok()
}

fn open_files() -> Option<u64> {
    let folder = "/proc/self/fd";
    // Linux since 6.2 reports the number as the length of the folder.
    match fs::metadata(folder).ok()?.len() {
        // The folder itself is open while it is read.
        0 => Some((fs::read_dir(folder).ok()?.count() as u64).saturating_sub(1)),
        files => Some(files),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_after_any_name() {
        let stat = "7 (a (b) c) S 1 2 3 4 5 6 7 8 9 10 250 50 13 14 15 16 17 18 4242 20";
        assert_eq!(field(stat, 14).zip(field(stat, 15)), Some((250, 50)));
        assert_eq!(field(stat, 22), Some(4242));
        assert_eq!(field("", 14), None);
        assert_eq!(
            boot_time("cpu 1 2\nbtime 1700000000\n"),
            Some(1_700_000_000)
        );
        assert_eq!(
            resident("VmPeak: 9 kB\nVmRSS:\t  2048 kB\n"),
            Some(2_097_152)
        );
        let limits = "Max open files            1024                 4096                 files";
        assert_eq!(max_files(limits), Some(1024));
        assert_eq!(
            max_files("Max open files   unlimited   unlimited   files"),
            None
        );
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_has_numbers() {
        let process = Process::read();
        assert!(process.cpu_ticks.is_some() && process.started_ticks.is_some());
        assert!(process.resident_bytes > Some(100_000), "{process:?}");
        assert!(process.open_fds > Some(2), "{process:?}");
    }
}
