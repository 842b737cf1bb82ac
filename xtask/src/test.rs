//! `cargo xtask test`: everything a change must pass.

use std::process::ExitCode;

use clap::Args;

use crate::components;
use crate::shell::{self, Failure, Step};
use crate::tally::Tally;

/// How thorough to be.
#[derive(Args)]
pub(crate) struct Options {
    /// Run ten to a hundred times as many random cases of every property, new ones each time, and longer
    /// random sequences on Redis and outages
    #[arg(long)]
    long: bool,
    /// Then test the Redis store on every server it is made for: Redis 6.2, 7.0 and 8.2, Valkey 9
    #[arg(long)]
    matrix: bool,
}

/// Runs the steps up to the first that fails. If tests were run, their sum is the last line.
pub(crate) fn run(options: &Options) -> ExitCode {
    let mut tally = Tally::default();
    let code = shell::report(steps(options, &mut tally));
    if !tally.is_empty() {
        println!("\n{tally}");
    }
    code
}

fn steps(options: &Options, tally: &mut Tally) -> Result<(), Failure> {
    components::ensure(components::TEST)?;
    Step::cargo("format", "fmt --all --check").run()?;
    Step::cargo(
        "lints",
        "clippy --workspace --all-targets --locked -- -D warnings",
    )
    .run()?;

    let mut tests = Step::cargo("tests", "test --workspace --locked");
    // Two runs of one commit say the same; new random cases are for the long run to find.
    tests = match options.long {
        true => tests
            .env("TOLLGATE_PROOF_CASES", "100")
            // Ten times as many of those that say no number of their own: some of them are slow.
            .env("PROPTEST_CASES", "2560"),
        false => tests.env("PROPTEST_RNG_SEED", "1"),
    };
    tests.run_watched(|line| tally.add_line(line))?;
    if tally.is_empty() {
        return Err(Failure::new(format!(
            "==> tests: failed, none was executed\n    rerun: {tests}"
        )));
    }

    Step::cargo("docs", "doc --workspace --no-deps --locked")
        .env("RUSTDOCFLAGS", "-D warnings")
        .run()?;
    if options.matrix {
        matrix(tally)?;
    }
    Ok(())
}

/// The tests of the Redis store, once for each server.
fn matrix(tally: &mut Tally) -> Result<(), Failure> {
    let mut servers = Vec::new();
    Step::cargo("servers", "run --locked -q -p tollgate-rig --bin servers").run_watched(
        |line| {
            if let Some((name, program)) = line.trim_end().split_once('\t') {
                servers.push((name.to_owned(), program.to_owned()));
            }
        },
    )?;
    for (name, program) in servers {
        println!("\n==> {name}");
        Step::cargo("tests", "test --locked -p tollgate-redis")
            .env("TOLLGATE_REDIS_SERVER", program)
            .run_watched(|line| tally.add_line(line))?;
    }
    Ok(())
}
