//! The compose file.

use std::process::Command;

use serde_json::{Value, json};
use tollgate_rig::Redis;

use crate::{checkout, documents, fail, run, validate};

const SECRET: &str = "sixteen bytes or more";
const PASSWORD: &str = "redis-password";

fn compose(arguments: &[&str]) -> Command {
    let mut compose = Command::new("docker-compose");
    compose.args(arguments);
    compose.current_dir(checkout("deploy/compose"));
    compose.env_remove("TOLLGATE_SECRET");
    compose.env_remove("REDIS_PASSWORD");
    compose
}

/// Returns the file as docker-compose reads it, with its variables.
pub(crate) fn config() -> Value {
    let mut config = compose(&["config"]);
    config.env("TOLLGATE_SECRET", SECRET);
    config.env("REDIS_PASSWORD", PASSWORD);
    documents(&run(&mut config)).remove(0)
}

#[test]
fn docker_compose_accepts_the_file() {
    let tollgate = &config()["services"]["tollgate"];
    assert_eq!(tollgate["read_only"], true);
    assert_eq!(tollgate["cap_drop"], json!(["ALL"]));
    assert!(tollgate["ports"].to_string().contains("127.0.0.1"));
    assert_eq!(
        tollgate["depends_on"]["redis"]["condition"],
        "service_healthy"
    );
    let context = tollgate["build"]["context"].as_str().unwrap();
    assert_eq!(std::path::Path::new(context), checkout(""));
    validate(&checkout("deploy/compose/tollgate.yaml"));
}

#[test]
fn secrets_are_required() {
    let printed = fail(&mut compose(&["config"]));
    assert!(
        printed.contains("put it into .env, see deploy/README.md"),
        "{printed}"
    );
}

#[test]
fn redis_takes_the_arguments() {
    let config = config();
    let arguments = config["services"]["redis"]["command"].as_array().unwrap();
    let arguments: Vec<&str> = arguments.iter().filter_map(Value::as_str).collect();
    assert_eq!(arguments[0], "redis-server");
    let redis = Redis::with().args(&arguments[1..]).start();
    let policy = [
        "-a",
        PASSWORD,
        "--no-auth-warning",
        "CONFIG",
        "GET",
        "maxmemory-policy",
    ];
    assert_eq!(redis.cli(&policy), "maxmemory-policy\nnoeviction");
}
