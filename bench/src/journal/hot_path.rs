//! What the journal costs a check: the same checks in this process, with and without a reader of denials.

use std::error::Error;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::Duration;

use tollgate::{Attributes, DenialReader, Limiter};
use tollgate_bench::report::Report;
use tollgate_bench::table::{Bar, Table, figure, median};
use tollgate_rig::Stopwatch;

use super::KEYS;
use crate::length::Length;

const COST: Bar = Bar::AtMost(1.03);
/// As in the server.
const QUEUE: usize = 8192;
const PAUSE: Duration = Duration::from_millis(25);

pub(super) fn measure(length: Length, report: &mut Report) -> Result<(), Box<dyn Error>> {
    let (rounds, millis) = length.pick((3, 20), (40, 200), (80, 300));
    let names: Vec<String> = (0..KEYS).map(|number| format!("key-{number}")).collect();
    let mut table = Table::new(["a check", "without, ns", "with, ns", "ratio", "bar", ""]);
    for (name, limit, log_denials, bar) in [
        ("admitted", 1_000_000_000, "sampled", COST),
        ("denied, sampled", 1, "sampled", COST),
        ("denied, all recorded", 1, "all", Bar::None),
    ] {
        let limiter = || {
            Limiter::from_yaml(
                "rules.yaml",
                &format!(
                    "version: 1\nrules:\n- {{ id: api, per: [api_key], algorithm: fixed-window, limit: {limit}, window: 30d, \
                     log_denials: {log_denials} }}\n"
                ),
            )
        };
        let (without, with) = (limiter()?, limiter()?);
        let reader = with
            .read_denials(QUEUE)
            .ok_or("there is a reader already")?;
        let time = Duration::from_millis(millis);
        let [mut ours, mut theirs, mut ratios] = [const { Vec::new() }; 3];
        let is_over = &AtomicBool::new(false);
        scope(|scope| {
            scope.spawn(move || drain(&reader, is_over));
            // The first round warms up.
            for round in 0..=rounds {
                let mut sides = [(&without, f64::NAN), (&with, f64::NAN)];
                // Each side is first in turn.
                if round % 2 == 1 {
                    sides.reverse();
                }
                for (limiter, nanos) in &mut sides {
                    *nanos = nanos_of_a_check(limiter, &names, time);
                }
                if round % 2 == 1 {
                    sides.reverse();
                }
                if round > 0 {
                    let [(_, before), (_, after)] = sides;
                    theirs.push(before);
                    ours.push(after);
                    ratios.push(after / before);
                }
            }
            is_over.store(true, Ordering::Relaxed);
        });
        let ratio = median(ratios);
        table.row([
            name.to_owned(),
            figure(median(theirs), 0),
            figure(median(ours), 0),
            figure(ratio, 3),
            bar.to_string(),
            bar.verdict(ratio),
        ]);
    }
    report.section(
        &format!(
            "Nanoseconds of a check in memory, without and with a reader of denials, {KEYS} subjects; medians of {rounds} \
             alternating rounds of {millis} ms."
        ),
        &[table],
    );
    Ok(())
}

/// Takes denials as the journal's thread does.
fn drain(reader: &DenialReader, is_over: &AtomicBool) {
    while !is_over.load(Ordering::Relaxed) {
        while let Some(denial) = reader.next() {
            black_box(denial);
        }
        sleep(PAUSE);
    }
}

fn nanos_of_a_check(limiter: &Limiter, names: &[String], time: Duration) -> f64 {
    let (mut checks, watch) = (0_u32, Stopwatch::start());
    while watch.elapsed() < time {
        for name in names {
            let attributes = Attributes::from([("action", "read"), ("api_key", name.as_str())]);
            black_box(limiter.check_now(&attributes));
            checks += 1;
        }
    }
    watch.elapsed().as_secs_f64() * 1e9 / f64::from(checks)
}
