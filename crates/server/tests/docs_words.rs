//! The docs describe every `reason` and `kind` that an answer, a log line or a metric can have.

use tollgate::{Kind, Reason};

const DOCS: [(&str, &str); 2] = [
    ("docs/http.md", include_str!("../../../docs/http.md")),
    (
        "docs/observability.md",
        include_str!("../../../docs/observability.md"),
    ),
];

/// Asserts that each page has a table row or a sentence with each word in code quotes.
fn all_are_described(words: &[&str]) {
    for (page, text) in DOCS {
        let missing: Vec<_> = words
            .iter()
            .filter(|word| !text.contains(&format!("`{word}`")))
            .collect();
        assert!(missing.is_empty(), "{page} does not describe {missing:?}");
    }
}

#[test]
fn every_reason_is_described() {
    all_are_described(&Reason::ALL.map(Reason::name));
}

#[test]
fn every_kind_is_described() {
    all_are_described(&Kind::ALL.map(Kind::name));
}

#[test]
fn grace_is_described() {
    all_are_described(&["grace"]);
}
