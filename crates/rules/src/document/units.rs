//! The syntax of numbers: whole numbers, durations, rates, percentages.
//!
//! All numbers are exact: nothing is rounded, and a number that does not fit is rejected with the
//! reason.

use std::fmt;

use tollgate_core::{Rate, Span};

use super::{BadValue, redacted};

const UNITS: [(&str, u64); 6] = [
    ("us", 1),
    ("ms", 1_000),
    ("s", 1_000_000),
    ("m", 60_000_000),
    ("h", 3_600_000_000),
    ("d", 86_400_000_000),
];

/// Other spellings of the units in `UNITS`.
const LONG_UNITS: [(&[&str], &str); 6] = [
    (&["usec", "µs"], "us"),
    (&["msec", "millis"], "ms"),
    (&["S", "sec", "secs", "second", "seconds"], "s"),
    (&["M", "min", "mins", "minute", "minutes"], "m"),
    (&["H", "hr", "hour", "hours"], "h"),
    (&["D", "day", "days"], "d"),
];

const WHOLE_HELP: &str = "write a whole number such as 100 or 1_000_000";
const SPAN_HELP: &str = "write a number and a unit: us, ms, s, m, h or d, such as 30s or 10m";
const RATE_HELP: &str = "write an amount per time, such as 100/s, 60/m or 5/10m";

/// Reads a whole number. `_` may separate digits, as in `1_000`.
pub fn whole(text: &str) -> Result<u64, BadValue> {
    let digits = text
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'_');
    let grouped = !text.starts_with('_') && !text.ends_with('_') && !text.contains("__");
    if text.is_empty() || !digits || !grouped {
        let what = match text.strip_prefix('-') {
            Some(rest) if whole(rest).is_ok() => format!("`{text}` is negative"),
            _ => format!("`{}` is not a whole number", Short(text)),
        };
        return Err(BadValue::new(what, WHOLE_HELP));
    }
    text.replace('_', "").parse().map_err(|_| {
        let help = "write a smaller number, or `unlimited` for no limit";
        BadValue::new(format!("`{}` is too large", Short(text)), help)
    })
}

/// Reads a duration: `50ms`, `30s`, `10m`, `1h`, `7d`, `250us`.
pub fn span(text: &str) -> Result<Span, BadValue> {
    let (amount, unit) = split_unit(text);
    if amount.is_empty() {
        let message = format!("`{}` is not a duration", Short(text));
        return Err(BadValue::new(message, SPAN_HELP));
    }
    scaled(text, whole(amount)?, unit)
}

/// Splits a text into the digits at its start and the unit after them.
fn split_unit(text: &str) -> (&str, &str) {
    let unit = text.find(|c: char| !c.is_ascii_digit() && c != '_');
    text.split_at(unit.unwrap_or(text.len()))
}

/// Reads a number of bytes: `1GB`, `512MiB`, `1_000_000`.
pub(super) fn size(text: &str) -> Result<u64, BadValue> {
    let help = "write a number and a unit: KB, MB, GB or TB, or KiB, MiB, GiB or TiB";
    let (amount, unit) = split_unit(text);
    let bad = |what: &str| BadValue::new(format!("`{}` {what}", Short(text)), help);
    let bytes = match unit {
        "" | "B" => 1,
        "kB" | "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        _ => return Err(bad("is not a size")),
    };
    let amount = whole(amount).map_err(|_| bad("is not a size"))?;
    amount.checked_mul(bytes).ok_or_else(|| bad("is too large"))
}

/// Reads a rate, which is an amount per time: `10/s`.
pub fn rate(text: &str) -> Result<Rate, BadValue> {
    let Some((amount, period)) = text.split_once('/') else {
        let help = match whole(text) {
            Ok(_) => format!("add the time: write {text}/s or {text}/m"),
            Err(_) => RATE_HELP.to_owned(),
        };
        let message = format!("`{}` is not a rate", Short(text));
        return Err(BadValue::new(message, help));
    };
    let amount = whole(amount).map_err(|bad| BadValue::new(bad.message, RATE_HELP))?;
    let period = match period.starts_with(|c: char| c.is_ascii_digit()) {
        true => span(period),
        false => scaled(period, 1, period),
    };
    Ok(Rate::new(amount, period?)?)
}

/// Reads a percentage with up to two decimals, at most `max` percent. Returns hundredths of a percent.
pub fn percent(text: &str, max: u32) -> Result<u32, BadValue> {
    let help = format!("write a percentage from 0% to {max}%, such as 25% or 0.5%");
    let bad = |what: &str| BadValue::new(format!("`{}` {what}", Short(text)), help.as_str());
    let Some(number) = text.strip_suffix('%') else {
        let mut bad = bad("is not a percentage");
        if number_of_percent(text).is_some() {
            bad.help = format!("write {text}%");
        }
        return Err(bad);
    };
    match number_of_percent(number) {
        Some(hundredths) if hundredths <= max * 100 => Ok(hundredths),
        Some(_) => Err(bad(&format!("is above {max}%"))),
        None => Err(bad("is not a percentage")),
    }
}

/// Writes hundredths of a percent as a percentage without needless zeros.
#[must_use]
pub fn percentage(hundredths: u32) -> String {
    let text = format!("{}.{:02}", hundredths / 100, hundredths % 100);
    format!("{}%", text.trim_end_matches('0').trim_end_matches('.'))
}

fn number_of_percent(number: &str) -> Option<u32> {
    let (units, decimals) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if !(1..=6).contains(&units.len()) || !(1..=2).contains(&decimals.len()) {
        return None;
    }
    if !digits(units) || !digits(decimals) {
        return None;
    }
    let decimals: u32 = format!("{decimals:0<2}").parse().ok()?;
    Some(units.parse::<u32>().ok()? * 100 + decimals)
}

fn scaled(text: &str, amount: u64, unit: &str) -> Result<Span, BadValue> {
    let Some((_, micros)) = UNITS.iter().find(|(name, _)| *name == unit) else {
        if unit.is_empty() {
            let help = format!("write {amount}s, {amount}m or {amount}h");
            return Err(BadValue::new(
                format!("`{}` has no unit", Short(text)),
                help,
            ));
        }
        let help = match LONG_UNITS.iter().find(|(long, _)| long.contains(&unit)) {
            Some((_, short)) => format!("write `{short}`"),
            None => "the units are us, ms, s, m, h and d".to_owned(),
        };
        let message = format!("`{}` is not a unit of time", Short(unit));
        return Err(BadValue::new(message, help));
    };
    let micros = amount.checked_mul(*micros).ok_or_else(|| {
        let message = format!("`{}` is too long", Short(text));
        BadValue::new(message, "write a shorter time")
    })?;
    Ok(Span::from_micros(micros))
}

/// Shows a text cut to a length that fits into a sentence, without parts that may be secret.
#[derive(Debug)]
pub struct Short<'t>(pub &'t str);

impl fmt::Display for Short<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = redacted(self.0);
        match text.char_indices().nth(40) {
            None => f.write_str(&text),
            Some((end, _)) => write!(f, "{}…", &text[..end]),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn whole_numbers_may_be_grouped() {
        assert_eq!(whole("1_000_000"), Ok(1_000_000));
        assert_eq!(whole("0"), Ok(0));
        for wrong in ["", "_1", "1_", "1__0", "1.5", "-3", "ten", "1e3"] {
            assert!(whole(wrong).is_err(), "{wrong}");
        }
        assert!(whole("99999999999999999999").is_err());
    }

    #[test]
    fn durations_and_rates_read_as_documented() {
        let micros = |text: &str| span(text).map(Span::as_micros).ok();
        assert_eq!(micros("250us"), Some(250));
        assert_eq!(micros("50ms"), Some(50_000));
        assert_eq!(micros("30s"), Some(30_000_000));
        assert_eq!(micros("7d"), Some(7 * 86_400_000_000));
        let parts = |text: &str| {
            let rate = rate(text).ok()?;
            Some((rate.amount(), rate.period().as_micros()))
        };
        assert_eq!(parts("100/s"), Some((100, 1_000_000)));
        assert_eq!(parts("5/10m"), Some((5, 600_000_000)));
        assert_eq!(parts("2/500ms"), Some((2, 500_000)));
        for wrong in [
            "", "100", "100/", "/s", "100/sec", "1.5/s", "100/s/s", "0/s", "1/0s", "-1/s",
        ] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
        for wrong in ["", "s", "10", "10 s", "1.5s", "10x", "99999999999999d"] {
            assert!(span(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(size("1GB"), Ok(1_000_000_000));
        assert_eq!(size("64KiB"), Ok(65_536));
        assert_eq!(size("1_000"), Ok(1_000));
        for wrong in ["", "GB", "1gb", "1.5GB", "-1", "1 GB", "99999999TB"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn percentages_have_two_decimals_at_most() {
        let percent = |text: &str| super::percent(text, 100);
        assert_eq!(percent("0%"), Ok(0));
        assert_eq!(percent("0.5%"), Ok(50));
        assert_eq!(percent("12.34%"), Ok(1234));
        assert_eq!(percent("100%"), Ok(10_000));
        for wrong in [
            "", "%", "25", "100.01%", "101%", "656%", "999%", "1.234%", "-1%", "1.%", ".5%",
        ] {
            assert!(percent(wrong).is_err(), "{wrong}");
        }
        assert_eq!(super::percent("1000%", 1000), Ok(100_000));
        assert_eq!(super::percent("656.5%", 1000), Ok(65_650));
        assert!(super::percent("1000.01%", 1000).is_err());
    }

    proptest! {
        #[test]
        fn printed_numbers_are_read_back(amount in 1u64..1_000_000, micros in 1u64..10_000_000_000_000) {
            let period = Span::from_micros(micros);
            prop_assert_eq!(span(&period.to_string()), Ok(period));
            let written = Rate::new(amount, period).unwrap();
            prop_assert_eq!(rate(&written.to_string()), Ok(written));
            prop_assert_eq!(whole(&amount.to_string()), Ok(amount));
        }

        #[test]
        fn no_text_makes_a_number_panic(text in ".{0,40}") {
            let _ = (whole(&text), span(&text), rate(&text), percent(&text, 100), size(&text));
        }
    }
}
