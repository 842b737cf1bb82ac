//! Limits as one line of text, for what is kept longer than a process lives.
//!
//! The line names the algorithm and its numbers as they are counted with, so that it reads back as the
//! same limit. Reading goes through the same checks as a rules file: a line that somebody has changed is
//! refused, and never becomes a limit that could not be configured.

use crate::ParamError;
use crate::backoff::Schedule;
use crate::calendar::{Anchor, Calendar, Unit, Zone};
use crate::leaky_bucket::{Leaky, LeakyBucket};
use crate::limit::{Algorithm, Limit};
use crate::meter::Meter;
use crate::quota;
use crate::units::{Span, Tick};

/// What a line about a quota begins with, and one about a quota that is closed.
const QUOTA: &str = "quota";
const CLOSED_QUOTA: &str = "closed-quota";
/// The longest line that is read.
const MAX_LENGTH: usize = 512;

/// A text that is no limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitTextError {
    /// It is longer than any limit is.
    #[error("a limit has at most {MAX_LENGTH} characters, and this has {0}")]
    TooLong(usize),
    /// It begins with no algorithm.
    #[error("`{0}` is no algorithm")]
    UnknownAlgorithm(String),
    /// Something is missing.
    #[error("the limit ends where {0} should stand")]
    Missing(&'static str),
    /// Something else stands in its place.
    #[error("`{found}` stands where {wanted} should")]
    Wrong {
        /// What should stand there.
        wanted: &'static str,
        /// What does.
        found: String,
    },
    /// There is more than a limit.
    #[error("`{0}` stands behind the limit")]
    TooMuch(String),
    /// The numbers are none that a limit can have.
    #[error(transparent)]
    Numbers(#[from] ParamError),
}

impl Limit {
    /// The limit as one line of text.
    ///
    /// ```
    /// # use tollgate_core::{Limit, Span};
    /// let limit = Limit::fixed_window(100, Span::MINUTE)?;
    /// assert_eq!(limit.to_text(), "fixed-window 100 60000000");
    /// assert_eq!(Limit::from_text("fixed-window 100 60000000").as_ref(), Ok(&limit));
    /// # Ok::<(), tollgate_core::ParamError>(())
    /// ```
    #[must_use]
    pub fn to_text(&self) -> String {
        match self {
            Limit::FixedWindow(_) => self.amount_in_window("fixed-window"),
            Limit::SlidingLog(_) => self.amount_in_window("sliding-log"),
            Limit::TwoWindow(_) => self.amount_in_window("two-window"),
            Limit::SlidingCounter(it) => {
                let (limit, buckets, length) = it.parts();
                let window = (buckets * length).min(Span::MAX.as_micros());
                format!("sliding-counter {limit} {window} {buckets}")
            }
            Limit::TokenBucket(it) => format!("token-bucket {}", meter_text(it)),
            Limit::Gcra(it) => format!("gcra {}", meter_text(it)),
            Limit::LeakyBucket(it) => {
                let meter = meter_text(it.meter());
                match it.leaky() {
                    Leaky::Police => format!("leaky-bucket {meter} police"),
                    Leaky::Shape { max_wait: None } => format!("leaky-bucket {meter} shape"),
                    Leaky::Shape {
                        max_wait: Some(wait),
                    } => format!("leaky-bucket {meter} shape {}", wait.as_micros()),
                }
            }
            Limit::Backoff(it) => {
                let it = it.schedule();
                let [base, max, forget, penalty] =
                    [it.base, it.max, it.forget, it.penalty].map(Span::as_micros);
                let (after, factor) = (it.after, it.factor);
                format!("backoff {after} {base} {factor} {max} {forget} {penalty}")
            }
            Limit::Quota(it) => {
                let calendar = it.calendar();
                let (every, unit) = calendar.unit();
                let anchor = match calendar.anchor() {
                    Anchor::First => "first".to_owned(),
                    Anchor::Weekday(day) => format!("weekday-{day}"),
                    Anchor::Day(day) => format!("day-{day}"),
                    Anchor::MonthDay(month, day) => format!("date-{month}-{day}"),
                };
                let [limit, grace, rollover] = it.numbers();
                let (unit, zone) = (unit.name(), calendar.zone().name());
                let name = if it.is_closed() { CLOSED_QUOTA } else { QUOTA };
                format!("{name} {limit} {grace} {rollover} {every} {unit} {anchor} {zone}")
            }
            Limit::Concurrency(it) => {
                format!("concurrency {} {}", it.limit(), it.lease().as_micros())
            }
            Limit::Unlimited(algorithm) => format!("unlimited {}", algorithm.name()),
        }
    }

    fn amount_in_window(&self, name: &str) -> String {
        format!("{name} {} {}", self.capacity(), self.window().as_micros())
    }

    /// The limit of a line of text.
    ///
    /// # Errors
    /// If it is not what [`Limit::to_text`] writes, or the numbers are out of range.
    pub fn from_text(text: &str) -> Result<Limit, LimitTextError> {
        if text.len() > MAX_LENGTH {
            return Err(LimitTextError::TooLong(text.len()));
        }
        let mut words = Words(text.split(' '));
        let name = words.next("an algorithm")?;
        let limit = match name {
            "fixed-window" => Limit::fixed_window(words.amount()?, words.span()?)?,
            "sliding-log" => Limit::sliding_log(words.amount()?, words.span()?)?,
            "two-window" => Limit::two_window(words.amount()?, words.span()?)?,
            "sliding-counter" => {
                let (limit, window) = (words.amount()?, words.span()?);
                Limit::sliding_counter(limit, window, words.number("the sub-buckets")?)?
            }
            "token-bucket" => Limit::TokenBucket(words.meter()?),
            "gcra" => Limit::Gcra(words.meter()?),
            "leaky-bucket" => Limit::LeakyBucket(words.leaky_bucket()?),
            "backoff" => Limit::backoff(Schedule {
                after: words.number("the free denials")?,
                base: words.span()?,
                factor: words.number("the factor")?,
                max: words.span()?,
                forget: words.span()?,
                penalty: words.span()?,
            })?,
            QUOTA | CLOSED_QUOTA => {
                let (limit, grace, rollover) = (words.amount()?, words.amount()?, words.amount()?);
                let quota = quota::new(limit, grace, rollover, words.calendar()?)?;
                Limit::Quota(match name {
                    CLOSED_QUOTA => quota.closed(),
                    _ => quota,
                })
            }
            "concurrency" => Limit::concurrency(words.amount()?, words.span()?)?,
            "unlimited" => {
                let name = words.next("an algorithm")?;
                let named = |it: &Algorithm| it.name() == name;
                let algorithm = Algorithm::ALL.into_iter().find(named);
                let unknown = || LimitTextError::UnknownAlgorithm(name.to_owned());
                Limit::Unlimited(algorithm.ok_or_else(unknown)?)
            }
            other => return Err(LimitTextError::UnknownAlgorithm(other.to_owned())),
        };
        match words.0.next() {
            Some(more) => Err(LimitTextError::TooMuch(more.to_owned())),
            None => Ok(limit),
        }
    }
}

fn meter_text(meter: &Meter) -> String {
    let (capacity, per_tick, token, tick) = meter.parts();
    let tick = match tick {
        Tick::Micro => "us",
        Tick::Milli => "ms",
    };
    format!("{capacity} {per_tick} {token} {tick}")
}

/// What is left of a line.
struct Words<'t>(std::str::Split<'t, char>);

impl<'t> Words<'t> {
    fn next(&mut self, wanted: &'static str) -> Result<&'t str, LimitTextError> {
        self.0.next().ok_or(LimitTextError::Missing(wanted))
    }

    fn number<N: std::str::FromStr>(&mut self, wanted: &'static str) -> Result<N, LimitTextError> {
        let found = self.next(wanted)?;
        digits(found).ok_or_else(|| wrong(wanted, found))
    }

    fn amount(&mut self) -> Result<u64, LimitTextError> {
        self.number("an amount")
    }

    fn span(&mut self) -> Result<Span, LimitTextError> {
        self.number("a span in microseconds").map(Span::from_micros)
    }

    fn meter(&mut self) -> Result<Meter, LimitTextError> {
        let (capacity, per_tick) = (self.amount()?, self.number("a rate")?);
        let token = self.amount()?;
        let tick = match self.next("a tick")? {
            "us" => Tick::Micro,
            "ms" => Tick::Milli,
            other => return Err(wrong("a tick", other)),
        };
        Ok(Meter::of_parts(capacity, per_tick, token, tick)?)
    }

    fn leaky_bucket(&mut self) -> Result<LeakyBucket, LimitTextError> {
        let meter = self.meter()?;
        let leaky = match self.next("`police` or `shape`")? {
            "police" => Leaky::Police,
            "shape" => {
                let max_wait = match self.0.next() {
                    None => None,
                    Some(word) => {
                        let wanted = "a span in microseconds";
                        let wait: u64 = digits(word).ok_or_else(|| wrong(wanted, word))?;
                        Some(Span::from_micros(wait))
                    }
                };
                Leaky::Shape { max_wait }
            }
            other => return Err(wrong("`police` or `shape`", other)),
        };
        Ok(LeakyBucket::of_parts(meter, leaky)?)
    }

    fn calendar(&mut self) -> Result<Calendar, LimitTextError> {
        let every = self.number("how many make a period")?;
        let unit = self.next("a unit of time")?;
        let unit = Unit::ALL
            .into_iter()
            .find(|it| it.name() == unit)
            .ok_or_else(|| wrong("a unit of time", unit))?;
        let word = self.next("an anchor")?;
        let anchor = anchor(word).ok_or_else(|| wrong("an anchor", word))?;
        let zone = Zone::named(self.next("a time zone")?)?;
        Ok(Calendar::new(every, unit, anchor, zone)?)
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

/// A number of digits alone: no sign.
fn digits<N: std::str::FromStr>(word: &str) -> Option<N> {
    let is_number = word.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| word.parse().ok()).flatten()
}

fn wrong(wanted: &'static str, found: &str) -> LimitTextError {
    LimitTextError::Wrong {
        wanted,
        found: found.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_limit_says_why() {
        let why = |text: &str| Limit::from_text(text).unwrap_err().to_string();
        assert_eq!(why(""), "`` is no algorithm");
        assert_eq!(
            why("unlimited"),
            "the limit ends where an algorithm should stand"
        );
        assert_eq!(
            why("fixed-window 1"),
            "the limit ends where a span in microseconds should stand"
        );
        assert_eq!(
            why("fixed-window +1 1"),
            "`+1` stands where an amount should"
        );
        assert_eq!(why("fixed-window 1 1 1"), "`1` stands behind the limit");
        assert_eq!(why("gcra 1 1 1 s"), "`s` stands where a tick should");
        assert_eq!(
            why("leaky-bucket 1 1 1 us drip"),
            "`drip` stands where `police` or `shape` should"
        );
        assert!(why("quota 1 0 0 1 day first Nowhere/At_All").contains("Nowhere/At_All"));
        assert!(why("quota 1 0 0 1 day day-1 UTC").contains("no day begins"));
        assert_eq!(
            why(&"x".repeat(513)),
            "a limit has at most 512 characters, and this has 513"
        );
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        for text in [
            "fixed-window 9007199254740993 1000000",
            "fixed-window 1 0",
            "gcra 1 0 1 us",
            "gcra 1 1 0 us",
            "gcra 9007199254740991 1 9007199254740991 us",
            "gcra 1000 1 9007199254740 ms",
            "leaky-bucket 1 1 1 us shape 0",
            "sliding-counter 1 1000000 100000",
            "backoff 1 10 200 100 100 0",
            "concurrency 100001 1000000",
            "quota 1 0 0 0 day first UTC",
        ] {
            let error = Limit::from_text(text).unwrap_err();
            assert!(
                matches!(error, LimitTextError::Numbers(_)),
                "{text}: {error}"
            );
        }
    }

    #[test]
    fn a_closed_bucket_stays_closed() {
        let bucket =
            Limit::leaky_bucket(crate::Rate::new(1, Span::SECOND).unwrap(), 3, Leaky::Police);
        let closed = bucket.unwrap().renumbered(0, Span::SECOND).unwrap();
        assert_eq!(Limit::from_text(&closed.to_text()), Ok(closed));
    }
}
