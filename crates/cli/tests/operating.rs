//! Runs every command of `docs/operating.md` and compares the output.

#![allow(clippy::unwrap_used, reason = "a failed helper fails its test")]

mod common;

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use common::{Serving, are_like};

const DOCS: &str = include_str!("../../../docs/operating.md");

/// The ports in the guide: first of the HTTP door, then of the admin door.
const PORTS: [&str; 2] = ["8080", "8082"];

struct Guide {
    folder: tempfile::TempDir,
    serving: Option<(Serving, [String; 2])>,
}

impl Guide {
    /// Writes the file named in the first line of a block, and starts a server with it. `next.yaml` is only
    /// written: the running server reads it later.
    fn write(&mut self, block: &str) {
        let (name, text) = block.split_once('\n').unwrap();
        let name = name.strip_prefix("# ").unwrap();
        let path = self.folder.path().join(name);
        // The ports of the guide may be taken on this machine.
        let text = PORTS.iter().fold(text.to_owned(), |text, port| {
            text.replace(&format!(":{port}"), ":0")
        });
        std::fs::write(&path, text).unwrap();
        if name != "next.yaml" {
            // The previous server uses the same files.
            drop(self.serving.take());
            let file = path.display().to_string();
            let data = self.folder.path().join("data").display().to_string();
            let args = ["--admin", "127.0.0.1:0", "--config", &file, "--data", &data];
            let mut serving = Serving::start_in(self.folder.path(), &args);
            let admin = serving.admin();
            let port = |url: &str| url.rsplit_once(':').unwrap().1.to_owned();
            let ports = [port(&serving.url), port(&admin)];
            self.serving = Some((serving, ports));
        }
    }

    fn run_line(&self, line: &str) -> String {
        let (_, ports) = self.serving.as_ref().unwrap();
        let line = PORTS
            .iter()
            .zip(ports)
            .fold(line.to_owned(), |line, (port, actual)| {
                line.replace(&format!(":{port}"), &format!(":{actual}"))
            });
        let program = Path::new(env!("CARGO_BIN_EXE_tollgate"));
        let path = format!(
            "{}:{}",
            program.parent().unwrap().display(),
            std::env::var("PATH").unwrap()
        );
        let output = Command::new("bash")
            .args(["-c", &line])
            .current_dir(self.folder.path())
            .env("PATH", path)
            // `serve` reads the address of its admin door from this variable. The other commands must
            // not call that address.
            .env("TOLLGATE_ADMIN", "127.0.0.1:1")
            .env(
                "TOLLGATE_ADMIN_URL",
                format!("http://127.0.0.1:{}", ports[1]),
            )
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        // Exit code 1 is a negative result: denied, or different.
        assert!(
            matches!(output.status.code(), Some(0 | 1)),
            "{line}\n{errors}"
        );
        String::from_utf8(output.stdout).unwrap()
    }
}

#[test]
fn commands_of_the_guide_give_the_shown_output() {
    let mut guide = Guide {
        folder: tempfile::tempdir().unwrap(),
        serving: None,
    };
    let mut commands = 0;
    let mut wrong = String::new();
    for block in DOCS.split("```").skip(1).step_by(2) {
        if let Some(block) = block.strip_prefix("yaml\n") {
            guide.write(block);
        }
        if let Some(block) = block.strip_prefix("sh\n") {
            // Only the start of a server, and the address of another machine.
            let starts = ["tollgate serve ", "export TOLLGATE_ADMIN_URL=https://10."];
            assert!(
                starts.iter().any(|start| block.starts_with(start)),
                "{block}"
            );
        }
        for example in block
            .strip_prefix("console\n")
            .unwrap_or_default()
            .split("$ ")
            .skip(1)
        {
            let (line, expected) = example.split_once('\n').unwrap();
            let output = guide.run_line(line);
            if !are_like(output.trim_end(), expected.trim_end()) {
                writeln!(wrong, "$ {line}\n{output}").unwrap();
            }
            commands += 1;
        }
    }
    assert!(wrong.is_empty(), "the guide shows another output:\n{wrong}");
    assert_eq!(commands, DOCS.matches("\n$ ").count());
    assert!(commands > 20);
}
