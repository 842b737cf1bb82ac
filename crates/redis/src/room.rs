//! How much room a server has for new states, and how far its clock is from the clock of this process.
//!
//! `census` measures both. Calls of the script read the last measurement here. Only the script knows how many
//! keys there are at the moment of a decision, so it gets a ceiling: once there are that many keys, it makes
//! no new states.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use tollgate_core::{Span, Time};

use crate::request::MAX;

/// For how long a server counts as full after it was out of memory. During this time, calls say that the
/// server may be full, so they do not have to fail first.
const FULL_FOR: Duration = Duration::from_secs(1);

/// The room of one server.
#[derive(Debug)]
pub(crate) struct Room {
    started: Instant,
    most_keys: AtomicU64,
    most_anonymous: AtomicU64,
    /// The time until which the server counts as full, in milliseconds since `started`.
    full_until: AtomicU64,
    /// By how many microseconds the clock of the server is ahead.
    ahead: AtomicI64,
}

/// Once the server has this many keys, no new states are made. [`MAX`] means that there is no bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ceilings {
    pub(crate) keys: u64,
    /// For anonymous subjects.
    pub(crate) anonymous: u64,
}

impl Ceilings {
    pub(crate) const NONE: Ceilings = Ceilings {
        keys: MAX,
        anonymous: MAX,
    };
}

impl Room {
    pub(crate) fn new() -> Room {
        Room {
            started: Instant::now(),
            most_keys: AtomicU64::new(MAX),
            most_anonymous: AtomicU64::new(MAX),
            full_until: AtomicU64::new(0),
            ahead: AtomicI64::new(0),
        }
    }

    pub(crate) fn ceilings(&self) -> Ceilings {
        Ceilings {
            keys: self.most_keys.load(Ordering::Relaxed),
            anonymous: self.most_anonymous.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn set_ceilings(&self, ceilings: Ceilings) {
        let keys = ceilings.keys.min(MAX);
        self.most_keys.store(keys, Ordering::Relaxed);
        let anonymous = ceilings.anonymous.min(keys);
        self.most_anonymous.store(anonymous, Ordering::Relaxed);
    }

    /// Whether the server was out of memory a moment ago.
    pub(crate) fn is_full(&self) -> bool {
        let until = self.full_until.load(Ordering::Relaxed);
        until > 0 && self.elapsed() < until
    }

    pub(crate) fn note_full(&self) {
        let until = self.elapsed().saturating_add(millis(FULL_FOR));
        self.full_until.store(until, Ordering::Relaxed);
    }

    /// Returns by how many microseconds the clock of the server is ahead of the clock of this process.
    pub(crate) fn ahead(&self) -> i64 {
        self.ahead.load(Ordering::Relaxed)
    }

    /// Notes that the server's clock shows `there` while the clock of this process shows `here`.
    pub(crate) fn compare_clocks(&self, there: Time, here: Time) {
        let (there, here) = (there.as_micros(), here.as_micros());
        let ahead = there.checked_signed_diff(here).unwrap_or(i64::MAX);
        self.ahead.store(ahead, Ordering::Relaxed);
    }

    /// Returns the time of the server when the clock of this process shows `here`.
    pub(crate) fn time_there(&self, here: Time) -> Time {
        let ahead = self.ahead();
        let span = Span::from_micros(ahead.unsigned_abs());
        if ahead < 0 {
            Time::from_micros(here.as_micros().saturating_sub(span.as_micros()))
        } else {
            here + span
        }
    }

    fn elapsed(&self) -> u64 {
        millis(self.started.elapsed())
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
