//! Checks holds that are settled after the numbers of a limit have changed.

use tollgate_core::{CarryOver, Charge, Limit, Span, Time, Unit};

use super::holds::{commit, ended, held, taken};
use super::quota::{NOVEMBER, monthly, with_periods};
use super::{CAPACITY, charge, denied, left, limits, reset, take};
use crate::{Fixture, Kind, reservation};
use tollgate_store::Settle;

const DAY: Span = Span::DAY;
const LARGER: u64 = 10 * CAPACITY;

/// Returns each kind with a subject number, a start time, and two limits: before and after a change.
fn changes(fixture: &impl Fixture) -> impl Iterator<Item = (Kind, u64, Time, [Limit; 2])> {
    limits(fixture, Span::HOUR)
        .map(|(kind, n, start, limit)| (kind, n, start, [limit, kind.limit(LARGER, Span::HOUR)]))
}

/// A settle uses the present numbers of the state, both to give back units and to take an overrun.
pub async fn a_settle_keeps_changed_numbers(fixture: &impl Fixture) {
    for (kind, n, start, limits) in changes(fixture) {
        for (number, actual) in [(n, 2), (n + 100, 6), (n + 200, 20), (n + 300, 80)] {
            fixture.set_time(start);
            let [before, after] = limits.each_ref().map(|it| charge(number, it));
            held(fixture, &[before], 6, &reservation(number.into())).await;
            take(fixture, after, 50).await;
            let record = ended(fixture, number.into(), commit(actual)).await;
            // 50 units are the most that fit: the reserved units, and 44 that are left.
            let fits = actual.min(50);
            assert_eq!(taken(&record), [fits], "{kind:?}, {actual}");
            let left = left(fixture, after).await;
            assert_eq!(left, LARGER - 50 - fits, "{kind:?}, {actual}");
        }
    }
}

/// Returns a charge that resets its state when its numbers change.
fn resets(number: u64, limit: &Limit) -> Charge<'_> {
    Charge {
        carry_over: CarryOver::Reset,
        ..charge(number, limit)
    }
}

/// A change resets once. A settle does not give back usage that the change has reset.
pub async fn a_settle_does_not_reset_again(fixture: &impl Fixture) {
    for (kind, n, start, limits) in changes(fixture) {
        for (number, actual, used) in [(n, 2, 30), (n + 100, 6, 30), (n + 200, 9, 33)] {
            fixture.set_time(start);
            let [before, after] = limits.each_ref().map(|it| resets(number, it));
            held(fixture, &[before], 6, &reservation(number.into())).await;
            take(fixture, after, 30).await;
            ended(fixture, number.into(), commit(actual)).await;
            let free = LARGER - used;
            assert_eq!(left(fixture, after).await, free, "{kind:?}, {actual}");
            take(fixture, after, free).await;
            denied(fixture, after, 1).await;
        }
    }
}

/// The first request under new numbers carries over the usage that was settled before.
pub async fn a_hold_may_end_before_the_numbers_change(fixture: &impl Fixture) {
    for (kind, n, _, limits) in changes(fixture) {
        let [before, after] = limits.each_ref().map(|it| charge(n, it));
        held(fixture, &[before], 6, &reservation(n.into())).await;
        ended(fixture, n.into(), commit(9)).await;
        assert_eq!(left(fixture, after).await, LARGER - 9, "{kind:?}");
    }
}

/// Several charges of a hold may have the same key. A charge of a hold may have no state.
pub async fn charges_of_one_key_are_settled_in_its_present_numbers(fixture: &impl Fixture) {
    for (kind, n, _, limits) in changes(fixture) {
        let [before, after] = limits.each_ref().map(|it| charge(n, it));
        held(fixture, &[before, before], 3, &reservation(n.into())).await;
        take(fixture, after, 50).await;
        let record = ended(fixture, n.into(), commit(1)).await;
        assert_eq!(taken(&record), [1, 1], "{kind:?}");
        assert_eq!(left(fixture, after).await, LARGER - 52, "{kind:?}");

        let [before, after] = limits.each_ref().map(|it| charge(n + 100, it));
        held(fixture, &[before], 3, &reservation((n + 100).into())).await;
        reset(fixture, &[before]).await;
        ended(fixture, (n + 100).into(), commit(5)).await;
        assert_eq!(left(fixture, after).await, LARGER - 2, "{kind:?}");
    }
}

/// A reservation that was made under one calendar can be settled under another. It is settled in the period
/// that contains its charge.
pub async fn a_hold_is_settled_in_another_calendar(fixture: &impl Fixture) {
    let months = monthly(100, 0, 0);
    for rollover in [0, 50] {
        let days = with_periods(Unit::Day, "UTC", 100, 0, rollover);
        let next = NOVEMBER + DAY;
        let subject = |number: u64, limit| charge(number + rollover, limit);
        let number = |number: u64| u128::from(number + rollover);

        // These holds are settled in the same day and month.
        for (n, from, to) in [(1, &months, &days), (2, &days, &months)] {
            fixture.set_time(NOVEMBER);
            let id = number(n);
            held(fixture, &[subject(n, from)], 60, &reservation(id)).await;
            take(fixture, subject(n, to), 1).await;
            let record = ended(fixture, id, commit(20)).await;
            assert_eq!(taken(&record), [20]);
            assert_eq!(left(fixture, subject(n, to)).await, 79);
        }

        // These holds are settled a day later. The units come back in the month, but not in the new day.
        for (n, from, to, back) in [(3, &days, &months, 40), (4, &months, &days, 0)] {
            fixture.set_time(NOVEMBER);
            let id = number(n);
            held(fixture, &[subject(n, from)], 60, &reservation(id)).await;
            take(fixture, subject(n, to), 1).await;
            fixture.set_time(next);
            take(fixture, subject(n, to), 1).await;
            let before = left(fixture, subject(n, to)).await;
            ended(fixture, id, commit(20)).await;
            assert_eq!(left(fixture, subject(n, to)).await, before + back);
        }
    }
}

/// Nothing is given back to an ended period. An overrun counts in the new period.
pub async fn a_hold_is_settled_when_a_period_of_another_calendar_has_ended(fixture: &impl Fixture) {
    let months = monthly(100, 0, 0);
    let days = with_periods(Unit::Day, "UTC", 100, 0, 0);
    for (n, how, used) in [
        (1, commit(20), 0),
        (2, Settle::Release, 0),
        (3, commit(65), 5),
    ] {
        fixture.set_time(NOVEMBER);
        held(fixture, &[charge(n, &months)], 60, &reservation(n.into())).await;
        take(fixture, charge(n, &days), 1).await;
        fixture.set_time(NOVEMBER + DAY);
        ended(fixture, n.into(), how).await;
        assert_eq!(left(fixture, charge(n, &days)).await, 100 - used, "{how:?}");
        take(fixture, charge(n, &days), 100 - used).await;
        denied(fixture, charge(n, &days), 1).await;
        fixture.set_time(NOVEMBER + DAY + DAY);
        assert_eq!(left(fixture, charge(n, &days)).await, 100, "{how:?}");
    }
}
