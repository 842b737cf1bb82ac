//! `CL.THROTTLE key max_burst count period [quantity]`, with the answers of redis-cell.
//!
//! | answer | |
//! |---|---|
//! | limited | 0 allowed, 1 limited |
//! | limit | `max_burst` + 1 |
//! | remaining | |
//! | retry after | whole seconds; -1 if allowed, or if `quantity` is above the limit: no wait helps |
//! | reset after | whole seconds until the whole limit is back |
//!
//! Seconds are rounded up after fractions of a millisecond were dropped, as redis-cell does. A
//! `quantity` of 0 charges nothing and is never limited.

use tollgate::{Limit, Rate, Span, Throttled};
use tollgate_config::ThrottleFailure;
use tollgate_core::MAX_AMOUNT;

use super::bounds::MAX_KEY;
use super::command_error::{CommandError, shown};
use super::frame::Command;
use super::reply::Reply;

/// How many limits a connection remembers.
const MAX_LIMITS: usize = 8;

/// The arguments of a command.
#[derive(Clone, Copy)]
pub(super) struct ThrottleArgs<'a> {
    pub(super) key: &'a [u8],
    pub(super) numbers: Numbers,
    pub(super) quantity: u64,
}

/// The numbers of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Numbers {
    max_burst: u64,
    count: u64,
    period: u64,
}

impl<'a> ThrottleArgs<'a> {
    #[inline]
    pub(super) fn read(command: &Command<'a>) -> Result<ThrottleArgs<'a>, CommandError> {
        if !(5..=6).contains(&command.len()) {
            return Err(CommandError::Arguments("cl.throttle"));
        }
        let arg = |index| command.arg(index).unwrap_or_default();
        if arg(1).len() > MAX_KEY {
            return Err(CommandError::LongKey);
        }
        Ok(ThrottleArgs {
            key: arg(1),
            numbers: Numbers {
                max_burst: amount("max_burst", arg(2))?,
                count: amount("count", arg(3))?,
                period: amount("period", arg(4))?,
            },
            quantity: command.arg(5).map_or(Ok(1), |it| amount("quantity", it))?,
        })
    }
}

/// Parses a whole number from 0 to the largest amount.
#[inline]
pub(super) fn amount(name: &'static str, bytes: &[u8]) -> Result<u64, CommandError> {
    match std::str::from_utf8(bytes).unwrap_or_default().parse() {
        Err(_) => Err(not_amount(name, bytes)),
        Ok(number) if number > MAX_AMOUNT => Err(CommandError::TooLarge(name)),
        Ok(number) => Ok(number),
    }
}

#[cold]
fn not_amount(name: &'static str, bytes: &[u8]) -> CommandError {
    let negative = bytes.strip_prefix(b"-");
    let is_number = |digits: &[u8]| !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    if negative.is_some_and(is_number) {
        CommandError::Negative(name)
    } else if is_number(bytes) {
        CommandError::TooLarge(name)
    } else {
        CommandError::NotNumber(name, shown(bytes))
    }
}

/// The limits that a connection used last. Most connections use one or two.
#[derive(Default)]
pub(super) struct Limits {
    known: Vec<(Numbers, Limit)>,
    /// The position that is replaced next.
    next: usize,
}

impl Limits {
    /// Returns the limit with these numbers.
    #[inline]
    pub(super) fn get(&mut self, numbers: Numbers) -> Result<&Limit, CommandError> {
        let known = self.known.iter().position(|(known, _)| *known == numbers);
        let place = match known {
            Some(place) => place,
            None => self.add(numbers)?,
        };
        Ok(&self.known[place].1)
    }

    #[cold]
    fn add(&mut self, numbers: Numbers) -> Result<usize, CommandError> {
        for (name, number) in [("count", numbers.count), ("period", numbers.period)] {
            if number == 0 {
                return Err(CommandError::ZeroRate(name));
            }
        }
        let rate = Rate::new(numbers.count, Span::from_secs(numbers.period));
        let limit = rate.and_then(|rate| Limit::gcra(rate, numbers.max_burst + 1));
        let limit = limit.map_err(CommandError::Limit)?;
        if self.known.len() < MAX_LIMITS {
            self.known.push((numbers, limit));
            return Ok(self.known.len() - 1);
        }
        let place = self.next;
        self.known[place] = (numbers, limit);
        self.next = (place + 1) % MAX_LIMITS;
        Ok(place)
    }
}

/// When to try again if the store has failed, in seconds.
const RETRY_AFTER: i64 = 5;

#[inline]
pub(super) fn write(reply: &mut Reply<'_>, throttled: &Throttled) {
    write_numbers(reply, answer(throttled));
}

/// Writes the answer if the store failed.
pub(super) fn write_failed(reply: &mut Reply<'_>, policy: ThrottleFailure, limit: &Limit) {
    let limit = count(limit.capacity());
    match policy {
        ThrottleFailure::Error => CommandError::Store.write(reply),
        ThrottleFailure::FailOpen => write_numbers(reply, [0, limit, limit, -1, 0]),
        ThrottleFailure::FailClosed => {
            write_numbers(reply, [1, limit, 0, RETRY_AFTER, RETRY_AFTER]);
        }
    }
}

#[inline]
fn write_numbers(reply: &mut Reply<'_>, numbers: [i64; 5]) {
    reply.list(numbers.len());
    for number in numbers {
        reply.integer(number);
    }
}

#[inline]
fn answer(throttled: &Throttled) -> [i64; 5] {
    [
        i64::from(!throttled.is_allowed()),
        count(throttled.limit()),
        count(throttled.remaining()),
        throttled.retry_after().map_or(-1, seconds),
        seconds(throttled.reset_after()),
    ]
}

fn count(amount: u64) -> i64 {
    i64::try_from(amount).unwrap_or(i64::MAX)
}

/// Converts a span into seconds. Drops fractions of a millisecond, and rounds the rest up.
fn seconds(span: Span) -> i64 {
    count((span.as_micros() / 1000).div_ceil(1000))
}

#[cfg(test)]
mod tests;
