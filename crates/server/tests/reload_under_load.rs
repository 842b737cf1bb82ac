//! A thousand reloads under load: no request fails or sees half of a config, no usage is lost, and
//! memory does not grow.

#![allow(clippy::unwrap_used)] // Test helpers may panic.

mod common;

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use common::config_file::ConfigFileServer;
use serde_json::Value;
use tollgate::{Ask, Attributes, Config, Decision, Engine};
use tollgate_rig::Redis;
use tollgate_server::control::Outcome;

const RELOADS: u64 = 1000;

/// The limits of the two rules are these numbers plus the number of the config.
const BASES: [u64; 2] = [1_000_000_000, 2_000_000_000];

/// How much memory may grow between the middle and the end of the reloads. If every config stayed
/// in memory, the growth would be ten times as much.
const MAX_GROWTH: u64 = 8 * 1024 * 1024;

/// Only one test runs at a time, because all tests measure the same memory.
static ALONE: Mutex<()> = Mutex::new(());

/// Returns the config with this number. It has two rules that change together, and one that never
/// changes, in a changing order. The other rules make the config large.
fn yaml(top: &str, number: u64) -> String {
    let mut text = format!("version: 1\n{top}headers: {{ families: [ietf] }}\nrules:\n");
    let pair = ["one", "two"].iter().zip(BASES);
    let mut rules: Vec<String> = pair
        .map(|(id, base)| {
            let limit = base + number;
            format!("{{ id: {id}, algorithm: fixed-window, limit: {limit}, window: 30d }}")
        })
        .collect();
    rules.push("{ id: all, algorithm: fixed-window, limit: 3000000000, window: 30d }".to_owned());
    if number % 2 == 1 {
        rules.reverse();
    }
    for other in 0..50 {
        rules.push(format!(
            "{{ id: other-{other}, match: {{ action: \"none-{other}\" }}, per: [user], algorithm: gcra, rate: 5/s, burst: 9 }}"
        ));
    }
    for rule in rules {
        writeln!(text, "  - {rule}").unwrap();
    }
    text
}

fn parse(yaml: &str) -> Config {
    tollgate_config::parse("rules.yaml", yaml, &|_| None).unwrap()
}

/// Maps the version of each config to its number.
fn versions(top: &str, reloads: u64) -> HashMap<String, u64> {
    let numbered = (0..=reloads).map(|number| (parse(&yaml(top, number)).policy.version, number));
    numbered.collect()
}

/// Fails unless the decision belongs to one config as a whole.
fn is_whole(decision: &Decision, versions: &HashMap<String, u64>) {
    assert!(decision.is_allowed());
    let number = versions[decision.config_version()];
    for rule in decision.rules() {
        let limit = rule.limit().unwrap();
        match rule.rule().id() {
            "one" => assert_eq!(limit, BASES[0] + number),
            "two" => assert_eq!(limit, BASES[1] + number),
            other => assert_eq!(other, "all"),
        }
    }
    assert_eq!(decision.rules().len(), 3);
}

/// Fails unless an answer over HTTP, and its headers, belong to one config as a whole.
fn is_whole_answer(body: &Value, policies: &[String], versions: &HashMap<String, u64>) {
    assert_eq!(body["allowed"], true, "{body}");
    let number = versions[body["configVersion"].as_str().unwrap()];
    let limit = |id: &str| match id {
        "one" => BASES[0] + number,
        "two" => BASES[1] + number,
        _ => 3_000_000_000,
    };
    let rules = body["rules"].as_array().unwrap();
    assert_eq!(rules.len(), 3, "{body}");
    for (rule, policy) in rules.iter().zip(policies) {
        let id = rule["ruleId"].as_str().unwrap();
        assert_eq!(rule["limit"], limit(id), "{id} of {number}: {body}");
        let expected = format!("\"{id}\";q={};w=2592000", limit(id));
        assert_eq!(*policy, expected, "of {number}");
    }
    assert_eq!(policies.len(), 3);
}

/// Returns the resident memory of this process, in bytes.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = pages.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// Asks over HTTP until told to stop, on one connection.
fn ask_over_http(url: &str, stop: &AtomicBool, asked: &AtomicU64, versions: &HashMap<String, u64>) {
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .build()
        .into();
    while !stop.load(Ordering::Relaxed) {
        let answer = agent.post(url).send(r#"{"attributes":{"user":"ann"}}"#);
        let mut answer = answer.unwrap();
        assert_eq!(answer.status(), 200);
        asked.fetch_add(1, Ordering::Relaxed);
        let policies = answer.headers().get_all("ratelimit-policy").iter();
        let policies: Vec<String> = policies.map(|it| it.to_str().unwrap().to_owned()).collect();
        let body = answer.body_mut().read_to_string().unwrap();
        let body = serde_json::from_str(&body).unwrap();
        is_whole_answer(&body, &policies, versions);
    }
}

fn ask_the_engine(
    engine: &Engine,
    stop: &AtomicBool,
    asked: &AtomicU64,
    versions: &HashMap<String, u64>,
) {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.unwrap().block_on(async {
        let ann = Attributes::from([("user", "ann")]);
        while !stop.load(Ordering::Relaxed) {
            is_whole(&engine.ask(&ann, Ask::Exactly(1)).await, versions);
            asked.fetch_add(1, Ordering::Relaxed);
        }
    });
}

/// Returns for each rule how many units were used, and how many checks it allowed.
fn used(engine: &Engine, runtime: &tokio::runtime::Runtime) -> Vec<(u64, u64)> {
    let live = engine.active();
    let ann = Attributes::from([("user", "ann")]);
    let decision = runtime.block_on(engine.peek(&ann, Ask::Exactly(0)));
    let counts = live.metrics().counts();
    let rules = decision.rules().map(|rule| {
        let used = rule.limit().unwrap() - rule.remaining().unwrap();
        (used, counts[rule.index()].allowed)
    });
    rules.collect()
}

#[test]
fn thousand_reloads_under_load() {
    let _alone = ALONE.lock();
    let server = ConfigFileServer::start(&yaml("", 0));
    let versions = versions("", RELOADS);
    assert_eq!(versions.len() as u64, RELOADS + 1);
    let url = format!("http://{}/v1/check", server.http);
    let (stop, asked) = (AtomicBool::new(false), AtomicU64::new(0));
    let growth = std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| ask_over_http(&url, &stop, &asked, &versions));
        }
        for _ in 0..2 {
            scope.spawn(|| ask_the_engine(server.control.engine(), &stop, &asked, &versions));
        }
        // If this fails, the other threads still end.
        let reloading = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut middle = 0;
            let aside = server.folder.path().join("aside.yaml");
            for number in 1..=RELOADS {
                std::fs::write(&aside, yaml("", number)).unwrap();
                std::fs::rename(&aside, server.file()).unwrap();
                let change = server
                    .block_on(server.control.reload("test", None))
                    .unwrap();
                assert_eq!(change.outcome, Outcome::Applied);
                assert_eq!(change.changes.changed.ids.len(), 2);
                if number == RELOADS / 2 {
                    middle = resident();
                }
            }
            resident().saturating_sub(middle)
        }));
        stop.store(true, Ordering::Relaxed);
        reloading.unwrap()
    });
    let asked = asked.load(Ordering::Relaxed);
    println!("{asked} requests, {growth} bytes");
    assert!(
        asked > 2 * RELOADS,
        "{asked} requests are too few for a load"
    );
    let runtime = tokio::runtime::Runtime::new().unwrap();
    assert_eq!(used(server.control.engine(), &runtime), [(asked, asked); 3]);
    assert!(growth < MAX_GROWTH, "memory has grown by {growth} bytes");
    assert_eq!(server.control.reloads()[0], ("applied", RELOADS));
    assert_eq!(server.trail("what=config.reload&limit=1000").len(), 1000);
}

#[test]
fn reloads_keep_the_state_in_redis() {
    const RELOADS: u64 = 200;
    let _alone = ALONE.lock();
    let redis = Redis::start();
    let top = format!(
        "subjects: {{ hash_secret: 0123456789abcdef }}\nstore: {{ redis: {{ url: \"{}\", timeout: 5s }} }}\n",
        redis.url()
    );
    let versions = Arc::new(versions(&top, RELOADS));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let config = parse(&yaml(&top, 0));
    let engine = Arc::new(runtime.block_on(Engine::start(&config)).unwrap());
    let (stop, asked) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    runtime.block_on(async {
        let askers: Vec<_> = (0..8)
            .map(|_| {
                let (engine, versions) = (Arc::clone(&engine), Arc::clone(&versions));
                let (stop, asked) = (Arc::clone(&stop), Arc::clone(&asked));
                tokio::spawn(async move {
                    let ann = Attributes::from([("user", "ann")]);
                    while !stop.load(Ordering::Relaxed) {
                        let decision = engine.ask(&ann, Ask::Exactly(1)).await;
                        assert_eq!(decision.fallback(), None);
                        is_whole(&decision, &versions);
                        asked.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        for number in 1..=RELOADS {
            let (config, engine) = (parse(&yaml(&top, number)), Arc::clone(&engine));
            let reloaded = tokio::task::spawn_blocking(move || engine.reload(&config));
            assert!(reloaded.await.unwrap().needs_restart.is_empty());
        }
        stop.store(true, Ordering::Relaxed);
        for asker in askers {
            asker.await.unwrap();
        }
    });
    let asked = asked.load(Ordering::Relaxed);
    assert!(asked > RELOADS, "{asked} requests are too few for a load");
    assert_eq!(used(&engine, &runtime), [(asked, asked); 3]);
}
