//! Reservations and leases: what is taken now, and settled later.
//!
//! A **reservation** takes an estimate from every rule of a request, and is ended with what was really
//! used: less gives the rest back, more is charged as far as the rules' overdrafts go. One that nobody
//! ends is given back when its time is over.
//!
//! A **lease** holds a slot of every concurrency rule of a request until its owner gives it back, or
//! until it was not renewed in time. What the other rules of the request take is used.
//!
//! Both are holds of the store, which alone decides what becomes of them: every step is safe to repeat,
//! and of two that cannot both be, the first has happened and the second is told so.

mod end;
mod make;
mod name;
#[cfg(feature = "wait")]
mod wait;

use std::sync::Arc;

use tollgate_core::concurrency::Holder;
use tollgate_core::{Enforcement, Span, Time};
use tollgate_store::{HoldRecord, HoldState, StoreError};

pub use name::{BadHoldName, HoldName, LeaseToken};
pub(crate) use name::{HoldNames, random};

use crate::Decision;

/// How long a reservation holds unless it says.
pub const DEFAULT_TTL: Span = Span::MINUTE;
/// The shortest time a reservation or lease may hold.
pub const LEAST_TTL: Span = Span::from_millis(100);
/// The longest.
pub const MOST_TTL: Span = Span::DAY;
/// The longest that somebody may wait for a lease.
pub const MOST_WAIT: Span = Span::from_secs(30);
/// How long a place in a queue is kept for somebody who does not ask again.
const PATIENCE: Span = Span::SECOND;
/// The longest idempotency key, in bytes.
const MOST_KEY: usize = 256;

/// What to reserve.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reserve<'a> {
    /// How many units.
    pub units: u64,
    /// For how long: [`DEFAULT_TTL`] unless given.
    pub ttl: Option<Span>,
    /// Who says the same twice, under one key and for one tenant, has one reservation. It has 1 to 256
    /// bytes, and no NUL.
    pub idempotency_key: Option<&'a str>,
}

/// What became of a wish to reserve.
#[derive(Clone, Debug)]
pub enum ReserveOutcome {
    /// It is held.
    Held {
        /// What is held.
        hold: Hold,
        /// What the rules decided; `None` if it was held before, and this is a repetition.
        decision: Option<Decision>,
    },
    /// The rules deny it. Nothing was taken.
    Denied(Decision),
}

impl ReserveOutcome {
    /// What the rules decided; `None` if this is a repetition.
    #[must_use]
    pub fn decision(&self) -> Option<&Decision> {
        match self {
            ReserveOutcome::Held { decision, .. } => decision.as_ref(),
            ReserveOutcome::Denied(decision) => Some(decision),
        }
    }
}

/// What lease to acquire.
#[derive(Clone, Copy, Debug, Default)]
pub struct Acquire<'a> {
    /// For how long: the shortest `lease` of the rules unless given.
    pub ttl: Option<Span>,
    /// Who will hold it, for those who list holders.
    pub owner: &'a str,
    /// How long to wait for a free slot, in the order of arrival.
    pub wait: Span,
}

/// What became of a wish for a lease.
#[derive(Clone, Debug)]
pub enum AcquireOutcome {
    /// It is held.
    Granted {
        /// What is held.
        lease: Hold,
        /// Who shows it may renew the lease and give it back.
        token: LeaseToken,
        /// What the rules decided.
        decision: Decision,
    },
    /// The rules deny it. Nothing was taken.
    Denied(Decision),
}

impl AcquireOutcome {
    /// What the rules decided.
    #[must_use]
    pub fn decision(&self) -> &Decision {
        match self {
            AcquireOutcome::Granted { decision, .. } | AcquireOutcome::Denied(decision) => decision,
        }
    }
}

/// Who holds the slots of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holders {
    /// The rule.
    pub rule: String,
    /// How many there may be.
    pub limit: u64,
    /// Those there are, as far as they are listed.
    pub holders: Vec<Holder>,
}

/// A reservation or a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Its name.
    pub id: HoldName,
    /// What became of it.
    pub state: HoldState,
    /// How many units were reserved.
    pub units: u64,
    /// How many were used, once that is known.
    pub actual: Option<u64>,
    /// How many of those used no overdraft allowed for, by the rule that allowed least.
    pub uncharged: u64,
    /// When it ends by itself.
    pub expires_at: Time,
    /// Larger than that of every lease before it, for whoever is protected by it.
    pub fence: u64,
    /// Who holds it.
    pub owner: Arc<str>,
}

/// Why a reservation or lease cannot be had, or not be ended so.
#[derive(Clone, Debug, thiserror::Error)]
pub enum HoldError {
    /// There is none of that name: it never was, or it ended long ago.
    #[error("there is no such reservation or lease: it ended a while ago, or was never made here")]
    Unknown,
    /// The token is another's.
    #[error("the token is not that of this lease: only its owner may renew it or give it back")]
    NotYours,
    /// The idempotency key was used for something else.
    #[error("the idempotency key was used for another request: take a new one")]
    Conflict,
    /// It has ended, and otherwise.
    #[error("it has ended already: {}", said(.0))]
    Ended(Box<Hold>),
    /// A lease was taken for a reservation, or the other way round.
    #[error("this is the id of a {is}, and of nothing else")]
    OtherKind {
        /// What it is.
        is: &'static str,
    },
    /// No concurrency rule applies, so there is nothing to hold.
    #[error("no concurrency rule applies to this request: there is nothing to lease")]
    NothingToLease,
    /// A span that is too short or too long.
    #[error("{what} of {span} is not between {least} and {most}")]
    OutOfRange {
        /// Which span.
        what: &'static str,
        /// What was asked for.
        span: Span,
        /// The least it may be.
        least: Span,
        /// The most it may be.
        most: Span,
    },
    /// A text that is too long.
    #[error("{what} has more than {most} bytes")]
    TooLong {
        /// Which text.
        what: &'static str,
        /// How long it may be.
        most: usize,
    },
    /// An idempotency key that names nothing, or that no ledger can keep.
    #[error(
        "the idempotency key has to have 1 to {MOST_KEY} bytes, and no NUL: leave it out if there is none"
    )]
    BadKey,
    /// The store, or the ledger behind it, cannot be asked. Whoever tries again does no harm.
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn said(hold: &Hold) -> String {
    match hold.actual {
        Some(actual) => format!("{actual} of {} units were used", hold.units),
        None => "everything was given back".to_owned(),
    }
}

impl Hold {
    /// What was let through without being held.
    pub(crate) fn unheld(units: u64, now: Time) -> Hold {
        Hold {
            id: HoldName::Unheld,
            state: HoldState::Reserved,
            units,
            actual: None,
            uncharged: 0,
            expires_at: now,
            fence: 0,
            owner: Arc::default(),
        }
    }

    pub(crate) fn of(record: &HoldRecord) -> Hold {
        Hold {
            id: HoldName::Held(record.id),
            state: record.state,
            units: record.units,
            actual: record.actual,
            uncharged: uncharged(record),
            expires_at: record.expires_at,
            fence: record.fence,
            owner: Arc::clone(&record.owner),
        }
    }
}

/// How many of the units that were used no rule was charged for, of the rule that was charged least.
fn uncharged(record: &HoldRecord) -> u64 {
    let Some(actual) = record.actual else {
        return 0;
    };
    let charged = record
        .charges
        .iter()
        .filter(|it| it.enforcement == Enforcement::Enforce && it.cost > 0 && !it.is_slot());
    let left = charged.map(|it| {
        let missing = it.cost.saturating_mul(actual).saturating_sub(it.taken);
        missing.div_ceil(it.cost)
    });
    left.max().unwrap_or(0)
}

fn within(what: &'static str, span: Span, least: Span, most: Span) -> Result<Span, HoldError> {
    if (least..=most).contains(&span) {
        return Ok(span);
    }
    Err(HoldError::OutOfRange {
        what,
        span,
        least,
        most,
    })
}

/// A key as every ledger keeps it: what one refused would be taken for a failure of the store.
fn key(text: &str) -> Result<&str, HoldError> {
    let is_kept = (1..=MOST_KEY).contains(&text.len()) && !text.contains('\0');
    is_kept.then_some(text).ok_or(HoldError::BadKey)
}

fn short<'a>(what: &'static str, text: &'a str, most: usize) -> Result<&'a str, HoldError> {
    match text.len() <= most {
        true => Ok(text),
        false => Err(HoldError::TooLong { what, most }),
    }
}
