//! Reservations in the ledger, on both databases.

#![allow(clippy::unwrap_used)] // Helpers may panic, like tests.

mod common;

use tollgate_core::Time;
use tollgate_ledger::{Ended, Entry, HoldNote, HoldRow, Kind};

use self::common::{Fixture, of_hold, period, second};

on_both! {
    a_reservation_is_extended_and_settled
    an_end_may_come_before_its_reservation
    the_record_of_the_end_replaces_the_first
    overdue_reservations_are_listed_oldest_first
    a_reused_id_is_another_reservation
    two_reservations_with_one_id_may_be_written_at_once
    an_id_may_be_reused_in_the_transaction_that_ends_it
    batching_does_not_change_the_result
}

async fn a_reservation_is_extended_and_settled(fixture: Fixture) {
    let ledger = fixture.open().await;
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

    // An extension, and a late extension to an earlier time.
    ledger
        .record(of_hold(3, Kind::Reserve, 0, 5, second(30)))
        .unwrap();
    ledger
        .record(of_hold(4, Kind::Reserve, 0, 5, second(20)))
        .unwrap();
    let rows = ledger.holds_of(7, second(29), None, 0).await.unwrap();
    assert_eq!((rows[0].expires_at, rows[0].reserved), (second(30), 50));
    assert_eq!(ledger.holds_of(7, second(30), None, 0).await.unwrap(), []);
    assert_eq!(ledger.holds_of(9, second(0), None, 0).await.unwrap(), []);
    let last = Some((rows[0].expires_at, rows[0].hold));
    assert_eq!(ledger.holds_of(7, second(0), last, 9).await.unwrap(), []);
    let later = Some((rows[0].expires_at, rows[0].hold + 1));
    assert_eq!(ledger.holds_of(7, second(0), later, 9).await.unwrap(), rows);

    // A second end changes nothing: it has the same id.
    ledger
        .write(vec![of_hold(9, Kind::Settle, -20, 5, second(30))])
        .await
        .unwrap();
    ledger
        .write(vec![of_hold(9, Kind::Expiry, -50, 5, second(30))])
        .await
        .unwrap();
    let rows = ledger.holds_of(7, second(0), None, 0).await.unwrap();
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

async fn an_end_may_come_before_its_reservation(fixture: Fixture) {
    let ledger = fixture.open().await;
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

async fn the_record_of_the_end_replaces_the_first(fixture: Fixture) {
    let ledger = fixture.open().await;
    let reserve = |hold| of_hold(10 * hold, Kind::Reserve, 50, hold, second(10));
    let end = |hold: u128, id, record: &str| {
        let settle = of_hold(10 * hold + id, Kind::Settle, -20, hold, second(10));
        let note = settle.hold.clone().map(|it| HoldNote {
            record: record.into(),
            ..it
        });
        Entry {
            hold: note,
            ..settle
        }
    };
    let record = async |hold| ledger.hold(hold).await.unwrap()[0].record.to_string();
    // The end of a reservation is written after the reservation, together with it, or before it.
    ledger.write(vec![reserve(1)]).await.unwrap();
    ledger.write(vec![end(1, 1, "an end")]).await.unwrap();
    ledger
        .write(vec![reserve(2), end(2, 1, "an end")])
        .await
        .unwrap();
    ledger.write(vec![end(3, 1, "an end")]).await.unwrap();
    ledger.write(vec![reserve(3)]).await.unwrap();
    for hold in 1..=3 {
        assert_eq!(record(hold).await, "an end");
        // Later ends do not change the record of the first end.
        ledger.write(vec![end(hold, 2, "another")]).await.unwrap();
        ledger.write(vec![end(hold, 3, "")]).await.unwrap();
        assert_eq!(record(hold).await, "an end");
    }
}

async fn overdue_reservations_are_listed_oldest_first(fixture: Fixture) {
    let ledger = fixture.open().await;
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
    // An extension changes the order.
    ledger
        .record(of_hold(7, Kind::Reserve, 0, 2, second(50)))
        .unwrap();
    assert_eq!(overdue(41, 10).await, [1, 4]);
}

async fn a_reused_id_is_another_reservation(fixture: Fixture) {
    let ledger = fixture.open().await;
    let first = of_hold(1, Kind::Reserve, 50, 5, second(10));
    ledger.write(vec![first]).await.unwrap();
    let end = of_hold(2, Kind::Settle, -20, 5, second(10));
    ledger.write(vec![end]).await.unwrap();
    assert_eq!(ledger.reserved(7, second(0)).await.unwrap(), 0);
    let again = of_hold(3, Kind::Reserve, 70, 5, second(4000));
    ledger.write(vec![again]).await.unwrap();
    let rows = ledger.hold(5).await.unwrap();
    assert_eq!((rows[0].reserved, rows[0].ended), (70, None));
    assert_eq!(rows[0].expires_at, second(4000));
    assert_eq!(ledger.reserved(7, second(0)).await.unwrap(), 70);
    assert_eq!(ledger.reserved(8, second(0)).await.unwrap(), 0);
    let end = of_hold(4, Kind::Expiry, -70, 5, second(4000));
    ledger.write(vec![end]).await.unwrap();
    let ended = Ended {
        kind: Kind::Expiry,
        amount: -70,
    };
    assert_eq!(ledger.hold(5).await.unwrap()[0].ended, Some(ended));
    assert_eq!(ledger.balance(7, period(0).start).await.unwrap().used, 30);
}

async fn two_reservations_with_one_id_may_be_written_at_once(fixture: Fixture) {
    let ledger = fixture.open().await;
    let all = vec![
        of_hold(1, Kind::Reserve, 50, 5, second(10)),
        of_hold(2, Kind::Settle, -20, 5, second(10)),
        of_hold(3, Kind::Reserve, 70, 5, second(4000)),
    ];
    ledger.write(all).await.unwrap();
    let rows = ledger.hold(5).await.unwrap();
    assert_eq!((rows[0].reserved, rows[0].ended), (70, None));
    assert_eq!(ledger.balance(7, period(0).start).await.unwrap().used, 100);
}

/// The result is the same whether entries are written in one transaction, in two, or each on its own.
async fn batching_does_not_change_the_result(fixture: Fixture) {
    let ledger = fixture.open().await;
    let record = |text: &str, entry: Entry| {
        let hold = entry.hold.clone().map(|it| HoldNote {
            record: text.into(),
            ..it
        });
        Entry { hold, ..entry }
    };
    let mut number = 0;
    let mut written = async |cuts: &[usize]| {
        // Use another id each time.
        number += 1;
        let (hold, id) = (number, 100 * number);
        let later = Entry {
            period: period(1),
            ..of_hold(id + 3, Kind::Reserve, 70, hold, second(4000))
        };
        let all = [
            record("1", of_hold(id + 1, Kind::Reserve, 50, hold, second(10))),
            record(
                "1 ended",
                of_hold(id + 2, Kind::Settle, -20, hold, second(10)),
            ),
            record("2", later),
            record("", of_hold(id + 4, Kind::Reserve, 0, hold, second(4010))),
            record(
                "2 ended",
                of_hold(id + 5, Kind::Expiry, -70, hold, second(4010)),
            ),
            record("3", of_hold(id + 6, Kind::Reserve, 5, hold, second(5000))),
        ];
        let mut from = 0;
        for to in cuts.iter().copied().chain([all.len()]) {
            ledger.write(all[from..to].to_vec()).await.unwrap();
            from = to;
        }
        let row = ledger.hold(hold).await.unwrap().remove(0);
        HoldRow { hold: 0, ..row }
    };
    let expected = written(&[1, 2, 3, 4, 5]).await;
    assert_eq!((expected.reserved, expected.ended), (5, None));
    assert_eq!((&*expected.record, expected.period), ("3", period(0)));
    assert_eq!(written(&[]).await, expected);
    for first in 1..6 {
        assert_eq!(written(&[first]).await, expected, "{first}");
        for second in first + 1..6 {
            assert_eq!(
                written(&[first, second]).await,
                expected,
                "{first} {second}"
            );
        }
    }
}

async fn an_id_may_be_reused_in_the_transaction_that_ends_it(fixture: Fixture) {
    let ledger = fixture.open().await;
    let first = of_hold(1, Kind::Reserve, 50, 5, second(10));
    ledger.write(vec![first]).await.unwrap();
    let end = of_hold(2, Kind::Settle, -20, 5, second(10));
    let mut again = of_hold(3, Kind::Reserve, 70, 5, second(4000));
    if let Some(note) = &mut again.hold {
        note.record = "another".into();
    }
    ledger.write(vec![end, again]).await.unwrap();
    let rows = ledger.hold(5).await.unwrap();
    assert_eq!((rows[0].reserved, rows[0].ended), (70, None));
    assert_eq!(&*rows[0].record, "another");
    assert_eq!(ledger.reserved(7, second(0)).await.unwrap(), 70);
    assert_eq!(ledger.balance(7, period(0).start).await.unwrap().used, 100);
}
