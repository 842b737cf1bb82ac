//! `tollgate top` on running servers.

#![allow(clippy::unwrap_used, reason = "a failed helper fails its test")]

mod common;

use std::process::{Command, Output, Stdio};

use common::Serving;

fn start() -> (Serving, String) {
    let mut serving = Serving::start(&["--admin", "127.0.0.1:0", "--log", "off"]);
    let admin = serving.admin();
    (serving, admin)
}

fn top(args: &[&str]) -> (Output, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    let command = command.arg("top").args(args).stdin(Stdio::null());
    let output = command.env_remove("TOLLGATE_ADMIN_URL").output().unwrap();
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    (output, text)
}

#[test]
fn one_reading_shows_rules_and_instances() {
    let ((first, admin), (_second, also)) = (start(), start());
    // Requests go on while `top` measures.
    let check = ["check", "--server", &first.url, "--repeat", "100000"];
    let mut load = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    let load = load.args(check).args(["action=login", "user=ann"]);
    let mut load = load.stdout(Stdio::null()).spawn().unwrap();
    let (output, text) = top(&[
        "--once", "--admin", &admin, "--also", &also, "--rule", "login",
    ]);
    load.kill().unwrap();
    load.wait().unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    let row = text
        .lines()
        .find(|line| line.starts_with("login "))
        .unwrap();
    let denied: f64 = row.split_whitespace().nth(3).unwrap().parse().unwrap();
    assert!(denied > 0.0, "{text}");
    // The filter hides other rules, and both instances are shown.
    assert!(!text.contains("\napi "), "{text}");
    assert!(text.contains(&admin) && text.contains(&also), "{text}");
}

/// Three rules apply to a login, and two to another request. The third one is a shadow rule.
const SEVERAL: &str = "
version: 1
rules:
  - { id: login, match: { action: login }, per: [user], algorithm: fixed-window, limit: 2, window: 300d }
  - { id: all, algorithm: fixed-window, limit: 1000000, window: 300d }
  - { id: trial, algorithm: fixed-window, limit: 1, window: 300d, state: shadow }
";

#[test]
fn request_under_several_rules_is_counted_once() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("rules.yaml"), SEVERAL).unwrap();
    let args = [
        "--config",
        "rules.yaml",
        "--admin",
        "127.0.0.1:0",
        "--log",
        "off",
    ];
    let mut serving = Serving::start_in(folder.path(), &args);
    let admin = serving.admin();
    for _ in 0..5 {
        let body = serde_json::json!({ "attributes": { "action": "login", "user": "ann" } });
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .build();
        let agent = ureq::Agent::from(agent);
        agent
            .post(&format!("{}/v1/check", serving.url))
            .send_json(body)
            .unwrap();
    }
    let read = |path: &str| -> serde_json::Value {
        let mut answer = ureq::get(&format!("{admin}{path}")).call().unwrap();
        answer.body_mut().read_json().unwrap()
    };
    let overview = read("/v1/overview");
    let expected = serde_json::json!({ "allowed": 2, "denied": 3, "storeFailed": 0 });
    assert_eq!(overview["requests"], expected);
    let doors = overview["doors"].as_array().unwrap();
    let http = doors.iter().find(|it| it["door"] == "http").unwrap();
    assert_eq!(http["requests"], expected);
    let line = &read("/v1/fleet")["instances"][0];
    assert_eq!(
        (&line["allowed"], &line["denied"]),
        (&expected["allowed"], &expected["denied"])
    );
    let health = serde_json::json!({
        "store": "memory", "storeProblem": null, "breakers": {}, "ledger": null, "configRejected": null,
    });
    assert_eq!(line["health"], health);
}

#[test]
fn silent_instance_is_shown_beside_the_others() {
    let (_serving, admin) = start();
    let (output, text) = top(&["--once", "--admin", &admin, "--also", "http://127.0.0.1:1"]);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("! http://127.0.0.1:1: "), "{text}");
    assert!(text.contains("no answer"), "{text}");
}

#[test]
fn wrong_address_and_missing_terminal_are_errors() {
    let (output, _) = top(&["--once", "--admin", "http://127.0.0.1:1"]);
    assert_eq!(output.status.code(), Some(2));
    let (_serving, admin) = start();
    let (output, _) = top(&["--admin", &admin]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("help: use --once"), "{said}");
}
