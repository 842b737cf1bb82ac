//! `tollgate serve` as a new user sees it: started from a shell, called with curl, stopped by a signal.

#![allow(clippy::unwrap_used, reason = "a failed helper fails its test")]

mod common;

use std::io::BufRead;
use std::process::{Command, Output};
use std::time::Duration;

use common::Serving;
use tollgate_rig::{Redis, wait};

fn sh(line: &str) -> Output {
    let output = Command::new("sh").args(["-c", line]).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        !error.contains("curl: not found") && !error.contains("curl: command not found"),
        "this test needs curl: apt-get install -y curl"
    );
    output
}

fn stdout(line: &str) -> String {
    String::from_utf8(sh(line).stdout).unwrap()
}

#[test]
fn printed_requests_lead_to_a_429() {
    let serving = Serving::start(&[]);
    let url = serving.url.clone();
    let (printed, _) = Serving::start(&[]).interrupt();
    let lines: Vec<String> = printed
        .lines()
        .filter_map(|line| line.strip_prefix("  "))
        .map(|line| replace_address(line, &url))
        .collect();
    assert_eq!(lines.len(), 5, "{printed}");
    assert_eq!(stdout(&lines[0]), "200\n200\n200\n200\n200\n429\n");
    assert!(stdout(&lines[1]).starts_with("HTTP/1.1 200 OK"));
    stdout(&lines[1]);
    let third = stdout(&lines[1]);
    assert!(third.starts_with("HTTP/1.1 429"), "{third}");
    assert!(third.contains("retry-after:"), "{third}");
    assert!(stdout(&lines[2]).contains(r#""ruleId":"llm-tokens""#));
    let mails = stdout(&lines[3]);
    assert!(mails.contains("QUEUE_FULL"), "{mails}");
    let metrics = stdout(&lines[4]);
    assert!(metrics.contains(
        r#"rate_limit_checks_total{rule="login",algorithm="sliding-log",outcome="rejected"} 1"#
    ));
}

#[test]
fn one_line_protects_a_service() {
    let service = Serving::start(&[]);
    let args = ["--gateway", "127.0.0.1:0", "--upstream", &service.url];
    let mut serving = Serving::start(&args);
    let output = serving.stdout.as_mut().unwrap().lines().map(Result::unwrap);
    let lines: Vec<String> = output
        .filter_map(|line| Some(line.strip_prefix("  ")?.to_owned()))
        .take(3)
        .collect();
    let answer = stdout(&format!("{}healthz", lines[0]));
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    assert!(
        answer.contains("ratelimit-remaining: 99") && answer.ends_with("ok\n"),
        "{answer}"
    );
    assert!(lines[1].contains("seq 150"), "{lines:?}");
    let metrics = stdout(&lines[2]);
    assert!(
        metrics.contains(
            r#"tollgate_upstream_requests_total{upstream="upstream",outcome="answered"} 1"#
        ),
        "{metrics}"
    );
    for wrong in [
        ["--upstream", "http://127.0.0.1:1"].as_slice(),
        &["--gateway", "127.0.0.1:0"],
        &["--gateway", "127.0.0.1:0", "--upstream", "127.0.0.1:1"],
    ] {
        let tollgate = env!("CARGO_BIN_EXE_tollgate");
        let ended = Command::new(tollgate)
            .arg("serve")
            .args(wrong)
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&ended.stderr);
        assert!(
            !ended.status.success() && error.contains("http://"),
            "{wrong:?}: {error}"
        );
    }
}

/// Replaces the address in a line by that of another server.
fn replace_address(line: &str, url: &str) -> String {
    let start = line.find("http://").unwrap();
    let path = line[start + 7..].find('/').unwrap() + start + 7;
    format!("{}{url}{}", &line[..start], &line[path..])
}

#[test]
fn signal_stops_the_server_with_exit_code_0() {
    let serving = Serving::start(&["--config", "tests/cmd/rules.yaml"]);
    assert_eq!(stdout(&format!("curl -s {}/healthz", serving.url)), "ok\n");
    let (printed, code) = serving.interrupt();
    assert_eq!(code, Some(0));
    assert!(
        printed.ends_with("finishing requests in flight\nstopped\n"),
        "{printed}"
    );
}

#[test]
fn server_with_closed_output_still_stops_gracefully() {
    let mut serving = Serving::start(&[]);
    drop(serving.stdout.take());
    serving.signal("-INT");
    assert_eq!(serving.child.wait().unwrap().code(), Some(0));
}

#[test]
fn check_command_calls_a_running_server() {
    let serving = Serving::start(&["--config", "tests/cmd/rules.yaml"]);
    let ask = || {
        Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .args([
                "check",
                "--server",
                &serving.url,
                "action=login",
                "user=ann",
            ])
            .output()
            .unwrap()
    };
    let text = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();
    let first = ask();
    assert_eq!(
        text(&first),
        "allowed by login (sliding-log), 1 of 2 left\n"
    );
    assert_eq!(first.status.code(), Some(0));
    ask();
    let third = ask();
    assert_eq!(third.status.code(), Some(1));
    assert!(text(&third).starts_with("denied by login (sliding-log), 0 of 2 left, retry in "));
}

#[test]
fn check_command_shows_a_denial_with_a_body_of_any_text() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rules.yaml");
    let body = "{ content_type: text/plain, template: \"Slow down, {{rule}}.\\n\" }";
    let rules = format!(
        "version: 1\nheaders: {{ denial_body: {body} }}\n\
         rules: [{{ id: api, per: [user], algorithm: fixed-window, limit: 1, window: 300d }}]\n"
    );
    std::fs::write(&file, rules).unwrap();
    let serving = Serving::start(&["--config", file.to_str().unwrap()]);
    let check = |more: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .args(["check", "--server", &serving.url, "user=ann"])
            .args(more)
            .output()
            .unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stdout).unwrap(),
        )
    };
    assert_eq!(check(&[]).0, Some(0));
    assert_eq!(
        check(&[]),
        (Some(1), "denied: Slow down, api.\n".to_owned())
    );
    assert_eq!(
        check(&["--json"]),
        (Some(1), "\"Slow down, api.\\n\"\n".to_owned())
    );
}

#[test]
fn flags_open_all_doors_and_the_printed_requests_work() {
    let any = "127.0.0.1:0";
    let mut serving = Serving::start(&["--grpc", any, "--resp", any, "--admin", any]);
    let mut lines = serving.stdout.take().unwrap().lines();
    let mut line_that = |start: &str| {
        let mut lines = lines.by_ref().map(|line| line.unwrap());
        lines.find(|line| line.starts_with(start)).unwrap()
    };
    assert!(line_that("grpc on http://127.0.0.1:").len() > 20);
    assert!(line_that("resp on redis://127.0.0.1:").len() > 20);
    assert!(line_that("admin on http://127.0.0.1:").len() > 20);
    line_that("admin needs no token: every user of this machine may change limits");
    let check = line_that("  redis-cli -h 127.0.0.1");
    assert!(stdout(&check).contains("login"), "{check}");
    let throttle = line_that("  redis-cli -h 127.0.0.1");
    assert_eq!(stdout(&throttle), "0\n16\n15\n-1\n2\n", "{throttle}");
    let rules = stdout(&line_that("  curl http://127.0.0.1"));
    assert!(rules.contains(r#""ruleId":"login""#), "{rules}");
    // All doors share one engine, so each counts the decisions of the others.
    let metrics = stdout(&format!("curl -s {}/metrics", serving.url));
    let counted =
        r#"rate_limit_checks_total{rule="login",algorithm="sliding-log",outcome="allowed"} 1"#;
    assert!(metrics.contains(counted), "{metrics}");
}

#[test]
fn door_that_cannot_open_is_an_error() {
    for (args, message, help) in [
        (
            ["--resp", "127.0.0.1:7071", "--grpc", "127.0.0.1:7071"],
            "`resp` cannot listen on 127.0.0.1:7071: `grpc` listens there",
            "choose another port",
        ),
        (
            ["--admin", "0.0.0.0:0", "--resp", "127.0.0.1:0"],
            "anyone could enter the admin door",
            "tokens",
        ),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .args(["serve", "--http", "127.0.0.1:0"])
            .args(args)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2));
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains(message) && error.contains(help), "{error}");
    }
}

#[test]
fn taken_port_is_an_error() {
    let serving = Serving::start(&[]);
    let taken = serving.url.strip_prefix("http://").unwrap();
    let second = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["serve", "--http", taken])
        .output()
        .unwrap();
    assert_eq!(second.status.code(), Some(2));
    let error = String::from_utf8_lossy(&second.stderr);
    assert!(
        error.contains(&format!("cannot listen on {taken}")),
        "{error}"
    );
    assert!(error.contains("--http"), "{error}");
}

#[test]
fn server_uses_the_tls_of_the_config() {
    let folder = tempfile::TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    std::fs::write(path("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(path("key.pem"), made.signing_key.serialize_pem()).unwrap();
    let config = |key: &str| {
        format!(
            "version: 1\nserver: {{ tls: {{ cert: {}, key: {} }} }}\nrules: []\n",
            path("cert.pem"),
            path(key)
        )
    };
    std::fs::write(path("rules.yaml"), config("key.pem")).unwrap();
    let serving = Serving::start(&["--config", &path("rules.yaml")]);
    let url = serving.url.replace("127.0.0.1", "localhost");
    assert!(url.starts_with("https://"), "{url}");
    for (version, flag) in [("1.1", "--http1.1"), ("2", "--http2")] {
        let line = format!(
            "curl -s {flag} --cacert {} -o /dev/null -w '%{{http_version}} %{{http_code}}' {url}/healthz",
            path("cert.pem")
        );
        assert_eq!(stdout(&line), format!("{version} 200"));
    }

    std::fs::write(path("wrong.yaml"), config("absent.pem")).unwrap();
    let wrong = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args([
            "serve",
            "--http",
            "127.0.0.1:0",
            "--config",
            &path("wrong.yaml"),
        ])
        .output()
        .unwrap();
    assert_eq!(wrong.status.code(), Some(2));
    let error = String::from_utf8_lossy(&wrong.stderr);
    assert!(
        error.contains("absent.pem") && error.contains("server.tls"),
        "{error}"
    );
}

#[test]
fn overrides_are_read_before_the_address_is_printed() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().display().to_string();
    std::fs::write(folder.path().join("overrides.json"), "{").unwrap();
    let log = std::fs::File::create(folder.path().join("log")).unwrap();
    let _serving = Serving::start_with(&["--data", &data], log.into());
    let log = std::fs::read_to_string(folder.path().join("log")).unwrap();
    assert!(log.contains("failed to read overrides"), "{log}");
    assert!(log.contains("overrides.json"), "{log}");
}

#[test]
fn audit_trail_is_complete_when_the_server_stops() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().display().to_string();
    let over = serde_json::json!({ "tenant:acme/*": {
        "tenant": "acme", "scale": "50%", "reason": "x", "setAtEpochMillis": 1, "expiresAtEpochMillis": 2,
    }});
    std::fs::write(folder.path().join("overrides.json"), over.to_string()).unwrap();
    let (_, code) = Serving::start(&["--data", &data]).interrupt();
    assert_eq!(code, Some(0));
    let trail = std::fs::read_to_string(folder.path().join("audit.jsonl")).unwrap();
    assert!(trail.contains("override.expired"), "{trail}");
}

/// Writes a config with rules on `redis`, and returns its directory and its path.
fn config_on(redis: &Redis, settings: &str, policy: &str) -> (tempfile::TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("rules.yaml");
    let text = format!(
        r#"
version: 1
subjects: {{ hash_secret: 0123456789abcdef }}
store: {{ redis: {{ url: "{}", {settings} }} }}
rules:
  - {{ id: all, per: [user], algorithm: fixed-window, limit: 5, window: 30d{policy} }}
"#,
        redis.url()
    );
    std::fs::write(&file, text).unwrap();
    (directory, file.display().to_string())
}

fn check(url: &str) -> String {
    stdout(&format!(
        "curl -s {url}/v1/check -d '{{\"attributes\":{{\"user\":\"ann\"}}}}'"
    ))
}

#[test]
fn start_waits_for_a_redis_that_is_paused() {
    start_waits(Redis::pause, Redis::resume);
}

#[test]
fn start_waits_for_a_redis_that_starts_later() {
    start_waits(Redis::kill, Redis::restart);
}

/// If Redis does not answer for a while, the server keeps trying to start.
fn start_waits(stop: fn(&Redis), start: fn(&Redis)) {
    let redis = Redis::start();
    stop(&redis);
    let (directory, config) = config_on(&redis, "connect_patience: 5m", "");
    let log = directory.path().join("log");
    let stderr = std::fs::File::create(&log).unwrap();
    let serving = std::thread::scope(|scope| {
        let starting = scope.spawn(|| Serving::start_with(&["--config", &config], stderr.into()));
        wait::until("the first attempt fails", Duration::from_secs(60), || {
            let log = std::fs::read_to_string(&log).unwrap();
            log.contains("the store cannot be reached yet")
        });
        start(&redis);
        starting.join().unwrap()
    });
    let answer = check(&serving.url);
    assert!(answer.contains(r#""remaining":4"#), "{answer}");
    let ready = stdout(&format!("curl -s {}/readyz", serving.url));
    assert!(!ready.contains("storeProblem"), "{ready}");
}

/// If every rule has a failure policy, the server starts while Redis is down, and uses Redis once it is up.
#[test]
fn start_without_redis_if_every_rule_has_a_policy() {
    let redis = Redis::start();
    redis.pause();
    let settings = "connect_patience: 1ms, circuit_breaker: { timeout_duration: 50ms }";
    let (directory, config) = config_on(&redis, settings, ", on_store_failure: fail-open");
    let log = directory.path().join("log");
    let stderr = std::fs::File::create(&log).unwrap();
    let serving = Serving::start_with(&["--config", &config], stderr.into());
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(text.contains("starting without it"), "{text}");
    let answer = check(&serving.url);
    assert!(answer.contains(r#""fallback":"fail-open""#), "{answer}");
    let ready = || stdout(&format!("curl -s {}/readyz", serving.url));
    let problem = ready();
    assert!(problem.contains("storeProblem"), "{problem}");
    redis.resume();
    let limit = Duration::from_secs(60);
    wait::until("the store is there", limit, || {
        !ready().contains("storeProblem")
    });
    wait::until("the store decides", limit, || {
        check(&serving.url).contains(r#""fallback":null"#)
    });
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(text.contains("the store answers now"), "{text}");
    let printed = serving.interrupt().0;
    assert!(!printed.contains("panicked"), "{printed}");
}

/// A rule without a failure policy would answer 503, so the server does not start.
#[test]
fn start_without_redis_fails_if_a_rule_has_no_policy() {
    let redis = Redis::start();
    redis.pause();
    let (_directory, config) = config_on(&redis, "connect_patience: 300ms", "");
    let output = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["serve", "--http", "127.0.0.1:0", "--config", &config])
        .output()
        .unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{error}");
    for text in [
        "store.redis.urls",
        "does not answer",
        "on_store_failure",
        "--without-store",
    ] {
        assert!(error.contains(text), "{text}: {error}");
    }
    // A command that a person runs does not wait for Redis.
    let output = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["check", "--live", "--config", &config, "user=ann"])
        .output()
        .unwrap();
    assert!(!output.status.success());
}
