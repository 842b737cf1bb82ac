//! Checks reservations: units that are taken for a while, and settled later.

use std::sync::{Arc, LazyLock};

use tollgate_core::{Algorithm, Charge, Enforcement, HoldId, Limit, Span, Token};

use super::{
    CAPACITY, apply, charge, costing, denied, enforced, just_before, left, limits, promised, reset,
    take,
};
use crate::{Fixture, Kind, START, TTL, hold_id as id, reservation};
use tollgate_store::{
    Ask, Extended, Held, HeldCharge, HoldRecord, HoldState, MAX_OWNER, NewHold, OpenBound, Settle,
    Settled, Store,
};

/// A window that does not end while a case runs.
pub(super) const LONG: Span = Span::from_secs(1_000 * 86_400);
/// A limit of [`CAPACITY`] in a window that does not end while a case runs.
pub(super) static ENDLESS: LazyLock<Limit> =
    LazyLock::new(|| Kind::FixedWindow.limit(CAPACITY, LONG));
pub(super) static ONE_SLOT: LazyLock<Limit> = LazyLock::new(|| slots(1));

pub(super) fn slots(limit: u64) -> Limit {
    Limit::concurrency(limit, TTL).expect("a limit of slots")
}

pub(super) fn overdrawing(overdraft: u64, charge: Charge<'_>) -> Charge<'_> {
    Charge {
        overdraft,
        ..charge
    }
}

pub(super) async fn hold(
    fixture: &impl Fixture,
    charges: &[Charge<'_>],
    units: u64,
    new: &NewHold<'_>,
) -> Held {
    let held = fixture.store().hold(charges, units, new).await;
    held.expect("the store answers")
}

/// Makes a hold of `units`, and fails unless it is allowed.
pub(super) async fn held(
    fixture: &impl Fixture,
    charges: &[Charge<'_>],
    units: u64,
    new: &NewHold<'_>,
) -> Arc<HoldRecord> {
    match hold(fixture, charges, units, new).await {
        Held::Taken { applied, record } => {
            assert!(applied.allowed && applied.granted == units, "{applied:?}");
            assert_eq!(applied.outcomes.len(), charges.len());
            assert_eq!((record.id, record.units), (new.id, units));
            assert_eq!(record.state, HoldState::Reserved);
            assert_eq!(record.charged_at, applied.now);
            record
        }
        other => panic!("not taken: {other:?}"),
    }
}

pub(super) async fn settle(fixture: &impl Fixture, number: u128, how: Settle) -> Settled {
    let settled = fixture.store().settle(id(number), how).await;
    settled.expect("the store answers")
}

/// Ends a hold, and fails unless the store ends it now.
pub(super) async fn ended(fixture: &impl Fixture, number: u128, how: Settle) -> Arc<HoldRecord> {
    match settle(fixture, number, how).await {
        Settled::Done(record) => record,
        other => panic!("not done: {other:?}"),
    }
}

pub(super) async fn extend(
    fixture: &impl Fixture,
    number: u128,
    ttl: Span,
    token: Option<Token>,
) -> Extended {
    let extended = fixture.store().extend(id(number), ttl, token).await;
    extended.expect("the store answers")
}

pub(super) async fn find(fixture: &impl Fixture, number: u128) -> Option<Arc<HoldRecord>> {
    let found = fixture.store().find_hold(id(number)).await;
    found.expect("the store answers")
}

pub(super) async fn due(fixture: &impl Fixture) -> Vec<HoldId> {
    let due = fixture.store().due_holds(100).await;
    due.expect("the store answers")
}

pub(super) fn commit(actual: u64) -> Settle {
    Settle::Commit { actual }
}

pub(super) fn taken(record: &HoldRecord) -> Vec<u64> {
    record.charges.iter().map(|it| it.taken).collect()
}

/// A reservation takes its units at once. A commit gives back the unused units.
pub async fn a_commit_of_less_gives_back_the_rest(fixture: &impl Fixture) {
    for (kind, n, start, limit) in limits(fixture, Span::HOUR) {
        let one = charge(n, &limit);
        let number = u128::from(n);
        let record = held(fixture, &[one], 6, &reservation(number)).await;
        assert_eq!(record.expires_at, start + TTL, "{kind:?}");
        assert_eq!(taken(&record), [6], "{kind:?}");
        assert_eq!(left(fixture, one).await, 4, "{kind:?}");
        assert_eq!(find(fixture, number).await, Some(record), "{kind:?}");
        let record = ended(fixture, number, commit(2)).await;
        assert_eq!(record.state, HoldState::Consumed, "{kind:?}");
        assert_eq!((record.actual, taken(&record)), (Some(2), vec![2]));
        assert_eq!(left(fixture, one).await, 8, "{kind:?}");
        assert_eq!(find(fixture, number).await, Some(record), "{kind:?}");
    }
}

/// A commit of exactly the reserved units gives nothing back.
pub async fn a_commit_of_all_changes_nothing(fixture: &impl Fixture) {
    for (kind, n, _, limit) in limits(fixture, Span::HOUR) {
        let double = costing(2, charge(n, &limit));
        held(fixture, &[double], 3, &reservation(n.into())).await;
        let record = ended(fixture, n.into(), commit(3)).await;
        assert_eq!(taken(&record), [6], "{kind:?}");
        assert_eq!(left(fixture, double).await, 4, "{kind:?}");
    }
}

/// A commit takes an overrun from the amount left, and then from the overdraft.
pub async fn a_commit_of_more_takes_the_overrun_up_to_the_overdraft(fixture: &impl Fixture) {
    for (kind, n, start, limit) in limits(fixture, Span::HOUR) {
        for (overdraft, actual, expected) in [(0, 8, 8), (0, 13, 10), (2, 13, 12), (5, 13, 13)] {
            fixture.set_time(start);
            let number = n * 1000 + overdraft * 20 + actual;
            let one = overdrawing(overdraft, charge(number, &limit));
            held(fixture, &[one], 6, &reservation(number.into())).await;
            let record = ended(fixture, number.into(), commit(actual)).await;
            let case = format!("{kind:?}, {overdraft}, {actual}");
            assert_eq!(record.actual, Some(actual), "{case}");
            assert_eq!(taken(&record), [expected], "{case}");
            let remains = CAPACITY.saturating_sub(expected);
            assert_eq!(left(fixture, one).await, remains, "{case}");
        }
    }
}

/// A reservation of 0 units, made before the cost is known, is charged like an overrun.
pub async fn a_reservation_of_zero_units_is_charged_for_the_used_units(fixture: &impl Fixture) {
    for (kind, n, start, limit) in limits(fixture, Span::HOUR) {
        for (overdraft, actual, expected) in [(0, 0, 0), (0, 8, 8), (0, 13, 10), (2, 13, 12)] {
            fixture.set_time(start);
            let number = n * 1000 + overdraft * 20 + actual;
            let one = overdrawing(overdraft, charge(number, &limit));
            let all = [one, charge(number + 500, &ONE_SLOT)];
            let record = held(fixture, &all, 0, &reservation(number.into())).await;
            assert_eq!(taken(&record), [0, 0], "{kind:?}");
            assert_eq!(left(fixture, one).await, CAPACITY, "{kind:?}");
            let record = ended(fixture, number.into(), commit(actual)).await;
            let case = format!("{kind:?}, {overdraft}, {actual}");
            assert_eq!(taken(&record), [expected, 0], "{case}");
            let remains = CAPACITY.saturating_sub(expected);
            assert_eq!(left(fixture, one).await, remains, "{case}");
        }
    }
}

/// An overdrawn amount has to refill before anything is admitted.
pub async fn an_overdraft_refills_first(fixture: &impl Fixture) {
    for (kind, n, start, limit) in limits(fixture, Span::HOUR) {
        let mut admitted = Vec::new();
        for (overdraft, actual) in [(0, 10), (5, 15)] {
            let number = n * 100 + overdraft;
            let one = overdrawing(overdraft, charge(number, &limit));
            fixture.set_time(start);
            held(fixture, &[one], 6, &reservation(number.into())).await;
            let record = ended(fixture, number.into(), commit(actual)).await;
            assert_eq!(taken(&record), [actual], "{kind:?}");
            let at = promised(&denied(fixture, one, 1).await);
            fixture.set_time(just_before(at));
            denied(fixture, one, 1).await;
            fixture.set_time(at);
            take(fixture, one, 1).await;
            admitted.push(at);
        }
        assert!(admitted[0] <= admitted[1], "{kind:?}: {admitted:?}");
    }
}

/// A reset forgets the reserved units too. So a later settle gives nothing back, and takes only an overrun.
pub async fn a_reset_charge_is_not_given_back(fixture: &impl Fixture) {
    for (kind, n, start, limit) in limits(fixture, Span::HOUR) {
        for (place, (how, expected)) in (0..).zip([
            (Settle::Release, CAPACITY),
            (commit(2), CAPACITY),
            (commit(8), CAPACITY - 2),
        ]) {
            fixture.set_time(start);
            let number = n * 10 + place;
            let one = charge(number, &limit);
            held(fixture, &[one], 6, &reservation(number.into())).await;
            reset(fixture, &[one]).await;
            assert_eq!(left(fixture, one).await, CAPACITY, "{kind:?}");
            ended(fixture, number.into(), how).await;
            assert_eq!(left(fixture, one).await, expected, "{kind:?}, {how:?}");
        }
    }
}

/// A release gives all units back, once.
pub async fn a_release_gives_everything_back(fixture: &impl Fixture) {
    for (kind, n, _, limit) in limits(fixture, Span::HOUR) {
        let one = charge(n, &limit);
        take(fixture, one, 3).await;
        held(fixture, &[one], 6, &reservation(n.into())).await;
        let record = ended(fixture, n.into(), Settle::Release).await;
        assert_eq!(record.state, HoldState::Released, "{kind:?}");
        assert_eq!((record.actual, taken(&record)), (None, vec![0]), "{kind:?}");
        assert_eq!(left(fixture, one).await, 7, "{kind:?}");
        let again = settle(fixture, n.into(), Settle::Release).await;
        assert_eq!(again, Settled::Already(record), "{kind:?}");
        assert_eq!(left(fixture, one).await, 7, "{kind:?}");
    }
}

/// A hold cannot expire early. At its expiry, the store lists the hold, and all its units can come back.
pub async fn a_hold_expires_at_its_expiry_and_not_before(fixture: &impl Fixture) {
    let one = charge(1, &ENDLESS);
    let record = held(fixture, &[one], 6, &reservation(1)).await;
    fixture.set_time(just_before(record.expires_at));
    assert_eq!(due(fixture).await, []);
    let early = settle(fixture, 1, Settle::Expire).await;
    assert_eq!(early, Settled::NotYet(record.clone()));
    assert_eq!(left(fixture, one).await, 4);
    fixture.set_time(record.expires_at);
    assert_eq!(due(fixture).await, [id(1)]);
    let record = ended(fixture, 1, Settle::Expire).await;
    assert_eq!(record.state, HoldState::Expired);
    assert_eq!(taken(&record), [0]);
    assert_eq!(left(fixture, one).await, CAPACITY);
    assert_eq!(due(fixture).await, []);
    let late = settle(fixture, 1, commit(6)).await;
    assert_eq!(late, Settled::Already(record));
    assert_eq!(left(fixture, one).await, CAPACITY);
}

/// The record says whether a hold is open, not the clock. So an expired hold is open until it is settled.
pub async fn an_expired_open_hold_can_be_committed_and_extended(fixture: &impl Fixture) {
    let one = charge(1, &ENDLESS);
    held(fixture, &[one], 3, &reservation(1)).await;
    held(fixture, &[one], 3, &reservation(2)).await;
    let late = START + Span::HOUR;
    fixture.set_time(late);
    assert_eq!(due(fixture).await, [id(1), id(2)]);
    ended(fixture, 1, commit(1)).await;
    let Extended::Done(record) = extend(fixture, 2, TTL, None).await else {
        panic!("an open hold can be extended");
    };
    assert_eq!(record.expires_at, late + TTL);
    assert_eq!(due(fixture).await, []);
    assert_eq!(left(fixture, one).await, 6);
    let early = settle(fixture, 2, Settle::Expire).await;
    assert_eq!(early, Settled::NotYet(record));
}

/// The expiry never moves to an earlier instant.
pub async fn an_extension_never_shortens(fixture: &impl Fixture) {
    let limit = Kind::Gcra.limit(CAPACITY, LONG);
    let record = held(fixture, &[charge(1, &limit)], 1, &reservation(1)).await;
    let shorter = extend(fixture, 1, Span::SECOND, None).await;
    assert_eq!(shorter, Extended::Done(record));
    let Extended::Done(longer) = extend(fixture, 1, Span::HOUR, None).await else {
        panic!("an open hold can be extended");
    };
    assert_eq!(longer.expires_at, START + Span::HOUR);
    fixture.set_time(START + TTL);
    assert_eq!(due(fixture).await, []);
    ended(fixture, 1, Settle::Release).await;
    let over = extend(fixture, 1, TTL, None).await;
    assert!(matches!(over, Extended::Ended(it) if it.state == HoldState::Released));
}

/// A repeated request with the same id finds the same hold, open or ended. Another request with this id is a
/// conflict.
pub async fn a_repeated_hold_takes_nothing_again(fixture: &impl Fixture) {
    let one = charge(1, &ENDLESS);
    let record = held(fixture, &[one], 6, &reservation(1)).await;
    let again = hold(fixture, &[one], 6, &reservation(1)).await;
    assert_eq!(again, Held::Repeated(record.clone()));
    let other = NewHold {
        fingerprint: 8,
        ..reservation(1)
    };
    let conflict = hold(fixture, &[one], 2, &other).await;
    assert_eq!(conflict, Held::Conflict(record));
    assert_eq!(left(fixture, one).await, 4);
    let record = ended(fixture, 1, commit(5)).await;
    let again = hold(fixture, &[one], 6, &reservation(1)).await;
    assert_eq!(again, Held::Repeated(record.clone()));
    for how in [commit(5), commit(1), Settle::Release, Settle::Expire] {
        let already = settle(fixture, 1, how).await;
        assert_eq!(already, Settled::Already(record.clone()), "{how:?}");
    }
    assert_eq!(left(fixture, one).await, 5);
}

/// A denied hold leaves nothing behind, and its id can be used again.
pub async fn one_denial_holds_nothing(fixture: &impl Fixture) {
    let meter = Kind::Gcra.limit(4, LONG);
    let all = [charge(1, &ENDLESS), charge(2, &meter), charge(3, &ONE_SLOT)];
    for units in [5, 11] {
        let held = hold(fixture, &all, units, &reservation(1)).await;
        let Held::Denied { applied, ahead } = held else {
            panic!("not denied: {held:?}");
        };
        assert!(!applied.allowed && ahead.is_none(), "{applied:?}");
        assert!(applied.outcomes[2].is_allowed(), "{applied:?}");
        assert_eq!(left(fixture, all[0]).await, CAPACITY);
        assert_eq!(left(fixture, all[1]).await, 4);
        assert_eq!(left(fixture, all[2]).await, 1);
    }
    assert_eq!(find(fixture, 1).await, None);
    let record = held(fixture, &all, 4, &reservation(1)).await;
    assert_eq!(taken(&record), [4, 4, 1]);
    assert_eq!(left(fixture, all[2]).await, 0);
    let record = ended(fixture, 1, commit(3)).await;
    assert_eq!(taken(&record), [3, 3, 0]);
    assert_eq!(left(fixture, all[0]).await, 7);
    assert_eq!(left(fixture, all[1]).await, 1);
    assert_eq!(left(fixture, all[2]).await, 1);
}

/// A hold of 0 units is decided like a hold of 1 unit, and takes nothing. So it is denied when the allowance is
/// used up.
pub async fn a_hold_of_nothing_is_denied_without_allowance(fixture: &impl Fixture) {
    for (kind, n, _, limit) in limits(fixture, Span::HOUR) {
        let (one, number) = (charge(n, &limit), u128::from(n) * 10);
        held(fixture, &[one], CAPACITY - 1, &reservation(number)).await;
        let record = held(fixture, &[one], 0, &reservation(number + 1)).await;
        assert_eq!((left(fixture, one).await, taken(&record)), (1, vec![0]));
        take(fixture, one, 1).await;
        let none = hold(fixture, &[one], 0, &reservation(number + 2)).await;
        let Held::Denied { applied, ahead } = none else {
            panic!("{kind:?} is not denied: {none:?}");
        };
        let check = apply(fixture, &[one], Ask::Exactly(1)).await;
        assert_eq!(applied.outcomes, check.outcomes, "{kind:?}");
        assert_eq!((applied.granted, ahead), (0, None), "{kind:?}");
        assert_eq!(find(fixture, number + 2).await, None, "{kind:?}");
    }
    let shadow = enforced(Enforcement::Shadow, charge(1, &ONE_SLOT));
    let slots = [shadow, charge(2, &ONE_SLOT)];
    let record = held(fixture, &slots[1..], 0, &reservation(1)).await;
    assert_eq!((record.fence, taken(&record)), (0, vec![0]));
    held(fixture, &slots, 1, &reservation(2)).await;
    held(fixture, &slots[..1], 0, &reservation(3)).await;
    let none = hold(fixture, &slots[1..], 0, &reservation(4)).await;
    assert!(matches!(none, Held::Denied { .. }), "{none:?}");
}

/// A subject that has reached its bound on open holds gets no further hold, and nothing is taken. Other
/// subjects get holds. A repeated call still finds its hold. When a hold ends, the subject can get another.
pub async fn open_holds_of_a_subject_are_bounded(fixture: &impl Fixture) {
    let one = charge(1, &ENDLESS);
    let of = |subject: u128, number: u128| NewHold {
        bound: Some(OpenBound { subject, most: 2 }),
        ..reservation(number)
    };
    let record = held(fixture, &[one], 1, &of(7, 1)).await;
    assert_eq!(record.subject, Some(7));
    assert_eq!(find(fixture, 1).await, Some(record));
    held(fixture, &[one], 0, &of(7, 2)).await;
    let repeated = hold(fixture, &[one], 1, &of(7, 1)).await;
    assert!(matches!(repeated, Held::Repeated(_)), "{repeated:?}");
    for number in [3, 4] {
        assert_eq!(
            hold(fixture, &[one], 1, &of(7, number)).await,
            Held::TooMany
        );
        assert_eq!(find(fixture, number).await, None);
    }
    assert_eq!(left(fixture, one).await, CAPACITY - 1);
    held(fixture, &[one], 1, &of(8, 5)).await;
    held(fixture, &[one], 1, &reservation(6)).await;
    let longer = extend(fixture, 2, TTL, None).await;
    assert!(matches!(longer, Extended::Done(_)), "{longer:?}");
    assert_eq!(hold(fixture, &[one], 1, &of(7, 3)).await, Held::TooMany);
    for (number, how) in [(1, commit(1)), (2, Settle::Release)] {
        ended(fixture, number, how).await;
        settle(fixture, number, how).await;
        let next = number + 10;
        held(fixture, &[one], 1, &of(7, next)).await;
        assert_eq!(hold(fixture, &[one], 1, &of(7, 3)).await, Held::TooMany);
    }
    // A denied hold does not count.
    let denied = hold(fixture, &[one], CAPACITY, &of(9, 20)).await;
    assert!(matches!(denied, Held::Denied { .. }), "{denied:?}");
    held(fixture, &[one], 0, &of(9, 21)).await;
    held(fixture, &[one], 0, &of(9, 22)).await;
    // A hold that `put_hold` restores counts.
    let record = HoldRecord::new(&of(10, 30), 0, 0, vec![HeldCharge::of(&one, 0)], START);
    assert_eq!(fixture.store().put_hold(&record).await, Ok(true));
    held(fixture, &[one], 0, &of(10, 31)).await;
    assert_eq!(hold(fixture, &[one], 0, &of(10, 32)).await, Held::TooMany);
    // An expired hold counts until it is ended.
    fixture.set_time(record.expires_at);
    assert_eq!(hold(fixture, &[one], 0, &of(10, 32)).await, Held::TooMany);
    ended(fixture, 30, Settle::Expire).await;
    held(fixture, &[one], 0, &of(10, 32)).await;
}

/// A shadow that allows the hold is charged, and settled later. A shadow that denies is not charged, and gets
/// nothing back.
pub async fn a_shadow_that_denies_is_not_held(fixture: &impl Fixture) {
    let hundred = Kind::FixedWindow.limit(100, LONG);
    let shadow = enforced(Enforcement::Shadow, charge(2, &ENDLESS));
    let both = [charge(1, &hundred), shadow];
    let first = held(fixture, &both, 8, &reservation(1)).await;
    assert_eq!(taken(&first), [8, 8]);
    let second = held(fixture, &both, 8, &reservation(2)).await;
    assert_eq!(taken(&second), [8, 0]);
    assert_eq!(left(fixture, shadow).await, 2);
    ended(fixture, 2, Settle::Release).await;
    assert_eq!(left(fixture, both[0]).await, 92);
    assert_eq!(left(fixture, shadow).await, 2);
    let record = ended(fixture, 1, commit(9)).await;
    assert_eq!(taken(&record), [9, 9]);
    assert_eq!(left(fixture, shadow).await, 1);
}

/// Units that have come back by themselves are not given back again.
pub async fn a_refilled_charge_is_not_given_back_twice(fixture: &impl Fixture) {
    for (kind, n, start, limit) in limits(fixture, Span::SECOND) {
        let one = charge(n, &limit);
        held(fixture, &[one], CAPACITY, &reservation(n.into())).await;
        fixture.set_time(start + Span::from_secs(30));
        take(fixture, one, CAPACITY).await;
        ended(fixture, n.into(), Settle::Release).await;
        assert_eq!(left(fixture, one).await, 0, "{kind:?}");
    }
}

/// A hold without rules, or without limits, is still a hold.
pub async fn a_hold_may_have_no_charges(fixture: &impl Fixture) {
    held(fixture, &[], 5, &reservation(1)).await;
    let unlimited = Limit::unlimited(Algorithm::Gcra);
    let record = held(fixture, &[charge(1, &unlimited)], 5, &reservation(2)).await;
    assert_eq!(taken(&record), [5]);
    let record = ended(fixture, 2, commit(7)).await;
    assert_eq!(taken(&record), [7]);
    fixture.set_time(START + TTL);
    assert_eq!(due(fixture).await, [id(1)]);
    ended(fixture, 1, Settle::Expire).await;
}

/// Calls with an id that does not exist answer that the hold is unknown.
pub async fn an_unknown_hold_is_unknown(fixture: &impl Fixture) {
    let token = Token::new(1);
    let lease = Settle::ReleaseLease { token };
    for how in [commit(1), Settle::Release, Settle::Expire, lease] {
        assert_eq!(settle(fixture, 9, how).await, Settled::Unknown);
    }
    assert_eq!(extend(fixture, 9, TTL, None).await, Extended::Unknown);
    assert_eq!(find(fixture, 9).await, None);
}

/// A lost record can be restored from its text, and settled as if it had never been lost.
pub async fn a_record_is_restored_unless_it_exists(fixture: &impl Fixture) {
    let one = charge(1, &ENDLESS);
    take(fixture, one, 6).await;
    let held = vec![HeldCharge::of(&one, 6)];
    let record = HoldRecord::new(&reservation(1), 6, 0, held, START);
    let record = HoldRecord::from_text(&record.to_text()).expect("its own text");
    assert_eq!(fixture.store().put_hold(&record).await, Ok(true));
    assert_eq!(left(fixture, one).await, 4);
    assert_eq!(find(fixture, 1).await, Some(record.clone().into()));
    let mut other = record.clone();
    other.units = 9;
    assert_eq!(fixture.store().put_hold(&other).await, Ok(false));
    fixture.set_time(record.expires_at);
    assert_eq!(due(fixture).await, [id(1)]);
    ended(fixture, 1, commit(1)).await;
    assert_eq!(left(fixture, one).await, 9);
}

/// An owner may be empty, and may have any characters. A long owner is cut.
pub async fn a_long_owner_is_cut(fixture: &impl Fixture) {
    let long = "ö".repeat(MAX_OWNER);
    for (number, owner) in [(1, "a b\n%\0ü"), (2, ""), (3, &long)] {
        let new = NewHold {
            owner,
            ..reservation(number)
        };
        let record = held(fixture, &[], 1, &new).await;
        assert_eq!(find(fixture, number).await.as_ref(), Some(&record));
        assert!(owner.starts_with(&*record.owner), "{record:?}");
        assert_eq!(record.owner.len(), owner.len().min(MAX_OWNER));
    }
}

/// When a hold is settled, other holds can take its units.
pub async fn settling_a_hold_frees_units_for_others(fixture: &impl Fixture) {
    let limit = Kind::TokenBucket.limit(CAPACITY, LONG);
    let one = charge(1, &limit);
    held(fixture, &[one], CAPACITY, &reservation(1)).await;
    let second = hold(fixture, &[one], 4, &reservation(2)).await;
    assert!(matches!(second, Held::Denied { .. }), "{second:?}");
    ended(fixture, 1, commit(6)).await;
    held(fixture, &[one], 4, &reservation(2)).await;
    assert!(!apply(fixture, &[one], Ask::Exactly(1)).await.allowed);
}
