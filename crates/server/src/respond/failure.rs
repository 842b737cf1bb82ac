//! What each door says where a question has no answer: one code per cause and protocol.

use http::StatusCode;
use serde::Serialize;
use tollgate::{DemandError, HoldError};
use tonic::{Code, Status};
use utoipa::ToSchema;

use super::body::{lease_state, reservation_state};
use crate::backend::{AskError, HoldKind};
use crate::question::BadQuestion;
use crate::usage::UsageError;

/// Why something cannot be done to a reservation or lease that has ended.
#[derive(Serialize, ToSchema)]
#[schema(as = Ended)]
pub(crate) struct EndedBody {
    /// For programs: does not change.
    #[schema(example = "RESERVATION_ENDED")]
    code: &'static str,
    /// For people: how it has ended.
    message: String,
    /// `CONSUMED`, `RELEASED` or `EXPIRED`.
    state: &'static str,
    /// How many units were used; null if all were given back.
    #[schema(required = true)]
    actual: Option<u64>,
}

impl AskError {
    /// The status, the code in the body, the code of gRPC and the first word of a RESP error.
    fn codes(&self) -> (StatusCode, &'static str, Code, &'static str) {
        const BAD_REQUEST: (StatusCode, &str, Code, &str) = (
            StatusCode::BAD_REQUEST,
            "BAD_REQUEST",
            Code::InvalidArgument,
            "ERR",
        );
        const NO_STORE: (StatusCode, &str, Code, &str) = (
            StatusCode::SERVICE_UNAVAILABLE,
            "STORE_UNAVAILABLE",
            Code::Unavailable,
            "TRYAGAIN",
        );
        let (kind, error) = match self {
            AskError::Hold { kind, error } => (*kind, error),
            AskError::Store(_) | AskError::Demand(DemandError::Store(_)) => return NO_STORE,
            AskError::Demand(_) => return BAD_REQUEST,
            AskError::Usage(error) => {
                let unavailable = StatusCode::SERVICE_UNAVAILABLE;
                return match error {
                    UsageError::Period { .. } | UsageError::Nul { .. } => BAD_REQUEST,
                    UsageError::NoLedger => (
                        StatusCode::CONFLICT,
                        "NO_LEDGER",
                        Code::FailedPrecondition,
                        "TGNOLEDGER",
                    ),
                    UsageError::Ledger => (
                        unavailable,
                        "LEDGER_UNAVAILABLE",
                        Code::Unavailable,
                        "TRYAGAIN",
                    ),
                    UsageError::Busy => (unavailable, "LEDGER_BUSY", Code::Unavailable, "TRYAGAIN"),
                };
            }
        };
        let either = |of_reservation, of_lease| match kind {
            HoldKind::Reservation => of_reservation,
            HoldKind::Lease => of_lease,
        };
        match error {
            HoldError::Unknown | HoldError::OtherKind { .. } => (
                StatusCode::NOT_FOUND,
                either("RESERVATION_UNKNOWN", "LEASE_UNKNOWN"),
                Code::NotFound,
                "TGUNKNOWN",
            ),
            HoldError::NotYours => (
                StatusCode::FORBIDDEN,
                "LEASE_NOT_YOURS",
                Code::PermissionDenied,
                "TGNOTYOURS",
            ),
            HoldError::Conflict => (
                StatusCode::CONFLICT,
                "RESERVATION_CONFLICT",
                Code::AlreadyExists,
                "TGCONFLICT",
            ),
            HoldError::Ended(_) => (
                StatusCode::CONFLICT,
                either("RESERVATION_ENDED", "LEASE_ENDED"),
                Code::FailedPrecondition,
                "TGENDED",
            ),
            HoldError::NothingToLease => (
                StatusCode::UNPROCESSABLE_ENTITY,
                "NOTHING_TO_LEASE",
                Code::FailedPrecondition,
                "TGNOLEASE",
            ),
            HoldError::OutOfRange { .. } | HoldError::TooLong { .. } | HoldError::BadKey => {
                BAD_REQUEST
            }
            HoldError::Store(_) => NO_STORE,
        }
    }

    pub(super) fn http_status(&self) -> (StatusCode, &'static str) {
        let (status, code, ..) = self.codes();
        (status, code)
    }

    pub(super) fn resp_code(&self) -> &'static str {
        self.codes().3
    }

    /// The body of a response that says how a reservation or lease has ended.
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
