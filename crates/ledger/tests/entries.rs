//! Writing and reading entries and balances, on both databases.

#![allow(clippy::unwrap_used)] // Helpers may panic, like tests.

mod common;

use std::sync::Arc;
use std::time::Duration;

use tollgate_core::Time;
use tollgate_ledger::{
    Balance, Entry, EntryError, EntryId, EntryQuery, Full, HoldNote, Kind, LedgerError,
    MOST_AMOUNT, MOST_NAME, MOST_TEXT, MOST_VALUE, Period, UseOf,
};

use self::common::{Fixture, all, entry, everything, grant, ids, of_hold, period, second};

on_both! {
    entries_come_back_as_they_were
    the_longest_names_are_stored
    a_repeated_entry_is_stored_once
    one_of_several_writers_of_an_entry_is_told_that_it_is_new
    kinds_change_usage_or_grants
    a_balance_includes_pending_entries
    entries_are_filtered_by_period_and_tenant
    uses_are_merged_while_they_wait
    entries_are_in_the_order_of_recording
    two_processes_share_a_ledger
    strict_writes_are_all_or_nothing
    sums_are_capped
    a_page_is_bounded
    a_closed_ledger_accepts_nothing
    a_full_batch_does_not_wait_for_the_flush_interval
    the_view_for_people_is_readable
}

async fn entries_come_back_as_they_were(fixture: Fixture) {
    let ledger = fixture.open().await;
    let odd = Entry {
        at: Time::MAX,
        tenant: "O'Brien; DROP TABLE entries --".into(),
        action: "日本語 \u{1F600} \\ \" % $1 ?".into(),
        rule: "".into(),
        key: u128::MAX,
        period: Period {
            start: Time::from_micros(0),
            end: Time::MAX,
        },
        amount: 1 - MOST_AMOUNT,
        count: u32::MAX,
        who: "x".repeat(4096).into(),
        why: "two\nlines".into(),
        idempotency_key: Some("".into()),
        ..entry(u128::MAX)
    };
    let hold = Entry {
        kind: Kind::Reserve,
        hold: Some(HoldNote {
            id: 0,
            tag: u32::MAX,
            expires_at: Time::MAX,
            record: "{}".into(),
        }),
        ..entry(0)
    };
    let mut kept = vec![odd, hold];
    for (id, kind) in (1..).zip([Kind::Use, Kind::Correction, Kind::Grant]) {
        kept.push(Entry { kind, ..entry(id) });
    }
    kept.push(of_hold(10, Kind::Settle, -1, 5, second(9)));
    kept.push(of_hold(11, Kind::Expiry, -1, 6, second(9)));
    for entry in &kept {
        ledger.record(entry.clone()).unwrap();
    }
    assert_eq!(all(&ledger).await.unwrap(), kept);
    ledger.close().await;
    let again = fixture.open().await;
    assert_eq!(all(&again).await.unwrap(), kept);
}

async fn the_longest_names_are_stored(fixture: Fixture) {
    let ledger = fixture.open().await;
    // Random texts, because PostgreSQL cannot compress them.
    let mut random = fastrand::Rng::with_seed(1);
    let mut text = |length| -> Arc<str> {
        let text: String = (0..length).map(|_| random.char('!'..='~')).collect();
        text.into()
    };
    let long = Entry {
        namespace: "test".into(),
        tenant: text(MOST_VALUE),
        action: text(MOST_VALUE),
        rule: text(MOST_NAME),
        allowance: text(MOST_NAME),
        who: text(MOST_TEXT),
        why: text(MOST_TEXT),
        idempotency_key: Some(text(MOST_TEXT)),
        ..of_hold(1, Kind::Reserve, 1, 1, second(1))
    };
    let far = Entry {
        id: EntryId(2),
        namespace: text(MOST_NAME),
        ..long.clone()
    };
    ledger.write(vec![long.clone(), far]).await.unwrap();
    assert_eq!(all(&ledger).await.unwrap(), [long]);
}

async fn a_repeated_entry_is_stored_once(fixture: Fixture) {
    let ledger = fixture.open().await;
    ledger.record(grant(1)).unwrap();
    ledger.record(grant(1)).unwrap();
    ledger
        .write(vec![grant(1), grant(2), grant(2)])
        .await
        .unwrap();
    ledger.write(vec![grant(3), grant(1)]).await.unwrap();
    let other = Entry {
        amount: 500,
        ..grant(3)
    };
    ledger.write(vec![other]).await.unwrap();
    assert_eq!(ids(&ledger).await, [1, 2, 3]);
    let balance = ledger.balance(7, period(0).start).await.unwrap();
    assert_eq!(
        balance,
        Balance {
            used: 0,
            granted: 3
        }
    );
}

async fn one_of_several_writers_of_an_entry_is_told_that_it_is_new(fixture: Fixture) {
    let (one, other) = (fixture.open().await, fixture.open().await);
    for id in 0..20 {
        let (first, second) = tokio::join!(
            one.write_new(vec![grant(id)]),
            other.write_new(vec![grant(id)])
        );
        assert!(first.unwrap() ^ second.unwrap(), "{id}");
    }
    assert!(!one.write_new(vec![grant(3), grant(100)]).await.unwrap());
    assert!(one.write_new(vec![grant(101), grant(102)]).await.unwrap());
    let summary = other.summary(EntryId(100)).await.unwrap().unwrap();
    assert_eq!(
        (summary.key, summary.kind, summary.amount),
        (7, Kind::Grant, 1)
    );
    assert_eq!(other.summary(EntryId(999)).await.unwrap(), None);
}

async fn kinds_change_usage_or_grants(fixture: Fixture) {
    let ledger = fixture.open().await;
    let amount = |entry: Entry, amount| Entry { amount, ..entry };
    let correction = Entry {
        kind: Kind::Correction,
        ..entry(2)
    };
    let later = Entry {
        period: period(1),
        ..entry(9)
    };
    let other = Entry {
        key: 8,
        ..entry(10)
    };
    ledger
        .write(vec![
            amount(entry(1), 100),
            amount(correction, -20),
            amount(grant(3), 1000),
            of_hold(4, Kind::Reserve, 50, 1, second(5)),
            of_hold(5, Kind::Settle, -10, 1, second(5)),
            of_hold(6, Kind::Reserve, 7, 2, second(5)),
            of_hold(8, Kind::Expiry, -7, 2, second(5)),
            amount(later, 3),
            amount(other, 4),
        ])
        .await
        .unwrap();
    let balance = async |key, number| {
        let Balance { used, granted } = ledger.balance(key, period(number).start).await.unwrap();
        (used, granted)
    };
    assert_eq!(balance(7, 0).await, (120, 1000));
    assert_eq!(balance(7, 1).await, (3, 0));
    assert_eq!(balance(8, 0).await, (4, 0));
    assert_eq!(balance(9, 0).await, (0, 0));
}

async fn a_balance_includes_pending_entries(mut fixture: Fixture) {
    fixture.options.flush_interval = Duration::from_secs(3600);
    let ledger = fixture.open().await;
    for id in 1..=10 {
        ledger.record(entry(id)).unwrap();
        let balance = ledger.balance(7, period(0).start).await.unwrap();
        assert_eq!(balance.used, i64::try_from(id).unwrap());
    }
    assert_eq!(ledger.status().queued, 0);
    assert_eq!(ledger.status().written, 10);
}

async fn entries_are_filtered_by_period_and_tenant(fixture: Fixture) {
    let ledger = fixture.open().await;
    for id in 0..6 {
        let entry = Entry {
            // The entry is recorded long after its period.
            at: second(1_000_000),
            tenant: ["acme", "blue"][usize::try_from(id % 2).unwrap()].into(),
            period: period(u64::try_from(id / 2).unwrap()),
            ..grant(id)
        };
        ledger.record(entry).unwrap();
    }
    let chosen = async |query: EntryQuery| -> Vec<u128> {
        let rows = ledger.entries(&query).await.unwrap();
        rows.iter().map(|(_, entry)| entry.id.0).collect()
    };
    let span = EntryQuery {
        from: second(100),
        to: second(200),
        ..everything()
    };
    assert_eq!(chosen(span.clone()).await, [2, 3]);
    let acme = EntryQuery {
        tenant: Some("acme".into()),
        ..everything()
    };
    assert_eq!(chosen(acme).await, [0, 2, 4]);
    let other = EntryQuery {
        namespace: "other".into(),
        ..everything()
    };
    assert_eq!(chosen(other).await, Vec::<u128>::new());
    let first = EntryQuery {
        most: 4,
        ..everything()
    };
    let page = ledger.entries(&first).await.unwrap();
    assert_eq!(page.len(), 4);
    let next = EntryQuery {
        after: page[3].0,
        ..first
    };
    assert_eq!(chosen(next).await, [4, 5]);
}

async fn uses_are_merged_while_they_wait(mut fixture: Fixture) {
    fixture.options.flush_interval = Duration::from_secs(3600);
    let ledger = fixture.open().await;
    let of = UseOf {
        namespace: "test",
        tenant: "acme",
        action: "search",
        rule: "monthly",
        allowance: "monthly",
        key: 7,
        period: period(0),
    };
    let mut made = 0;
    for number in 0..1000 {
        let id = || {
            made += 1;
            EntryId(number)
        };
        ledger.record_use(&of, 3, 2, second(5), id).unwrap();
    }
    ledger.record(entry(5000)).unwrap();
    let entries = all(&ledger).await.unwrap();
    let sums = entries.iter().fold((0, 0), |(amount, count), it| {
        (amount + it.amount, count + it.count)
    });
    assert_eq!(sums, (3001, 2001));
    // Usually there is one entry. The writer may have taken some uses at its start, and later uses are not
    // merged into these.
    assert!(entries.len() <= 3, "{entries:?}");
    assert!((1..=3).contains(&made), "{made}");
    assert_eq!(ledger.balance(7, period(0).start).await.unwrap().used, 3001);
}

async fn entries_are_in_the_order_of_recording(mut fixture: Fixture) {
    fixture.options.batch = 7;
    fixture.options.max_queued = 1_000_000;
    // With a short interval, a slow database would make entries spill, and strict writes overtake the
    // spill.
    fixture.options.flush_interval = Duration::from_secs(60);
    let ledger = fixture.open().await;
    let mut expected = Vec::new();
    for id in 0..300 {
        expected.push(id);
        match id % 10 {
            0 => ledger.write(vec![grant(id)]).await.unwrap(),
            _ => ledger.record(grant(id)).unwrap(),
        }
    }
    assert_eq!(ids(&ledger).await, expected);
}

async fn two_processes_share_a_ledger(fixture: Fixture) {
    let ledgers = [fixture.open().await, fixture.open().await];
    let mut tasks = Vec::new();
    for (number, ledger) in (0_u128..).zip(&ledgers) {
        for task in 0..8_u128 {
            let ledger = ledger.clone();
            tasks.push(tokio::spawn(async move {
                for step in 0..20_u128 {
                    let id = (number * 8 + task) * 1000 + step * 2;
                    // In the last step, both processes write the same entry.
                    let shared = if step == 19 { task } else { id + 1 };
                    ledger
                        .record(Entry {
                            key: 1,
                            ..grant(id + 500_000)
                        })
                        .unwrap();
                    ledger.write(vec![grant(id), grant(shared)]).await.unwrap();
                }
            }));
        }
    }
    for task in tasks {
        task.await.unwrap();
    }
    for ledger in &ledgers {
        ledger.flush().await.unwrap();
    }
    let mut seen = ids(&ledgers[0]).await;
    let count = seen.len();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(count, seen.len(), "no entry is listed twice");
    for ledger in &ledgers {
        let strict = ledger.balance(7, period(0).start).await.unwrap().granted;
        let recorded = ledger.balance(1, period(0).start).await.unwrap().granted;
        assert_eq!(usize::try_from(strict + recorded).unwrap(), count);
        assert_eq!(recorded, 16 * 20);
    }
}

async fn strict_writes_are_all_or_nothing(mut fixture: Fixture) {
    fixture.options.batch = 10;
    let ledger = fixture.open().await;
    let odd = Entry {
        amount: MOST_AMOUNT,
        ..grant(2)
    };
    let error = ledger.write(vec![grant(1), odd]).await.unwrap_err();
    let amount = EntryError::Amount {
        amount: MOST_AMOUNT,
    };
    assert!(
        matches!(&error, LedgerError::Unfit(it) if *it == amount),
        "{error}"
    );
    assert!(!error.is_unknown());
    let many = (0..11).map(grant).collect();
    let error = ledger.write(many).await.unwrap_err();
    assert!(matches!(
        error,
        LedgerError::TooMany {
            entries: 11,
            most: 10
        }
    ));
    ledger.write(Vec::new()).await.unwrap();
    assert_eq!(ids(&ledger).await, Vec::<u128>::new());
}

async fn sums_are_capped(fixture: Fixture) {
    let ledger = fixture.open().await;
    let largest = |id| Entry {
        amount: MOST_AMOUNT - 1,
        ..grant(id)
    };
    for batch in 0..3 {
        let entries = (0..400).map(|id| largest(batch * 400 + id)).collect();
        ledger.write(entries).await.unwrap();
    }
    let balance = ledger.balance(7, period(0).start).await.unwrap();
    assert_eq!(balance.granted, (1 << 62) - 1);
    // Later writes still work.
    let less = Entry {
        amount: -5,
        ..grant(9999)
    };
    ledger.write(vec![less]).await.unwrap();
    let balance = ledger.balance(7, period(0).start).await.unwrap();
    assert_eq!(balance.granted, (1 << 62) - 6);
}

async fn a_page_is_bounded(fixture: Fixture) {
    let ledger = fixture.open().await;
    for id in 0..10_005 {
        ledger.record(grant(id)).unwrap();
    }
    let query = EntryQuery {
        most: usize::MAX,
        ..everything()
    };
    assert_eq!(ledger.entries(&query).await.unwrap().len(), 10_000);
    assert_eq!(ids(&ledger).await, (0..10_005).collect::<Vec<_>>());
}

async fn a_closed_ledger_accepts_nothing(mut fixture: Fixture) {
    fixture.options.flush_interval = Duration::from_secs(3600);
    let ledger = fixture.open().await;
    ledger.record(grant(1)).unwrap();
    ledger.close().await;
    ledger.close().await;
    assert_eq!(ledger.record(grant(2)), Err(Full::Closed));
    let error = ledger.write(vec![grant(2)]).await.unwrap_err();
    assert!(matches!(error, LedgerError::Full(Full::Closed)), "{error}");
    assert!(ledger.flush().await.is_err());
    assert!(ledger.balance(7, period(0).start).await.is_err());
    assert_eq!(ids(&fixture.open().await).await, [1]);
}

async fn a_full_batch_does_not_wait_for_the_flush_interval(mut fixture: Fixture) {
    fixture.options.flush_interval = Duration::from_secs(3600);
    fixture.options.batch = 5;
    let ledger = fixture.open().await;
    for id in 0..5 {
        ledger.record(grant(id)).unwrap();
    }
    common::until("a full batch is written", async || {
        ledger.status().written == 5
    })
    .await;
}

async fn the_view_for_people_is_readable(fixture: Fixture) {
    let ledger = fixture.open().await;
    ledger.write(vec![entry(1)]).await.unwrap();
    let sql =
        "SELECT tenant || ' ' || used || ' ' || period_end || ' ' || key FROM usage_by_period";
    let text: String = match &fixture.options.database {
        tollgate_ledger::Database::Sqlite(file) => {
            let url = format!("sqlite://{}", file.display());
            let pool = sqlx::SqlitePool::connect(&url).await.unwrap();
            sqlx::query_scalar(sql).fetch_one(&pool).await.unwrap()
        }
        tollgate_ledger::Database::Postgres(url) => {
            let pool = sqlx::PgPool::connect(url).await.unwrap();
            sqlx::query_scalar(sql).fetch_one(&pool).await.unwrap()
        }
    };
    let text = text.replace("+00", "");
    assert_eq!(
        text,
        "acme 1 1970-01-01 00:01:40 00000000000000000000000000000007"
    );
}
