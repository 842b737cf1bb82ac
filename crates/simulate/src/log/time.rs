//! The times of log lines, as microseconds since 1970.

/// A time, and whether it was written without a fraction of a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) micros: u64,
    pub(super) is_whole: bool,
}

const SECOND: i64 = 1_000_000;
/// The year 2000, in seconds since 1970. A smaller number is a duration.
const YEAR_2000: u64 = 946_684_800;

/// Reads the time of a line in any of the usual forms.
pub(super) fn any(text: &str) -> Option<Stamp> {
    let bytes = text.as_bytes();
    match bytes {
        [_, _, b'/', ..] => clf(bytes),
        [_, _, _, _, b'-', ..] => iso(bytes),
        _ => epoch(text),
    }
}

/// Reads `10/Oct/2026:13:55:36 -0700`.
pub(super) fn clf(bytes: &[u8]) -> Option<Stamp> {
    let [day, month, year, time] = [0..2, 3..6, 7..11, 12..20].map(|part| bytes.get(part));
    let month = match month? {
        b"Jan" => 1,
        b"Feb" => 2,
        b"Mar" => 3,
        b"Apr" => 4,
        b"May" => 5,
        b"Jun" => 6,
        b"Jul" => 7,
        b"Aug" => 8,
        b"Sep" => 9,
        b"Oct" => 10,
        b"Nov" => 11,
        b"Dec" => 12,
        _ => return None,
    };
    let date = (digits(year?)?, month, digits(day?)?);
    let offset = bytes.get(20..).unwrap_or_default().trim_ascii();
    stamp(date, seconds_of_day(time?)?, None, offset_seconds(offset)?)
}

/// Reads `2026-10-10T13:55:36.123Z`, or with an offset such as `+02:00`. A space may separate date and time.
fn iso(bytes: &[u8]) -> Option<Stamp> {
    let [year, month, day, time] = [0..4, 5..7, 8..10, 11..19].map(|part| bytes.get(part));
    if !matches!(bytes.get(10), Some(b'T' | b't' | b' ')) || bytes.get(7) != Some(&b'-') {
        return None;
    }
    let date = (digits(year?)?, digits(month?)?, digits(day?)?);
    let rest = bytes.get(19..).unwrap_or_default();
    let (fraction, offset) = match rest {
        [b'.' | b',', rest @ ..] => {
            let end = rest.iter().position(|byte| !byte.is_ascii_digit());
            let (fraction, offset) = rest.split_at(end.unwrap_or(rest.len()));
            (Some(fraction_micros(fraction)?), offset)
        }
        _ => (None, rest),
    };
    stamp(
        date,
        seconds_of_day(time?)?,
        fraction,
        offset_seconds(offset)?,
    )
}

/// Reads a number since 1970: seconds with an optional fraction, milliseconds, microseconds or nanoseconds, by
/// its number of digits. Numbers of seconds before the year 2000 are durations.
fn epoch(text: &str) -> Option<Stamp> {
    let (whole, fraction) = match text.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (text, None),
    };
    let number: u64 = whole.parse().ok()?;
    if whole.len() <= 10 && number < YEAR_2000 {
        return None;
    }
    let micros = match (whole.len(), fraction) {
        (1..=10, None) => number.checked_mul(1_000_000)?,
        (1..=10, Some(fraction)) => {
            let fraction = u64::try_from(fraction_micros(fraction.as_bytes())?).ok()?;
            number.checked_mul(1_000_000)?.checked_add(fraction)?
        }
        (11..=13, _) => number.checked_mul(1_000)?,
        (14..=16, _) => number,
        (17..=19, _) => number / 1_000,
        _ => return None,
    };
    let is_whole = whole.len() <= 10 && fraction.is_none();
    Some(Stamp { micros, is_whole })
}

fn stamp(
    (year, month, day): (i64, i64, i64),
    seconds: i64,
    fraction: Option<i64>,
    offset: i64,
) -> Option<Stamp> {
    if !(1970..=2111).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let seconds = days(year, month, day) * 86_400 + seconds - offset;
    let micros = seconds * SECOND + fraction.unwrap_or(0);
    Some(Stamp {
        micros: u64::try_from(micros).ok()?,
        is_whole: fraction.is_none(),
    })
}

/// Returns the days since 1970-01-01 of a date in the Gregorian calendar. Years start in March here, so that
/// the leap day is the last day of a year.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let century = year.div_euclid(100);
    year * 365 + year.div_euclid(4) - century + century.div_euclid(4) + of_year - 719_468
}

/// Reads `13:55:36`. A leap second counts as the last second of its minute.
fn seconds_of_day(text: &[u8]) -> Option<i64> {
    let &[h1, h2, b':', m1, m2, b':', s1, s2] = text else {
        return None;
    };
    let (hour, minute) = (digits(&[h1, h2])?, digits(&[m1, m2])?);
    let second = digits(&[s1, s2])?.min(59);
    (hour < 24 && minute < 60).then_some(hour * 3600 + minute * 60 + second)
}

/// Reads `Z`, `+0200`, `+02:00` or nothing, which is UTC.
fn offset_seconds(text: &[u8]) -> Option<i64> {
    let (sign, hours, minutes) = match text {
        [] | b"Z" | b"z" => return Some(0),
        &[sign, h1, h2, m1, m2] | &[sign, h1, h2, b':', m1, m2] => {
            (sign, digits(&[h1, h2])?, digits(&[m1, m2])?)
        }
        _ => return None,
    };
    let seconds = hours * 3600 + minutes * 60;
    match sign {
        b'+' => Some(seconds),
        b'-' => Some(-seconds),
        _ => None,
    }
}

/// Reads the digits after the point. Digits after the sixth are cut.
fn fraction_micros(text: &[u8]) -> Option<i64> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let digit = |place: usize| text.get(place).map_or(0, |byte| i64::from(byte - b'0'));
    Some((0..6).fold(0, |micros, place| micros * 10 + digit(place)))
}

fn digits(text: &[u8]) -> Option<i64> {
    text.iter().try_fold(0, |number, byte| {
        byte.is_ascii_digit()
            .then(|| number * 10 + i64::from(byte - b'0'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Option<(u64, bool)> {
        any(text).map(|it| (it.micros, it.is_whole))
    }

    /// Reads a time with a library.
    fn known(text: &str) -> u64 {
        let time: jiff::Timestamp = text.parse().unwrap();
        u64::try_from(time.as_microsecond()).unwrap()
    }

    #[test]
    fn usual_forms_are_read() {
        let noon = known("2026-10-10T20:55:36Z");
        assert_eq!(at("10/Oct/2026:13:55:36 -0700"), Some((noon, true)));
        assert_eq!(at("10/Oct/2026:20:55:36"), Some((noon, true)));
        assert_eq!(at("2026-10-10T20:55:36Z"), Some((noon, true)));
        assert_eq!(at("2026-10-10 22:55:36+02:00"), Some((noon, true)));
        let fraction = (noon + 123_456, false);
        assert_eq!(at("2026-10-10T20:55:36.123456789Z"), Some(fraction));
        let seconds = noon / 1_000_000;
        assert_eq!(at(&format!("{seconds}")), Some((noon, true)));
        assert_eq!(at(&format!("{seconds}.5")), Some((noon + 500_000, false)));
        assert_eq!(at(&format!("{seconds}123")), Some((noon + 123_000, false)));
        assert_eq!(at(&format!("{seconds}123456")), Some(fraction));
        assert_eq!(at(&format!("{seconds}123456789")), Some(fraction));
    }

    #[test]
    fn dates_agree_with_a_library() {
        for year in 1970..2112 {
            for (month, day) in [(1, 1), (2, 28), (3, 1), (6, 30), (12, 31)] {
                let text = format!("{year}-{month:02}-{day:02}T01:02:03Z");
                assert_eq!(at(&text), Some((known(&text), true)), "{text}");
            }
        }
        for day in ["2000-02-29", "2024-02-29"] {
            let text = format!("{day}T00:00:00Z");
            assert_eq!(at(&text), Some((known(&text), true)), "{text}");
        }
    }

    #[test]
    fn other_texts_are_rejected() {
        for text in [
            "",
            "-",
            "yesterday",
            "10/Foo/2026:13:55:36 -0700",
            "10/Oct/2026:25:55:36 -0700",
            "10/Oct/2026",
            "2026-13-10T20:55:36Z",
            "2026-10-10",
            "2026-10-10T20:55:36 UTC",
            "1969-12-31T23:59:59Z",
            "123456789012345678901",
            "1e9",
            "-5",
            "0.005",
            "12",
            "946684799",
        ] {
            assert_eq!(at(text), None, "{text}");
        }
    }
}
