//! Programs that a command needs besides the Rust toolchain, and how to install them.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::shell::Failure;

/// A program, and the Debian package that contains it.
pub(crate) struct Component {
    program: &'static str,
    package: &'static str,
}

const fn component(program: &'static str, package: &'static str) -> Component {
    Component { program, package }
}

/// For the tests.
pub(crate) const TEST: &[Component] = &[
    component("buildah", "buildah"),
    component("chromium", "chromium"),
    component("curl", "curl"),
    component("docker-compose", "docker-compose"),
    // Builds h2spec.
    component("go", "golang-go"),
    component("h2load", "nghttp2-client"),
    component("nginx", "nginx"),
    component("node", "nodejs"),
    component("npm", "npm"),
    component("openssl", "openssl"),
    component("podman", "podman"),
    component("initdb", "postgresql"),
    component("promtool", "prometheus"),
    component("redis-server", "redis-server"),
    component("redis-sentinel", "redis-sentinel"),
    component("redis-cli", "redis-tools"),
    component("libfaketimeMT.so.1", "libfaketime"),
    component("runc", "runc"),
    component("sqlite3", "sqlite3"),
    component("systemd-analyze", "systemd"),
    component("wrk", "wrk"),
    // Downloads other versions of servers, and programs that Debian does not package.
    component("pip3", "python3-pip"),
];
/// For the fault tests.
pub(crate) const FAULTS: &[Component] = &[
    component("redis-server", "redis-server"),
    component("redis-sentinel", "redis-sentinel"),
    component("redis-cli", "redis-tools"),
    component("libfaketimeMT.so.1", "libfaketime"),
];
/// For the demos.
pub(crate) const DEMO: &[Component] = &[component("redis-server", "redis-server")];
/// For the benchmark of the Redis store.
pub(crate) const BENCH_REDIS: &[Component] = &[
    component("redis-server", "redis-server"),
    component("redis-benchmark", "redis-tools"),
];
/// For the memory of Redis.
pub(crate) const BENCH_SIZES: &[Component] = &[component("redis-server", "redis-server")];
/// For the benchmark of quotas.
pub(crate) const BENCH_QUOTA: &[Component] = &[
    component("initdb", "postgresql"),
    component("redis-server", "redis-server"),
];
/// For the benchmark of the gateway.
pub(crate) const BENCH_GATEWAY: &[Component] = &[
    component("nginx", "nginx"),
    component("redis-server", "redis-server"),
    component("wrk", "wrk"),
];
/// For the benchmark of all doors.
pub(crate) const BENCH_DOORS: &[Component] = &[
    component("redis-server", "redis-server"),
    component("redis-benchmark", "redis-tools"),
    component("wrk", "wrk"),
];
/// For the benchmark of the dashboard.
pub(crate) const BENCH_SEE: &[Component] = &[
    component("chromium", "chromium"),
    component("node", "nodejs"),
    component("npm", "npm"),
    component("wrk", "wrk"),
];
/// To build throttlecrab, a peer of the doors.
pub(crate) const BENCH_PEER: &[Component] = &[component("protoc", "protobuf-compiler")];
/// To count system calls.
pub(crate) const BENCH_CALLS: &[Component] = &[component("perf", "linux-perf")];

/// Installs those of `components` that are missing. The error says which command installs them.
pub(crate) fn ensure(components: &[Component]) -> Result<(), Failure> {
    let missing = missing(components);
    if missing.is_empty() {
        return Ok(());
    }
    let packages: Vec<&str> = missing.iter().map(|it| it.package).collect();
    println!("==> components: installing {}", packages.join(" "));
    if let Some(apt) = Apt::find()
        && !apt.install(&packages)
    {
        // The package lists may be out of date, or missing as in a new container.
        apt.run(&["update"]);
        apt.install(&packages);
    }
    let missing = self::missing(components);
    if missing.is_empty() {
        return Ok(());
    }
    let programs: Vec<&str> = missing.iter().map(|it| it.program).collect();
    let packages: Vec<&str> = missing.iter().map(|it| it.package).collect();
    Err(Failure::new(format!(
        "==> components: {} missing\n    install: sudo apt-get install -y {}",
        programs.join(", "),
        packages.join(" ")
    )))
}

fn missing(components: &[Component]) -> Vec<&Component> {
    let absent = |it: &&Component| !is_on_path(it.program);
    components.iter().filter(absent).collect()
}

fn is_on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // The PATH of ordinary users often lacks `/usr/sbin`, where servers are installed.
    let directories = std::env::split_paths(&path)
        .chain(["/usr/sbin".into()])
        .chain(postgresql())
        .chain(faketime());
    let mut programs = directories.map(|directory| directory.join(program));
    programs.any(|program| program.is_file())
}

/// Returns the directories with PostgreSQL's programs on Debian: one for each version.
fn postgresql() -> impl Iterator<Item = PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql");
    let versions = versions.into_iter().flatten().flatten();
    versions.map(|version| version.path().join("bin"))
}

/// Returns the directories with libfaketime on Debian: one for each architecture.
fn faketime() -> impl Iterator<Item = PathBuf> {
    let architectures = std::fs::read_dir("/usr/lib");
    let architectures = architectures.into_iter().flatten().flatten();
    architectures.map(|it| it.path().join("faketime"))
}

/// `apt-get`, run as root or through `sudo`.
struct Apt {
    sudo: bool,
}

impl Apt {
    fn find() -> Option<Apt> {
        if !is_on_path("apt-get") {
            return None;
        }
        if is_root() {
            return Some(Apt { sudo: false });
        }
        let sudo = is_on_path("sudo") && succeeds(Command::new("sudo").args(["-n", "true"]));
        sudo.then_some(Apt { sudo })
    }

    fn install(&self, packages: &[&str]) -> bool {
        let mut args = vec!["install", "-y", "--no-install-recommends"];
        args.extend(packages);
        self.run(&args)
    }

    fn run(&self, args: &[&str]) -> bool {
        let mut command = if self.sudo {
            let mut sudo = Command::new("sudo");
            sudo.args(["-n", "env", "DEBIAN_FRONTEND=noninteractive", "apt-get"]);
            sudo
        } else {
            let mut apt = Command::new("apt-get");
            apt.env("DEBIAN_FRONTEND", "noninteractive");
            apt
        };
        command.arg("-q").args(args);
        command.status().is_ok_and(|status| status.success())
    }
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

fn succeeds(command: &mut Command) -> bool {
    let quiet = command.stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}
