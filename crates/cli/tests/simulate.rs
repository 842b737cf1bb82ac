//! `tollgate simulate` and `advise` with logs and configs of all kinds.

#![allow(clippy::unwrap_used, reason = "a failed helper fails its test")]

use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Runs a command in a folder.
fn tollgate(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(args)
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn printed(output: &Output) -> String {
    let text = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    String::from_utf8(text).unwrap()
}

/// Four requests of one client.
fn log(address: &str, path: &str) -> String {
    let line = |second: u32| {
        format!(
            "{address} - - [10/Oct/2026:10:00:0{second} +0000] \"GET {path} HTTP/1.1\" 200 1 \"-\" \"-\"\n"
        )
    };
    (0..4).map(line).collect()
}

/// Returns the line about the changes from one config to another.
fn changes(new: &str, old: &str, log: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in [("new.yaml", new), ("old.yaml", old), ("access.log", log)] {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let args = "simulate --config new.yaml --against old.yaml --log access.log";
    let args: Vec<&str> = args.split(' ').collect();
    let text = printed(&tollgate(folder.path(), &args));
    let line = text.lines().find(|line| line.starts_with("newly denied"));
    line.unwrap_or(&text).to_owned()
}

#[test]
fn each_config_finds_actions_by_its_own_routes() {
    let rules = |action: &str| {
        format!(
            "version: 1\nroutes: [{{ path: \"/v1/*\", action: {action} }}]\n\
             rules: [{{ id: r, match: {{ action: {action} }}, per: [ip], algorithm: fixed-window, limit: 2, window: 1h }}]\n"
        )
    };
    assert_eq!(
        changes(&rules("items"), &rules("api"), &log("192.0.2.1", "/v1/a")),
        "newly denied 0 (0.00%), newly allowed 0 (0.00%), denied as before 2"
    );
}

#[test]
fn each_config_finds_subjects_by_its_own_networks() {
    let rules = |subjects: &str| {
        format!(
            "version: 1\nsubjects: {{ {subjects} }}\n\
             rules: [{{ id: r, match: {{ traffic: internal }}, per: [ip], algorithm: fixed-window, limit: 2, window: 1h }}]\n"
        )
    };
    // Only the old config knows the network, and limits it.
    assert_eq!(
        changes(
            &rules("ipv6_prefix: 64"),
            &rules("internal: [10.0.0.0/8]"),
            &log("10.1.2.3", "/")
        ),
        "newly denied 0 (0.00%), newly allowed 2 (50.00%), denied as before 0"
    );
}

#[test]
fn advise_reads_a_log_twice_so_it_rejects_the_standard_input() {
    let folder = tempfile::tempdir().unwrap();
    let output = tollgate(folder.path(), &["advise", "--log", "-"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(
        printed(&output),
        "error: `advise` reads a log twice, so it cannot read the standard input: write the log to a file first\n"
    );
}

#[test]
fn advise_takes_the_format_and_attributes_of_a_log() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("access.log"), log("192.0.2.1", "/")).unwrap();
    let run = |args: &str| {
        let args: Vec<&str> = args.split(' ').collect();
        printed(&tollgate(folder.path(), &args))
    };
    let text = run("advise --per tenant --set tenant=acme --format combined --log access.log");
    assert!(
        text.contains("log      0 of 4 requests would be denied"),
        "{text}"
    );
    let text = run("advise --per ip --format json --log access.log");
    assert!(text.contains("no request of the log"), "{text}");
}
