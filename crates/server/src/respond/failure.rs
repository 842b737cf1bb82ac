//! The codes of a question that has no answer: one for each cause and protocol.

use serde::Serialize;
use tollgate::{DemandError, HoldError};
use tonic::{Code, Status};
use utoipa::ToSchema;

use super::answers::{lease_state, reservation_state};
use crate::access::AccessError;
use crate::backend::{AskError, HoldKind};
use crate::question::BadQuestion;
use crate::usage::UsageError;

/// The error for a reservation or lease that has already ended.
#[derive(Serialize, ToSchema)]
#[schema(as = Ended)]
pub(crate) struct EndedBody {
    /// For programs: does not change.
    #[schema(example = "RESERVATION_ENDED")]
    code: &'static str,
    /// For people: how the reservation or lease has ended.
    message: String,
    /// `CONSUMED`, `RELEASED` or `EXPIRED`.
    state: &'static str,
    /// How many units were used; null if all were given back.
    #[schema(required = true)]
    actual: Option<u64>,
}

/// The codes of an error: the HTTP status, the code in the HTTP body, the gRPC code, and the first
/// word of a RESP error.
type Codes = (u16, &'static str, Code, &'static str);

const BAD_REQUEST: Codes = (400, "BAD_REQUEST", Code::InvalidArgument, "ERR");
const NO_STORE: Codes = (503, "STORE_UNAVAILABLE", Code::Unavailable, "TRYAGAIN");

impl AskError {
    pub(super) fn codes(&self) -> Codes {
        match self {
            AskError::Store(_) | AskError::Demand(DemandError::Store(_)) => NO_STORE,
            AskError::Demand(_) => BAD_REQUEST,
            AskError::Hold { kind, error } => hold_codes(*kind, error),
            AskError::Usage(error) => match error {
                UsageError::Period { .. } | UsageError::Nul { .. } => BAD_REQUEST,
                UsageError::NoLedger => (409, "NO_LEDGER", Code::FailedPrecondition, "TGNOLEDGER"),
                UsageError::Ledger => (503, "LEDGER_UNAVAILABLE", Code::Unavailable, "TRYAGAIN"),
                UsageError::Busy => (503, "LEDGER_BUSY", Code::Unavailable, "TRYAGAIN"),
            },
        }
    }

    /// Returns the body of a response that says how a reservation or lease has ended.
    pub(super) fn ended(&self, code: &'static str) -> Option<EndedBody> {
        let AskError::Hold {
            kind,
            error: HoldError::Ended(hold),
        } = self
        else {
            return None;
        };
        Some(EndedBody {
            code,
            message: self.to_string(),
            state: match kind {
                HoldKind::Lease => lease_state(hold.state),
                HoldKind::Reservation => reservation_state(hold.state),
            },
            actual: hold.actual,
        })
    }
}

fn hold_codes(kind: HoldKind, error: &HoldError) -> Codes {
    let (unknown, ended) = match kind {
        HoldKind::Reservation => ("RESERVATION_UNKNOWN", "RESERVATION_ENDED"),
        HoldKind::Lease => ("LEASE_UNKNOWN", "LEASE_ENDED"),
    };
    let precondition = Code::FailedPrecondition;
    match error {
        HoldError::Unknown | HoldError::OtherKind { .. } => {
            (404, unknown, Code::NotFound, "TGUNKNOWN")
        }
        HoldError::NotYours => (403, "LEASE_NOT_YOURS", Code::PermissionDenied, "TGNOTYOURS"),
        HoldError::Conflict => (
            409,
            "RESERVATION_CONFLICT",
            Code::AlreadyExists,
            "TGCONFLICT",
        ),
        HoldError::Ended(_) => (409, ended, precondition, "TGENDED"),
        HoldError::TooManyOpen { .. } => {
            (429, "TOO_MANY_HOLDS", Code::ResourceExhausted, "TGTOOMANY")
        }
        HoldError::NothingToLease => (422, "NOTHING_TO_LEASE", precondition, "TGNOLEASE"),
        HoldError::OutOfRange { .. }
        | HoldError::AboveLease { .. }
        | HoldError::TooLong { .. }
        | HoldError::BadKey => BAD_REQUEST,
        HoldError::Store(_) => NO_STORE,
    }
}

impl AccessError {
    pub(super) fn codes(self) -> Codes {
        match self {
            AccessError::NoToken => (401, "NO_TOKEN", Code::Unauthenticated, "NOAUTH"),
            AccessError::NotPermitted(_) => {
                (403, "NOT_PERMITTED", Code::PermissionDenied, "NOPERM")
            }
            AccessError::TooManyWrong(_) => (
                429,
                "TOO_MANY_WRONG_TOKENS",
                Code::ResourceExhausted,
                "TRYAGAIN",
            ),
        }
    }
}

impl From<AccessError> for Status {
    fn from(error: AccessError) -> Status {
        Status::new(error.codes().2, error.to_string())
    }
}

impl From<AskError> for Status {
    fn from(error: AskError) -> Status {
        Status::new(error.codes().2, error.to_string())
    }
}

impl From<BadQuestion> for Status {
    fn from(error: BadQuestion) -> Status {
        Status::invalid_argument(error.to_string())
    }
}
