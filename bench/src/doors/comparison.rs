//! A table that compares Tollgate with a no-op server: requests per second and CPU time, each with its
//! target.

use tollgate_bench::table::{Bar, Table};

use crate::round::Rounds;

/// The least requests per second, relative to the no-op server.
pub(super) const RATE: Bar = Bar::AtLeast(0.85);
/// The most CPU time per request, relative to the no-op server.
pub(super) const CPU: Bar = Bar::AtMost(1.25);

/// Returns a table whose first column has this heading.
pub(super) fn table(heading: &str) -> Table {
    Table::new([
        heading,
        "tollgate/s",
        "no-op/s",
        "ratio",
        "bar",
        "",
        "p99 ms",
        "no-op",
        "CPU us",
        "no-op",
        "ratio",
        "bar",
        "",
    ])
}

/// Adds a row. `measured` has the rounds of Tollgate, then those of the no-op server.
pub(super) fn row(table: &mut Table, name: &str, measured: &[Rounds], bars: (Bar, Bar)) {
    let [ours, theirs] = measured else {
        return;
    };
    let rate = ours.per_second() / theirs.per_second();
    let cpu = ours.cpu_micros() / theirs.cpu_micros();
    let (rate_bar, cpu_bar) = bars;
    table.row([
        name.to_owned(),
        format!("{:.0}", ours.per_second()),
        format!("{:.0}", theirs.per_second()),
        format!("{rate:.2}"),
        rate_bar.to_string(),
        rate_bar.verdict(rate),
        format!("{:.2}", ours.p99_millis()),
        format!("{:.2}", theirs.p99_millis()),
        format!("{:.1}", ours.cpu_micros()),
        format!("{:.1}", theirs.cpu_micros()),
        format!("{cpu:.2}"),
        cpu_bar.to_string(),
        cpu_bar.verdict(cpu),
    ]);
}
