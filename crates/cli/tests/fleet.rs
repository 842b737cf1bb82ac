//! Two servers on one Redis: an override, a block or a rollback at one server applies at the other, and both
//! have one audit trail.

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
        self.run(&[&["override"], args].concat())
    }

    /// Runs a command that asks the admin door.
    fn run(&self, args: &[&str]) -> String {
        let output = Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .args(args)
            .args(["--admin", &self.admin])
            .output()
            .unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {errors}");
        said
    }

    fn peek(&self) -> serde_json::Value {
        let url = format!("{}/v1/peek", self.serving.url);
        let mut answer = ureq::post(&url)
            .send_json(serde_json::json!({ "attributes": { "tenant": "acme" } }))
            .unwrap();
        answer.body_mut().read_json().unwrap()
    }

    /// Returns the limit in the answer to a peek.
    fn limit(&self) -> u64 {
        self.peek()["limit"].as_u64().unwrap()
    }
}

fn rules(redis: &Redis, limit: u64) -> String {
    format!(
        "version: 1\n\
         subjects: {{ hash_secret: a secret of 16 bytes }}\n\
         store: {{ redis: {{ url: \"redis://{}\", timeout: 10s, connect_timeout: 10s }} }}\n\
         rules: [{{ id: api, per: [tenant], algorithm: fixed-window, limit: {limit}, window: 30d, on_store_failure: fail-closed }}]\n",
        redis.address()
    )
}

#[test]
fn blocks_and_rollbacks_at_one_instance_hold_at_the_other() {
    let redis = Redis::start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rules.yaml");
    std::fs::write(&file, rules(&redis, 100)).unwrap();
    let path = file.display().to_string();
    let (one, other) = (Instance::start(&path), Instance::start(&path));

    one.run(&["block", "tenant=acme", "--for", "1h", "--reason", "unpaid"]);
    let is_blocked = |it: &Instance| it.peek()["code"] == "BLOCKED";
    assert!(is_blocked(&one));
    wait::until("the other instance follows", LIMIT, || is_blocked(&other));
    let late = Instance::start(&path);
    assert!(is_blocked(&late));
    drop(late);
    let listed = other.run(&["blocks"]);
    assert!(
        listed.starts_with("block:tenant:") && !listed.contains("acme"),
        "{listed}"
    );
    other.run(&["unblock", "tenant=acme", "--reason", "paid"]);
    assert!(!is_blocked(&other));
    wait::until("the first instance follows", LIMIT, || !is_blocked(&one));

    std::fs::write(&file, rules(&redis, 7)).unwrap();
    wait::until("the new file is in force", LIMIT, || {
        (one.limit(), other.limit()) == (7, 7)
    });
    // A version is recorded after it was put in force.
    let versions = || one.run(&["config", "versions"]);
    wait::until("both versions are listed", LIMIT, || {
        versions().lines().count() == 2
    });
    let versions = versions();
    let older = versions.lines().nth(1).unwrap().split(' ').next().unwrap();
    let shown = other.run(&["config", "show", older]);
    assert!(
        shown.contains("limit: 100") && !shown.contains("a secret of"),
        "{shown}"
    );
    other.run(&["rollback", older, "--reason", "too low"]);
    assert_eq!(other.limit(), 100);
    wait::until("the first instance follows", LIMIT, || one.limit() == 100);
    // An instance that starts with the file that was rolled back follows from its first answer on.
    assert_eq!(Instance::start(&path).limit(), 100);
    std::fs::write(&file, rules(&redis, 9)).unwrap();
    wait::until("the fixed file is in force", LIMIT, || {
        (one.limit(), other.limit()) == (9, 9)
    });

    // The first instance shows the changes of the other one.
    let seen = || one.run(&["audit", "--limit", "1000"]);
    wait::until("the trail is shared", LIMIT, || {
        let seen = seen();
        [
            "block.set",
            "block.clear",
            "config.rollback ",
            "config.rollback.ended",
        ]
        .iter()
        .all(|what| seen.contains(what))
    });
    assert!(!seen().contains("acme"));
}

#[test]
fn override_set_at_one_instance_holds_at_the_other() {
    let redis = Redis::start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rules.yaml");
    std::fs::write(&file, rules(&redis, 100)).unwrap();
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

#[test]
fn instances_on_one_store_are_listed() {
    let redis = Redis::start();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rules.yaml");
    std::fs::write(&path, rules(&redis, 5)).unwrap();
    let config = path.display().to_string();
    let (one, other) = (Instance::start(&config), Instance::start(&config));
    let list = || -> Vec<serde_json::Value> {
        let mut answer = ureq::get(&format!("{}/v1/fleet", one.admin))
            .call()
            .unwrap();
        let body: serde_json::Value = answer.body_mut().read_json().unwrap();
        assert!(body["problem"].is_null(), "{body}");
        body["instances"].as_array().unwrap().clone()
    };
    // Each instance announces itself when it starts.
    wait::until("both instances are listed", LIMIT, || list().len() == 2);
    let instances = list();
    assert_eq!(instances[0]["isThis"], true);
    assert_eq!(instances[0]["configVersion"], instances[1]["configVersion"]);
    let address = other.admin.strip_prefix("http://").unwrap();
    assert_eq!(instances[1]["admin"], address);
    assert_eq!(instances[1]["state"], "up");
    // The health of the other instance shows here too.
    assert_eq!(instances[1]["health"]["store"], "redis");
    assert!(instances[1]["health"]["configRejected"].is_null());
    let wrong = rules(&redis, 5).replace("limit:", "limmit:");
    std::fs::write(&path, wrong).unwrap();
    wait::until("the other instance tells its problem", LIMIT, || {
        let told = list()[1]["health"]["configRejected"].clone();
        !told.is_null()
    });
    // An instance that stops takes its line along.
    assert_eq!(other.serving.interrupt().1, Some(0));
    assert_eq!(list().len(), 1);
}
