//! Runs the examples in the docs of the HTTP and admin doors against a server with the rules shown there.

#![allow(clippy::unwrap_used, reason = "a failed helper fails its test")]

mod common;

use std::process::Command;

use common::{Serving, is_like};

/// The ports in the examples: first of the HTTP door, then of the admin door.
const PORTS: [&str; 2] = ["8080", "8082"];

struct Server {
    _serving: Serving,
    /// Keeps the directory of the config file until the end of the test.
    _folder: tempfile::TempDir,
    ports: Vec<(&'static str, String)>,
}

impl Server {
    fn start(rules: &str) -> Server {
        let folder = tempfile::TempDir::new().unwrap();
        let file = folder.path().join("rules.yaml");
        // The ports of the examples may be taken on this machine.
        let rules = PORTS.iter().fold(rules.to_owned(), |rules, port| {
            rules.replace(&format!(":{port}"), ":0")
        });
        std::fs::write(&file, rules).unwrap();
        let file = file.display().to_string();
        let mut serving = Serving::start(&["--admin", "127.0.0.1:0", "--config", &file]);
        let admin = serving.admin();
        let port = |url: &str| url.rsplit_once(':').unwrap().1.to_owned();
        let actual = [port(&serving.url), port(&admin)];
        Server {
            ports: PORTS.into_iter().zip(actual).collect(),
            _serving: serving,
            _folder: folder,
        }
    }

    fn run_line(&self, line: &str) -> String {
        let line = self
            .ports
            .iter()
            .fold(line.to_owned(), |line, (port, actual)| {
                line.replace(&format!(":{port}/"), &format!(":{actual}/"))
            });
        let output = Command::new("bash").args(["-c", &line]).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line}\n{errors}");
        String::from_utf8(output.stdout).unwrap()
    }
}

/// Returns the code blocks of a language, in order.
fn blocks<'a>(docs: &'a str, language: &'a str) -> impl Iterator<Item = &'a str> {
    let fenced = docs.split("```").skip(1).step_by(2);
    fenced.filter_map(move |block| block.strip_prefix(language)?.strip_prefix('\n'))
}

fn examples_give_the_shown_output(docs: &str, wanted: usize) {
    let server = Server::start(blocks(docs, "yaml").next().unwrap());
    let examples: Vec<&str> = blocks(docs, "console")
        .flat_map(|block| block.split("$ ").skip(1))
        .collect();
    assert_eq!(examples.len(), wanted);
    for example in examples {
        let (line, expected) = example.split_once('\n').unwrap();
        let output = server.run_line(line);
        let (output, expected) = (output.trim_end(), expected.trim_end());
        let alike = output.lines().count() == expected.lines().count()
            && output
                .lines()
                .zip(expected.lines())
                .all(|(line, pattern)| is_like(line, pattern));
        assert!(alike, "{line}\n{output}\n--- expected\n{expected}");
    }
}

#[test]
fn http_examples_give_the_shown_output() {
    examples_give_the_shown_output(include_str!("../../../docs/http.md"), 13);
}

#[test]
fn admin_examples_give_the_shown_output() {
    examples_give_the_shown_output(include_str!("../../../docs/admin.md"), 15);
}
