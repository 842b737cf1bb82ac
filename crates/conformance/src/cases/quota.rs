//! Checks quotas, which admit an amount in each calendar period.

use std::sync::LazyLock;

use tollgate_core::{Anchor, Calendar, CarryOver, Charge, Limit, Recorded, Span, Time, Unit, Zone};

use super::{charge, denied, just_before, left, promised, refund, take};
use crate::Fixture;

/// Midnight of the 1st of November 2023 in UTC.
pub(super) const NOVEMBER: Time = Time::from_micros(1_698_796_800_000_000);
pub(super) const DECEMBER: Time = Time::from_micros(1_701_388_800_000_000);
pub(super) const JANUARY: Time = Time::from_micros(1_704_067_200_000_000);
pub(super) const FEBRUARY: Time = Time::from_micros(1_706_745_600_000_000);

/// A quota of ten in each month.
pub(super) static TEN: LazyLock<Limit> = LazyLock::new(|| monthly(10, 0, 0));

/// Returns a quota with months in UTC.
pub(super) fn monthly(limit: u64, grace: u64, rollover: u64) -> Limit {
    with_periods(Unit::Month, "UTC", limit, grace, rollover)
}

pub(super) fn with_periods(unit: Unit, zone: &str, limit: u64, grace: u64, rollover: u64) -> Limit {
    let zone = Zone::named(zone);
    let calendar = zone.and_then(|zone| Calendar::new(1, unit, Anchor::First, zone));
    let quota = calendar.and_then(|calendar| Limit::quota(limit, grace, rollover, calendar));
    quota.expect("a valid quota")
}

/// Usage counts until the next period begins, and not a microsecond longer.
pub async fn a_quota_holds_until_its_period_ends(fixture: &impl Fixture) {
    let one = charge(1, &TEN);
    fixture.set_time(NOVEMBER + Span::from_secs(77));
    let answer = take(fixture, one, 4).await;
    assert_eq!(answer.outcomes[0].reset_at, DECEMBER);
    fixture.set_time(just_before(DECEMBER));
    assert_eq!(promised(&denied(fixture, one, 7).await), DECEMBER);
    take(fixture, one, 6).await;
    fixture.set_time(DECEMBER);
    take(fixture, one, 10).await;
    assert_eq!(promised(&denied(fixture, one, 1).await), JANUARY);
    // A clock that steps back does not begin November again.
    fixture.set_time(just_before(DECEMBER));
    denied(fixture, one, 1).await;
}

/// A day in which the clocks change is one period: it has 23 hours in spring, and 25 in autumn.
pub async fn a_day_in_which_clocks_change_is_one_day(fixture: &impl Fixture) {
    let limit = with_periods(Unit::Day, "Europe/Berlin", 5, 0, 0);
    // The times are midnight in Berlin, at the start of the 26th of March and of the 29th of October 2023.
    for (number, midnight, hours) in [(1, 1_679_785_200, 23), (2, 1_698_530_400, 25)] {
        let midnight = Time::from_micros(midnight * 1_000_000);
        let one = charge(number, &limit);
        fixture.set_time(just_before(midnight));
        take(fixture, one, 5).await;
        assert_eq!(promised(&denied(fixture, one, 1).await), midnight);
        fixture.set_time(midnight);
        take(fixture, one, 5).await;
        let next = midnight + Span::from_secs(3600 * hours);
        assert_eq!(promised(&denied(fixture, one, 1).await), next);
        fixture.set_time(just_before(next));
        denied(fixture, one, 1).await;
        fixture.set_time(next);
        take(fixture, one, 5).await;
    }
}

/// Requests above the limit are admitted within the grace.
pub async fn a_quota_admits_its_grace_and_no_more(fixture: &impl Fixture) {
    let limit = monthly(10, 3, 0);
    let one = charge(1, &limit);
    fixture.set_time(NOVEMBER);
    let answer = take(fixture, one, 11).await;
    assert_eq!(answer.outcomes[0].limit, 13);
    assert_eq!(answer.outcomes[0].remaining, 2);
    denied(fixture, one, 3).await;
    take(fixture, one, 2).await;
    assert_eq!(promised(&denied(fixture, one, 1).await), DECEMBER);
}

/// The unused amount of the limit is carried over into the next period. Unused grace is not carried over.
pub async fn the_rest_of_a_period_is_carried_into_the_next(fixture: &impl Fixture) {
    let limit = monthly(10, 2, 4);
    let one = charge(1, &limit);
    fixture.set_time(NOVEMBER);
    take(fixture, one, 7).await;
    // Three units are carried over, so December has fifteen.
    assert_eq!(promised(&denied(fixture, one, 15).await), DECEMBER);
    // After an unused December, four units would be carried over, so January would have sixteen.
    assert_eq!(promised(&denied(fixture, one, 16).await), JANUARY);
    fixture.set_time(DECEMBER);
    assert_eq!(left(fixture, one).await, 15);
    take(fixture, one, 12).await;
    assert_eq!(left(fixture, one).await, 3);
    fixture.set_time(JANUARY);
    // Without the grace of two, December had thirteen. One of them was unused and is carried over.
    assert_eq!(left(fixture, one).await, 13);
    take(fixture, one, 13).await;
    fixture.set_time(FEBRUARY);
    assert_eq!(left(fixture, one).await, 12);
}

/// The carried amount has a bound, however long nothing is used. It is gone when the subject is forgotten.
pub async fn the_rollover_is_bounded(fixture: &impl Fixture) {
    let limit = monthly(10, 0, 4);
    let one = charge(1, &limit);
    fixture.set_time(NOVEMBER);
    take(fixture, one, 1).await;
    for month in [DECEMBER, JANUARY] {
        fixture.set_time(month);
        assert_eq!(left(fixture, one).await, 14, "{month:?}");
    }
    take(fixture, one, 2).await;
    fixture.set_time(FEBRUARY);
    assert_eq!(left(fixture, one).await, 14);
    let long_after = charge(2, &limit);
    fixture.set_time(NOVEMBER);
    take(fixture, long_after, 1).await;
    fixture.set_time(FEBRUARY);
    assert_eq!(left(fixture, long_after).await, 10);
}

/// After a change of the calendar, the usage of a period that has not ended still counts.
pub async fn a_quota_keeps_its_usage_in_another_calendar(fixture: &impl Fixture) {
    let days = with_periods(Unit::Day, "UTC", 10, 0, 0);
    fixture.set_time(NOVEMBER);
    take(fixture, charge(1, &TEN), 7).await;
    let at = promised(&denied(fixture, charge(1, &days), 4).await);
    assert_eq!(at, NOVEMBER + Span::DAY);
    fixture.set_time(at);
    take(fixture, charge(1, &days), 4).await;
    let at = promised(&denied(fixture, charge(1, &TEN), 7).await);
    assert_eq!(at, DECEMBER);
    fixture.set_time(DECEMBER);
    take(fixture, charge(1, &days), 10).await;
}

/// A change that resets leaves a state, so that nothing has to be restored.
pub async fn a_reset_quota_still_has_a_state(fixture: &impl Fixture) {
    let twenty = monthly(20, 0, 0);
    let resets = |limit| Charge {
        recorded: Some(Recorded::default()),
        carry_over: CarryOver::Reset,
        ..charge(1, limit)
    };
    fixture.set_time(NOVEMBER);
    take(fixture, charge(1, &TEN), 10).await;
    take(fixture, resets(&twenty), 20).await;
    denied(fixture, resets(&twenty), 1).await;
}

/// A charge of November is not given back in December.
pub async fn a_refund_of_an_earlier_period_gives_nothing_back(fixture: &impl Fixture) {
    let one = charge(1, &TEN);
    fixture.set_time(just_before(DECEMBER));
    take(fixture, one, 6).await;
    fixture.set_time(DECEMBER);
    take(fixture, one, 10).await;
    refund(fixture, &[one], 6, just_before(DECEMBER)).await;
    assert_eq!(left(fixture, one).await, 0);
    refund(fixture, &[one], 6, DECEMBER).await;
    assert_eq!(left(fixture, one).await, 6);
}
