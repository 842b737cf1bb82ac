//! `tollgate doctor --live`: advice from the figures of a running server.

#![allow(clippy::unwrap_used, reason = "a failed helper fails its test")]

mod common;

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use common::Serving;
use tollgate_rig::Redis;

#[test]
fn a_busy_subject_of_an_exact_rule_is_advised_a_mode() {
    let redis = Redis::with().args(["--maxmemory", "100mb"]).start();
    let folder = tempfile::tempdir().unwrap();
    let rules = format!(
        "version: 1\nsubjects: {{ hash_secret: a secret of the tests of doctor }}\n\
         store: {{ redis: {{ url: \"{}\", timeout: 2s }} }}\n\
         rules:\n  - {{ id: api, per: [user], algorithm: fixed-window, limit: 1000000000, window: 1h, \
         on_store_failure: fail-closed }}\n",
        redis.url()
    );
    let file = folder.path().join("rules.yaml");
    std::fs::write(&file, rules).unwrap();
    let file = file.to_str().unwrap();
    let args = ["--admin", "127.0.0.1:0", "--config", file, "--log", "off"];
    let mut serving = Serving::start_in(folder.path(), &args);
    let admin = serving.admin();
    let is_done = AtomicBool::new(false);
    let url = format!("{}/v1/check", serving.url);
    let output = std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let agent: ureq::Agent = ureq::Agent::config_builder().build().into();
                let body = serde_json::json!({ "attributes": { "user": "ann" } });
                while !is_done.load(Ordering::Relaxed) {
                    agent.post(&url).send_json(&body).unwrap();
                }
            });
        }
        // Ends the load also if the command fails.
        let output = Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .args(["doctor", "--config", file, "--live", &admin])
            .env_remove("TOLLGATE_CONFIG")
            .env_remove("TOLLGATE_STORE")
            .output();
        is_done.store(true, Ordering::Relaxed);
        output.unwrap()
    });
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    let mut lines = text.lines().skip_while(|it| !it.contains("  modes "));
    let found = lines.next().unwrap();
    assert!(found.starts_with("warn"), "{text}");
    assert!(found.contains("api: subject "), "{text}");
    assert!(lines.next().unwrap().contains("`mode: leased`"), "{text}");
    assert!(text.contains("  store-latency "), "{text}");
}
