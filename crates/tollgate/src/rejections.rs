//! The rejection log: one event for each refusal, so many in a second at most.
//!
//! It is written here, where decisions are made, so that every door and every program that embeds
//! the library has it. Only refusals come here. One that is above the bound costs a counter, and the
//! next one that is below it says how many there were.
//!
//! An event names its subject by eight digits of the hash alone, so that nobody is found in the log who
//! does not hold the secret.

use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_core::{Charge, Span, Time};
use tollgate_rules::{Attributes, RuleSet};

use crate::decision::{Decision, Kind, bounded};
use crate::entry::reason_of;
use crate::throttle::Throttled;

/// The target of the events, for subscribers that treat them apart.
pub const REJECTIONS: &str = "tollgate::rejections";

/// The attribute that is logged as it stands.
const TENANT: &str = "tenant";

/// How much of it.
const MAX_TENANT: usize = 128;

/// A clock that has gone back by more than this has been set; less is a straggler of the second before.
const STRAGGLERS: u64 = 60;

/// How many bits of the window hold its count: enough for the largest bound of a config.
const COUNT_BITS: u32 = 16;

/// Decides which refusals are logged, and logs them.
pub(crate) struct Rejections {
    per_second: u64,
    /// The second that is being counted, and how many were logged in it.
    window: AtomicU64,
    suppressed: AtomicU64,
}

/// What is logged of a refusal.
struct Line<'l> {
    rule: &'l str,
    tenant: Option<&'l str>,
    subject_type: &'l str,
    subject: Option<&'l str>,
    algorithm: &'l str,
    limit: Option<u64>,
    remaining: Option<u64>,
    retry_after: Option<Span>,
    kind: &'static str,
    reason: &'static str,
    config_version: &'l str,
    latency: Option<Span>,
}

impl Rejections {
    pub(crate) fn new(per_second: u32) -> Rejections {
        Rejections {
            per_second: u64::from(per_second).min((1 << COUNT_BITS) - 1),
            window: AtomicU64::new(0),
            suppressed: AtomicU64::new(0),
        }
    }

    /// Logs `decision`, a refusal of a request with these attributes, at `now`. `latency` is how long
    /// the store took; none if nobody had to be waited for.
    #[cold]
    pub(crate) fn log(
        &self,
        now: Time,
        decision: &Decision,
        attributes: &Attributes<'_>,
        latency: Option<Span>,
    ) {
        if !self.wants(now) {
            return;
        }
        // A refusal has a rule that refuses.
        let Some(rule) = decision.rule() else { return };
        let subject = rule.subject().map(tollgate_core::Subject::to_hex);
        self.write(&Line {
            rule: rule.rule().id(),
            tenant: attributes.get(TENANT).map(|it| start(it, MAX_TENANT)),
            subject_type: rule.rule().subject_type(),
            subject: subject.as_ref().map(|hex| prefix(hex.as_str())),
            algorithm: rule.rule().algorithm().name(),
            limit: rule.limit(),
            remaining: rule.remaining(),
            retry_after: rule.retry_after(),
            kind: rule.kind().name(),
            reason: rule.reason().map_or("", crate::Reason::name),
            config_version: decision.config_version(),
            latency,
        });
    }

    /// The same for a request that an ad-hoc limit has refused.
    #[cold]
    pub(crate) fn log_throttle(
        &self,
        now: Time,
        charge: &Charge<'_>,
        told: &Throttled,
        rules: &RuleSet,
        latency: Option<Span>,
    ) {
        if !self.wants(now) {
            return;
        }
        let subject = charge.subject().to_hex();
        self.write(&Line {
            rule: charge.rule,
            tenant: None,
            subject_type: "key",
            subject: Some(prefix(subject.as_str())),
            algorithm: charge.limit.algorithm().name(),
            limit: bounded(told.limit()),
            remaining: bounded(told.remaining()),
            retry_after: told.retry_after(),
            kind: Kind::Rate.name(),
            reason: reason_of(&told.outcome).map_or("", crate::Reason::name),
            config_version: rules.version(),
            latency,
        });
    }

    /// Whether a refusal at `now` is to be logged. If not, and somebody listens, it is counted.
    fn wants(&self, now: Time) -> bool {
        if self.per_second == 0
            || !tracing::event_enabled!(target: REJECTIONS, tracing::Level::INFO)
        {
            return false;
        }
        let is_due = self.is_due(now);
        if !is_due {
            self.suppressed.fetch_add(1, Ordering::Relaxed);
        }
        is_due
    }

    fn is_due(&self, now: Time) -> bool {
        let second = now.as_micros() / Span::SECOND.as_micros();
        let next = |window: u64| {
            let (counted, count) = (window >> COUNT_BITS, window & ((1 << COUNT_BITS) - 1));
            if second > counted || counted - second > STRAGGLERS {
                return Some(second << COUNT_BITS | 1);
            }
            (count < self.per_second).then_some(window + 1)
        };
        let order = Ordering::Relaxed;
        self.window.fetch_update(order, order, next).is_ok()
    }

    fn write(&self, line: &Line<'_>) {
        let suppressed = self.suppressed.swap(0, Ordering::Relaxed);
        tracing::info!(
            target: REJECTIONS,
            rule = line.rule,
            tenant = line.tenant,
            subject_type = line.subject_type,
            subject = line.subject,
            algorithm = line.algorithm,
            limit = line.limit,
            remaining = line.remaining,
            retry_after_ms = line.retry_after.map(Span::as_millis_ceil),
            kind = line.kind,
            reason = line.reason,
            config_version = line.config_version,
            store_latency_us = line.latency.map(Span::as_micros),
            suppressed = (suppressed > 0).then_some(suppressed),
            "refused"
        );
    }
}

/// The first eight digits.
fn prefix(hex: &str) -> &str {
    start(hex, 8)
}

/// What `text` starts with, at most `bytes` of it.
fn start(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 1_700_000_000;

    fn at(millis: u64) -> Time {
        Time::from_micros(START * 1_000_000 + millis * 1_000)
    }

    fn due(rejections: &Rejections, times: &[u64]) -> Vec<bool> {
        times.iter().map(|it| rejections.is_due(at(*it))).collect()
    }

    #[test]
    fn so_many_in_a_second_and_then_the_next_second() {
        let two = Rejections::new(2);
        let times = [0, 0, 0, 999, 1000, 1999, 1999, 5000];
        let expected = [true, true, false, false, true, true, false, true];
        assert_eq!(due(&two, &times), expected);
    }

    #[test]
    fn stragglers_of_the_second_before_count_in_this_one() {
        let two = Rejections::new(2);
        assert_eq!(due(&two, &[1000, 999, 1000]), [true, true, false]);
    }

    #[test]
    fn a_clock_that_was_set_back_does_not_silence_the_log() {
        let one = Rejections::new(1);
        assert_eq!(due(&one, &[3_600_000, 0, 0]), [true, true, false]);
    }

    #[test]
    fn the_largest_bound_of_a_config_fits() {
        let many = Rejections::new(10_000);
        let logged = (0..20_000).filter(|_| many.is_due(at(0))).count();
        assert_eq!(logged, 10_000);
    }

    #[test]
    fn text_is_cut_between_characters() {
        assert_eq!(start("abcé", 4), "abc");
        assert_eq!(start("abc", 8), "abc");
    }
}
