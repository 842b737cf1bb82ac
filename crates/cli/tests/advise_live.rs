//! `tollgate advise --live`: numbers from a shadow rule of a running server.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a failed helper fails its test"
)]

mod common;

use std::io::Write as _;
use std::process::{Command, Stdio};

use common::Serving;
use serde_json::{Value, json};

#[test]
fn counts_of_a_shadow_rule_give_a_limit() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rules.yaml");
    let rules = "version: 1\nrules:\n  - { id: search, match: { action: search }, per: [user], algorithm: fixed-window, limit: 10, window: 30d, state: shadow }\n  - { id: quiet, match: { action: other }, per: [user], algorithm: gcra, rate: 1/s }\n  - { id: busy, match: { action: busy }, per: [user], algorithm: gcra, rate: 100000/s }\n";
    std::fs::write(&file, rules).unwrap();
    let args = [
        "--admin",
        "127.0.0.1:0",
        "--config",
        file.to_str().unwrap(),
        "--log",
        "off",
    ];
    let mut serving = Serving::start_in(folder.path(), &args);
    let admin = serving.admin();
    let agent: ureq::Agent = ureq::Agent::config_builder().build().into();
    let check = |requests: u32| {
        let body = json!({ "attributes": { "action": "search", "user": "ann" } });
        for _ in 0..requests {
            let answer = agent
                .post(format!("{}/v1/check", serving.url))
                .send_json(&body);
            assert_eq!(answer.unwrap().status(), 200);
        }
    };
    let advise = |rule: &str, more: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .args([
                "advise", "--live", &admin, "--rule", rule, "--window", "30d",
            ])
            .args(more)
            .env_remove("TOLLGATE_CONFIG")
            .output()
            .unwrap();
        let text = [output.stdout, output.stderr].concat();
        String::from_utf8(text).unwrap()
    };
    check(1_000);
    let text = advise("search", &[]);
    assert!(
        text.contains("live     search (shadow, limit 10) would deny 990 of 1000 checks in "),
        "{text}"
    );
    // One subject made all requests, and gets half as much again.
    assert!(
        text.contains("busiest subject: about 1000 requests in 30d\n"),
        "{text}"
    );
    assert!(text.contains("burst: 1500\n"), "{text}");
    let json: Value = serde_json::from_str(&advise("search", &["--json"])).unwrap();
    assert_eq!(json["live"]["busiestInWindow"], 1_000);
    // Twelve busier subjects of another rule do not hide it.
    for user in 0..12 {
        let check = json!({ "attributes": { "action": "busy", "user": format!("busy-{user}") } });
        let body = json!({ "requests": vec![check; 100] });
        for _ in 0..30 {
            let answer = agent
                .post(format!("{}/v1/check/batch", serving.url))
                .send_json(&body);
            assert_eq!(answer.unwrap().status(), 200);
        }
    }
    let json: Value = serde_json::from_str(&advise("search", &["--json"])).unwrap();
    assert_eq!(json["live"]["busiestInWindow"], 1_000);
    let text = advise("quiet", &[]);
    assert!(text.contains("`quiet` was not asked"), "{text}");
    let text = advise("none", &[]);
    assert!(
        text.contains("no rule `none`: its rules are search, quiet, busy"),
        "{text}"
    );
}

/// `script` gives the command a terminal.
#[test]
fn terminal_asks_all_ten_questions() {
    let line = format!("'{}' advise", env!("CARGO_BIN_EXE_tollgate"));
    let mut script = Command::new("script")
        .args(["--quiet", "--return", "--command", &line, "/dev/null"])
        .env_remove("TOLLGATE_CONFIG")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("script is needed: apt-get install bsdutils");
    // The fifth question is about the number of subjects. The others are answered with their defaults.
    let mut stdin = script.stdin.take().unwrap();
    stdin.write_all(b"\n\n\n\n5000\n\n\n\n\n\n").unwrap();
    let output = script.wait_with_output().unwrap();
    drop(stdin);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    assert_eq!(text.matches("? (").count(), 9, "{text}");
    assert!(
        text.contains("How many subjects are there in a window? [10000] "),
        "{text}"
    );
    assert!(text.contains("for 5000 subjects"), "{text}");
}
