//! The books: what was used, reserved, corrected and granted, in SQLite or PostgreSQL.
//!
//! The counters of a store say what may be used now, and are quick, and may be lost. The books say what was
//! used, and are not: an [`Entry`] is added and never changed. The ledger knows nothing of rules, stores
//! and doors.
//!
//! * [`Ledger::record`] takes an entry and does not wait. Within the flush interval it is in the database,
//!   or in the spill file if the database does not take it; from then on a crash does not lose it.
//! * [`Ledger::write`] returns when entries are in the database.
//! * Sums are kept beside the entries, in the same transaction, so that [`Ledger::balance`] does not add up
//!   a month.
//! * [`Ledger::audit`] takes a [`Note`] of who changed what, in the same order and as safely.
//! * An entry whose id is in the books changes nothing, whoever writes it.
//!
//! Entries of one process are written in the order in which they were recorded, but for strict writes,
//! which do not wait behind a spill. Nothing that was accepted is dropped: when memory and spill file are
//! full, no more is accepted.
//!
//! `pending` collects and merges, `writer` brings it to the `database` or into the `spill`.

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
mod note;
mod options;
mod pending;
mod spill;
mod status;
mod writer;

pub use crate::database::{
    Balance, BalanceCursor, BalanceRow, Ended, EntryQuery, EntrySummary, HoldRow, MOST_ROWS,
    PeriodBalance, UsageCursor, UsageQuery, UsageRow,
};
pub use crate::entry::{
    Entry, EntryError, EntryId, HoldNote, Kind, MOST_AMOUNT, MOST_NAME, MOST_RECORD, MOST_TEXT,
    MOST_VALUE, Period,
};
pub use crate::error::{Full, LedgerError, OpenError};
pub use crate::ledger::Ledger;
pub use crate::note::{Note, TrailQuery};
pub use crate::options::{Database, Options};
pub use crate::pending::UseOf;
pub use crate::status::Status;
