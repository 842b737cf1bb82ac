//! Runs the pages of the docs whose commands need no server.

#![allow(clippy::unwrap_used, reason = "a failed helper fails its test")]

mod common;

use common::page;

#[test]
fn testing_page_gives_the_shown_output() {
    let folder = tempfile::tempdir().unwrap();
    let page = include_str!("../../../docs/testing.md");
    assert_eq!(page::run(page, folder.path()), 5);
}
