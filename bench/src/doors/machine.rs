//! The machine of the benchmark.

/// Returns the machine's cores and its memory, in a sentence.
pub(super) fn describe() -> String {
    let read = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
    let (processors, memory) = (read("/proc/cpuinfo"), read("/proc/meminfo"));
    let model = field(&processors, "model name").unwrap_or("processors of an unknown model");
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let kibibytes = field(&memory, "MemTotal").and_then(|it| it.split(' ').next()?.parse().ok());
    let gibibytes = kibibytes.unwrap_or(0.0) / 1024.0 / 1024.0;
    format!(
        "Measured on {cores} cores ({model}) and {gibibytes:.0} GiB, shared by servers and load."
    )
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = lines.find(|(field, _)| field.trim() == name)?;
    Some(value.trim())
}
