//! Simulates services that are saturated, with several controllers and none. Prints the tables of
//! docs/decisions/0026-shedding.md.
//!
//! `cargo run --release -p tollgate-core --example shedding -- docs` also writes the plots of docs/shedding.md.

#![allow(clippy::print_stdout)] // It prints tables.
#![allow(clippy::unwrap_used, clippy::cast_precision_loss)] // A simulation, with numbers that fit.

#[path = "../tests/saturation/mod.rs"]
mod saturation;

use std::fmt::Write as _;
use std::path::Path;

use saturation::peers::{LongAverage, RecentMinimum};
use saturation::{
    BUCKET, Bucket, Controller, Run, Unlimited, figures, halving, overload, recovered, success,
};
use tollgate_core::adaptive::{Adaptive, Numbers};

type Make = fn() -> Box<dyn Controller>;

const MOST: u64 = 1000;

const CONTROLLERS: [(&str, Make); 4] = [
    ("none", || Box::new(Unlimited)),
    ("AIMD, least latency of 10 s", || {
        Box::new(RecentMinimum::new(MOST))
    }),
    ("gradient, long average", || {
        Box::new(LongAverage::new(MOST))
    }),
    ("chosen", || Box::new(chosen())),
];

fn chosen() -> Adaptive {
    Adaptive::new(Numbers::default()).unwrap()
}

fn main() -> std::io::Result<()> {
    for (name, run) in [
        ("The service loses half of its workers", halving(false)),
        ("The service needs twice the time", halving(true)),
    ] {
        println!("\n{name}\n");
        println!(
            "| controller | p99 before, ms | recovers after, s | p99 then, ms | workers busy | limit varies | \
             back: p99, ms | high admitted | low admitted |"
        );
        println!("|---|---|---|---|---|---|---|---|---|");
        for (name, make) in CONTROLLERS {
            print_halving(name, &run, &run.play(&mut *make()));
        }
    }
    print_overload();
    print_worst();
    if let Some(directory) = std::env::args().nth(1) {
        write_plots(Path::new(&directory))?;
    }
    Ok(())
}

fn print_halving(name: &str, run: &Run, buckets: &[Bucket]) {
    let [before, half, back] =
        [(15, 30), (45, 60), (75, 90)].map(|(from, to)| figures(buckets, from, to));
    let bound = run.phases[1].p99_without_queue() * 3 / 2;
    let recovers = recovered(buckets, 30, 60, bound);
    let recovers = recovers.map_or("never".to_owned(), |it| format!("{it:.1}"));
    // The start of the controllers is not compared.
    let after_start = &buckets[10..];
    println!(
        "| {name} | {} | {recovers} | {} | {:.0}% | {:.0}% | {} | {:.2}% | {:.1}% |",
        before.p99 / 1000,
        half.p99 / 1000,
        half.utilisation,
        half.oscillation,
        back.p99 / 1000,
        success(after_start, 0),
        success(after_start, 1),
    );
}

fn print_overload() {
    println!("\nTen minutes of overload: p99 in multiples of the time of a worker\n");
    println!(
        "| service | controller | after 1 min | 5 min | 10 min | workers busy | limit | high admitted |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for (workers, service, rate) in [(100, 50_000, 2400), (4, 200_000, 30), (20, 1_000_000, 30)] {
        for (name, make) in &CONTROLLERS[1..] {
            let run = overload(workers, service, rate, 600);
            let buckets = run.play(&mut *make());
            let parts = [(30, 60), (270, 300), (570, 600)];
            let parts = parts.map(|(from, to)| figures(&buckets, from, to));
            let [first, middle, last] = parts.map(|it| it.p99 as f64 / service as f64);
            println!(
                "| {workers} workers, {} ms | {name} | {first:.1} | {middle:.1} | {last:.1} | {:.0}% | {:.0} | {:.1}% |",
                service / 1000,
                parts[2].utilisation,
                parts[2].mean_limit,
                success(&buckets[20..], 0),
            );
        }
    }
}

/// Prints the worst of 60 runs of the chosen controller.
fn print_worst() {
    println!("\nThe worst of 60 runs, with the chosen controller\n");
    println!(
        "| half of the capacity | workers busy | limit varies | high admitted | runs not recovered after 3 s |"
    );
    println!("|---|---|---|---|---|");
    for (name, is_slower) in [("half of the workers", false), ("twice the time", true)] {
        let (mut busy, mut varies, mut high) = (100.0_f64, 0.0_f64, 100.0_f64);
        let mut late = 0;
        for seed in 0..60 {
            let mut run = halving(is_slower);
            run.seed = seed;
            let buckets = run.play(&mut chosen());
            for (from, to) in [(15, 30), (45, 60), (75, 90)] {
                let figures = figures(&buckets, from, to);
                busy = busy.min(figures.utilisation);
                varies = varies.max(figures.oscillation);
            }
            high = high.min(success(&buckets[10..], 0));
            // The bound of `p99_recovers_within_seconds_when_capacity_halves`.
            let bound = run.phases[1].p99_without_queue() * 8 / 5;
            let recovers = recovered(&buckets, 30, 60, bound);
            late += u32::from(recovers.is_none_or(|it| it > 3.0));
        }
        println!("| {name} | {busy:.0}% | {varies:.0}% | {high:.2}% | {late} of 60 |");
    }
}

/// Writes the plots of the service that loses half of its workers.
fn write_plots(directory: &Path) -> std::io::Result<()> {
    let run = halving(false);
    let limited = run.play(&mut chosen());
    let unlimited = run.play(&mut Unlimited);
    let p99 = |buckets: &[Bucket]| -> Vec<f64> {
        let p99 = buckets.iter().map(|it| it.percentile(99) as f64 / 1000.0);
        p99.collect()
    };
    // Beyond a second the line without a limit leaves the plot.
    let latency = plot(
        "p99 of admitted requests, ms: half of the workers are gone from 30 s to 60 s",
        1000.0,
        &[
            ("without a limit", "#b3261e", p99(&unlimited)),
            ("with an adaptive limit", "#1b6e3c", p99(&limited)),
        ],
    );
    let admitted = |class: usize| -> Vec<f64> {
        let share = |it: &Bucket| success(std::slice::from_ref(it), class);
        limited.iter().map(share).collect()
    };
    let limit: Vec<f64> = limited.iter().map(|it| it.limit as f64).collect();
    let classes = plot(
        "the limit, and the percentage of each class that was admitted",
        400.0,
        &[
            ("limit", "#1f5fa8", limit),
            ("high, %", "#1b6e3c", admitted(0)),
            ("low, %", "#b3261e", admitted(1)),
        ],
    );
    std::fs::write(directory.join("shedding-latency.svg"), latency)?;
    std::fs::write(directory.join("shedding-limit.svg"), classes)
}

/// Draws lines of one value for each bucket.
fn plot(title: &str, most: f64, lines: &[(&str, &str, Vec<f64>)]) -> String {
    let (width, height, left, bottom) = (640.0, 260.0, 56.0, 28.0);
    let buckets = lines.iter().map(|it| it.2.len()).max().unwrap_or(1);
    let x = |bucket: usize| left + bucket as f64 * (width - left - 10.0) / buckets as f64;
    let y = |value: f64| height - bottom - value.min(most) * (height - bottom - 34.0) / most;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
         font-size=\"11\">\n<rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>\
         <text x=\"{left}\" y=\"16\" font-size=\"13\">{title}</text>\n"
    );
    for step in 0..5 {
        let value = most * f64::from(step) / 4.0;
        let (line, text) = (y(value), y(value) + 4.0);
        let _ = writeln!(
            svg,
            "<path d=\"M{left} {line:.0}H{}\" stroke=\"#ddd\"/><text x=\"{}\" y=\"{text:.0}\" \
             text-anchor=\"end\">{value:.0}</text>",
            width - 10.0,
            left - 6.0,
        );
    }
    let per_second = usize::try_from(1_000_000 / BUCKET).unwrap_or(1);
    for second in (0..=buckets / per_second).step_by(15) {
        let (x, y) = (x(second * per_second), height - 10.0);
        let _ = writeln!(
            svg,
            "<text x=\"{x:.0}\" y=\"{y:.0}\" text-anchor=\"middle\">{second} s</text>"
        );
    }
    for (index, (name, colour, values)) in lines.iter().enumerate() {
        let points = values.iter().enumerate();
        let points = points.map(|(bucket, value)| format!("{:.1},{:.0}", x(bucket), y(*value)));
        let points: Vec<String> = points.collect();
        let name_x = left + 8.0 + index as f64 * 190.0;
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>\
             <text x=\"{name_x:.0}\" y=\"32\" fill=\"{colour}\">{name}</text>",
            points.join(" "),
        );
    }
    svg + "</svg>\n"
}
