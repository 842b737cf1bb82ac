//! `cargo xtask faults`: builds and runs the fault tests in release mode, and writes their report.

use clap::Args;

use crate::components;
use crate::shell::{Failure, Step};

/// The report.
const REPORT: &str = "docs/faults.md";

#[derive(Args)]
pub(crate) struct Options {
    /// Run each fault for a short time; does not write the report
    #[arg(long)]
    quick: bool,
    /// Run only this fault; does not write the report
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Write the report of a short run as well
    #[arg(long, requires = "quick", conflicts_with = "only")]
    write: bool,
}

pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    components::ensure(components::FAULTS)?;
    let mut step = Step::cargo("faults", "run --release --locked -p tollgate-faults --");
    if options.quick {
        step = step.args(&["--quick"]);
    }
    if let Some(name) = &options.only {
        step = step.args(&["--only", name]);
    } else if options.write || !options.quick {
        step = step.args(&["--write", REPORT]);
    }
    step.run()
}
