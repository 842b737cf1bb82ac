//! Two servers on one Redis: an override that is set at one server applies at the other.

#![allow(clippy::unwrap_used, reason = "a failed helper fails its test")]

mod common;

use std::process::Command;
use std::time::Duration;

use common::Serving;
use tollgate_rig::{Redis, wait};

/// The timeout of conditions that must become true.
const LIMIT: Duration = Duration::from_secs(20);

struct Instance {
    serving: Serving,
    admin: String,
}

impl Instance {
    fn start(config: &str) -> Instance {
        let mut serving = Serving::start(&["--config", config, "--admin", "127.0.0.1:0"]);
        Instance {
            admin: serving.admin(),
            serving,
        }
    }

    fn run_override(&self, args: &[&str]) -> String {
        let output = Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .arg("override")
            .args(args)
            .args(["--admin", &self.admin])
            .output()
            .unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {errors}");
        said
    }

    /// Returns the limit in the answer to a peek.
    fn limit(&self) -> u64 {
        let url = format!("{}/v1/peek", self.serving.url);
        let mut answer = ureq::post(&url)
            .send_json(serde_json::json!({ "attributes": { "tenant": "acme" } }))
            .unwrap();
        let answer: serde_json::Value = answer.body_mut().read_json().unwrap();
        answer["limit"].as_u64().unwrap()
    }
}

#[test]
fn override_set_at_one_instance_holds_at_the_other() {
    let redis = Redis::start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rules.yaml");
    let rules = format!(
        "version: 1\n\
         subjects: {{ hash_secret: a secret of 16 bytes }}\n\
         store: {{ redis: {{ url: \"redis://{}\", timeout: 10s, connect_timeout: 10s }} }}\n\
         rules: [{{ id: api, per: [tenant], algorithm: fixed-window, limit: 100, window: 30d, on_store_failure: fail-closed }}]\n",
        redis.address()
    );
    std::fs::write(&file, rules).unwrap();
    let file = file.display().to_string();
    let (one, other) = (Instance::start(&file), Instance::start(&file));
    assert_eq!((one.limit(), other.limit()), (100, 100));

    let set = [
        "set",
        "--everyone",
        "--scale",
        "10%",
        "--for",
        "1h",
        "--reason",
        "fire",
    ];
    one.run_override(&set);
    assert_eq!(one.limit(), 10);
    wait::until("the other instance follows", LIMIT, || other.limit() == 10);
    // A new instance applies the override from its first answer on.
    assert_eq!(Instance::start(&file).limit(), 10);
    other.run_override(&["clear", "everyone/*"]);
    assert_eq!(other.limit(), 100);
    wait::until("the first instance follows", LIMIT, || one.limit() == 100);

    let short = [
        "set", "--tenant", "acme", "--scale", "200%", "--for", "6s", "--reason", "a moment",
    ];
    one.run_override(&short);
    assert_eq!(one.limit(), 200);
    wait::until("the override has ended", LIMIT, || {
        (one.limit(), other.limit()) == (100, 100)
    });
    wait::until("the override is no longer listed", LIMIT, || {
        one.run_override(&["list"]) == "no overrides\n"
    });
}
