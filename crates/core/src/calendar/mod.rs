//! Calendar periods: the hours, days, weeks, months and years of a time zone.
//!
//! The clocks of the time zone say when a period begins. The period lasts until the next period begins. A
//! day in which the clocks change has 23 or 25 hours and is one day. Periods tile time: every instant is
//! in exactly one period, and the end of a period is the start of the next period.
//!
//! Boundaries are wall-clock times, counted from the epoch. So periods of 3 months begin in January,
//! April, July and October, and periods of 2 weeks begin on every other Monday. If the clocks skip a
//! boundary, the period begins at the instant of the skip. If the clocks show a boundary twice, the period
//! begins at the first of the two instants. So an hour that the clocks show twice is one period of two
//! hours, and a skipped hour is not a period.

mod memo;
mod zone;

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use jiff::civil::{Date, DateTime};
use jiff::tz::{AmbiguousOffset, Offset};

use self::memo::Memo;
use crate::units::{Span, Time};
use crate::{ParamError, ParamProblem};

pub use zone::Zone;

/// The most units that make one period.
pub const MAX_EVERY: u16 = 1000;

/// The seconds in an hour and in a day of the wall clock.
const HOUR: i64 = 3600;
const DAY: i64 = 24 * HOUR;

/// The unit of a period.
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
    /// All variants.
    pub const ALL: [Unit; 5] = [Unit::Hour, Unit::Day, Unit::Week, Unit::Month, Unit::Year];

    /// Returns the name in rules files.
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

    /// Returns the average length.
    const fn length(self) -> Span {
        match self {
            Unit::Hour => Span::HOUR,
            Unit::Day => Span::DAY,
            Unit::Week => Span::from_secs(7 * 86_400),
            // A twelfth of 365.2425 days.
            Unit::Month => Span::from_secs(2_629_746),
            Unit::Year => Span::from_secs(31_556_952),
        }
    }
}

/// The day on which a week, month or year begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Anchor {
    /// The first: Monday, the 1st, the 1st of January.
    #[default]
    First,
    /// This day of the week, from Monday as 1 to Sunday as 7.
    Weekday(u8),
    /// This day of the month. In a shorter month, the last day.
    Day(u8),
    /// This month and day. If the month is shorter, its last day.
    MonthDay(u8, u8),
}

/// A period of a calendar. The end is not part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    /// The first instant.
    pub start: Time,
    /// The first instant of the next period.
    pub end: Time,
}

/// Divides time into periods. Cheap to clone.
#[derive(Clone)]
pub struct Calendar(Arc<Parts>);

struct Parts {
    every: u16,
    unit: Unit,
    anchor: Anchor,
    zone: Zone,
    /// A hash of the fields above.
    fingerprint: u64,
    /// The boundaries that [`Calendar::around`] returned last, which are most often those of now.
    memo: Memo,
}

/// The boundaries around an instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Around {
    /// The starts of six periods in order: two before the instant, the period that contains the instant, and
    /// three after it. Each start is also the end of the period before it.
    pub starts: [Time; 6],
}

impl Around {
    /// Returns the period that contains the instant.
    #[must_use]
    pub fn period(&self) -> Period {
        Period {
            start: self.starts[2],
            end: self.starts[3],
        }
    }

    /// Returns the period that contains `at`, if it is one of the five known periods.
    fn find(&self, at: Time) -> Option<Period> {
        let mut pairs = self.starts.windows(2);
        let found = pairs.find(|pair| pair[0] <= at && at < pair[1])?;
        Some(Period {
            start: found[0],
            end: found[1],
        })
    }
}

impl Calendar {
    /// Returns a calendar with periods of `every` units each.
    ///
    /// # Errors
    /// If `every` is out of range, or if the unit cannot begin on the anchor.
    pub fn new(every: u16, unit: Unit, anchor: Anchor, zone: Zone) -> Result<Calendar, ParamError> {
        if !(1..=MAX_EVERY).contains(&every) {
            let range = 1..=MAX_EVERY.into();
            return Err(ParamProblem::OutOfRange(every.into(), range).of("period"));
        }
        let days_in = |month: u8| match month {
            2 => 29,
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        let fits = match (unit, anchor) {
            (_, Anchor::First) => true,
            (Unit::Week, Anchor::Weekday(day)) => (1..=7).contains(&day),
            (Unit::Month, Anchor::Day(day)) => (1..=31).contains(&day),
            (Unit::Year, Anchor::MonthDay(month, day)) => {
                (1..=12).contains(&month) && (1..=days_in(month)).contains(&day)
            }
            _ => false,
        };
        if !fits {
            return Err(ParamProblem::ImpossibleAnchor(unit.name()).of("anchor"));
        }
        Ok(Calendar(Arc::new(Parts {
            fingerprint: fingerprint(every, unit, anchor, &zone),
            every,
            unit,
            anchor,
            zone,
            memo: Memo::default(),
        })))
    }

    /// Returns how many units make a period, and the unit.
    #[must_use]
    pub fn unit(&self) -> (u16, Unit) {
        (self.0.every, self.0.unit)
    }

    /// Returns the day on which a period begins.
    #[must_use]
    pub fn anchor(&self) -> Anchor {
        self.0.anchor
    }

    /// Returns the time zone.
    #[must_use]
    pub fn zone(&self) -> &Zone {
        &self.0.zone
    }

    /// Returns a hash of seven bytes, which is the same for equal calendars on every machine.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        self.0.fingerprint
    }

    /// Returns the average length of a period; at most [`Span::MAX`].
    #[must_use]
    pub fn nominal(&self) -> Span {
        let one = self.0.unit.length().as_micros();
        Span::from_micros(one * u64::from(self.0.every)).min(Span::MAX)
    }

    /// Returns the period that contains `at`. Boundaries after [`Time::MAX`] saturate there.
    #[must_use]
    pub fn period_at(&self, at: Time) -> Period {
        let known = self.0.memo.read().and_then(|memo| memo.find(at));
        known.unwrap_or_else(|| {
            let number = self.number_at(at);
            Period {
                start: self.start_of(number),
                end: self.start_of(number + 1),
            }
        })
    }

    /// Returns the boundaries around `now`, and caches them for later calls in the same period.
    #[must_use]
    pub fn around(&self, now: Time) -> Around {
        if let Some(memo) = self.0.memo.read()
            && memo.period().start <= now
            && now < memo.period().end
        {
            return memo;
        }
        let number = self.number_at(now);
        let mut starts = [self.start_of(number); 6];
        // A day that the clocks skip starts and ends at the same instant: go on to the next boundary.
        let mut earlier = number;
        for i in [1, 0] {
            starts[i] = starts[i + 1];
            while starts[i] == starts[i + 1] && starts[i] > Time::default() {
                earlier -= 1;
                starts[i] = self.start_of(earlier);
            }
        }
        let mut later = number;
        for i in 3..6 {
            starts[i] = starts[i - 1];
            while starts[i] == starts[i - 1] && starts[i] < Time::MAX {
                later += 1;
                starts[i] = self.start_of(later);
            }
        }
        let around = Around { starts };
        self.0.memo.write(&around);
        around
    }

    /// Returns the number of the period that contains `at`. Periods are numbered from the epoch.
    fn number_at(&self, at: Time) -> i64 {
        let mut number = self.number_by_wall_clock(at);
        // The number by the wall clock can be wrong for two reasons: the clocks were set back over the
        // boundary, or the anchor is later than the first day of the month.
        while self.start_of(number) > at && self.start_of(number) > Time::default() {
            number -= 1;
        }
        while self.start_of(number + 1) <= at && self.start_of(number + 1) < Time::MAX {
            number += 1;
        }
        number
    }

    /// Returns the number of the period by the wall clock alone. For months and years, this ignores the
    /// anchor: it computes as if they began on their first day.
    fn number_by_wall_clock(&self, at: Time) -> i64 {
        let parts = &*self.0;
        // At most 2^52, in the year 2112.
        let micros = i64::try_from(at.as_micros()).unwrap_or(i64::MAX);
        let timestamp = Timestamp::from_microsecond(micros).unwrap_or(Timestamp::MAX);
        let offset = parts.zone.zone.to_offset(timestamp);
        let seconds = timestamp.as_second() + i64::from(offset.seconds());
        let units = match parts.unit {
            Unit::Hour => seconds.div_euclid(HOUR),
            Unit::Day => seconds.div_euclid(DAY),
            Unit::Week => (seconds.div_euclid(DAY) - self.first_weekday()).div_euclid(7),
            Unit::Month | Unit::Year => {
                let date = offset.to_datetime(timestamp).date();
                let years = i64::from(date.year()) - 1970;
                match parts.unit {
                    Unit::Year => years,
                    _ => years * 12 + i64::from(date.month()) - 1,
                }
            }
        };
        units.div_euclid(parts.every.into())
    }

    /// Returns the days from the epoch, which was a Thursday, to the first start of a week.
    fn first_weekday(&self) -> i64 {
        let day = match self.0.anchor {
            Anchor::Weekday(day) => i64::from(day),
            _ => 1,
        };
        (day - 4).rem_euclid(7)
    }

    /// Returns when this period begins: the first instant at which the clocks show its boundary or a later
    /// time. For a period that begins before the epoch, returns the epoch.
    fn start_of(&self, number: i64) -> Time {
        let zone = &self.0.zone.zone;
        let at = self.wall_clock_at(number).and_then(|wall_clock| {
            let ambiguous = zone.to_ambiguous_timestamp(wall_clock);
            match ambiguous.offset() {
                AmbiguousOffset::Gap { after, .. } => {
                    // The offset after the skip gives an instant before the skip. So the first transition
                    // after this instant is the skip.
                    let early = after.to_timestamp(wall_clock).ok()?;
                    zone.following(early).next().map(|it| it.timestamp())
                }
                _ => ambiguous.compatible().ok(),
            }
        });
        match at {
            Some(at) => Time::from_micros(u64::try_from(at.as_microsecond()).unwrap_or(0)),
            None if number > 0 => Time::MAX,
            None => Time::default(),
        }
    }

    /// Returns the wall-clock time at which this period begins, if its year can be represented.
    fn wall_clock_at(&self, number: i64) -> Option<DateTime> {
        let parts = &*self.0;
        let units = number.checked_mul(parts.every.into())?;
        let seconds = match parts.unit {
            Unit::Hour => units.checked_mul(HOUR)?,
            Unit::Day => units.checked_mul(DAY)?,
            Unit::Week => (units * 7 + self.first_weekday()).checked_mul(DAY)?,
            Unit::Month | Unit::Year => {
                let (months, day) = match (parts.unit, parts.anchor) {
                    (Unit::Month, Anchor::Day(day)) => (units, day),
                    (Unit::Year, Anchor::MonthDay(month, day)) => {
                        (units * 12 + i64::from(month) - 1, day)
                    }
                    (Unit::Year, _) => (units * 12, 1),
                    _ => (units, 1),
                };
                let year = i16::try_from(1970 + months.div_euclid(12)).ok()?;
                let month = i8::try_from(months.rem_euclid(12) + 1).ok()?;
                let first = Date::new(year, month, 1).ok()?;
                let day = i8::try_from(day).ok()?.min(first.days_in_month());
                return Some(Date::new(year, month, day).ok()?.at(0, 0, 0, 0));
            }
        };
        let as_if_utc = Timestamp::from_second(seconds).ok()?;
        Some(Offset::UTC.to_datetime(as_if_utc))
    }
}

impl PartialEq for Calendar {
    fn eq(&self, other: &Calendar) -> bool {
        let (one, two) = (&*self.0, &*other.0);
        // Clones share their parts. This is the most common case.
        Arc::ptr_eq(&self.0, &other.0)
            || one.fingerprint == two.fingerprint
                && (one.every, one.unit, one.anchor) == (two.every, two.unit, two.anchor)
                && one.zone == two.zone
    }
}

impl Eq for Calendar {}

impl std::hash::Hash for Calendar {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.fingerprint.hash(state);
    }
}

impl fmt::Debug for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = &*self.0;
        let (every, unit) = (parts.every, parts.unit.name());
        write!(
            f,
            "{every} {unit} from {:?} in {:?}",
            parts.anchor, parts.zone
        )
    }
}

/// Returns the first seven bytes of a hash of all fields.
fn fingerprint(every: u16, unit: Unit, anchor: Anchor, zone: &Zone) -> u64 {
    let anchor = match anchor {
        Anchor::First => [0, 0, 0],
        Anchor::Weekday(day) => [1, day, 0],
        Anchor::Day(day) => [2, day, 0],
        Anchor::MonthDay(month, day) => [3, month, day],
    };
    let mut hasher = blake3::Hasher::new();
    hasher.update(&every.to_le_bytes());
    hasher.update(unit.name().as_bytes());
    hasher.update(&anchor);
    hasher.update(zone.name().as_bytes());
    let mut bytes = [0; 8];
    hasher.finalize_xof().fill(&mut bytes[..7]);
    u64::from_le_bytes(bytes)
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
