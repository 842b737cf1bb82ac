//! The files in `deploy/` work: each is checked by the tool that uses it, and the container runs.

#![allow(clippy::unwrap_used, reason = "a failed helper fails its test")]
#![allow(
    clippy::panic,
    clippy::expect_used,
    reason = "a failed helper fails its test"
)]

mod archives;
mod chart;
mod compose;
mod container;
mod image;
mod unit;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// The program under test.
fn tollgate() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_tollgate"))
}

/// Copies the program under test into a directory, without its debug information: it would take a minute to pack.
fn copy_program(directory: &Path) -> PathBuf {
    let copy = directory.join("tollgate");
    let mut strip = Command::new("strip");
    run(strip.arg("-o").arg(&copy).arg(tollgate()));
    copy
}

/// Returns a path of this checkout.
fn checkout(path: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().unwrap().join(path)
}

/// Runs a command, and returns its output, whether it succeeds or not.
fn output(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| {
        panic!(
            "cannot run {command:?}: {error}\n    install: apt-get install -y --no-install-recommends \
             buildah podman runc docker-compose systemd binutils"
        )
    })
}

/// Runs a command that must succeed, and returns its standard output.
fn run(command: &mut Command) -> String {
    let output = output(command);
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{command:?} failed ({}):\n{printed}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    printed
}

/// Runs a command that must fail, and returns all that it printed.
fn fail(command: &mut Command) -> String {
    let output = output(command);
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8_lossy(&printed).into_owned();
    assert!(
        !output.status.success(),
        "{command:?} succeeded:\n{printed}"
    );
    printed
}

/// Returns the documents of a YAML text.
fn documents(yaml: &str) -> Vec<Value> {
    serde_json::from_str(&tollgate_rig::tools::yaml_to_json(yaml)).unwrap()
}

/// Checks a config with `tollgate validate`.
fn validate(config: &Path) {
    run(Command::new(tollgate()).arg("validate").arg(config));
}
