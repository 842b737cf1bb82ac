//! Listing usage and counters, on both databases.

#![allow(clippy::unwrap_used)] // Helpers may panic, like tests.

mod common;

use tollgate_core::Time;
use tollgate_ledger::{Balance, Entry, Kind, UsageQuery};

use self::common::{Fixture, entry, grant, of_hold, period, second};

on_both! {
    usage_is_grouped_by_tenant_action_and_rule
    usage_comes_in_pages
    counters_come_in_pages
}

fn usage() -> UsageQuery {
    UsageQuery {
        namespace: "test".into(),
        to: Time::MAX,
        ..UsageQuery::default()
    }
}

async fn usage_is_grouped_by_tenant_action_and_rule(fixture: Fixture) {
    let ledger = fixture.open().await;
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
    let only = async |change: fn(&mut UsageQuery)| {
        let mut query = usage();
        change(&mut query);
        count(query).await
    };
    assert_eq!(only(|it| it.tenant = Some("acme".into())).await, 4);
    assert_eq!(only(|it| it.action = Some("search".into())).await, 4);
    assert_eq!(only(|it| it.rule = Some("daily".into())).await, 1);
    assert_eq!(only(|it| it.tenant = Some("nobody".into())).await, 0);
    // A query finds the periods that overlap its range. A period that only touches an end of the range is not
    // found.
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

async fn usage_comes_in_pages(fixture: Fixture) {
    let ledger = fixture.open().await;
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

async fn counters_come_in_pages(fixture: Fixture) {
    let ledger = fixture.open().await;
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
