//! The rejection log: one event for each refusal, so many in a second at most.
//!
//! It is written here, where decisions are made, so that every door and every program that embeds
//! the library has it. Only refusals come here. One that is above the bound costs a counter, and the
//! next one that is below it says how many there were.
//!
//! An event names its subject by eight digits of the hash alone, so that nobody is found in the log who
//! does not hold the secret.

use tollgate_config::{Attributes, RuleSet};
use tollgate_core::{Charge, Span};
use tollgate_store::Clock;

use crate::decision::{Decision, Kind, bounded};
use crate::pace::{Pace, start};
use crate::rule_outcome::reason_of;
use crate::throttle::Throttled;

/// The target of the events, for subscribers that treat them apart.
pub const REJECTIONS: &str = "tollgate::rejections";

/// The attribute that is logged as it stands.
const TENANT: &str = "tenant";

/// How much of it.
const MAX_TENANT: usize = 128;

/// Decides which refusals are logged, and logs them.
pub(crate) struct Rejections(Pace);

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
        Rejections(Pace::new(per_second))
    }

    /// Logs `decision`, a refusal of a request with these attributes, at `now`. `latency` is how long
    /// the store took; none if nobody had to be waited for.
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
        clock: &dyn Clock,
        charge: &Charge<'_>,
        told: &Throttled,
        rules: &RuleSet,
        latency: Option<Span>,
    ) {
        if !self.wants(clock) {
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
    fn wants(&self, clock: &dyn Clock) -> bool {
        !self.0.is_none()
            && tracing::event_enabled!(target: REJECTIONS, tracing::Level::INFO)
            && self.0.admits(clock.now())
    }

    fn write(&self, line: &Line<'_>) {
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
            suppressed = self.0.take_suppressed(),
            "refused"
        );
    }
}

/// The first eight digits.
fn prefix(hex: &str) -> &str {
    start(hex, 8)
}
