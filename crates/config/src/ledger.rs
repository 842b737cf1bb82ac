//! The ledger that usage is recorded in: plain data, validated. Nothing here opens a database.

use std::fmt;
use std::io;
use std::path::PathBuf;

use tollgate_core::Span;
use tollgate_rules::document::{
    BadValue, Duration, Field, Place, Problems, Size, Text, Whole, section,
};

use crate::fields::{Env, duration_in, number_in, text};
use crate::secrets::Secret;
use crate::store::{Parts, UrlError, address, decode, host_port, read_secret_file};

/// The default port of PostgreSQL.
const PORT: u16 = 5432;

/// The ledger that usage is recorded in, and how entries get there.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ledger {
    /// The database.
    pub database: LedgerDatabase,
    /// How long an entry may wait to be written (default 200 ms).
    pub flush_interval: Span,
    /// How many entries wait in memory at most (default 100,000).
    pub max_queued: usize,
    /// The file that keeps entries while the database is down (default: beside the SQLite file, or named
    /// after the namespace).
    pub spill: PathBuf,
    /// How large the spill file may become, in bytes (default 1,000,000,000).
    pub max_spill: u64,
    /// How long a request of a strict rule waits until its usage is in the database (default 10 s).
    pub strict_wait: Span,
}

/// The database of a ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LedgerDatabase {
    /// A SQLite file, created if it does not exist.
    Sqlite(PathBuf),
    /// A PostgreSQL server.
    Postgres(PostgresUrl),
}

/// The address of a PostgreSQL server, or the file that holds it. The address is a secret: it may
/// contain a password.
#[derive(Clone, PartialEq, Eq)]
pub enum PostgresUrl {
    /// The address itself.
    Text(Secret),
    /// A file that holds the address.
    File(PathBuf),
}

impl PostgresUrl {
    /// Returns the address without a line break at the end. Reads the file if the address is in one.
    ///
    /// # Errors
    /// If the file cannot be read, or does not hold the address of a PostgreSQL server.
    pub fn read(&self) -> io::Result<Secret> {
        let path = match self {
            PostgresUrl::Text(url) => return Ok(url.clone()),
            PostgresUrl::File(path) => path,
        };
        let url = read_secret_file(path, "an address")?;
        match check(&String::from_utf8_lossy(url.expose())) {
            Ok(_) => Ok(url),
            Err(bad) => Err(io::Error::new(io::ErrorKind::InvalidData, bad.message)),
        }
    }
}

/// Shows the address without the user, the password and the parameters, for logs.
impl fmt::Display for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PostgresUrl::File(path) => write!(f, "postgres, address in {}", path.display()),
            PostgresUrl::Text(url) => {
                let shown = check(&String::from_utf8_lossy(url.expose()));
                f.write_str(shown.as_deref().unwrap_or("postgres"))
            }
        }
    }
}

impl fmt::Debug for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for LedgerDatabase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LedgerDatabase::Sqlite(path) => write!(f, "sqlite {}", path.display()),
            LedgerDatabase::Postgres(url) => url.fmt(f),
        }
    }
}

/// Checks the address of a PostgreSQL server, and returns the part that may be shown. Neither the
/// message nor the remedy of an error quotes the address.
pub(crate) fn check(text: &str) -> Result<String, BadValue> {
    const HELP: &str = "write an address such as postgres://user:${PGPASSWORD}@host:5432/database";
    let of_url = |error: UrlError| {
        let help = match error {
            UrlError::BareIpv6 => "an IPv6 address stands in brackets, such as [::1]:5432",
            UrlError::SeveralHosts => "name one host: the one that accepts writes",
            UrlError::BadEscape | UrlError::Unescaped => error.help(),
            UrlError::BadHost | UrlError::BadPort | UrlError::NoHost => error.help(),
            _ => HELP,
        };
        BadValue::new(error.to_string(), help)
    };
    // The driver checks the parameters, such as sslmode.
    let (address_part, query) = match text.rfind('@') {
        Some(at) => match text[at..].find('?') {
            Some(query) => text.split_at(at + query),
            None => (text, ""),
        },
        None => text.split_at(text.find('?').unwrap_or(text.len())),
    };
    if query.contains('#') || !query.bytes().all(|byte| byte.is_ascii_graphic()) {
        let help = "write ?name=value, such as ?sslmode=require";
        return Err(BadValue::new(
            "the parameters of the URL are malformed",
            help,
        ));
    }
    let parts = Parts::of(address_part).map_err(of_url)?;
    if !matches!(parts.scheme.as_str(), "postgres" | "postgresql") {
        let message = format!("`{}` is not a scheme of PostgreSQL", parts.scheme);
        return Err(BadValue::new(message, "use postgres://"));
    }
    parts.login().map_err(of_url)?;
    let (host, port) = address(parts.hosts, PORT).map_err(of_url)?;
    let database = decode(parts.path).map_err(of_url)?;
    if database.is_empty() || database.contains('/') {
        return Err(BadValue::new("the URL does not name a database", HELP));
    }
    Ok(format!("postgres://{}/{database}", host_port(&host, port)))
}

section! {
    /// The ledger that usage is recorded in: SQLite or PostgreSQL. `${VAR}` in its texts reads the environment.
    pub(crate) struct RawLedger is "`ledger`" {
        /// A SQLite file, created if it does not exist.
        sqlite: Text = "sqlite",
        /// The address of a PostgreSQL: postgres://user:password@host:5432/database. Special characters of the user and the password are percent-encoded.
        postgres: Text = "postgres",
        /// A file that holds the address of a PostgreSQL, read at the start.
        postgres_url_file: Text = "postgres_url_file",
        /// How long an entry may wait to be written, 10ms to 60s (default 200ms).
        flush_interval: Duration = "flush_interval",
        /// How many entries wait in memory at most, 1000 to 10000000 (default 100000).
        max_queued: Whole = "max_queued",
        /// The file that keeps entries while the database is down (default: beside the SQLite file, or ./tollgate-NAMESPACE.spill).
        spill: Text = "spill",
        /// How large the spill file may become, 1MB to 1TB (default 1GB).
        max_spill: Size = "max_spill",
        /// How long a request of a rule with durability strict waits until its usage is in the database, 10ms to 60s (default 10s).
        strict_wait: Duration = "strict_wait",
    }
}

const MEGABYTE: u64 = 1_000_000;
const NO_DATABASE: &str =
    "write `sqlite: ./tollgate.db`, or `postgres: \"postgres://user:${PGPASSWORD}@host/database\"`";

pub(crate) fn ledger(
    field: &Field<RawLedger>,
    namespace: &str,
    env: Env<'_>,
    problems: &mut Problems<'_>,
) -> Option<Ledger> {
    let Field::Given { key, at } = field else {
        return None;
    };
    let raw = &at.value;
    let (mut flush_interval, mut max_queued) = (Span::from_millis(200), 100_000);
    duration_in(
        &raw.flush_interval,
        &mut flush_interval,
        10..=60_000,
        problems,
    );
    let mut strict_wait = Span::from_secs(10);
    duration_in(&raw.strict_wait, &mut strict_wait, 10..=60_000, problems);
    let queued = 1_000..=10_000_000;
    number_in(&raw.max_queued, &mut max_queued, queued, problems);
    let max_spill = raw
        .max_spill
        .value()
        .map_or(1_000 * MEGABYTE, |size| size.0);
    if let Some(at) = raw.max_spill.get()
        && !(MEGABYTE..=1_000_000 * MEGABYTE).contains(&max_spill)
    {
        let message = format!("{max_spill} bytes are not between 1MB and 1TB");
        problems.report(at.place, message, "write a size such as 512MB or 10GB");
    }
    let database = database(raw, *key, env, problems);
    let given = text("spill", &raw.spill, env, problems).map(PathBuf::from);
    let database = database?;
    let spill = given.unwrap_or_else(|| default_spill(&database, namespace));
    if let (LedgerDatabase::Sqlite(file), Some(at)) = (&database, raw.spill.get())
        && *file == spill
    {
        let help = "name another file: entries wait there while the database is down";
        problems.report(at.place, "`spill` is the database itself", help);
    }
    Some(Ledger {
        database,
        flush_interval,
        max_queued,
        spill,
        max_spill,
        strict_wait,
    })
}

/// Returns the database of the ledger. Reports a problem unless exactly one database is given.
fn database(
    raw: &RawLedger,
    key: Place,
    env: Env<'_>,
    problems: &mut Problems<'_>,
) -> Option<LedgerDatabase> {
    let fields = [
        ("sqlite", &raw.sqlite),
        ("postgres", &raw.postgres),
        ("postgres_url_file", &raw.postgres_url_file),
    ];
    let given = fields.iter();
    let given: Vec<_> = given
        .filter_map(|(name, it)| Some((name, it.key()?)))
        .collect();
    match given.as_slice() {
        [] => {
            problems.report(key, "`ledger` does not name a database", NO_DATABASE);
            return None;
        }
        [_] => {}
        [(first, _), (second, at), ..] => {
            let message = format!("`{first}` and `{second}` cannot be used together");
            problems.report(*at, message, "keep one of them: a ledger has one database");
            return None;
        }
    }
    if let Some(path) = text("sqlite", &raw.sqlite, env, problems) {
        let at = raw.sqlite.get()?;
        if let Some((message, help)) = not_a_file(&path) {
            problems.report(at.place, message, help);
            return None;
        }
        return Some(LedgerDatabase::Sqlite(path.into()));
    }
    if let Some(url) = text("postgres", &raw.postgres, env, problems) {
        let at = raw.postgres.get()?;
        problems.accept(at.place, check(&url))?;
        let url = PostgresUrl::Text(Secret::new(url));
        return Some(LedgerDatabase::Postgres(url));
    }
    let path = text("postgres_url_file", &raw.postgres_url_file, env, problems)?;
    Some(LedgerDatabase::Postgres(PostgresUrl::File(path.into())))
}

/// Returns why a path cannot be the file of a ledger, and the remedy; `None` if it can.
fn not_a_file(path: &str) -> Option<(&'static str, &'static str)> {
    if path.contains(":memory:") || path.contains("mode=memory") {
        let help = "name a file, such as ./tollgate.db, or remove `ledger` to record no usage";
        return Some(("a ledger in memory is lost when the process ends", help));
    }
    if path.starts_with("sqlite:") || path.starts_with("file:") || path.contains("://") {
        let help = "write the path alone, such as ./tollgate.db";
        return Some(("`sqlite` takes a path, not a URL", help));
    }
    if path.ends_with('/') {
        let help = "name a file in it, such as ./ledger/tollgate.db";
        return Some(("`sqlite` names a directory", help));
    }
    None
}

/// Returns the path of the spill file if the config does not name one.
fn default_spill(database: &LedgerDatabase, namespace: &str) -> PathBuf {
    match database {
        LedgerDatabase::Sqlite(file) => {
            let spill = file.with_extension("spill");
            if spill != *file {
                return spill;
            }
            // The database file ends with `.spill` itself, so the spill file needs another name.
            let mut name = file.as_os_str().to_owned();
            name.push(".spill");
            name.into()
        }
        LedgerDatabase::Postgres(_) => format!("./tollgate-{namespace}.spill").into(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn addresses_are_shown_without_secrets() {
        for (text, expected) in [
            ("postgres://db/tollgate", "postgres://db:5432/tollgate"),
            (
                "postgresql://app:hunter2@db.internal:6000/tollgate?sslmode=require",
                "postgres://db.internal:6000/tollgate",
            ),
            (
                "postgres://app:hun%3Fter2@[::1]/t",
                "postgres://[::1]:5432/t",
            ),
            (
                "postgres://app@db/t?password=hunter2",
                "postgres://db:5432/t",
            ),
        ] {
            assert_eq!(check(text).as_deref(), Ok(expected), "{text}");
            let url = PostgresUrl::Text(Secret::new(text.to_owned()));
            assert_eq!(url.to_string(), expected);
            assert!(!format!("{url:?}").contains("hunter2"));
        }
    }

    #[test]
    fn errors_name_the_problem_and_quote_nothing() {
        for text in [
            "",
            "db/tollgate",
            "mysql://app:hunter2@db/t",
            "postgres://app:hunter2@db",
            "postgres://app:hunter2@db/",
            "postgres://app:hunter2@db/a/b",
            "postgres://app:hunter2@/t",
            "postgres://app:hunter2@a,b/t",
            "postgres://app:hunter2@db:port/t",
            "postgres://app:hunter2%@db/t",
            "postgres://app:hunter2@db/t?a b",
            "postgres://app:hunter2@db/t#x",
        ] {
            let wrong = check(text).expect_err(text);
            assert!(!wrong.message.contains("hunter2"), "{text}");
            assert!(!wrong.help.is_empty(), "{text}");
        }
    }

    #[test]
    fn a_file_may_hold_the_address() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("url");
        let url = PostgresUrl::File(path.clone());
        assert!(url.read().is_err());
        std::fs::write(&path, "postgres://app:hunter2@db/t\n").unwrap();
        assert_eq!(url.read().unwrap().expose(), b"postgres://app:hunter2@db/t");
        std::fs::write(&path, "hunter2").unwrap();
        let error = url.read().unwrap_err();
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "(postgres://)?[a-z:@/%\\[\\],?#0-9é]{0,24}") {
            let _ = check(&text);
        }
    }
}
