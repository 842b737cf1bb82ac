//! The example of the docs is true.

#![allow(clippy::unwrap_used)] // Helpers of tests fail as tests do.

use tollgate_import::{Domains, Source, envoy_ratelimit};

#[test]
fn the_example_becomes_what_the_docs_say() {
    let docs = include_str!("../../../docs/import.md");
    let mut blocks = docs
        .split("```")
        .skip(1)
        .step_by(2)
        .filter_map(|block| block.strip_prefix("yaml\n"));
    let (text, expected) = (blocks.next().unwrap(), blocks.next().unwrap());
    let source = Source {
        name: "mail.yaml",
        text,
    };
    let imported = envoy_ratelimit(&[source], Domains::Once).unwrap();
    assert_eq!(imported.yaml, expected);
}
