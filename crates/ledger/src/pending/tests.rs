use std::sync::Arc;

use super::*;
use crate::entry::tests::entry;
use crate::entry::{EntryError, Kind, MOST_AMOUNT, Period};

fn pending() -> Pending {
    Pending::new(10, 3)
}

fn record(pending: &mut Pending, entry: Entry) {
    let _ = pending.record(entry).unwrap();
}

fn taken(pending: &mut Pending) -> Vec<Entry> {
    let items = pending.take().into_iter().map(Queued::from);
    items.flat_map(|it| it.entries().to_vec()).collect()
}

#[test]
fn equal_uses_are_merged_into_the_first() {
    let mut pending = pending();
    record(&mut pending, entry(1));
    let other = Entry {
        action: "other".into(),
        ..entry(2)
    };
    record(&mut pending, other.clone());
    let later = Entry {
        at: Time::from_micros(1_500_000),
        amount: 5,
        count: 2,
        ..entry(3)
    };
    record(&mut pending, later);
    let sum = Entry {
        amount: 6,
        count: 3,
        ..entry(1)
    };
    assert_eq!(taken(&mut pending), [sum, other]);
}

#[test]
fn uses_that_differ_are_not_merged() {
    let text = || -> Arc<str> { "other".into() };
    let end = Time::from_micros(3_000_000);
    let mut others = vec![entry(1)];
    others.extend([
        Entry {
            tenant: text(),
            ..entry(3)
        },
        Entry {
            action: text(),
            ..entry(4)
        },
        Entry {
            rule: text(),
            ..entry(5)
        },
        Entry { key: 8, ..entry(6) },
        Entry {
            period: Period {
                end,
                ..entry(7).period
            },
            ..entry(7)
        },
        Entry {
            who: text(),
            ..entry(8)
        },
        Entry {
            why: text(),
            ..entry(9)
        },
        Entry {
            kind: Kind::Correction,
            ..entry(10)
        },
    ]);
    let mut pending = pending();
    for entry in &others {
        record(&mut pending, entry.clone());
    }
    assert_eq!(taken(&mut pending), others);
}

#[test]
fn entries_with_an_idempotency_key_or_of_another_kind_are_not_merged() {
    let mut pending = pending();
    let keyed = |id| Entry {
        idempotency_key: Some("key".into()),
        ..entry(id)
    };
    let grant = |id| Entry {
        kind: Kind::Grant,
        ..entry(id)
    };
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
    let large = |id| Entry {
        amount: MOST_AMOUNT - 1,
        ..entry(id)
    };
    record(&mut pending, large(1));
    record(&mut pending, large(2));
    let less = |id, count| Entry {
        amount: -5,
        count,
        ..entry(id)
    };
    record(&mut pending, less(3, 1));
    record(&mut pending, less(4, u32::MAX));
    let sum = Entry {
        amount: MOST_AMOUNT - 6,
        count: 2,
        ..entry(2)
    };
    assert_eq!(taken(&mut pending), [large(1), sum, less(4, u32::MAX)]);
}

#[test]
fn a_full_queue_merges_uses_and_accepts_nothing_else() {
    let mut pending = pending();
    for id in 0..10 {
        let grant = Entry {
            kind: if id == 0 { Kind::Use } else { Kind::Grant },
            ..entry(id)
        };
        record(&mut pending, grant);
    }
    let full = Full::Queue { max_queued: 10 };
    let grant = Entry {
        kind: Kind::Grant,
        ..entry(10)
    };
    assert_eq!(pending.record(grant.clone()), Err(full.clone()));
    assert_eq!(pending.record(entry(11)), Ok(IsDue(false)));
    // Entries that the writer has taken count until it forgets them.
    assert_eq!(taken(&mut pending).len(), 10);
    assert_eq!(pending.record(grant.clone()), Err(full));
    pending.forget(1);
    assert_eq!(pending.queued(), 9);
    record(&mut pending, grant);
}

#[test]
fn a_full_batch_wakes_the_writer_once() {
    let mut pending = pending();
    let grant = |id| Entry {
        kind: Kind::Grant,
        ..entry(id)
    };
    let woken: Vec<bool> = (0..5)
        .map(|id| pending.record(grant(id)).unwrap().0)
        .collect();
    assert_eq!(woken, [false, false, true, false, false]);
}

#[test]
fn merging_allocates_nothing_and_needs_no_id() {
    let mut pending = pending();
    record(&mut pending, entry(1));
    let like = entry(1);
    let of = UseOf::of(&like).unwrap();
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
    let invalid = Entry {
        amount: i64::MAX,
        ..entry(1)
    };
    let error = EntryError::Amount { amount: i64::MAX };
    assert_eq!(pending.record(invalid), Err(Full::Unfit(error)));
    pending.close();
    assert_eq!(pending.record(entry(2)), Err(Full::Closed));
    assert_eq!(pending.queued(), 0);
}
