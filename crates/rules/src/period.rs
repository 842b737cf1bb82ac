//! Calendar periods in a text: `month`, `3 months`, and the day that a period begins on.

use std::fmt;

use crate::document::{BadValue, Node, Problems, Read, Short, nearest, number, schema, whole};
use tollgate_core::calendar::MAX_EVERY;
use tollgate_core::{Anchor, Calendar, Span, Unit, Zone};

const HELP: &str = "write hour, day, week, month or year, or several, such as `3 months`";
const ANCHOR_HELP: &str =
    "write the day that a period begins on: 15 of a month, monday of a week, 04-01 of a year";

/// Monday first, as [`Anchor::Weekday`] counts.
const WEEKDAYS: [&str; 7] = [
    "monday",
    "tuesday",
    "wednesday",
    "thursday",
    "friday",
    "saturday",
    "sunday",
];

/// Other words for periods.
const WORDS: [(&str, &str); 12] = [
    ("hourly", "hour"),
    ("daily", "day"),
    ("weekly", "week"),
    ("fortnight", "2 weeks"),
    ("fortnightly", "2 weeks"),
    ("biweekly", "2 weeks"),
    ("monthly", "month"),
    ("quarter", "3 months"),
    ("quarterly", "3 months"),
    ("yearly", "year"),
    ("annual", "year"),
    ("annually", "year"),
];

/// A period: a number of calendar units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Every {
    pub(crate) count: u16,
    pub(crate) unit: Unit,
}

impl fmt::Display for Every {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.count, self.unit.name()) {
            (1, unit) => f.write_str(unit),
            (count, unit) => write!(f, "{count} {unit}s"),
        }
    }
}

impl Read for Every {
    fn read(node: &Node, problems: &mut Problems<'_>) -> Option<Every> {
        number(node, "a period", HELP, every, problems)
    }
}
schema!(Every, "Period", _generator => {
    "type": "string",
    "pattern": "^([0-9]+ +)?(hour|day|week|month|year)s?$",
    "examples": ["hour", "day", "week", "month", "year", "3 months"],
});

fn every(text: &str) -> Result<Every, BadValue> {
    let (count, name) = match text.split_once(' ') {
        Some((count, name)) => (Some(count), name.trim_start()),
        None => (None, text),
    };
    let unit = name.strip_suffix('s').unwrap_or(name);
    let Some(unit) = Unit::ALL.into_iter().find(|it| it.name() == unit) else {
        return Err(no_period(text));
    };
    let count = count.map_or(Ok(1), whole)?;
    let fits = (1..=u64::from(MAX_EVERY)).contains(&count);
    let Some(count) = u16::try_from(count).ok().filter(|_| fits) else {
        let help = format!("write from 1 to {MAX_EVERY} of a unit, such as `3 months`");
        return Err(BadValue::new(
            format!("`{}` is not a period", Short(text)),
            help,
        ));
    };
    let nominal = Calendar::new(count, unit, Anchor::First, Zone::utc());
    if nominal.is_ok_and(|it| it.nominal() >= Span::MAX) {
        let message = format!("`{}` is longer than 71 years", Short(text));
        return Err(BadValue::new(message, "write a shorter period"));
    }
    Ok(Every { count, unit })
}

/// Explains why a text is not a period, with the period that was probably meant.
fn no_period(text: &str) -> BadValue {
    let digits = text.find(|c: char| !c.is_ascii_digit());
    let (amount, unit) = text.split_at(digits.unwrap_or(text.len()));
    if let (Ok(count), false) = (whole(amount), unit.contains(' ')) {
        let message = format!("`{}` is a duration, not a calendar period", Short(text));
        let instead =
            format!("`algorithm: fixed-window` counts durations such as `window: {text}`");
        let counted = |unit: &str| match count {
            1 => unit.to_owned(),
            _ => format!("{count} {unit}s"),
        };
        let help = match unit {
            "" => return BadValue::new(format!("`{}` has no unit", Short(text)), HELP),
            "us" | "ms" | "s" | "m" => format!("the shortest period is an `hour`; {instead}"),
            "h" => format!("write `{}`, or `day`; {instead}", counted("hour")),
            "d" => format!("write `{}`, or `month`; {instead}", counted("day")),
            "w" => format!("write `{}`", counted("week")),
            "mo" => format!("write `{}`", counted("month")),
            "y" => format!("write `{}`", counted("year")),
            _ => HELP.to_owned(),
        };
        return BadValue::new(message, help);
    }
    let lower = text.to_lowercase();
    let known = WORDS.iter().find(|(word, _)| *word == lower);
    let meant = known.map(|(_, meant)| *meant);
    let units = Unit::ALL.map(Unit::name);
    let help = match meant.or_else(|| nearest(text, units)) {
        Some(meant) => format!("write `{meant}`"),
        None => HELP.to_owned(),
    };
    BadValue::new(format!("`{}` is not a period", Short(text)), help)
}

/// The day that a period begins on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Start(pub(crate) Anchor);

impl fmt::Display for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Anchor::First => f.write_str("first"),
            Anchor::Weekday(day) => {
                let place = usize::from(day).saturating_sub(1);
                f.write_str(WEEKDAYS.get(place).copied().unwrap_or_default())
            }
            Anchor::Day(day) => write!(f, "{day}"),
            Anchor::MonthDay(month, day) => write!(f, "{month:02}-{day:02}"),
        }
    }
}

impl Read for Start {
    fn read(node: &Node, problems: &mut Problems<'_>) -> Option<Start> {
        number(node, "a day", ANCHOR_HELP, anchor, problems).map(Start)
    }
}

schema!(Start, "Anchor", _generator => { "anyOf": [
            { "type": "integer", "minimum": 1, "maximum": 31 },
            { "enum": WEEKDAYS },
            { "type": "string", "pattern": "^([1-9]|[12][0-9]|3[01]|[01][0-9]-[0-3][0-9])$", "examples": ["04-01"] },
        ] });

fn anchor(text: &str) -> Result<Anchor, BadValue> {
    if let Some(day) = (1u8..).zip(WEEKDAYS).find(|(_, name)| *name == text) {
        return Ok(Anchor::Weekday(day.0));
    }
    if let Ok(day) = whole(text) {
        let day = u8::try_from(day).ok().filter(|day| (1..=31).contains(day));
        return day.map(Anchor::Day).ok_or_else(|| {
            let help = "write a day from 1 to 31: a shorter month uses its last day";
            BadValue::new(format!("no month has a day {}", Short(text)), help)
        });
    }
    let parts: Vec<&str> = text.split('-').collect();
    let digits = |part: &&str| !part.is_empty() && part.bytes().all(|it| it.is_ascii_digit());
    if parts.len() > 1 && parts.iter().all(|part| digits(part) && part.len() <= 4) {
        return month_day(text, &parts);
    }
    let lower = text.to_lowercase();
    let meant = match lower.as_str() {
        "last" | "end" => Some("31"),
        "first" | "start" => Some("1"),
        short if short.len() < 3 => None,
        short => WEEKDAYS.into_iter().find(|day| day.starts_with(short)),
    };
    let help = match meant.or_else(|| nearest(text, WEEKDAYS)) {
        Some("31") => "write 31: a shorter month uses its last day".to_owned(),
        Some(meant) => format!("write `{meant}`"),
        None => ANCHOR_HELP.to_owned(),
    };
    Err(BadValue::new(
        format!("`{}` is not a day", Short(text)),
        help,
    ))
}

/// Reads a month and a day, such as `04-01`.
fn month_day(text: &str, parts: &[&str]) -> Result<Anchor, BadValue> {
    let parsed = match parts {
        [month, day] => month.parse::<u8>().ok().zip(day.parse::<u8>().ok()),
        _ => None,
    };
    let Some((month, day)) = parsed else {
        let help = match parts {
            [_, month, day] => format!("remove the year: write {month:0>2}-{day:0>2}"),
            _ => "write a month and a day, such as 04-01".to_owned(),
        };
        let message = format!("`{}` is not a day of a year", Short(text));
        return Err(BadValue::new(message, help));
    };
    let anchor = Anchor::MonthDay(month, day);
    if Calendar::new(1, Unit::Year, anchor, Zone::utc()).is_err() {
        let message = format!("there is no {month:02}-{day:02} in any year");
        let help = "write a month and a day, such as 04-01 for the first of April";
        return Err(BadValue::new(message, help));
    }
    if text.len() != 5 {
        let help = format!("write {month:02}-{day:02}: the month, then the day");
        return Err(BadValue::new(
            format!("`{text}` is not a month and a day"),
            help,
        ));
    }
    Ok(anchor)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rejected<T: fmt::Debug>(text: &str, read: Result<T, BadValue>, help: &str) {
        let bad = read.expect_err(text);
        assert!(bad.help.starts_with(help), "{text}: {}", bad.help);
    }

    #[test]
    fn periods_are_units_or_several_of_them() {
        for (text, count, unit) in [
            ("hour", 1, Unit::Hour),
            ("1 month", 1, Unit::Month),
            ("1 months", 1, Unit::Month),
            ("months", 1, Unit::Month),
            ("3 months", 3, Unit::Month),
            ("2  weeks", 2, Unit::Week),
            ("6 hour", 6, Unit::Hour),
            ("71 years", 71, Unit::Year),
        ] {
            assert_eq!(every(text), Ok(Every { count, unit }), "{text}");
        }
        for (text, help) in [
            ("30d", "write `30 days`, or `month`;"),
            ("1d", "write `day`, or `month`;"),
            ("24h", "write `24 hours`, or `day`;"),
            ("10m", "the shortest period is an `hour`;"),
            ("2w", "write `2 weeks`"),
            ("1y", "write `year`"),
            ("3mo", "write `3 months`"),
            ("Monthly", "write `month`"),
            ("quarter", "write `3 months`"),
            ("mounth", "write `month`"),
            ("30", "write hour, day"),
            ("0 months", "write from 1 to 1000"),
            ("1001 hours", "write from 1 to 1000"),
            ("1000 years", "write a shorter period"),
            ("-1 months", "write a whole number"),
            ("1.5 months", "write a whole number"),
            ("", "write hour, day"),
        ] {
            rejected(text, every(text), help);
        }
    }

    #[test]
    fn anchors_are_days_of_a_month_a_week_or_a_year() {
        for (text, expected) in [
            ("1", Anchor::Day(1)),
            ("31", Anchor::Day(31)),
            ("monday", Anchor::Weekday(1)),
            ("sunday", Anchor::Weekday(7)),
            ("04-01", Anchor::MonthDay(4, 1)),
            ("02-29", Anchor::MonthDay(2, 29)),
        ] {
            assert_eq!(anchor(text), Ok(expected), "{text}");
        }
        for (text, help) in [
            ("0", "write a day from 1 to 31"),
            ("32", "write a day from 1 to 31"),
            ("mon", "write `monday`"),
            ("Friday", "write `friday`"),
            ("last", "write 31"),
            ("2026-04-01", "remove the year: write 04-01"),
            ("4-1", "write 04-01"),
            ("02-30", "write a month and a day"),
            ("13-01", "write a month and a day"),
            ("00-01", "write a month and a day"),
            ("1-2-3-4", "write a month and a day"),
            ("wedensday", "write `wednesday`"),
            ("someday", "write the day"),
            ("-1", "write the day"),
        ] {
            rejected(text, anchor(text), help);
        }
    }

    proptest! {
        #[test]
        fn printed_periods_are_read_back(count in 1u16..=70, unit in 0usize..5, day in 1u8..=28, month in 1u8..=12) {
            let written = Every { count, unit: Unit::ALL[unit] };
            prop_assert_eq!(every(&written.to_string()), Ok(written));
            for it in [Anchor::Day(day), Anchor::Weekday(day % 7 + 1), Anchor::MonthDay(month, day)] {
                prop_assert_eq!(anchor(&Start(it).to_string()), Ok(it));
            }
        }

        #[test]
        fn no_text_panics(text in ".{0,20}", dashed in "[0-9]{0,4}-[0-9é]{0,4}-?[0-9]{0,3}") {
            let _ = (every(&text), anchor(&text), anchor(&dashed));
        }
    }
}
