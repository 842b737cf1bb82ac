//! `tollgate why` and `tollgate tail`: denials of running servers, found again after a restart.

#![allow(clippy::unwrap_used, reason = "a failed helper fails its test")]

mod common;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use common::Serving;

const RULES: &str = "
version: 1
subjects: { hash_secret: keep this one to yourself }
telemetry: { denials: { directory: ./denials } }
rules:
  - { id: api, per: [api_key], log_denials: all, algorithm: fixed-window, limit: 1, window: 300d }
";

fn start(folder: &Path) -> (Serving, String) {
    std::fs::write(folder.join("rules.yaml"), RULES).unwrap();
    let args = [
        "--admin",
        "127.0.0.1:0",
        "--config",
        "rules.yaml",
        "--log",
        "off",
    ];
    let mut serving = Serving::start_in(folder, &args);
    let admin = serving.admin();
    (serving, admin)
}

/// Makes `count` denials of a key, after one request that may be allowed.
fn deny(serving: &Serving, key: &str, count: usize) {
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .build()
        .into();
    let body = serde_json::json!({ "attributes": { "api_key": key, "action": "read" } });
    for _ in 0..=count {
        let url = format!("{}/v1/check", serving.url);
        agent.post(url).send_json(&body).unwrap();
    }
}

fn tollgate(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(args).env_remove("TOLLGATE_ADMIN_URL");
    command
}

fn why(args: &[&str]) -> (Output, String) {
    let output = tollgate(&[&["why"], args].concat()).output().unwrap();
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    (output, text)
}

#[test]
fn denials_are_found_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let (serving, admin) = start(folder.path());
    deny(&serving, "k1", 2);
    deny(&serving, "k2", 1);
    let (output, text) = why(&["api_key=k1", "--admin", &admin]);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert_eq!(
        text.matches("denied by api: the allowance was used up")
            .count(),
        2,
        "{text}"
    );
    assert!(text.contains("limit 1, 0 left, retry after "), "{text}");
    assert!(
        text.contains("numbers: limit 1 (rule), window 300d (rule)"),
        "{text}"
    );
    assert!(
        text.contains("door http, action read, subject api_key "),
        "{text}"
    );
    let (_, code) = serving.interrupt();
    assert_eq!(code, Some(0));
    let (serving, admin) = start(folder.path());
    let (_, again) = why(&["api_key=k1", "--admin", &admin]);
    assert_eq!(again, text);
    let (output, json) = why(&["api_key=k2", "--json", "--since", "1h", "--admin", &admin]);
    assert_eq!(output.status.code(), Some(0));
    let denial: serde_json::Value = serde_json::from_str(&json).unwrap();
    let hash = denial["subjectHash"].as_str().unwrap();
    let (_, by_hash) = why(&["--hash", &hash[..8], "--json", "--admin", &admin]);
    assert_eq!(by_hash, json);
    let (output, _) = why(&["api_key=k3", "--admin", &admin]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "no denial found\n");
    let (output, _) = why(&["--admin", &admin]);
    assert_eq!(output.status.code(), Some(2));
    let (output, _) = why(&["user=ann", "--admin", &admin]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        error.contains("the rules have subjects of api_key"),
        "{error}"
    );
    drop(serving);
}

#[test]
fn several_servers_are_asked() {
    let folders = [0; 2].map(|_| tempfile::tempdir().unwrap());
    let servers = folders.each_ref().map(|folder| start(folder.path()));
    for (serving, _) in &servers {
        deny(serving, "k1", 1);
    }
    let [(_, first), (_, second)] = &servers;
    let (output, text) = why(&["api_key=k1", "--admin", first, "--also", second]);
    assert_eq!(output.status.code(), Some(0));
    for server in [first, second] {
        assert_eq!(
            text.matches(&format!("server {server}")).count(),
            1,
            "{text}"
        );
    }
    // With a server that is down, nobody knows whether there was a denial.
    let args = [
        "api_key=k9",
        "--admin",
        first,
        "--also",
        "http://127.0.0.1:1",
    ];
    let (output, _) = why(&args);
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        error.contains("no denial found, but 1 of 2 servers did not answer"),
        "{error}"
    );
    // A server that is down does not hide the denials of the others.
    let (output, text) = why(&[
        "api_key=k1",
        "--admin",
        first,
        "--also",
        "http://127.0.0.1:1",
    ]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(text.matches("denied by api").count(), 1, "{text}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("127.0.0.1:1"));
}

#[test]
fn tail_shows_denials_as_they_happen() {
    let folder = tempfile::tempdir().unwrap();
    let (serving, admin) = start(folder.path());
    deny(&serving, "k1", 1);
    let args = ["tail", "--rule", "api", "--door", "http", "--admin", &admin];
    let mut tail = tollgate(&args).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(tail.stdout.take().unwrap()).lines();
    let mut next = || lines.next().unwrap().unwrap();
    let first = next();
    assert!(
        first.contains(" http api exceeded action=read api_key="),
        "{first}"
    );
    assert!(first.contains(" limit=1 left=0 retry_ms="), "{first}");
    deny(&serving, "k2", 2);
    let (second, third) = (next(), next());
    let key = |line: &str| {
        line.split(' ')
            .find(|it| it.starts_with("api_key="))
            .unwrap()
            .to_owned()
    };
    assert_eq!(key(&second), key(&third));
    assert_ne!(key(&first), key(&second));
    tail.kill().unwrap();
    tail.wait().unwrap();
}

#[test]
fn block_is_shown_with_its_reason_and_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let (serving, admin) = start(folder.path());
    let block = |subject: &str, end: &[&str]| {
        let reason = ["--reason", "leaked in a ticket", "--admin", &admin];
        let args = [&["block", subject], end, &reason].concat();
        assert!(tollgate(&args).status().unwrap().success());
    };
    block("api_key=k1", &["--forever"]);
    block("ip=192.0.2.0/24", &["--for", "1h"]);
    deny(&serving, "k1", 0);
    let (_, text) = why(&["api_key=k1", "--admin", &admin]);
    assert!(
        text.contains("denied by @block: an operator has blocked the subject\n"),
        "{text}"
    );
    assert!(text.contains("\n    block:api_key:"), "{text}");
    assert!(
        text.contains("\n    reason: leaked in a ticket, until unblocked\n"),
        "{text}"
    );
    let body = serde_json::json!({ "attributes": { "ip": "192.0.2.7", "api_key": "k2" } });
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .build()
        .into();
    let url = format!("{}/v1/check", serving.url);
    agent.post(url).send_json(&body).unwrap();
    let (_, json) = why(&["api_key=k2", "--json", "--admin", &admin]);
    let denial: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(denial["override"], "block:ip:192.0.2.0/24");
    assert_eq!(denial["blockReason"], "leaked in a ticket");
    let (_, text) = why(&["api_key=k2", "--admin", &admin]);
    let end = denial["blockExpiresAt"].as_str().unwrap();
    assert!(
        text.contains(&format!("\n    reason: leaked in a ticket, until {end}\n")),
        "{text}"
    );
}

#[test]
fn tail_goes_on_after_a_restart_of_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let (serving, admin) = start(folder.path());
    deny(&serving, "k1", 1);
    let mut tail = tollgate(&["tail", "--admin", &admin]);
    let tail = tail.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut tail = tail.spawn().unwrap();
    let mut lines = BufReader::new(tail.stdout.take().unwrap()).lines();
    let mut errors = BufReader::new(tail.stderr.take().unwrap()).lines();
    lines.next().unwrap().unwrap();
    let (_, code) = serving.interrupt();
    assert_eq!(code, Some(0));
    let mut said = || errors.next().unwrap().unwrap();
    while !said().starts_with("note: trying again until the server answers") {}
    let address = admin.strip_prefix("http://").unwrap();
    let args = ["--admin", address, "--config", "rules.yaml", "--log", "off"];
    let serving = Serving::start_in(folder.path(), &args);
    deny(&serving, "k2", 1);
    while said() != "the server answers again" {}
    let line = lines.next().unwrap().unwrap();
    assert!(line.contains(" http api exceeded "), "{line}");
    tail.kill().unwrap();
    tail.wait().unwrap();
}
