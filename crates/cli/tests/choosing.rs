//! The path of a newcomer, from an access log to a shadow rule to an enforced one: only the commands of
//! `docs/choosing.md`, in their order, with a real server.

#![allow(clippy::unwrap_used, reason = "a failed helper fails its test")]

mod common;

use common::page;

#[test]
fn commands_of_the_page_lead_from_a_log_to_an_enforced_rule() {
    let folder = tempfile::tempdir().unwrap();
    let page = include_str!("../../../docs/choosing.md");
    assert_eq!(page::run(page, folder.path()), 16);
    let enforced = std::fs::read_to_string(folder.path().join("rules.yaml")).unwrap();
    assert!(enforced.contains("state: enforce"), "{enforced}");
}
