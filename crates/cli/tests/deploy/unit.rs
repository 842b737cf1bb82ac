//! The systemd unit.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::{checkout, output, run, tollgate};

const UNIT: &str = "deploy/systemd/tollgate.service";
/// The highest exposure of the service that `systemd-analyze security` may find, in tenths: 0 is the safest, 100
/// the worst.
const MAX_EXPOSURE: &str = "--threshold=15";

/// Makes a root directory with the unit, the programs that it names, and the targets of systemd.
fn root_with(unit: &str) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for directory in [
        "usr/bin",
        "bin",
        "etc/systemd/system",
        "usr/lib/systemd/system",
    ] {
        fs::create_dir_all(root.path().join(directory)).unwrap();
    }
    fs::copy(tollgate(), root.path().join("usr/bin/tollgate")).unwrap();
    fs::copy("/bin/kill", root.path().join("bin/kill")).unwrap();
    let place = root.path().join("etc/systemd/system/tollgate.service");
    fs::write(place, unit).unwrap();
    let system = ["/usr/lib/systemd/system", "/lib/systemd/system"];
    let system = system.into_iter().find(|it| Path::new(it).is_dir());
    let system = system.expect("systemd: apt-get install -y systemd");
    // A symbolic link to the directory would be read within the new root.
    for entry in fs::read_dir(system).unwrap() {
        let path = entry.unwrap().path();
        if path.extension() == Some("target".as_ref()) && path.is_file() {
            let copy = root.path().join("usr/lib/systemd/system");
            fs::copy(&path, copy.join(path.file_name().unwrap())).unwrap();
        }
    }
    root
}

/// Returns what `systemd-analyze verify` complains about.
fn complaints(unit: &str) -> String {
    let root = root_with(unit);
    let mut verify = Command::new("systemd-analyze");
    verify.arg("verify").arg("--man=no");
    verify
        .arg("--root")
        .arg(root.path())
        .arg("tollgate.service");
    let output = output(&mut verify);
    let printed = [output.stdout, output.stderr].concat();
    String::from_utf8(printed).unwrap()
}

#[test]
fn systemd_accepts_the_unit() {
    let unit = fs::read_to_string(checkout(UNIT)).unwrap();
    assert_eq!(complaints(&unit), "");
    // A wrong key is only a warning, so an empty output matters more than the exit code.
    let wrong = unit.replace("ProtectHome=", "ProtectHom=");
    assert!(complaints(&wrong).contains("ProtectHom"));
}

#[test]
fn service_is_exposed_to_little() {
    let mut security = Command::new("systemd-analyze");
    security.args(["security", "--no-pager", "--offline=true", MAX_EXPOSURE]);
    run(security.arg(checkout(UNIT)));
}
