//! Checks quotas with usage that a ledger also records: unknown usage, restores, and corrections.

use tollgate_core::{
    Admission, Balance, CarryOver, Charge, Denial, Enforcement, Limit, OnDenied, Outcome, Recorded,
    Span, Time, Token, Unit,
};

use super::holds::{ONE_SLOT, commit, due, ended, find, held, overdrawing, settle, taken};
use super::quota::{DECEMBER, FEBRUARY, JANUARY, NOVEMBER, TEN, monthly, with_periods};
use super::{
    CAPACITY, WINDOW, apply, charge, denied, enforced, just_before, left, peek, refund, reset,
    retry_at, take,
};
use crate::{Fixture, Kind, reservation};
use tollgate_store::{Ask, NewHold, Purpose, Settle, Settled, Store};

fn ledgered(number: u64, limit: &Limit) -> Charge<'_> {
    Charge {
        recorded: Some(Recorded::default()),
        ..charge(number, limit)
    }
}

fn balance(ends_at: Time, used: u64, extra: u64) -> Balance {
    Balance {
        ends_at,
        used,
        extra,
    }
}

async fn restore(fixture: &impl Fixture, charge: Charge<'_>, to: Balance) {
    let restored = fixture.store().restore(&[charge], &[to]).await;
    restored.expect("the store answers");
}

async fn adjust(
    fixture: &impl Fixture,
    charge: Charge<'_>,
    used: i64,
    extra: i64,
) -> Option<Balance> {
    let adjusted = fixture.store().adjust(&charge, used, extra).await;
    adjusted.expect("the store answers")
}

async fn read(fixture: &impl Fixture, charge: Charge<'_>) -> Option<Balance> {
    let read = fixture.store().balance(&charge).await;
    read.expect("the store answers")
}

fn is_unrestored(outcome: &Outcome) -> bool {
    outcome.admission == Admission::Denied(Denial::Unrestored)
}

/// Without a state, every request is denied, whatever its cost.
pub async fn a_recorded_quota_is_not_decided_without_a_state(fixture: &impl Fixture) {
    let one = ledgered(1, &TEN);
    fixture.set_time(NOVEMBER);
    let exactly = [0, 1, 11, u64::MAX].map(Ask::Exactly);
    for ask in exactly.into_iter().chain([Ask::UpTo(5)]) {
        for answer in [
            apply(fixture, &[one], ask).await,
            peek(fixture, &[one], ask).await,
        ] {
            assert!(!answer.allowed && answer.granted == 0, "{answer:?}");
            let outcome = answer.outcomes[0];
            assert!(is_unrestored(&outcome), "{answer:?}");
            assert_eq!((outcome.limit, outcome.remaining), (10, 0));
        }
    }
    assert_eq!(read(fixture, one).await, None);
    assert_eq!(adjust(fixture, one, 1, 1).await, None);
    assert_eq!(read(fixture, one).await, None);
    // Only quotas can be restored, so other limits do not need a restore.
    let rate = Kind::Gcra.limit(CAPACITY, WINDOW);
    take(fixture, ledgered(2, &rate), 1).await;
    restore(fixture, ledgered(2, &rate), balance(DECEMBER, 1, 1)).await;
    assert_eq!(read(fixture, ledgered(2, &rate)).await, None);
    assert_eq!(adjust(fixture, ledgered(2, &rate), 1, 1).await, None);
}

/// The caller repeats the request after the restore, so no charge counts the first attempt.
pub async fn a_request_that_needs_a_restore_leaves_no_trace(fixture: &impl Fixture) {
    let open = Kind::Gcra.limit(CAPACITY, WINDOW);
    let [shut, blocks] = [Kind::FixedWindow, Kind::Backoff].map(|kind| kind.limit(0, WINDOW));
    fixture.set_time(NOVEMBER);
    let counting = Charge {
        on_denied: OnDenied::Charge,
        ..charge(2, &open)
    };
    let shadow = enforced(Enforcement::Shadow, charge(3, &shut));
    let watching = Charge {
        on_denied: OnDenied::Strike(2),
        ..charge(4, &blocks)
    };
    let all = [ledgered(1, &TEN), counting, shadow, watching];
    if fixture.range().judges_together() {
        let answer = apply(fixture, &all, Ask::Exactly(1)).await;
        assert!(!answer.allowed);
        assert!(is_unrestored(&answer.outcomes[0]), "{answer:?}");
        assert_eq!(answer.outcomes[1].remaining, CAPACITY);
        let watching = apply(fixture, &[watching], Ask::Exactly(1)).await;
        assert!(watching.allowed, "a strike was counted");
    } else {
        let answer = apply(fixture, &all[..1], Ask::Exactly(1)).await;
        assert!(!answer.allowed);
    }
    assert_eq!(left(fixture, counting).await, CAPACITY);
}

/// A shadow without a state reports that it needs a restore, and is not charged. The request passes.
pub async fn a_shadow_that_needs_a_restore_denies_nothing(fixture: &impl Fixture) {
    let open = Kind::Gcra.limit(CAPACITY, WINDOW);
    fixture.set_time(NOVEMBER);
    let shadow = Charge {
        enforcement: Enforcement::Shadow,
        on_denied: OnDenied::Charge,
        ..ledgered(1, &TEN)
    };
    let answer = apply(fixture, &[shadow, charge(2, &open)], Ask::Exactly(1)).await;
    assert!(answer.allowed && answer.granted == 1);
    assert!(is_unrestored(&answer.outcomes[0]), "{answer:?}");
    assert_eq!(left(fixture, charge(2, &open)).await, CAPACITY - 1);
    assert_eq!(read(fixture, shadow).await, None);
}

/// A balance may be of a period that ends long after the periods of a new calendar. A cost that needs the whole
/// rollover is allowed after the first whole unused period after it.
pub async fn a_balance_of_another_calendar_has_a_retry_time(fixture: &impl Fixture) {
    let hourly = with_periods(Unit::Hour, "UTC", 7, 0, 2);
    let one = ledgered(1, &hourly);
    fixture.set_time(NOVEMBER);
    restore(fixture, one, balance(DECEMBER, 7, 0)).await;
    let outcome = denied(fixture, one, 9).await;
    assert_eq!(retry_at(&outcome), Some(DECEMBER + Span::from_secs(3_600)));
}

/// A new period needs no restore while the old state exists.
pub async fn a_state_of_an_earlier_period_is_a_state(fixture: &impl Fixture) {
    let one = ledgered(1, &TEN);
    fixture.set_time(NOVEMBER);
    restore(fixture, one, balance(DECEMBER, 9, 0)).await;
    take(fixture, one, 1).await;
    denied(fixture, one, 1).await;
    fixture.set_time(DECEMBER);
    take(fixture, one, 10).await;
    reset(fixture, &[one]).await;
    assert!(is_unrestored(&denied(fixture, one, 1).await));
}

/// A restored balance counts like usage of the store.
pub async fn a_restored_balance_counts(fixture: &impl Fixture) {
    let limit = monthly(10, 3, 4);
    let one = ledgered(1, &limit);
    fixture.set_time(NOVEMBER);
    restore(fixture, one, balance(DECEMBER, 11, 2)).await;
    assert_eq!(read(fixture, one).await, Some(balance(DECEMBER, 11, 2)));
    assert_eq!(left(fixture, one).await, 4);
    take(fixture, one, 4).await;
    denied(fixture, one, 1).await;
    assert_eq!(read(fixture, one).await, Some(balance(DECEMBER, 15, 2)));
    // A balance above the limit is kept.
    let (two, above) = (ledgered(2, &limit), balance(DECEMBER, 100, 0));
    restore(fixture, two, above).await;
    denied(fixture, two, 1).await;
    assert_eq!(read(fixture, two).await, Some(above));
}

/// A restore does not undo charges.
pub async fn an_existing_state_is_not_restored(fixture: &impl Fixture) {
    let (one, two) = (ledgered(1, &TEN), ledgered(2, &TEN));
    fixture.set_time(NOVEMBER);
    take(fixture, charge(1, &TEN), 3).await;
    let balances = [balance(DECEMBER, 9, 1), balance(DECEMBER, 8, 1)];
    let restored = fixture.store().restore(&[one, two], &balances).await;
    restored.expect("the store answers");
    assert_eq!(read(fixture, one).await, Some(balance(DECEMBER, 3, 0)));
    assert_eq!(read(fixture, two).await, Some(balance(DECEMBER, 8, 1)));
}

/// A restore does not change an existing state, even under other numbers that would reset the state.
pub async fn a_restore_does_not_convert_an_existing_state(fixture: &impl Fixture) {
    let (one, other) = (charge(1, &TEN), monthly(20, 0, 0));
    fixture.set_time(NOVEMBER);
    take(fixture, one, 3).await;
    let forgets = Charge {
        carry_over: CarryOver::Reset,
        ..ledgered(1, &other)
    };
    restore(fixture, forgets, balance(DECEMBER, 9, 1)).await;
    assert_eq!(read(fixture, one).await, Some(balance(DECEMBER, 3, 0)));
}

/// If the same key is restored twice, the first restore wins. This is also true for two charges of one call.
pub async fn the_first_of_two_restores_wins(fixture: &impl Fixture) {
    let one = ledgered(1, &TEN);
    fixture.set_time(NOVEMBER);
    let balances = [balance(DECEMBER, 2, 0), balance(DECEMBER, 5, 0)];
    let restored = fixture.store().restore(&[one, one], &balances).await;
    restored.expect("the store answers");
    restore(fixture, one, balance(DECEMBER, 7, 0)).await;
    assert_eq!(read(fixture, one).await, Some(balances[0]));
}

/// A restored balance of an earlier period is carried over, through all periods that have passed since.
pub async fn a_balance_of_an_earlier_period_is_rolled_forward(fixture: &impl Fixture) {
    let limit = monthly(10, 0, 4);
    fixture.set_time(JANUARY);
    for (number, restored, rolled) in [
        (1, balance(JANUARY, 9, 0), balance(FEBRUARY, 0, 1)),
        (2, balance(JANUARY, 2, 0), balance(FEBRUARY, 0, 4)),
        (3, balance(DECEMBER, 10, 0), balance(FEBRUARY, 0, 4)),
        (4, balance(NOVEMBER, 0, 0), balance(FEBRUARY, 0, 0)),
        (5, Balance::default(), balance(FEBRUARY, 0, 0)),
    ] {
        let one = ledgered(number, &limit);
        restore(fixture, one, restored).await;
        assert_eq!(read(fixture, one).await, Some(rolled), "{restored:?}");
    }
}

/// A restored balance of zero usage stays in the store until the end of the period.
pub async fn a_balance_restored_as_zero_is_not_forgotten(fixture: &impl Fixture) {
    let one = ledgered(1, &TEN);
    fixture.set_time(NOVEMBER);
    restore(fixture, one, Balance::default()).await;
    for time in [NOVEMBER + Span::DAY, just_before(DECEMBER)] {
        fixture.set_time(time);
        // New keys make a store forget expired states.
        for other in 100..200 {
            take(fixture, charge(other, &TEN), 1).await;
        }
        assert_eq!(read(fixture, one).await, Some(balance(DECEMBER, 0, 0)));
    }
    let answer = take(fixture, one, 4).await;
    refund(fixture, &[one], 4, answer.now).await;
    assert_eq!(left(fixture, one).await, 10);
}

/// An adjustment changes the usage and the amount beyond the limit. Neither falls below 0. Without a state,
/// nothing changes.
pub async fn a_balance_is_adjusted_within_bounds(fixture: &impl Fixture) {
    let one = charge(1, &TEN);
    fixture.set_time(NOVEMBER);
    assert_eq!(adjust(fixture, one, 5, 5).await, None);
    take(fixture, one, 6).await;
    for (used, extra, after) in [
        (-2, 0, (4, 0)),
        (0, 3, (4, 3)),
        (20, -1, (24, 2)),
        (-100, -100, (0, 0)),
        (i64::MIN, i64::MIN, (0, 0)),
        (7, 2, (7, 2)),
    ] {
        let expected = Some(balance(DECEMBER, after.0, after.1));
        assert_eq!(adjust(fixture, one, used, extra).await, expected);
        assert_eq!(read(fixture, one).await, expected);
    }
    assert_eq!(left(fixture, one).await, 5);
    let most = adjust(fixture, one, i64::MAX, i64::MAX).await;
    let most = most.expect("there is a state");
    assert!(most.used >= 1 << 52 && most.extra < 1 << 52, "{most:?}");
    denied(fixture, one, 1).await;
}

/// A granted amount ends with its period, except for the part that is carried over.
pub async fn a_grant_ends_with_its_period(fixture: &impl Fixture) {
    let limit = monthly(10, 0, 4);
    let one = charge(1, &limit);
    fixture.set_time(NOVEMBER);
    take(fixture, one, 10).await;
    let granted = adjust(fixture, one, 0, 9).await;
    assert_eq!(granted, Some(balance(DECEMBER, 10, 9)));
    take(fixture, one, 6).await;
    fixture.set_time(DECEMBER);
    // Three of nine units were left, so three are carried over.
    assert_eq!(read(fixture, one).await, Some(balance(JANUARY, 0, 3)));
    let used = adjust(fixture, one, 2, 0).await;
    assert_eq!(used, Some(balance(JANUARY, 2, 3)));
    assert_eq!(left(fixture, one).await, 11);
}

/// Without the usage, the store does not know how much to give back or to take. So it settles the hold only
/// after a restore.
pub async fn a_recorded_quota_is_not_settled_without_a_state(fixture: &impl Fixture) {
    let (one, slot) = (overdrawing(2, ledgered(1, &TEN)), charge(2, &ONE_SLOT));
    fixture.set_time(NOVEMBER);
    for (number, how, used) in [
        (1, commit(4), 7),
        (2, commit(20), 12),
        (3, Settle::Release, 3),
        (4, Settle::Expire, 3),
    ] {
        restore(fixture, one, balance(DECEMBER, 0, 0)).await;
        let record = held(fixture, &[slot, one], 6, &reservation(number)).await;
        if how == Settle::Expire {
            fixture.set_time(record.expires_at);
        }
        reset(fixture, &[one]).await;
        let answer = settle(fixture, number, how).await;
        let Settled::Unrestored(answer) = answer else {
            panic!("{how:?}: {answer:?}");
        };
        assert_eq!(answer.charges, record.charges, "{how:?}");
        assert_eq!(find(fixture, number).await, Some(record), "{how:?}");
        if how != Settle::Expire {
            assert_eq!(left(fixture, slot).await, 0, "{how:?} has freed the slot");
        }
        restore(fixture, one, balance(DECEMBER, 9, 0)).await;
        let record = ended(fixture, number, how).await;
        let now = read(fixture, one).await;
        assert_eq!(now, Some(balance(DECEMBER, used, 0)), "{how:?}");
        assert_eq!(record.charges[1].taken, (used + 6).saturating_sub(9));
        assert_eq!(left(fixture, slot).await, 1, "{how:?}");
        reset(fixture, &[one]).await;
    }
    assert_eq!(due(fixture).await, []);
}

/// A settle that changes no quota needs no state. A commit of exactly the reserved units changes nothing. The
/// end of a lease only frees its slot.
pub async fn a_settle_that_changes_nothing_needs_no_state(fixture: &impl Fixture) {
    let (one, slot) = (ledgered(1, &TEN), charge(2, &ONE_SLOT));
    fixture.set_time(NOVEMBER);
    restore(fixture, one, balance(DECEMBER, 0, 0)).await;
    held(fixture, &[one], 6, &reservation(1)).await;
    let token = Token::new(5);
    let lease = NewHold {
        purpose: Purpose::Lease,
        token,
        ..reservation(2)
    };
    held(fixture, &[slot, one], 1, &lease).await;
    reset(fixture, &[one]).await;
    let record = ended(fixture, 1, commit(6)).await;
    assert_eq!(taken(&record), [6]);
    let record = ended(fixture, 2, Settle::ReleaseLease { token }).await;
    assert_eq!(taken(&record), [0, 1]);
    assert_eq!(read(fixture, one).await, None);
}
