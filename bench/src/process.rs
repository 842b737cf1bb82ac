//! The CPU time and the memory of a process.

use std::error::Error;

/// Linux reports CPU time in hundredths of a second on every machine.
const MICROS_PER_TICK: f64 = 10_000.0;

/// Returns the CPU time of the process `id` so far, in microseconds.
///
/// # Errors
/// If the process does not exist.
pub fn cpu_micros(id: u32) -> Result<f64, Box<dyn Error>> {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat"))?;
    // The second field is the name of the program in parentheses, which may contain anything. User and system
    // time are the 14th and 15th field.
    let after_name = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    let mut times = after_name.split(' ').skip(11).map(str::parse::<f64>);
    match (times.next(), times.next()) {
        (Some(Ok(user)), Some(Ok(system))) => Ok((user + system) * MICROS_PER_TICK),
        _ => Err(format!("the processor time of process {id} is unknown: {stat}").into()),
    }
}

/// Returns the resident memory of the process `id`, in bytes.
///
/// # Errors
/// If the process does not exist.
pub fn resident_bytes(id: u32) -> Result<f64, Box<dyn Error>> {
    let status = std::fs::read_to_string(format!("/proc/{id}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix(" kB"));
    match kibibytes.map(str::parse::<f64>) {
        Some(Ok(kibibytes)) => Ok(kibibytes * 1024.0),
        _ => Err(format!("the memory of process {id} is unknown: {status}").into()),
    }
}
