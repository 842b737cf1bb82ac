//! `cargo xtask bench`: builds a benchmark in release mode and runs it, or runs it in turn with the same
//! benchmark of another checkout.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use crate::compare;
use crate::components::{self, Component};
use crate::shell::{self, Failure, Step};

/// The document with the figures, the one with those of modes, and the one with the memory of Redis.
const PERFORMANCE: &str = "docs/performance.md";
const MODES: &str = "docs/modes.md";
const PRODUCTION: &str = "docs/production.md";

/// The benchmark to run.
#[derive(Subcommand)]
pub(crate) enum Bench {
    /// Everything that docs/performance.md and docs/modes.md show
    All(Written),
    /// The engine against governor's keyed limiter: nanoseconds per check, bytes per key
    Engine(Written),
    /// The Redis store against scripts of one check each, and against redis_rate: Redis CPU per check, checks per
    /// second, bytes per key (needs redis-server, redis-benchmark and go)
    Redis(Written),
    /// The memory of Redis for each subject and hold, by kind of rule (needs redis-server)
    Sizes(Written),
    /// Each door against a no-op server and against peers: decisions per second, latency, CPU time, system calls,
    /// memory (needs wrk, redis-server, redis-benchmark and perf; go and protoc to build the peers)
    Doors {
        #[command(flatten)]
        written: Written,
        /// The parts to measure: rls, open, grpc, http, resp, p99, redis, cost, memory [default: all]
        parts: Vec<String>,
    },
    /// The same request under 5, 50 and 500 rules, and with 50,000 tenants: nanoseconds, load time
    Rules(Written),
    /// A check with a ledger against one without, reserve and commit against one check, the ledger against a
    /// plain insert (needs redis-server and PostgreSQL)
    Quota(Written),
    /// Leased and async mode on Redis against the memory store and exact checks, through the doors and in process:
    /// checks per second, calls per check (needs redis-server and wrk)
    Modes(Written),
    /// A rule with fair shares against the same rule without them, with 10 and 100,000 active clients: nanoseconds in
    /// memory, CPU time of Redis. Then requests that wait, as `waiting` (needs redis-server)
    Fair(Written),
    /// The Tower layer: what it adds to an axum request on the memory store
    Tower {
        /// Run for a short time, as a smoke test; the figures mean nothing
        #[arg(long)]
        quick: bool,
    },
    /// The journal of denials: what it costs a check, memory and files under 100,000 denials a second for a minute, and
    /// how long `tollgate why` takes over a full one
    Journal(Written),
    /// The gateway against nginx: requests per second, latency, CPU time, memory of open streams (needs nginx,
    /// redis-server and wrk)
    Gateway(Written),
    /// Requests that wait for their turn: bytes of each, and the time to join and to leave a queue
    Waiting(Options),
    /// The dashboard in Chromium: bytes, time and longest tasks; what a viewer costs; simulations of access logs: CPU
    /// time for a million lines (needs chromium, node and wrk)
    See(Written),
    /// The sliding counters against the exact log: how often they differ, and by how much
    Accuracy(Options),
}

#[derive(Args)]
pub(crate) struct Written {
    #[command(flatten)]
    options: Options,
    /// Write the figures to their document: docs/performance.md, docs/modes.md for `modes`, or docs/production.md for
    /// `sizes`
    #[arg(long, conflicts_with = "against")]
    write: bool,
}

#[derive(Args)]
pub(crate) struct Options {
    /// Run for a short time, as a smoke test; the figures mean nothing, and no bar fails the command
    #[arg(long)]
    quick: bool,
    /// Run more and longer rounds
    #[arg(long, conflicts_with = "quick")]
    long: bool,
    /// Compare with another checkout of this project: run its benchmark and this one in turn
    #[arg(long, value_name = "DIR")]
    against: Option<PathBuf>,
    /// How often to run both benchmarks
    #[arg(long, value_name = "N", default_value_t = 3, requires = "against")]
    runs: usize,
}

/// The benchmarks that start `tollgate serve`.
const NEED_SERVER: [&str; 6] = ["doors", "gateway", "journal", "modes", "quota", "see"];

/// A benchmark, as the programs it consists of.
struct Plan<'a> {
    options: &'a Options,
    components: Vec<&'static [Component]>,
    needs_server: bool,
    has_peers: bool,
    /// The arguments after `cargo run --release --locked -p tollgate-bench`, for each program.
    programs: Vec<Vec<&'a str>>,
}

impl<'a> Plan<'a> {
    /// Returns `None` for the Tower layer, whose benchmark is in its own crate.
    fn new(bench: &'a Bench) -> Option<Plan<'a>> {
        let (names, options, write): (&[&str], _, _) = match bench {
            Bench::All(it) => (
                &[
                    "doors", "redis", "engine", "bytes", "rules", "fair", "waiting", "quota",
                    "see", "gateway", "journal", "modes",
                ],
                &it.options,
                it.write,
            ),
            Bench::Engine(it) => (&["engine", "bytes"], &it.options, it.write),
            Bench::Redis(it) => (&["redis"], &it.options, it.write),
            Bench::Sizes(it) => (&["sizes"], &it.options, it.write),
            Bench::Doors { written: it, .. } => (&["doors"], &it.options, it.write),
            Bench::Rules(it) => (&["rules"], &it.options, it.write),
            Bench::Quota(it) => (&["quota"], &it.options, it.write),
            Bench::Modes(it) => (&["modes"], &it.options, it.write),
            Bench::See(it) => (&["see"], &it.options, it.write),
            Bench::Fair(it) => (&["fair", "waiting"], &it.options, it.write),
            Bench::Waiting(options) => (&["waiting"], options, false),
            Bench::Journal(it) => (&["journal"], &it.options, it.write),
            Bench::Gateway(it) => (&["gateway"], &it.options, it.write),
            Bench::Accuracy(options) => (&["accuracy"], options, false),
            Bench::Tower { .. } => return None,
        };
        let programs = names.iter().map(|name| {
            let mut program = match *name {
                "bytes" => vec!["--bin", "tollgate-bench-memory", "--"],
                "waiting" => vec!["--bin", "tollgate-bench-waiting", "--"],
                name => vec!["--bin", "tollgate-bench", "--", name],
            };
            if options.quick {
                program.push("--quick");
            }
            if options.long {
                program.push("--long");
            }
            if write {
                let document = match *name {
                    "sizes" => PRODUCTION,
                    "modes" => MODES,
                    _ => PERFORMANCE,
                };
                program.extend(["--write", document]);
            }
            match bench {
                Bench::All(_) if write && *name == "doors" => program.push("--fresh"),
                Bench::Doors { parts, .. } => program.extend(parts.iter().map(String::as_str)),
                _ => {}
            }
            program
        });
        Some(Plan {
            options,
            components: names.iter().map(|name| needs(name)).collect(),
            needs_server: names.iter().any(|name| NEED_SERVER.contains(name)),
            has_peers: names.contains(&"doors"),
            programs: programs.collect(),
        })
    }

    fn build(&self, checkout: &Path) -> Result<(), Failure> {
        if self.needs_server {
            let server = Step::cargo("server", "build --release --locked -p tollgate-cli");
            server.in_checkout(checkout).run()?;
        }
        Step::cargo("build", "build --release --locked -p tollgate-bench")
            .in_checkout(checkout)
            .run()
    }

    /// Runs all programs, and returns what they printed, and whether all bars were met.
    fn run(&self, checkout: &Path) -> Result<(String, bool), Failure> {
        let (mut printed, mut is_met) = (String::new(), true);
        let mut failures = Vec::new();
        for program in &self.programs {
            let step = Step::cargo("bench", "run --release --locked -p tollgate-bench")
                .args(program)
                .in_checkout(checkout);
            // A program that fails does not keep the others from measuring.
            match step.run_measured(|line| printed += line) {
                Ok(met) => is_met &= met,
                Err(failure) => failures.push(failure.to_string()),
            }
        }
        match failures.is_empty() {
            true => Ok((printed, is_met)),
            false => Err(Failure::new(failures.join("\n"))),
        }
    }
}

/// Returns the components of a program.
fn needs(name: &str) -> &'static [Component] {
    match name {
        "redis" => components::BENCH_REDIS,
        "sizes" | "fair" => components::BENCH_SIZES,
        "modes" | "doors" => components::BENCH_DOORS,
        "quota" => components::BENCH_QUOTA,
        "see" => components::BENCH_SEE,
        "gateway" => components::BENCH_GATEWAY,
        _ => &[],
    }
}

pub(crate) fn run(bench: &Bench) -> Result<(), Failure> {
    let Some(plan) = Plan::new(bench) else {
        let step = Step::cargo("bench", "bench --locked -p tollgate-tower --bench layer");
        let step = match bench {
            Bench::Tower { quick: true } => step.args(&["--", "--quick"]),
            _ => step,
        };
        return step.run();
    };
    for components in &plan.components {
        components::ensure(components)?;
    }
    if plan.has_peers {
        // Without these the bench measures everything else, and says what is missing.
        for components in [components::BENCH_PEER, components::BENCH_CALLS] {
            if let Err(failure) = components::ensure(components) {
                eprintln!("{failure}");
            }
        }
    }
    let this = shell::root();
    plan.build(&this)?;
    let Some(other) = &plan.options.against else {
        return match plan.run(&this)? {
            (_, true) => Ok(()),
            (_, false) => Err(Failure::new("==> bench: bars were missed, see above")),
        };
    };
    let other = &other
        .canonicalize()
        .map_err(|error| Failure::new(format!("--against {}: {error}", other.display())))?;
    plan.build(other)?;
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for run in 0..plan.options.runs {
        // Each checkout goes first in half of the runs, so that a machine that becomes slower does not favour
        // one of them. Bars do not matter here.
        if run % 2 == 0 {
            before.push(plan.run(other)?.0);
            after.push(plan.run(&this)?.0);
        } else {
            after.push(plan.run(&this)?.0);
            before.push(plan.run(other)?.0);
        }
    }
    println!("\n{}", compare::report(&before, &after)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: bool) -> Written {
        let options = Options {
            quick: false,
            long: true,
            against: None,
            runs: 3,
        };
        Written { options, write }
    }

    #[test]
    fn all_writes_the_whole_document_from_a_fresh_table() {
        let bench = Bench::All(written(true));
        let lines: Vec<String> = Plan::new(&bench)
            .unwrap()
            .programs
            .iter()
            .map(|it| it.join(" "))
            .collect();
        assert_eq!(
            lines[0],
            "--bin tollgate-bench -- doors --long --write docs/performance.md --fresh"
        );
        assert_eq!(
            lines[3],
            "--bin tollgate-bench-memory -- --long --write docs/performance.md"
        );
        assert_eq!(lines.len(), 12);
    }

    #[test]
    fn modes_are_written_to_their_own_document() {
        let bench = Bench::Modes(written(true));
        let plan = Plan::new(&bench).unwrap();
        assert_eq!(plan.programs[0][5..], ["--write", "docs/modes.md"]);
        assert!(plan.needs_server);
    }

    #[test]
    fn parts_of_the_doors_are_passed_on() {
        let bench = Bench::Doors {
            written: written(false),
            parts: vec!["rls".to_owned()],
        };
        let plan = Plan::new(&bench).unwrap();
        assert_eq!(
            plan.programs,
            [["--bin", "tollgate-bench", "--", "doors", "--long", "rls"]]
        );
        assert!(plan.needs_server && plan.has_peers);
    }
}
