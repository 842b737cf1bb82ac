//! A server as the command starts it.

#![allow(dead_code)] // Each test file uses its share.
#![allow(clippy::unwrap_used)] // Helpers of tests fail as tests do.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

/// A server on a free port. It ends with this value.
pub(crate) struct Serving {
    pub(crate) child: Child,
    /// What it prints after it has said where it listens.
    pub(crate) stdout: Option<BufReader<ChildStdout>>,
    pub(crate) url: String,
    /// Where it keeps its audit trail.
    pub(crate) data: tempfile::TempDir,
}

impl Serving {
    pub(crate) fn start(args: &[&str]) -> Serving {
        Serving::start_with(args, Stdio::inherit())
    }

    /// The same, with its log going somewhere else.
    pub(crate) fn start_with(args: &[&str], stderr: Stdio) -> Serving {
        Serving::start_at(Path::new("."), args, stderr)
    }

    /// The same in another directory.
    pub(crate) fn start_in(directory: &Path, args: &[&str]) -> Serving {
        Serving::start_at(directory, args, Stdio::inherit())
    }

    fn start_at(directory: &Path, args: &[&str], stderr: Stdio) -> Serving {
        let data = tempfile::tempdir().unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .args(["serve", "--http", "127.0.0.1:0"])
            .args(args)
            .current_dir(directory)
            .env_remove("TOLLGATE_CONFIG")
            .env("TOLLGATE_DATA", data.path())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let url = loop {
            let mut line = String::new();
            assert_ne!(stdout.read_line(&mut line).unwrap(), 0, "the server ended");
            if let Some(url) = line.trim().strip_prefix("listening on ") {
                break url.to_owned();
            }
        };
        Serving {
            child,
            stdout: Some(stdout),
            url,
            data,
        }
    }

    /// Where the admin door is: to be asked once.
    pub(crate) fn admin(&mut self) -> String {
        let lines = self.stdout.as_mut().unwrap().lines().map(Result::unwrap);
        let mut admin = lines.filter_map(|line| Some(line.strip_prefix("admin on ")?.to_owned()));
        admin.next().unwrap()
    }

    /// Sends SIGTERM.
    pub(crate) fn tell_to_stop(&self) {
        self.signal("-TERM");
    }

    pub(crate) fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        let kill = Command::new("kill").args([signal, &pid]).status();
        assert!(kill.unwrap().success());
    }

    /// Sends SIGTERM and returns the rest of what the server printed, and its exit code.
    pub(crate) fn terminate(mut self) -> (String, Option<i32>) {
        self.tell_to_stop();
        let mut rest = String::new();
        let mut stdout = self.stdout.take().unwrap();
        stdout.read_to_string(&mut rest).unwrap();
        (rest, self.child.wait().unwrap().code())
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether `line` is what `pattern` says: a dot is any character, and `…` at the end any rest.
pub(crate) fn is_like(line: &str, pattern: &str) -> bool {
    let (pattern, line) = match pattern.strip_suffix('…') {
        Some(pattern) => (pattern, line.get(..pattern.len()).unwrap_or(line)),
        None => (pattern, line),
    };
    let same = |(byte, wanted): (u8, u8)| wanted == b'.' || byte == wanted;
    line.len() == pattern.len() && line.bytes().zip(pattern.bytes()).all(same)
}
