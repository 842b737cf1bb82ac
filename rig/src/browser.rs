//! A real browser, without a window.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Stdio};
use std::thread;

use tempfile::TempDir;

/// Opens `url` in Chromium, waits until the scripts of the page have nothing more to do, and returns the
/// page as HTML. The name `rebound.example` resolves to 127.0.0.1.
///
/// # Panics
///
/// When Chromium is not installed; the message says how to install it. When it fails; the message shows its
/// output.
#[must_use]
pub fn open(url: &str) -> String {
    let home = TempDir::with_prefix("tollgate-browser-").expect("a temporary directory");
    let mut command = Command::new("chromium");
    command
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
        ])
        .args(["--disable-dev-shm-usage", "--disable-sync"])
        .args([
            "--disable-background-networking",
            "--disable-component-update",
        ])
        .arg("--host-resolver-rules=MAP rebound.example 127.0.0.1")
        .arg(format!("--user-data-dir={}", home.path().display()))
        // Scripts get this much virtual time, in milliseconds. The time that requests take does not
        // count.
        .args(["--virtual-time-budget=5000", "--dump-dom"])
        .arg(url)
        .env("HOME", home.path())
        .stdin(Stdio::null());
    let output = command.output().unwrap_or_else(|error| {
        panic!(
            "cannot run chromium: {error}\n\
             install: apt-get install -y --no-install-recommends chromium"
        )
    });
    let page = String::from_utf8_lossy(&output.stdout).into_owned();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "chromium failed:\n{log}");
    page
}

/// A web site with one page, on a free port of loopback.
#[derive(Debug)]
pub struct Site {
    listener: TcpListener,
}

impl Site {
    /// Reserves the address.
    ///
    /// # Panics
    ///
    /// When there is no free port.
    #[must_use]
    pub fn new() -> Site {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        Site { listener }
    }

    /// Returns the origin of the page, such as `http://127.0.0.1:20001`.
    ///
    /// # Panics
    ///
    /// When the system does not report the address.
    #[must_use]
    pub fn origin(&self) -> String {
        format!("http://{}", self.address())
    }

    fn address(&self) -> SocketAddr {
        self.listener.local_addr().expect("an address")
    }

    /// Serves a page with this script, opens the page in Chromium, and returns the page as the script has
    /// left it.
    ///
    /// # Panics
    ///
    /// As [`open`].
    #[must_use]
    pub fn run(&self, script: &str) -> String {
        let page = format!("<!doctype html><body><script>{script}</script></body>");
        let answer = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{page}",
            page.len()
        );
        let listener = self.listener.try_clone().expect("a listener");
        let url = self.origin();
        // The thread runs until the process ends, because a browser may ask for an icon at any
        // time.
        thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { break };
                let mut lines = BufReader::new(&stream).lines();
                while lines
                    .next()
                    .is_some_and(|line| line.is_ok_and(|it| !it.is_empty()))
                {}
                let _ = stream.write_all(answer.as_bytes());
            }
        });
        open(&url)
    }
}

impl Default for Site {
    fn default() -> Site {
        Site::new()
    }
}
