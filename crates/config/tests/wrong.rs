//! Every wrong config of `tests/wrong`, and the exact text of its errors.
//!
//! Each `case.yaml` has a `case.txt`. After a deliberate change of wording run
//! `TOLLGATE_BLESS=1 cargo test -p tollgate-config --test wrong` and read the difference.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

fn cases() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/wrong");
    let mut cases: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "yaml")
        })
        .collect();
    cases.sort();
    cases
}

#[test]
fn every_wrong_config_is_rejected_with_the_expected_message() {
    let bless = std::env::var_os("TOLLGATE_BLESS").is_some();
    let mut differences = String::new();
    let cases = cases();
    assert!(cases.len() >= 40, "only {} cases", cases.len());
    for case in cases {
        let text = std::fs::read_to_string(&case).unwrap();
        let found = match tollgate_config::parse("rules.yaml", &text, &|_| None) {
            Ok(_) => "accepted\n".to_owned(),
            Err(error) => format!("{error}\n"),
        };
        let expected_path = case.with_extension("txt");
        if bless {
            std::fs::write(&expected_path, &found).unwrap();
        }
        let expected = std::fs::read_to_string(&expected_path).unwrap_or_default();
        if found != expected {
            let name = case.file_name().unwrap().to_string_lossy();
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
fn every_problem_has_a_position_and_a_remedy() {
    for case in cases() {
        let text = std::fs::read_to_string(&case).unwrap();
        let name = case.display();
        let error = tollgate_config::parse("rules.yaml", &text, &|_| None)
            .err()
            .unwrap_or_else(|| panic!("{name} is accepted"));
        assert!(!error.problems().is_empty(), "{name}");
        let (plain, color) = (error.to_string(), error.render_color());
        for problem in error.problems() {
            let (line, column) = problem.position().expect("every problem has a position");
            assert!(
                plain.contains(&format!("rules.yaml:{line}:{column}: ")),
                "{name}"
            );
            assert!(problem.help().is_some(), "{name}: {}", problem.message());
            assert!(!problem.message().is_empty(), "{name}");
        }
        assert!(!color.is_empty(), "{name}");
        assert!(
            !plain.contains("hunter2") && !color.contains("hunter2"),
            "{name}"
        );
    }
}
