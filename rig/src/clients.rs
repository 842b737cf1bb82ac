//! Clients in other languages, downloaded once and cached.

use std::path::PathBuf;
use std::process::Command;

use crate::cache::{self, run};

/// redis-py, as pip names it.
const REDIS_PY: &str = "redis==8.1.0";
/// websockets, as pip names it.
const WEBSOCKETS: &str = "websockets==15.0.1";
/// schemathesis, as pip names it.
const SCHEMATHESIS: &str = "schemathesis==4.32.5";
/// ioredis, as npm names it.
const IOREDIS: &str = "ioredis@6.0.0";

/// Playwright without its own browsers, as npm names it.
const PLAYWRIGHT: &str = "playwright-core@1.65.1";
/// Checks pages for what keeps people from using them, as npm names it.
const AXE: &str = "axe-core@4.14.0";

/// Returns a command that runs Python with redis-py.
///
/// # Panics
///
/// When the download fails; the message says what to install, or shows the output of pip.
#[must_use]
pub fn python() -> Command {
    needs("python3", "python3 python3-pip");
    let home = python_package(REDIS_PY, REDIS_PY, &["--no-deps"]);
    let mut python = Command::new("python3");
    python.env("PYTHONPATH", home);
    python
}

/// Returns a command that runs Python with the library `websockets`.
///
/// # Panics
///
/// When the download fails; the message says what to install, or shows the output of pip.
#[must_use]
pub fn python_with_websockets() -> Command {
    needs("python3", "python3 python3-pip");
    let home = compiled_python_package(WEBSOCKETS);
    let mut python = Command::new("python3");
    python.env("PYTHONPATH", home);
    python
}

/// Returns a command that runs Schemathesis, which makes requests from an OpenAPI description and checks the
/// answers.
///
/// # Panics
///
/// When the download fails; the message says what to install, or shows the output of pip.
#[must_use]
pub fn schemathesis() -> Command {
    needs("python3", "python3 python3-pip");
    let home = compiled_python_package(SCHEMATHESIS);
    let mut schemathesis = Command::new("python3");
    schemathesis.args(["-m", "schemathesis.cli"]);
    schemathesis.env("PYTHONPATH", home);
    schemathesis
}

/// Returns a command that runs Node.js with ioredis.
///
/// # Panics
///
/// When the download fails; the message says what to install, or shows the output of npm.
#[must_use]
pub fn node() -> Command {
    node_with(&[IOREDIS])
}

/// Returns a command that runs Node.js with Playwright, which drives Chromium, and axe, which checks pages for
/// accessibility.
///
/// # Panics
///
/// When the download fails; the message says what to install, or shows the output of npm.
#[must_use]
pub fn playwright() -> Command {
    needs("chromium", "chromium");
    node_with(&[PLAYWRIGHT, AXE])
}

fn node_with(packages: &[&str]) -> Command {
    needs("node", "nodejs npm");
    let home = cache::directory("node", &packages.join("+"), |download| {
        needs("npm", "nodejs npm");
        let mut npm = Command::new("npm");
        npm.args(["install", "--silent", "--no-audit", "--no-fund", "--prefix"]);
        run(npm.arg(download).args(packages));
    });
    let mut node = Command::new("node");
    node.env("NODE_PATH", home.join("node_modules"));
    node
}

/// Installs a Python package with modules that are compiled for one version of Python, and returns its
/// directory.
pub(crate) fn compiled_python_package(package: &str) -> PathBuf {
    let abi = "import sysconfig; print(sysconfig.get_config_var('SOABI'))";
    let abi = run(Command::new("python3").args(["-c", abi]));
    python_package(&format!("{package}-{}", abi.trim()), package, &[])
}

/// Installs a Python package into the cache, and returns its directory.
fn python_package(name: &str, package: &str, options: &[&str]) -> PathBuf {
    cache::directory("python", name, |download| {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet"]).args(options);
        run(pip.arg("--target").arg(download).arg(package));
    })
}

pub(crate) fn needs(program: &str, packages: &str) {
    needs_with(program, "--version", packages);
}

/// Panics unless `program` runs with this argument.
pub(crate) fn needs_with(program: &str, argument: &str, packages: &str) {
    let there = Command::new(program).arg(argument).output();
    if let Err(error) = there {
        panic!("{program} does not run: {error}\n    install: apt-get install -y {packages}");
    }
}
