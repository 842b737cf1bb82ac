//! The ledger: a durable record of usage, reservations, corrections and grants, in SQLite or
//! PostgreSQL.
//!
//! The counters of a store say how much may be used now. They are fast and may be lost. The ledger says
//! how much was used, and is not lost: an [`Entry`] is added once and never changed. The ledger does
//! not depend on rules, stores or doors.
//!
//! * [`Ledger::record`] accepts an entry and does not wait. Within the flush interval, the entry is in the
//!   database, or in the spill file if the database does not take it. After that, a crash does not lose the
//!   entry.
//! * [`Ledger::write`] returns when the entries are in the database.
//! * Sums are stored in the same transaction as the entries, so that [`Ledger::balance`] does not have to add
//!   up the entries of a month.
//! * [`Ledger::audit`] accepts a [`Note`] of an administrative change, in the same order and as safely.
//! * Writing an entry twice is harmless: the second copy of an id is ignored.
//!
//! Entries of one process are written in the order in which they were recorded. Only strict writes
//! ([`Ledger::write`]) overtake entries in the spill file. An accepted entry is never dropped: when
//! memory and spill file are full, the ledger accepts no more.
//!
//! `pending` collects and merges entries. `writer` moves them to the `database` or to the `spill` file.
//!
//! Features: `sqlite` and `postgres`, one per backend.

#![cfg_attr(
    not(any(feature = "postgres", feature = "sqlite")),
    allow(
        dead_code,
        unused_imports,
        reason = "without a backend only the types are of use"
    )
)]

mod database;
mod entry;
mod error;
mod ledger;
mod options;
mod pending;
mod spill;
mod status;
mod writer;

pub use crate::database::{
    Balance, BalanceCursor, BalanceRow, Ended, EntryQuery, EntrySummary, HoldRow, MOST_ROWS,
    PeriodBalance, TrailQuery, UsageCursor, UsageQuery, UsageRow,
};
pub use crate::entry::{
    Entry, EntryError, EntryId, HoldNote, Kind, MOST_AMOUNT, MOST_NAME, MOST_RECORD, MOST_TEXT,
    MOST_VALUE, Note, Period,
};
pub use crate::error::{Full, LedgerError, OpenError};
pub use crate::ledger::Ledger;
pub use crate::options::{Database, Options};
pub use crate::pending::{NewUse, UseOf};
pub use crate::status::Status;
