//! Back-offs: charges that watch another charge.

use tollgate_core::backoff::Schedule;
use tollgate_core::{CarryOver, Charge, Enforcement, Limit, OnDenied, Outcome, Span, Time};

use super::{
    CAPACITY, WINDOW, apply, charge, denied, enforced, just_before, left, limits, peek, promised,
    refund, reset, take,
};
use crate::{Fixture, Kind, START};
use tollgate_store::{Applied, Ask};

const SCHEDULE: Schedule = Schedule {
    after: 2,
    base: Span::SECOND,
    factor: 2,
    max: Span::from_secs(5),
    forget: Span::MINUTE,
    penalty: Span::ZERO,
};

fn backoff(schedule: Schedule) -> Limit {
    Limit::backoff(schedule).expect("a valid schedule")
}

/// Returns a charge for subject `number` that watches the first charge of its request.
fn watcher(number: u64, limit: &Limit) -> Charge<'_> {
    Charge {
        on_denied: OnDenied::Strike(0),
        ..charge(number, limit)
    }
}

/// Returns the kinds of [`limits`]. Returns none if the store cannot decide charges that depend on each
/// other.
fn together(fixture: &impl Fixture) -> impl Iterator<Item = (Kind, u64, Time, Limit)> {
    limits(fixture, WINDOW).filter(|_| fixture.range().judges_together())
}

/// Asks for more than the capacity, so that the first of `charges` denies.
async fn strike(fixture: &impl Fixture, charges: &[Charge<'_>]) -> Applied {
    let applied = apply(fixture, charges, Ask::Exactly(1 << 40)).await;
    assert!(!applied.outcomes[0].is_allowed(), "{applied:?}");
    applied
}

/// The first denials are free. Each further denial blocks for longer, up to the longest block.
pub async fn denials_beyond_the_free_ones_block_for_longer_and_longer(fixture: &impl Fixture) {
    let blocks = backoff(SCHEDULE);
    for (kind, n, start, _) in together(fixture) {
        let one = kind.limit(1, Span::HOUR);
        let pair = [charge(n, &one), watcher(n + 100, &blocks)];
        let mut now = start;
        take(fixture, pair[0], 1).await;
        for (secs, free) in [(0, 1), (0, 0), (1, 0), (2, 0), (4, 0), (5, 0), (5, 0)] {
            let until = now + Span::from_secs(secs);
            let applied = apply(fixture, &pair, Ask::Exactly(1)).await;
            assert!(!applied.allowed, "{kind:?}");
            let answer = applied.outcomes[1];
            assert_eq!(answer.remaining, free, "{kind:?}, {secs}");
            assert_eq!(answer.is_allowed(), secs == 0, "{kind:?}, {secs}");
            if secs > 0 {
                assert_eq!(promised(&answer), until, "{kind:?}");
                fixture.set_time(just_before(until));
                // A denial by the block is not a strike.
                let again = promised(&denied(fixture, pair[1], 1).await);
                assert_eq!(again, until, "{kind:?}");
            }
            now = until;
            fixture.set_time(now);
            assert!(peek(fixture, &pair[1..], Ask::Exactly(1)).await.allowed);
        }
    }
}

/// During a block, nothing is taken from the watched limit. After the block, the subject has its whole
/// allowance.
pub async fn a_block_takes_nothing_from_the_watched_limit(fixture: &impl Fixture) {
    let blocks = backoff(Schedule {
        after: 0,
        ..SCHEDULE
    });
    for (kind, n, start, limit) in together(fixture) {
        let pair = [charge(n, &limit), watcher(n + 100, &blocks)];
        strike(fixture, &pair).await;
        for _ in 0..3 {
            let applied = apply(fixture, &pair, Ask::Exactly(1)).await;
            let answer: Vec<_> = applied.outcomes.iter().map(Outcome::is_allowed).collect();
            assert_eq!(answer, [true, false], "{kind:?}");
        }
        assert_eq!(left(fixture, pair[0]).await, CAPACITY, "{kind:?}");
        fixture.set_time(start + Span::SECOND);
        let applied = apply(fixture, &pair, Ask::Exactly(CAPACITY)).await;
        assert!(applied.allowed, "{kind:?}");
    }
}

/// Strikes are forgotten after some time without a denial.
pub async fn strikes_are_forgotten_after_a_quiet_time(fixture: &impl Fixture) {
    let blocks = backoff(SCHEDULE);
    for (kind, n, start, limit) in together(fixture) {
        let pair = [charge(n, &limit), watcher(n + 100, &blocks)];
        strike(fixture, &pair).await;
        strike(fixture, &pair).await;
        let forgotten = start + SCHEDULE.forget;
        fixture.set_time(just_before(forgotten));
        assert_eq!(left(fixture, pair[1]).await, 0, "{kind:?}");
        assert!(apply(fixture, &pair, Ask::Exactly(1)).await.allowed);
        fixture.set_time(forgotten);
        assert_eq!(left(fixture, pair[1]).await, 2, "{kind:?}");
        assert_eq!(strike(fixture, &pair).await.outcomes[1].remaining, 1);
    }
}

/// A request during a block adds the penalty to the block. The block then ends at most the longest block
/// after this request. A peek adds nothing.
pub async fn a_request_during_a_block_adds_the_penalty(fixture: &impl Fixture) {
    let blocks = backoff(Schedule {
        after: 0,
        max: Span::from_secs(2),
        penalty: Span::from_millis(400),
        ..SCHEDULE
    });
    for (kind, n, start, limit) in together(fixture) {
        let pair = [charge(n, &limit), watcher(n + 100, &blocks)];
        let at = |millis| start + Span::from_millis(millis);
        let answer = strike(fixture, &pair).await.outcomes[1];
        assert_eq!(promised(&answer), at(1000), "{kind:?}");
        for (now, until) in [(0, 1400), (0, 1800), (0, 2000), (0, 2000), (500, 2400)] {
            fixture.set_time(at(now));
            let applied = apply(fixture, &pair, Ask::Exactly(1)).await;
            assert_eq!(promised(&applied.outcomes[1]), at(until), "{kind:?}");
            let peeked = peek(fixture, &pair, Ask::Exactly(1)).await;
            assert_eq!(promised(&peeked.outcomes[1]), at(until), "{kind:?}");
        }
        // If the clock goes back, a block is not shortened, and does not grow beyond the longest block.
        fixture.set_time(at(0));
        let applied = apply(fixture, &pair, Ask::Exactly(1)).await;
        assert_eq!(promised(&applied.outcomes[1]), at(2400), "{kind:?}");
        fixture.set_time(at(2400));
        assert!(apply(fixture, &pair, Ask::Exactly(1)).await.allowed);
    }
}

/// Only a denial by the watched charge is a strike. It does not matter whether other charges deny too.
pub async fn denials_by_other_charges_are_not_strikes(fixture: &impl Fixture) {
    let blocks = backoff(SCHEDULE);
    for (kind, n, _, limit) in together(fixture) {
        let (spent, watched) = (charge(n, &limit), charge(n + 100, &limit));
        take(fixture, spent, CAPACITY).await;
        let mut watching = watcher(n + 200, &blocks);
        watching.on_denied = OnDenied::Strike(2);
        let all = [watching, spent, watched];
        for _ in 0..4 {
            assert!(!apply(fixture, &all, Ask::Exactly(1)).await.allowed);
            assert_eq!(left(fixture, watching).await, 2, "{kind:?}");
        }
        let applied = apply(fixture, &all, Ask::Exactly(1 << 40)).await;
        assert_eq!(applied.outcomes[0].remaining, 1, "{kind:?}");
        // The request has no charge at index 3, so there are no strikes.
        watching.on_denied = OnDenied::Strike(3);
        apply(fixture, &[watching, spent, watched], Ask::Exactly(1 << 40)).await;
        assert_eq!(left(fixture, watching).await, 1, "{kind:?}");
    }
}

/// A back-off that watches a shadow counts the shadow's denials. A back-off that is a shadow denies nothing.
pub async fn the_denials_of_a_shadow_are_strikes(fixture: &impl Fixture) {
    let blocks = backoff(Schedule {
        after: 1,
        ..SCHEDULE
    });
    for (kind, n, _, limit) in together(fixture) {
        let pair = [charge(n, &limit), watcher(n + 100, &blocks)];
        let pair = pair.map(|it| enforced(Enforcement::Shadow, it));
        for blocked in [false, true, true] {
            let applied = strike(fixture, &pair).await;
            assert!(applied.allowed, "{kind:?}");
            assert_eq!(applied.outcomes[1].is_allowed(), !blocked, "{kind:?}");
        }
        // An enforcing back-off lets this request pass, and denies the next request.
        let strict = watcher(n + 200, &blocks);
        for _ in 0..2 {
            let applied = strike(fixture, &[pair[0], strict]).await;
            assert!(applied.allowed && applied.outcomes[1].is_allowed());
        }
        assert!(!strike(fixture, &[pair[0], strict]).await.allowed);
    }
}

/// A back-off does not limit an amount, ignores refunds, and can be reset.
pub async fn a_back_off_counts_denials_and_nothing_else(fixture: &impl Fixture) {
    let blocks = backoff(SCHEDULE);
    for (kind, n, start, limit) in together(fixture) {
        let pair = [charge(n, &limit), watcher(n + 100, &blocks)];
        strike(fixture, &pair).await;
        let applied = apply(fixture, &pair, Ask::UpTo(50)).await;
        assert_eq!(applied.granted, CAPACITY, "{kind:?}");
        assert_eq!(applied.outcomes[1].remaining, 1, "{kind:?}");
        refund(fixture, &pair, CAPACITY, start).await;
        assert_eq!(left(fixture, pair[1]).await, 1, "{kind:?}");
        strike(fixture, &pair).await;
        strike(fixture, &pair).await;
        let applied = apply(fixture, &pair, Ask::UpTo(50)).await;
        assert!(!applied.allowed && applied.outcomes[0].is_allowed());
        assert!(apply(fixture, &pair, Ask::Exactly(0)).await.allowed);
        assert_eq!(left(fixture, pair[0]).await, CAPACITY, "{kind:?}");
        reset(fixture, &pair[1..]).await;
        assert_eq!(left(fixture, pair[1]).await, 2, "{kind:?}");
        assert!(apply(fixture, &pair, Ask::Exactly(1)).await.allowed);
    }
}

/// A back-off may block the charge that a candidate would replace. During this block, the candidate still
/// counts the requests that it would have admitted.
pub async fn a_candidate_ignores_the_block_of_the_charge_it_replaces(fixture: &impl Fixture) {
    if !fixture.range().judges_together() {
        return;
    }
    let blocks = backoff(Schedule {
        after: 0,
        ..SCHEDULE
    });
    let limit = Kind::Gcra.limit(CAPACITY, Span::HOUR);
    let candidate = enforced(Enforcement::Instead(0), charge(3, &limit));
    let all = [charge(1, &limit), watcher(2, &blocks), candidate];
    strike(fixture, &all).await;
    assert!(!apply(fixture, &all, Ask::Exactly(4)).await.allowed);
    assert_eq!(left(fixture, all[0]).await, CAPACITY);
    assert_eq!(left(fixture, candidate).await, CAPACITY - 4);
}

/// When the schedule changes, the strikes stay, or their share stays, or a reset forgets them. Blocks are cut
/// to the new maximum.
pub async fn a_changed_schedule_carries_over(fixture: &impl Fixture) {
    if !fixture.range().judges_together() {
        return;
    }
    let old = backoff(SCHEDULE);
    let new = backoff(Schedule {
        after: 5,
        max: Span::from_millis(1500),
        base: Span::from_millis(10),
        ..SCHEDULE
    });
    let limit = Kind::FixedWindow.limit(CAPACITY, WINDOW);
    for (how, free) in CarryOver::ALL.into_iter().zip([4, 2, 5]) {
        let number = 10 * (1 + how as u64);
        let pair = |limit_of_watcher| {
            let mut watching = watcher(number + 1, limit_of_watcher);
            watching.carry_over = how;
            [charge(number, &limit), watching]
        };
        fixture.set_time(START);
        strike(fixture, &pair(&old)).await;
        assert_eq!(left(fixture, pair(&new)[1]).await, free, "{how:?}");
        strike(fixture, &pair(&old)).await;
        strike(fixture, &pair(&old)).await;
        fixture.set_time(START + Span::SECOND);
        let answer = strike(fixture, &pair(&old)).await.outcomes[1];
        assert_eq!(promised(&answer), START + Span::from_secs(3), "{how:?}");
        let answer = apply(fixture, &pair(&new), Ask::Exactly(1)).await;
        match how {
            CarryOver::Reset => assert!(answer.allowed),
            _ => {
                let cut = START + Span::from_millis(2500);
                assert_eq!(promised(&answer.outcomes[1]), cut, "{how:?}");
            }
        }
    }
}
