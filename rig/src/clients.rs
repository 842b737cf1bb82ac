//! Clients of other languages, downloaded once and kept.

use std::process::Command;

use crate::cache::{self, run};

/// redis-py, as pip names it.
const REDIS_PY: &str = "redis==8.1.0";
/// schemathesis, as pip names it.
const SCHEMATHESIS: &str = "schemathesis==4.32.5";
/// ioredis, as npm names it.
const IOREDIS: &str = "ioredis@6.0.0";

/// A Python that has redis-py.
///
/// # Panics
///
/// When it cannot be had; the message says what to install, or shows what pip said.
#[must_use]
pub fn python() -> Command {
    needs("python3", "python3 python3-pip");
    let home = cache::directory("python", REDIS_PY, |download| {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--target"]);
        run(pip.arg(download).arg(REDIS_PY));
    });
    let mut python = Command::new("python3");
    python.env("PYTHONPATH", home);
    python
}

/// Schemathesis, which makes requests from an OpenAPI description and judges the answers.
///
/// # Panics
///
/// When it cannot be had; the message says what to install, or shows what pip said.
#[must_use]
pub fn schemathesis() -> Command {
    needs("python3", "python3 python3-pip");
    // Parts of it are compiled for one Python.
    let abi = "import sysconfig; print(sysconfig.get_config_var('SOABI'))";
    let abi = run(Command::new("python3").args(["-c", abi]));
    let name = format!("{SCHEMATHESIS}-{}", abi.trim());
    let home = cache::directory("python", &name, |download| {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--target"]);
        run(pip.arg(download).arg(SCHEMATHESIS));
    });
    let mut schemathesis = Command::new("python3");
    schemathesis.args(["-m", "schemathesis.cli"]);
    schemathesis.env("PYTHONPATH", home);
    schemathesis
}

/// A Node.js that has ioredis.
///
/// # Panics
///
/// When it cannot be had; the message says what to install, or shows what npm said.
#[must_use]
pub fn node() -> Command {
    needs("node", "nodejs npm");
    let home = cache::directory("node", IOREDIS, |download| {
        needs("npm", "nodejs npm");
        let mut npm = Command::new("npm");
        npm.args(["install", "--silent", "--no-audit", "--no-fund", "--prefix"]);
        run(npm.arg(download).arg(IOREDIS));
    });
    let mut node = Command::new("node");
    node.env("NODE_PATH", home.join("node_modules"));
    node
}

fn needs(program: &str, packages: &str) {
    let there = Command::new(program).arg("--version").output();
    if let Err(error) = there {
        panic!("{program} does not run: {error}\n    install: apt-get install -y {packages}");
    }
}
