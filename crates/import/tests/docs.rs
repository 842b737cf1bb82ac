//! The example in the documentation matches the output.

#![allow(clippy::unwrap_used)] // Test helpers may panic.

use tollgate_import::{Domains, Source, envoy_ratelimit};

#[test]
fn example_of_the_docs_gives_the_shown_config() {
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
