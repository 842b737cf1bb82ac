//! The denial log: one log event for each denial, up to a bound per second. Its `tracing` target and
//! its setting use the word "rejections" for denials.
//!
//! The limiter writes the log, so every door has it, and every program that embeds the library. A
//! denial above the bound costs one counter. The next event below the bound has the number of denials
//! that were left out.
//!
//! An event has eight digits of the subject's hash. Without the secret, the log does not reveal the
//! subject.

use tollgate_config::{Attributes, Override, RuleSet};
use tollgate_core::{Charge, Span};
use tollgate_store::Clock;

use crate::decision::{Decision, Kind, bounded};
use crate::pace::{Pace, start};
use crate::throttle::Throttled;

/// The `tracing` target of the events, for filters of subscribers.
pub const REJECTIONS: &str = "tollgate::rejections";

/// The attribute that is logged in plain text.
const TENANT: &str = "tenant";

/// The most bytes of the tenant in the log.
const MAX_TENANT: usize = 128;

/// The digits of the hashed subject that are logged.
pub(crate) const SUBJECT_DIGITS: usize = 8;

/// Logs denials, up to a bound per second.
pub(crate) struct DenialLog(Pace);

/// The fields of a log event.
struct DenialEvent<'l> {
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

impl DenialLog {
    pub(crate) fn new(per_second: u32) -> DenialLog {
        DenialLog(Pace::new(per_second))
    }

    /// Logs `decision`, the denial of a request with these attributes. `latency` is how long the store took;
    /// `None` if the request did not wait.
    #[cold]
    pub(crate) fn log(
        &self,
        clock: &dyn Clock,
        decision: &Decision,
        attributes: &Attributes<'_>,
        latency: Option<Span>,
    ) {
        if !self.wants(clock) {
            return;
        }
        if let Some(block) = decision.blocked_by() {
            self.write_block(block, decision, attributes);
            return;
        }
        // Every other denial has a rule that denies.
        let Some(rule) = decision.rule() else { return };
        let subject = rule.subject().map(tollgate_core::Subject::to_hex);
        self.write(&DenialEvent {
            rule: rule.rule().id(),
            tenant: attributes.get(TENANT).map(|it| start(it, MAX_TENANT)),
            subject_type: rule.rule().subject_type(),
            subject: subject
                .as_ref()
                .map(|hex| start(hex.as_str(), SUBJECT_DIGITS)),
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

    /// Writes the denial of a blocked request.
    fn write_block(&self, block: &Override, decision: &Decision, attributes: &Attributes<'_>) {
        // A network is not a hash of one subject.
        let subject = block.subject();
        let hash = subject.and_then(tollgate_config::NamedSubject::hash);
        let hash = hash.map(|hash| format!("{hash:032x}"));
        self.write(&DenialEvent {
            rule: "",
            tenant: attributes.get(TENANT).map(|it| start(it, MAX_TENANT)),
            subject_type: subject.map_or("", |it| it.attribute()),
            subject: hash.as_deref().map(|hex| start(hex, SUBJECT_DIGITS)),
            algorithm: "",
            limit: None,
            remaining: None,
            retry_after: decision.retry_after(),
            kind: "",
            reason: crate::Reason::Blocked.name(),
            config_version: decision.config_version(),
            latency: None,
        });
    }

    /// Logs the denial of a request by an ad-hoc limit.
    #[cold]
    pub(crate) fn log_throttle(
        &self,
        clock: &dyn Clock,
        charge: &Charge<'_>,
        throttled: &Throttled,
        rules: &RuleSet,
        latency: Option<Span>,
    ) {
        if !self.wants(clock) {
            return;
        }
        let subject = charge.subject().to_hex();
        self.write(&DenialEvent {
            rule: charge.rule,
            tenant: None,
            subject_type: "key",
            subject: Some(start(subject.as_str(), SUBJECT_DIGITS)),
            algorithm: charge.limit.algorithm().name(),
            limit: bounded(throttled.limit()),
            remaining: bounded(throttled.remaining()),
            retry_after: throttled.retry_after(),
            kind: Kind::Rate.name(),
            reason: throttled.reason().map_or("", crate::Reason::name),
            config_version: rules.version(),
            latency,
        });
    }

    /// Returns whether to log a denial now. If the bound is reached, counts the denial as suppressed.
    fn wants(&self, clock: &dyn Clock) -> bool {
        !self.0.is_none()
            && tracing::event_enabled!(target: REJECTIONS, tracing::Level::INFO)
            && self.0.admits(clock.now())
    }

    fn write(&self, event: &DenialEvent<'_>) {
        tracing::info!(
            target: REJECTIONS,
            rule = event.rule,
            tenant = event.tenant,
            subject_type = event.subject_type,
            subject = event.subject,
            algorithm = event.algorithm,
            limit = event.limit,
            remaining = event.remaining,
            retry_after_ms = event.retry_after.map(Span::as_millis_ceil),
            kind = event.kind,
            reason = event.reason,
            config_version = event.config_version,
            store_latency_us = event.latency.map(Span::as_micros),
            suppressed = self.0.take_suppressed(),
            "refused"
        );
    }
}
