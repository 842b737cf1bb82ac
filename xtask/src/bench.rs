//! `cargo xtask bench`: builds a benchmark in release mode and runs it, or runs it in turn with the same
//! benchmark of another checkout.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use crate::compare;
use crate::components::{self, Component};
use crate::shell::{self, Failure, Step};

/// The benchmark to run.
#[derive(Subcommand)]
pub(crate) enum Bench {
    /// The engine against governor's keyed limiter: nanoseconds per check, bytes per key
    Engine(Options),
    /// The server's /v1/check against a no-op handler: requests per second (needs wrk)
    Http(Options),
    /// The Redis store against scripts of one check each: Redis CPU per check, checks per second, bytes
    /// per key (needs redis-server and redis-benchmark)
    Redis {
        #[command(flatten)]
        options: Options,
        /// Write the figures to docs/performance.md
        #[arg(long, conflicts_with = "against")]
        write: bool,
    },
    /// The memory of Redis for each subject and hold, by kind of rule (needs redis-server)
    Sizes {
        #[command(flatten)]
        options: Options,
        /// Write the figures to docs/production.md
        #[arg(long, conflicts_with = "against")]
        write: bool,
    },
    /// Each door against a no-op server, and RESP against throttlecrab: decisions per second, latency,
    /// CPU time, memory (needs wrk, redis-server and redis-benchmark, and protoc to build throttlecrab)
    Doors {
        #[command(flatten)]
        options: Options,
        /// Write the figures to docs/performance.md
        #[arg(long, conflicts_with = "against")]
        write: bool,
        /// The parts to measure: resp, p99, grpc, http, redis, memory [default: all]
        parts: Vec<String>,
    },
    /// The same request under 5, 50 and 500 rules, and with 50,000 tenants: nanoseconds, load time
    Rules(Options),
    /// A check with a ledger against one without, reserve and commit against one check, the ledger against a
    /// plain insert (needs redis-server and PostgreSQL)
    Quota(Options),
    /// 100,000 denials a second for a minute: memory and files of the journal, and how long `tollgate why` takes
    /// over a full one
    Journal(Options),
    /// The gateway against nginx: requests per second, latency, CPU time, memory of open streams (needs nginx
    /// and wrk)
    Gateway(Options),
    /// The sliding counters against the exact log: how often they differ, and by how much
    Accuracy(Options),
}

#[derive(Args)]
pub(crate) struct Options {
    /// Run for a short time, as a smoke test; the figures mean nothing
    #[arg(long)]
    quick: bool,
    /// Compare with another checkout of this project: run its benchmark and this one in turn
    #[arg(long, value_name = "DIR")]
    against: Option<PathBuf>,
    /// How often to run both benchmarks
    #[arg(long, value_name = "N", default_value_t = 3, requires = "against")]
    runs: usize,
}

/// A benchmark, as the programs it consists of.
struct Plan<'a> {
    options: &'a Options,
    components: &'static [Component],
    needs_server: bool,
    /// The arguments after `cargo run --release --locked -p tollgate-bench`, for each program.
    programs: Vec<Vec<&'a str>>,
}

impl<'a> Plan<'a> {
    fn new(bench: &'a Bench) -> Plan<'a> {
        let (name, options, components): (_, _, &[Component]) = match bench {
            Bench::Engine(options) => ("engine", options, &[]),
            Bench::Http(options) => ("http", options, components::BENCH_HTTP),
            Bench::Redis { options, .. } => ("redis", options, components::BENCH_REDIS),
            Bench::Sizes { options, .. } => ("sizes", options, components::BENCH_SIZES),
            Bench::Doors { options, .. } => ("doors", options, components::BENCH_DOORS),
            Bench::Rules(options) => ("rules", options, &[]),
            Bench::Quota(options) => ("quota", options, components::BENCH_QUOTA),
            Bench::Journal(options) => ("journal", options, &[]),
            Bench::Gateway(options) => ("gateway", options, components::BENCH_GATEWAY),
            Bench::Accuracy(options) => ("accuracy", options, &[]),
        };
        let mut programs = vec![vec!["--bin", "tollgate-bench", "--", name]];
        if name == "engine" {
            programs.push(vec!["--bin", "tollgate-bench-memory", "--"]);
        }
        for program in &mut programs {
            if options.quick {
                program.push("--quick");
            }
            if let Bench::Redis { write: true, .. } | Bench::Doors { write: true, .. } = bench {
                program.extend(["--write", "docs/performance.md"]);
            }
            if let Bench::Sizes { write: true, .. } = bench {
                program.extend(["--write", "docs/production.md"]);
            }
            if let Bench::Doors { parts, .. } = bench {
                program.extend(parts.iter().map(String::as_str));
            }
        }
        Plan {
            options,
            components,
            needs_server: matches!(name, "doors" | "gateway" | "http" | "journal" | "quota"),
            programs,
        }
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

    /// Runs all programs, and returns what they printed.
    fn run(&self, checkout: &Path) -> Result<String, Failure> {
        let mut printed = String::new();
        for program in &self.programs {
            Step::cargo("bench", "run --release --locked -p tollgate-bench")
                .args(program)
                .in_checkout(checkout)
                .run_watched(|line| printed += line)?;
        }
        Ok(printed)
    }
}

pub(crate) fn run(bench: &Bench) -> Result<(), Failure> {
    let plan = Plan::new(bench);
    components::ensure(plan.components)?;
    if let Bench::Doors { .. } = bench {
        // Without protoc the bench measures everything but throttlecrab.
        if let Err(failure) = components::ensure(components::BENCH_PEER) {
            eprintln!("{failure}");
        }
    }
    let this = shell::root();
    plan.build(&this)?;
    let Some(other) = &plan.options.against else {
        return plan.run(&this).map(drop);
    };
    let other = &other
        .canonicalize()
        .map_err(|error| Failure::new(format!("--against {}: {error}", other.display())))?;
    plan.build(other)?;
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for run in 0..plan.options.runs {
        // Each checkout goes first in half of the runs, so that a machine that becomes slower does not favour
        // one of them.
        if run % 2 == 0 {
            before.push(plan.run(other)?);
            after.push(plan.run(&this)?);
        } else {
            after.push(plan.run(&this)?);
            before.push(plan.run(other)?);
        }
    }
    println!("\n{}", compare::report(&before, &after)?);
    Ok(())
}
