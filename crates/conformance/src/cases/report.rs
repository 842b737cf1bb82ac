//! Checks reports: usage that was admitted without the store, and counts although the limit may deny it.

use tollgate_core::{CarryOver, Charge, Limit, Span};
use tollgate_store::{AllowanceLevel, Store};

use super::{CAPACITY, WINDOW, charge, costing, denied, left, take};
use crate::{Fixture, Kind, START};

const KINDS: [Kind; 8] = [
    Kind::FixedWindow,
    Kind::SlidingLog,
    Kind::SlidingCounter,
    Kind::TwoWindow,
    Kind::TokenBucket,
    Kind::Gcra,
    Kind::LeakyPolice,
    Kind::Quota,
];

async fn report(fixture: &impl Fixture, charge: Charge<'_>, units: u64) -> Option<AllowanceLevel> {
    let level = fixture.store().report(&charge, units).await;
    level.expect("the store answers")
}

/// A report takes its amount, even below zero, and returns the level and the excess.
pub async fn a_report_counts_although_the_limit_denies(fixture: &impl Fixture) {
    for (number, kind) in (1..).zip(KINDS) {
        let limit = kind.limit(CAPACITY, WINDOW);
        let (one, capacity) = (charge(number, &limit), limit.capacity());
        let all = i64::try_from(capacity).expect("a small number");
        let fresh = report(fixture, one, 0).await.expect("a level");
        assert_eq!(
            (fresh.left, fresh.excess, fresh.now),
            (all, 0, START),
            "{kind:?}"
        );
        take(fixture, one, 3).await;
        let two = report(fixture, costing(2, one), 2).await.expect("a level");
        assert_eq!((two.left, two.excess), (all - 7, 0), "{kind:?}");
        let more = report(fixture, one, 20).await.expect("a level");
        assert_eq!(
            (more.left, more.excess),
            (all - 27, 27 - capacity),
            "{kind:?}"
        );
        assert!(more.reset_at > START, "{kind:?}");
        assert_eq!(left(fixture, one).await, 0, "{kind:?}");
        denied(fixture, one, 1).await;
        let read = report(fixture, one, 0).await.expect("a level");
        assert_eq!((read.left, read.excess), (all - 27, 0), "{kind:?}");
        assert_eq!(read.reset_at, more.reset_at, "{kind:?}");
        fixture.set_time(read.reset_at);
        let back = report(fixture, one, 0).await.expect("a level");
        assert!(back.left >= all, "{kind:?}");
        take(fixture, one, capacity).await;
        fixture.set_time(START);
    }
}

/// A caller that does not know the new numbers of a limit yet may report and give back late. This changes the state in
/// its present numbers, and loses no usage.
pub async fn late_calls_under_old_numbers_carry_nothing_over(fixture: &impl Fixture) {
    for (number, kind) in (1..).zip(KINDS) {
        for carry_over in CarryOver::ALL {
            let [old, new] = [CAPACITY, 10 * CAPACITY].map(|it| kind.limit(it, WINDOW));
            let key = 10 * number + carry_over as u64;
            let [late, one] = [&old, &new].map(|limit| Charge {
                carry_over,
                ..charge(key, limit)
            });
            take(fixture, one, 9 * CAPACITY).await;
            let all = i64::try_from(new.capacity()).expect("a small number");
            let used = i64::try_from(9 * CAPACITY).expect("a small number");
            let told = report(fixture, late, 2).await.expect("a level");
            assert!(told.left <= i64::try_from(old.capacity()).expect("a small number"));
            let level = report(fixture, one, 0).await.expect("a level");
            assert_eq!(level.left, all - used - 2, "{kind:?}, {carry_over:?}");
            let back = fixture.store().refund(&[late], 2, START).await;
            back.expect("the store answers");
            // Usage that a change has reset is not given back.
            let back = 2 * i64::from(carry_over != CarryOver::Reset);
            let level = report(fixture, one, 0).await.expect("a level");
            assert_eq!(
                level.left,
                all - used - 2 + back,
                "{kind:?}, {carry_over:?}"
            );
        }
    }
}

/// Slots, back-offs and unlimited charges have no amount.
pub async fn a_report_to_a_limit_without_an_amount_does_nothing(fixture: &impl Fixture) {
    let slots = Limit::concurrency(3, Span::MINUTE).expect("a valid limit");
    let limits = [
        slots,
        Kind::Backoff.limit(CAPACITY, WINDOW),
        Limit::unlimited(tollgate_core::Algorithm::Gcra),
    ];
    for (number, limit) in (1..).zip(&limits) {
        assert_eq!(report(fixture, charge(number, limit), 5).await, None);
    }
}
