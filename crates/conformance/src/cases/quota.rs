//! Quotas: so much in each calendar period.

use tollgate_core::{Anchor, Calendar, CarryOver, Charge, Limit, Recorded, Span, Time, Unit, Zone};

use super::{charge, just_before, left, promised, refund, refused, take};
use crate::Fixture;

/// Midnight of the 1st of November 2023 in UTC.
pub(super) const NOVEMBER: Time = Time::from_micros(1_698_796_800_000_000);
pub(super) const DECEMBER: Time = Time::from_micros(1_701_388_800_000_000);
pub(super) const JANUARY: Time = Time::from_micros(1_704_067_200_000_000);
pub(super) const FEBRUARY: Time = Time::from_micros(1_706_745_600_000_000);

/// A quota with months of UTC.
pub(super) fn monthly(limit: u64, grace: u64, rollover: u64) -> Limit {
    with_periods(Unit::Month, "UTC", limit, grace, rollover)
}

pub(super) fn with_periods(unit: Unit, zone: &str, limit: u64, grace: u64, rollover: u64) -> Limit {
    let zone = Zone::named(zone);
    let calendar = zone.and_then(|zone| Calendar::new(1, unit, Anchor::First, zone));
    let quota = calendar.and_then(|calendar| Limit::quota(limit, grace, rollover, calendar));
    quota.expect("the suite asks for quotas that can be had")
}

/// What is used is used until the next period begins, and not a microsecond longer.
pub async fn a_quota_holds_until_its_period_ends(fixture: &impl Fixture) {
    let limit = monthly(10, 0, 0);
    let one = charge(1, &limit);
    fixture.set_time(NOVEMBER + Span::from_secs(77));
    let told = take(fixture, one, 4).await;
    assert_eq!(told.outcomes[0].reset_at, DECEMBER);
    fixture.set_time(just_before(DECEMBER));
    assert_eq!(promised(&refused(fixture, one, 7).await), DECEMBER);
    take(fixture, one, 6).await;
    fixture.set_time(DECEMBER);
    take(fixture, one, 10).await;
    assert_eq!(promised(&refused(fixture, one, 1).await), JANUARY);
    // A clock that steps back opens no second November.
    fixture.set_time(just_before(DECEMBER));
    refused(fixture, one, 1).await;
}

/// Of 23 hours in spring, and of 25 in autumn.
pub async fn a_day_in_which_clocks_change_is_one_day(fixture: &impl Fixture) {
    let limit = with_periods(Unit::Day, "Europe/Berlin", 5, 0, 0);
    // Midnights in Berlin before the 26th of March and the 29th of October 2023.
    for (number, midnight, hours) in [(1, 1_679_785_200, 23), (2, 1_698_530_400, 25)] {
        let midnight = Time::from_micros(midnight * 1_000_000);
        let one = charge(number, &limit);
        fixture.set_time(just_before(midnight));
        take(fixture, one, 5).await;
        assert_eq!(promised(&refused(fixture, one, 1).await), midnight);
        fixture.set_time(midnight);
        take(fixture, one, 5).await;
        let next = midnight + Span::from_secs(3600 * hours);
        assert_eq!(promised(&refused(fixture, one, 1).await), next);
        fixture.set_time(just_before(next));
        refused(fixture, one, 1).await;
        fixture.set_time(next);
        take(fixture, one, 5).await;
    }
}

/// What is above the limit is admitted as far as the grace goes.
pub async fn a_quota_admits_its_grace_and_no_more(fixture: &impl Fixture) {
    let limit = monthly(10, 3, 0);
    let one = charge(1, &limit);
    fixture.set_time(NOVEMBER);
    let told = take(fixture, one, 11).await;
    assert_eq!(told.outcomes[0].limit, 13);
    assert_eq!(told.outcomes[0].remaining, 2);
    refused(fixture, one, 3).await;
    take(fixture, one, 2).await;
    assert_eq!(promised(&refused(fixture, one, 1).await), DECEMBER);
}

/// Grace is not left over; what is left of the limit is there in the next period, on top.
pub async fn what_is_left_of_a_period_is_carried_into_the_next(fixture: &impl Fixture) {
    let limit = monthly(10, 2, 4);
    let one = charge(1, &limit);
    fixture.set_time(NOVEMBER);
    take(fixture, one, 7).await;
    // Of three that are left, and so of fifteen in December.
    assert_eq!(promised(&refused(fixture, one, 15).await), DECEMBER);
    // After a December without use there would be four.
    assert_eq!(promised(&refused(fixture, one, 16).await), JANUARY);
    fixture.set_time(DECEMBER);
    assert_eq!(left(fixture, one).await, 15);
    take(fixture, one, 12).await;
    assert_eq!(left(fixture, one).await, 3);
    fixture.set_time(JANUARY);
    // One of thirteen was left; the other two were grace.
    assert_eq!(left(fixture, one).await, 13);
    take(fixture, one, 13).await;
    fixture.set_time(FEBRUARY);
    assert_eq!(left(fixture, one).await, 12);
}

/// At most so much, however long nothing is used; and nothing of it once the subject is forgotten.
pub async fn what_is_carried_over_has_its_bound(fixture: &impl Fixture) {
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

/// Other periods begin with what was used in the one that has not ended.
pub async fn a_quota_keeps_what_was_used_in_another_calendar(fixture: &impl Fixture) {
    let months = monthly(10, 0, 0);
    let days = with_periods(Unit::Day, "UTC", 10, 0, 0);
    fixture.set_time(NOVEMBER);
    take(fixture, charge(1, &months), 7).await;
    let at = promised(&refused(fixture, charge(1, &days), 4).await);
    assert_eq!(at, NOVEMBER + Span::DAY);
    fixture.set_time(at);
    take(fixture, charge(1, &days), 4).await;
    let at = promised(&refused(fixture, charge(1, &months), 7).await);
    assert_eq!(at, DECEMBER);
    fixture.set_time(DECEMBER);
    take(fixture, charge(1, &days), 10).await;
}

/// After a change that resets, a ledger need not be asked.
pub async fn a_quota_is_reset_and_not_forgotten(fixture: &impl Fixture) {
    let (ten, twenty) = (monthly(10, 0, 0), monthly(20, 0, 0));
    let resets = |limit| Charge {
        recorded: Some(Recorded::default()),
        carry_over: CarryOver::Reset,
        ..charge(1, limit)
    };
    fixture.set_time(NOVEMBER);
    take(fixture, charge(1, &ten), 10).await;
    take(fixture, resets(&twenty), 20).await;
    refused(fixture, resets(&twenty), 1).await;
}

/// What was taken in November is not given back to December.
pub async fn a_refund_of_an_earlier_period_gives_nothing_back(fixture: &impl Fixture) {
    let limit = monthly(10, 0, 0);
    let one = charge(1, &limit);
    fixture.set_time(just_before(DECEMBER));
    take(fixture, one, 6).await;
    fixture.set_time(DECEMBER);
    take(fixture, one, 10).await;
    refund(fixture, &[one], 6, just_before(DECEMBER)).await;
    assert_eq!(left(fixture, one).await, 0);
    refund(fixture, &[one], 6, DECEMBER).await;
    assert_eq!(left(fixture, one).await, 6);
}
