//! Where the books are, and the bounds of what waits to be written.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;

/// Where the books are.
#[derive(Clone, PartialEq, Eq)]
pub enum Database {
    /// A file. It is made if it is missing; its directory is not.
    Sqlite(PathBuf),
    /// A server: `postgres://user:password@host/database`.
    Postgres(String),
}

impl Database {
    /// Where it is, for people: without a password.
    #[must_use]
    pub fn place(&self) -> String {
        match self {
            Database::Sqlite(path) => path.display().to_string(),
            Database::Postgres(url) => without_secrets(url),
        }
    }
}

/// Host, port and database as the driver understands the URL. Where it does not, anything may be a
/// password.
fn without_secrets(url: &str) -> String {
    match parse(url) {
        Ok(options) => {
            let (host, port) = (options.get_host(), options.get_port());
            let database = options.get_database().unwrap_or_default();
            format!("postgres://{host}:{port}/{database}")
        }
        Err(_) => "postgres".to_owned(),
    }
}

/// The address of a server, or what is wrong with it.
pub(crate) fn parse(url: &str) -> Result<PgConnectOptions, String> {
    let schemes = ["postgres://", "postgresql://"];
    if !schemes.iter().any(|scheme| url.starts_with(scheme)) {
        return Err("it does not start with postgres://".to_owned());
    }
    PgConnectOptions::from_str(url).map_err(|error| error.to_string())
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Database::Sqlite(_) => "Sqlite",
            Database::Postgres(_) => "Postgres",
        };
        f.debug_tuple(name).field(&self.place()).finish()
    }
}

/// How a ledger works. [`Options::new`] has what is right for most.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the books are.
    pub database: Database,
    /// Within which time an entry is on a disk. For half of it, it waits for others to be written together with.
    pub flush_interval: Duration,
    /// How many entries wait in memory at most.
    pub max_queued: usize,
    /// The file for entries that the database does not take. Without it: beside the SQLite file; with
    /// PostgreSQL, nowhere, and they wait in memory.
    pub spill: Option<PathBuf>,
    /// How many bytes may wait there. The disk may have to hold twice as many, as space comes back by the file.
    pub max_spill_bytes: u64,
    /// How many entries one transaction writes, more or less.
    pub batch: usize,
    /// How long connecting may take.
    pub connect_timeout: Duration,
    /// How long one transaction or one question may take.
    pub write_timeout: Duration,
}

impl Options {
    /// Those of `database`, with the usual bounds.
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
        }
    }

    /// The file for entries that the database does not take.
    #[must_use]
    pub fn spill_file(&self) -> Option<PathBuf> {
        if self.spill.is_some() {
            return self.spill.clone();
        }
        match &self.database {
            Database::Sqlite(path) => {
                let mut file = path.as_os_str().to_owned();
                file.push(".spill");
                Some(file.into())
            }
            Database::Postgres(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_not_shown() {
        for url in [
            "postgres://gate:secret@db:5432/books",
            "postgres://gate:se%40cret@db:5432/books",
            "postgres://db:5432/books?password=secret&user=gate",
            "postgres://gate:sec?ret@db/books",
            "gate:secret@db",
        ] {
            let database = Database::Postgres(url.to_owned());
            let shown = format!("{database:?} {}", database.place());
            assert!(
                !shown.contains("cret") && !shown.contains("sec"),
                "{url}: {shown}"
            );
        }
        let database = Database::Postgres("postgres://gate:secret@db:5432/books".to_owned());
        assert_eq!(database.place(), "postgres://db:5432/books");
    }

    #[test]
    fn the_spill_is_beside_the_file_unless_another_is_named() {
        let mut options = Options::new(Database::Sqlite("/data/books.db".into()));
        assert_eq!(options.spill_file(), Some("/data/books.db.spill".into()));
        options.spill = Some("/spill/here".into());
        assert_eq!(options.spill_file(), Some("/spill/here".into()));
        let options = Options::new(Database::Postgres("postgres://db".to_owned()));
        assert_eq!(options.spill_file(), None);
    }
}
