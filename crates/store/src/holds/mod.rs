//! Holds: what is taken for a while, and settled or given back later.
//!
//! A **reservation** is a hold whose charges are provisional: they are taken when it is made, and the
//! rest is given back, or the overrun taken, when it is settled. A **lease** is a hold of concurrency
//! slots whose other charges are final.
//!
//! The record of a hold is its arbiter. It is changed in the same step as the charges, moves only from
//! [`HoldState::Reserved`] to one of the others, and what has ended never changes again: each call may
//! be repeated, and of calls that contradict each other the first wins.

mod record;
mod text;

use std::sync::Arc;

use tollgate_core::{HoldId, Span, Token};

pub(crate) use record::taken_by;
pub use record::{HeldCharge, HoldRecord, HoldState, Purpose};
pub use text::RecordError;

use crate::contract::Applied;

/// How long the record of a hold is kept after its end, so that a repeated call finds it.
pub const RETAIN: Span = Span::HOUR;
/// The most bytes of an owner's name. What is longer is cut.
pub const MAX_OWNER: usize = 128;
/// The most bytes of a memo. What is longer is cut.
pub const MAX_MEMO: usize = 16_384;
/// The longest a hold lasts without being extended. A longer time to live counts as this.
pub const MAX_TTL: Span = Span::from_secs(366 * 86_400);
/// The most charges of a hold.
pub const MAX_CHARGES: usize = 256;

/// A hold to be made.
#[derive(Clone, Copy, Debug)]
pub struct NewHold<'a> {
    /// Its name. One that exists already is not made again.
    pub id: HoldId,
    /// How long it lasts unless it is settled or extended: at most [`MAX_TTL`].
    pub ttl: Span,
    /// What it is for.
    pub purpose: Purpose,
    /// What only the owner of a lease knows; [`Token::NONE`] for a reservation.
    pub token: Token,
    /// Who it is for: at most [`MAX_OWNER`] bytes.
    pub owner: &'a str,
    /// A note that the maker of the hold wants to find again with it: at most [`MAX_MEMO`] bytes.
    pub memo: &'a str,
    /// The caller's name for the request, if it has one: a ledger records it.
    pub idempotency_key: Option<&'a str>,
    /// A hash of what was asked. The same id with another one is a conflict.
    pub fingerprint: u64,
    /// Whether it waits for slots.
    pub wait: Option<Wait>,
}

impl<'a> NewHold<'a> {
    /// The time to live, within its bound.
    #[must_use]
    pub fn bounded_ttl(&self) -> Span {
        self.ttl.min(MAX_TTL)
    }

    /// The owner, cut to what is kept.
    #[must_use]
    pub fn bounded_owner(&self) -> &'a str {
        cut(self.owner, MAX_OWNER)
    }
}

/// At most so many bytes of a text.
fn cut(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// A place in the queue for slots: of every enforcing charge that needs one, also of those that have some
/// left, so that nobody who needs several is overtaken at each of them in turn; where a cluster keeps them apart,
/// of those in one place. Who waits asks again and again; a store wakes nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// Who waits. Asked again with the same ticket, it keeps its place.
    pub ticket: u128,
    /// After how long without being asked again the place is given up. Who asks for the last time has none:
    /// it is judged by its place, which is given up at once.
    pub patience: Span,
}

/// What has become of a hold that was to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Held {
    /// It was made.
    Taken {
        /// What each charge says.
        applied: Applied,
        /// What is noted.
        record: Arc<HoldRecord>,
    },
    /// It had been made before. Nothing was taken again.
    Repeated(Arc<HoldRecord>),
    /// Another was made under this id. Nothing was taken.
    Conflict(Arc<HoldRecord>),
    /// A charge refuses it.
    Denied {
        /// What each charge says.
        applied: Applied,
        /// How many wait before it, if it waits: only where nothing but slots is missing, no queue is
        /// full, and it has any patience. Else it has no place in a queue, not even one it had.
        ahead: Option<u64>,
    },
}

/// How a hold ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settle {
    /// So much of a reservation was used. The rest is given back; what is more is taken, as far as each
    /// charge's overdraft goes.
    Commit {
        /// The units that were used.
        actual: u64,
    },
    /// Nothing of a reservation was used: all is given back.
    Release,
    /// Its time is over: as a release, and of a lease only the slots.
    Expire,
    /// The owner of a lease gives its slots back. What else it was charged stays charged.
    ReleaseLease {
        /// What the owner knows.
        token: Token,
    },
}

/// What has become of a hold that was to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    /// It has ended now.
    Done(Arc<HoldRecord>),
    /// It had ended before, as the record says. Nothing was done.
    Already(Arc<HoldRecord>),
    /// There is none, or it is forgotten.
    Unknown,
    /// It is a lease, and that is not its token; or the other way round.
    NotYours,
    /// Its time is not over.
    NotYet(Arc<HoldRecord>),
    /// A charge that a ledger keeps too has no state: that is to be restored first. Nothing was done.
    Unrestored(Arc<HoldRecord>),
}

/// What has become of a hold that was to last longer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Extended {
    /// It does, as the record says.
    Done(Arc<HoldRecord>),
    /// It has ended.
    Ended(Arc<HoldRecord>),
    /// Its slots are gone, as its time is over or they were reset: they may be another's by now.
    Lapsed(Arc<HoldRecord>),
    /// There is none, or it is forgotten.
    Unknown,
    /// It is a lease, and that is not its token; or a reservation, which has none.
    NotYours,
}
