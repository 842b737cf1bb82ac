//! Versions of the config, and rollbacks to them, on one instance and on two that share a Redis.

#![allow(clippy::unwrap_used, clippy::panic)] // Test helpers may panic.

mod common;

use common::config_file::ConfigFileServer;
use common::{Answer, get};
use serde_json::{Value, json};
use tollgate_rig::Redis;
use tollgate_server::control::Outcome;

const SECRET: &str = "a secret of 16 bytes";

fn rules(store: &str, limit: u32) -> String {
    format!(
        "version: 1\n{store}\nsubjects: {{ hash_secret: {SECRET} }}\nrules:\n\
         - {{ id: api, per: [user], algorithm: fixed-window, limit: {limit}, window: 30d }}\n"
    )
}

fn limit(server: &ConfigFileServer) -> u64 {
    let answer = server.check(r#"{"user":"ann"}"#).json();
    answer["limit"].as_u64().unwrap()
}

fn versions(server: &ConfigFileServer) -> Value {
    let answer = server.ask("", "/v1/config/versions", None);
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json()
}

fn names(server: &ConfigFileServer) -> Vec<String> {
    let answer = versions(server);
    let versions = answer["versions"].as_array().unwrap().iter();
    let names = versions.map(|it| it["version"].as_str().unwrap().to_owned());
    names.collect()
}

fn rollback(server: &ConfigFileServer, version: &str) -> Answer {
    let body = json!({ "version": version, "reason": "too low" }).to_string();
    server.ask("", "/v1/rollback", Some(&body))
}

fn refresh(server: &ConfigFileServer) {
    server.block_on(server.control.refresh());
}

fn keep(server: &ConfigFileServer) {
    server.block_on(server.control.keep_first_version());
}

fn whats(server: &ConfigFileServer) -> Vec<String> {
    let trail = server.trail("what=config");
    let whats = trail
        .iter()
        .rev()
        .map(|it| it["what"].as_str().unwrap().to_owned());
    whats.collect()
}

/// Starts another server with the files of `server`, which has stopped.
fn restarted(server: &ConfigFileServer, yaml: &str) -> ConfigFileServer {
    let again = ConfigFileServer::start(yaml);
    let (from, to) = (
        server.folder.path().join("data"),
        again.folder.path().join("data"),
    );
    std::fs::create_dir_all(&to).unwrap();
    for file in ["overrides.json", "configs.json"] {
        std::fs::copy(from.join(file), to.join(file)).unwrap();
    }
    refresh(&again);
    again
}

#[test]
fn an_older_version_is_in_force_until_the_file_changes() {
    let server = ConfigFileServer::start(&rules("", 5));
    keep(&server);
    server.write(&rules("", 1));
    assert_eq!(server.look().unwrap().unwrap().outcome, Outcome::Applied);
    assert_eq!(limit(&server), 1);
    let known = names(&server);
    let [low, high] = &known[..] else {
        panic!("{known:?}");
    };
    let rolled = rollback(&server, high);
    assert_eq!(rolled.status, 200, "{}", rolled.text);
    assert_eq!(rolled.json()["configVersion"], json!(high));
    assert_eq!(limit(&server), 5);
    assert_eq!(versions(&server)["inForce"], json!(high));
    assert_eq!(versions(&server)["rolledBackFrom"], json!(low));
    let ready = get(&format!("http://{}/readyz", server.http), &[]).json();
    assert_eq!(ready["config"]["rolledBackFrom"], json!(low));
    // The file is not written.
    assert_eq!(
        std::fs::read_to_string(server.file()).unwrap(),
        rules("", 1)
    );
    assert!(server.look().is_none());

    // A restart does not end the rollback.
    let server = restarted(&server, &rules("", 1));
    assert_eq!(limit(&server), 5);
    // The same text again is not a change.
    server.write(&rules("", 1));
    server.look();
    assert_eq!(limit(&server), 5);

    // A change of the file ends it.
    server.write(&rules("", 3));
    assert_eq!(server.look().unwrap().unwrap().outcome, Outcome::Applied);
    assert_eq!(limit(&server), 3);
    assert_eq!(versions(&server)["rolledBackFrom"], Value::Null);
    refresh(&server);
    assert_eq!(limit(&server), 3);
    // The old text counts again, because the rollback has ended.
    server.write(&rules("", 1));
    server.look().unwrap().unwrap();
    assert_eq!(limit(&server), 1);
    let ended = server.trail("what=config.rollback.ended");
    assert_eq!(ended[0]["from"]["insteadOf"], json!(low));
    assert_eq!(ended[0]["who"], "file");
}

#[test]
fn the_file_and_older_versions_are_compared_with_the_config_in_force() {
    let server = ConfigFileServer::start(&rules("", 5));
    keep(&server);
    let first = names(&server)[0].clone();
    let diff = |query: &str| server.ask("", &format!("/v1/config/diff{query}"), None);
    let same = diff("").json();
    assert_eq!(same["inForce"], json!(first));
    assert_eq!(same["configVersion"], json!(first));
    assert_eq!(same["differences"], json!([]));
    // The file has changed, and was not read yet.
    server.write(&rules("namespace: other", 1));
    let changed = diff("").json();
    assert_eq!(changed["changes"]["changed"]["ids"], json!(["api"]));
    let told = changed["differences"].as_array().unwrap();
    let told: Vec<&str> = told.iter().filter_map(Value::as_str).collect();
    assert!(told.contains(&"rule api: limit 5 becomes 1: less for tenants without a plan"));
    assert_eq!(changed["needsRestart"], json!(["namespace"]));
    assert_eq!(limit(&server), 5);
    assert!(whats(&server).is_empty());
    // A file that would be rejected.
    server.write("version: 2\n");
    let bad = diff("");
    assert_eq!(
        (bad.status, &bad.json()["code"]),
        (422, &json!("BAD_CONFIG"))
    );
    assert!(whats(&server).is_empty(), "a comparison is no reload");
    // An older version.
    server.write(&rules("", 1));
    server.look().unwrap().unwrap();
    let back = diff(&format!("?version={first}")).json();
    assert_eq!(back["configVersion"], json!(first));
    let more = "rule api: limit 1 becomes 5: more for tenants without a plan";
    assert_eq!(back["differences"], json!([more]));
    assert_eq!(limit(&server), 1);
    assert_eq!(diff("?version=000000000000").status, 404);
    assert_eq!(diff("?other=1").status, 400);
}

#[test]
fn a_reload_ends_a_rollback() {
    let server = ConfigFileServer::start(&rules("", 5));
    keep(&server);
    server.write(&rules("", 1));
    server.look().unwrap().unwrap();
    let high = names(&server)[1].clone();
    assert_eq!(rollback(&server, &high).status, 200);
    assert_eq!(server.reload().json()["outcome"], "applied");
    assert_eq!(limit(&server), 1);
    refresh(&server);
    assert_eq!(limit(&server), 1);
    let expected = [
        "config.reload",
        "config.rollback",
        "config.reload",
        "config.rollback.ended",
    ];
    assert_eq!(whats(&server), expected);
    let rolled = &server.trail("what=config.rollback")[1];
    assert_eq!(
        (&rolled["why"], &rolled["v"]),
        (&json!("too low"), &json!(1))
    );
    assert_eq!(rolled["to"]["version"], json!(high));
}

#[test]
fn instances_share_versions_and_follow_a_rollback() {
    let redis = Redis::start();
    let store = format!(
        "store: {{ redis: {{ url: \"{}\", timeout: 10s, connect_timeout: 10s }} }}",
        redis.url()
    );
    let rules = |limit| rules(&store, limit);
    let (one, other) = (
        ConfigFileServer::start(&rules(5)),
        ConfigFileServer::start(&rules(5)),
    );
    // The third instance gets the new file later.
    let slow = ConfigFileServer::start(&rules(5));
    keep(&one);
    for server in [&one, &other] {
        server.write(&rules(1));
        server.look().unwrap().unwrap();
    }
    let known = names(&other);
    assert_eq!(known.len(), 2, "{known:?}");
    let rolled = rollback(&other, &known[1]);
    assert_eq!(rolled.status, 200, "{}", rolled.text);
    for server in [&one, &slow] {
        refresh(server);
    }
    assert_eq!([&one, &other, &slow].map(limit), [5, 5, 5]);
    // The file that was rolled back reaches the last instance, and has no effect.
    slow.write(&rules(1));
    slow.look();
    assert_eq!(limit(&slow), 5);
    // An instance that starts with that file follows the rollback.
    let late = ConfigFileServer::start(&rules(1));
    refresh(&late);
    assert_eq!(limit(&late), 5);

    // A fixed file counts on each instance that has it. The others hold the older version.
    one.write(&rules(4));
    one.look().unwrap().unwrap();
    for server in [&other, &slow, &late] {
        refresh(server);
        assert_eq!(limit(server), 5);
    }
    assert_eq!(limit(&one), 4);
    other.write(&rules(4));
    other.look().unwrap().unwrap();
    assert_eq!(limit(&other), 4);

    // One trail has the changes of all.
    let sees_all = || {
        let trail = slow.trail("what=config.rollback.ended");
        trail.len() == 1
    };
    tollgate_rig::wait::until(
        "the trail is shared",
        std::time::Duration::from_secs(20),
        sees_all,
    );
    let trail = slow.trail("what=config.rollback");
    let whats: Vec<&str> = trail
        .iter()
        .map(|it| it["what"].as_str().unwrap())
        .collect();
    assert_eq!(whats, ["config.rollback.ended", "config.rollback"]);
    // Redis has no secret.
    for key in redis.cli(&["KEYS", "*"]).lines() {
        let kind = redis.cli(&["TYPE", key]);
        let text = match kind.trim() {
            "hash" => redis.cli(&["HGETALL", key]),
            "list" => redis.cli(&["LRANGE", key, "0", "-1"]),
            _ => String::new(),
        };
        assert!(!text.contains(SECRET), "{key}: {text}");
    }
}

#[test]
fn a_version_has_its_text_without_secrets() {
    let server = ConfigFileServer::start(&rules("", 5));
    keep(&server);
    let version = names(&server)[0].clone();
    let shown = server.ask("", &format!("/v1/config/versions/{version}"), None);
    let text = shown.json()["text"].as_str().unwrap().to_owned();
    assert!(
        text.contains("limit: 5") && text.contains("hash_secret: <secret "),
        "{text}"
    );
    assert!(!text.contains(SECRET));
    let unknown = server.ask("", "/v1/config/versions/000000000000", None);
    assert_eq!(
        (unknown.status, &unknown.json()["code"]),
        (404, &json!("NO_SUCH_VERSION"))
    );
}

#[test]
fn a_rollback_that_cannot_be_made_changes_nothing() {
    let server = ConfigFileServer::start(&rules("", 5));
    keep(&server);
    let first = names(&server)[0].clone();
    let unknown = rollback(&server, "000000000000");
    assert_eq!(
        (unknown.status, &unknown.json()["code"]),
        (404, &json!("NO_SUCH_VERSION"))
    );
    let in_file = rollback(&server, &first);
    assert_eq!(
        (in_file.status, &in_file.json()["code"]),
        (409, &json!("NOT_RESTORABLE"))
    );
    assert!(
        in_file.text.contains("reload it instead"),
        "{}",
        in_file.text
    );
    for body in [
        json!({ "version": first }),
        json!({ "version": first, "reason": " " }),
    ] {
        let answer = server.ask("", "/v1/rollback", Some(&body.to_string()));
        assert_eq!(answer.status, 400, "{}", answer.text);
    }
    // The file has another secret than the older version.
    server.write(&rules("", 1).replace(SECRET, "another secret of it"));
    server.look().unwrap().unwrap();
    let secrets = rollback(&server, &first);
    assert_eq!(
        (secrets.status, &secrets.json()["code"]),
        (409, &json!("NOT_RESTORABLE"))
    );
    assert!(secrets.text.contains("has 1 secrets"), "{}", secrets.text);
    assert_eq!(limit(&server), 1);
    assert!(!whats(&server).contains(&"config.rollback".to_owned()));
}
