//! What spans tell of reservations and leases: never whose they are, nor their names.

use tollgate::{Acquiring, Hold, HoldError, Reserving};
use tracing::Span;

use super::{Told, failed};

impl Told for Reserving {
    fn tell(&self, span: &Span) {
        match self {
            Reserving::Held {
                decision: Some(decision),
                ..
            }
            | Reserving::Refused(decision) => decision.tell(span),
            Reserving::Held { decision: None, .. } => drop(span.record("outcome", "repeated")),
        }
    }
}

impl Told for Acquiring {
    fn tell(&self, span: &Span) {
        match self {
            Acquiring::Granted { decision, .. } | Acquiring::Refused(decision) => {
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
