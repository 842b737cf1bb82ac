//! The ledger and the events of a config as they are written.

use crate::error::Problems;
use crate::read::{Read, section};
use crate::units::{BadNumber, Short, whole};
use crate::values::{Length, List, Size, Text, Whole, number, schema};
use crate::yaml::Node;

section! {
    /// Where usage is kept for good: in SQLite or in PostgreSQL. `${VAR}` in its texts reads the environment.
    struct RawLedger is "`ledger`" {
        /// The file of an SQLite database, made if there is none.
        sqlite: Text = "sqlite",
        /// The address of a PostgreSQL: postgres://user:password@host:5432/database. What is special in a URL is percent-encoded in the user and the password.
        postgres: Text = "postgres",
        /// A file that holds the address of a PostgreSQL, read at the start.
        postgres_url_file: Text = "postgres_url_file",
        /// How long what is used may wait to be written, 10ms to 60s: 200ms unless given.
        flush_interval: Length = "flush_interval",
        /// How many entries wait in memory at most, 1000 to 10000000: 100000 unless given.
        max_queued: Whole = "max_queued",
        /// The file that keeps entries while the database cannot: unless given, beside that of SQLite, or ./tollgate-NAMESPACE.spill.
        spill: Text = "spill",
        /// How large that file may become, 1MB to 1TB: 1GB unless given.
        max_spill: Size = "max_spill",
    }
}

section! {
    /// Who is told when a limit is near.
    struct RawEvents is "`events`" {
        /// At which percentages of a quota, ascending from 1 to 100, 8 at most: [80, 90, 100] unless given; [] for none.
        near_limit: List<Mark> = "near_limit",
        /// Where events are sent.
        webhook: RawWebhook = "webhook",
    }
}

section! {
    /// Where events are sent: as JSON, signed, and again until they are taken.
    struct RawWebhook is "`webhook`" {
        /// The address, such as https://billing.example.com/tollgate. `${VAR}` reads the environment.
        url (required): Text = "url",
        /// What events are signed with, at least 16 bytes. `${VAR}` reads the environment.
        secret (required): Text = "secret",
        /// How long one attempt may take, 100ms to 30s: 2s unless given.
        timeout: Length = "timeout",
        /// How often an event is sent at most, 1 to 20: 8 unless given.
        attempts: Whole = "attempts",
    }
}

/// A percentage of a limit, without its sign.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark(pub(crate) u8);

impl Read for Mark {
    fn read(node: &Node, problems: &mut Problems<'_>) -> Option<Mark> {
        let help = "write percentages of the limit, such as [80, 90, 100]";
        number(
            node,
            "a percentage",
            help,
            |text| mark(text, help),
            problems,
        )
        .map(Mark)
    }
}
schema!(Mark, "Mark", { "type": "integer", "minimum": 1, "maximum": 100 });

fn mark(text: &str, help: &str) -> Result<u8, BadNumber> {
    let bad = |what: &str| format!("`{}` {what}", Short(text));
    if let Some(bare) = text.strip_suffix('%')
        && whole(bare).is_ok()
    {
        let message = bad("stands here without its sign");
        return Err(BadNumber::new(message, format!("write {bare}")));
    }
    let number = whole(text).map_err(|bad| BadNumber::new(bad.message, help))?;
    let mark = u8::try_from(number).ok();
    let mark = mark.filter(|mark| (1..=100).contains(mark));
    mark.ok_or_else(|| BadNumber::new(bad("is not between 1 and 100"), help))
}
