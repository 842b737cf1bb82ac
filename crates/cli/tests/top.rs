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
