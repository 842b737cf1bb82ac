//! The examples of `docs/resp.md`, run as they stand.

#![allow(clippy::unwrap_used)] // Test helpers may panic.

mod resp_door;

use std::process::Command;

use resp_door::{Door, run};
use tollgate_rig::clients;
use tollgate_server::resp::Options;

const DOCS: &str = include_str!("../../../docs/resp.md");
/// The port that the examples use.
const PORT: &str = "6390";

/// Returns the blocks of a language, in order.
fn blocks(language: &str) -> impl Iterator<Item = &'static str> {
    let fenced = DOCS.split("```").skip(1).step_by(2);
    fenced.filter_map(move |block| block.strip_prefix(language)?.strip_prefix('\n'))
}

fn door() -> Door {
    let rules = blocks("yaml").next().unwrap();
    Door::with(rules, Options::default(), None)
}

/// Returns whether `line` matches `pattern`, whose dots stand for any characters.
fn is_like(line: &str, pattern: &str) -> bool {
    line.len() == pattern.len()
        && line
            .bytes()
            .zip(pattern.bytes())
            .all(|(byte, wanted)| wanted == b'.' || byte == wanted)
}

#[test]
fn examples_are_answered_as_shown() {
    let door = door();
    let port = door.address.port().to_string();
    let mut typed = 0;
    for block in blocks("console") {
        for example in block.split("$ ").skip(1) {
            let (command, expected) = example.split_once('\n').unwrap();
            // Print the answers as in a terminal.
            let line = command.replace("redis-cli", "redis-cli --no-raw");
            let line = line.replace(PORT, &port);
            let told = run(Command::new("sh").args(["-c", &line]));
            let (told, expected) = (told.trim_end(), expected.trim_end());
            let alike = told.lines().count() == expected.lines().count()
                && told
                    .lines()
                    .zip(expected.lines())
                    .all(|(line, pattern)| is_like(line, pattern));
            assert!(alike, "{command}\n{told}\n--- is not\n{expected}");
            typed += 1;
        }
    }
    assert_eq!(typed, 9);
}

#[test]
fn programs_run() {
    let door = door();
    let port = door.address.port().to_string();
    let python = blocks("python").next().unwrap().replace(PORT, &port);
    run(clients::python().args(["-c", &python]));
    let js = blocks("js").next().unwrap().replace(PORT, &port);
    run(clients::node().args(["-e", &js]));
}
