//! What the books keep and say, on both databases.

#![allow(clippy::unwrap_used)] // Helpers of tests fail as tests do.

mod common;

use std::time::Duration;

use tollgate_core::Time;
use tollgate_ledger::{
    Balance, Ended, Entry, EntryError, EntryId, EntryQuery, Full, HoldNote, Kind, LedgerError,
    MOST_AMOUNT, Period, UsageQuery, UseOf,
};

use self::common::{Books, all, entry, everything, grant, ids, of_hold, period, second};

on_both! {
    entries_come_back_as_they_were
    an_entry_is_kept_once
    kinds_add_to_what_they_are_about
    a_balance_knows_what_is_pending
    a_reservation_is_extended_and_settled
    an_end_may_come_before_its_reservation
    what_is_overdue_is_found_the_oldest_first
    usage_is_told_by_tenant_action_and_rule
    usage_comes_in_pages
    counters_come_in_pages
    entries_are_chosen_by_period_and_tenant
    uses_are_merged_while_they_wait
    the_order_is_that_of_recording
    two_processes_keep_the_same_books
    strict_writes_are_all_or_nothing
    sums_stop_at_their_bound
    a_page_is_bounded
    what_is_closed_takes_nothing
    nobody_waits_for_the_flush_interval_if_a_batch_is_full
    people_can_read_them
}

async fn entries_come_back_as_they_were(books: Books) {
    let ledger = books.open().await;
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
    let again = books.open().await;
    assert_eq!(all(&again).await.unwrap(), kept);
}

async fn an_entry_is_kept_once(books: Books) {
    let ledger = books.open().await;
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

async fn kinds_add_to_what_they_are_about(books: Books) {
    let ledger = books.open().await;
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

async fn a_balance_knows_what_is_pending(mut books: Books) {
    books.options.flush_interval = Duration::from_secs(3600);
    let ledger = books.open().await;
    for id in 1..=10 {
        ledger.record(entry(id)).unwrap();
        let balance = ledger.balance(7, period(0).start).await.unwrap();
        assert_eq!(balance.used, i64::try_from(id).unwrap());
    }
    assert_eq!(ledger.status().queued, 0);
    assert_eq!(ledger.status().written, 10);
}

async fn a_reservation_is_extended_and_settled(books: Books) {
    let ledger = books.open().await;
    let elsewhere = Entry {
        key: 8,
        rule: "daily".into(),
        ..of_hold(2, Kind::Reserve, 40, 5, second(10))
    };
    let reserve = of_hold(1, Kind::Reserve, 50, 5, second(10));
    ledger.write(vec![reserve, elsewhere]).await.unwrap();

    let rows = ledger.hold(5).await.unwrap();
    assert_eq!(rows.len(), 2);
    assert_eq!((rows[0].key, rows[1].key), (7, 8));
    assert_eq!((rows[0].hold, rows[0].tag, rows[0].reserved), (5, 3, 50));
    assert_eq!((&*rows[1].rule, rows[1].reserved), ("daily", 40));
    assert_eq!(rows[0].period, period(0));
    assert_eq!(&*rows[0].record, "a record");
    assert_eq!((rows[0].expires_at, rows[0].ended), (second(10), None));

    // An extension, and one that comes late and is shorter.
    ledger
        .record(of_hold(3, Kind::Reserve, 0, 5, second(30)))
        .unwrap();
    ledger
        .record(of_hold(4, Kind::Reserve, 0, 5, second(20)))
        .unwrap();
    let rows = ledger.holds_of(7, second(29)).await.unwrap();
    assert_eq!((rows[0].expires_at, rows[0].reserved), (second(30), 50));
    assert_eq!(ledger.holds_of(7, second(30)).await.unwrap(), []);
    assert_eq!(ledger.holds_of(9, second(0)).await.unwrap(), []);

    // Who ends it second changes nothing: it has the same id.
    ledger
        .write(vec![of_hold(9, Kind::Settle, -20, 5, second(30))])
        .await
        .unwrap();
    ledger
        .write(vec![of_hold(9, Kind::Expiry, -50, 5, second(30))])
        .await
        .unwrap();
    let rows = ledger.holds_of(7, second(0)).await.unwrap();
    let ended = Ended {
        kind: Kind::Settle,
        amount: -20,
    };
    assert_eq!(rows[0].ended, Some(ended));
    assert_eq!(&*rows[0].record, "a record");
    assert_eq!(ledger.balance(7, period(0).start).await.unwrap().used, 30);
    assert_eq!(ledger.hold(5).await.unwrap()[1].ended, None);
    assert_eq!(ledger.hold(6).await.unwrap(), []);
}

async fn an_end_may_come_before_its_reservation(books: Books) {
    let ledger = books.open().await;
    ledger
        .write(vec![of_hold(2, Kind::Expiry, -50, 5, second(10))])
        .await
        .unwrap();
    ledger
        .write(vec![of_hold(1, Kind::Reserve, 50, 5, second(10))])
        .await
        .unwrap();
    let rows = ledger.hold(5).await.unwrap();
    assert_eq!((rows.len(), rows[0].reserved), (1, 50));
    assert_eq!(rows[0].ended.unwrap().kind, Kind::Expiry);
    assert_eq!(&*rows[0].record, "a record");
    assert_eq!(ledger.overdue("test", Time::MAX, 10).await.unwrap(), []);
}

async fn what_is_overdue_is_found_the_oldest_first(books: Books) {
    let ledger = books.open().await;
    for (id, expires) in [(1, 30), (2, 10), (3, 20), (4, 40)] {
        let hold = of_hold(id, Kind::Reserve, 1, id, second(expires));
        ledger.record(hold).unwrap();
    }
    let stranger = Entry {
        namespace: "other".into(),
        ..of_hold(5, Kind::Reserve, 1, 5, second(1))
    };
    ledger.record(stranger).unwrap();
    ledger
        .record(of_hold(6, Kind::Settle, 0, 3, second(20)))
        .unwrap();
    let overdue = async |before, most| -> Vec<u128> {
        let rows = ledger.overdue("test", second(before), most).await.unwrap();
        rows.iter().map(|row| row.hold).collect()
    };
    assert_eq!(overdue(40, 10).await, [2, 1]);
    assert_eq!(overdue(41, 10).await, [2, 1, 4]);
    assert_eq!(overdue(41, 1).await, [2]);
    // An extension moves it.
    ledger
        .record(of_hold(7, Kind::Reserve, 0, 2, second(50)))
        .unwrap();
    assert_eq!(overdue(41, 10).await, [1, 4]);
}

fn usage() -> UsageQuery {
    UsageQuery {
        namespace: "test".into(),
        to: Time::MAX,
        ..UsageQuery::default()
    }
}

async fn usage_is_told_by_tenant_action_and_rule(books: Books) {
    let ledger = books.open().await;
    let by = |id, tenant: &str, action: &str, rule: &str| Entry {
        tenant: tenant.into(),
        action: action.into(),
        rule: rule.into(),
        amount: 10,
        ..entry(id)
    };
    let correction = Entry {
        kind: Kind::Correction,
        amount: -3,
        ..entry(4)
    };
    ledger
        .write(vec![
            by(1, "acme", "search", "monthly"),
            by(2, "acme", "lookup", "monthly"),
            by(3, "blue", "search", "monthly"),
            correction,
            grant(5),
            of_hold(6, Kind::Reserve, 5, 1, second(9)),
            of_hold(7, Kind::Reserve, 4, 2, second(9)),
            of_hold(8, Kind::Settle, -1, 2, second(9)),
            by(9, "acme", "search", "daily"),
            Entry {
                period: period(1),
                ..entry(10)
            },
            Entry {
                namespace: "other".into(),
                key: 9,
                ..entry(11)
            },
        ])
        .await
        .unwrap();
    let rows = ledger.usage(&usage()).await.unwrap();
    let told: Vec<_> = rows
        .iter()
        .map(|it| {
            (
                &*it.tenant,
                it.period.start,
                &*it.rule,
                &*it.action,
                it.used,
            )
        })
        .collect();
    assert_eq!(
        told,
        [
            ("acme", second(0), "daily", "search", 10),
            ("acme", second(0), "monthly", "lookup", 10),
            ("acme", second(0), "monthly", "search", 15),
            ("acme", second(100), "monthly", "search", 1),
            ("blue", second(0), "monthly", "search", 10),
        ]
    );
    let row = &rows[2];
    assert_eq!((row.reserved, row.granted, row.corrections), (5, 1, -3));
    assert_eq!((row.requests, row.entries), (6, 6));
    assert_eq!(
        (row.key, &*row.allowance, row.period),
        (7, "monthly", period(0))
    );
    assert_eq!(rows[0].reserved, 0);

    let count = async |query: UsageQuery| ledger.usage(&query).await.unwrap().len();
    let name = |name: &str| Some(name.into());
    assert_eq!(
        count(UsageQuery {
            tenant: name("acme"),
            ..usage()
        })
        .await,
        4
    );
    assert_eq!(
        count(UsageQuery {
            action: name("search"),
            ..usage()
        })
        .await,
        4
    );
    assert_eq!(
        count(UsageQuery {
            rule: name("daily"),
            ..usage()
        })
        .await,
        1
    );
    assert_eq!(
        count(UsageQuery {
            tenant: name("nobody"),
            ..usage()
        })
        .await,
        0
    );
    // Periods that touch the span, the ends excluded.
    let span = |from, to| UsageQuery {
        from: second(from),
        to: second(to),
        ..usage()
    };
    assert_eq!(count(span(0, 100)).await, 4);
    assert_eq!(count(span(99, 101)).await, 5);
    assert_eq!(count(span(100, 101)).await, 1);
    assert_eq!(count(span(200, 300)).await, 0);
}

async fn usage_comes_in_pages(books: Books) {
    let ledger = books.open().await;
    for id in 0..25_u128 {
        let entry = Entry {
            tenant: format!("tenant{}", id % 3).into(),
            action: ["Zebra", "apple", "_x", "é"][usize::try_from(id % 4).unwrap()].into(),
            key: id,
            ..entry(id)
        };
        ledger.record(entry).unwrap();
    }
    let whole = ledger.usage(&usage()).await.unwrap();
    assert_eq!(whole.len(), 25);
    let mut paged = Vec::new();
    let mut query = UsageQuery { most: 4, ..usage() };
    loop {
        let page = ledger.usage(&query).await.unwrap();
        let Some(last) = page.last() else { break };
        query.after = Some(last.cursor());
        paged.extend(page);
    }
    assert_eq!(paged, whole);
}

async fn counters_come_in_pages(books: Books) {
    let ledger = books.open().await;
    for id in 0..10 {
        for number in [0, 1] {
            let entry = Entry {
                key: id,
                period: period(number),
                amount: 5,
                ..entry(id * 2 + u128::from(number))
            };
            ledger.record(entry).unwrap();
        }
    }
    let shared = Entry {
        tenant: "blue".into(),
        key: 3,
        amount: 6,
        ..entry(100)
    };
    ledger.record(shared).unwrap();
    ledger
        .record(Entry {
            key: 3,
            ..grant(101)
        })
        .unwrap();
    let mut rows = Vec::new();
    let mut after = None;
    loop {
        let page = ledger.balances("test", second(99), after, 3).await.unwrap();
        let Some(last) = page.last() else { break };
        after = Some(last.cursor());
        rows.extend(page);
    }
    let keys: Vec<u128> = rows.iter().map(|row| row.key).collect();
    assert_eq!(keys, (0..10).collect::<Vec<_>>());
    assert!(rows.iter().all(|row| row.period == period(0)));
    let balance = Balance {
        used: 11,
        granted: 1,
    };
    assert_eq!((rows[3].balance, &*rows[3].tenant), (balance, ""));
    assert_eq!((rows[4].balance.used, &*rows[4].tenant), (5, "acme"));
    assert_eq!(
        ledger.balances("other", second(99), None, 3).await.unwrap(),
        []
    );
    assert_eq!(
        ledger.balances("test", second(200), None, 3).await.unwrap(),
        []
    );
}

async fn entries_are_chosen_by_period_and_tenant(books: Books) {
    let ledger = books.open().await;
    for id in 0..6 {
        let entry = Entry {
            // Recorded long after the period that it is for.
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

async fn uses_are_merged_while_they_wait(mut books: Books) {
    books.options.flush_interval = Duration::from_secs(3600);
    let ledger = books.open().await;
    let of = UseOf {
        namespace: "test",
        tenant: "acme",
        action: "search",
        rule: "monthly",
        allowance: "monthly",
        key: 7,
        period: period(0),
        who: "",
        why: "",
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
    let merged = Entry {
        at: second(5),
        amount: 3001,
        count: 2001,
        ..entry(0)
    };
    assert_eq!(all(&ledger).await.unwrap(), [merged]);
    assert_eq!(made, 1);
    assert_eq!(ledger.balance(7, period(0).start).await.unwrap().used, 3001);
}

async fn the_order_is_that_of_recording(mut books: Books) {
    books.options.batch = 7;
    books.options.max_queued = 1_000_000;
    let ledger = books.open().await;
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

async fn two_processes_keep_the_same_books(books: Books) {
    let ledgers = [books.open().await, books.open().await];
    let mut tasks = Vec::new();
    for (number, ledger) in (0_u128..).zip(&ledgers) {
        for task in 0..8_u128 {
            let ledger = ledger.clone();
            tasks.push(tokio::spawn(async move {
                for step in 0..20_u128 {
                    let id = (number * 8 + task) * 1000 + step * 2;
                    // The last ones are of the other process, too.
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
    assert_eq!(count, seen.len(), "no entry twice");
    for ledger in &ledgers {
        let strict = ledger.balance(7, period(0).start).await.unwrap().granted;
        let recorded = ledger.balance(1, period(0).start).await.unwrap().granted;
        assert_eq!(usize::try_from(strict + recorded).unwrap(), count);
        assert_eq!(recorded, 16 * 20);
    }
}

async fn strict_writes_are_all_or_nothing(mut books: Books) {
    books.options.batch = 10;
    let ledger = books.open().await;
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

async fn sums_stop_at_their_bound(books: Books) {
    let ledger = books.open().await;
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
    // The books go on.
    let less = Entry {
        amount: -5,
        ..grant(9999)
    };
    ledger.write(vec![less]).await.unwrap();
    let balance = ledger.balance(7, period(0).start).await.unwrap();
    assert_eq!(balance.granted, (1 << 62) - 6);
}

async fn a_page_is_bounded(books: Books) {
    let ledger = books.open().await;
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

async fn what_is_closed_takes_nothing(mut books: Books) {
    books.options.flush_interval = Duration::from_secs(3600);
    let ledger = books.open().await;
    ledger.record(grant(1)).unwrap();
    ledger.close().await;
    ledger.close().await;
    assert_eq!(ledger.record(grant(2)), Err(Full::Closed));
    let error = ledger.write(vec![grant(2)]).await.unwrap_err();
    assert!(matches!(error, LedgerError::Full(Full::Closed)), "{error}");
    assert!(ledger.flush().await.is_err());
    assert!(ledger.balance(7, period(0).start).await.is_err());
    assert_eq!(ids(&books.open().await).await, [1]);
}

async fn nobody_waits_for_the_flush_interval_if_a_batch_is_full(mut books: Books) {
    books.options.flush_interval = Duration::from_secs(3600);
    books.options.batch = 5;
    let ledger = books.open().await;
    for id in 0..5 {
        ledger.record(grant(id)).unwrap();
    }
    common::until("a full batch is written", async || {
        ledger.status().written == 5
    })
    .await;
}

async fn people_can_read_them(books: Books) {
    let ledger = books.open().await;
    ledger.write(vec![entry(1)]).await.unwrap();
    let sql =
        "SELECT tenant || ' ' || used || ' ' || period_end || ' ' || key FROM usage_by_period";
    let text: String = match &books.options.database {
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
