//! Records as text, for what outlives a process: a line for the hold and one for each charge.
//!
//! Reading checks everything, as the text may come from a disk or a server that others write to: what is
//! wrong is an error that names the place, and never a limit out of range.

use std::fmt::{self, Display, Formatter, Write};
use std::str::FromStr;
use std::sync::Arc;

use tollgate_core::{
    CarryOver, Enforcement, HoldIdError, Key, Limit, LimitTextError, MAX_AMOUNT, Tag, Time, Token,
};

use super::record::{HeldCharge, HoldRecord, HoldState, Purpose};
use super::{MAX_CHARGES, MAX_MEMO, MAX_OWNER};

/// How every text begins. Another layout has another.
const START: &str = "hold/1";
/// The longest rule name that is read, as it is written.
const MAX_WORD: usize = 2048;

/// A text that is no record of a hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// It begins otherwise.
    #[error("a record begins with `{START}`: this is none, or of another version")]
    Start,
    /// The id is none.
    #[error("the record's id: {0}")]
    Id(#[from] HoldIdError),
    /// Something is missing, or something else stands there.
    #[error("line {line} of the record: {wanted} is missing or wrong")]
    Word {
        /// The line, from 1.
        line: usize,
        /// What should stand there.
        wanted: &'static str,
    },
    /// A limit is none.
    #[error("line {line} of the record: {error}")]
    Limit {
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        error: LimitTextError,
    },
    /// It has more charges than a hold may have.
    #[error("a record has at most {MAX_CHARGES} charges")]
    TooMany,
}

impl HoldRecord {
    /// The record as text.
    #[must_use]
    pub fn to_text(&self) -> String {
        let purpose = match self.purpose {
            Purpose::Reservation => "reservation",
            Purpose::Lease => "lease",
        };
        let state = match self.state {
            HoldState::Reserved => "reserved",
            HoldState::Consumed => "consumed",
            HoldState::Released => "released",
            HoldState::Expired => "expired",
        };
        // Room for most, as this is written for every hold that leaves the process.
        let mut text = String::with_capacity(192 + self.memo.len() + 256 * self.charges.len());
        // Writing to a string does not fail, here and below.
        let _ = write!(text, "{START} {} {purpose} {state} {}", self.id, self.units);
        let _ = match self.actual {
            Some(actual) => write!(text, " {actual}"),
            None => write!(text, " -"),
        };
        let _ = write!(
            text,
            " {} {} {:016x} {} {:032x} {} {}",
            self.charged_at.as_micros(),
            self.expires_at.as_micros(),
            self.fingerprint,
            self.fence,
            self.token.bits(),
            Escaped(&self.owner),
            Escaped(&self.memo),
        );
        for charge in &self.charges {
            let carry_over = match charge.carry_over {
                CarryOver::Keep => "keep",
                CarryOver::Proportional => "proportional",
                CarryOver::Reset => "reset",
            };
            let _ = write!(
                text,
                "\n{:032x} {:032x} {} {:08x} {}",
                charge.key.bits(),
                charge.overflow.bits(),
                Escaped(&charge.rule),
                charge.tag.number(),
                charge.cost,
            );
            let _ = match charge.enforcement {
                Enforcement::Enforce => write!(text, " enforce"),
                Enforcement::Shadow => write!(text, " shadow"),
                Enforcement::Instead(place) => write!(text, " instead-{place}"),
            };
            let _ = write!(
                text,
                " {carry_over} {} {} {} {}",
                if charge.ledgered { "ledgered" } else { "plain" },
                charge.overdraft,
                charge.taken,
                charge.limit.to_text(),
            );
        }
        text
    }

    /// The record of a text.
    ///
    /// # Errors
    /// If it is not what [`HoldRecord::to_text`] writes.
    pub fn from_text(text: &str) -> Result<HoldRecord, RecordError> {
        let mut lines = text.split('\n');
        let first = lines.next().unwrap_or_default();
        let first = first.strip_prefix(START).ok_or(RecordError::Start)?;
        let first = first.strip_prefix(' ').ok_or(RecordError::Start)?;
        let mut words = Words::new(1, first);
        let mut record = HoldRecord {
            id: words.next("an id")?.parse()?,
            purpose: words.one_of("a purpose", |word| match word {
                "reservation" => Some(Purpose::Reservation),
                "lease" => Some(Purpose::Lease),
                _ => None,
            })?,
            state: words.one_of("a state", |word| match word {
                "reserved" => Some(HoldState::Reserved),
                "consumed" => Some(HoldState::Consumed),
                "released" => Some(HoldState::Released),
                "expired" => Some(HoldState::Expired),
                _ => None,
            })?,
            units: words.number("the units")?,
            actual: words.one_of("what was used", |word| match word {
                "-" => Some(None),
                number => digits(number).map(Some),
            })?,
            charged_at: words.time("when it was charged")?,
            expires_at: words.time("when it expires")?,
            fingerprint: words.hex("a fingerprint", 16)?,
            fence: words.number("a fence")?,
            token: Token::new(words.hex("a token", 32)?),
            owner: words.unescaped("an owner", MAX_OWNER)?,
            memo: words.unescaped("a memo", MAX_MEMO)?,
            charges: Vec::new(),
        };
        words.end()?;
        if (record.state == HoldState::Consumed) != record.actual.is_some() {
            return Err(words.wrong("what was used"));
        }
        for (number, line) in lines.enumerate() {
            if number == MAX_CHARGES {
                return Err(RecordError::TooMany);
            }
            record.charges.push(charge(number + 2, line)?);
        }
        Ok(record)
    }
}

fn charge(number: usize, line: &str) -> Result<HeldCharge, RecordError> {
    let mut words = Words::new(number, line);
    let key = Key::from_bits(words.hex("a key", 32)?);
    let overflow = Key::from_bits(words.hex("the key that strangers share", 32)?);
    let rule = words.unescaped("a rule", MAX_WORD)?;
    let tag: u32 = words.hex("a tag", 8)?;
    let cost = words.number("a cost")?;
    let enforcement = words.one_of("whether it enforces", |word| match word {
        "enforce" => Some(Enforcement::Enforce),
        "shadow" => Some(Enforcement::Shadow),
        other => digits(other.strip_prefix("instead-")?).map(Enforcement::Instead),
    })?;
    let carry_over = words.one_of("how it is carried over", |word| match word {
        "keep" => Some(CarryOver::Keep),
        "proportional" => Some(CarryOver::Proportional),
        "reset" => Some(CarryOver::Reset),
        _ => None,
    })?;
    let ledgered = words.one_of("whether it is ledgered", |word| match word {
        "ledgered" => Some(true),
        "plain" => Some(false),
        _ => None,
    })?;
    let overdraft = words.number("an overdraft")?;
    if overdraft > MAX_AMOUNT {
        return Err(words.wrong("an overdraft"));
    }
    let taken = words.number("what was taken")?;
    let limit = Limit::from_text(words.rest).map_err(|error| RecordError::Limit {
        line: number,
        error,
    })?;
    Ok(HeldCharge {
        key,
        overflow,
        rule,
        tag: Tag::new(tag),
        limit,
        cost,
        enforcement,
        carry_over,
        ledgered,
        overdraft,
        taken,
    })
}

/// What is left of a line.
struct Words<'t> {
    line: usize,
    rest: &'t str,
}

impl<'t> Words<'t> {
    fn new(line: usize, rest: &'t str) -> Words<'t> {
        Words { line, rest }
    }

    fn wrong(&self, wanted: &'static str) -> RecordError {
        RecordError::Word {
            line: self.line,
            wanted,
        }
    }

    fn next(&mut self, wanted: &'static str) -> Result<&'t str, RecordError> {
        if self.rest.is_empty() {
            return Err(self.wrong(wanted));
        }
        let (word, rest) = self.rest.split_once(' ').unwrap_or((self.rest, ""));
        self.rest = rest;
        Ok(word)
    }

    fn one_of<T>(
        &mut self,
        wanted: &'static str,
        read: impl FnOnce(&'t str) -> Option<T>,
    ) -> Result<T, RecordError> {
        let word = self.next(wanted)?;
        read(word).ok_or_else(|| self.wrong(wanted))
    }

    fn number(&mut self, wanted: &'static str) -> Result<u64, RecordError> {
        self.one_of(wanted, digits)
    }

    fn time(&mut self, wanted: &'static str) -> Result<Time, RecordError> {
        self.number(wanted).map(Time::from_micros)
    }

    fn hex<N: TryFrom<u128>>(
        &mut self,
        wanted: &'static str,
        length: usize,
    ) -> Result<N, RecordError> {
        self.one_of(wanted, |word| {
            let is_hex = word.bytes().all(|byte| byte.is_ascii_hexdigit());
            let number = (word.len() == length && is_hex).then_some(word)?;
            N::try_from(u128::from_str_radix(number, 16).ok()?).ok()
        })
    }

    fn unescaped(&mut self, wanted: &'static str, most: usize) -> Result<Arc<str>, RecordError> {
        self.one_of(wanted, |word| {
            let text = unescaped(word)?;
            (text.len() <= most).then(|| text.into())
        })
    }

    fn end(&self) -> Result<(), RecordError> {
        match self.rest {
            "" => Ok(()),
            _ => Err(self.wrong("the end of the line")),
        }
    }
}

fn digits<N: FromStr>(word: &str) -> Option<N> {
    let is_number = word.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| word.parse().ok()).flatten()
}

/// A text as one word: `.` before it, and what is no plain letter as its bytes.
struct Escaped<'t>(&'t str);

impl Display for Escaped<'_> {
    fn fmt(&self, to: &mut Formatter<'_>) -> fmt::Result {
        to.write_char('.')?;
        for byte in self.0.bytes() {
            if byte.is_ascii_graphic() && byte != b'%' {
                to.write_char(byte.into())?;
            } else {
                write!(to, "%{byte:02x}")?;
            }
        }
        Ok(())
    }
}

fn unescaped(word: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word.strip_prefix('.')?.as_bytes();
    while let [first, others @ ..] = rest {
        rest = others;
        if *first == b'%' {
            let (code, others) = rest.split_at_checked(2)?;
            rest = others;
            let code = std::str::from_utf8(code).ok()?;
            bytes.push(u8::from_str_radix(code, 16).ok()?);
        } else {
            bytes.push(*first);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tollgate_core::{HoldId, Span};

    use super::*;
    use tollgate_conformance::{Kind, key};

    fn charges() -> impl Strategy<Value = Vec<HeldCharge>> {
        let limit = prop_oneof![
            (prop::sample::select(Kind::ALL.to_vec()), 1..1000_u64)
                .prop_map(|(kind, capacity)| kind.limit(capacity, Span::MINUTE)),
            (0..100_u64).prop_map(|limit| Limit::concurrency(limit, Span::SECOND).unwrap()),
        ];
        let enforcement = prop_oneof![
            Just(Enforcement::Enforce),
            Just(Enforcement::Shadow),
            any::<u8>().prop_map(Enforcement::Instead),
        ];
        let how = prop::sample::select(CarryOver::ALL.to_vec());
        let numbers = (any::<u64>(), 0..=MAX_AMOUNT, any::<u64>(), any::<bool>());
        let charge = (limit, enforcement, how, numbers, any::<u32>(), ".{0,20}").prop_map(
            |(limit, enforcement, carry_over, (cost, overdraft, taken, ledgered), tag, rule)| {
                HeldCharge {
                    key: key(cost),
                    overflow: key(taken),
                    rule: rule.into(),
                    tag: Tag::new(tag),
                    limit,
                    cost,
                    enforcement,
                    carry_over,
                    ledgered,
                    overdraft,
                    taken,
                }
            },
        );
        prop::collection::vec(charge, 0..4)
    }

    fn record() -> impl Strategy<Value = HoldRecord> {
        let ended = prop_oneof![
            Just((HoldState::Reserved, None)),
            any::<u64>().prop_map(|actual| (HoldState::Consumed, Some(actual))),
            Just((HoldState::Released, None)),
            Just((HoldState::Expired, None)),
        ];
        let purpose = prop_oneof![Just(Purpose::Reservation), Just(Purpose::Lease)];
        let numbers = (any::<u128>(), any::<u32>(), any::<u64>(), any::<u64>());
        let parts = (ended, purpose, numbers, any::<u128>(), "[\\PC\n]{0,20}");
        (parts, charges()).prop_map(
            |(((state, actual), purpose, (id, tag, units, time), token, owner), charges)| {
                HoldRecord {
                    id: HoldId::new(id, Tag::new(tag)),
                    purpose,
                    state,
                    units,
                    actual,
                    charged_at: Time::from_micros(time),
                    expires_at: Time::from_micros(time / 2),
                    fingerprint: time ^ units,
                    fence: time,
                    token: Token::new(token),
                    owner: owner.as_str().into(),
                    memo: owner.into(),
                    charges,
                }
            },
        )
    }

    proptest! {
        #[test]
        fn a_record_reads_back_as_it_was(record in record()) {
            let text = record.to_text();
            prop_assert_eq!(HoldRecord::from_text(&text), Ok(record), "{}", text);
        }

        #[test]
        fn a_changed_text_is_a_record_or_an_error(
            record in record(),
            at in any::<prop::sample::Index>(),
            other in any::<char>(),
        ) {
            let mut letters: Vec<char> = record.to_text().chars().collect();
            let at = at.index(letters.len());
            letters[at] = other;
            let text: String = letters.into_iter().collect();
            if let Ok(read) = HoldRecord::from_text(&text) {
                prop_assert_eq!(HoldRecord::from_text(&read.to_text()), Ok(read));
            }
            let cut: String = text.chars().take(at).collect();
            if let Ok(read) = HoldRecord::from_text(&cut) {
                prop_assert_eq!(HoldRecord::from_text(&read.to_text()), Ok(read));
            }
        }
    }

    #[test]
    fn what_is_no_record_says_where() {
        let why = |text: &str| HoldRecord::from_text(text).unwrap_err().to_string();
        assert_eq!(
            why("hold/2 x"),
            "a record begins with `hold/1`: this is none, or of another version"
        );
        let id = HoldId::new(1, Tag::new(2));
        assert_eq!(
            why(&format!("hold/1 {id} loan")),
            "line 1 of the record: a purpose is missing or wrong"
        );
        let line = format!(
            "hold/1 {id} lease reserved 1 - 1 2 {:016x} 3 {:032x} .me .",
            4, 5
        );
        assert!(HoldRecord::from_text(&line).is_ok());
        assert_eq!(
            why(&format!("{line}\nzz")),
            "line 2 of the record: a key is missing or wrong"
        );
        let many = format!("{line}{}", "\n".repeat(MAX_CHARGES + 1));
        assert!(HoldRecord::from_text(&many).is_err());
    }
}
