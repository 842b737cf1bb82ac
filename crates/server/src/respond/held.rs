//! What is told of a reservation, a lease or usage that cannot be had, at every door.

use http::StatusCode;
use serde::Serialize;
use tollgate::HoldError;
use tonic::{Code, Status};
use utoipa::ToSchema;

use super::RequestError;
use super::hold::{lease_state, state};
use crate::usage::UsageError;

/// What was asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum About {
    Reservation,
    Lease,
}

/// An error of the engine, and what it is about.
#[derive(Debug, thiserror::Error)]
#[error("{}", told(.error))]
pub(crate) struct HeldError {
    about: About,
    error: HoldError,
}

/// What is said of it. What exactly is wrong with a store is for the log, and no concern of clients.
fn told(error: &HoldError) -> String {
    match error {
        HoldError::Store(_) => "this cannot be done now: the store does not answer".to_owned(),
        _ => error.to_string(),
    }
}

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
    /// How many units were used; null if everything was given back.
    #[schema(required = true)]
    actual: Option<u64>,
}

impl HeldError {
    pub(crate) fn new(about: About, error: HoldError) -> HeldError {
        HeldError { about, error }
    }

    /// The status of an HTTP answer, and the code in its body.
    pub(super) fn status(&self) -> (StatusCode, &'static str) {
        let lease = self.about == About::Lease;
        let either = |status, of_lease, of_reservation| match lease {
            true => (status, of_lease),
            false => (status, of_reservation),
        };
        match &self.error {
            HoldError::Unknown | HoldError::OtherKind { .. } => either(
                StatusCode::NOT_FOUND,
                "LEASE_UNKNOWN",
                "RESERVATION_UNKNOWN",
            ),
            HoldError::NotYours => (StatusCode::FORBIDDEN, "LEASE_NOT_YOURS"),
            HoldError::Conflict => (StatusCode::CONFLICT, "RESERVATION_CONFLICT"),
            HoldError::Ended(_) => either(StatusCode::CONFLICT, "LEASE_ENDED", "RESERVATION_ENDED"),
            HoldError::NothingToLease => (StatusCode::UNPROCESSABLE_ENTITY, "NOTHING_TO_LEASE"),
            HoldError::OutOfRange { .. } | HoldError::TooLong { .. } => {
                (StatusCode::BAD_REQUEST, "BAD_REQUEST")
            }
            HoldError::Store(_) => (StatusCode::SERVICE_UNAVAILABLE, "STORE_UNAVAILABLE"),
        }
    }

    /// The body of an answer that says how it has ended.
    pub(super) fn ended(&self, code: &'static str) -> Option<EndedBody> {
        let HoldError::Ended(hold) = &self.error else {
            return None;
        };
        Some(EndedBody {
            code,
            message: self.to_string(),
            state: match self.about {
                About::Lease => lease_state(hold.state),
                About::Reservation => state(hold.state),
            },
            actual: hold.actual,
        })
    }

    /// Whether it is worth trying again.
    pub(super) fn is_store(&self) -> bool {
        matches!(self.error, HoldError::Store(_))
    }

    /// The word that an error of the RESP door starts with.
    pub(crate) fn word(&self) -> &'static str {
        match &self.error {
            HoldError::Unknown | HoldError::OtherKind { .. } => "TGUNKNOWN",
            HoldError::NotYours => "TGNOTYOURS",
            HoldError::Conflict => "TGCONFLICT",
            HoldError::Ended(_) => "TGENDED",
            HoldError::NothingToLease => "TGNOLEASE",
            HoldError::OutOfRange { .. } | HoldError::TooLong { .. } => "ERR",
            HoldError::Store(_) => "TRYAGAIN",
        }
    }
}

impl UsageError {
    /// The status of an HTTP answer, and the code in its body.
    pub(super) fn status(&self) -> (StatusCode, &'static str) {
        match self {
            UsageError::Period { .. } => (StatusCode::BAD_REQUEST, "BAD_REQUEST"),
            UsageError::NoLedger => (StatusCode::CONFLICT, "NO_LEDGER"),
            UsageError::Ledger => (StatusCode::SERVICE_UNAVAILABLE, "LEDGER_UNAVAILABLE"),
        }
    }

    /// The word that an error of the RESP door starts with.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            UsageError::Period { .. } => "ERR",
            UsageError::NoLedger => "TGNOLEDGER",
            UsageError::Ledger => "TRYAGAIN",
        }
    }
}

impl RequestError {
    pub(crate) fn of_reservation(error: HoldError) -> RequestError {
        HeldError::new(About::Reservation, error).into()
    }

    pub(crate) fn of_lease(error: HoldError) -> RequestError {
        HeldError::new(About::Lease, error).into()
    }
}

/// What a gRPC client is told of usage.
impl From<UsageError> for Status {
    fn from(error: UsageError) -> Status {
        let code = match &error {
            UsageError::Period { .. } => Code::InvalidArgument,
            UsageError::NoLedger => Code::FailedPrecondition,
            UsageError::Ledger => Code::Unavailable,
        };
        Status::new(code, error.to_string())
    }
}

/// What a gRPC client is told of the rest.
impl From<HeldError> for Status {
    fn from(held: HeldError) -> Status {
        let code = match &held.error {
            HoldError::Unknown | HoldError::OtherKind { .. } => Code::NotFound,
            HoldError::NotYours => Code::PermissionDenied,
            HoldError::Conflict => Code::AlreadyExists,
            HoldError::Ended(_) | HoldError::NothingToLease => Code::FailedPrecondition,
            HoldError::OutOfRange { .. } | HoldError::TooLong { .. } => Code::InvalidArgument,
            HoldError::Store(_) => Code::Unavailable,
        };
        Status::new(code, held.to_string())
    }
}
