//! Holds: units that are taken for a while, and settled or given back later.
//!
//! A **reservation** is a hold with provisional charges. The store takes the charges when it makes the
//! reservation. When the reservation is settled, the store gives back the unused units, or takes the overrun.
//! A **lease** is a hold of concurrency slots. The other charges of a lease are final.
//!
//! The record says whether a hold is open. The store changes the record in the same step as the charges. The
//! state in the record changes only once, from [`HoldState::Reserved`] to another state. After the end of the
//! hold, the record never changes. So each call may be repeated. If two calls contradict each other, the
//! first wins.

mod record;
mod text;

use std::sync::Arc;

use tollgate_core::{HoldId, Span, Token};

pub(crate) use record::taken_by;
pub use record::{HeldCharge, HoldRecord, HoldState, Purpose};
pub use text::RecordError;

use crate::contract::Applied;

/// How long the record of an ended hold is kept, so that a repeated call finds it.
pub const RETAIN: Span = Span::HOUR;
/// The most bytes of an owner's name. A longer name is cut.
pub const MAX_OWNER: usize = 128;
/// The most bytes of a memo. A longer memo is cut.
pub const MAX_MEMO: usize = 16_384;
/// The longest time that a hold lasts without being extended. A longer time to live is cut to this.
pub const MAX_TTL: Span = Span::from_secs(366 * 86_400);
/// The most charges of a hold.
pub const MAX_CHARGES: usize = 256;

/// A hold to be made.
#[derive(Clone, Copy, Debug)]
pub struct NewHold<'a> {
    /// The id. A hold that exists already is not made again.
    pub id: HoldId,
    /// How long the hold lasts unless it is settled or extended: at most [`MAX_TTL`].
    pub ttl: Span,
    /// The purpose.
    pub purpose: Purpose,
    /// The secret of the owner of a lease; [`Token::NONE`] for a reservation.
    pub token: Token,
    /// The name of the owner: at most [`MAX_OWNER`] bytes.
    pub owner: &'a str,
    /// A text to store with the hold: at most [`MAX_MEMO`] bytes.
    pub memo: &'a str,
    /// The idempotency key of the request, if it has one. A ledger records it.
    pub idempotency_key: Option<&'a str>,
    /// A hash of the request. The same id with another hash is a conflict.
    pub fingerprint: u64,
    /// A place in the queue for slots, if the client waits.
    pub wait: Option<Wait>,
    /// The subject that the hold belongs to, and how many open holds the subject may have. `None` for a
    /// hold that is not counted.
    pub bound: Option<OpenBound>,
}

/// A bound on the open holds of one subject, so that one subject cannot fill the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenBound {
    /// The subject, hashed.
    pub subject: u128,
    /// The most open holds of the subject. If the subject already has this many, another hold is
    /// rejected.
    pub most: u64,
}

impl<'a> NewHold<'a> {
    /// Returns the time to live, cut to [`MAX_TTL`].
    #[must_use]
    pub fn bounded_ttl(&self) -> Span {
        self.ttl.min(MAX_TTL)
    }

    /// Returns the owner, cut to [`MAX_OWNER`] bytes.
    #[must_use]
    pub fn bounded_owner(&self) -> &'a str {
        cut(self.owner, MAX_OWNER)
    }
}

/// Returns at most `most` bytes of a text.
fn cut(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// A place in the queues for slots. The client gets a place for every enforcing charge that needs a slot,
/// even if that charge has free slots. So other clients do not overtake a client that needs several slots.
/// In a cluster, this is true only for charges in one cluster slot. A store does not wake a waiting client:
/// the client has to ask again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// Identifies the waiting client. A client that asks again with the same ticket keeps its place.
    pub ticket: u128,
    /// The client loses its place if it does not ask again within this time. A patience of zero means the
    /// last try: the client still has its place in this call, and loses it afterwards.
    pub patience: Span,
}

/// The answer to making a hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Held {
    /// The hold was made.
    Taken {
        /// The decision on each charge.
        applied: Applied,
        /// The record.
        record: Arc<HoldRecord>,
    },
    /// The same hold existed already. Nothing was taken again.
    Repeated(Arc<HoldRecord>),
    /// Another hold has this id. Nothing was taken.
    Conflict(Arc<HoldRecord>),
    /// The subject has as many open holds as its [bound](NewHold::bound) allows. Nothing was taken.
    TooMany,
    /// A charge denies the hold.
    Denied {
        /// The decision on each charge.
        applied: Applied,
        /// How many clients wait before this client; `None` if this client does not wait. A client waits
        /// only if nothing but slots is missing, no queue is full, and its patience is not zero. Otherwise
        /// the client has no place in a queue, and loses any place it had.
        ahead: Option<u64>,
    },
}

/// How a hold ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settle {
    /// Commits a reservation. The store gives back unused units. It takes an overrun, as far as the
    /// overdraft of each charge allows.
    Commit {
        /// The used units.
        actual: u64,
    },
    /// Releases a reservation. The store gives back all units.
    Release,
    /// Ends an expired hold. Gives back all units of a reservation, or the slots of a lease.
    Expire,
    /// Undoes a hold that should not have been made: gives back everything that it took, and forgets its
    /// record. So a hold with the same id can be made again.
    Undo,
    /// Gives back the slots of a lease. The other charges of the lease stay.
    ReleaseLease {
        /// The secret of the owner.
        token: Token,
    },
}

/// The answer to ending a hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    /// The hold has ended now.
    Done(Arc<HoldRecord>),
    /// The hold had ended before, as the record says. Nothing was done.
    Already(Arc<HoldRecord>),
    /// The hold does not exist, or is forgotten.
    Unknown,
    /// The hold is a lease with another token, or `how` is not for this kind of hold.
    NotYours,
    /// The hold has not expired.
    NotYet(Arc<HoldRecord>),
    /// The usage of a charge is unknown, and has to be restored first. Nothing was done.
    Unrestored(Arc<HoldRecord>),
}

/// The answer to extending a hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Extended {
    /// The hold lasts until the time in the record.
    Done(Arc<HoldRecord>),
    /// The hold has ended.
    Ended(Arc<HoldRecord>),
    /// The hold has lost its slots, because it has expired or the slots were reset. Another hold may have
    /// these slots now.
    Lapsed(Arc<HoldRecord>),
    /// The hold does not exist, or is forgotten.
    Unknown,
    /// The hold is a lease with another token, or a reservation, which has no token.
    NotYours,
}
