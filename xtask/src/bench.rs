//! `cargo xtask bench`: builds in release mode what a benchmark needs, and runs it.

use clap::{Args, Subcommand};

use crate::components;
use crate::shell::{Failure, Step};

/// What to measure.
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
        /// Put the figures into docs/performance.md
        #[arg(long)]
        write: bool,
    },
    /// The doors against the least that could stand in their place, and against throttlecrab: decisions
    /// per second, latency, processor time, memory (needs wrk, redis-server and redis-benchmark, and
    /// protoc to build throttlecrab)
    Doors {
        #[command(flatten)]
        options: Options,
        /// Put the figures into docs/performance.md
        #[arg(long)]
        write: bool,
        /// What to measure: resp, p99, grpc, http, redis, memory [default: all]
        parts: Vec<String>,
    },
    /// The same request under 5, 50 and 500 rules, and with 50,000 tenants: nanoseconds, load time
    Rules(Options),
    /// A check with a ledger against one without, reserve and commit against one check, the ledger against a
    /// bare insert (needs redis-server and PostgreSQL)
    Quota(Options),
    /// The sliding counters against the exact log: how often they differ, and by how much
    Accuracy(Options),
}

#[derive(Args)]
pub(crate) struct Options {
    /// A short run, to see that it works; its figures mean nothing
    #[arg(long)]
    quick: bool,
}

pub(crate) fn run(bench: &Bench) -> Result<(), Failure> {
    match bench {
        Bench::Engine(options) => {
            run_step("engine", "--bin tollgate-bench -- engine", options)?;
            run_step("memory", "--bin tollgate-bench-memory --", options)
        }
        Bench::Http(options) => {
            components::ensure(components::BENCH_HTTP)?;
            Step::cargo("server", "build --release --locked -p tollgate-cli").run()?;
            run_step("http", "--bin tollgate-bench -- http", options)
        }
        Bench::Redis { options, write } => {
            components::ensure(components::BENCH_REDIS)?;
            let step = step("redis", "--bin tollgate-bench -- redis", options);
            writing(step, *write).run()
        }
        Bench::Doors {
            options,
            write,
            parts,
        } => {
            components::ensure(components::BENCH_REDIS)?;
            components::ensure(components::BENCH_HTTP)?;
            // Without it the rest can be measured all the same.
            if let Err(failure) = components::ensure(components::BENCH_PEER) {
                eprintln!("{failure}");
            }
            Step::cargo("server", "build --release --locked -p tollgate-cli").run()?;
            let step = step("doors", "--bin tollgate-bench -- doors", options);
            let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
            writing(step, *write).args(&parts).run()
        }
        Bench::Rules(options) => run_step("rules", "--bin tollgate-bench -- rules", options),
        Bench::Quota(options) => {
            components::ensure(components::BENCH_QUOTA)?;
            Step::cargo("server", "build --release --locked -p tollgate-cli").run()?;
            run_step("quota", "--bin tollgate-bench -- quota", options)
        }
        Bench::Accuracy(options) => {
            run_step("accuracy", "--bin tollgate-bench -- accuracy", options)
        }
    }
}

fn run_step(name: &'static str, program: &'static str, options: &Options) -> Result<(), Failure> {
    step(name, program, options).run()
}

fn step(name: &'static str, program: &'static str, options: &Options) -> Step {
    let program: Vec<&str> = program.split_whitespace().collect();
    let step = Step::cargo(name, "run --release --locked -p tollgate-bench").args(&program);
    match options.quick {
        true => step.args(&["--quick"]),
        false => step,
    }
}

fn writing(step: Step, write: bool) -> Step {
    match write {
        true => step.args(&["--write", "docs/performance.md"]),
        false => step,
    }
}
