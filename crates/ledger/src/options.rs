//! Where the ledger is stored, and the bounds on entries that wait to be written.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::error::OpenError;

/// The database of a ledger.
#[derive(Clone, PartialEq, Eq)]
pub enum Database {
    /// A file. If the file is missing, it is created; its directory must exist. Needs the feature `sqlite`.
    Sqlite(PathBuf),
    /// A server: `postgres://user:password@host/database`. Needs the feature `postgres`.
    Postgres(String),
}

impl Database {
    /// Returns the file, or the host, port and database of the server, without user and password.
    #[must_use]
    pub fn location(&self) -> String {
        match self {
            Database::Sqlite(path) => path.display().to_string(),
            #[cfg(feature = "postgres")]
            Database::Postgres(url) => match parse(url) {
                Ok(options) => {
                    let (host, port) = (options.get_host(), options.get_port());
                    let database = options.get_database().unwrap_or_default();
                    format!("postgres://{host}:{port}/{database}")
                }
                // The driver does not understand the URL, so any part of it may be a password.
                Err(_) => "postgres".to_owned(),
            },
            #[cfg(not(feature = "postgres"))]
            Database::Postgres(_) => "postgres".to_owned(),
        }
    }

    /// Checks that this build has the backend of the database.
    ///
    /// # Errors
    /// If the feature of the backend is not enabled. The error names the feature.
    pub fn is_supported(&self) -> Result<(), OpenError> {
        match self {
            Database::Sqlite(_) if cfg!(feature = "sqlite") => Ok(()),
            Database::Postgres(_) if cfg!(feature = "postgres") => Ok(()),
            _ => Err(self.missing_feature()),
        }
    }

    pub(crate) fn missing_feature(&self) -> OpenError {
        OpenError::MissingFeature {
            feature: match self {
                Database::Sqlite(_) => "sqlite",
                Database::Postgres(_) => "postgres",
            },
        }
    }
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Database::Sqlite(_) => "Sqlite",
            Database::Postgres(_) => "Postgres",
        };
        f.debug_tuple(name).field(&self.location()).finish()
    }
}

/// Parses the URL of a server, or says what is wrong with it.
#[cfg(feature = "postgres")]
pub(crate) fn parse(url: &str) -> Result<sqlx::postgres::PgConnectOptions, String> {
    let schemes = ["postgres://", "postgresql://"];
    if !schemes.iter().any(|scheme| url.starts_with(scheme)) {
        return Err("it does not start with postgres://".to_owned());
    }
    url.parse().map_err(|error: sqlx::Error| error.to_string())
}

/// The settings of a ledger. [`Options::new`] has defaults that suit most deployments.
#[derive(Clone, Debug)]
pub struct Options {
    /// The database.
    pub database: Database,
    /// The time within which an entry is on disk. For half of this time, the entry waits for other entries to
    /// share a transaction with.
    pub flush_interval: Duration,
    /// How many entries may wait in memory.
    pub max_queued: usize,
    /// The file for entries while the database takes none. With SQLite, `None` means a file beside the
    /// database. With PostgreSQL, `None` means no spill file: entries wait in memory.
    pub spill: Option<PathBuf>,
    /// How many bytes may wait in the spill file. The disk may need twice as much space, because space
    /// is freed one whole file at a time.
    pub max_spill_bytes: u64,
    /// About how many entries one transaction writes.
    pub batch: usize,
    /// How long connecting may take.
    pub connect_timeout: Duration,
    /// How long one transaction or one query may take.
    pub write_timeout: Duration,
    /// How long a caller waits until its entries are in the database: see [`Ledger::write`](crate::Ledger::write).
    pub strict_wait: Duration,
}

impl Options {
    /// Returns the default settings for `database`.
    #[must_use]
    pub fn new(database: Database) -> Options {
        Options {
            database,
            flush_interval: Duration::from_millis(200),
            max_queued: 100_000,
            spill: None,
            max_spill_bytes: 1 << 30,
            batch: 10_000,
            connect_timeout: Duration::from_secs(5),
            write_timeout: Duration::from_secs(5),
            strict_wait: Duration::from_secs(10),
        }
    }

    /// Returns the spill file: the one in `spill`, or the default.
    #[must_use]
    pub fn spill_file(&self) -> Option<PathBuf> {
        match (&self.spill, &self.database) {
            (Some(file), _) => Some(file.clone()),
            (None, Database::Sqlite(path)) => {
                let mut file = path.as_os_str().to_owned();
                file.push(".spill");
                Some(file.into())
            }
            (None, Database::Postgres(_)) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_not_shown() {
        let first = "postgres://gate:secret@db:5432/ledger";
        for url in [
            first,
            "postgres://gate:se%40cret@db:5432/ledger",
            "postgres://db:5432/ledger?password=secret&user=gate",
            "postgres://gate:sec?ret@db/ledger",
            "gate:secret@db",
        ] {
            let database = Database::Postgres(url.to_owned());
            let shown = format!("{database:?} {}", database.location());
            let is_secret = !shown.contains("cret") && !shown.contains("sec");
            assert!(is_secret, "{url}: {shown}");
        }
        let database = Database::Postgres(first.to_owned());
        let expected = match cfg!(feature = "postgres") {
            true => "postgres://db:5432/ledger",
            false => "postgres",
        };
        assert_eq!(database.location(), expected);
    }

    #[test]
    fn spill_file_is_beside_the_sqlite_file_by_default() {
        let mut options = Options::new(Database::Sqlite("/data/ledger.db".into()));
        assert_eq!(options.spill_file(), Some("/data/ledger.db.spill".into()));
        options.spill = Some("/spill/here".into());
        assert_eq!(options.spill_file(), Some("/spill/here".into()));
        let options = Options::new(Database::Postgres("postgres://db".to_owned()));
        assert_eq!(options.spill_file(), None);
    }

    #[test]
    fn a_missing_backend_is_named_with_its_feature() {
        let file = Database::Sqlite("/data/ledger.db".into());
        let server = Database::Postgres("postgres://db".to_owned());
        let (sqlite, postgres) = (cfg!(feature = "sqlite"), cfg!(feature = "postgres"));
        for (database, has, text) in [
            (
                file,
                sqlite,
                "SQLite: build it with the feature `ledger-sqlite`",
            ),
            (
                server,
                postgres,
                "PostgreSQL: build it with the feature `ledger-postgres`",
            ),
        ] {
            assert_eq!(database.is_supported().is_ok(), has);
            let error = database.missing_feature().to_string();
            assert_eq!(error, format!("this build has no ledger in {text}"));
        }
    }
}
