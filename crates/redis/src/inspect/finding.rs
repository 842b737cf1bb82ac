//! The findings of an inspection.

use std::fmt;

use crate::options::Address;
use crate::startup::StartError;

/// Whether something has to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Nothing to do.
    Ok,
    /// Works, but may cause trouble later.
    Warn,
    /// Does not work, or not as configured.
    Bad,
}

impl Level {
    /// Returns `ok`, `warn` or `bad`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Level::Ok => "ok",
            Level::Warn => "warn",
            Level::Bad => "bad",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The result of one check.
///
/// ```
/// use tollgate_redis::{Finding, Level};
///
/// let finding = Finding::warn("timeout", "it is 2 s", "use 50 ms");
/// assert_eq!(finding.level, Level::Warn);
/// assert_eq!(finding.help.as_deref(), Some("use 50 ms"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Whether something has to be done.
    pub level: Level,
    /// The name of the check, which does not change.
    pub check: &'static str,
    /// The result, for people.
    pub found: String,
    /// The remedy, if there is something to do.
    pub help: Option<String>,
    /// The most bytes that a server may use, if the check has found it.
    pub max_bytes: Option<u64>,
}

impl Finding {
    /// Returns a finding without a problem.
    pub fn ok(check: &'static str, found: impl Into<String>) -> Finding {
        Finding {
            level: Level::Ok,
            check,
            found: found.into(),
            help: None,
            max_bytes: None,
        }
    }

    /// Returns a finding that may cause trouble later.
    pub fn warn(check: &'static str, found: impl Into<String>, help: impl Into<String>) -> Finding {
        Finding::new(Level::Warn, check, found, help)
    }

    /// Returns a finding that must be fixed.
    pub fn bad(check: &'static str, found: impl Into<String>, help: impl Into<String>) -> Finding {
        Finding::new(Level::Bad, check, found, help)
    }

    /// Returns a finding of this level. A finding without a problem has no remedy.
    pub(super) fn new(
        level: Level,
        check: &'static str,
        found: impl Into<String>,
        help: impl Into<String>,
    ) -> Finding {
        Finding {
            level,
            help: (level > Level::Ok).then(|| help.into()),
            ..Finding::ok(check, found)
        }
    }

    /// Returns a finding for an error that keeps a store from starting.
    pub(super) fn from_error(level: Level, check: &'static str, error: StartError) -> Finding {
        let found = format!("{}: {}", error.setting, error.what);
        Finding::new(level, check, found, error.help)
    }

    /// Adds the address of the server to the finding.
    pub(super) fn at(self, address: &Address) -> Finding {
        Finding {
            found: format!("{address}: {}", self.found),
            ..self
        }
    }
}
