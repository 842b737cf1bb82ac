//! Checks reports: usage that was admitted without the store, and counts although the limit may deny it.

use tollgate_core::{Charge, Limit, Span};
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

/// A report takes its amount, below zero too. The level and the excess are told.
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
