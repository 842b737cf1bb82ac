//! Checks that periods tile time, and begin when the clocks of their zone say so.
//!
//! A second, independent computation has to give the same periods. It takes the latest time that the
//! clocks have ever shown, and computes by civil arithmetic the number of the period of that time. Both
//! the time and the number only grow, so a period is the span in which the number stays the same.
#![allow(clippy::unwrap_used, clippy::expect_used)] // A failing helper fails its test.

mod cases;

use cases::cases;
use jiff::civil::{Date, DateTime, Weekday};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, ToSpan};
use proptest::prelude::*;
use tollgate_core::{Anchor, Calendar, Time, Unit, Zone};

/// Zones with unusual clocks. Some have offsets of half or quarter hours, or skipped a day. In others the
/// clocks change at midnight or a minute past, by half an hour or two hours, or by dates of Ramadan or of
/// another calendar.
const ZONES: [&str; 13] = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "Asia/Kathmandu",
    "Pacific/Apia",
    "America/St_Johns",
    "Africa/Casablanca",
    "Asia/Tehran",
    "Pacific/Chatham",
    "Antarctica/Troll",
    "America/Sao_Paulo",
    "Africa/Cairo",
];

/// The first instant of 2110.
const LATEST: u64 = 4_417_977_600_000_000;

fn timestamp(at: Time) -> Timestamp {
    Timestamp::from_microsecond(at.as_micros().cast_signed()).unwrap()
}

fn time(at: Timestamp) -> Time {
    Time::from_micros(u64::try_from(at.as_microsecond()).unwrap_or(0))
}

fn just_before(at: Time) -> Time {
    Time::from_micros(at.as_micros() - 1)
}

/// Returns the latest time that the clocks have shown up to `at`. Clocks are never set back by days.
fn latest_reading(zone: &TimeZone, at: Time) -> DateTime {
    let at = timestamp(at);
    let nanosecond = SignedDuration::from_nanos(1);
    let changes = zone.preceding(at.checked_add(nanosecond).unwrap());
    let recent = changes.take_while(|it| at.duration_since(it.timestamp()).as_hours() < 72);
    let before = recent.map(|it| zone.to_datetime(it.timestamp().checked_sub(nanosecond).unwrap()));
    before.fold(zone.to_datetime(at), DateTime::max)
}

fn days_since_epoch(date: Date) -> i64 {
    let epoch = Date::constant(1970, 1, 1);
    date.duration_since(epoch).as_hours() / 24
}

/// Returns the number of the period of a wall-clock time, counted from the epoch.
fn place(every: u16, unit: Unit, anchor: Anchor, reading: DateTime) -> i64 {
    let date = reading.date();
    let clipped = |day: u8, of: Date| day.cast_signed().min(of.days_in_month());
    let units = match (unit, anchor) {
        (Unit::Hour, _) => days_since_epoch(date) * 24 + i64::from(reading.hour()),
        (Unit::Day, _) => days_since_epoch(date),
        (Unit::Week, anchor) => {
            let first = match anchor {
                Anchor::Weekday(day) => Weekday::from_monday_one_offset(day.cast_signed()).unwrap(),
                _ => Weekday::Monday,
            };
            let passed = first.until(date.weekday());
            let start = date.checked_sub(i64::from(passed).days()).unwrap();
            let into = Weekday::Thursday.until(first);
            (days_since_epoch(start) - i64::from(into)) / 7
        }
        (Unit::Month, anchor) => {
            let day = if let Anchor::Day(day) = anchor {
                day
            } else {
                1
            };
            let months = i64::from(date.year()) * 12 + i64::from(date.month()) - 1;
            months - 1970 * 12 - i64::from(date.day() < clipped(day, date))
        }
        (Unit::Year, anchor) => {
            let (month, day) = match anchor {
                Anchor::MonthDay(month, day) => (month, day),
                _ => (1, 1),
            };
            let first = Date::new(date.year(), month.cast_signed(), 1).unwrap();
            let start = first.with().day(clipped(day, first)).build().unwrap();
            i64::from(date.year()) - 1970 - i64::from(date < start)
        }
    };
    units.div_euclid(every.into())
}

/// Checks the start, the end and the neighbours of the period that contains `at`.
fn holds_at(calendar: &Calendar, at: Time) {
    let zone = TimeZone::get(calendar.zone().name()).unwrap();
    let ((every, unit), anchor) = (calendar.unit(), calendar.anchor());
    let place_of = |at| place(every, unit, anchor, latest_reading(&zone, at));
    let period = calendar.period_at(at);
    assert!(period.start <= at && at < period.end, "{at:?}: {period:?}");
    assert_eq!(place_of(period.start), place_of(at), "{at:?}: {period:?}");
    let last = just_before(period.end);
    assert_eq!(place_of(last), place_of(at), "{at:?}: {period:?}");
    if period.start > Time::default() {
        let before = just_before(period.start);
        assert!(place_of(before) < place_of(at), "{at:?}: {period:?}");
        assert_eq!(
            calendar.period_at(before).end,
            period.start,
            "a gap before {at:?}"
        );
    }
    if period.end < Time::MAX {
        assert!(place_of(period.end) > place_of(at), "{at:?}: {period:?}");
        let next = calendar.period_at(period.end);
        assert_eq!(next.start, period.end, "a gap after {at:?}");
    }
    // The cached period and its neighbours are the same as those of a new calendar.
    let around = calendar.around(at);
    assert_eq!((around.period(), calendar.period_at(at)), (period, period));
    for pair in around.starts.windows(2).filter(|pair| pair[0] < pair[1]) {
        let fresh = Calendar::new(every, unit, anchor, calendar.zone().clone()).unwrap();
        let it = fresh.period_at(pair[0]);
        assert_eq!([it.start, it.end], [pair[0], pair[1]], "around {at:?}");
    }
}

fn unit_and_anchor() -> impl Strategy<Value = (Unit, Anchor)> {
    let month_days = (1..=12u8, 1..=31u8).prop_filter("there is no such day", |(month, day)| {
        Date::new(2024, month.cast_signed(), day.cast_signed()).is_ok()
    });
    prop_oneof![
        Just((Unit::Hour, Anchor::First)),
        Just((Unit::Day, Anchor::First)),
        prop_oneof![Just(Anchor::First), (1..=7u8).prop_map(Anchor::Weekday)]
            .prop_map(|it| (Unit::Week, it)),
        prop_oneof![Just(Anchor::First), (1..=31u8).prop_map(Anchor::Day)]
            .prop_map(|it| (Unit::Month, it)),
        prop_oneof![
            Just(Anchor::First),
            month_days.prop_map(|(month, day)| Anchor::MonthDay(month, day))
        ]
        .prop_map(|it| (Unit::Year, it)),
    ]
}

proptest! {
    #![proptest_config(cases(20_000, 20, "tests/proptest-regressions/calendars.txt"))]

    /// Checks any zone, unit, anchor and number of units, at any instant, and often where the clocks change.
    #[test]
    fn periods_tile_time_as_the_clocks_say(
        zone in prop::sample::select(ZONES.to_vec()),
        (unit, anchor) in unit_and_anchor(),
        every in prop_oneof![4 => Just(1u16), 3 => 2..=12u16, 1 => 1..=1000u16],
        at in 0..LATEST,
        at_change in prop::bool::weighted(0.6),
        off in prop_oneof![
            -1..=1i64,
            -7_300_000_000..=7_300_000_000i64,
            -90_000_000_000..=90_000_000_000i64,
        ],
    ) {
        let calendar = Calendar::new(every, unit, anchor, Zone::named(zone).unwrap()).unwrap();
        let mut at = Time::from_micros(at);
        if at_change
            && let Some(change) = TimeZone::get(zone).unwrap().following(timestamp(at)).next()
        {
            let micros = time(change.timestamp()).as_micros().saturating_add_signed(off);
            at = Time::from_micros(micros.min(LATEST));
        }
        holds_at(&calendar, at);
    }
}

/// Returns all possible anchors, each with its unit.
fn anchors() -> Vec<(Unit, Anchor)> {
    let first = [Unit::Hour, Unit::Day, Unit::Week, Unit::Month, Unit::Year];
    let first = first.map(|unit| (unit, Anchor::First));
    let weekdays = (1..=7).map(|day| (Unit::Week, Anchor::Weekday(day)));
    let days = (1..=31).map(|day| (Unit::Month, Anchor::Day(day)));
    let year = Date::constant(2024, 1, 1).series(1.day()).take(366);
    let dates = year.map(|date| {
        let (month, day) = (date.month().cast_unsigned(), date.day().cast_unsigned());
        (Unit::Year, Anchor::MonthDay(month, day))
    });
    first
        .into_iter()
        .chain(weekdays)
        .chain(days)
        .chain(dates)
        .collect()
}

/// Goes through all periods up to [`LATEST`]. Each must begin where the one before it ends, and when the
/// clocks say so. Returns the number of periods.
fn tile(name: &str, unit: Unit, anchor: Anchor) -> u32 {
    let calendar = Calendar::new(1, unit, anchor, Zone::named(name).unwrap()).unwrap();
    let zone = TimeZone::get(name).unwrap();
    let place_of = |at| place(1, unit, anchor, latest_reading(&zone, at));
    let (mut at, mut periods) = (Time::default(), 0);
    let mut here = place_of(at);
    while at.as_micros() < LATEST {
        let period = calendar.period_at(at);
        assert!(
            period.start == at && period.end > at,
            "{name}, {anchor:?}: {period:?}"
        );
        let last = place_of(just_before(period.end));
        let next = place_of(period.end);
        assert!(
            last == here && next > here,
            "{name}, {anchor:?}: {period:?}"
        );
        (at, here) = (period.end, next);
        periods += 1;
    }
    periods
}

/// Checks all anchors in all zones, over all years. Checks hours only in the long run, because there are so
/// many.
#[test]
fn no_period_of_a_century_is_missing() {
    std::thread::scope(|scope| {
        for zone in ZONES {
            scope.spawn(move || tile_all(zone));
        }
    });
}

fn tile_all(zone: &str) {
    let is_long = std::env::var_os("TOLLGATE_PROOF_CASES").is_some();
    for (unit, anchor) in anchors() {
        let expected = match unit {
            Unit::Hour if !is_long => continue,
            Unit::Hour => 51_134 * 24,
            Unit::Day => 51_134,
            Unit::Week => 7_305,
            Unit::Month => 1_680,
            Unit::Year => 140,
        };
        let periods = tile(zone, unit, anchor);
        // The count may be off by a few: the first and the last period are cut, and a zone may have skipped
        // a day. Each year, the clocks skip or repeat some hours.
        let off = if unit == Unit::Hour { 600 } else { 2 };
        assert!(
            periods.abs_diff(expected) <= off,
            "{zone}: {periods} of {unit:?}, {anchor:?}"
        );
    }
}

#[test]
fn a_skipped_day_is_not_a_period() {
    let days = Calendar::new(
        1,
        Unit::Day,
        Anchor::First,
        Zone::named("Pacific/Apia").unwrap(),
    );
    // In this zone, the day after the 29th of December 2011 was the 31st.
    let period = days
        .unwrap()
        .around(time("2011-12-30T09:00:00Z".parse().unwrap()));
    let expected = [
        "2011-12-29T10:00:00Z",
        "2011-12-30T10:00:00Z",
        "2011-12-31T10:00:00Z",
    ];
    let starts = expected.map(|it| time(it.parse().unwrap()));
    assert_eq!(period.starts[2..5], starts);
}

#[test]
fn a_skipped_hour_is_not_a_period_and_a_repeated_hour_is_one() {
    // In Troll the clocks change by two hours.
    let zone = Zone::named("Antarctica/Troll").unwrap();
    let hours = Calendar::new(1, Unit::Hour, Anchor::First, zone).unwrap();
    let period = |text: &str| {
        let period = hours.period_at(time(text.parse().unwrap()));
        [period.start, period.end].map(|it| timestamp(it).to_string())
    };
    assert_eq!(
        period("2026-03-29T00:59:59Z"),
        ["2026-03-29T00:00:00Z", "2026-03-29T01:00:00Z"]
    );
    assert_eq!(
        period("2026-03-29T01:00:00Z"),
        ["2026-03-29T01:00:00Z", "2026-03-29T02:00:00Z"]
    );
    // The clocks show the hour from two to three, and then once more the hours from one to three.
    assert_eq!(
        period("2026-10-25T02:30:00Z"),
        ["2026-10-25T00:00:00Z", "2026-10-25T03:00:00Z"]
    );
}

#[test]
fn only_equal_calendars_have_the_same_fingerprint() {
    let of = |every, unit, anchor, zone: &str| {
        Calendar::new(every, unit, anchor, Zone::named(zone).unwrap()).unwrap()
    };
    let month = of(1, Unit::Month, Anchor::Day(15), "Europe/Berlin");
    let same = of(1, Unit::Month, Anchor::Day(15), "Europe/Berlin");
    assert_eq!((&month, month.fingerprint()), (&same, same.fingerprint()));
    assert!(month.fingerprint() < 1 << 56);
    for other in [
        of(2, Unit::Month, Anchor::Day(15), "Europe/Berlin"),
        of(1, Unit::Month, Anchor::Day(14), "Europe/Berlin"),
        of(1, Unit::Month, Anchor::First, "Europe/Berlin"),
        of(1, Unit::Week, Anchor::First, "Europe/Berlin"),
        of(1, Unit::Month, Anchor::Day(15), "Europe/Vienna"),
    ] {
        assert_ne!(month, other);
        assert_ne!(month.fingerprint(), other.fingerprint());
    }
    // Stored states contain the fingerprint: it must never change.
    let days = of(1, Unit::Day, Anchor::First, "UTC");
    assert_eq!(days.fingerprint(), 67_039_514_459_917_413);
}
