//! The latency of `CL.THROTTLE` at half of the highest rate of Tollgate, against a no-op server at the same rate.

use std::error::Error;

use tollgate_bench::report::Report;
use tollgate_bench::table::{Bar, Table, median};

use super::Setting;
use super::resp::client::Dialect;
use super::resp::load::{Limits, Load};
use super::resp::paced::{self, CONNECTIONS, Latencies};
use super::resp::{start, start_noop};
use crate::round::{Rounds, alternate};

/// The highest 99th percentile, relative to the no-op server.
const P99: Bar = Bar::AtMost(1.3);

pub(super) fn run(setting: &Setting, report: &mut Report) -> Result<(), Box<dyn Error>> {
    let (rounds, seconds) = setting.length.pick((2, 0.5), (5, 2.0), (9, 3.0));
    let tollgate = start(setting)?;
    let noop = start_noop()?;
    let most = Load::new(&tollgate, Dialect::Cell, 1, Limits::Wide);
    let most = alternate(rounds.min(3), &mut [most], |load| load.run(seconds))?;
    let rate = most.first().map_or(f64::NAN, Rounds::per_second) / 2.0;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..=rounds {
        let our = paced::measure(&tollgate, rate, seconds)?;
        let their = paced::measure(&noop, rate, seconds)?;
        // The first round is a warm-up.
        if round > 0 {
            ours.push(our);
            theirs.push(their);
        }
    }
    let mut table = Table::new(["us", "tollgate", "no-op", "ratio", "bar", ""]);
    let middle = |seen: &[Latencies], figure: fn(&Latencies) -> f64| {
        median(seen.iter().map(figure).collect())
    };
    let both = |figure| (middle(&ours, figure), middle(&theirs, figure));
    for (name, (our, their), bar) in [
        ("p50", both(|it| it.p50), Bar::None),
        ("p99", both(|it| it.p99), P99),
    ] {
        let ratio = our / their;
        table.row([
            name.to_owned(),
            format!("{our:.0}"),
            format!("{their:.0}"),
            format!("{ratio:.2}"),
            bar.to_string(),
            bar.verdict(ratio),
        ]);
    }
    report.section(
        &format!(
            "{CONNECTIONS} connections send `CL.THROTTLE` at fixed intervals, {rate:.0} a second: half of the \
             rate that\nredis-benchmark reaches without a pipeline. The time of an answer starts when its \
             command should\nhave left. Medians of {rounds} alternating rounds of {seconds} s."
        ),
        &[table],
    );
    Ok(())
}
