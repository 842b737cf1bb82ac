//! The container file, and the container as the compose file runs it.

use std::fs;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use tollgate_rig::{Redis, tools, wait};

use crate::image::Images;
use crate::{checkout, compose, output, run};

const FILE: &str = "deploy/container/Containerfile";

#[test]
fn hadolint_accepts_the_container_file() {
    let mut hadolint = Command::new(tools::hadolint());
    run(hadolint
        .args(["--failure-threshold", "style"])
        .arg(checkout(FILE)));
}

#[test]
fn container_decides_without_rights_and_is_healthy() {
    let images = Images::build(&checkout(FILE));
    let image = images.inspect();
    assert_eq!(image["Config"]["User"], "65532:65532");
    let health = &image["Healthcheck"]["Test"];
    assert_eq!(*health, json!(["CMD", "tollgate", "health"]));

    let redis = Redis::with()
        .args(["--requirepass", "redis-password"])
        .start();
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("tollgate.yaml");
    fs::copy(checkout("deploy/compose/tollgate.yaml"), &place).unwrap();
    let service = compose::config()["services"]["tollgate"].clone();
    let list = |name: &str| {
        let list = service[name].as_array().unwrap().iter();
        list.map(|it| it.as_str().unwrap().to_owned())
    };
    let environment = service["environment"].as_object().unwrap();

    // As the compose file says, but on the network of this machine and with a Redis of this test.
    let mut start = images.podman(&["run", "--detach", "--name", "tollgate", "--network", "host"]);
    if service["read_only"] == Value::Bool(true) {
        start.arg("--read-only");
    }
    start.args(list("cap_drop").map(|it| format!("--cap-drop={it}")));
    start.args(list("security_opt").map(|it| format!("--security-opt={}", it.replace(':', "="))));
    for (name, value) in environment {
        start.args(["--env", &format!("{name}={}", value.as_str().unwrap())]);
    }
    start.args([
        "--env",
        "TOLLGATE_HTTP=127.0.0.1:0",
        "--env",
        "TOLLGATE_ADMIN=127.0.0.1:0",
    ]);
    start.args([
        "--env",
        &format!(
            "TOLLGATE_STORE=redis://:redis-password@127.0.0.1:{}",
            redis.port()
        ),
    ]);
    start.args([
        "--volume",
        &format!("{}:/etc/tollgate/tollgate.yaml:ro", place.display()),
    ]);
    start.arg(Images::NAME).args(list("command"));
    run(&mut start);

    let url = wait::at_most(Duration::from_secs(20), || {
        let log = run(&mut images.podman(&["logs", "tollgate"]));
        let mut lines = log.lines();
        lines.find_map(|line| Some(line.strip_prefix("listening on ")?.to_owned()))
    });
    let url = url.unwrap_or_else(|| panic!("{}", run(&mut images.podman(&["logs", "tollgate"]))));

    let inside = |arguments: &[&str]| {
        let mut exec = images.podman(&["exec", "tollgate", "tollgate"]);
        output(exec.args(arguments))
    };
    let health = inside(&["health", "--server", &url]);
    assert_eq!(health.status.code(), Some(0), "{health:?}");
    let unhealthy = inside(&["health", "--server", "http://127.0.0.1:1"]);
    assert_eq!(unhealthy.status.code(), Some(1), "{unhealthy:?}");
    let check = inside(&["check", "--server", &url, "action=login", "user=ann"]);
    let check = String::from_utf8(check.stdout).unwrap();
    assert_eq!(check.trim(), "allowed by login (sliding-log), 4 of 5 left");
    let scan = [
        "-a",
        "redis-password",
        "--no-auth-warning",
        "--scan",
        "--pattern",
        "tg:v1:*:login:*",
    ];
    assert_eq!(redis.cli(&scan).lines().count(), 1, "Redis has no state");

    let pid = run(&mut images.podman(&["inspect", "--format", "{{.State.Pid}}", "tollgate"]));
    let status = fs::read_to_string(format!("/proc/{}/status", pid.trim())).unwrap();
    for line in [
        "Uid:\t65532\t65532",
        "CapEff:\t0000000000000000",
        "NoNewPrivs:\t1",
    ] {
        assert!(status.contains(line), "{line}: {status}");
    }
    run(&mut images.podman(&["stop", "--time", "60", "tollgate"]));
    let log = run(&mut images.podman(&["logs", "tollgate"]));
    assert!(log.ends_with("stopped\n"), "{log}");
    let code = run(&mut images.podman(&["inspect", "--format", "{{.State.ExitCode}}", "tollgate"]));
    assert_eq!(code.trim(), "0");
}
