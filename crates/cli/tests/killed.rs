//! A server that is killed under load, again and again: what it has answered, and what the books say.
//!
//! Half of the deaths come in the middle of the load. Before the others the load ends and everything is
//! written: then nothing at all may be missing.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test that tells how much was lost"
)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use common::Serving;
use tollgate_ledger::{Database, Ledger, Options, UsageQuery};
use tollgate_rig::Postgres;

const DEATHS: usize = 50;
const CLIENTS: usize = 4;
/// How many answers a client waits for before the server may die.
const ANSWERS: u64 = 40;

/// What clients know of one action.
#[derive(Default)]
struct Seen {
    /// Requests that were answered as admitted.
    admitted: AtomicU64,
    /// Requests that got no answer.
    unanswered: AtomicU64,
}

#[test]
fn books_in_sqlite_survive_deaths() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("books.db");
    let section = format!("ledger: {{ sqlite: {} }}", path.display());
    deaths("SQLite", &section, &Database::Sqlite(path));
}

#[test]
fn books_in_postgresql_survive_deaths() {
    let postgres = Postgres::start();
    let directory = tempfile::tempdir().unwrap();
    let spill = directory.path().join("books.spill");
    let section = format!(
        "ledger: {{ postgres: \"{}\", spill: {} }}",
        postgres.url(),
        spill.display()
    );
    deaths("PostgreSQL", &section, &Database::Postgres(postgres.url()));
}

fn deaths(name: &str, section: &str, database: &Database) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tollgate.yaml");
    let rules = |id: &str, durability: &str| {
        format!(
            "  - {{ id: {id}, match: {{ action: {id} }}, per: [tenant], algorithm: quota, \
             limit: 100000000, period: year, durability: {durability} }}\n"
        )
    };
    let text = format!(
        "version: 1\n{section}\nsubjects: {{ hash_secret: a secret of sixteen bytes }}\nrules:\n{}{}",
        rules("pay", "strict"),
        rules("look", "async")
    );
    std::fs::write(&file, text).unwrap();
    let (strict, relaxed) = (Arc::new(Seen::default()), Arc::new(Seen::default()));
    let mut lost = 0;
    for death in 0..DEATHS {
        let mut server = Serving::start(&["--config", file.to_str().unwrap()]);
        let dying = Arc::new(AtomicBool::new(false));
        let answered = Arc::new(AtomicU64::new(0));
        let clients = (0..CLIENTS).map(|client| {
            let (action, seen) = match client % 2 {
                0 => ("pay", Arc::clone(&strict)),
                _ => ("look", Arc::clone(&relaxed)),
            };
            let (url, dying) = (server.url.clone(), Arc::clone(&dying));
            let answered = Arc::clone(&answered);
            thread::spawn(move || ask(&url, action, &seen, &dying, &answered))
        });
        let clients: Vec<_> = clients.collect();
        while answered.load(Ordering::Relaxed) < ANSWERS {
            thread::yield_now();
        }
        let is_quiet = death % 2 == 1;
        if is_quiet {
            dying.store(true, Ordering::Relaxed);
            for client in clients {
                client.join().unwrap();
            }
            until_written(&server.url);
            server.child.kill().unwrap();
        } else {
            server.child.kill().unwrap();
            dying.store(true, Ordering::Relaxed);
            for client in clients {
                client.join().unwrap();
            }
        }
        server.child.wait().unwrap();

        let booked = booked(database);
        let of = |action: &str| booked.iter().find(|it| it.0 == action).map_or(0, |it| it.1);
        let (least, most) = bounds(&strict);
        let pay = of("pay");
        assert!(
            (least..=most).contains(&pay),
            "{name}, death {death}: {pay} in the books, {least} to {most} answered"
        );
        let (admitted, most) = bounds(&relaxed);
        let look = of("look");
        assert!(look <= most, "{name}, death {death}: {look} of {most}");
        let missing = admitted.saturating_sub(look);
        assert!(
            !is_quiet || missing <= lost,
            "{name}, death {death}: {} were written, and are missing",
            missing - lost
        );
        lost = missing;
    }
    let (admitted, _) = bounds(&relaxed);
    let paid = bounds(&strict);
    println!(
        "{name}: {DEATHS} deaths; strict: {} admitted, none missing; async: {admitted} admitted, {lost} missing",
        paid.0
    );
    // And the counters are what the books say.
    let server = Serving::start(&["--config", file.to_str().unwrap()]);
    let booked = booked(database);
    for (action, used) in booked {
        let left = remaining(&server.url, &action);
        assert_eq!(left, 100_000_000 - used, "{name}: {action}");
    }
}

/// The least and the most that the books may say.
fn bounds(seen: &Seen) -> (u64, u64) {
    let admitted = seen.admitted.load(Ordering::Relaxed);
    (admitted, admitted + seen.unanswered.load(Ordering::Relaxed))
}

fn ask(url: &str, action: &str, seen: &Seen, dying: &AtomicBool, answered: &AtomicU64) {
    let agent = ureq::Agent::new_with_defaults();
    let body = format!("{{\"attributes\":{{\"tenant\":\"acme\",\"action\":\"{action}\"}}}}");
    while !dying.load(Ordering::Relaxed) {
        match agent.post(format!("{url}/v1/check")).send(&body) {
            Ok(_) => {
                seen.admitted.fetch_add(1, Ordering::Relaxed);
                answered.fetch_add(1, Ordering::Relaxed);
            }
            Err(ureq::Error::StatusCode(status)) => panic!("{action}: {status}"),
            Err(_) => {
                seen.unanswered.fetch_add(1, Ordering::Relaxed);
                return;
            }
        }
    }
}

/// Waits until the ledger has nothing left to write.
fn until_written(url: &str) {
    loop {
        let page = ureq::get(format!("{url}/metrics")).call().unwrap();
        let page = page.into_body().read_to_string().unwrap();
        let queued = page
            .lines()
            .find_map(|line| line.strip_prefix("tollgate_ledger_queued_entries "));
        if queued.unwrap().trim() == "0" {
            return;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

fn remaining(url: &str, action: &str) -> u64 {
    let body = format!("{{\"attributes\":{{\"tenant\":\"acme\",\"action\":\"{action}\"}}}}");
    let answer = ureq::post(format!("{url}/v1/peek")).send(&body).unwrap();
    let text = answer.into_body().read_to_string().unwrap();
    let told: serde_json::Value = serde_json::from_str(&text).unwrap();
    told["remaining"].as_u64().unwrap()
}

/// What the books say was used, by action.
fn booked(database: &Database) -> Vec<(String, u64)> {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        // Without a spill file, so that none is taken over from the server.
        let options = Options {
            spill: None,
            ..Options::new(database.clone())
        };
        let ledger = Ledger::open(options).await.unwrap();
        let query = UsageQuery {
            namespace: "default".into(),
            to: tollgate::Time::MAX,
            ..UsageQuery::default()
        };
        let rows = ledger.usage(&query).await.unwrap();
        ledger.close().await;
        let rows = rows.iter().map(|row| {
            let used = u64::try_from(row.used).unwrap();
            (row.action.to_string(), used)
        });
        rows.collect()
    })
}
