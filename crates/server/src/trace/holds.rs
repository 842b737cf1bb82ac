//! What spans tell of reservations and leases: never whose they are, nor their names.

use tollgate::{AcquireOutcome, Hold, HoldError, ReserveOutcome};
use tracing::Span;

use super::{Told, failed};

impl Told for ReserveOutcome {
    fn tell(&self, span: &Span) {
        match self {
            ReserveOutcome::Held {
                decision: Some(decision),
                ..
            }
            | ReserveOutcome::Denied(decision) => decision.tell(span),
            ReserveOutcome::Held { decision: None, .. } => drop(span.record("outcome", "repeated")),
        }
    }
}

impl Told for AcquireOutcome {
    fn tell(&self, span: &Span) {
        match self {
            AcquireOutcome::Granted { decision, .. } | AcquireOutcome::Denied(decision) => {
                decision.tell(span);
            }
        }
    }
}

impl Told for Hold {
    fn tell(&self, span: &Span) {
        span.record("outcome", "done");
    }
}

impl Told for HoldError {
    fn tell(&self, span: &Span) {
        let kind = match self {
            HoldError::Unknown | HoldError::OtherKind { .. } => "unknown",
            HoldError::NotYours => "not_yours",
            HoldError::Conflict => "conflict",
            HoldError::Ended(_) => "ended",
            HoldError::NothingToLease => "nothing_to_lease",
            HoldError::OutOfRange { .. } | HoldError::TooLong { .. } | HoldError::BadKey => {
                "bad_request"
            }
            HoldError::Store(error) => return error.tell(span),
        };
        failed(span, kind);
    }
}
