//! Reservations and leases: amounts that are taken now and settled later.
//!
//! A **reservation** takes an estimate from every rule of a request. It ends with the real usage. If
//! the usage is lower than the estimate, the difference is given back. If the usage is higher, the
//! rules charge the difference up to their overdrafts. A reservation that no client ends expires, and
//! its units are given back.
//!
//! A **lease** holds a slot of every concurrency rule of a request, until its owner gives it back or
//! fails to renew it in time. The other rules of the request are charged for good.
//!
//! Both are holds of the store, and only the store changes them. Every step is safe to repeat. If two
//! steps contradict each other, the first one counts, and the second one gets an error.

mod end;
mod make;
mod name;
#[cfg(feature = "wait")]
mod wait;

use std::sync::Arc;

use parking_lot::Mutex;
use tollgate_config::Rule;
use tollgate_core::concurrency::Holder;
use tollgate_core::{Enforcement, Limit, Span, Time};
use tollgate_store::{HeldCharge, HoldRecord, HoldState, StoreError};

pub use name::{BadHoldName, HoldName, LeaseToken};
pub(crate) use name::{HoldNames, random};

use crate::Decision;

/// How long a reservation lasts by default.
pub const DEFAULT_TTL: Span = Span::MINUTE;
/// The shortest time that a reservation or lease may last.
pub const LEAST_TTL: Span = Span::from_millis(100);
/// The longest time that a reservation or lease may last.
pub const MOST_TTL: Span = Span::DAY;
/// The longest time that a client may wait for a lease.
pub const MOST_WAIT: Span = Span::from_secs(30);
/// How long a queue keeps the position of a client that does not ask again.
const PATIENCE: Span = Span::SECOND;
/// The longest idempotency key, in bytes.
const MOST_KEY: usize = 256;

/// The settings of a new reservation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reserve<'a> {
    /// The number of units.
    pub units: u64,
    /// How long the reservation lasts; [`DEFAULT_TTL`] by default.
    pub ttl: Option<Span>,
    /// The idempotency key: repeats of a request with the same key and tenant make one reservation. A
    /// key has 1 to 256 bytes, and no NUL.
    pub idempotency_key: Option<&'a str>,
}

/// The outcome of a reservation.
#[derive(Clone, Debug)]
pub enum ReserveOutcome {
    /// The units are held.
    Held {
        /// The reservation.
        hold: Hold,
        /// The decision of the rules; `None` if this repeats an earlier request.
        decision: Option<Decision>,
    },
    /// The rules deny the reservation. Nothing was taken.
    Denied(Decision),
}

impl ReserveOutcome {
    /// Returns the decision of the rules; `None` if this repeats an earlier request.
    #[must_use]
    pub fn decision(&self) -> Option<&Decision> {
        match self {
            ReserveOutcome::Held { decision, .. } => decision.as_ref(),
            ReserveOutcome::Denied(decision) => Some(decision),
        }
    }
}

/// The settings of a new lease.
#[derive(Clone, Copy, Debug, Default)]
pub struct Acquire<'a> {
    /// How long the lease lasts; by default the shortest `lease` of its rules.
    pub ttl: Option<Span>,
    /// The name of the owner, shown in lists of holders.
    pub owner: &'a str,
    /// How long to wait for a free slot, in the order of arrival.
    pub wait: Span,
    /// How many units the other rules of the request take; 1 by default. A lease holds one slot of each concurrency
    /// rule, whatever this number is.
    pub units: Option<u64>,
    /// Notes the lease before the store is asked, so that it can be given back if the answer never comes.
    pub asked: Option<&'a AskedLease>,
}

/// A lease that a store was asked for, and may have granted: its answer has not come, or was not read.
///
/// A caller that goes away while it waits for a shared store does not learn whether it holds a slot. The slot would
/// stay held until the lease ends. With this note, somebody else can [free](crate::Limiter::free) it.
#[derive(Debug, Default)]
pub struct AskedLease(Mutex<Option<(HoldName, LeaseToken)>>);

impl AskedLease {
    /// Returns the lease, and forgets it; `None` if the store has certainly not granted one.
    pub fn take(&self) -> Option<(HoldName, LeaseToken)> {
        self.0.lock().take()
    }

    fn note(&self, lease: Option<(HoldName, LeaseToken)>) {
        *self.0.lock() = lease;
    }
}

/// The outcome of a request for a lease.
#[derive(Clone, Debug)]
pub enum AcquireOutcome {
    /// The slots are held.
    Granted {
        /// The lease.
        lease: Hold,
        /// The secret that is needed to renew the lease and to give it back.
        token: LeaseToken,
        /// The decision of the rules.
        decision: Decision,
    },
    /// The rules deny the lease. Nothing was taken.
    Denied(Decision),
}

impl AcquireOutcome {
    /// Returns the decision of the rules.
    #[must_use]
    pub fn decision(&self) -> &Decision {
        match self {
            AcquireOutcome::Granted { decision, .. } | AcquireOutcome::Denied(decision) => decision,
        }
    }
}

/// The holders of the slots of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holders {
    /// The rule.
    pub rule: String,
    /// The number of slots.
    pub limit: u64,
    /// The holders, up to a bound.
    pub holders: Vec<Holder>,
}

/// A reservation or a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// The id.
    pub id: HoldName,
    /// Whether the hold is open, or how it ended.
    pub state: HoldState,
    /// The units that were reserved.
    pub units: u64,
    /// The units that were used, once a commit has stated them.
    pub actual: Option<u64>,
    /// The used units that were not charged because an overdraft was used up. If rules differ, this is
    /// the largest number.
    pub uncharged: u64,
    /// When the hold expires.
    pub expires_at: Time,
    /// The fence of a lease: larger than the fence of every earlier lease. A protected resource rejects
    /// smaller fences.
    pub fence: u64,
    /// The owner of a lease.
    pub owner: Arc<str>,
}

/// Why a reservation or lease could not be made, changed or ended.
#[derive(Clone, Debug, thiserror::Error)]
pub enum HoldError {
    /// No reservation or lease has this id: it ended long ago, or never existed.
    #[error("there is no such reservation or lease: it ended a while ago, or was never made here")]
    Unknown,
    /// The token belongs to another lease.
    #[error(
        "the token does not belong to this lease: only the owner of the lease may renew or release it"
    )]
    NotYours,
    /// The idempotency key was used for something else.
    #[error("the idempotency key was used for another request: take a new one")]
    Conflict,
    /// The hold has ended before, in another way.
    #[error("the reservation or lease has ended already: {}", how_it_ended(.0))]
    Ended(Box<Hold>),
    /// The id names a lease instead of a reservation, or a reservation instead of a lease.
    #[error("this is the id of a {is}: use the calls for a {is}")]
    OtherKind {
        /// The kind of the hold.
        is: &'static str,
    },
    /// The subject has too many open reservations and leases.
    #[error(
        "this subject already has {most} open reservations and leases, the most that are allowed: \
         commit or release some, use a shorter time to live, or raise `subjects.max_open_holds` in the config"
    )]
    TooManyOpen {
        /// The most open reservations and leases of the subject.
        most: u64,
    },
    /// No concurrency rule applies to the request.
    #[error("no concurrency rule applies to this request: there is nothing to lease")]
    NothingToLease,
    /// A time is too short or too long.
    #[error("{what} of {span} is not between {least} and {most}")]
    OutOfRange {
        /// The setting.
        what: &'static str,
        /// The value of the request.
        span: Span,
        /// The smallest value.
        least: Span,
        /// The largest value.
        most: Span,
    },
    /// A client asks for a slot for longer than a rule allows.
    #[error(
        "the time to live {span} is too long: `{rule}` allows at most {most}; ask for less and renew or extend it in \
         time, or set `max_lease` in the config"
    )]
    AboveLease {
        /// The rule or the budget.
        rule: String,
        /// The value of the request.
        span: Span,
        /// The largest value.
        most: Span,
    },
    /// A text is too long.
    #[error("{what} has more than {most} bytes")]
    TooLong {
        /// The setting.
        what: &'static str,
        /// The most bytes.
        most: usize,
    },
    /// The idempotency key is empty, too long, or has a NUL.
    #[error(
        "the idempotency key must have 1 to {MOST_KEY} bytes, and no NUL: leave an empty key out"
    )]
    BadKey,
    /// The store, or the ledger behind it, does not answer. The call can be repeated safely.
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn how_it_ended(hold: &Hold) -> String {
    match hold.actual {
        Some(actual) => format!("{actual} of {} units were used", hold.units),
        None => "everything was given back".to_owned(),
    }
}

impl Hold {
    /// Makes the hold of a request that was allowed without one.
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
        let uncharged = record.actual.map_or(0, |actual| {
            let enforced = |it: &&HeldCharge| it.enforcement == Enforcement::Enforce;
            let charges = record.charges.iter().filter(enforced);
            let charges = charges.filter(|it| it.cost > 0 && !it.is_slot());
            let uncharged = charges.map(|it| {
                let missing = it.cost.saturating_mul(actual).saturating_sub(it.taken);
                missing.div_ceil(it.cost)
            });
            uncharged.max().unwrap_or(0)
        });
        Hold {
            id: HoldName::Held(record.id),
            state: record.state,
            units: record.units,
            actual: record.actual,
            uncharged,
            expires_at: record.expires_at,
            fence: record.fence,
            owner: Arc::clone(&record.owner),
        }
    }
}

/// Returns the error for a reservation or lease that has ended.
fn ended(record: &HoldRecord) -> HoldError {
    HoldError::Ended(Box::new(Hold::of(record)))
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

/// Returns the names of the concurrency rules and budgets among `charges`, each with its `lease` and with the longest
/// time that a slot may be held: the `max_lease`, or the `lease` if there is none.
fn leases_of<'c>(
    charges: impl Iterator<Item = (&'c str, &'c Limit)>,
    rules: &[Rule],
) -> impl Iterator<Item = (&'c str, Span, Span)> {
    charges.filter_map(|(name, limit)| {
        let Limit::Concurrency(slots) = limit else {
            return None;
        };
        let lease = slots.lease();
        // A charge has the name of its rule, or of the budget that the rule draws on.
        let mut rules = rules.iter();
        let rule = rules.find(|rule| rule.id() == name || **rule.allowance() == *name);
        let most = rule
            .and_then(Rule::max_lease)
            .map_or(lease, |it| it.max(lease));
        Some((name, lease, most))
    })
}

/// Returns how long a lease lasts: as long as the client asks for, or the shortest `lease` of the charges of
/// concurrency rules. Rejects a time for which one of them does not let a client hold a slot. Rules that are not
/// enforced (`false`) count only if no rule is.
fn lease_for<'c>(
    asked: Option<Span>,
    charges: impl Iterator<Item = (&'c str, &'c Limit, bool)> + Clone,
    rules: &[Rule],
) -> Result<Span, HoldError> {
    let mut shortest: Option<Span> = None;
    let is_enforced = charges
        .clone()
        .any(|(_, limit, enforces)| enforces && matches!(limit, Limit::Concurrency(_)));
    let charges = charges.filter(|(.., enforces)| *enforces || !is_enforced);
    let charges = charges.map(|(name, limit, _)| (name, limit));
    for (name, lease, most) in leases_of(charges, rules) {
        shortest = Some(shortest.map_or(lease, |known| known.min(lease)));
        check_lease(name, asked, most)?;
    }
    let span = asked.or(shortest).unwrap_or(DEFAULT_TTL);
    within("a time to live", span, LEAST_TTL, MOST_TTL)
}

/// Returns how long a reservation lasts: as long as the client asks for, or [`DEFAULT_TTL`]. A reservation holds a slot
/// of every concurrency rule, so it lasts no longer than a lease may. A longer time of the client is rejected.
fn ttl_for<'c>(
    asked: Option<Span>,
    charges: impl Iterator<Item = (&'c str, &'c Limit)>,
    rules: &[Rule],
) -> Result<Span, HoldError> {
    let mut ttl = asked.unwrap_or(DEFAULT_TTL);
    for (name, _, most) in leases_of(charges, rules) {
        check_lease(name, asked, most)?;
        ttl = ttl.min(most);
    }
    Ok(ttl)
}

/// Rejects a time that is longer than `most`, for which the rule `name` lets a client hold a slot.
fn check_lease(name: &str, asked: Option<Span>, most: Span) -> Result<(), HoldError> {
    match asked {
        Some(span) if span > most => Err(HoldError::AboveLease {
            rule: name.to_owned(),
            span,
            most,
        }),
        _ => Ok(()),
    }
}

/// Rejects keys that a ledger cannot store. Otherwise the ledger's error would count as a failure of
/// the store.
fn valid_key(text: &str) -> Result<&str, HoldError> {
    let is_valid = (1..=MOST_KEY).contains(&text.len()) && !text.contains('\0');
    is_valid.then_some(text).ok_or(HoldError::BadKey)
}
