//! What was looked at, and what was found.

use std::fmt;

use crate::check::StartError;
use crate::options::Address;

/// Whether something has to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Nothing: it is right, or only good to know.
    Ok,
    /// It works, and will hurt some day.
    Warn,
    /// It does not work, or not as the config says.
    Bad,
}

impl Level {
    /// The word for it: `ok`, `warn` or `bad`.
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

/// One thing that was looked at.
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
    /// What was looked at, in a word that does not change.
    pub check: &'static str,
    /// What was found there, for people.
    pub found: String,
    /// What to do, unless that is nothing.
    pub help: Option<String>,
}

impl Finding {
    /// Nothing has to be done.
    pub fn ok(check: &'static str, found: impl Into<String>) -> Finding {
        Finding {
            level: Level::Ok,
            check,
            found: found.into(),
            help: None,
        }
    }

    /// Something should be done.
    pub fn warn(check: &'static str, found: impl Into<String>, help: impl Into<String>) -> Finding {
        Finding {
            level: Level::Warn,
            help: Some(help.into()),
            ..Finding::ok(check, found)
        }
    }

    /// Something must be done.
    pub fn bad(check: &'static str, found: impl Into<String>, help: impl Into<String>) -> Finding {
        Finding {
            level: Level::Bad,
            help: Some(help.into()),
            ..Finding::ok(check, found)
        }
    }

    /// What would keep a store from starting.
    pub(super) fn refused(level: Level, check: &'static str, error: StartError) -> Finding {
        Finding {
            level,
            check,
            found: format!("{}: {}", error.setting, error.what),
            help: Some(error.help),
        }
    }

    /// The same, of this server.
    pub(super) fn at(self, address: &Address) -> Finding {
        Finding {
            found: format!("{address}: {}", self.found),
            ..self
        }
    }
}
