//! A server that is killed under load, again and again: what it has answered, and what the books say.
//!
//! Each client of each life asks for a tenant of its own, one request after the other. So the books of a
//! tenant are held against what one client knows: what was answered, and one request more that may have
//! been on its way.
//!
//! * Most deaths come in the middle of the load, of clients of a strict rule beside those of one that is
//!   not.
//! * In some lives nobody is strict, so that nothing but the flush interval brings entries to the disk.
//! * Before some deaths the load ends and everything is written: then nothing at all may be missing.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test that tells how much was lost"
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

/// Deaths in the middle of a load of both rules.
const LOUD: usize = 50;
const CLIENTS: usize = 4;
/// How many answers each client has before its server may die.
const ANSWERS: usize = 5;
const LIMIT: u64 = 100_000_000;
/// After so long what was answered is on a disk.
const FLUSH: Duration = Duration::from_millis(50);
/// What a machine that has other things to do may add to it: one transaction and one write to a disk.
const SLACK: Duration = Duration::from_millis(700);
/// How long anything may take that has to come about.
const PATIENCE: Duration = Duration::from_secs(60);

/// How a life goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Loud,
    Relaxed,
    Quiet,
}

/// All of them, those of one kind among the others.
fn lives() -> Vec<Life> {
    let lives = (0..LOUD).flat_map(|number| {
        let more = match number % 10 {
            2 | 7 => Some(Life::Relaxed),
            5 => Some(Life::Quiet),
            _ => None,
        };
        std::iter::once(Life::Loud).chain(more)
    });
    lives.collect()
}

impl Life {
    /// How long clients go on, at different points of the flush interval.
    fn load(self, number: usize) -> Duration {
        let odd = Duration::from_millis(number as u64 * 37 % 100);
        match self {
            Life::Loud | Life::Quiet => Duration::from_millis(150) + odd,
            // Many intervals, and much longer than what may be missing.
            Life::Relaxed => (FLUSH + SLACK) * 2 + odd,
        }
    }

    /// What client number `client` asks for.
    fn action(self, client: usize) -> &'static str {
        match self {
            Life::Loud | Life::Quiet if client.is_multiple_of(2) => "pay",
            _ => "look",
        }
    }
}

/// What a client knows.
struct Known {
    tenant: String,
    action: &'static str,
    /// When each of its requests was answered as admitted.
    admitted: Vec<Duration>,
    /// Whether there is one more that was not answered.
    is_unsure: bool,
}

/// Where the books are.
struct Books<'a> {
    name: &'static str,
    database: Database,
    spill: PathBuf,
    /// Whose sessions may go on for a moment after their client has died.
    postgres: Option<&'a Postgres>,
}

#[test]
fn books_in_sqlite_survive_deaths() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("books.db");
    let books = Books {
        name: "SQLite",
        spill: directory.path().join("books.spill"),
        database: Database::Sqlite(path.clone()),
        postgres: None,
    };
    deaths(&format!("sqlite: {}", path.display()), &books);
}

#[test]
fn books_in_postgresql_survive_deaths() {
    let postgres = Postgres::start();
    let directory = tempfile::tempdir().unwrap();
    let books = Books {
        name: "PostgreSQL",
        spill: directory.path().join("books.spill"),
        database: Database::Postgres(postgres.url()),
        postgres: Some(&postgres),
    };
    deaths(&format!("postgres: \"{}\"", postgres.url()), &books);
}

fn deaths(section: &str, books: &Books<'_>) {
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
        books.spill.display(),
        FLUSH.as_millis(),
        rule("pay", "strict"),
        rule("look", "async")
    );
    std::fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();

    let name = books.name;
    let mut booked = BTreeMap::new();
    let (mut paid, mut looked, mut lost) = (0, 0, 0);
    let (mut most, mut oldest) = (0, Duration::ZERO);
    let lives = lives();
    for (number, life) in lives.iter().copied().enumerate() {
        let (died, clients) = live(file, number, life);
        let before = std::mem::replace(&mut booked, books.read());
        for (tenant, used) in &before {
            let now = booked.get(tenant);
            assert_eq!(now, Some(used), "{name}: {tenant}, which was settled");
        }
        for client in clients {
            let it = format!("{name}, death {number} ({life:?}), {}", client.tenant);
            let admitted = client.admitted.len();
            let used = booked.get(&client.tenant).copied().unwrap_or_default();
            let used = usize::try_from(used).unwrap();
            assert!(
                used <= admitted + usize::from(client.is_unsure),
                "{it}: {used} in the books, {admitted} answered"
            );
            let missing = admitted.saturating_sub(used);
            if client.action == "pay" || life == Life::Quiet {
                assert_eq!(missing, 0, "{it}: {admitted} answered, {used} in the books");
            }
            // One request after the other: those that are missing are the last.
            if let Some(first) = client.admitted.get(used) {
                let age = died.saturating_sub(*first);
                assert!(
                    age <= FLUSH + SLACK,
                    "{it}: {missing} are missing, the first was answered {age:?} before"
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
        "{name}: {} deaths, {LOUD} of them under both rules; strict: {paid} admitted, none missing; \
         async: {looked} admitted, {lost} missing, of one client {most} at most, answered up to \
         {oldest:?} before the death (flush interval {FLUSH:?})",
        lives.len()
    );

    // And the counters are what the books say.
    let server = Serving::start(&["--config", file]);
    for (tenant, used) in booked {
        assert_eq!(
            remaining(&server.url, &tenant),
            LIMIT - used,
            "{name}: {tenant}"
        );
    }
}

/// One life of a server: when it ended, by the clock of its clients, and what they know.
fn live(config: &str, number: usize, life: Life) -> (Duration, Vec<Known>) {
    let mut server = Serving::start(&["--config", config]);
    let clock = Stopwatch::start();
    let (dying, ready) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicUsize::new(0)),
    );
    let clients = (0..CLIENTS).map(|client| {
        let (url, action) = (server.url.clone(), life.action(client));
        let tenant = format!("{action}-{number}-{client}");
        let (dying, ready) = (Arc::clone(&dying), Arc::clone(&ready));
        thread::spawn(move || ask(&url, tenant, action, clock, &dying, &ready))
    });
    let clients: Vec<JoinHandle<Known>> = clients.collect();
    wait::until("every client has had answers", PATIENCE, || {
        ready.load(Ordering::Relaxed) == CLIENTS
    });
    thread::sleep(life.load(number));
    let mut died = Duration::ZERO;
    if life != Life::Quiet {
        // Just before: who is answered after this is answered late enough.
        died = clock.elapsed();
        server.child.kill().unwrap();
    }
    dying.store(true, Ordering::Relaxed);
    let known = clients.into_iter().map(|it| it.join().unwrap()).collect();
    if life == Life::Quiet {
        until_written(&server.url);
        server.child.kill().unwrap();
    }
    server.child.wait().unwrap();
    (died, known)
}

/// Asks one request after the other, until nobody answers or somebody says so.
fn ask(
    url: &str,
    tenant: String,
    action: &'static str,
    clock: Stopwatch,
    dying: &AtomicBool,
    ready: &AtomicUsize,
) -> Known {
    let config = ureq::Agent::config_builder().timeout_global(Some(PATIENCE));
    let agent = ureq::Agent::new_with_config(config.build());
    let body = format!("{{\"attributes\":{{\"tenant\":\"{tenant}\",\"action\":\"{action}\"}}}}");
    let mut known = Known {
        tenant,
        action,
        admitted: Vec::new(),
        is_unsure: false,
    };
    while !dying.load(Ordering::Relaxed) {
        match agent.post(format!("{url}/v1/check")).send(&body) {
            Ok(_) => known.admitted.push(clock.elapsed()),
            Err(ureq::Error::StatusCode(status)) => panic!("{}: {status}", known.tenant),
            Err(_) => {
                known.is_unsure = true;
                break;
            }
        }
        if known.admitted.len() == ANSWERS {
            ready.fetch_add(1, Ordering::Relaxed);
        }
    }
    known
}

/// Waits until the ledger has nothing left to write.
fn until_written(url: &str) {
    wait::until("everything is written", PATIENCE, || {
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
    let told: serde_json::Value = serde_json::from_str(&text).unwrap();
    told["remaining"].as_u64().unwrap()
}

impl Books<'_> {
    /// What they say was used, by tenant: with what a server has left in its spill file, which is theirs.
    fn read(&self) -> BTreeMap<String, u64> {
        if let Some(postgres) = self.postgres {
            wait::until("the sessions of the dead end", PATIENCE, || {
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
