//! The log of denied requests on standard error, and traces sent to a collector.

#![allow(clippy::unwrap_used, reason = "a failed helper fails its test")]

mod collector;
mod common;

use std::fmt::Write;
use std::io::Read;
use std::process::Stdio;

use collector::{Collector, Traced};
use serde_json::Value;
use tollgate_rig::Redis;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

/// Values that must not appear in logs or traces.
const SECRETS: [&str; 3] = ["ann@example.com", "key-of-ann", "203.0.113.9"];

struct Serving {
    server: common::Serving,
    _folder: tempfile::TempDir,
}

impl Serving {
    /// Starts a server with these settings and two rules: one with a limit of 1 per user, one that needs a key.
    fn start(settings: &str, args: &[&str]) -> Serving {
        let folder = tempfile::TempDir::new().unwrap();
        let config = folder.path().join("rules.yaml");
        let rules = format!(
            "version: 1\nsubjects: {{ hash_secret: a secret of 16 bytes }}\n{settings}\nrules:\n  \
             - {{ id: login, match: {{ action: login }}, per: [tenant, user, ip], algorithm: fixed-window, limit: 1, window: 1h }}\n  \
             - {{ id: api, per: [api_key], algorithm: gcra, rate: 1000/s, burst: 1000 }}\n"
        );
        std::fs::write(&config, rules).unwrap();
        let config = config.display().to_string();
        let args = [&["--config", &config], args].concat();
        Serving {
            server: common::Serving::start_with(&args, Stdio::piped()),
            _folder: folder,
        }
    }

    /// Sends a login, and returns the status.
    fn login(&self, traceparent: Option<&str>) -> u16 {
        self.post("check", traceparent)
    }

    fn post(&self, what: &str, traceparent: Option<&str>) -> u16 {
        let body = serde_json::json!({ "attributes": {
            "action": "login",
            "tenant": "acme",
            "user": SECRETS[0],
            "api_key": SECRETS[1],
            "ip": SECRETS[2],
        } });
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .build()
            .new_agent();
        let mut request = agent.post(format!("{}/v1/{what}", self.server.url));
        if let Some(traceparent) = traceparent {
            request = request
                .header("traceparent", traceparent)
                .header("tracestate", "user=ann@example.com");
        }
        request.send_json(body).unwrap().status().as_u16()
    }

    /// Stops the server, and returns its log.
    fn stop(mut self) -> String {
        self.server.signal("-INT");
        let child = &mut self.server.child;
        let mut log = String::new();
        let stderr = child.stderr.as_mut().unwrap();
        stderr.read_to_string(&mut log).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0), "{log}");
        for secret in SECRETS {
            assert!(!log.contains(secret), "{log}");
        }
        log
    }
}

fn json_lines(log: &str) -> Vec<Value> {
    let lines = log.lines().filter(|line| line.starts_with('{'));
    lines.map(|it| serde_json::from_str(it).unwrap()).collect()
}

#[test]
fn denial_is_logged_as_json_at_any_level() {
    let serving = Serving::start("", &["--log", "off"]);
    assert_eq!(serving.login(None), 200);
    for _ in 0..12 {
        assert_eq!(serving.login(None), 429);
    }
    let log = serving.stop();
    let lines = json_lines(&log);
    assert_eq!(lines.len(), log.lines().count(), "{log}");
    // `rejections_per_second` counts seconds of a real clock, and the requests fall into one or two
    // seconds.
    assert!((10..=12).contains(&lines.len()), "{log}");
    let line = &lines[0];
    assert_eq!(line["target"], "tollgate::rejections");
    assert_eq!(line["message"], "denied");
    assert_eq!(line["event"], "rate_limit_denied");
    assert_eq!(
        (&line["door"], &line["action"]),
        (&"http".into(), &"login".into())
    );
    assert_eq!(line["ruleId"], "login");
    assert_eq!(line["tenantId"], "acme");
    assert_eq!(line["subjectType"], "tenant+user+ip");
    assert_eq!(line["subjectHashPrefix"].as_str().unwrap().len(), 8);
    assert_eq!(line["algorithm"], "fixed-window");
    assert_eq!((&line["limit"], &line["remaining"]), (&1.into(), &0.into()));
    assert!(line["retryAfterMillis"].as_u64().unwrap() <= 3_600_000);
    assert_eq!(line["reason"], "exceeded");
    assert_eq!(line["configVersion"].as_str().unwrap().len(), 12);
    assert!(line["timestamp"].is_string());
}

#[test]
fn logs_are_text_unless_json_is_chosen() {
    // An unreachable collector makes the server log something.
    let otlp = "telemetry: { otlp: 'http://127.0.0.1:1', sample: 100% }";
    for (args, is_json) in [(&[][..], false), (&["--log-format", "json"][..], true)] {
        let serving = Serving::start(otlp, args);
        assert_eq!(serving.login(None), 200);
        let log = serving.stop();
        let line = log.lines().find(|it| it.contains("failed to send traces"));
        let line = line.unwrap_or_else(|| panic!("{log}"));
        assert_eq!(line.starts_with('{'), is_json, "{log}");
        if is_json {
            assert_eq!(json_lines(&log).len(), log.lines().count(), "{log}");
        }
    }
}

/// Sends requests, and checks the spans that the collector received.
fn traces(store: &str, settings: &str) {
    let collector = Collector::start();
    let otlp = format!(
        "telemetry: {{ otlp: 'http://{}/otlp', sample: 0% }}\n{settings}",
        collector.address
    );
    let serving = Serving::start(&otlp, &[]);
    let sampled = format!("00-{TRACE}-{PARENT}-01");
    let not_sampled = format!("00-{TRACE}-{PARENT}-00");
    assert_eq!(serving.login(Some(&sampled)), 200);
    assert_eq!(serving.login(Some(&sampled)), 429);
    assert_eq!(serving.post("peek", Some(&sampled)), 200);
    assert_eq!(serving.post("refund", Some(&sampled)), 200);
    // The server samples neither of the next two requests.
    serving.login(Some(&not_sampled));
    serving.login(None);
    serving.stop();

    let Traced { bytes, spans, .. } = collector.take();
    for secret in SECRETS {
        let found = bytes
            .windows(secret.len())
            .any(|it| it == secret.as_bytes());
        assert!(!found, "{secret} was exported");
    }
    let mut seen = String::new();
    let mut decisions: Vec<_> = spans.iter().filter(|it| it.name == "decision").collect();
    decisions.sort_by_key(|it| it.start);
    assert_eq!(decisions.len(), 4, "{spans:#?}");
    for decision in &decisions {
        assert_eq!((&*decision.trace, &*decision.parent), (TRACE, PARENT));
        assert!(decision.start <= decision.end);
        assert_eq!(decision.attribute("config_version").len(), 12);
        let outcome = decision.attribute("outcome");
        let [door, operation, rule, rules] =
            ["door", "operation", "rule", "rules"].map(|name| decision.attribute(name));
        writeln!(seen, "{door} {operation} {outcome} {rule} of {rules}").unwrap();
        let mut children = spans.iter().filter(|it| it.parent == decision.id);
        if let Some(call) = children.next() {
            assert_eq!(call.trace, TRACE);
            assert!(call.start >= decision.start && call.end <= decision.end);
            assert_eq!(call.attribute("store"), store);
            let (outcome, charges) = (call.attribute("outcome"), call.attribute("charges"));
            writeln!(seen, "  {} {outcome} of {charges}", call.name).unwrap();
        }
        assert_eq!(children.count(), 0, "one call each");
    }
    assert_eq!(
        seen,
        "http check allowed login of 2\n  store.apply allowed of 2\n\
         http check refused login of 2\n  store.apply refused of 2\n\
         http peek refused login of 2\n  store.peek refused of 2\n\
         http refund allowed login of 2\n  store.refund done of 2\n"
    );
    assert_eq!(spans.len(), 8, "{spans:#?}");
}

#[test]
fn decisions_in_memory_are_traced_under_their_parents() {
    traces("memory", "");
}

#[test]
fn decisions_in_redis_are_traced_under_their_parents() {
    let redis = Redis::start();
    let settings = format!(
        "store: {{ redis: {{ url: 'redis://127.0.0.1:{}', timeout: 5s }} }}",
        redis.port()
    );
    traces("redis", &settings);
}

#[test]
fn sampled_requests_without_a_trace_start_their_own() {
    let collector = Collector::start();
    let otlp = format!(
        "telemetry: {{ otlp: 'http://{}', sample: 100% }}",
        collector.address
    );
    let serving = Serving::start(&otlp, &[]);
    serving.login(None);
    serving.login(None);
    serving.stop();
    let Traced {
        paths,
        spans,
        service,
        ..
    } = collector.take();
    assert!(paths.iter().all(|it| it == "/v1/traces"), "{paths:?}");
    assert_eq!(service, "tollgate");
    let roots: Vec<_> = spans.iter().filter(|it| it.parent.is_empty()).collect();
    assert_eq!(roots.len(), 2, "{spans:#?}");
    assert!(roots.iter().all(|it| it.name == "decision"));
    assert_ne!(roots[0].trace, roots[1].trace);
}

#[test]
fn spans_show_a_store_failure_and_the_deciding_policy() {
    let collector = Collector::start();
    let redis = Redis::start();
    let settings = format!(
        "telemetry: {{ otlp: 'http://{}', sample: 100% }}\n\
         store: {{ redis: {{ url: 'redis://127.0.0.1:{}' }} }}",
        collector.address,
        redis.port()
    );
    let serving = Serving::start(&settings, &[]);
    drop(redis);
    assert_eq!(serving.login(None), 503);
    serving.stop();
    let Traced { spans, .. } = collector.take();
    let call = spans.iter().find(|it| it.name == "store.apply").unwrap();
    assert_eq!(call.attribute("outcome"), "error");
    assert_ne!(call.attribute("error.type"), "");
    assert!(call.is_error);
    let decision = spans.iter().find(|it| it.name == "decision").unwrap();
    assert_eq!(decision.attribute("outcome"), "refused");
    assert_eq!(decision.id, call.parent);
}

#[test]
fn unreachable_or_silent_collector_does_not_affect_decisions() {
    // The system accepts the connections, and nothing ever answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    for address in [
        "127.0.0.1:1".to_owned(),
        silent.local_addr().unwrap().to_string(),
    ] {
        let settings = format!("telemetry: {{ otlp: 'http://{address}', sample: 100% }}");
        let serving = Serving::start(&settings, &[]);
        assert_eq!(serving.login(None), 200);
        // More than one batch of spans, so that the exporter starts to send.
        for _ in 0..600 {
            assert_eq!(serving.login(None), 429);
        }
        serving.stop();
    }
}
