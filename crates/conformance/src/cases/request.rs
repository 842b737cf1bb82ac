//! Checks requests with several charges, and many keys.

use tollgate_core::{Admission, Denial, Enforcement, OnDenied, Outcome};

use super::{
    CAPACITY, WINDOW, apply, charge, costing, denied, enforced, kinds, left, limits, peek,
    promised, refund, take,
};
use crate::{Fixture, Kind};
use tollgate_store::Ask;

/// Peeks change nothing, and give the same answer as the next `apply`.
pub async fn a_peek_takes_nothing_and_answers_the_same(fixture: &impl Fixture) {
    for (kind, n, _, limit) in limits(fixture, WINDOW) {
        let one = charge(n, &limit);
        for ask in [Ask::Exactly(4), Ask::UpTo(4), Ask::UpTo(4), Ask::Exactly(1)] {
            let peeked = peek(fixture, &[one], ask).await;
            assert_eq!(peek(fixture, &[one], ask).await, peeked, "{kind:?}");
            let applied = apply(fixture, &[one], ask).await;
            assert_eq!(applied.allowed, peeked.allowed, "{kind:?}");
            assert_eq!(applied.granted, peeked.granted, "{kind:?}");
            let (answer, was) = (applied.outcomes[0], peeked.outcomes[0]);
            assert_eq!(answer.admission, was.admission, "{kind:?}");
            let expected = was.remaining - applied.granted;
            assert_eq!(answer.remaining, expected, "{kind:?}");
        }
    }
}

/// A request to which no rule applies passes.
pub async fn a_request_without_charges_is_allowed(fixture: &impl Fixture) {
    for ask in [Ask::Exactly(3), Ask::UpTo(3)] {
        assert_eq!(apply(fixture, &[], ask).await.granted, 3);
        assert!(peek(fixture, &[], ask).await.allowed);
    }
}

/// Outcome `i` belongs to charge `i`.
pub async fn outcomes_come_in_the_order_of_the_charges(fixture: &impl Fixture) {
    let limits: Vec<_> = (101..=112)
        .zip(Kind::ALL.into_iter().cycle())
        .map(|(capacity, kind)| kind.limit(capacity, WINDOW))
        .collect();
    let charges = (1..).zip(&limits).map(|(n, limit)| charge(n, limit));
    let charges: Vec<_> = charges.collect();
    for order in [charges.clone(), charges.into_iter().rev().collect()] {
        let applied = apply(fixture, &order, Ask::Exactly(1)).await;
        for (charge, outcome) in order.iter().zip(&applied.outcomes) {
            assert_eq!(outcome.limit, charge.limit.capacity());
        }
    }
}

/// If one charge denies, no state changes, for all algorithms in any order.
pub async fn one_denial_charges_nothing(fixture: &impl Fixture) {
    let mut n = 0;
    for (spent_kind, _, _) in kinds(fixture) {
        for other_kind in Kind::ALL {
            n += 10;
            let tight = spent_kind.limit(CAPACITY, WINDOW);
            let loose = other_kind.limit(2 * CAPACITY, WINDOW);
            let spent = charge(n, &tight);
            let others = [charge(n + 1, &loose), charge(n + 2, &loose)];
            take(fixture, spent, CAPACITY).await;
            take(fixture, others[0], 3).await;
            let all = [others[0], spent, others[1]];
            let before = peek(fixture, &all, Ask::Exactly(2)).await;
            for order in [
                all,
                [spent, others[0], others[1]],
                [others[1], others[0], spent],
            ] {
                let applied = apply(fixture, &order, Ask::Exactly(2)).await;
                assert!(!applied.allowed, "{spent_kind:?} and {other_kind:?}");
            }
            let after = peek(fixture, &all, Ask::Exactly(2)).await;
            assert_eq!(after, before, "{spent_kind:?} and {other_kind:?}");
            assert_eq!(after.outcomes[0].remaining, 2 * CAPACITY - 3);
            assert_eq!(after.outcomes[2].remaining, 2 * CAPACITY);
        }
    }
}

/// `Ask::UpTo` grants as many units as fit into every charge: the scarcest charge decides.
pub async fn up_to_grants_what_fits_into_every_charge(fixture: &impl Fixture) {
    for (kind, n, _, limit) in limits(fixture, WINDOW) {
        let wide = kind.limit(10 * CAPACITY, WINDOW);
        let (one, free) = (charge(n, &limit), costing(0, charge(n + 200, &limit)));
        let other = costing(20, charge(n + 100, &wide));
        let granted = apply(fixture, &[one, free, other], Ask::UpTo(50)).await;
        assert_eq!(granted.granted, 5, "{kind:?}: a hundred by twenties");
        assert_eq!(left(fixture, one).await, CAPACITY - 5, "{kind:?}");
        assert_eq!(left(fixture, other).await, 0, "{kind:?}");
        let granted = apply(fixture, &[one, free], Ask::UpTo(3)).await.granted;
        assert_eq!(granted, 3, "{kind:?}: no more than asked for");
        let most = apply(fixture, &[one, free], Ask::UpTo(u64::MAX)).await;
        assert_eq!(most.granted, 2, "{kind:?}: no more than there are");
    }
}

/// `Ask::UpTo` grants at least one unit, or denies and promises an instant for one unit.
pub async fn up_to_is_denied_if_not_even_one_fits(fixture: &impl Fixture) {
    for (kind, n, _, limit) in limits(fixture, WINDOW) {
        let pair = costing(2, charge(n, &limit));
        take(fixture, charge(n, &limit), CAPACITY - 1).await;
        let applied = apply(fixture, &[pair], Ask::UpTo(100)).await;
        assert!(!applied.allowed, "{kind:?}");
        let at = promised(&applied.outcomes[0]);
        assert_eq!(promised(&denied(fixture, pair, 1).await), at, "{kind:?}");
        fixture.set_time(at);
        let applied = apply(fixture, &[pair], Ask::UpTo(100)).await;
        assert!(applied.allowed, "{kind:?}");
    }
}

/// A shadow reports a denial, but the request passes.
pub async fn a_shadow_never_denies(fixture: &impl Fixture) {
    for (kind, n, _) in kinds(fixture) {
        let (limit, wide) = (kind.limit(CAPACITY, WINDOW), kind.limit(1000, WINDOW));
        let shadow = enforced(Enforcement::Shadow, charge(n, &limit));
        let strict = charge(n + 100, &wide);
        for i in 0..3 * CAPACITY {
            let applied = apply(fixture, &[shadow, strict], Ask::Exactly(1)).await;
            assert!(applied.allowed, "{kind:?}");
            assert_eq!(applied.granted, 1, "{kind:?}");
            assert_eq!(applied.outcomes[0].is_allowed(), i < CAPACITY, "{kind:?}");
        }
        let applied = apply(fixture, &[shadow, strict], Ask::UpTo(50)).await;
        assert_eq!(applied.granted, 50, "{kind:?}: a shadow does not limit");
        assert_eq!(left(fixture, strict).await, 1000 - 3 * CAPACITY - 50);
    }
}

/// A shadow has the same state as if it enforced. It does not count requests that it denies itself, or that
/// other charges deny.
pub async fn a_shadow_is_charged_with_the_others_and_only_if_it_allows(fixture: &impl Fixture) {
    for (kind, n, _, limit) in limits(fixture, WINDOW) {
        let (spent, wide) = (charge(n + 100, &limit), charge(n + 200, &limit));
        let shadow = enforced(Enforcement::Shadow, charge(n, &limit));
        take(fixture, spent, CAPACITY).await;
        for (other, units, allowed, remains) in [
            (spent, 1, false, CAPACITY),
            (wide, 6, true, CAPACITY - 6),
            (costing(0, wide), 6, true, CAPACITY - 6),
        ] {
            let applied = apply(fixture, &[shadow, other], Ask::Exactly(units)).await;
            assert_eq!(applied.allowed, allowed, "{kind:?}");
            assert_eq!(left(fixture, shadow).await, remains, "{kind:?}");
        }
    }
}

/// A candidate counts the requests that it would have admitted in place of another charge. These include
/// requests that the replaced charge denies, but not requests that other charges deny.
pub async fn a_candidate_is_charged_as_if_it_replaced_another(fixture: &impl Fixture) {
    if !fixture.range().judges_together() {
        return;
    }
    for (kind, n, _) in kinds(fixture) {
        let (few, many) = (kind.limit(4, WINDOW), kind.limit(CAPACITY, WINDOW));
        let (current, other) = (charge(n, &few), charge(n + 100, &many));
        let candidate = enforced(Enforcement::Instead(1), charge(n + 200, &many));
        let all = [candidate, current, other];
        for taken in 1..=6 {
            let applied = apply(fixture, &all, Ask::Exactly(1)).await;
            assert_eq!(applied.allowed, taken <= 4, "{kind:?}");
            let answer = applied.outcomes[0];
            assert!(answer.is_allowed(), "{kind:?}");
            assert_eq!(answer.remaining, CAPACITY - taken, "{kind:?}");
            assert_eq!(left(fixture, candidate).await, CAPACITY - taken, "{kind:?}");
        }
        assert_eq!(left(fixture, other).await, CAPACITY - 4, "{kind:?}");
        // A peek gives the same answer, and takes nothing.
        let peeked = peek(fixture, &all, Ask::Exactly(1)).await;
        let allowed = (peeked.allowed, peeked.outcomes[0].is_allowed());
        assert_eq!(allowed, (false, true), "{kind:?}");
        assert_eq!(left(fixture, candidate).await, CAPACITY - 6, "{kind:?}");
        // A request that another charge denies is not counted.
        take(fixture, other, CAPACITY - 4).await;
        assert!(!apply(fixture, &all, Ask::Exactly(1)).await.allowed);
        assert_eq!(left(fixture, candidate).await, CAPACITY - 6, "{kind:?}");
        // The candidate does not count a request that it denies.
        let alone = [candidate, current];
        assert!(!apply(fixture, &alone, Ask::Exactly(5)).await.allowed);
        assert_eq!(left(fixture, candidate).await, CAPACITY - 6, "{kind:?}");
        assert!(!apply(fixture, &alone, Ask::Exactly(4)).await.allowed);
        assert_eq!(left(fixture, candidate).await, 0, "{kind:?}");
    }
}

/// A candidate acts as a shadow if the charge that it would replace does not exist, or never denies. Such a
/// candidate does not limit how many units are granted.
pub async fn a_candidate_for_no_charge_is_a_shadow(fixture: &impl Fixture) {
    for (kind, n, _) in kinds(fixture) {
        let (few, many) = (kind.limit(4, WINDOW), kind.limit(CAPACITY, WINDOW));
        let spent = charge(n, &few);
        take(fixture, spent, 4).await;
        for (number, place) in [(1, 0), (2, 2), (3, 7), (4, u8::MAX)] {
            let candidate = enforced(Enforcement::Instead(place), charge(n + 100 * number, &many));
            let applied = apply(fixture, &[candidate, spent], Ask::Exactly(1)).await;
            assert!(!applied.allowed, "{kind:?}, {place}");
            let remains = left(fixture, candidate).await;
            assert_eq!(remains, CAPACITY, "{kind:?}, {place}");
            take(fixture, candidate, CAPACITY).await;
            let alone = apply(fixture, &[candidate], Ask::Exactly(1)).await;
            assert!(alone.allowed && !alone.outcomes[0].is_allowed(), "{kind:?}");
        }
        let wide = charge(n + 500, &many);
        let narrow = enforced(Enforcement::Instead(1), charge(n + 600, &few));
        let granted = apply(fixture, &[narrow, wide], Ask::UpTo(50)).await.granted;
        assert_eq!(granted, CAPACITY, "{kind:?}: a candidate does not limit");
        let remains = left(fixture, narrow).await;
        assert_eq!(remains, 4, "{kind:?}: the candidate would deny them");
    }
}

/// A charge with `OnDenied::Charge` counts requests that it denies, or that another charge denies. It counts
/// up to its capacity.
pub async fn a_denied_request_counts_under_charge_denied(fixture: &impl Fixture) {
    for (kind, n, _, limit) in limits(fixture, WINDOW) {
        let (spent, plain) = (charge(n + 100, &limit), charge(n + 200, &limit));
        let mut counting = charge(n, &limit);
        counting.on_denied = OnDenied::Charge;
        take(fixture, spent, CAPACITY).await;
        let applied = apply(fixture, &[counting, spent, plain], Ask::Exactly(4)).await;
        let allowed = (applied.allowed, applied.outcomes[0].is_allowed());
        assert_eq!(allowed, (false, true), "{kind:?}");
        assert_eq!(applied.outcomes[0].remaining, CAPACITY - 4, "{kind:?}");
        assert_eq!(left(fixture, counting).await, CAPACITY - 4, "{kind:?}");
        assert_eq!(left(fixture, plain).await, CAPACITY, "{kind:?}");
        let answer = denied(fixture, counting, 7).await;
        assert_eq!(answer.remaining, 0, "{kind:?}");
        assert_eq!(left(fixture, counting).await, 0, "{kind:?}");
        for _ in 0..5 {
            assert_eq!(denied(fixture, counting, 7).await, answer, "{kind:?}");
        }
        let at = promised(&denied(fixture, counting, 1).await);
        fixture.set_time(at);
        take(fixture, counting, 1).await;
    }
}

/// Two charges of one key in one request are decided and taken together.
pub async fn charges_of_one_key_add_up(fixture: &impl Fixture) {
    for (kind, n, start, limit) in limits(fixture, WINDOW) {
        let one = charge(n, &limit);
        let twice = [costing(3, one), one];
        let applied = apply(fixture, &twice, Ask::Exactly(2)).await;
        assert!(applied.allowed, "{kind:?}");
        let remaining = [applied.outcomes[0].remaining, applied.outcomes[1].remaining];
        assert_eq!(remaining, [CAPACITY - 6, CAPACITY - 8], "{kind:?}");
        let peeked = peek(fixture, &[one], Ask::Exactly(0)).await;
        assert_eq!(applied.outcomes[1].reset_at, peeked.outcomes[0].reset_at);
        let applied = apply(fixture, &[one, one, one], Ask::Exactly(1)).await;
        assert!(!applied.allowed, "{kind:?}: three of two");
        let allowed: Vec<_> = applied.outcomes.iter().map(Outcome::is_allowed).collect();
        assert_eq!(allowed, [true, true, false], "{kind:?}");
        assert_eq!(left(fixture, one).await, 2, "{kind:?}");
        let granted = apply(fixture, &[one, one], Ask::UpTo(9)).await.granted;
        assert_eq!(granted, 1, "{kind:?}: two of two");
        refund(fixture, &twice, 2, start).await;
        assert_eq!(left(fixture, one).await, 8, "{kind:?}");
        // Both charges together need more than the capacity, so waiting does not help.
        let applied = apply(fixture, &[one, one], Ask::Exactly(6)).await;
        let never = Admission::Denied(Denial::Never);
        assert_eq!(applied.outcomes[1].admission, never, "{kind:?}");
    }
}

/// The usage of one subject does not affect others.
pub async fn keys_are_independent(fixture: &impl Fixture) {
    const SUBJECTS: u64 = 200;
    for (kind, n, _, limit) in limits(fixture, WINDOW) {
        let one = |subject| charge(n * 10_000 + subject, &limit);
        let used = |subject| subject % (CAPACITY + 1);
        for subject in 0..SUBJECTS {
            take(fixture, one(subject), used(subject)).await;
        }
        for subject in 0..SUBJECTS {
            let (left, used) = (left(fixture, one(subject)).await, used(subject));
            assert_eq!(left, CAPACITY - used, "{kind:?}: subject {subject}");
        }
    }
}
