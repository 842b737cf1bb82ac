//! Span fields of reservations and leases. Never a tenant or an id.

use tollgate::{AcquireOutcome, Hold, HoldError, ReserveOutcome};
use tracing::Span;

use super::{SpanOutcome, failed};

impl SpanOutcome for ReserveOutcome {
    fn record_in(&self, span: &Span) {
        match self {
            ReserveOutcome::Held {
                decision: Some(decision),
                ..
            }
            | ReserveOutcome::Denied(decision) => decision.record_in(span),
            ReserveOutcome::Held { decision: None, .. } => drop(span.record("outcome", "repeated")),
        }
    }
}

impl SpanOutcome for AcquireOutcome {
    fn record_in(&self, span: &Span) {
        match self {
            AcquireOutcome::Granted { decision, .. } | AcquireOutcome::Denied(decision) => {
                decision.record_in(span);
            }
        }
    }
}

impl SpanOutcome for Hold {
    fn record_in(&self, span: &Span) {
        span.record("outcome", "done");
    }
}

impl SpanOutcome for HoldError {
    fn record_in(&self, span: &Span) {
        let kind = match self {
            HoldError::Unknown | HoldError::OtherKind { .. } => "unknown",
            HoldError::NotYours => "not_yours",
            HoldError::Conflict => "conflict",
            HoldError::Ended(_) => "ended",
            HoldError::NothingToLease => "nothing_to_lease",
            HoldError::OutOfRange { .. } | HoldError::TooLong { .. } | HoldError::BadKey => {
                "bad_request"
            }
            HoldError::Store(error) => return error.record_in(span),
        };
        failed(span, kind);
    }
}
