//! `cargo xtask faults`: builds in release mode what brings faults about, runs it, and keeps its
//! report.

use clap::Args;

use crate::components;
use crate::shell::{Failure, Step};

/// Where the report is.
const REPORT: &str = "docs/faults.md";

#[derive(Args)]
pub(crate) struct Options {
    /// A short run of each fault; the report is left as it is
    #[arg(long)]
    quick: bool,
    /// Only this fault; the report is left as it is
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Write the report of a short run, too
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
