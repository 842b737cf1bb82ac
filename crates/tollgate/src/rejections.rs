//! The denial log: one log event for each denial, up to a bound per second. Its `tracing` target and
//! its setting use the word "rejections" for denials.
//!
//! The limiter writes the log, so every door has it, and every program that embeds the library. A
//! denial above the bound costs one counter. The next event below the bound has the number of denials
//! that were left out. Rules with `log_denials: all` are not bounded.
//!
//! An event has eight digits of the subject's hash. Without the secret, the log does not reveal the
//! subject.

use tollgate_config::FailurePolicy;
use tollgate_core::{Span, Subject, Time};

use crate::denial::DeniedRequest;
use crate::pace::{Pace, start};

/// The `tracing` target of the events, for filters of subscribers.
pub const REJECTIONS: &str = "tollgate::rejections";

/// The name of every event.
const EVENT: &str = "rate_limit_denied";

/// The digits of the hashed subject that are logged.
pub(crate) const SUBJECT_DIGITS: usize = 8;

/// Logs denials, up to a bound per second.
pub(crate) struct DenialLog(Pace);

impl DenialLog {
    pub(crate) fn new(per_second: u32) -> DenialLog {
        DenialLog(Pace::new(per_second))
    }

    /// Sets another bound.
    pub(crate) fn set_pace(&self, per_second: u32) {
        self.0.set(per_second);
    }

    /// Returns whether a subscriber wants denials.
    #[inline]
    pub(crate) fn is_on() -> bool {
        tracing::event_enabled!(target: REJECTIONS, tracing::Level::INFO)
    }

    /// Returns whether to log a denial now. If the bound is reached, counts the denial as suppressed.
    pub(crate) fn wants(&self, now: Time, is_all: bool) -> bool {
        DenialLog::is_on() && (is_all || (!self.0.is_none() && self.0.admits(now)))
    }

    /// Logs a denial.
    #[cold]
    pub(crate) fn write(&self, denial: &DeniedRequest) {
        let subject = denial.subject().map(Subject::to_hex);
        let subject = subject.as_ref();
        let source = denial.source();
        let trace = denial.origin.trace.map(|it| format!("{it:032x}"));
        tracing::info!(
            target: REJECTIONS,
            event = EVENT,
            ruleId = denial.rule(),
            tenantId = denial.tenant(),
            subjectType = denial.subject_type(),
            subjectHashPrefix = subject.map(|hex| start(hex.as_str(), SUBJECT_DIGITS)),
            algorithm = denial.algorithm(),
            limit = denial.limit,
            remaining = denial.remaining,
            retryAfterMillis = denial.retry_after.map(Span::as_millis_ceil),
            redisLatencyMillis = denial.latency.map(millis),
            kind = denial.kind,
            reason = denial.reason,
            policy = denial.policy.map(FailurePolicy::name),
            action = denial.action(),
            door = denial.origin.door,
            traceId = trace.as_deref(),
            "override" = source.as_ref().and_then(|it| it.by_override.as_deref()),
            numbersFrom = source.as_ref().map(|it| it.numbers.as_str()),
            configVersion = denial.config_version(),
            suppressed = self.0.take_suppressed(),
            "denied"
        );
    }
}

/// Returns a latency in milliseconds, to the microsecond.
#[allow(clippy::cast_precision_loss)] // A latency is far below 2^53 microseconds.
fn millis(latency: Span) -> f64 {
    latency.as_micros() as f64 / 1000.0
}
