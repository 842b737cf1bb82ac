//! Requests with one charge.

use tollgate_core::{Admission, Algorithm, Denial, Limit, Outcome, Span};

use super::{
    CAPACITY, WINDOW, apply, back, charge, costing, denied, just_before, kinds, left, limits, peek,
    promised, refund, reset, take,
};
use crate::{Fixture, Kind, START};
use tollgate_store::{Ask, GRACE};

/// A subject never seen has its whole allowance.
pub async fn the_first_request_is_allowed(fixture: &impl Fixture) {
    for (kind, n, start, limit) in limits(fixture, WINDOW) {
        let applied = take(fixture, charge(n, &limit), 1).await;
        let outcome = applied.outcomes[0];
        let now = Admission::Allowed { delay: Span::ZERO };
        assert_eq!(outcome.admission, now, "{kind:?}");
        let amounts = (outcome.limit, outcome.remaining);
        assert_eq!(amounts, (CAPACITY, CAPACITY - 1), "{kind:?}");
        assert!(outcome.reset_at > start, "{kind:?}: {outcome:?}");
        assert_eq!((applied.now, applied.granted), (start, 1), "{kind:?}");
    }
}

/// The last unit of the allowance is admitted, and the next one is not.
pub async fn exactly_the_capacity_is_admitted(fixture: &impl Fixture) {
    for (kind, n, _, limit) in limits(fixture, WINDOW) {
        for taken in 1..=CAPACITY {
            let applied = take(fixture, charge(n, &limit), 1).await;
            assert_eq!(applied.outcomes[0].remaining, CAPACITY - taken, "{kind:?}");
        }
        for _ in 0..3 {
            let outcome = denied(fixture, charge(n, &limit), 1).await;
            assert_eq!(outcome.remaining, 0, "{kind:?}");
        }
    }
}

/// One microsecond before the promised instant, the request is denied with the same promise. At the
/// promised instant, the request is admitted.
pub async fn a_denial_names_the_exact_microsecond_of_admission(fixture: &impl Fixture) {
    for (kind, n, start, limit) in limits(fixture, WINDOW) {
        let charge = charge(n, &limit);
        let mut now = start;
        while apply(fixture, &[charge], Ask::Exactly(1)).await.allowed {
            now = now + Span::from_micros(17_001);
            fixture.set_time(now);
        }
        for units in 1..=CAPACITY {
            fixture.set_time(now);
            let outcome = denied(fixture, charge, units).await;
            let at = promised(&outcome);
            fixture.set_time(just_before(at));
            let before = peek(fixture, &[charge], Ask::Exactly(units)).await;
            assert!(!before.allowed, "{kind:?}: {units} before {at:?}");
            assert_eq!(promised(&before.outcomes[0]), at, "{kind:?}: {units}");
            fixture.set_time(at);
            let then = peek(fixture, &[charge], Ask::Exactly(units)).await;
            assert!(then.allowed, "{kind:?}: {units} at {at:?}: {then:?}");
        }
    }
}

/// For each unit of a request, each charge takes its cost.
pub async fn a_cost_is_taken_whole_or_not_at_all(fixture: &impl Fixture) {
    for (kind, n, _, limit) in limits(fixture, WINDOW) {
        let heavy = costing(3, charge(n, &limit));
        take(fixture, heavy, 2).await;
        assert_eq!(left(fixture, heavy).await, 4, "{kind:?}");
        denied(fixture, heavy, 2).await;
        assert_eq!(left(fixture, heavy).await, 4, "{kind:?}");
        take(fixture, heavy, 1).await;
        take(fixture, charge(n, &limit), 1).await;
        denied(fixture, charge(n, &limit), 1).await;
    }
}

/// A cost of 0 is allowed even if nothing is left, and changes nothing.
pub async fn a_cost_of_zero_takes_nothing(fixture: &impl Fixture) {
    for (kind, n, start, limit) in limits(fixture, WINDOW) {
        let one = charge(n, &limit);
        let free = costing(0, one);
        take(fixture, free, 7).await;
        let unused = peek(fixture, &[one], Ask::Exactly(0)).await;
        assert_eq!(unused.outcomes[0].reset_at, start, "{kind:?}");
        take(fixture, one, CAPACITY).await;
        let before = peek(fixture, &[one], Ask::Exactly(1)).await;
        take(fixture, free, 7).await;
        take(fixture, one, 0).await;
        let after = peek(fixture, &[one], Ask::Exactly(1)).await;
        assert_eq!(after, before, "{kind:?}");
    }
}

/// A request that can never be admitted gets that answer, and takes nothing.
pub async fn a_cost_above_the_capacity_is_never_admitted(fixture: &impl Fixture) {
    for (kind, n, _, limit) in limits(fixture, WINDOW) {
        for units in [CAPACITY + 1, 1 << 40, u64::MAX] {
            let outcome = denied(fixture, charge(n, &limit), units).await;
            assert_eq!(outcome.admission, Admission::Denied(Denial::Never));
            assert_eq!(outcome.remaining, CAPACITY, "{kind:?}");
        }
        let heavy = costing(u64::MAX, charge(n, &limit));
        let outcome = denied(fixture, heavy, 2).await;
        assert_eq!(outcome.admission, Admission::Denied(Denial::Never));
        take(fixture, charge(n, &limit), CAPACITY).await;
    }
}

/// Without a limit everything passes, and nothing is counted.
pub async fn an_unlimited_charge_allows_everything(fixture: &impl Fixture) {
    for (algorithm, n) in Algorithm::ALL.into_iter().zip(1..) {
        let limit = Limit::unlimited(algorithm);
        for units in [0, 1, 1 << 40, u64::MAX] {
            let applied = take(fixture, charge(n, &limit), units).await;
            let expected = Outcome {
                admission: Admission::Allowed { delay: Span::ZERO },
                limit: Outcome::UNLIMITED,
                remaining: Outcome::UNLIMITED,
                reset_at: START,
            };
            assert_eq!(applied.outcomes[0], expected);
            assert_eq!(applied.granted, units);
        }
    }
}

/// A capacity of zero does not mean unlimited: it denies everything.
pub async fn a_capacity_of_zero_denies_everything(fixture: &impl Fixture) {
    for (kind, n, start) in kinds(fixture).filter(|(kind, ..)| kind.can_be_zero()) {
        let limit = kind.limit(0, WINDOW);
        let outcome = denied(fixture, charge(n, &limit), 1).await;
        assert_eq!(outcome.admission, Admission::Denied(Denial::Never));
        fixture.set_time(start + Span::DAY);
        denied(fixture, charge(n, &limit), 1).await;
        let up_to = apply(fixture, &[charge(n, &limit)], Ask::UpTo(5)).await;
        assert!(!up_to.allowed, "{kind:?}");
    }
}

/// A fixed window ends on a multiple of its length since the epoch, not one window after the first
/// request.
pub async fn a_fixed_window_ends_on_the_edge_of_the_clock(fixture: &impl Fixture) {
    let limit = Kind::FixedWindow.limit(CAPACITY, WINDOW);
    let edge = START + WINDOW;
    fixture.set_time(just_before(edge));
    take(fixture, charge(1, &limit), CAPACITY).await;
    let outcome = denied(fixture, charge(1, &limit), 1).await;
    assert_eq!((promised(&outcome), outcome.reset_at), (edge, edge));
    fixture.set_time(edge);
    take(fixture, charge(1, &limit), CAPACITY).await;
    let outcome = denied(fixture, charge(1, &limit), 1).await;
    assert_eq!(promised(&outcome), edge + WINDOW);
}

/// A sliding log has no edges: each cost counts for one whole window.
pub async fn a_sliding_log_frees_each_cost_after_one_window(fixture: &impl Fixture) {
    let limit = Kind::SlidingLog.limit(CAPACITY, WINDOW);
    let times = [0, 300_000, 999_999].map(|micros| START + Span::from_micros(micros));
    for (time, cost) in times.into_iter().zip([2, 3, 5]) {
        fixture.set_time(time);
        take(fixture, charge(1, &limit), cost).await;
    }
    let mut freed = 0;
    for (time, cost) in times.into_iter().zip([2, 3, 5]) {
        fixture.set_time(just_before(time + WINDOW));
        assert_eq!(left(fixture, charge(1, &limit)).await, freed);
        fixture.set_time(time + WINDOW);
        freed += cost;
        assert_eq!(left(fixture, charge(1, &limit)).await, freed);
    }
}

/// A shaping bucket admits each request with the delay until its turn, and denies when its queue is full.
pub async fn a_shaping_bucket_assigns_turns(fixture: &impl Fixture) {
    let limit = Kind::LeakyShape.limit(CAPACITY, WINDOW);
    let in_time = Kind::LeakyShapeInTime.limit(CAPACITY, WINDOW);
    let each = Span::from_millis(100);
    for turn in 0..CAPACITY {
        let delay = Span::from_micros(turn * each.as_micros());
        let applied = take(fixture, charge(1, &limit), 1).await;
        assert_eq!(applied.outcomes[0].admission, Admission::Allowed { delay });
    }
    let outcome = denied(fixture, charge(1, &limit), 1).await;
    let full = Admission::Denied(Denial::QueueFull(START + each));
    assert_eq!(outcome.admission, full);
    // The longest wait is half a window. So turns from 0 to 500 ms are admitted, and a turn at 600 ms is
    // denied.
    for _ in 0..6 {
        take(fixture, charge(2, &in_time), 1).await;
    }
    let outcome = denied(fixture, charge(2, &in_time), 1).await;
    assert_eq!(outcome.admission, full);
    assert_eq!(outcome.remaining, 4);
}

/// The reset instant is the first instant at which the whole allowance is back.
pub async fn the_whole_allowance_is_back_at_the_reset_instant(fixture: &impl Fixture) {
    for (kind, n, start, limit) in limits(fixture, WINDOW) {
        for (units, late) in [(CAPACITY, 0), (1, 123_457), (7, 3)] {
            let one = charge(n + 100 * units, &limit);
            fixture.set_time(start + Span::from_micros(late));
            let reset_at = take(fixture, one, units).await.outcomes[0].reset_at;
            fixture.set_time(just_before(reset_at));
            assert!(left(fixture, one).await < CAPACITY, "{kind:?}");
            fixture.set_time(reset_at);
            assert_eq!(left(fixture, one).await, CAPACITY, "{kind:?}");
            take(fixture, one, CAPACITY).await;
            denied(fixture, one, 1).await;
        }
    }
}

/// Long after its last request, a subject has the same allowance as a subject never seen.
pub async fn an_expired_state_equals_a_fresh_one(fixture: &impl Fixture) {
    for (kind, n, start, limit) in limits(fixture, WINDOW) {
        let (old, new) = (charge(n, &limit), charge(n + 100, &limit));
        take(fixture, old, CAPACITY).await;
        fixture.set_time(start + Span::from_secs(1800));
        for units in [3, 7, 1] {
            let answer = apply(fixture, &[old], Ask::Exactly(units)).await;
            let fresh = apply(fixture, &[new], Ask::Exactly(units)).await;
            assert_eq!(answer, fresh, "{kind:?}");
        }
    }
}

/// A clock that goes back refills nothing, and no span refills twice.
pub async fn a_clock_that_goes_back_refills_nothing(fixture: &impl Fixture) {
    for (_, n, start, limit) in limits(fixture, WINDOW) {
        let one = charge(n, &limit);
        let now = start + Span::from_millis(10);
        fixture.set_time(now);
        take(fixture, one, CAPACITY).await;
        let at = promised(&denied(fixture, one, 1).await);
        for span in [1, 1_000, 900_000, 1_500_000_000].map(Span::from_micros) {
            fixture.set_time(back(now, span));
            denied(fixture, one, 1).await;
        }
        for _ in 0..20 {
            fixture.set_time(just_before(at));
            denied(fixture, one, 1).await;
            fixture.set_time(now);
            denied(fixture, one, 1).await;
        }
        fixture.set_time(at);
        take(fixture, one, 1).await;
    }
}

/// An expired state still counts if the clock steps back a little, even if the store has forgotten other
/// states since. Otherwise the allowance could be spent twice.
pub async fn a_state_survives_a_clock_that_steps_back(fixture: &impl Fixture) {
    for (kind, n, _, limit) in limits(fixture, WINDOW) {
        let one = charge(n, &limit);
        let reset_at = take(fixture, one, CAPACITY).await.outcomes[0].reset_at;
        let almost = back(reset_at + GRACE, Span::from_micros(1));
        let times = [0, 1, 500, 900_000].map(|micros| back(almost, Span::from_micros(micros)));
        let mut before = Vec::new();
        for time in times.into_iter().rev() {
            fixture.set_time(time);
            before.push(peek(fixture, &[one], Ask::Exactly(1)).await);
        }
        fixture.set_time(almost);
        for other in 0..500 {
            take(fixture, charge(1000 * n + other, &limit), 1).await;
        }
        for (time, before) in times.into_iter().zip(before.into_iter().rev()) {
            fixture.set_time(time);
            let after = peek(fixture, &[one], Ask::Exactly(1)).await;
            assert_eq!(after, before, "{kind:?}");
        }
        fixture.set_time(back(almost, GRACE));
        denied(fixture, one, CAPACITY).await;
    }
}

/// A refund undoes its charge.
pub async fn a_refund_gives_back_the_charge(fixture: &impl Fixture) {
    for (kind, n, _, limit) in limits(fixture, WINDOW) {
        let double = costing(2, charge(n, &limit));
        take(fixture, double, 2).await;
        let before = peek(fixture, &[double], Ask::Exactly(4)).await;
        let charged_at = take(fixture, double, 3).await.now;
        assert_eq!(left(fixture, double).await, 0, "{kind:?}");
        refund(fixture, &[double], 3, charged_at).await;
        let after = peek(fixture, &[double], Ask::Exactly(4)).await;
        assert_eq!(after, before, "{kind:?}");
        refund(fixture, &[double], u64::MAX, charged_at).await;
        assert_eq!(left(fixture, double).await, CAPACITY, "{kind:?}");
    }
}

/// A charge that has left its window has already come back by itself. So its refund gives nothing back, and
/// later charges stay.
pub async fn a_late_refund_gives_nothing_back(fixture: &impl Fixture) {
    for (kind, n, _, limit) in limits(fixture, WINDOW) {
        let one = charge(n, &limit);
        let first = take(fixture, one, 6).await;
        fixture.set_time(first.outcomes[0].reset_at);
        let second = take(fixture, one, CAPACITY).await;
        refund(fixture, &[one], 6, first.now).await;
        assert_eq!(left(fixture, one).await, 0, "{kind:?}");
        refund(fixture, &[one], 6, second.now).await;
        assert_eq!(left(fixture, one).await, 6, "{kind:?}");
    }
}

/// A refund of a charge that was never taken gives no more than the whole allowance.
pub async fn a_refund_to_an_unknown_subject_does_nothing(fixture: &impl Fixture) {
    for (_, n, start, limit) in limits(fixture, WINDOW) {
        refund(fixture, &[charge(n, &limit)], 5, start).await;
        take(fixture, charge(n, &limit), CAPACITY).await;
        denied(fixture, charge(n, &limit), 1).await;
    }
}

/// After a reset, a subject counts as never seen. Other subjects stay as they are.
pub async fn a_reset_forgets_the_state(fixture: &impl Fixture) {
    for (kind, n, _, limit) in limits(fixture, WINDOW) {
        let (one, other) = (charge(n, &limit), charge(n + 100, &limit));
        let first = take(fixture, one, CAPACITY).await;
        take(fixture, other, CAPACITY).await;
        reset(fixture, &[one]).await;
        assert_eq!(take(fixture, one, CAPACITY).await, first, "{kind:?}");
        denied(fixture, other, 1).await;
        reset(fixture, &[one, other]).await;
        take(fixture, other, CAPACITY).await;
    }
}
