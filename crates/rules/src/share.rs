//! Amounts that may also be a share of a limit: grace, carry-over, overdrafts.

use std::fmt;

use tollgate_core::{CarryOver, MAX_AMOUNT};

use crate::document::{
    BadValue, Node, Problems, Read, number, number_or, one_of, percent, percentage, schema,
    suggestion, wanted, whole,
};

const HELP: &str = "write an amount such as 100, or a share of the limit such as 10%";

/// An amount, or a share of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Share {
    Amount(u64),
    /// In hundredths of a percent.
    Hundredths(u32),
}

impl Share {
    pub(crate) const NOTHING: Share = Share::Amount(0);

    /// Returns the amount for `limit`. A share is rounded down to whole units.
    pub(crate) fn of(self, limit: u64) -> u64 {
        match self {
            Share::Amount(amount) => amount,
            Share::Hundredths(hundredths) => {
                let share = u128::from(limit) * u128::from(hundredths) / 10_000;
                u64::try_from(share).unwrap_or(u64::MAX)
            }
        }
    }

    /// Reads an amount, or a percentage of at most `most`.
    fn parse(text: &str, most: u32) -> Result<Share, BadValue> {
        if text.ends_with('%') {
            return percent(text, most).map(Share::Hundredths);
        }
        match whole(text) {
            Ok(amount) if amount <= MAX_AMOUNT => Ok(Share::Amount(amount)),
            Ok(amount) => {
                let message = format!("{amount} is above the largest amount, {MAX_AMOUNT}");
                Err(BadValue::new(
                    message,
                    format!("write at most {MAX_AMOUNT}"),
                ))
            }
            Err(bad) => Err(BadValue::new(bad.message, HELP)),
        }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Share::Amount(amount) => amount.fmt(f),
            Share::Hundredths(hundredths) => f.write_str(&percentage(*hundredths)),
        }
    }
}

/// How much a quota admits beyond its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grace(pub(crate) Share);

impl fmt::Display for Grace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Read for Grace {
    fn read(node: &Node, problems: &mut Problems<'_>) -> Option<Grace> {
        let parse = |text: &str| Share::parse(text, 1000);
        number(node, "an amount", HELP, parse, problems).map(Grace)
    }
}
schema!(Grace, "Grace", _generator => { "anyOf": [
    { "type": "integer", "minimum": 0 },
    { "type": "string", "pattern": r"^([0-9]+(_[0-9]+)*|[0-9]{1,4}(\.[0-9]{1,2})?%)$", "examples": ["10%"] },
] });

/// The value of the field `carry_over`: how counts carry over when numbers change, or how much of a
/// quota's period goes into the next period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carried {
    Counts(CarryOver),
    Most(Share),
}

impl fmt::Display for Carried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Carried::Counts(counts) => f.write_str(counts.name()),
            Carried::Most(share) => share.fmt(f),
        }
    }
}

impl Read for Carried {
    fn read(node: &Node, problems: &mut Problems<'_>) -> Option<Carried> {
        let text = node.text().unwrap_or_default();
        if text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.')) {
            let parse = |text: &str| Share::parse(text, 100);
            return number(node, "an amount", "", parse, problems).map(Carried::Most);
        }
        let all = [CarryOver::Keep, CarryOver::Proportional, CarryOver::Reset];
        let word = all.into_iter().find(|it| it.name() == text);
        if word.is_none() {
            let words = all.map(CarryOver::name);
            let quota = "or, on a quota, how much goes into the next period, such as 10%";
            let help = suggestion(text, words, format!("write {}; {quota}", one_of(words)));
            wanted("a way to carry over", &help, node, problems);
        }
        word.map(Carried::Counts)
    }
}
schema!(Carried, "CarryOver", _generator => { "anyOf": [
    { "enum": ["keep", "proportional", "reset"] },
    { "type": "integer", "minimum": 0 },
    { "type": "string", "pattern": r"^([0-9]+(_[0-9]+)*|[0-9]{1,3}(\.[0-9]{1,2})?%)$", "examples": ["10%"] },
] });

/// How far an allowance may be overdrawn when a reservation is settled for more than it held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overdraft {
    Unlimited,
    Most(Share),
}

impl Overdraft {
    /// Returns the amount for `limit`.
    #[inline]
    pub(crate) fn of(self, limit: impl FnOnce() -> u64) -> u64 {
        match self {
            Overdraft::Unlimited => MAX_AMOUNT,
            Overdraft::Most(Share::Amount(amount)) => amount.min(MAX_AMOUNT),
            Overdraft::Most(share) => share.of(limit()).min(MAX_AMOUNT),
        }
    }
}

impl fmt::Display for Overdraft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Overdraft::Unlimited => f.write_str("unlimited"),
            Overdraft::Most(share) => share.fmt(f),
        }
    }
}

impl Read for Overdraft {
    fn read(node: &Node, problems: &mut Problems<'_>) -> Option<Overdraft> {
        let help = "write an amount such as 100, a share of the limit such as 10%, or `unlimited`";
        let parse = |text: &str| {
            let parsed = Share::parse(text, 1000);
            parsed.map_err(|bad| match text.ends_with('%') {
                true => bad,
                false => BadValue::new(bad.message, help),
            })
        };
        let most = number_or("unlimited", node, ("an amount", help), parse, problems)?;
        Some(most.map_or(Overdraft::Unlimited, Overdraft::Most))
    }
}
schema!(Overdraft, "Overdraft", _generator => { "anyOf": [
    { "type": "integer", "minimum": 0 },
    { "type": "string", "pattern": r"^([0-9]+(_[0-9]+)*|[0-9]{1,4}(\.[0-9]{1,2})?%|unlimited)$", "examples": ["10%", "unlimited"] },
] });

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_rounded_down_and_never_overflow() {
        assert_eq!(Share::Hundredths(1_000).of(1_005), 100);
        assert_eq!(Share::Hundredths(1).of(9_999), 0);
        assert_eq!(Share::Hundredths(100_000).of(MAX_AMOUNT), MAX_AMOUNT * 10);
        assert_eq!(Share::Amount(7).of(0), 7);
        assert_eq!(Overdraft::Unlimited.of(|| 1), MAX_AMOUNT);
        let tenfold = Overdraft::Most(Share::Hundredths(100_000));
        assert_eq!(tenfold.of(|| MAX_AMOUNT), MAX_AMOUNT);
    }

    #[test]
    fn shares_are_amounts_or_percentages() {
        assert_eq!(Share::parse("1_000", 100), Ok(Share::Amount(1_000)));
        assert_eq!(Share::parse("2.5%", 100), Ok(Share::Hundredths(250)));
        for wrong in ["", "%", "-1", "-1%", "101%", "1.5", "ten"] {
            assert!(Share::parse(wrong, 100).is_err(), "{wrong}");
        }
        assert!(Share::parse("4503599627370496", 100).is_err());
    }
}
