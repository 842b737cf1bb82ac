//! The examples of the docs of HTTP doors, typed as they stand to a server with their rules.

#![allow(clippy::unwrap_used)] // Helpers of tests fail as tests do.

mod common;

use std::process::Command;

use common::{Serving, is_like};

/// The ports of the examples: of the HTTP door, and of the admin door.
const PORTS: [&str; 2] = ["8080", "8082"];

struct Server {
    _serving: Serving,
    /// Of its config.
    _folder: tempfile::TempDir,
    ports: Vec<(&'static str, String)>,
}

impl Server {
    fn start(rules: &str) -> Server {
        let folder = tempfile::TempDir::new().unwrap();
        let file = folder.path().join("rules.yaml");
        // Where the examples listen, somebody else may.
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

    fn type_in(&self, line: &str) -> String {
        let line = self
            .ports
            .iter()
            .fold(line.to_owned(), |line, (port, actual)| {
                line.replace(&format!(":{port}/"), &format!(":{actual}/"))
            });
        let output = Command::new("bash").args(["-c", &line]).output().unwrap();
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line}\n{complaint}");
        String::from_utf8(output.stdout).unwrap()
    }
}

/// The blocks of a language, in order.
fn blocks<'a>(docs: &'a str, language: &'a str) -> impl Iterator<Item = &'a str> {
    let fenced = docs.split("```").skip(1).step_by(2);
    fenced.filter_map(move |block| block.strip_prefix(language)?.strip_prefix('\n'))
}

fn the_examples_work(docs: &str, wanted: usize) {
    let server = Server::start(blocks(docs, "yaml").next().unwrap());
    let examples: Vec<&str> = blocks(docs, "console")
        .flat_map(|block| block.split("$ ").skip(1))
        .collect();
    assert_eq!(examples.len(), wanted);
    for example in examples {
        let (line, expected) = example.split_once('\n').unwrap();
        let told = server.type_in(line);
        let (told, expected) = (told.trim_end(), expected.trim_end());
        let alike = told.lines().count() == expected.lines().count()
            && told
                .lines()
                .zip(expected.lines())
                .all(|(line, pattern)| is_like(line, pattern));
        assert!(alike, "{line}\n{told}\n--- is not\n{expected}");
    }
}

#[test]
fn http() {
    the_examples_work(include_str!("../../../docs/http.md"), 11);
}

#[test]
fn admin() {
    the_examples_work(include_str!("../../../docs/admin.md"), 9);
}
