//! The exact result for each file: the config for a file in `examples`, the errors for a file in
//! `wrong`.
//!
//! After a deliberate change run `TOLLGATE_BLESS=1 cargo test -p tollgate-import --test snapshots` and
//! read the difference.

#![allow(clippy::unwrap_used, clippy::panic)] // Test helpers may panic.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use tollgate_import::{Domains, Imported, Source, envoy_ratelimit, limitador};
use tollgate_rules::ConfigError;

/// Lists the files of a folder for both originals, each with the name of the original.
fn cases(folder: &str) -> Vec<(&'static str, PathBuf)> {
    let mut cases = Vec::new();
    for original in ["envoy-ratelimit", "limitador"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests")
            .join(folder)
            .join(original);
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|it| it == "yaml") {
                cases.push((original, path));
            }
        }
    }
    cases.sort();
    cases
}

fn import(original: &str, path: &Path) -> Result<Imported, Vec<ConfigError>> {
    let text = std::fs::read_to_string(path).unwrap();
    let name = path.file_name().unwrap().to_str().unwrap();
    let source = Source { name, text: &text };
    match original {
        "limitador" => limitador(&source),
        _ => envoy_ratelimit(&[source], Domains::Once),
    }
}

fn compare(cases: Vec<(PathBuf, String)>) {
    let bless = std::env::var_os("TOLLGATE_BLESS").is_some();
    let mut differences = String::new();
    for (path, found) in cases {
        if bless {
            std::fs::write(&path, &found).unwrap();
        }
        let expected = std::fs::read_to_string(&path).unwrap_or_default();
        if found != expected {
            let name = path.display();
            writeln!(
                differences,
                "--- {name}\nexpected:\n{expected}\nfound:\n{found}"
            )
            .unwrap();
        }
    }
    assert!(differences.is_empty(), "{differences}");
}

#[test]
fn examples_give_the_expected_configs() {
    let cases = cases("examples");
    assert!(cases.len() >= 5);
    let results = cases.into_iter().map(|(original, path)| {
        let imported = import(original, &path).unwrap();
        (path.with_extension("txt"), imported.yaml)
    });
    compare(results.collect());
}

#[test]
fn examples_are_valid_and_contain_their_notes() {
    for (original, path) in cases("examples") {
        let imported = import(original, &path).unwrap();
        let config = tollgate_config::parse("imported.yaml", &imported.yaml, &|_| None).unwrap();
        assert_eq!(config.policy.rules.len(), imported.rules);
        assert!(imported.rules > 0);
        for note in &imported.notes {
            assert!(imported.yaml.contains(&format!("# - {note}\n")), "{note}");
        }
    }
}

#[test]
fn wrong_files_give_the_expected_errors() {
    let cases = cases("wrong");
    assert!(cases.len() >= 15);
    let results = cases.into_iter().map(|(original, path)| {
        let errors = import(original, &path)
            .err()
            .unwrap_or_else(|| panic!("{} is accepted", path.display()));
        let texts: Vec<String> = errors.iter().map(|error| format!("{error}\n")).collect();
        (path.with_extension("txt"), texts.join("\n"))
    });
    compare(results.collect());
}

#[test]
fn every_error_has_a_place_and_a_remedy() {
    for (original, path) in cases("wrong") {
        for error in import(original, &path).unwrap_err() {
            assert!(!error.problems().is_empty());
            for problem in error.problems() {
                assert!(problem.position().is_some(), "{}", problem.message());
                assert!(problem.help().is_some(), "{}", problem.message());
            }
        }
    }
}
