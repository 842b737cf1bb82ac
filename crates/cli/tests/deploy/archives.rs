//! The archives of a release.

use std::fs;
use std::path::Path;
use std::process::Command;

use tollgate_rig::tools;

use crate::{checkout, copy_program, fail, run};

/// Makes the archives of a program.
fn dist(program: &Path, out: &Path, umask: &str) {
    let line = format!("umask {umask}; exec \"$0\" --program \"$1\" --out \"$2\"");
    let mut script = Command::new("bash");
    script
        .args(["-c", &line])
        .arg(checkout("deploy/dist.sh"))
        .arg(program)
        .arg(out);
    run(script.env("SOURCE_DATE_EPOCH", "1700000000"));
}

fn archive(out: &Path, suffix: &str) -> std::path::PathBuf {
    let mut files = fs::read_dir(out).unwrap().map(|it| it.unwrap().path());
    let found = files.find(|it| it.to_str().unwrap().ends_with(suffix));
    found.unwrap_or_else(|| panic!("no {suffix} in {}", out.display()))
}

#[test]
fn script_is_clean() {
    run(Command::new(tools::shellcheck()).arg(checkout("deploy/dist.sh")));
    let printed = fail(Command::new(checkout("deploy/dist.sh")).arg("--ouy"));
    assert!(printed.contains("unknown argument: --ouy"), "{printed}");
}

#[test]
fn archives_are_reproducible_and_complete() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (folder.path().join("first"), folder.path().join("second"));
    let program = copy_program(folder.path());
    dist(&program, &first, "022");
    // Neither the mask of modes nor the time of the files changes the bytes.
    dist(&program, &second, "077");
    for suffix in ["SHA256SUMS", ".tar.gz", ".tgz"] {
        let same = fs::read(archive(&first, suffix)).unwrap()
            == fs::read(archive(&second, suffix)).unwrap();
        assert!(same, "{suffix} differs");
    }
    let mut check = Command::new("sha256sum");
    run(check
        .args(["--check", "--strict", "SHA256SUMS"])
        .current_dir(&first));

    let mut list = Command::new("tar");
    list.args([
        "--list",
        "--verbose",
        "--numeric-owner",
        "--utc",
        "--full-time",
    ]);
    let listed = run(list.arg("--file").arg(archive(&first, ".tar.gz")));
    let names: Vec<&str> = listed
        .lines()
        .map(|line| line.rsplit(' ').next().unwrap())
        .collect();
    assert!(names.is_sorted(), "{listed}");
    for line in listed.lines() {
        let is_fixed = line.contains(" 0/0 ") && line.contains(" 2023-11-14 22:13:20 ");
        assert!(is_fixed, "{line}");
    }
    for wanted in ["/tollgate", "/LICENSE-MIT", "/systemd/tollgate.service"] {
        assert!(names.iter().any(|it| it.ends_with(wanted)), "{listed}");
    }

    let mut unpack = Command::new("tar");
    let unpacked = folder.path().join("unpacked");
    fs::create_dir(&unpacked).unwrap();
    unpack.args(["--extract", "--strip-components=1", "--file"]);
    run(unpack
        .arg(archive(&first, ".tar.gz"))
        .current_dir(&unpacked));
    let version = run(Command::new(unpacked.join("tollgate")).arg("--version"));
    assert_eq!(
        version.trim(),
        concat!("tollgate ", env!("CARGO_PKG_VERSION"))
    );
    // The archive of the chart is one that helm takes.
    let mut lint = Command::new(tools::helm());
    run(lint.args(["lint", "--strict"]).arg(archive(&first, ".tgz")));
}
