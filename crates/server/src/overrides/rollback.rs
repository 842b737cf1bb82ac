//! A rollback: an older version of the config that is in force instead of the config file.
//!
//! A rollback names the version of the file that it replaces. An instance whose file has that version puts
//! the older version in force. So the config file of an instance is never written, and a file with any
//! other version counts again.

use serde::{Deserialize, Serialize};

/// The name of a rollback among overrides. No override has this name.
pub(super) const NAME: &str = "config/rollback";

/// The version of the stored form.
const FORM: u32 = 1;

/// An older version of the config that is in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Rollback {
    /// The version of this form.
    v: u32,
    /// The version that is in force.
    pub version: String,
    /// The version of the config file that it replaces.
    pub instead_of: String,
    /// The author.
    pub author: String,
    /// The reason.
    pub reason: String,
    /// When the rollback was made, in milliseconds since 1970.
    pub set_at_epoch_millis: u64,
}

impl Rollback {
    pub(crate) fn new(version: &str, instead_of: &str, author: &str, reason: &str) -> Rollback {
        Rollback {
            v: FORM,
            version: version.to_owned(),
            instead_of: instead_of.to_owned(),
            author: author.to_owned(),
            reason: reason.to_owned(),
            set_at_epoch_millis: 0,
        }
    }

    pub(super) fn read(text: &str) -> Option<Rollback> {
        let read = serde_json::from_str::<Rollback>(text);
        if let Err(error) = &read {
            tracing::warn!(target: "tollgate::config", %error, "a stored rollback cannot be read, and has no effect");
        }
        read.ok()
    }
}
