//! Whether a ledger makes sense.

use std::path::{Path, PathBuf};

use tollgate_core::Span;

use super::store::lasting;
use super::{Env, ranged, text};
use crate::config::Secret;
use crate::error::{Place, Problems};
use crate::ledger::{Ledger, LedgerDatabase, PostgresUrl, check};
use crate::raw::RawLedger;
use crate::read::Field;

const MEGABYTE: u64 = 1_000_000;
const NO_DATABASE: &str =
    "write `sqlite: ./tollgate.db`, or `postgres: \"postgres://user:${PGPASSWORD}@host/database\"`";

pub(super) fn ledger(
    field: &Field<RawLedger>,
    namespace: &str,
    env: Env<'_>,
    problems: &mut Problems<'_>,
) -> Option<Ledger> {
    let Field::Given { key, at } = field else {
        return None;
    };
    let raw = &at.value;
    let flush_interval = lasting(
        &raw.flush_interval,
        Span::from_millis(200),
        Span::from_millis(10)..=Span::MINUTE,
        problems,
    );
    let max_queued = ranged(&raw.max_queued, 100_000, 1_000..=10_000_000, problems);
    let max_spill = max_spill(raw, problems);
    let database = database(raw, *key, env, problems);
    let given = text("spill", &raw.spill, env, problems).map(PathBuf::from);
    let database = database?;
    let spill = given.unwrap_or_else(|| default_spill(&database, namespace));
    if let (LedgerDatabase::Sqlite(file), Some(at)) = (&database, raw.spill.get())
        && *file == spill
    {
        problems.report(
            at.place,
            "`spill` is the database itself",
            "name another file: it keeps what the database cannot take",
        );
    }
    Some(Ledger {
        database,
        flush_interval,
        max_queued,
        spill,
        max_spill,
    })
}

fn max_spill(raw: &RawLedger, problems: &mut Problems<'_>) -> u64 {
    let Some(at) = raw.max_spill.get() else {
        return 1_000 * MEGABYTE;
    };
    let size = at.value.0;
    if !(MEGABYTE..=1_000_000 * MEGABYTE).contains(&size) {
        problems.report(
            at.place,
            format!("{size} bytes are not between 1MB and 1TB"),
            "write a size such as 512MB or 10GB",
        );
    }
    size
}

/// Exactly one database.
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
    let given = fields
        .into_iter()
        .filter_map(|(name, field)| Some((name, field.key()?)));
    let given: Vec<_> = given.collect();
    match given.as_slice() {
        [] => {
            problems.report(key, "`ledger` names no database", NO_DATABASE);
            return None;
        }
        [_] => {}
        [(first, _), (second, at), ..] => {
            let message = format!("`{first}` and `{second}` exclude each other");
            problems.report(*at, message, "keep one: a ledger is in one database");
            return None;
        }
    }
    if let Some(path) = text("sqlite", &raw.sqlite, env, problems) {
        let at = raw.sqlite.get()?;
        if let Some((message, help)) = no_file(&path) {
            problems.report(at.place, message, help);
            return None;
        }
        return Some(LedgerDatabase::Sqlite(path.into()));
    }
    if let Some(url) = text("postgres", &raw.postgres, env, problems) {
        let at = raw.postgres.get()?;
        if let Err(wrong) = check(&url) {
            problems.report(at.place, wrong.message, wrong.help);
            return None;
        }
        let url = PostgresUrl::Text(Secret::new(url));
        return Some(LedgerDatabase::Postgres(url));
    }
    let path = text("postgres_url_file", &raw.postgres_url_file, env, problems)?;
    Some(LedgerDatabase::Postgres(PostgresUrl::File(path.into())))
}

/// Why a text does not name a file that lasts.
fn no_file(path: &str) -> Option<(&'static str, &'static str)> {
    if path.contains(":memory:") || path.contains("mode=memory") {
        let help = "name a file, such as ./tollgate.db; without `ledger` nothing is kept for good";
        return Some((
            "a ledger in memory is forgotten at the end of the process",
            help,
        ));
    }
    if path.starts_with("sqlite:") || path.starts_with("file:") || path.contains("://") {
        let help = "write the path alone, such as ./tollgate.db";
        return Some(("`sqlite` is a path, and no URL", help));
    }
    if path.ends_with('/') {
        let help = "name a file in it, such as ./ledger/tollgate.db";
        return Some(("`sqlite` names a directory", help));
    }
    None
}

/// Where entries wait, unless it is said.
fn default_spill(database: &LedgerDatabase, namespace: &str) -> PathBuf {
    match database {
        LedgerDatabase::Sqlite(file) => {
            let spill = file.with_extension("spill");
            match spill == *file {
                true => with_more(file),
                false => spill,
            }
        }
        LedgerDatabase::Postgres(_) => format!("./tollgate-{namespace}.spill").into(),
    }
}

/// A database that is itself called so.
fn with_more(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".spill");
    name.into()
}
