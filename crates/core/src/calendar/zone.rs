//! Time zones by name.

use std::fmt;
use std::sync::Arc;

use jiff::tz::TimeZone;

use crate::{ParamError, ParamProblem};

/// A time zone. Cheap to clone.
#[derive(Clone)]
pub struct Zone {
    name: Arc<str>,
    pub(super) zone: TimeZone,
}

impl Zone {
    /// Returns the zone with this name in the IANA database, such as `Europe/Berlin`.
    ///
    /// # Errors
    /// If the database has no such zone.
    pub fn named(name: &str) -> Result<Zone, ParamError> {
        let unknown = |_| ParamProblem::UnknownZone(name.to_owned()).of("timezone");
        let zone = TimeZone::get(name).map_err(unknown)?;
        let name = zone.iana_name().unwrap_or(name).into();
        Ok(Zone { name, zone })
    }

    /// Returns the zone of coordinated universal time.
    #[must_use]
    pub fn utc() -> Zone {
        Zone {
            name: "UTC".into(),
            zone: TimeZone::UTC,
        }
    }

    /// Returns the names of all zones.
    pub fn names() -> impl Iterator<Item = String> {
        jiff::tz::db().available().map(|name| name.to_string())
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl PartialEq for Zone {
    fn eq(&self, other: &Zone) -> bool {
        self.name == other.name
    }
}

impl Eq for Zone {}

impl std::hash::Hash for Zone {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl fmt::Debug for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}
