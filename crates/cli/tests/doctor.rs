//! The output and the exit code of `tollgate doctor` with real servers.

#![allow(clippy::unwrap_used, reason = "a failed helper fails its test")]

use std::path::PathBuf;
use std::process::{Command, Output};

use tollgate_rig::Redis;

const SECRET: &str = "a secret of the tests of doctor";

/// Makes a config without findings. The timeouts of the config are long enough for a busy machine.
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

/// Runs `doctor` for a config. Returns the output and the exit code.
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

/// Returns the lines of findings that are not ok, and of their remedies.
fn not_ok(text: &str) -> Vec<&str> {
    text.lines()
        .filter(|line| !line.starts_with("ok "))
        .collect()
}

#[test]
fn healthy_store_has_only_ok_findings() {
    let redis = Redis::with().args(["--maxmemory", "100mb"]).start();
    let url = format!("url: \"{}\"", redis.url());
    let (text, code) = doctor_of("doctor_in_order.yaml", &config(&url, LOGIN));
    // A busy machine may answer slowly.
    let found: Vec<&str> = not_ok(&text)
        .into_iter()
        .filter(|line| !line.contains("p99") && !line.contains("answers come close"))
        .collect();
    assert_eq!(found, [""; 0], "{text}");
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
fn unreachable_store_is_bad() {
    let redis = Redis::start();
    redis.kill();
    let url = format!("url: \"{}\"", redis.url());
    let (text, code) = doctor_of("doctor_unreachable.yaml", &config(&url, LOGIN));
    assert_eq!(code, Some(1), "{text}");
    let address = redis.address();
    let found = not_ok(&text);
    let expected = format!("bad   connection        store.redis.urls: {address} cannot be reached");
    assert!(found[0].starts_with(&expected), "{text}");
    assert!(
        found[1].starts_with("      help: check that the server runs"),
        "{text}"
    );
    assert_eq!(found.len(), 2, "{text}");
}

#[test]
fn missing_password_file_is_bad() {
    let store = "url: \"redis://127.0.0.1:1\", password_file: /nonexistent/password";
    let (text, code) = doctor_of("doctor_password.yaml", &config(store, LOGIN));
    assert_eq!(code, Some(1), "{text}");
    let expected = "bad   store             store.redis.password_file: failed to read";
    assert!(not_ok(&text)[0].starts_with(expected), "{text}");
}

#[test]
fn missing_settings_give_warnings() {
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
        "warn  on_store_failure  missing: everything. While the store is down, requests under these rules get \
         503",
        "warn  replicas          1: while the store is down, every instance allows the whole limit \
         of api",
        "warn  hot-key           everything has no `per`: all requests write one key, on one server",
        "warn  timeout           1s: when the store hangs, every request waits that long",
    ];
    assert_eq!(warned, expected, "{text}");
    for line in [
        "ok    state             disabled: off; for some subjects only: some\n",
        "ok    denial_cache      off: every denial costs a call to the store\n",
    ] {
        assert!(text.contains(line), "{text}");
    }
}

#[test]
fn placement_of_all_keys_on_one_node_gives_a_warning() {
    let rules = format!("{LOGIN}    placement: rule\n");
    let config = config("mode: cluster, url: \"redis://127.0.0.1:1\"", &rules);
    let (text, code) = doctor_of("doctor_placement.yaml", &config);
    assert_eq!(code, Some(1), "{text}");
    let expected = "warn  hot-key           login has `placement: rule`: one node of the cluster";
    assert!(not_ok(&text)[0].starts_with(expected), "{text}");
}

#[test]
fn public_secret_of_the_starter_rules_gives_a_warning() {
    let redis = Redis::with().args(["--maxmemory", "100mb"]).start();
    let output = doctor(&["--store", &redis.url()]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        text.contains("warn  hash_secret       the secret of the starter rules"),
        "{text}"
    );
}

#[test]
fn json_flag_prints_findings_as_json() {
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
fn ledger_is_checked_and_not_created() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("books.db");
    let of = |ledger: &str| {
        format!(
            "version: 1\nsubjects: {{ hash_secret: {SECRET:?} }}\nledger: {{ {ledger} }}\nrules:\n  \
             - {{ id: monthly, per: [tenant], algorithm: quota, limit: 5, period: month }}\n"
        )
    };
    let sqlite = of(&format!("sqlite: {:?}", file.display().to_string()));
    let (said, code) = doctor_of("ledger-new.yaml", &sqlite);
    assert!(
        said.contains("books.db: new, created at the first start"),
        "{said}"
    );
    assert_eq!(code, Some(0), "{said}");
    assert!(!file.exists());

    std::fs::write(
        &file,
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

#[test]
fn open_data_doors_are_found() {
    const RULES: &str =
        "rules:\n  - { id: login, per: [user], algorithm: gcra, rate: 5/m, burst: 5 }\n";
    let secret = "subjects: { hash_secret: 0123456789abcdef }\n";
    let hash = "0123456789abcdef".repeat(4);
    let of = |name: &str, server: &str| {
        let config = format!("version: 1\n{secret}server: {server}\n{RULES}");
        doctor_of(name, &config).0
    };
    let closed = of("doctor_closed.yaml", "{ http: \"127.0.0.1:8080\" }");
    assert!(closed.contains("data doors listen on loopback"), "{closed}");
    let doors = "http: \"0.0.0.0:8080\", grpc: \"[::]:8081\", resp: \"10.0.0.1:6390\"";
    let open = of("doctor_open.yaml", &format!("{{ {doors} }}"));
    let found = "open: http on 0.0.0.0:8080, grpc on [::]:8081, resp on 10.0.0.1:6390";
    assert!(open.contains(found), "{open}");
    assert!(open.contains("help: add `server.tokens`"), "{open}");
    let tokens = format!("tokens: [{{ name: a, scopes: [check], sha256: {hash} }}]");
    let guarded = of("doctor_guarded.yaml", &format!("{{ {doors}, {tokens} }}"));
    assert!(!guarded.contains("open: "), "{guarded}");
    assert!(
        guarded.contains("send tokens or passwords without encryption"),
        "{guarded}"
    );
    let tls = "tls: { cert: c, key: k, client_ca: a }";
    let mutual = of("doctor_mutual.yaml", &format!("{{ {doors}, {tls} }}"));
    assert!(
        !mutual.contains("warn  doors") && !mutual.contains("plain-text"),
        "{mutual}"
    );
    let exempt = doors.replace(
        "\"0.0.0.0:8080\"",
        "{ address: \"0.0.0.0:8080\", tokens: off }",
    );
    let exempt = of("doctor_exempt.yaml", &format!("{{ {exempt}, {tokens} }}"));
    assert!(
        exempt.contains("open: http on 0.0.0.0:8080. Every"),
        "{exempt}"
    );
    // The flags of `serve` count too.
    let flag = doctor(&["--http", "0.0.0.0:8080"]);
    let text = String::from_utf8(flag.stdout).unwrap();
    assert!(text.contains("open: http on 0.0.0.0:8080"), "{text}");
}
