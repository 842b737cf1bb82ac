//! Two servers on one Redis: what an operator does at one, the other acts on.

#![allow(clippy::unwrap_used)] // Helpers of tests fail as tests do.

mod common;

use std::process::Command;
use std::time::Duration;

use common::Serving;
use tollgate_rig::{Redis, wait};

/// How long a condition may take that has to come about.
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

    fn override_(&self, args: &[&str]) -> String {
        let output = Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .arg("override")
            .args(args)
            .args(["--admin", &self.admin])
            .output()
            .unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {complaint}");
        said
    }

    /// The limit that a check is told.
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
fn what_is_done_at_one_holds_at_the_other() {
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
    one.override_(&set);
    assert_eq!(one.limit(), 10);
    wait::until("the other acts", LIMIT, || other.limit() == 10);
    // One that starts now acts from its first answer on.
    assert_eq!(Instance::start(&file).limit(), 10);
    other.override_(&["clear", "everyone/*"]);
    assert_eq!(other.limit(), 100);
    wait::until("the first follows", LIMIT, || one.limit() == 100);

    let brief = [
        "set", "--tenant", "acme", "--scale", "200%", "--for", "6s", "--reason", "a moment",
    ];
    one.override_(&brief);
    assert_eq!(one.limit(), 200);
    wait::until("its time is over", LIMIT, || {
        (one.limit(), other.limit()) == (100, 100)
    });
    wait::until("it is gone", LIMIT, || {
        one.override_(&["list"]) == "no overrides\n"
    });
}
