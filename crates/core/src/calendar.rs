//! Calendar periods: the hours, days, weeks, months and years of a time zone.
//!
//! A period begins where its zone's clocks say so, and lasts until the next begins. A day in which
//! the clocks change has 23 or 25 hours and is one day. Periods tile time: every instant is in exactly
//! one, and the end of one is the start of the next.
//!
//! Boundaries are wall-clock readings, counted from the epoch: every 3 months begins in January,
//! April, July and October, every 2 weeks on every other Monday. A reading that the clocks skip is the
//! instant at which they skip it, and of one that they show twice the first counts. An hour that is
//! shown twice is therefore one period of two hours, and one that is skipped is none.

use std::fmt;
use std::sync::Arc;

use jiff::civil::{Date, DateTime, Weekday};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};

use crate::ParamError;
use crate::units::{Span, Time};

/// The most units that make one period.
pub const MAX_EVERY: u16 = 1000;

/// What a period is counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// Hours of the clock.
    Hour,
    /// Days, from midnight.
    Day,
    /// Weeks, from a day of the week.
    Week,
    /// Months, from a day of the month.
    Month,
    /// Years, from a day of a month.
    Year,
}

impl Unit {
    /// All of them.
    pub const ALL: [Unit; 5] = [Unit::Hour, Unit::Day, Unit::Week, Unit::Month, Unit::Year];

    /// The name in rules files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Unit::Hour => "hour",
            Unit::Day => "day",
            Unit::Week => "week",
            Unit::Month => "month",
            Unit::Year => "year",
        }
    }

    /// How long one is on average.
    const fn length(self) -> Span {
        match self {
            Unit::Hour => Span::HOUR,
            Unit::Day => Span::DAY,
            Unit::Week => Span::from_secs(7 * 86_400),
            // 365.2425 days have 12 of them.
            Unit::Month => Span::from_secs(2_629_746),
            Unit::Year => Span::from_secs(31_556_952),
        }
    }
}

/// On which day a week, month or year begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Anchor {
    /// On the first: Monday, the 1st, the 1st of January.
    #[default]
    First,
    /// On this day of the week, Monday being 1 and Sunday 7.
    Weekday(u8),
    /// On this day of the month; on the last where a month has fewer.
    Day(u8),
    /// On this day of this month, likewise.
    MonthDay(u8, u8),
}

/// A time zone by its name. Cheap to clone.
#[derive(Clone)]
pub struct Zone {
    name: Arc<str>,
    zone: TimeZone,
}

impl Zone {
    /// The zone of that name in the IANA database, such as `Europe/Berlin`.
    ///
    /// # Errors
    /// If there is none.
    pub fn named(name: &str) -> Result<Zone, ParamError> {
        let unknown = |_| ParamError::UnknownZone {
            field: "timezone",
            name: name.to_owned(),
        };
        let zone = TimeZone::get(name).map_err(unknown)?;
        let name = zone.iana_name().unwrap_or(name).into();
        Ok(Zone { name, zone })
    }

    /// Coordinated universal time.
    #[must_use]
    pub fn utc() -> Zone {
        Zone {
            name: "UTC".into(),
            zone: TimeZone::UTC,
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The names of all zones, for who has to be told which there are.
    pub fn names() -> impl Iterator<Item = String> {
        jiff::tz::db().available().map(|name| name.to_string())
    }
}

impl PartialEq for Zone {
    fn eq(&self, other: &Zone) -> bool {
        self.name == other.name
    }
}

impl Eq for Zone {}

impl std::hash::Hash for Zone {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl fmt::Debug for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// From when to when: the end is not part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    /// Its first instant.
    pub start: Time,
    /// The first instant of the next.
    pub end: Time,
}

/// A way to divide time into periods. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Calendar(Arc<Parts>);

#[derive(Debug, PartialEq, Eq, Hash)]
struct Parts {
    every: u16,
    unit: Unit,
    anchor: Anchor,
    zone: Zone,
}

impl Calendar {
    /// Periods of `every` units each.
    ///
    /// # Errors
    /// If there are too many or none, or the anchor is no day of such a unit.
    pub fn new(every: u16, unit: Unit, anchor: Anchor, zone: Zone) -> Result<Calendar, ParamError> {
        if !(1..=MAX_EVERY).contains(&every) {
            return Err(ParamError::OutOfRange {
                field: "period",
                value: every.into(),
                min: 1,
                max: MAX_EVERY.into(),
            });
        }
        let longest_year = |month: u8| match month {
            2 => 29,
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        let fits = match (unit, anchor) {
            (_, Anchor::First) => true,
            (Unit::Week, Anchor::Weekday(day)) => (1..=7).contains(&day),
            (Unit::Month, Anchor::Day(day)) => (1..=31).contains(&day),
            (Unit::Year, Anchor::MonthDay(month, day)) => {
                (1..=12).contains(&month) && (1..=longest_year(month)).contains(&day)
            }
            _ => false,
        };
        if !fits {
            return Err(ParamError::ImpossibleAnchor {
                field: "anchor",
                unit: unit.name(),
            });
        }
        Ok(Calendar(Arc::new(Parts {
            every,
            unit,
            anchor,
            zone,
        })))
    }

    /// What a period is counted in, and how many make one.
    #[must_use]
    pub fn unit(&self) -> (u16, Unit) {
        (self.0.every, self.0.unit)
    }

    /// On which day a period begins.
    #[must_use]
    pub fn anchor(&self) -> Anchor {
        self.0.anchor
    }

    /// Whose clocks count.
    #[must_use]
    pub fn zone(&self) -> &Zone {
        &self.0.zone
    }

    /// How long a period is on average.
    #[must_use]
    pub fn nominal(&self) -> Span {
        let one = self.0.unit.length().as_micros();
        Span::from_micros(one * u64::from(self.0.every))
    }

    /// The period that `now` is in.
    #[must_use]
    pub fn period_at(&self, now: Time) -> Period {
        let mut place = self.place_of(self.reading(now));
        // The clocks may have been set back over the boundary, or the reading may be skipped.
        while self.start_of(place) > now && self.start_of(place) > Time::default() {
            place -= 1;
        }
        while self.start_of(place + 1) <= now && now < Time::MAX {
            place += 1;
        }
        Period {
            start: self.start_of(place),
            end: self.start_of(place + 1),
        }
    }

    /// What the clocks of the zone show.
    fn reading(&self, now: Time) -> DateTime {
        // At most 2^52, which is in the year 2112.
        let micros = i64::try_from(now.as_micros()).unwrap_or(i64::MAX);
        let timestamp = Timestamp::from_microsecond(micros).unwrap_or(Timestamp::MAX);
        self.0.zone.zone.to_datetime(timestamp)
    }

    /// Which period, counted from the epoch, has begun when the clocks show this.
    fn place_of(&self, reading: DateTime) -> i64 {
        let parts = &*self.0;
        let units = match parts.unit {
            Unit::Hour => days(reading.date()) * 24 + i64::from(reading.hour()),
            Unit::Day => days(reading.date()),
            Unit::Week => (days(reading.date()) - self.first_weekday()).div_euclid(7),
            Unit::Month => {
                let months = i64::from(reading.year()) * 12 + i64::from(reading.month()) - 1;
                months - 1970 * 12
            }
            Unit::Year => i64::from(reading.year()) - 1970,
        };
        // Months and years may begin later than on their first: then this is one too many, which
        // `period_at` sets right.
        units.div_euclid(parts.every.into())
    }

    /// Days from the epoch, which was a Thursday, to the first day that a week begins on.
    fn first_weekday(&self) -> i64 {
        let day = match self.0.anchor {
            Anchor::Weekday(day) => i64::from(day),
            _ => 1,
        };
        (day - i64::from(Weekday::Thursday.to_monday_one_offset())).rem_euclid(7)
    }

    /// When the period at this place begins; the epoch if that is before.
    fn start_of(&self, place: i64) -> Time {
        let parts = &*self.0;
        let units = place.saturating_mul(parts.every.into());
        let epoch = Date::constant(1970, 1, 1).at(0, 0, 0, 0);
        let reading = match parts.unit {
            Unit::Hour => epoch.checked_add(units.hours()),
            Unit::Day => epoch.checked_add(units.days()),
            Unit::Week => epoch.checked_add((units * 7 + self.first_weekday()).days()),
            Unit::Month | Unit::Year => {
                let (months, day) = match (parts.unit, parts.anchor) {
                    (Unit::Month, Anchor::Day(day)) => (units, day),
                    (Unit::Year, Anchor::MonthDay(month, day)) => {
                        (units * 12 + i64::from(month) - 1, day)
                    }
                    (Unit::Year, _) => (units * 12, 1),
                    _ => (units, 1),
                };
                let first = epoch.checked_add(months.months());
                first.map(|first| {
                    let last = first.date().days_in_month();
                    let day = i8::try_from(day).unwrap_or(last).min(last);
                    first.with().day(day).build().unwrap_or(first)
                })
            }
        };
        let zone = &parts.zone.zone;
        let at = reading.and_then(|it| zone.to_ambiguous_timestamp(it).compatible());
        match at {
            Ok(at) => Time::from_micros(u64::try_from(at.as_microsecond()).unwrap_or(0)),
            Err(_) if place > 0 => Time::MAX,
            Err(_) => Time::default(),
        }
    }
}

/// Days since the epoch.
fn days(date: Date) -> i64 {
    let epoch = Date::constant(1970, 1, 1);
    // Dates are at most some ten thousand years apart.
    let between = date.since(epoch).map(|span| span.get_days());
    between.map_or(0, i64::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Time {
        let timestamp: Timestamp = text.parse().unwrap();
        Time::from_micros(u64::try_from(timestamp.as_microsecond()).unwrap())
    }

    #[test]
    fn a_day_in_which_clocks_change_is_one_day() {
        let berlin = Zone::named("Europe/Berlin").unwrap();
        let days = Calendar::new(1, Unit::Day, Anchor::First, berlin).unwrap();
        let short = days.period_at(at("2026-03-29T10:00:00Z"));
        assert_eq!(short.start, at("2026-03-28T23:00:00Z"));
        assert_eq!(short.end, at("2026-03-29T22:00:00Z"));
        let long = days.period_at(at("2026-10-25T10:00:00Z"));
        assert_eq!(long.start, at("2026-10-24T22:00:00Z"));
        assert_eq!(long.end, at("2026-10-25T23:00:00Z"));
    }

    #[test]
    fn every_zone_is_found_by_its_name() {
        let names: Vec<String> = Zone::names().collect();
        assert!(names.iter().any(|name| name == "Europe/Berlin"));
        for name in names {
            assert_eq!(Zone::named(&name).unwrap().name(), name);
        }
        let lower = Zone::named("europe/berlin").unwrap();
        assert_eq!(lower.name(), "Europe/Berlin");
        assert!(Zone::named("Europe/Berln").is_err());
    }

    #[test]
    fn the_thirty_first_is_the_last_of_short_months() {
        let months = Calendar::new(1, Unit::Month, Anchor::Day(31), Zone::utc()).unwrap();
        let period = months.period_at(at("2028-02-28T23:59:59Z"));
        assert_eq!(period.start, at("2028-01-31T00:00:00Z"));
        assert_eq!(period.end, at("2028-02-29T00:00:00Z"));
    }
}
