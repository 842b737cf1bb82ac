//! `docs/operating.md`, typed from the first line to the last.

#![allow(clippy::unwrap_used)] // Helpers of tests fail as tests do.

mod common;

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use common::{Serving, is_like};

const DOCS: &str = include_str!("../../../docs/operating.md");

/// The ports of the guide: of the HTTP door, and of the admin door.
const PORTS: [&str; 2] = ["8080", "8082"];

struct Guide {
    folder: tempfile::TempDir,
    serving: Option<(Serving, [String; 2])>,
}

impl Guide {
    /// Writes the file that the first line of a block names, and starts a server with it; `next.yaml` is
    /// for one that runs.
    fn write(&mut self, block: &str) {
        let (name, text) = block.split_once('\n').unwrap();
        let name = name.strip_prefix("# ").unwrap();
        let path = self.folder.path().join(name);
        // Where the guide listens, somebody else may.
        let text = PORTS.iter().fold(text.to_owned(), |text, port| {
            text.replace(&format!(":{port}"), ":0")
        });
        std::fs::write(&path, text).unwrap();
        if name != "next.yaml" {
            // The one before has what the next one wants.
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

    fn type_in(&self, line: &str) -> String {
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
            // Where a server is to listen, which is of no concern here.
            .env("TOLLGATE_ADMIN", "127.0.0.1:1")
            .env(
                "TOLLGATE_ADMIN_URL",
                format!("http://127.0.0.1:{}", ports[1]),
            )
            .output()
            .unwrap();
        let complaint = String::from_utf8_lossy(&output.stderr);
        // 1 says no: refused, or different.
        assert!(
            matches!(output.status.code(), Some(0 | 1)),
            "{line}\n{complaint}"
        );
        String::from_utf8(output.stdout).unwrap()
    }
}

/// Whether what was told is what was expected; a line that ends with `…` may be followed by others.
fn are_like(told: &str, expected: &str) -> bool {
    let (told, expected): (Vec<&str>, Vec<&str>) =
        (told.lines().collect(), expected.lines().collect());
    let open = expected.last().is_some_and(|line| line.ends_with('…'));
    let enough = match open {
        true => told.len() >= expected.len(),
        false => told.len() == expected.len(),
    };
    enough
        && told
            .iter()
            .zip(&expected)
            .all(|(line, pattern)| is_like(line, pattern))
}

#[test]
fn the_guide_is_true() {
    let mut guide = Guide {
        folder: tempfile::tempdir().unwrap(),
        serving: None,
    };
    let mut typed = 0;
    let mut untrue = String::new();
    for block in DOCS.split("```").skip(1).step_by(2) {
        if let Some(block) = block.strip_prefix("yaml\n") {
            guide.write(block);
        }
        for example in block
            .strip_prefix("console\n")
            .unwrap_or_default()
            .split("$ ")
            .skip(1)
        {
            let (line, expected) = example.split_once('\n').unwrap();
            let told = guide.type_in(line);
            if !are_like(told.trim_end(), expected.trim_end()) {
                writeln!(untrue, "$ {line}\n{told}").unwrap();
            }
            typed += 1;
        }
    }
    assert!(untrue.is_empty(), "the guide says otherwise:\n{untrue}");
    assert_eq!(typed, DOCS.matches("\n$ ").count());
    assert!(typed > 20);
}
