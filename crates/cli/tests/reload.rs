//! `tollgate serve` while its config changes, and `tollgate audit` afterwards.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failed helper fails its test"
)]

mod common;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use common::Serving;
use serde_json::Value;
use tollgate_rig::wait;

struct Server {
    serving: Serving,
    admin: String,
    folder: tempfile::TempDir,
}

fn rules(limit: &str) -> String {
    format!(
        "version: 1\nserver: {{ http: 127.0.0.1:8080 }}\nrules:\n\
         \x20 - {{ id: api, algorithm: fixed-window, limit: {limit}, window: 30d }}\n"
    )
}

impl Server {
    fn start() -> Server {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("rules.yaml");
        std::fs::write(&file, rules("5")).unwrap();
        let file = file.display().to_string();
        Server::with(folder, &["--config", &file])
    }

    fn with(folder: tempfile::TempDir, args: &[&str]) -> Server {
        let args = [args, &["--admin", "127.0.0.1:0"]].concat();
        let log = File::create(folder.path().join("log")).unwrap();
        let mut serving = Serving::start_with(&args, log.into());
        Server {
            admin: serving.admin(),
            serving,
            folder,
        }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("rules.yaml")
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    fn config(&self) -> Value {
        let mut answer = ureq::get(format!("{}/readyz", self.serving.url))
            .call()
            .unwrap();
        let text = answer.body_mut().read_to_string().unwrap();
        serde_json::from_str::<Value>(&text).unwrap()["config"].clone()
    }

    /// Waits until the condition holds.
    fn wait(&self, what: &str, holds: impl Fn(&Server) -> bool) {
        let held = wait::at_most(Duration::from_secs(20), || holds(self).then_some(()));
        assert!(held.is_some(), "{what}: {}\n{}", self.config(), self.log());
    }

    fn wait_for_change(&self, change: impl Fn()) {
        let before = self.config()["version"].clone();
        change();
        self.wait("another config", |it| it.config()["version"] != before);
    }

    fn audit(&self, args: &[&str]) -> Output {
        audit(self.serving.data.path(), args)
    }
}

fn audit(data: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["audit", "--data"])
        .arg(data)
        .args(args)
        .output()
        .unwrap()
}

fn printed(output: &Output) -> String {
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complaint}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn changed_file_is_applied_and_a_bad_one_is_rejected() {
    let server = Server::start();
    server.wait_for_change(|| std::fs::write(server.file(), rules("6")).unwrap());
    // A flag, not the file, sets the address of the door. So no restart is needed.
    assert_eq!(server.config()["needsRestart"], serde_json::json!([]));
    std::fs::write(server.file(), rules("many")).unwrap();
    server.wait("rejected", |it| it.config().get("refused").is_some());
    let refused = server.config()["refused"].as_str().unwrap().to_owned();
    let place = format!("{}:4:", server.file().display());
    assert!(refused.starts_with(&place), "{refused}");
    assert!(server.log().contains(&place), "{}", server.log());
    std::fs::write(server.file(), rules("6")).unwrap();
    server.wait("accepted again", |it| it.config().get("refused").is_none());

    let table = printed(&server.audit(&[]));
    let lines: Vec<&str> = table.lines().filter(|it| !it.starts_with(' ')).collect();
    let [refused, applied] = lines[..] else {
        panic!("{table}");
    };
    assert!(refused.contains("Z  file  config.refused"), "{table}");
    assert!(applied.contains("Z  file  config.reload"), "{table}");
}

#[test]
fn signal_and_admin_call_reload_the_file() {
    let server = Server::start();
    server.wait_for_change(|| {
        std::fs::write(server.file(), rules("6")).unwrap();
        server.serving.signal("-HUP");
    });
    std::fs::write(server.file(), rules("7")).unwrap();
    let url = format!("{}/v1/reload", server.admin);
    let mut answer = ureq::post(url)
        .send(r#"{"reason":"more for all"}"#)
        .unwrap();
    let answer = answer.body_mut().read_to_string().unwrap();
    assert!(answer.contains(r#""outcome":"applied""#), "{answer}");
    assert!(answer.contains(r#""ids":["api"]"#), "{answer}");

    let json = printed(&server.audit(&["--json", "--what", "config"]));
    let entries: Vec<Value> = json
        .lines()
        .map(|it| serde_json::from_str(it).unwrap())
        .collect();
    let told: Vec<_> = entries.iter().map(|it| [&it["who"], &it["why"]]).collect();
    assert_eq!(told[0], ["anonymous", "more for all"]);
    assert_eq!(told[1][0], "signal");
    assert_eq!(entries[0]["from"]["version"], entries[1]["to"]["version"]);

    let table = printed(&server.audit(&["--limit", "1", "--since", "1h"]));
    assert!(
        table.contains("anonymous  config.reload  more for all\n"),
        "{table}"
    );
    assert!(
        table.ends_with("More entries exist: use --limit and --since.\n"),
        "{table}"
    );
    assert_eq!(printed(&server.audit(&["--who", "nobody"])), "");
    let wrong = server.audit(&["--since", "soon"]);
    assert_eq!(wrong.status.code(), Some(2));
    let said = String::from_utf8_lossy(&wrong.stderr);
    assert!(said.contains("--since \"soon\" is not a time"), "{said}");
}

#[test]
fn starter_rules_cannot_be_reloaded() {
    let server = Server::with(tempfile::tempdir().unwrap(), &[]);
    server.serving.signal("-HUP");
    let message = "there is no config file to read";
    server.wait("logged", |it| it.log().contains(message));
    let answer = ureq::Agent::new_with_config(
        ureq::Agent::config_builder()
            .http_status_as_error(false)
            .build(),
    )
    .post(format!("{}/v1/reload", server.admin))
    .send_empty()
    .unwrap();
    assert_eq!(answer.status(), 409);
    let data = server.serving.data.path();
    assert_eq!(
        std::fs::read_dir(data).unwrap().count(),
        0,
        "nothing has changed"
    );
    let none = server.audit(&[]);
    assert_eq!(none.status.code(), Some(2));
    let said = String::from_utf8_lossy(&none.stderr);
    assert!(said.contains("there is no audit trail at"), "{said}");
}
