//! A refund never gives more than if the charge had not been made.

mod cases;

use cases::cases;
use proptest::prelude::*;
use tollgate_core::{
    Leaky, Limiting, Rate, Span, Time, fixed_window, gcra, leaky_bucket, sliding_counter,
    sliding_log, two_window,
};

/// Compares two subjects with the same charges. One of them gets an extra charge, which is refunded later.
fn check<A: Limiting>(limit: &A, steps: &[(u64, u64)], extra: u64, refund_after: u64) {
    let mut now = Time::from_micros(1_000_000_000);
    let (mut with, mut without) = (A::State::default(), A::State::default());
    if !limit.decide(&with, extra, now).is_allowed() {
        return;
    }
    limit.charge(&mut with, extra, now);
    let charged_at = now;
    for (wait, cost) in steps {
        now = now + Span::from_micros(*wait);
        if limit.decide(&with, *cost, now).is_allowed() {
            limit.charge(&mut with, *cost, now);
            limit.charge(&mut without, *cost, now);
        }
    }
    now = now + Span::from_micros(refund_after);
    limit.refund(&mut with, extra, charged_at, now);
    for wait in [0, 1, 100, 1_000, 10_000] {
        let then = now + Span::from_micros(wait);
        let (got, fair) = (
            limit.decide(&with, 0, then),
            limit.decide(&without, 0, then),
        );
        assert!(
            got.available <= fair.available,
            "{} available after the refund, {} without the charge",
            got.available,
            fair.available
        );
    }
}

proptest! {
    #![proptest_config(cases(2_000, 100, "tests/proptest-regressions/refunds.txt"))]

    #[test]
    fn a_refund_gives_no_more_than_if_the_charge_had_not_been_made(
        capacity in 1_u64..50,
        amount in 1_u64..50,
        window in 60_u64..5_000,
        steps in prop::collection::vec((0_u64..3_000, 0_u64..20), 0..20),
        extra in 1_u64..50,
        refund_after in 0_u64..3_000,
    ) {
        let span = Span::from_micros(window);
        let rate = Rate::new(amount, span).unwrap();
        check(&gcra::new(rate, capacity).unwrap(), &steps, extra, refund_after);
        let policed = leaky_bucket::new(rate, capacity, Leaky::Police).unwrap();
        check(&policed, &steps, extra, refund_after);
        check(&fixed_window::new(capacity, span).unwrap(), &steps, extra, refund_after);
        check(&sliding_log::new(capacity, span).unwrap(), &steps, extra, refund_after);
        check(&sliding_counter::new(capacity, span, 6).unwrap(), &steps, extra, refund_after);
        check(&two_window::new(capacity, span).unwrap(), &steps, extra, refund_after);
    }
}
