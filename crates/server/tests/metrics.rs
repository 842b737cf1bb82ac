//! The metrics, the alerts on them and the dashboard that shows them.

#![allow(clippy::unwrap_used, clippy::panic)] // Test helpers may panic.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use common::Running;
use serde_json::{Value, json};
use tollgate::Engine;
use tollgate_rig::{Redis, wait};
use tollgate_server::events::Webhook;
use tollgate_server::journal::Journal;
use tollgate_server::{ControlPlane, Doors};

const RULES: &str = r"
events: { webhook: { url: 'http://127.0.0.1:1/', secret: 0123456789abcdef } }
rules:
  - { id: monthly, per: [user], algorithm: quota, limit: 1000000, period: month, on_store_failure: fail-open }
  - { id: user, per: [user], algorithm: fixed-window, limit: 5, window: 10d }
  - { id: watch, per: [user], algorithm: sliding-log, limit: 1, window: 10d, state: shadow }
  - { id: roomy, per: [user], algorithm: gcra, rate: 1000000/s, burst: 1000000, on_store_failure: fail-open, max_wait: 1s }
  - { id: open, algorithm: gcra, rate: unlimited }
  - id: pool
    store: local
    algorithm: token-bucket
    capacity: 1000000
    refill: 1000000/s
    fair:
      per: [user]
      weights: { plan: { pro: 5 } }
      lanes: { by: priority, shares: { high: 60%, low: 40% } }
";

/// The metrics that other dashboards may rely on, with their labels.
const PROMISED: [(&str, &[&str]); 24] = [
    ("rate_limit_checks_total", &["rule", "algorithm", "outcome"]),
    (
        "rate_limit_rejected_total",
        &["rule", "subject_type", "reason", "kind"],
    ),
    ("rate_limit_shadow_rejected_total", &["rule"]),
    ("rate_limit_near_limit_total", &["rule"]),
    ("rate_limit_near_limit_events_total", &["rule", "threshold"]),
    ("tollgate_webhook_deliveries_total", &["outcome"]),
    ("tollgate_webhook_queue_length", &[]),
    (
        "rate_limit_fair_checks_total",
        &["rule", "lane", "weight", "outcome"],
    ),
    ("rate_limit_fair_units_total", &["rule", "lane", "weight"]),
    ("rate_limit_fair_clients", &["rule", "lane", "weight"]),
    ("rate_limit_fair_lane_share", &["rule", "lane"]),
    ("rate_limit_remaining", &["rule"]),
    ("rate_limit_hot_keys", &["rule", "subject"]),
    ("rate_limit_throttle_total", &["outcome"]),
    ("tollgate_build_info", &["version", "config_version"]),
    ("rate_limit_config_reloads_total", &["outcome"]),
    ("rate_limit_config_last_reload_success", &[]),
    ("rate_limit_audit_errors_total", &[]),
    ("rate_limit_fallback_total", &["policy"]),
    ("rate_limit_holds_rejected_total", &["reason"]),
    ("rate_limit_denials_held_back", &[]),
    ("rate_limit_delayed_denials_total", &["outcome"]),
    ("rate_limit_waiting", &["rule"]),
    ("rate_limit_wait_seconds_count", &["rule", "outcome"]),
];
const PROMISED_IN_MEMORY: [(&str, &[&str]); 4] = [
    ("rate_limit_keys", &["namespace"]),
    ("rate_limit_max_keys", &["namespace"]),
    ("rate_limit_memory_bytes", &["namespace"]),
    ("rate_limit_shared_decisions_total", &["namespace"]),
];
const PROMISED_WITH_A_STORE: [(&str, &[&str]); 27] = [
    ("rate_limit_keys", &["namespace"]),
    ("rate_limit_max_keys", &["namespace"]),
    ("rate_limit_shared_decisions_total", &["namespace"]),
    ("rate_limit_anonymous_keys", &["namespace"]),
    ("rate_limit_max_anonymous_keys", &["namespace"]),
    ("rate_limit_rule_keys", &["namespace", "rule"]),
    ("rate_limit_rule_memory_bytes", &["namespace", "rule"]),
    ("rate_limit_redis_used_memory_bytes", &["server"]),
    ("rate_limit_redis_max_memory_bytes", &["server"]),
    ("rate_limit_store_clock_ahead_seconds", &["server"]),
    ("rate_limit_redis_latency_ms_count", &["script", "outcome"]),
    ("rate_limit_redis_batch_size_count", &[]),
    ("rate_limit_script_errors_total", &["script", "error_type"]),
    ("rate_limit_known_denials_total", &[]),
    ("rate_limit_prepaid_decisions_total", &["by"]),
    ("rate_limit_prepaid_draws_total", &[]),
    ("rate_limit_prepaid_units_total", &["what"]),
    ("rate_limit_prepaid_keys", &[]),
    ("rate_limit_prepaid_usable_units", &[]),
    ("rate_limit_async_decisions_total", &["by"]),
    ("rate_limit_async_reports_total", &[]),
    ("rate_limit_async_units_total", &["what"]),
    ("rate_limit_async_overdrawn_units_total", &[]),
    ("rate_limit_async_keys", &[]),
    ("rate_limit_async_pending_units", &[]),
    ("rate_limit_store_in_flight", &[]),
    ("rate_limit_breaker_state", &["server", "state"]),
];
const PROMISED_WITH_A_LEDGER: [(&str, &[&str]); 6] = [
    ("tollgate_ledger_connected", &[]),
    ("tollgate_ledger_lag_seconds", &[]),
    ("tollgate_ledger_queued_entries", &[]),
    ("tollgate_ledger_spilled_entries", &[]),
    ("tollgate_ledger_written_total", &[]),
    ("tollgate_ledger_failures_total", &[]),
];

/// Returns the metrics page of a server in memory that has decided many requests.
fn page_in_memory() -> String {
    let server = Running::start(&format!("version: 1{RULES}"));
    ask(&server);
    page(&server)
}

/// Returns the metrics page of a server whose Redis is gone.
fn page_with_a_store() -> String {
    let redis = Redis::start();
    // With the usual timeout, a busy machine could open the breaker, and then the keys are not counted.
    let store = format!(
        "version: 1\nsubjects: {{ hash_secret: 0123456789abcdef }}\n\
         store: {{ redis: {{ url: \"{}\", timeout: 2s }} }}",
        redis.url()
    );
    let near =
        "  - { id: near, store: local, algorithm: fixed-window, limit: 100000, window: 10d }\n";
    let server = Running::start(&format!("{store}{RULES}{near}"));
    ask(&server);
    wait::until("a count of the keys", Duration::from_secs(20), || {
        page(&server).contains("rate_limit_rule_keys{")
    });
    ask(&server);
    redis.kill();
    ask(&server);
    page(&server)
}

/// Returns the metrics page of a server with all doors, with TLS at one of them.
fn page_of_all_doors() -> String {
    let folder = tempfile::tempdir().unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let cert = params.self_signed(&key).unwrap();
    let [cert_file, key_file] = ["cert.pem", "key.pem"].map(|name| folder.path().join(name));
    std::fs::write(&cert_file, cert.pem()).unwrap();
    std::fs::write(&key_file, key.serialize_pem()).unwrap();
    let any = "127.0.0.1:0";
    let yaml = format!(
        "version: 1\nsubjects: {{ hash_secret: sixteen bytes or more }}\n\
         telemetry: {{ denials: {{ directory: {} }} }}\nserver:\n  http: {any}\n  grpc: {any}\n  admin: {any}\n  \
         gateway: {{ address: \"{any}\", access_log: {{ format: json, file: {} }} }}\n  \
         resp: {{ address: \"{any}\", tls: {{ cert: {}, key: {} }} }}\n\
         upstreams: {{ app: {{ servers: [\"http://127.0.0.1:9\"], adaptive: true }} }}{RULES}  \
         - {{ id: next, candidate_of: user, algorithm: fixed-window, limit: 3, window: 10d }}\n  \
         - {{ id: slots, match: {{ user: nobody }}, algorithm: concurrency, limit: 5, adaptive: true }}\n",
        folder.path().join("denials").display(),
        folder.path().join("access.log").display(),
        cert_file.display(),
        key_file.display(),
    );
    let config = tollgate_config::parse("rules.yaml", &yaml, &|_| None).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let (tell, told) = std::sync::mpsc::channel();
    let serving = runtime.spawn(async move {
        let engine = Arc::new(Engine::start(&config).await.unwrap());
        let doors = Doors::open(&config).await.unwrap();
        tell.send(doors.addresses().unwrap()[0].address).unwrap();
        let webhook = Webhook::start(&engine).unwrap();
        let journal = Journal::start(&engine).unwrap();
        let control = ControlPlane::of(engine).with_journal(journal);
        let control = Arc::new(control.with_webhook(webhook));
        doors
            .serve(control, async {
                drop(stopped.await);
                Duration::ZERO
            })
            .await;
    });
    let http = told.recv().unwrap();
    let url = |path: &str| format!("http://{http}{path}");
    for user in ["ann", "bob"] {
        let body = format!(r#"{{"attributes":{{"user":"{user}"}}}}"#);
        assert_eq!(common::post(&url("/v1/check"), &body, &[]).status, 200);
    }
    let page = common::get(&url("/metrics"), &[]).text;
    drop(stop);
    runtime.block_on(serving).unwrap();
    page
}

/// Returns the metrics page of a server with a ledger.
fn page_with_a_ledger() -> String {
    let folder = tempfile::tempdir().unwrap();
    let books = folder.path().join("books.db");
    let ledger = format!(
        "version: 1\nsubjects: {{ hash_secret: 0123456789abcdef }}\nledger: {{ sqlite: {} }}",
        books.display()
    );
    let server = Running::start(&format!("{ledger}{RULES}"));
    ask(&server);
    page(&server)
}

fn ask(server: &Running) {
    let ann = r#"{"attributes":{"user":"ann"}}"#;
    let batch = format!(r#"{{"requests":[{}]}}"#, [ann; 200].join(","));
    // Enough that each thread of the server has looked for hot keys.
    for _ in 0..10 {
        assert_eq!(server.post("/v1/check/batch", &batch).status, 200);
    }
}

fn page(server: &Running) -> String {
    let answer = server.get("/metrics");
    assert_eq!(
        answer.header("content-type"),
        "text/plain; version=0.0.4; charset=utf-8"
    );
    answer.text
}

/// Returns the first sample of a metric: its labels and its value.
fn sample<'p>(page: &'p str, name: &str) -> Option<(Vec<&'p str>, &'p str)> {
    page.lines().find_map(|line| {
        let (series, value) = line.rsplit_once(' ')?;
        let labels = match series.strip_prefix(name)? {
            "" => "",
            rest => rest.strip_prefix('{')?.strip_suffix('}')?,
        };
        let names = labels.split("\",").filter_map(|it| it.split('=').next());
        Some((names.filter(|it| !it.is_empty()).collect(), value))
    })
}

#[test]
fn promised_metrics_exist_with_their_labels() {
    for (page, more) in [
        (page_in_memory(), PROMISED_IN_MEMORY.as_slice()),
        (page_with_a_store(), PROMISED_WITH_A_STORE.as_slice()),
        (page_with_a_ledger(), PROMISED_WITH_A_LEDGER.as_slice()),
    ] {
        for (name, labels) in PROMISED.iter().chain(more) {
            let (found, _) = sample(&page, name).unwrap_or_else(|| panic!("no {name}: {page}"));
            assert_eq!(found, *labels, "{name}");
        }
        assert!(!page.contains("ann"), "{page}");
    }
}

#[test]
fn least_remaining_is_since_the_last_scrape() {
    let server = Running::start(&format!("version: 1{RULES}"));
    let ann = r#"{"attributes":{"user":"ann"}}"#;
    server.post("/v1/check", ann);
    server.post("/v1/check", ann);
    let least = r#"rate_limit_remaining{rule="user"}"#;
    assert!(page(&server).contains(&format!("{least} 3\n")));
    assert!(!page(&server).contains(least));
    server.post("/v1/check", r#"{"attributes":{"user":"bob"}}"#);
    assert!(page(&server).contains(&format!("{least} 4\n")));
}

#[test]
fn fair_rules_are_counted_by_lane_and_weight() {
    let server = Running::start(
        "version: 1
rules:
  - id: pool
    algorithm: token-bucket
    capacity: 10
    refill: 1/h
    fair: { per: [user], weights: { plan: { pro: 5 } }, lanes: { by: priority, shares: { high: 60%, low: 40% }, strict: [low] } }
",
    );
    let ask = |user: &str, plan: &str, priority: &str, cost: u32| {
        let attributes = json!({ "user": user, "plan": plan, "priority": priority });
        let body = json!({ "attributes": attributes, "cost": cost });
        server.post("/v1/check", &body.to_string()).status
    };
    assert_eq!(ask("ann", "pro", "high", 3), 200);
    assert_eq!(ask("bob", "free", "low", 1), 200);
    assert_eq!(ask("bob", "free", "low", 4), 429);
    let page = page(&server);
    for line in [
        r#"rate_limit_fair_checks_total{rule="pool",lane="high",weight="5",outcome="allowed"} 1"#,
        r#"rate_limit_fair_checks_total{rule="pool",lane="low",weight="1",outcome="allowed"} 1"#,
        r#"rate_limit_fair_checks_total{rule="pool",lane="low",weight="1",outcome="rejected"} 1"#,
        r#"rate_limit_fair_units_total{rule="pool",lane="high",weight="5"} 3"#,
        r#"rate_limit_fair_units_total{rule="pool",lane="high",weight="1"} 0"#,
        r#"rate_limit_fair_units_total{rule="pool",lane="low",weight="1"} 1"#,
        r#"rate_limit_fair_clients{rule="pool",lane="low",weight="1"} 1"#,
        r#"rate_limit_fair_clients{rule="pool",lane="high",weight="5"} 1"#,
        r#"rate_limit_fair_lane_share{rule="pool",lane="high"} 0.6"#,
    ] {
        assert!(page.contains(line), "no {line} in {page}");
    }
}

/// Returns the metrics that docs/metrics.md lists, with their labels.
fn documented() -> BTreeMap<String, BTreeSet<String>> {
    let docs = include_str!("../../../docs/metrics.md");
    let (metrics, _) = docs.split_once("## Alerts").unwrap();
    let words = |cell: &str| -> Vec<String> {
        let quoted = cell.split('`').skip(1).step_by(2);
        quoted.map(str::to_owned).collect()
    };
    let mut all = BTreeMap::new();
    for row in metrics.lines().filter(|line| line.starts_with("| `")) {
        let mut cells = row.split('|').skip(1);
        let (names, labels) = (cells.next().unwrap(), cells.next().unwrap());
        for name in words(names) {
            let is_metric = ["rate_limit_", "tollgate_", "process_"];
            if is_metric.iter().any(|prefix| name.starts_with(prefix)) {
                let labels = words(labels).into_iter().collect();
                assert!(all.insert(name.clone(), labels).is_none(), "{name} twice");
            }
        }
    }
    all
}

#[test]
fn documentation_lists_every_metric_with_its_labels_and_no_other() {
    let pages = [
        page_in_memory(),
        page_with_a_store(),
        page_with_a_ledger(),
        page_of_all_doors(),
    ];
    let mut documented = documented();
    let mut found: BTreeSet<&str> = BTreeSet::new();
    for page in &pages {
        for line in page.lines().filter_map(|it| it.strip_prefix("# TYPE ")) {
            let (name, kind) = line.split_once(' ').unwrap();
            let labels = documented.get(name);
            let labels = labels.unwrap_or_else(|| panic!("docs/metrics.md lacks {name}"));
            let counted = format!("{name}_count");
            let name_of_sample = if kind == "histogram" { &counted } else { name };
            if let Some((shown, _)) = sample(page, name_of_sample) {
                let shown: BTreeSet<String> = shown.into_iter().map(str::to_owned).collect();
                assert_eq!(shown, *labels, "{name}");
            }
            found.insert(name);
        }
    }
    documented.retain(|name, _| !found.contains(name.as_str()));
    assert!(documented.is_empty(), "these do not exist: {documented:?}");
}

#[test]
fn promtool_accepts_the_metrics() {
    assert_eq!(lint(&page_of_all_doors()), "");
    assert_eq!(lint(&page_in_memory()), "");
    assert_eq!(lint(&page_with_a_ledger()), "");
    // The name is required as it is, although the convention would be seconds.
    let complaint =
        "rate_limit_redis_latency_ms metric names should not contain abbreviated units\n";
    assert_eq!(lint(&page_with_a_store()), complaint);
}

/// Runs promtool on a page, and returns the problems that it reports.
fn lint(page: &str) -> String {
    let mut promtool = promtool(&["check", "metrics"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| missing(&error));
    promtool
        .stdin
        .take()
        .unwrap()
        .write_all(page.as_bytes())
        .unwrap();
    let output = promtool.wait_with_output().unwrap();
    // Exit code 3: lints, but nothing worse.
    let code = output.status.code();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(matches!(code, Some(0 | 3)), "{said}\n{page}");
    said
}

#[test]
fn alerts_pass_their_tests() {
    for args in [
        ["check", "rules", "tollgate.rules.yml"],
        ["test", "rules", "tollgate.rules.test.yml"],
    ] {
        let output = promtool(&args)
            .current_dir(deploy("prometheus"))
            .output()
            .unwrap_or_else(|error| missing(&error));
        let printed = String::from_utf8_lossy(&output.stdout);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{printed}{said}");
    }
}

#[test]
fn every_metric_of_alerts_dashboard_and_docs_exists() {
    let pages = [
        page_in_memory(),
        page_with_a_store(),
        page_with_a_ledger(),
        page_of_all_doors(),
    ];
    let pages = pages.concat();
    let mut known = BTreeSet::new();
    for line in pages.lines().filter_map(|it| it.strip_prefix("# TYPE ")) {
        let (name, kind) = line.split_once(' ').unwrap();
        if kind == "histogram" {
            known.extend(["bucket", "sum", "count"].map(|part| format!("{name}_{part}")));
        } else {
            known.insert(name.to_owned());
        }
    }
    let mut used = BTreeSet::new();
    for file in [
        "prometheus/tollgate.rules.yml",
        "prometheus/tollgate.rules.test.yml",
        "grafana/tollgate.json",
    ] {
        let text = std::fs::read_to_string(deploy(file)).unwrap();
        let words = text.split(|it: char| !it.is_ascii_alphanumeric() && !"_:".contains(it));
        for word in words {
            let is_metric = ["rate_limit_", "tollgate_", "process_"];
            if is_metric.iter().any(|prefix| word.starts_with(prefix)) {
                assert!(
                    known.contains(word),
                    "{file} names {word}, which is not a metric"
                );
                used.insert(word.to_owned());
            }
        }
    }
    assert!(used.len() > 50, "{used:?}");
    // The docs also name histograms as a whole.
    let histograms = pages
        .lines()
        .filter_map(|it| it.strip_prefix("# TYPE ")?.strip_suffix(" histogram"));
    known.extend(histograms.map(str::to_owned));
    // Words of Envoy and of examples.
    known.extend(["rate_limit_service", "rate_limit_exceeded"].map(str::to_owned));
    known.extend(["rate_limit_denied", "tollgate_version"].map(str::to_owned));
    // A crate.
    known.insert("tollgate_tower".to_owned());
    for page in std::fs::read_dir(deploy("../docs")).unwrap() {
        let page = page.unwrap().path();
        if page.extension().is_none_or(|it| it != "md") {
            continue;
        }
        let text = std::fs::read_to_string(&page).unwrap();
        for word in text.split(|it: char| !it.is_ascii_alphanumeric() && it != '_') {
            let is_metric = ["rate_limit_", "tollgate_", "process_"];
            if is_metric
                .iter()
                .any(|it| word.starts_with(it) && word != *it)
            {
                let page = page.display();
                assert!(
                    known.contains(word),
                    "{page} names {word}, which is not a metric"
                );
            }
        }
    }
}

/// Returns the names of all alerts.
fn alerts() -> BTreeSet<String> {
    let rules = std::fs::read_to_string(deploy("prometheus/tollgate.rules.yml")).unwrap();
    let alerts = rules
        .lines()
        .filter_map(|it| it.trim().strip_prefix("- alert: "));
    alerts.map(str::to_owned).collect()
}

#[test]
fn every_alert_is_documented_and_tested() {
    let docs = include_str!("../../../docs/metrics.md");
    let tests = std::fs::read_to_string(deploy("prometheus/tollgate.rules.test.yml")).unwrap();
    for alert in alerts() {
        assert!(docs.contains(&format!("| `{alert}` |")), "{alert}");
        let is_tested = tests.lines().any(|line| {
            // An entry that expects alerts is written over several lines.
            line.trim() == format!("alertname: {alert}")
        });
        assert!(is_tested, "{alert} has no test");
    }
}

#[test]
fn queries_of_the_dashboard_are_valid() {
    let text = std::fs::read_to_string(deploy("grafana/tollgate.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().unwrap());
    let rules: Vec<Value> = targets
        .enumerate()
        .map(|(number, target)| {
            let query = target["expr"].as_str().unwrap();
            let query = query.replace("$__rate_interval", "5m");
            json!({ "record": "a:query", "labels": { "n": number.to_string() }, "expr": query })
        })
        .collect();
    let file = tempfile::NamedTempFile::new().unwrap();
    let group = json!({ "groups": [{ "name": "dashboard", "rules": rules }] });
    std::fs::write(file.path(), group.to_string()).unwrap();
    let checked = promtool(&["check", "rules"]).arg(file.path()).output();
    let checked = checked.unwrap_or_else(|error| missing(&error));
    let said = String::from_utf8_lossy(&checked.stderr);
    assert!(checked.status.success(), "{said}");
}

#[test]
fn dashboard_is_complete() {
    let text = std::fs::read_to_string(deploy("grafana/tollgate.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    let source = variables.iter().find(|it| it["type"] == "datasource");
    assert_eq!(source.unwrap()["name"], "datasource");
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<_> = panels.iter().map(|it| it["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len());
    for panel in panels {
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty(), "{panel}");
        for from in targets.iter().chain([panel]) {
            assert_eq!(from["datasource"]["uid"], "${datasource}", "{panel}");
        }
    }
    for shown in [
        "rate_limit_waiting",
        "rate_limit_wait_seconds_bucket",
        "rate_limit_fair_lane_share",
        "rate_limit_holds_rejected_total",
        "tollgate_upstream_concurrency_limit",
        "tollgate_upstream_shed_total",
    ] {
        assert!(text.contains(shown), "no panel shows {shown}");
    }
}

fn deploy(file: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
    root.join(file)
}

fn promtool(args: &[&str]) -> Command {
    let mut promtool = Command::new("promtool");
    promtool.args(args);
    promtool
}

fn missing<T>(error: &std::io::Error) -> T {
    panic!("promtool does not run: {error}\n    install: apt-get install -y prometheus");
}

/// Each store has keys of its own, and `store` tells them apart. A metric is described once.
#[test]
fn keys_are_counted_for_each_store() {
    let [main, other] = [Redis::start(), Redis::start()];
    let redis = |it: &Redis| format!("redis: {{ url: \"{}\", timeout: 2s }}", it.url());
    let stores = [
        (format!("store: {{ {} }}", redis(&main)), "any"),
        ("store: memory".to_owned(), "reservation"),
    ];
    for (store, kind) in stores {
        let server = Running::start(&format!(
            "version: 1\nsubjects: {{ hash_secret: 0123456789abcdef }}\n{store}\nstores: {{ other: {{ {} }} }}\n\
             rules:\n  \
             - {{ id: near, match: {{ action: near }}, per: [user], algorithm: fixed-window, limit: 9, window: 10d }}\n  \
             - {{ id: far, match: {{ action: far }}, per: [user], store: other, algorithm: fixed-window, limit: 9, \
             window: 10d }}\n",
            redis(&other)
        ));
        for (action, users) in [("near", 2), ("far", 3)] {
            for user in 0..users {
                let attributes = json!({ "action": action, "user": user.to_string() });
                let asked = server.post(
                    "/v1/check",
                    &json!({ "attributes": attributes }).to_string(),
                );
                assert_eq!(asked.status, 200, "{}", asked.text);
            }
        }
        let lines = [
            r#"rate_limit_rule_keys{namespace="default",rule="far",store="other"} 3"#,
            r#"rate_limit_max_keys{namespace="default",store="default"} 10000000"#,
            r#"rate_limit_max_keys{namespace="default",store="other"} 10000000"#,
            r#"rate_limit_shared_decisions_total{namespace="default",store="other"} 0"#,
            r#"rate_limit_open_holds{namespace="default",store="other",kind="any"} 0"#,
            r#"rate_limit_anonymous_keys{namespace="default",store="other"} 0"#,
            &format!(
                r#"rate_limit_open_holds{{namespace="default",store="default",kind="{kind}"}} 0"#
            ),
        ];
        wait::until("a count of the keys", Duration::from_secs(20), || {
            let page = page(&server);
            lines.iter().all(|line| page.contains(line))
        });
        let page = page(&server);
        for store in ["default", "other"] {
            let keys = format!("rate_limit_keys{{namespace=\"default\",store=\"{store}\"}} ");
            assert_eq!(page.matches(&keys).count(), 1, "{page}");
        }
        assert_eq!(page.matches("# TYPE rate_limit_keys ").count(), 1);
    }
}
