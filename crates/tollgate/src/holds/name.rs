//! The names of reservations and leases, and the tokens of leases.

use std::fmt;
use std::str::FromStr;

use tollgate_core::HoldId;

/// Stands where a name does, of what no rule holds.
const UNHELD: &str = "unheld";

/// Names a reservation or a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldName {
    /// One that the store knows.
    Held(HoldId),
    /// What was let through without being held: because no rule applies to it, or because the store
    /// failed and the rules then allow. To end it does nothing.
    Unheld,
}

/// A text that names no reservation and no lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is no name of a reservation or lease: use the `id` as it was given")]
pub struct BadHoldName;

impl fmt::Display for HoldName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HoldName::Held(id) => id.fmt(f),
            HoldName::Unheld => f.write_str(UNHELD),
        }
    }
}

impl FromStr for HoldName {
    type Err = BadHoldName;

    fn from_str(text: &str) -> Result<HoldName, BadHoldName> {
        if text == UNHELD {
            return Ok(HoldName::Unheld);
        }
        text.parse().map(HoldName::Held).map_err(|_| BadHoldName)
    }
}

/// Shows that somebody is the owner of a lease.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct LeaseToken(pub(crate) u128);

impl fmt::Display for LeaseToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for LeaseToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LeaseToken(***)")
    }
}

impl FromStr for LeaseToken {
    type Err = BadHoldName;

    fn from_str(text: &str) -> Result<LeaseToken, BadHoldName> {
        let is_right = text.len() == 32 && text.bytes().all(|it| it.is_ascii_hexdigit());
        let token = is_right.then(|| u128::from_str_radix(text, 16).ok());
        token.flatten().map(LeaseToken).ok_or(BadHoldName)
    }
}
