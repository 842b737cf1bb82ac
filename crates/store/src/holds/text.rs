//! Hold records as text, for stores and ledgers that outlive a process.
//!
//! The first line is the hold. Each further line is a charge with its limit. The text begins with its
//! version. A change of the layout needs a new version. The reader has to keep reading all versions, because
//! running deployments have stored such texts. Version 1 has no subject. `tests/hold_text.rs` has examples.
//! The code does not use serde: the stored texts need this reader in any case, and serde would add a second
//! format.
//!
//! The reader checks everything, because other programs may write to the disk or server that the text
//! comes from. For a wrong text, the reader returns an error that names the line. It never returns a limit
//! that a config could not have.

use std::fmt::{self, Display, Formatter, Write};
use std::str::FromStr;
use std::sync::Arc;

use tollgate_core::backoff::Schedule;
use tollgate_core::fair::{self, Client, Lane, MAX_LANES};
use tollgate_core::leaky_bucket::LeakyBucket;
use tollgate_core::meter::Meter;
use tollgate_core::{
    Algorithm, Anchor, Calendar, CarryOver, Enforcement, HoldIdError, Key, Leaky, Limit,
    MAX_AMOUNT, ParamError, Span, Tag, Tick, Time, Token, Unit, Zone, quota,
};

use super::record::{HeldCharge, HoldRecord, HoldState, Purpose};
use super::{MAX_CHARGES, MAX_MEMO, MAX_OWNER};

const VERSION: &str = "hold/2";
/// The version without a subject.
const FIRST_VERSION: &str = "hold/1";
/// The most bytes of a rule's name that are read.
const MAX_RULE: usize = 2048;
const SPAN: &str = "a time span in microseconds";

const PURPOSES: [(&str, Purpose); 2] = [
    ("reservation", Purpose::Reservation),
    ("lease", Purpose::Lease),
];
const STATES: [(&str, HoldState); 4] = [
    ("reserved", HoldState::Reserved),
    ("consumed", HoldState::Consumed),
    ("released", HoldState::Released),
    ("expired", HoldState::Expired),
];
const LEDGERED: [(&str, bool); 2] = [("ledgered", true), ("plain", false)];
const LANES: [(&str, bool); 2] = [("lane", false), ("strict", true)];
const TICKS: [(&str, Tick); 2] = [("us", Tick::Micro), ("ms", Tick::Milli)];

type Read<T> = Result<T, RecordError>;

/// Why a text is not a record of a hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The text is not a record, or a record of another version.
    #[error(
        "a record of a hold begins with `{VERSION}` or `{FIRST_VERSION}`: this text is something else, or was written by a newer version"
    )]
    Version,
    /// The id is malformed.
    #[error("the record's id: {0}")]
    Id(#[from] HoldIdError),
    /// A word is missing or malformed.
    #[error("line {line} of the record: {wanted} is missing or malformed")]
    Word {
        /// The line, counted from 1.
        line: usize,
        /// What the word means.
        wanted: &'static str,
    },
    /// The numbers of a limit are out of range.
    #[error("line {line} of the record: {error}")]
    Limit {
        /// The line, counted from 1.
        line: usize,
        /// The problem with the numbers.
        error: ParamError,
    },
    /// The record has more charges than a hold may have.
    #[error("a record has at most {MAX_CHARGES} charges")]
    TooManyCharges,
}

impl HoldRecord {
    /// Returns the record as text.
    #[must_use]
    pub fn to_text(&self) -> String {
        // This is large enough for most records. The text of every stored hold is made here, so it saves
        // time.
        let mut text = String::with_capacity(192 + self.memo.len() + 256 * self.charges.len());
        // Writing to a string does not fail.
        let _ = self.write_to(&mut text);
        text
    }

    fn write_to(&self, to: &mut String) -> fmt::Result {
        let (purpose, state) = (name(&PURPOSES, self.purpose), name(&STATES, self.state));
        // Without a subject, the text stays readable for instances that know only the first version.
        let version = self.subject.map_or(FIRST_VERSION, |_| VERSION);
        write!(to, "{version} {} {purpose} {state} {}", self.id, self.units)?;
        match self.actual {
            Some(actual) => write!(to, " {actual}")?,
            None => to.write_str(" -")?,
        }
        write!(
            to,
            " {} {} {:016x} {} {:032x} {} {}",
            self.charged_at.as_micros(),
            self.expires_at.as_micros(),
            self.fingerprint,
            self.fence,
            self.token.bits(),
            Escaped(&self.owner),
            Escaped(&self.memo),
        )?;
        if let Some(subject) = self.subject {
            write!(to, " {subject:032x}")?;
        }
        for charge in &self.charges {
            write!(
                to,
                "\n{:032x} {:032x} {} {:08x} {}",
                charge.key.bits(),
                charge.overflow.bits(),
                Escaped(&charge.rule),
                charge.tag.number(),
                charge.cost,
            )?;
            match charge.enforcement {
                Enforcement::Enforce => to.write_str(" enforce")?,
                Enforcement::Shadow => to.write_str(" shadow")?,
                Enforcement::Instead(place) => write!(to, " instead-{place}")?,
            }
            let ledgered = name(&LEDGERED, charge.ledgered);
            let (carry_over, overdraft) = (charge.carry_over.name(), charge.overdraft);
            write!(to, " {carry_over} {ledgered} {overdraft} {} ", charge.taken)?;
            write_limit(to, &charge.limit)?;
        }
        Ok(())
    }

    /// Reads a record that [`HoldRecord::to_text`] has written.
    ///
    /// # Errors
    /// If the text is not such a record, or its numbers are out of range.
    pub fn from_text(text: &str) -> Result<HoldRecord, RecordError> {
        let mut lines = text.split('\n').zip(1..).map(|(rest, line)| Words {
            line,
            rest: Some(rest),
        });
        let mut words = lines.next().ok_or(RecordError::Version)?;
        let has_subject = match words.next("a version") {
            Ok(VERSION) => true,
            Ok(FIRST_VERSION) => false,
            _ => return Err(RecordError::Version),
        };
        let mut record = HoldRecord {
            id: words.next("an id")?.parse()?,
            purpose: words.named("a purpose", &PURPOSES)?,
            state: words.named("a state", &STATES)?,
            units: words.number("the units")?,
            actual: words.one_of("the used units", |word| match word {
                "-" => Some(None),
                number => digits(number).map(Some),
            })?,
            charged_at: words
                .number("the time of the charge")
                .map(Time::from_micros)?,
            expires_at: words.number("the time of expiry").map(Time::from_micros)?,
            fingerprint: words.hex("a fingerprint", 16)?,
            fence: words.number("a fence")?,
            token: Token::new(words.hex("a token", 32)?),
            owner: words.unescaped("an owner", MAX_OWNER)?,
            memo: words.unescaped("a memo", MAX_MEMO)?,
            subject: None,
            charges: Vec::new(),
        };
        if has_subject {
            record.subject = Some(words.hex("a subject", 32)?);
        }
        words.end()?;
        if (record.state == HoldState::Consumed) != record.actual.is_some() {
            return Err(words.wrong("the used units"));
        }
        for line in lines {
            if record.charges.len() == MAX_CHARGES {
                return Err(RecordError::TooManyCharges);
            }
            record.charges.push(line.charge()?);
        }
        Ok(record)
    }
}

/// Writes the algorithm and its numbers, so that reading the text gives the same limit.
fn write_limit(to: &mut String, limit: &Limit) -> fmt::Result {
    let amount_in_window = |to: &mut String, name: &str| {
        let window = limit.window().as_micros();
        write!(to, "{name} {} {window}", limit.capacity())
    };
    let meter = |to: &mut String, algorithm: &str, meter: &Meter| {
        let (capacity, per_tick, token, tick) = meter.parts();
        let tick = name(&TICKS, tick);
        write!(to, "{algorithm} {capacity} {per_tick} {token} {tick}")
    };
    match limit {
        Limit::FixedWindow(_) => amount_in_window(to, "fixed-window"),
        Limit::SlidingLog(_) => amount_in_window(to, "sliding-log"),
        Limit::TwoWindow(_) => amount_in_window(to, "two-window"),
        Limit::Concurrency(_) => amount_in_window(to, "concurrency"),
        Limit::SlidingCounter(it) => {
            let (limit, buckets, length) = it.parts();
            let window = (buckets * length).min(Span::MAX.as_micros());
            write!(to, "sliding-counter {limit} {window} {buckets}")
        }
        Limit::TokenBucket(it) => meter(to, "token-bucket", it),
        Limit::Gcra(it) => meter(to, "gcra", it),
        Limit::Fair(it) => {
            meter(to, "fair", it.meter())?;
            let client = it.client();
            write!(to, " {:016x} {} {}", client.id, client.weight, client.lane)?;
            for lane in it.lanes() {
                let kind = name(&LANES, lane.strict);
                write!(to, " {kind}-{}", lane.share)?;
            }
            Ok(())
        }
        Limit::LeakyBucket(it) => {
            meter(to, "leaky-bucket", it.meter())?;
            match it.leaky() {
                Leaky::Police => to.write_str(" police"),
                Leaky::Shape { max_wait: None } => to.write_str(" shape"),
                Leaky::Shape {
                    max_wait: Some(wait),
                } => write!(to, " shape {}", wait.as_micros()),
            }
        }
        Limit::Backoff(it) => {
            let it = it.schedule();
            let (base, max) = (it.base.as_micros(), it.max.as_micros());
            write!(to, "backoff {} {base} {} {max}", it.after, it.factor)?;
            let (forget, penalty) = (it.forget.as_micros(), it.penalty.as_micros());
            write!(to, " {forget} {penalty}")
        }
        Limit::Quota(it) => {
            let closed = if it.is_closed() { "closed-" } else { "" };
            let ([limit, grace, rollover], calendar) = (it.numbers(), it.calendar());
            let (every, unit) = (calendar.unit().0, calendar.unit().1.name());
            write!(
                to,
                "{closed}quota {limit} {grace} {rollover} {every} {unit} "
            )?;
            match calendar.anchor() {
                Anchor::First => to.write_str("first")?,
                Anchor::Weekday(day) => write!(to, "weekday-{day}")?,
                Anchor::Day(day) => write!(to, "day-{day}")?,
                Anchor::MonthDay(month, day) => write!(to, "date-{month}-{day}")?,
            }
            write!(to, " {}", calendar.zone().name())
        }
        Limit::Unlimited(algorithm) => write!(to, "unlimited {}", algorithm.name()),
    }
}

fn name<T: Copy + PartialEq>(names: &[(&'static str, T)], value: T) -> &'static str {
    let named = names.iter().find(|(_, it)| *it == value);
    named.map_or("", |(name, _)| name)
}

/// The unread part of a line; `None` at the end of the line.
struct Words<'t> {
    line: usize,
    rest: Option<&'t str>,
}

impl<'t> Words<'t> {
    fn wrong(&self, wanted: &'static str) -> RecordError {
        let line = self.line;
        RecordError::Word { line, wanted }
    }

    fn next(&mut self, wanted: &'static str) -> Read<&'t str> {
        let rest = self.rest.ok_or_else(|| self.wrong(wanted))?;
        let mut words = rest.splitn(2, ' ');
        let word = words.next().unwrap_or_default();
        self.rest = words.next();
        Ok(word)
    }

    fn end(&self) -> Read<()> {
        match self.rest {
            None => Ok(()),
            Some(_) => Err(self.wrong("the end of the line")),
        }
    }

    fn one_of<T>(
        &mut self,
        wanted: &'static str,
        read: impl FnOnce(&'t str) -> Option<T>,
    ) -> Read<T> {
        let word = self.next(wanted)?;
        read(word).ok_or_else(|| self.wrong(wanted))
    }

    fn named<T: Copy>(&mut self, wanted: &'static str, names: &[(&'static str, T)]) -> Read<T> {
        let find = |word| names.iter().find(|(name, _)| *name == word);
        self.one_of(wanted, find).map(|(_, value)| *value)
    }

    fn number<N: FromStr>(&mut self, wanted: &'static str) -> Read<N> {
        self.one_of(wanted, digits)
    }

    fn span(&mut self) -> Read<Span> {
        self.number(SPAN).map(Span::from_micros)
    }

    fn hex<N: TryFrom<u128>>(&mut self, wanted: &'static str, length: usize) -> Read<N> {
        self.one_of(wanted, |word| {
            let is_hex = word.bytes().all(|byte| byte.is_ascii_hexdigit());
            let number = (word.len() == length && is_hex).then_some(word)?;
            N::try_from(u128::from_str_radix(number, 16).ok()?).ok()
        })
    }

    fn unescaped(&mut self, wanted: &'static str, most: usize) -> Read<Arc<str>> {
        self.one_of(wanted, |word| {
            let text = unescaped(word)?;
            (text.len() <= most).then(|| text.into())
        })
    }

    fn charge(mut self) -> Read<HeldCharge> {
        let charge = HeldCharge {
            key: Key::from_bits(self.hex("a key", 32)?),
            overflow: Key::from_bits(self.hex("an overflow key", 32)?),
            rule: self.unescaped("a rule", MAX_RULE)?,
            tag: Tag::new(self.hex("a tag", 8)?),
            cost: self.number("a cost")?,
            enforcement: self.one_of("an enforcement", |word| match word {
                "enforce" => Some(Enforcement::Enforce),
                "shadow" => Some(Enforcement::Shadow),
                other => digits(other.strip_prefix("instead-")?).map(Enforcement::Instead),
            })?,
            carry_over: self.one_of("a carry-over mode", |word| {
                CarryOver::ALL.into_iter().find(|it| it.name() == word)
            })?,
            ledgered: self.named("`ledgered` or `plain`", &LEDGERED)?,
            overdraft: self.one_of("an overdraft", |word| {
                digits(word).filter(|it| *it <= MAX_AMOUNT)
            })?,
            taken: self.number("the amount taken")?,
            limit: self.limit()?,
        };
        self.end()?;
        Ok(charge)
    }

    fn limit(&mut self) -> Read<Limit> {
        const AMOUNT: &str = "an amount";
        let name = self.next("an algorithm")?;
        let limit = match name {
            "fixed-window" => Limit::fixed_window(self.number(AMOUNT)?, self.span()?),
            "sliding-log" => Limit::sliding_log(self.number(AMOUNT)?, self.span()?),
            "two-window" => Limit::two_window(self.number(AMOUNT)?, self.span()?),
            "concurrency" => Limit::concurrency(self.number(AMOUNT)?, self.span()?),
            "sliding-counter" => {
                let (limit, window) = (self.number(AMOUNT)?, self.span()?);
                Limit::sliding_counter(limit, window, self.number("a number of sub-buckets")?)
            }
            "token-bucket" => self.meter()?.map(Limit::TokenBucket),
            "gcra" => self.meter()?.map(Limit::Gcra),
            "fair" => {
                let meter = self.meter()?;
                let client = Client {
                    id: self.hex("a client", 16)?,
                    weight: self.number("a weight")?,
                    lane: self.number("a lane")?,
                };
                let mut lanes = Vec::new();
                while self.rest.is_some() && lanes.len() < MAX_LANES {
                    lanes.push(self.one_of("a lane", |word| {
                        let (kind, share) = word.split_once('-')?;
                        let (_, strict) = LANES.into_iter().find(|(name, _)| *name == kind)?;
                        let share = digits(share)?;
                        Some(Lane { share, strict })
                    })?);
                }
                let fair = meter.and_then(|meter| fair::of_parts(meter, &lanes));
                fair.map(|it| Limit::Fair(it.for_client(client)))
            }
            "leaky-bucket" => {
                let meter = self.meter()?;
                let modes = [("police", false), ("shape", true)];
                let leaky = if self.named("`police` or `shape`", &modes)? {
                    let max_wait = self.rest.map(|_| self.span()).transpose()?;
                    Leaky::Shape { max_wait }
                } else {
                    Leaky::Police
                };
                let bucket = meter.and_then(|meter| LeakyBucket::of_parts(meter, leaky));
                bucket.map(Limit::LeakyBucket)
            }
            "backoff" => Limit::backoff(Schedule {
                after: self.number("a number of free denials")?,
                base: self.span()?,
                factor: self.number("a factor")?,
                max: self.span()?,
                forget: self.span()?,
                penalty: self.span()?,
            }),
            "quota" | "closed-quota" => {
                let (limit, grace) = (self.number(AMOUNT)?, self.number(AMOUNT)?);
                let rollover = self.number(AMOUNT)?;
                let every = self.number("a number of time units")?;
                let unit = self.one_of("a time unit", |word| {
                    Unit::ALL.into_iter().find(|it| it.name() == word)
                })?;
                let anchor = self.one_of("an anchor", anchor)?;
                let quota = Zone::named(self.next("a time zone")?)
                    .and_then(|zone| Calendar::new(every, unit, anchor, zone))
                    .and_then(|calendar| quota::new(limit, grace, rollover, calendar));
                quota.map(|it| Limit::Quota(if name == "quota" { it } else { it.closed() }))
            }
            "unlimited" => Ok(Limit::Unlimited(self.one_of("an algorithm", |word| {
                Algorithm::ALL.into_iter().find(|it| it.name() == word)
            })?)),
            _ => return Err(self.wrong("an algorithm")),
        };
        let line = self.line;
        limit.map_err(|error| RecordError::Limit { line, error })
    }

    fn meter(&mut self) -> Read<Result<Meter, ParamError>> {
        let (capacity, per_tick) = (self.number("a capacity")?, self.number("a rate")?);
        let (token, tick) = (self.number("a token")?, self.named("a tick", &TICKS)?);
        Ok(Meter::of_parts(capacity, per_tick, token, tick))
    }
}

fn anchor(word: &str) -> Option<Anchor> {
    let mut parts = word.split('-');
    let anchor = match parts.next()? {
        "first" => Anchor::First,
        "weekday" => Anchor::Weekday(digits(parts.next()?)?),
        "day" => Anchor::Day(digits(parts.next()?)?),
        "date" => Anchor::MonthDay(digits(parts.next()?)?, digits(parts.next()?)?),
        _ => return None,
    };
    parts.next().is_none().then_some(anchor)
}

/// Parses a number that has digits only. `parse` alone would also accept a sign.
fn digits<N: FromStr>(word: &str) -> Option<N> {
    let is_number = word.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| word.parse().ok()).flatten()
}

/// Writes a text as one word: first a `.`, then printable ASCII as it is, and every other byte as `%` and
/// two digits.
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
