//! Sums and exports contain each distinct entry once, even if entries are written several times.

#![allow(clippy::unwrap_used)] // Helpers may panic, like tests.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tollgate_ledger::{Balance, Entry, EntryQuery, Kind, Ledger};

use self::common::{Fixture, entry, everything, of_hold, period, second};

/// One step of a test.
#[derive(Clone, Debug)]
enum Step {
    Record(Box<Entry>),
    Write(Vec<Entry>),
    Flush,
    /// Closes the ledger and opens it again.
    Reopen,
}

/// Makes entries with few different ids, so that many repeat. Entries with the same id are equal.
fn any_entry() -> impl Strategy<Value = Entry> {
    (0..60_u128).prop_map(|id| {
        let number = u64::try_from(id).unwrap();
        let kind = Kind::ALL[usize::try_from(id % 6).unwrap()];
        let amount = i64::try_from(id * 37 % 101).unwrap() - 50;
        let plain = match kind.is_of_hold() {
            true => of_hold(id, kind, amount, id % 4, second(number)),
            false => Entry {
                kind,
                amount,
                ..entry(id)
            },
        };
        Entry {
            key: id % 3,
            period: period(number % 2),
            tenant: ["acme", "blue"][usize::try_from(id / 3 % 2).unwrap()].into(),
            // Without the key, the entry would be merged and lose its id.
            idempotency_key: Some("key".into()),
            ..plain
        }
    })
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => any_entry().prop_map(|it| Step::Record(Box::new(it))),
        3 => prop::collection::vec(any_entry(), 0..9).prop_map(Step::Write),
        1 => Just(Step::Flush),
        1 => Just(Step::Reopen),
    ]
}

/// Returns all entries, with repetitions.
fn entries(steps: &[Step]) -> impl Iterator<Item = &Entry> {
    steps.iter().flat_map(|step| match step {
        Step::Record(entry) => std::slice::from_ref(&**entry),
        Step::Write(entries) => entries.as_slice(),
        Step::Flush | Step::Reopen => &[],
    })
}

/// Returns the sums of all distinct entries.
fn naive(steps: &[Step]) -> BTreeMap<(u128, u64), (i64, i64)> {
    let mut seen = BTreeSet::new();
    let mut sums = BTreeMap::new();
    for entry in entries(steps).filter(|entry| seen.insert(entry.id)) {
        let start = entry.period.start.as_micros();
        let (used, granted) = sums.entry((entry.key, start)).or_insert((0, 0));
        match entry.kind {
            Kind::Grant => *granted += entry.amount,
            _ => *used += entry.amount,
        }
    }
    sums
}

async fn check(fixture: &Fixture, steps: &[Step]) {
    let mut options = fixture.options.clone();
    // With a short interval, strict writes would overtake spilled entries and change the order of
    // exports.
    options.flush_interval = Duration::from_secs(60);
    let open = async || Ledger::open(options.clone()).await.unwrap();
    let mut ledger = open().await;
    for step in steps {
        match step {
            Step::Record(entry) => ledger.record(Entry::clone(entry)).unwrap(),
            Step::Write(entries) => ledger.write(entries.clone()).await.unwrap(),
            Step::Flush => ledger.flush().await.unwrap(),
            Step::Reopen => {
                ledger.close().await;
                // The database is up, so nothing is spilled.
                assert_eq!(ledger.status().spilled, 0);
                ledger = open().await;
            }
        }
    }
    let expected = naive(steps);
    for key in 0..3 {
        for number in 0..2 {
            let start = period(number).start;
            let (used, granted) = expected
                .get(&(key, start.as_micros()))
                .copied()
                .unwrap_or_default();
            let balance = ledger.balance(key, start).await.unwrap();
            assert_eq!(balance, Balance { used, granted }, "{key} {number}");
        }
    }
    for number in 0..2 {
        assert_eq!(
            exported(&ledger, number).await,
            distinct(steps, number),
            "{number}"
        );
    }
    ledger.close().await;
}

/// Returns the ids of the entries of a period, each once, in the order of their first occurrence.
fn distinct(steps: &[Step], number: u64) -> Vec<u128> {
    let mut seen = BTreeSet::new();
    entries(steps)
        .filter(|entry| seen.insert(entry.id))
        .filter(|entry| entry.period == period(number))
        .map(|entry| entry.id.0)
        .collect()
}

/// Returns the ids of the entries of a period, read from the ledger in small pages.
async fn exported(ledger: &Ledger, number: u64) -> Vec<u128> {
    let mut query = EntryQuery {
        from: period(number).start,
        to: period(number).end,
        most: 3,
        ..everything()
    };
    let mut ids = Vec::new();
    loop {
        let page = ledger.entries(&query).await.unwrap();
        ids.extend(page.iter().map(|(_, entry)| entry.id.0));
        match page.last() {
            Some((last, _)) if page.len() == 3 => query.after = *last,
            _ => return ids,
        }
    }
}

/// Returns the number of cases: up to 8 times as many in a long run. Each case makes a database.
fn cases(usual: u32) -> u32 {
    let times = std::env::var("TOLLGATE_PROOF_CASES").ok();
    times.map_or(usual, |times| usual * times.parse::<u32>().unwrap().min(8))
}

fn property(cases: u32, make: impl Fn() -> Fixture) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let config = Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    };
    let steps = prop::collection::vec(any_step(), 0..60);
    let checked = TestRunner::new(config).run(&steps, |steps| {
        let fixture = make();
        runtime.block_on(check(&fixture, &steps));
        fixture.remove();
        Ok(())
    });
    checked.unwrap();
}

#[test]
fn balances_are_the_sums_of_distinct_entries_on_sqlite() {
    property(cases(30), Fixture::sqlite);
}

#[test]
fn balances_are_the_sums_of_distinct_entries_on_postgres() {
    // Kept alive, so that all cases use the same server.
    let first = Fixture::postgres();
    property(cases(15), Fixture::postgres);
    drop(first);
}
