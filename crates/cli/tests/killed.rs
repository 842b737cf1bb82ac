//! Kills a server under load many times, and compares the ledger with the answers that clients got.
//!
//! In each run each client has its own tenant, and sends one request after the other. So the ledger of
//! a tenant must agree with the answers of one client, except for one request that may have been in
//! flight.
//!
//! * Most runs are killed under load, with clients of a strict rule and clients of an async rule.
//! * In some runs all clients use the async rule, so only the flush interval brings entries to the disk.
//! * In some runs the load ends and the ledger is flushed before the kill: then nothing may be missing.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test that prints how much was lost"
)]

mod common;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use common::Serving;
use tollgate_ledger::{Database, Ledger, Options, UsageQuery};
use tollgate_rig::{Postgres, Stopwatch, wait};

/// How many runs are killed under a load of both rules.
const MIXED: usize = 50;
const CLIENTS: usize = 4;
/// How many answers each client gets before the kill.
const ANSWERS: usize = 5;
const LIMIT: u64 = 100_000_000;
/// The flush interval: after this time, entries are on disk.
const FLUSH: Duration = Duration::from_millis(50);
/// The time that a busy machine may add to the flush interval: one transaction and one write to disk.
const SLACK: Duration = Duration::from_millis(700);
/// The timeout of conditions that must become true.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The load of a run, and whether the ledger is flushed before the kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Run {
    Mixed,
    AsyncOnly,
    Flushed,
}

/// Returns all runs, with the kinds mixed.
fn runs() -> Vec<Run> {
    let runs = (0..MIXED).flat_map(|number| {
        let more = match number % 10 {
            2 | 7 => Some(Run::AsyncOnly),
            5 => Some(Run::Flushed),
            _ => None,
        };
        std::iter::once(Run::Mixed).chain(more)
    });
    runs.collect()
}

impl Run {
    /// Returns how long the load lasts, so that kills happen at different points of the flush interval.
    fn load(self, number: usize) -> Duration {
        let odd = Duration::from_millis(number as u64 * 37 % 100);
        match self {
            Run::Mixed | Run::Flushed => Duration::from_millis(150) + odd,
            // Much longer than `FLUSH + SLACK`, the time before the kill in which entries may be
            // missing.
            Run::AsyncOnly => (FLUSH + SLACK) * 2 + odd,
        }
    }

    /// Returns the action of a client: `pay` has the strict rule, `look` the async rule.
    fn action(self, client: usize) -> &'static str {
        match self {
            Run::Mixed | Run::Flushed if client.is_multiple_of(2) => "pay",
            _ => "look",
        }
    }
}

/// The answers that a client got.
struct Answers {
    tenant: String,
    action: &'static str,
    /// When each of the client's admitted requests was answered.
    admitted: Vec<Duration>,
    /// Whether the client's last request was not answered.
    is_unsure: bool,
}

/// The ledger under test.
struct TestLedger<'a> {
    name: &'static str,
    database: Database,
    spill: PathBuf,
    /// The server of a PostgreSQL ledger. Its sessions may last for a moment after Tollgate was killed.
    postgres: Option<&'a Postgres>,
}

#[test]
fn sqlite_ledger_survives_kills() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("books.db");
    let ledger = TestLedger {
        name: "SQLite",
        spill: directory.path().join("books.spill"),
        database: Database::Sqlite(path.clone()),
        postgres: None,
    };
    kill_often(&format!("sqlite: {}", path.display()), &ledger);
}

#[test]
fn postgres_ledger_survives_kills() {
    let postgres = Postgres::start();
    let directory = tempfile::tempdir().unwrap();
    let ledger = TestLedger {
        name: "PostgreSQL",
        spill: directory.path().join("books.spill"),
        database: Database::Postgres(postgres.url()),
        postgres: Some(&postgres),
    };
    kill_often(&format!("postgres: \"{}\"", postgres.url()), &ledger);
}

fn kill_often(section: &str, ledger: &TestLedger<'_>) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tollgate.yaml");
    let rule = |id: &str, durability: &str| {
        format!(
            "  - {{ id: {id}, match: {{ action: {id} }}, per: [tenant], algorithm: quota, \
             limit: {LIMIT}, period: year, durability: {durability} }}\n"
        )
    };
    let text = format!(
        "version: 1\nledger: {{ {section}, spill: {}, flush_interval: {}ms }}\n\
         subjects: {{ hash_secret: a secret of sixteen bytes }}\nrules:\n{}{}",
        ledger.spill.display(),
        FLUSH.as_millis(),
        rule("pay", "strict"),
        rule("look", "async")
    );
    std::fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();

    let name = ledger.name;
    let mut recorded = BTreeMap::new();
    let (mut paid, mut looked, mut lost) = (0, 0, 0);
    let (mut most, mut oldest) = (0, Duration::ZERO);
    let runs = runs();
    for (number, run) in runs.iter().copied().enumerate() {
        let (killed, clients) = run_once(file, number, run);
        let before = std::mem::replace(&mut recorded, ledger.read());
        for (tenant, used) in &before {
            let now = recorded.get(tenant);
            assert_eq!(
                now,
                Some(used),
                "{name}: {tenant} has changed since an earlier run"
            );
        }
        for client in clients {
            let it = format!("{name}, run {number} ({run:?}), {}", client.tenant);
            let admitted = client.admitted.len();
            let used = recorded.get(&client.tenant).copied().unwrap_or_default();
            let used = usize::try_from(used).unwrap();
            assert!(
                used <= admitted + usize::from(client.is_unsure),
                "{it}: {used} in the ledger, {admitted} answered"
            );
            let missing = admitted.saturating_sub(used);
            if client.action == "pay" || run == Run::Flushed {
                assert_eq!(
                    missing, 0,
                    "{it}: {admitted} answered, {used} in the ledger"
                );
            }
            // Requests are sent one after the other, so the missing entries are the last ones.
            if let Some(first) = client.admitted.get(used) {
                let age = killed.saturating_sub(*first);
                assert!(
                    age <= FLUSH + SLACK,
                    "{it}: {missing} are missing, the first was answered {age:?} before the kill"
                );
                oldest = oldest.max(age);
            }
            match client.action {
                "pay" => paid += admitted,
                _ => looked += admitted,
            }
            lost += missing;
            most = most.max(missing);
        }
    }
    println!(
        "{name}: {} kills, {MIXED} of them under both rules; strict: {paid} admitted, none missing; \
         async: {looked} admitted, {lost} missing, of one client {most} at most, answered up to \
         {oldest:?} before the kill (flush interval {FLUSH:?})",
        runs.len()
    );

    // A new server restores its counters from the ledger.
    let server = Serving::start(&["--config", file]);
    for (tenant, used) in recorded {
        assert_eq!(
            remaining(&server.url, &tenant),
            LIMIT - used,
            "{name}: {tenant}"
        );
    }
}

/// Starts a server, applies load, and kills it. Returns the time of the kill, and the answers of each client.
fn run_once(config: &str, number: usize, run: Run) -> (Duration, Vec<Answers>) {
    let mut server = Serving::start(&["--config", config]);
    let clock = Stopwatch::start();
    let (stopping, ready) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicUsize::new(0)),
    );
    let clients = (0..CLIENTS).map(|client| {
        let (url, action) = (server.url.clone(), run.action(client));
        let tenant = format!("{action}-{number}-{client}");
        let (stopping, ready) = (Arc::clone(&stopping), Arc::clone(&ready));
        thread::spawn(move || send_requests(&url, tenant, action, clock, &stopping, &ready))
    });
    let clients: Vec<JoinHandle<Answers>> = clients.collect();
    wait::until("every client has answers", TIMEOUT, || {
        ready.load(Ordering::Relaxed) == CLIENTS
    });
    thread::sleep(run.load(number));
    let mut killed = Duration::ZERO;
    if run != Run::Flushed {
        // Taken before the kill, so an answer after this time is never counted as too old.
        killed = clock.elapsed();
        server.child.kill().unwrap();
    }
    stopping.store(true, Ordering::Relaxed);
    let answers = clients.into_iter().map(|it| it.join().unwrap()).collect();
    if run == Run::Flushed {
        until_written(&server.url);
        server.child.kill().unwrap();
    }
    server.child.wait().unwrap();
    (killed, answers)
}

/// Sends one request after the other, until `stopping` is set or the server is gone.
fn send_requests(
    url: &str,
    tenant: String,
    action: &'static str,
    clock: Stopwatch,
    stopping: &AtomicBool,
    ready: &AtomicUsize,
) -> Answers {
    let config = ureq::Agent::config_builder().timeout_global(Some(TIMEOUT));
    let agent = ureq::Agent::new_with_config(config.build());
    let body = format!("{{\"attributes\":{{\"tenant\":\"{tenant}\",\"action\":\"{action}\"}}}}");
    let mut answers = Answers {
        tenant,
        action,
        admitted: Vec::new(),
        is_unsure: false,
    };
    while !stopping.load(Ordering::Relaxed) {
        match agent.post(format!("{url}/v1/check")).send(&body) {
            Ok(_) => answers.admitted.push(clock.elapsed()),
            Err(ureq::Error::StatusCode(status)) => panic!("{}: {status}", answers.tenant),
            Err(_) => {
                answers.is_unsure = true;
                break;
            }
        }
        if answers.admitted.len() == ANSWERS {
            ready.fetch_add(1, Ordering::Relaxed);
        }
    }
    answers
}

/// Waits until the ledger has nothing left to write.
fn until_written(url: &str) {
    wait::until("everything is written", TIMEOUT, || {
        let page = ureq::get(format!("{url}/metrics")).call().unwrap();
        let page = page.into_body().read_to_string().unwrap();
        let is_none = |name: &str| {
            let value = page.lines().find_map(|line| line.strip_prefix(name));
            value.unwrap().trim() == "0"
        };
        is_none("tollgate_ledger_queued_entries ") && is_none("tollgate_ledger_spilled_entries ")
    });
}

fn remaining(url: &str, tenant: &str) -> u64 {
    let (action, _) = tenant.split_once('-').unwrap();
    let body = format!("{{\"attributes\":{{\"tenant\":\"{tenant}\",\"action\":\"{action}\"}}}}");
    let answer = ureq::post(format!("{url}/v1/peek")).send(&body).unwrap();
    let text = answer.into_body().read_to_string().unwrap();
    let answer: serde_json::Value = serde_json::from_str(&text).unwrap();
    answer["remaining"].as_u64().unwrap()
}

impl TestLedger<'_> {
    /// Reads the usage by tenant, with the entries of the spill file.
    fn read(&self) -> BTreeMap<String, u64> {
        if let Some(postgres) = self.postgres {
            wait::until("the sessions of the killed server end", TIMEOUT, || {
                let others = "SELECT count(*) FROM pg_stat_activity \
                              WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
                postgres.sql(others) == "0"
            });
        }
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let options = Options {
                spill: Some(self.spill.clone()),
                ..Options::new(self.database.clone())
            };
            let ledger = Ledger::open(options).await.unwrap();
            ledger.flush().await.unwrap();
            let query = UsageQuery {
                namespace: "default".into(),
                to: tollgate::Time::MAX,
                ..UsageQuery::default()
            };
            let rows = ledger.usage(&query).await.unwrap();
            ledger.close().await;
            let rows = rows.iter().map(|row| {
                let used = u64::try_from(row.used).unwrap();
                (row.tenant.to_string(), used)
            });
            rows.collect()
        })
    }
}
