//! Periods by name: a year, a month, a week, a day, or the current periods.
//!
//! A period of a quota belongs to the day, week, month or year in which it starts, in its time zone. So
//! a period belongs to one month only, however long it is.
//!
//! If the period is one of the rule in force, its time zone is that of the rule. If the rule is gone,
//! or has another time zone now, the date of the nearest midnight in UTC is used. So usage that was
//! billed as July stays July.

use std::str::FromStr;

use jiff::civil::{Date, ISOWeekDate, Weekday};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan, Zoned};
use tollgate::{ActiveConfig, Time};
use tollgate_core::{Anchor, Calendar, Key, Limit, Unit};
use tollgate_ledger::Period;

/// The name of the current periods.
const CURRENT: &str = "current";

/// No time zone is further from UTC than this, in microseconds.
const FURTHEST: u64 = 26 * 3_600_000_000;

/// A selection of periods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    /// Periods that contain this time.
    Current(Time),
    /// Periods that start on one of these days. The second day is exclusive.
    Dates(Date, Date),
}

impl Named {
    /// Parses a name at `now`.
    pub(crate) fn parse(name: &str, now: Time) -> Option<Named> {
        if name == CURRENT {
            return Some(Named::Current(now));
        }
        let (first, after) = dates(name)?;
        Some(Named::Dates(first, after))
    }

    /// Returns the range in which selected periods may start.
    pub(crate) fn starts(&self) -> (Time, Time) {
        match self {
            Named::Current(now) => (Time::default(), just_after(*now)),
            Named::Dates(first, after) => {
                let from = micros(*first).saturating_sub(FURTHEST);
                let to = micros(*after).saturating_add(FURTHEST);
                (Time::from_micros(from), Time::from_micros(to))
            }
        }
    }

    /// Returns the range in which selected periods may have usage.
    pub(crate) fn lasts(&self) -> (Time, Time) {
        match self {
            Named::Current(now) => (*now, just_after(*now)),
            Named::Dates(..) => self.starts(),
        }
    }

    /// Returns whether a period is selected.
    pub(crate) fn has(&self, period: &Period, calendar: Option<&Calendar>) -> bool {
        match self {
            Named::Current(now) => period.start <= *now && *now < period.end,
            Named::Dates(first, after) => {
                let date = start(period, calendar).date();
                *first <= date && date < *after
            }
        }
    }
}

/// Returns the name of a period. For most periods, [`Named::parse`] accepts this name.
pub(crate) fn name(period: &Period, calendar: Option<&Calendar>) -> String {
    let Some(calendar) = calendar else {
        return crate::audit::instant(period.start);
    };
    let start = start(period, Some(calendar));
    match (calendar.unit(), calendar.anchor()) {
        ((1, Unit::Year), Anchor::First) => start.strftime("%Y").to_string(),
        ((1, Unit::Month), Anchor::First) => start.strftime("%Y-%m").to_string(),
        ((1, Unit::Week), Anchor::First) => start.strftime("%G-W%V").to_string(),
        ((_, Unit::Hour), _) => start.strftime("%Y-%m-%dT%H:%M").to_string(),
        _ => start.strftime("%Y-%m-%d").to_string(),
    }
}

/// Returns the local time at which a period starts.
fn start(period: &Period, calendar: Option<&Calendar>) -> Zoned {
    let micros = i64::try_from(period.start.as_micros()).unwrap_or(i64::MAX);
    let start = Timestamp::from_microsecond(micros).unwrap_or(Timestamp::MAX);
    let in_force = calendar.and_then(|calendar| {
        let zone = TimeZone::get(calendar.zone().name()).ok()?;
        let start = start.to_zoned(zone);
        let is_of_it = match calendar.unit() {
            // A period of hours need not start at midnight, so it is always shown in the time zone of
            // the rule.
            (_, Unit::Hour) => true,
            _ => calendar.period_at(period.start).start == period.start,
        };
        // The period is not one of this calendar if the anchor or the time zone was changed since then.
        // If the period starts at midnight in the calendar's time zone, only the anchor was changed,
        // and the time zone still applies.
        (is_of_it || start.start_of_day().is_ok_and(|day| day == start)).then_some(start)
    });
    in_force.unwrap_or_else(|| {
        let nearest = start.checked_add(12.hours()).unwrap_or(start);
        nearest.to_zoned(TimeZone::UTC)
    })
}

/// Returns the limit in force for a counter, if there is one.
pub(crate) fn limit<'l>(
    live: &'l ActiveConfig,
    allowance: &str,
    tenant: &str,
    key: u128,
) -> Option<&'l Limit> {
    let counter = live.rules().counter(allowance, tenant, Key::from_bits(key));
    counter.map(|counter| counter.limit)
}

/// Returns the calendar of a quota.
pub(crate) fn calendar(limit: &Limit) -> Option<&Calendar> {
    match limit {
        Limit::Quota(quota) => Some(quota.calendar()),
        _ => None,
    }
}

fn just_after(now: Time) -> Time {
    Time::from_micros(now.as_micros().saturating_add(1))
}

/// Returns the start of a day in UTC.
fn micros(date: Date) -> u64 {
    let zoned = date.to_zoned(TimeZone::UTC);
    let micros = zoned.map_or(i64::MAX, |it| it.timestamp().as_microsecond());
    u64::try_from(micros).unwrap_or(0)
}

/// Returns the first day of a year, month, week or day, and the first day after it.
fn dates(name: &str) -> Option<(Date, Date)> {
    let parts: Vec<&str> = name.split('-').collect();
    let year = number(parts[0], 4)?;
    let (first, length) = match parts[1..] {
        [] => (Date::new(year, 1, 1), 1.year()),
        [part] => match part.strip_prefix('W') {
            Some(week) => {
                let monday = ISOWeekDate::new(year, number(week, 2)?, Weekday::Monday);
                (monday.map(ISOWeekDate::date), 1.week())
            }
            None => (Date::new(year, number(part, 2)?, 1), 1.month()),
        },
        [month, day] => {
            let day = Date::new(year, number(month, 2)?, number(day, 2)?);
            (day, 1.day())
        }
        _ => return None,
    };
    let first = first.ok()?;
    Some((first, first.checked_add(length).ok()?))
}

/// Parses a number with exactly `digits` digits.
fn number<N: FromStr>(text: &str, digits: usize) -> Option<N> {
    let is_number = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use tollgate_core::Zone;

    use super::*;

    fn calendar(unit: Unit, zone: &str) -> Calendar {
        Calendar::new(1, unit, Anchor::First, Zone::named(zone).unwrap()).unwrap()
    }

    /// Returns the period of a calendar at an instant.
    fn period(calendar: &Calendar, at: &str) -> Period {
        let at: Timestamp = at.parse().unwrap();
        let at = Time::from_micros(u64::try_from(at.as_microsecond()).unwrap());
        let period = calendar.period_at(at);
        Period {
            start: period.start,
            end: period.end,
        }
    }

    #[test]
    fn period_belongs_to_the_month_in_which_it_starts_locally() {
        let zones = "UTC Europe/Berlin Pacific/Kiritimati Pacific/Niue Pacific/Auckland";
        for zone in zones.split(' ') {
            let calendar = calendar(Unit::Month, zone);
            let july = period(&calendar, "2026-07-15T12:00:00Z");
            assert_eq!(name(&july, Some(&calendar)), "2026-07", "{zone}");
            for (asked, is_of_it) in [
                ("2026-06", false),
                ("2026-07", true),
                ("2026-08", false),
                ("2026", true),
                ("2026-07-01", true),
                ("2026-07-02", false),
                ("2026-W27", true),
                ("2026-W28", false),
                ("current", true),
            ] {
                let now = Time::from_micros(july.start.as_micros() + 1);
                let named = Named::parse(asked, now).unwrap();
                let has = named.has(&july, Some(&calendar));
                assert_eq!(has, is_of_it, "{zone} {asked}");
                let (from, to) = named.starts();
                assert!(!is_of_it || (from <= july.start && july.start < to));
            }
        }
    }

    #[test]
    fn nearest_midnight_counts_if_the_rule_is_gone() {
        for zone in ["UTC", "Europe/Berlin", "America/New_York", "Asia/Tokyo"] {
            let july = period(&calendar(Unit::Month, zone), "2026-07-15T12:00:00Z");
            let named = Named::parse("2026-07", Time::default()).unwrap();
            assert!(named.has(&july, None), "{zone}");
        }
    }

    #[test]
    fn another_time_zone_does_not_move_a_period_to_another_month() {
        for (then, now) in [
            ("Europe/Berlin", "America/New_York"),
            ("America/New_York", "Europe/Berlin"),
            ("Asia/Tokyo", "UTC"),
            ("UTC", "Pacific/Auckland"),
        ] {
            let july = period(&calendar(Unit::Month, then), "2026-07-15T12:00:00Z");
            let in_force = calendar(Unit::Month, now);
            assert_eq!(name(&july, Some(&in_force)), "2026-07", "{then} {now}");
            for (asked, is_of_it) in [("2026-06", false), ("2026-07", true), ("2026-08", false)] {
                let named = Named::parse(asked, Time::default()).unwrap();
                let has = named.has(&july, Some(&in_force));
                assert_eq!(has, is_of_it, "{then} {now} {asked}");
            }
        }
    }

    #[test]
    fn another_anchor_does_not_change_the_time_zone() {
        // Thirteen hours ahead of UTC: the nearest midnight in UTC is that of the day before.
        let auckland = Zone::named("Pacific/Auckland").unwrap();
        let months = calendar(Unit::Month, "Pacific/Auckland");
        let january = period(&months, "2026-01-15T12:00:00Z");
        let in_force = Calendar::new(1, Unit::Month, Anchor::Day(15), auckland).unwrap();
        assert_eq!(name(&january, Some(&in_force)), "2026-01-01");
    }

    #[test]
    fn names_can_be_parsed_again() {
        for (unit, expected) in [
            (Unit::Day, "2026-03-29"),
            (Unit::Week, "2026-W13"),
            (Unit::Month, "2026-03"),
            (Unit::Year, "2026"),
        ] {
            let calendar = calendar(unit, "Europe/Berlin");
            // In this night clocks go forward.
            let period = period(&calendar, "2026-03-29T06:00:00Z");
            assert_eq!(name(&period, Some(&calendar)), expected);
            let named = Named::parse(expected, Time::default()).unwrap();
            assert!(named.has(&period, Some(&calendar)), "{expected}");
        }
    }

    #[test]
    fn bad_period_is_rejected() {
        let wrong = "26 2026- 2026-13 2026-00 2026-7 2026-07-32 2026-02-29 +026 2026-W54 2026-W00 \
                     2026-w29 2026-07-15-1 9999 9999-12 July ２０２６";
        for wrong in wrong.split(' ').chain([""]) {
            assert_eq!(Named::parse(wrong, Time::default()), None, "{wrong}");
        }
        let leap = Named::parse("2028-02-29", Time::default());
        let day = |month, day| Date::new(2028, month, day).unwrap();
        assert_eq!(leap, Some(Named::Dates(day(2, 29), day(3, 1))));
    }
}
