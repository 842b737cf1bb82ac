//! `tollgate doctor` on real servers: what it prints, and how it exits.

#![allow(clippy::unwrap_used)] // Helpers of tests fail as tests do.

use std::path::PathBuf;
use std::process::{Command, Output};

use tollgate_rig::Redis;

const SECRET: &str = "a secret of the tests of doctor";

/// A config that has thought of everything, patient enough for a busy machine.
fn config(store: &str, rules: &str) -> String {
    format!(
        "version: 1\n\
         subjects: {{ hash_secret: {SECRET:?} }}\n\
         store:\n  redis: {{ {store}, timeout: 200ms, connect_timeout: 30s }}\n\
         rules:\n{rules}"
    )
}

const LOGIN: &str = "  - id: login\n    per: [user]\n    algorithm: sliding-log\n    limit: 5\n    \
                     window: 10m\n    on_store_failure: fail-closed\n";

fn doctor(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .arg("doctor")
        .args(args)
        .env_remove("TOLLGATE_CONFIG")
        .env_remove("TOLLGATE_STORE")
        .output()
        .unwrap()
}

/// What it says of a config.
fn doctor_of(name: &str, config: &str) -> (String, Option<i32>) {
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&file, config).unwrap();
    let output = doctor(&["--config", file.to_str().unwrap()]);
    assert!(output.stderr.is_empty(), "{output:?}");
    (
        String::from_utf8(output.stdout).unwrap(),
        output.status.code(),
    )
}

/// The lines that ask for something, and what they ask for.
fn amiss(text: &str) -> Vec<&str> {
    text.lines()
        .filter(|line| !line.starts_with("ok "))
        .collect()
}

#[test]
fn a_store_in_order_is_all_ok() {
    let redis = Redis::with().args(["--maxmemory", "100mb"]).start();
    let url = format!("url: \"{}\"", redis.url());
    let (text, code) = doctor_of("doctor_in_order.yaml", &config(&url, LOGIN));
    // A machine that is very busy may be slow to answer.
    let amiss: Vec<&str> = amiss(&text)
        .into_iter()
        .filter(|line| !line.contains("p99") && !line.contains("answers come close"))
        .collect();
    assert_eq!(amiss, [""; 0], "{text}");
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.contains("on_store_failure  every rule has a policy"),
        "{text}"
    );
    assert!(
        text.contains(&format!("{}: Redis 7.", redis.address())),
        "{text}"
    );
}

#[test]
fn a_store_that_is_not_there_is_bad() {
    let redis = Redis::start();
    redis.kill();
    let url = format!("url: \"{}\"", redis.url());
    let (text, code) = doctor_of("doctor_unreachable.yaml", &config(&url, LOGIN));
    assert_eq!(code, Some(1), "{text}");
    let address = redis.address();
    let amiss = amiss(&text);
    let expected = format!("bad   connection        store.redis.urls: {address} cannot be reached");
    assert!(amiss[0].starts_with(&expected), "{text}");
    assert!(
        amiss[1].starts_with("      help: check that the server runs"),
        "{text}"
    );
    assert_eq!(amiss.len(), 2, "{text}");
}

#[test]
fn a_password_file_that_is_not_there_is_bad() {
    let store = "url: \"redis://127.0.0.1:1\", password_file: /nonexistent/password";
    let (text, code) = doctor_of("doctor_password.yaml", &config(store, LOGIN));
    assert_eq!(code, Some(1), "{text}");
    let expected = "bad   store             store.redis.password_file: cannot be read";
    assert!(amiss(&text)[0].starts_with(expected), "{text}");
}

#[test]
fn what_a_config_leaves_open_is_warned_about() {
    let redis = Redis::with().args(["--maxmemory", "100mb"]).start();
    let rules = "  - id: everything\n    algorithm: gcra\n    rate: 1000/s\n  \
                 - id: api\n    per: [tenant]\n    algorithm: gcra\n    rate: 10/s\n    \
                 on_store_failure: local-fallback\n  \
                 - id: off\n    algorithm: gcra\n    rate: 1/s\n    state: disabled\n  \
                 - id: some\n    per: [user]\n    algorithm: gcra\n    rate: 1/s\n    rollout: 5%\n    \
                 on_store_failure: fail-open\n";
    let store = format!("url: \"{}\", denial_cache: off", redis.url());
    let config = config(&store, rules).replace("timeout: 200ms", "timeout: 1s");
    let (text, code) = doctor_of("doctor_open.yaml", &config);
    assert_eq!(code, Some(0), "{text}");
    let warned: Vec<&str> = text.lines().filter(|it| it.starts_with("warn")).collect();
    let expected = [
        "warn  on_store_failure  none: everything. While the store is down, these answer 503",
        "warn  replicas          1: while the store is down, every instance allows the whole limit \
         of api",
        "warn  hot-key           everything has no `per`: every request writes one key, on one \
         server",
        "warn  timeout           1s: when the store hangs, every caller waits so long for an answer",
    ];
    assert_eq!(warned, expected, "{text}");
    for line in [
        "ok    state             disabled: off; for some subjects only: some\n",
        "ok    denial_cache      off: every refusal asks the store\n",
    ] {
        assert!(text.contains(line), "{text}");
    }
}

#[test]
fn keys_of_one_rule_on_one_node_are_warned_about() {
    let rules = format!("{LOGIN}    placement: rule\n");
    let config = config("mode: cluster, url: \"redis://127.0.0.1:1\"", &rules);
    let (text, code) = doctor_of("doctor_placement.yaml", &config);
    assert_eq!(code, Some(1), "{text}");
    let expected = "warn  hot-key           login has `placement: rule`: one node of the cluster";
    assert!(amiss(&text)[0].starts_with(expected), "{text}");
}

#[test]
fn the_starter_rules_hide_nobody() {
    let redis = Redis::with().args(["--maxmemory", "100mb"]).start();
    let output = doctor(&["--store", &redis.url()]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        text.contains("warn  hash_secret       that of the starter rules"),
        "{text}"
    );
}

#[test]
fn findings_are_json_if_asked_for() {
    let redis = Redis::start();
    redis.kill();
    let output = doctor(&["--json", "--store", &redis.url()]);
    assert_eq!(output.status.code(), Some(1));
    let findings: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let findings = findings.as_array().unwrap();
    let first = serde_json::json!({
        "level": "ok", "check": "config", "found": "6 starter rules", "help": null,
    });
    assert_eq!(findings[0], first);
    let last = findings.last().unwrap();
    assert_eq!(
        (&last["level"], &last["check"]),
        (&"bad".into(), &"connection".into())
    );
    assert!(
        last["help"].as_str().unwrap().contains("server runs"),
        "{last}"
    );
    for finding in findings {
        assert_eq!(finding.as_object().unwrap().len(), 4, "{finding}");
    }
}

#[test]
fn no_password_is_printed() {
    let redis = Redis::with().acl("app", "hunter2").start();
    let url = redis.url().replace("hunter2", "hunter3");
    let output = doctor(&["--store", &url]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("store.redis.password: "), "{text}");
    assert!(!text.contains("hunter"), "{text}");
}

#[test]
fn a_ledger_is_looked_at_and_not_made() {
    let folder = tempfile::tempdir().unwrap();
    let books = folder.path().join("books.db");
    let of = |ledger: &str| {
        format!(
            "version: 1\nsubjects: {{ hash_secret: {SECRET:?} }}\nledger: {{ {ledger} }}\nrules:\n  \
             - {{ id: monthly, per: [tenant], algorithm: quota, limit: 5, period: month }}\n"
        )
    };
    let sqlite = of(&format!("sqlite: {:?}", books.display().to_string()));
    let (said, code) = doctor_of("ledger-new.yaml", &sqlite);
    assert!(
        said.contains("books.db: new, made at the first start"),
        "{said}"
    );
    assert_eq!(code, Some(0), "{said}");
    assert!(!books.exists());

    std::fs::write(
        &books,
        "something else, and long enough to be read as a header of a database",
    )
    .unwrap();
    let (said, code) = doctor_of("ledger-other.yaml", &sqlite);
    assert!(said.contains("is not a SQLite database"), "{said}");
    assert_eq!(code, Some(1), "{said}");

    let (said, code) = doctor_of(
        "ledger-nowhere.yaml",
        &of("sqlite: /nowhere/at/all/books.db"),
    );
    assert!(
        said.contains("the directory /nowhere/at/all of the ledger does not exist"),
        "{said}"
    );
    assert_eq!(code, Some(1), "{said}");

    let gone = of("postgres: \"postgres://gate:hidden@127.0.0.1:1/books\"");
    let (said, code) = doctor_of("ledger-gone.yaml", &gone);
    assert!(said.contains("bad   ledger"), "{said}");
    assert!(!said.contains("hidden"), "{said}");
    assert_eq!(code, Some(1), "{said}");
}
