use super::*;
use crate::entry::tests::{entry, entry_with};
use crate::entry::{EntryError, MOST_AMOUNT};

fn pending() -> Pending {
    Pending::new(10, 3)
}

fn record(pending: &mut Pending, entry: Entry) {
    let _ = pending.record(entry).unwrap();
}

fn grant(id: u128) -> Entry {
    entry_with(id, |it| it.kind = Kind::Grant)
}

fn taken(pending: &mut Pending) -> Vec<Entry> {
    let items = pending.take().into_iter().map(Queued::from);
    items.flat_map(|it| it.entries().to_vec()).collect()
}

#[test]
fn equal_uses_are_merged_into_the_first() {
    let mut pending = pending();
    record(&mut pending, entry(1));
    let other = entry_with(2, |it| it.action = "other".into());
    record(&mut pending, other.clone());
    let later = entry_with(3, |it| {
        it.at = Time::from_micros(1_500_000);
        (it.amount, it.count) = (5, 2);
    });
    record(&mut pending, later);
    let sum = entry_with(1, |it| (it.amount, it.count) = (6, 3));
    assert_eq!(taken(&mut pending), [sum, other]);
}

#[test]
fn uses_that_differ_are_not_merged() {
    let others = [
        entry(1),
        entry_with(3, |it| it.tenant = "other".into()),
        entry_with(4, |it| it.action = "other".into()),
        entry_with(5, |it| it.rule = "other".into()),
        entry_with(6, |it| it.key = 8),
        entry_with(7, |it| it.period.end = Time::from_micros(3_000_000)),
        entry_with(8, |it| it.who = "other".into()),
        entry_with(9, |it| it.why = "other".into()),
        entry_with(10, |it| it.kind = Kind::Correction),
    ];
    let mut pending = pending();
    for entry in &others {
        record(&mut pending, entry.clone());
    }
    assert_eq!(taken(&mut pending), others);
}

#[test]
fn entries_with_an_idempotency_key_or_of_another_kind_are_not_merged() {
    let mut pending = pending();
    let keyed = |id| entry_with(id, |it| it.idempotency_key = Some("key".into()));
    let all = [keyed(1), keyed(2), grant(3), grant(4)];
    for entry in &all {
        record(&mut pending, entry.clone());
    }
    assert_eq!(taken(&mut pending), all);
}

#[test]
fn nothing_is_merged_into_an_entry_that_the_writer_has_taken() {
    let mut pending = pending();
    record(&mut pending, entry(1));
    assert_eq!(taken(&mut pending), [entry(1)]);
    record(&mut pending, entry(2));
    assert_eq!(taken(&mut pending), [entry(2)]);
}

#[test]
fn a_sum_that_is_too_large_starts_another_entry() {
    let mut pending = pending();
    let large = |id| entry_with(id, |it| it.amount = MOST_AMOUNT - 1);
    record(&mut pending, large(1));
    record(&mut pending, large(2));
    let less = |id, count| entry_with(id, |it| (it.amount, it.count) = (-5, count));
    record(&mut pending, less(3, 1));
    record(&mut pending, less(4, u32::MAX));
    let sum = entry_with(2, |it| (it.amount, it.count) = (MOST_AMOUNT - 6, 2));
    assert_eq!(taken(&mut pending), [large(1), sum, less(4, u32::MAX)]);
}

#[test]
fn a_full_queue_merges_uses_and_accepts_nothing_else() {
    let mut pending = pending();
    record(&mut pending, entry(0));
    for id in 1..10 {
        record(&mut pending, grant(id));
    }
    let full = Full::Queue { max_queued: 10 };
    assert_eq!(pending.record(grant(10)), Err(full.clone()));
    assert_eq!(pending.record(entry(11)), Ok(false));
    // Entries that the writer has taken stay in the count until `forget` is called.
    assert_eq!(taken(&mut pending).len(), 10);
    assert_eq!(pending.record(grant(10)), Err(full));
    pending.forget(1);
    assert_eq!(pending.queued(), 9);
    record(&mut pending, grant(10));
}

#[test]
fn a_full_batch_wakes_the_writer_once() {
    let mut pending = pending();
    let woken = [0, 1, 2, 3, 4].map(|id| pending.record(grant(id)).unwrap());
    assert_eq!(woken, [false, false, true, false, false]);
}

#[test]
fn merging_allocates_nothing_and_needs_no_id() {
    let mut pending = pending();
    record(&mut pending, entry(1));
    let like = entry(1);
    let of = UseOf::of(&like);
    let allocations = allocation_counter::measure(|| {
        let id = || unreachable!("no entry is made");
        let _ = pending.record_use(&of, 2, 1, Time::MAX, id).unwrap();
    });
    assert_eq!(allocations.count_total, 0);
    assert_eq!(taken(&mut pending)[0].amount, 3);
}

#[test]
fn invalid_entries_and_a_closed_queue_are_errors() {
    let mut pending = pending();
    let invalid = entry_with(1, |it| it.amount = i64::MAX);
    let error = EntryError::Amount { amount: i64::MAX };
    assert_eq!(pending.record(invalid), Err(Full::Unfit(error)));
    pending.close();
    assert_eq!(pending.record(entry(2)), Err(Full::Closed));
    assert_eq!(pending.queued(), 0);
}

/// Several uses are queued together, or none of them is, even if the writer takes the queue in between.
#[test]
fn several_uses_are_recorded_all_or_none() {
    let [one, other, third] = [1, 2, 3].map(|key| entry_with(key, |it| it.key = key));
    let new = |entry: &Entry| (entry.amount, entry.count, entry.at);
    let uses = [&one, &other].map(|entry| {
        let (amount, count, at) = new(entry);
        let of = UseOf::of(entry);
        NewUse {
            of,
            amount,
            count,
            at,
        }
    });
    let mut pending = Pending::new(3, 10);
    let mut number = 100;
    let mut id = || {
        number += 1;
        EntryId(number)
    };
    pending.record_uses(&uses, &mut id).unwrap();
    // The writer has taken the first two, and there is room for one more.
    assert_eq!(taken(&mut pending).len(), 2);
    let full = Full::Queue { max_queued: 3 };
    assert_eq!(pending.record_uses(&uses, &mut id), Err(full));
    assert_eq!(taken(&mut pending), []);
    // Uses that are merged into waiting ones need no room.
    pending.forget(2);
    pending.record_uses(&uses, &mut id).unwrap();
    record(&mut pending, third);
    pending.record_uses(&uses, &mut id).unwrap();
    let sums: Vec<_> = taken(&mut pending)
        .iter()
        .map(|it| (it.key, it.amount))
        .collect();
    assert_eq!(sums, [(1, 2 * one.amount), (2, 2 * other.amount), (3, 1)]);
    // If one use cannot be stored, none of the uses is queued.
    pending.forget(3);
    let mut bad = uses;
    bad[1].of.tenant = "\0";
    assert!(matches!(
        pending.record_uses(&bad, &mut id),
        Err(Full::Unfit(_))
    ));
    assert_eq!(taken(&mut pending), []);
}
