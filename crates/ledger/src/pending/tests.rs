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
fn uses_of_the_same_become_one_in_the_place_of_the_first() {
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
fn what_is_of_another_balance_or_has_a_word_to_say_stays_apart() {
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
fn what_has_an_idempotency_key_or_is_of_another_kind_is_never_added() {
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
fn what_the_writer_has_taken_is_not_added_to() {
    let mut pending = pending();
    record(&mut pending, entry(1));
    assert_eq!(taken(&mut pending), [entry(1)]);
    record(&mut pending, entry(2));
    assert_eq!(taken(&mut pending), [entry(2)]);
}

#[test]
fn a_sum_that_would_be_too_large_starts_another_entry() {
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
fn at_the_bound_uses_are_still_added_and_nothing_else_is_taken() {
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
    // What the writer has taken counts until it says otherwise.
    assert_eq!(taken(&mut pending).len(), 10);
    assert_eq!(pending.record(grant.clone()), Err(full));
    pending.forget(1);
    assert_eq!(pending.queued(), 9);
    record(&mut pending, grant);
}

#[test]
fn a_full_batch_is_told_once() {
    let mut pending = pending();
    let grant = |id| Entry {
        kind: Kind::Grant,
        ..entry(id)
    };
    let told: Vec<bool> = (0..5)
        .map(|id| pending.record(grant(id)).unwrap().0)
        .collect();
    assert_eq!(told, [false, false, true, false, false]);
}

#[test]
fn a_use_that_is_added_allocates_nothing_and_needs_no_id() {
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
fn what_cannot_be_kept_is_not_taken() {
    let mut pending = pending();
    let odd = Entry {
        amount: i64::MAX,
        ..entry(1)
    };
    let error = EntryError::Amount { amount: i64::MAX };
    assert_eq!(pending.record(odd), Err(Full::Unfit(error)));
    pending.close();
    assert_eq!(pending.record(entry(2)), Err(Full::Closed));
    assert_eq!(pending.queued(), 0);
}
