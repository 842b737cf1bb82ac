//! Listing entries of a range of periods, page by page, on both databases.

#![allow(clippy::unwrap_used)] // Helpers may panic, like tests.

mod common;

use tollgate_ledger::{Database, Entry, EntryQuery, Ledger};

use self::common::{Fixture, everything, grant, ids, period, range, second};

on_both! {
    a_page_is_full_unless_it_is_the_last
    entries_with_distant_numbers_are_found
    late_entries_belong_to_their_period
    many_entries_keep_their_order
    repeated_entries_do_not_change_the_range_of_a_period
}

fn of_period(id: u128, number: u64) -> Entry {
    Entry {
        period: period(number),
        ..grant(id)
    }
}

fn query(number: u64, most: usize) -> EntryQuery {
    EntryQuery {
        from: period(number).start,
        to: period(number).end,
        most,
        ..everything()
    }
}

/// Reads all pages of `query`. Returns the ids of the entries, and the size of each page.
async fn pages(ledger: &Ledger, mut query: EntryQuery) -> (Vec<u128>, Vec<usize>) {
    let (mut ids, mut lengths) = (Vec::new(), Vec::new());
    loop {
        let page = ledger.entries(&query).await.unwrap();
        lengths.push(page.len());
        ids.extend(page.iter().map(|(_, entry)| entry.id.0));
        match page.last() {
            Some((last, _)) if page.len() == query.most => query.after = *last,
            _ => return (ids, lengths),
        }
    }
}

/// Makes the database give the next entry a sequence number above `number`.
async fn skip_to(fixture: &Fixture, number: i64) {
    match &fixture.options.database {
        Database::Sqlite(file) => {
            let url = format!("sqlite://{}", file.display());
            let pool = sqlx::SqlitePool::connect(&url).await.unwrap();
            let sql = "UPDATE sqlite_sequence SET seq = ? WHERE name = 'entries'";
            let query = sqlx::query(sql).bind(number);
            assert_eq!(query.execute(&pool).await.unwrap().rows_affected(), 1);
        }
        Database::Postgres(url) => {
            let pool = sqlx::PgPool::connect(url).await.unwrap();
            let sql = "SELECT setval(pg_get_serial_sequence('entries', 'seq'), $1)";
            sqlx::query(sql).bind(number).execute(&pool).await.unwrap();
        }
    }
}

async fn a_page_is_full_unless_it_is_the_last(fixture: Fixture) {
    let ledger = fixture.open().await;
    for id in 0..30 {
        let number = u64::try_from(id % 3).unwrap();
        ledger.record(of_period(id, number)).unwrap();
    }
    let (ids, lengths) = pages(&ledger, query(1, 4)).await;
    assert_eq!(ids, (1..30).step_by(3).collect::<Vec<_>>());
    assert_eq!(lengths, [4, 4, 2]);
    assert_eq!(pages(&ledger, query(3, 4)).await, (Vec::new(), vec![0]));
}

async fn entries_with_distant_numbers_are_found(fixture: Fixture) {
    let ledger = fixture.open().await;
    for (id, number) in [(0, 10), (1, 250_000), (2, 1_000_000)] {
        ledger.write(vec![of_period(id, 0)]).await.unwrap();
        skip_to(&fixture, number).await;
        let other = of_period(100 + id, 1);
        ledger.write(vec![other]).await.unwrap();
    }
    ledger.write(vec![of_period(3, 0)]).await.unwrap();
    for most in [1, 2, 10] {
        let (ids, _) = pages(&ledger, query(0, most)).await;
        assert_eq!(ids, range(0..4), "{most}");
    }
    assert_eq!(pages(&ledger, query(1, 10)).await.0, range(100..103));
    let page = ledger.entries(&query(0, 10)).await.unwrap();
    assert!(page[3].0 > 1_000_000, "{}", page[3].0);
    // There are no entries after the last one, and none after the largest number.
    for after in [page[3].0, u64::MAX] {
        let query = EntryQuery {
            after,
            ..query(0, 10)
        };
        assert_eq!(ledger.entries(&query).await.unwrap(), []);
    }
}

async fn late_entries_belong_to_their_period(fixture: Fixture) {
    let ledger = fixture.open().await;
    ledger.write(vec![of_period(1, 0)]).await.unwrap();
    ledger.write(vec![of_period(2, 5)]).await.unwrap();
    let late = Entry {
        at: second(1_000_000),
        ..of_period(3, 0)
    };
    // `stranger` is in another namespace. `early` is in an earlier period than the entry before it.
    let stranger = Entry {
        namespace: "other".into(),
        ..of_period(4, 0)
    };
    let early = of_period(5, 1);
    ledger.write(vec![late, stranger, early]).await.unwrap();
    assert_eq!(pages(&ledger, query(0, 10)).await.0, [1, 3]);
    assert_eq!(pages(&ledger, query(1, 10)).await.0, [5]);
    assert_eq!(pages(&ledger, query(5, 10)).await.0, [2]);
    assert_eq!(ids(&ledger).await, [1, 2, 3, 5]);
}

async fn many_entries_keep_their_order(fixture: Fixture) {
    let ledger = fixture.open().await;
    let entries = (0..3001).map(|id| of_period(id, 0)).collect();
    ledger.write(entries).await.unwrap();
    assert_eq!(ids(&ledger).await, range(0..3001));
}

async fn repeated_entries_do_not_change_the_range_of_a_period(fixture: Fixture) {
    let ledger = fixture.open().await;
    let many: Vec<Entry> = (0..1500).map(|id| of_period(id, 0)).collect();
    ledger.write(many.clone()).await.unwrap();
    ledger.write(vec![of_period(5000, 1)]).await.unwrap();
    let mut again = many;
    again.extend([of_period(5000, 2), of_period(5001, 0)]);
    ledger.write(again).await.unwrap();
    let mut expected = range(0..1500);
    expected.push(5001);
    assert_eq!(pages(&ledger, query(0, 1000)).await.0, expected);
    assert_eq!(pages(&ledger, query(1, 10)).await.0, [5000]);
    assert_eq!(pages(&ledger, query(2, 10)).await.0, range(0..0));
}
