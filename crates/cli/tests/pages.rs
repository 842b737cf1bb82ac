//! Runs the pages of the docs whose commands need no server, and the patterns in `examples/patterns`.

#![allow(clippy::unwrap_used, reason = "a failed helper fails its test")]

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::page;

#[test]
fn testing_page_gives_the_shown_output() {
    let folder = tempfile::tempdir().unwrap();
    let page = include_str!("../../../docs/testing.md");
    assert_eq!(page::run(page, folder.path()), 5);
}

#[test]
fn simulation_page_gives_the_shown_output() {
    let folder = tempfile::tempdir().unwrap();
    let page = include_str!("../../../docs/simulation.md");
    assert_eq!(page::run(page, folder.path()), 4);
}

/// Returns the files of a folder whose names end with `end`, in order.
fn files(folder: &Path, end: &str) -> Vec<PathBuf> {
    let files = std::fs::read_dir(folder).unwrap();
    let files = files.map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = files
        .filter(|path| path.to_str().unwrap().ends_with(end))
        .collect();
    files.sort();
    files
}

#[test]
fn every_pattern_is_valid_and_passes_its_tests() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/patterns");
    let tests = files(&folder, ".test.yaml");
    let configs: Vec<PathBuf> = files(&folder, ".yaml")
        .into_iter()
        .filter(|path| !tests.contains(path))
        .collect();
    assert!(configs.len() >= 7, "{configs:?}");
    for config in &configs {
        let test = config.with_extension("test.yaml");
        assert!(
            tests.contains(&test),
            "{} has no test file",
            config.display()
        );
    }
    for (command, paths) in [("validate", &configs), ("test", &tests)] {
        let output = Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .arg(command)
            .args(paths)
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command}: {printed}");
        assert_eq!(printed, "", "{command}");
    }
}

#[test]
fn fair_example_is_valid_and_passes_its_tests() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/fair");
    for (command, file) in [("validate", "fair.yaml"), ("test", "fair.test.yaml")] {
        let output = Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .args([command, file])
            .current_dir(&folder)
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        let failed = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command}: {printed}{failed}");
    }
}

#[test]
fn exit_codes_tell_failed_tests_from_wrong_files() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        std::fs::write(folder.path().join(name), text).unwrap();
    };
    write("rules.yaml", "version: 1\nrules: []\n");
    write(
        "fails.yaml",
        "version: 1\nconfig: rules.yaml\ntests: [{ name: a, steps: [{ expect: denied }] }]\n",
    );
    write(
        "wrong.yaml",
        "version: 1\nconfig: rules.yaml\ntests: [{ nme: a }]\n",
    );
    write(
        "lost.yaml",
        "version: 1\nconfig: none.yaml\ntests: [{ name: a, steps: [] }]\n",
    );
    write("free.yaml", "version: 1\ntests: [{ name: a, steps: [] }]\n");
    let run = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .arg("test")
            .args(args)
            .current_dir(folder.path())
            .output()
            .unwrap();
        let printed = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), printed)
    };
    let (code, printed) = run(&["fails.yaml", "--junit", "report.xml"]);
    assert_eq!(code, Some(1), "{printed}");
    assert!(
        printed.starts_with("fails.yaml:3:38: expected denied"),
        "{printed}"
    );
    let report = std::fs::read_to_string(folder.path().join("report.xml")).unwrap();
    assert!(
        report.contains("<failure message=\"expected denied, but"),
        "{report}"
    );
    for (file, problem) in [
        (
            "wrong.yaml",
            "wrong.yaml:3:11: `nme` is not a field of a test",
        ),
        ("lost.yaml", "none.yaml: "),
        (
            "free.yaml",
            "error: free.yaml does not say which config to test",
        ),
        ("none.test.yaml", "error: failed to read none.test.yaml"),
    ] {
        let (code, printed) = run(&[file]);
        assert_eq!(code, Some(2), "{file}: {printed}");
        assert!(printed.contains(problem), "{file}: {printed}");
    }
    let (code, printed) = run(&["free.yaml", "--config", "rules.yaml", "--filter", "b"]);
    assert_eq!(
        (code, printed.contains("no test has \"b\"")),
        (Some(2), true),
        "{printed}"
    );
}
