//! A `tollgate serve` process for tests.

#![allow(dead_code, reason = "each test file uses a part")]
#![allow(clippy::unwrap_used, reason = "a failed helper fails its test")]

pub(crate) mod load;
pub(crate) mod page;

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

/// A server on a free port. Dropping this value kills the server.
pub(crate) struct Serving {
    pub(crate) child: Child,
    /// The server's output after the line with its address.
    pub(crate) stdout: Option<BufReader<ChildStdout>>,
    pub(crate) url: String,
    /// The server's data directory.
    pub(crate) data: tempfile::TempDir,
}

impl Serving {
    pub(crate) fn start(args: &[&str]) -> Serving {
        Serving::start_with(args, Stdio::inherit())
    }

    /// Starts a server whose log goes to `stderr`.
    pub(crate) fn start_with(args: &[&str], stderr: Stdio) -> Serving {
        Serving::start_at(Path::new("."), args, stderr)
    }

    /// Starts a server in `directory`.
    pub(crate) fn start_in(directory: &Path, args: &[&str]) -> Serving {
        Serving::start_at(directory, args, Stdio::inherit())
    }

    fn start_at(directory: &Path, args: &[&str], stderr: Stdio) -> Serving {
        let data = tempfile::tempdir().unwrap();
        let http: &[&str] = match args.contains(&"--http") {
            true => &[],
            false => &["--http", "127.0.0.1:0"],
        };
        let mut child = Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .arg("serve")
            .args(http)
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

    /// Reads the address of the admin door from the output. May be called once.
    pub(crate) fn admin(&mut self) -> String {
        let lines = self.stdout.as_mut().unwrap().lines().map(Result::unwrap);
        let mut admin = lines.filter_map(|line| Some(line.strip_prefix("admin on ")?.to_owned()));
        admin.next().unwrap()
    }

    pub(crate) fn send_sigterm(&self) {
        self.signal("-TERM");
    }

    pub(crate) fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        let kill = Command::new("kill").args([signal, &pid]).status();
        assert!(kill.unwrap().success());
    }

    /// Sends SIGINT, so the server does not wait for load balancers. Returns the rest of the output, and
    /// the exit code.
    pub(crate) fn interrupt(self) -> (String, Option<i32>) {
        self.signal("-INT");
        self.end()
    }

    /// Waits for the end. Returns the rest of the output, and the exit code.
    pub(crate) fn end(mut self) -> (String, Option<i32>) {
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

/// Whether `line` matches `pattern`. A dot in the pattern is any character, and `…` at its end is any
/// text.
pub(crate) fn is_like(line: &str, pattern: &str) -> bool {
    let (pattern, line) = match pattern.strip_suffix('…') {
        Some(pattern) => (pattern, line.get(..pattern.len()).unwrap_or(line)),
        None => (pattern, line),
    };
    let same = |(byte, wanted): (u8, u8)| wanted == b'.' || byte == wanted;
    line.len() == pattern.len() && line.bytes().zip(pattern.bytes()).all(same)
}

/// Whether the output matches; after a last line that ends with `…`, more lines may follow.
pub(crate) fn are_like(output: &str, expected: &str) -> bool {
    let (output, expected): (Vec<&str>, Vec<&str>) =
        (output.lines().collect(), expected.lines().collect());
    let open = expected.last().is_some_and(|line| line.ends_with('…'));
    let enough = match open {
        true => output.len() >= expected.len(),
        false => output.len() == expected.len(),
    };
    enough
        && output
            .iter()
            .zip(&expected)
            .all(|(line, pattern)| is_like(line, pattern))
}
