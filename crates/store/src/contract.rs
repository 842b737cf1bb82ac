//! The contract of a store.

use std::sync::Arc;

use smallvec::SmallVec;
use tollgate_core::concurrency::Holder;
use tollgate_core::{Balance, Charge, HoldId, Outcome, Span, Time, Token};

use crate::answer::Answer;
use crate::holds::{Extended, Held, HoldRecord, NewHold, Settle, Settled};

/// How long a store keeps an expired state, in case the clock steps back.
pub const GRACE: Span = Span::SECOND;

/// The answer of a store, or the reason why there is none.
pub type Reply<'a, T> = Answer<'a, Result<T, StoreError>>;

/// Keeps the states of many subjects, and decides requests atomically.
///
/// * [`apply`](Store::apply) looks at all charges at one instant of the store's clock, and then charges all
///   of them or none. A shadow charge is charged with the others if its own limit allows, and never denies
///   the request. A charge that stands `Instead` of another is charged as if it had been asked in place of
///   the other. A denial by the replaced charge then does not matter.
/// * A charge with [`OnDenied::Charge`](tollgate_core::OnDenied::Charge) also counts denied requests,
///   whichever charge denies them. A charge with [`OnDenied::Strike`](tollgate_core::OnDenied::Strike)
///   counts the denials of the charge it watches, and its own, but not those of other charges. The outcomes
///   of both kinds describe the state after the count.
/// * Charges of the same key in one request add up: the second sees what the first has taken.
/// * When the numbers of a limit have changed since a state was written, the first `apply` carries the
///   state over, even if it denies the request. The charge's `carry_over` says how. Of several charges
///   of one key the first decides. A limit of another algorithm finds no state and leaves the old state
///   to expire; GCRA and token bucket count as one algorithm here.
/// * Apart from these cases, a denied request leaves every state exactly as it was.
/// * A charge that [needs a state](Charge::needs_state) has its usage recorded elsewhere. If its key has no
///   state at all, the charge answers [`Unrestored`](tollgate_core::Denial::Unrestored), whatever its cost.
///   If such a charge enforces, the request is denied and changes no state, not even where denied requests
///   count. The caller restores the state and asks again. A state of an earlier period is a state.
/// * A state is kept for [`GRACE`] after it has expired. So a clock that steps back by less than that, or
///   a delayed request, does not find a full allowance in place of the state.
///
/// # Holds
/// A hold is taken now and settled or given back later. Stores without holds keep the default methods,
/// which answer [`StoreError::Unsupported`].
///
/// * [`hold`](Store::hold) decides as `apply` does: all charges at one instant, all or none. If a charge
///   of a concurrency limit has a cost above 0, `hold` takes one slot until the hold ends or its time is
///   over. `apply` and `peek` only look whether a slot is free.
/// * Slots are free when the time of their hold is over, whether or not the hold was ended. The other
///   charges of the hold come back when the hold is settled. A store does not settle holds by itself; it
///   only lists the holds that are [due](Store::due_holds).
/// * A hold that is due and not yet ended can still be committed, because its units were used. Such a
///   hold can also be extended, unless it had slots: another hold may have these slots by then. A hold
///   whose slots were [reset](Store::reset) cannot be extended either.
/// * The numbers of a limit may change after a hold was made. Then the hold is settled in the numbers that
///   the state has by then: settling carries nothing over. Usage that a change has reset is not given back.
///   Without a live state, the numbers are those of the hold.
/// * A charge that [needs state](Charge::needs_state) may have none. If it would take or give back
///   something, its reservation does not end: the amount is only known after a [restore](Store::restore). A
///   lease leaves such charges as they are.
/// * A record is kept for [`RETAIN`](crate::RETAIN) after its hold has ended. An open record is never
///   forgotten to make room, nor soon after its time is over.
///
/// # Wrappers
/// A store that wraps another returns the other from [`inner`](Store::inner), and implements only the
/// methods to which it adds something. All other methods forward to the inner store.
pub trait Store: Send + Sync {
    /// Returns the store that this one wraps, if it wraps one.
    fn inner(&self) -> Option<&dyn Store> {
        None
    }

    /// Returns the kind of store, as traces show it.
    fn name(&self) -> &'static str {
        self.inner().map_or("other", Store::name)
    }

    /// Returns whether the state lives in this process only. Such a state cannot fail, and ends with the
    /// process.
    fn is_local(&self) -> bool {
        self.inner().is_some_and(Store::is_local)
    }

    /// Returns whether usage is recorded outside this store, so that charges may ask for a record
    /// ([`Charge::recorded`]).
    fn records_usage(&self) -> bool {
        self.inner().is_some_and(Store::records_usage)
    }

    /// Decides `charges`, and takes the units if all enforcing charges allow the request.
    fn apply<'a>(&'a self, charges: &'a [Charge<'a>], ask: Ask) -> Reply<'a, Applied>;

    /// Like `apply`, but writes an answer that is ready at once to `applied`. Returns any other answer. A
    /// store in memory implements this to save copies of the outcomes.
    fn apply_into<'a>(
        &'a self,
        charges: &'a [Charge<'a>],
        ask: Ask,
        applied: &mut Applied,
    ) -> Option<Reply<'a, Applied>> {
        match self.apply(charges, ask) {
            Answer::Now(Ok(answer)) => {
                *applied = answer;
                None
            }
            other => Some(other),
        }
    }

    /// Returns what `apply` would decide at this instant. Takes nothing; `remaining` is the present amount.
    fn peek<'a>(&'a self, charges: &'a [Charge<'a>], ask: Ask) -> Reply<'a, Applied>;

    /// Gives back `units` of each charge that were taken at `charged_at`, as reported by
    /// [`Applied::now`]. An amount that has come back by itself since is not given back twice.
    fn refund<'a>(
        &'a self,
        charges: &'a [Charge<'a>],
        units: u64,
        charged_at: Time,
    ) -> Reply<'a, Applied>;

    /// Forgets the state of each charge, as if its subject had never been seen.
    fn reset<'a>(&'a self, charges: &'a [Charge<'a>]) -> Reply<'a, ()>;

    /// Writes the balances of quotas that have no state, in the order of the charges. If two callers restore
    /// at once, the first wins. A balance of an earlier period is rolled forward, as a state would be.
    /// Limits that are not quotas are left alone.
    fn restore<'a>(&'a self, charges: &'a [Charge<'a>], balances: &'a [Balance]) -> Reply<'a, ()> {
        forwarded(self.inner(), "restored usage", |it| {
            it.restore(charges, balances)
        })
    }

    /// Adds to the usage of a quota in the current period, and to the amount beyond its limit. Neither goes
    /// below zero; usage may go above the limit. Returns the new balance; `None`, with nothing changed, if
    /// there is no state or the limit is not a quota.
    fn adjust<'a>(
        &'a self,
        charge: &'a Charge<'a>,
        used: i64,
        extra: i64,
    ) -> Reply<'a, Option<Balance>> {
        forwarded(self.inner(), "adjusted usage", |it| {
            it.adjust(charge, used, extra)
        })
    }

    /// Returns the balance of a quota in the current period; `None` if there is no state or the limit is not
    /// a quota.
    fn balance<'a>(&'a self, charge: &'a Charge<'a>) -> Reply<'a, Option<Balance>> {
        forwarded(self.inner(), "balances", |it| it.balance(charge))
    }

    /// Takes `units` of each charge if all enforcing charges allow it, and records the hold under its id.
    fn hold<'a>(
        &'a self,
        charges: &'a [Charge<'a>],
        units: u64,
        new: &'a NewHold<'a>,
    ) -> Reply<'a, Held> {
        forwarded(self.inner(), HOLDS, |it| it.hold(charges, units, new))
    }

    /// Ends a hold.
    fn settle(&self, id: HoldId, how: Settle) -> Reply<'_, Settled> {
        forwarded(self.inner(), HOLDS, |it| it.settle(id, how))
    }

    /// Extends a hold to `ttl` from now, if that is later than its end. A lease needs its token, and a
    /// reservation has none.
    fn extend(&self, id: HoldId, ttl: Span, token: Option<Token>) -> Reply<'_, Extended> {
        forwarded(self.inner(), HOLDS, |it| it.extend(id, ttl, token))
    }

    /// Returns the record of a hold, if there is one.
    fn find_hold(&self, id: HoldId) -> Reply<'_, Option<Arc<HoldRecord>>> {
        forwarded(self.inner(), HOLDS, |it| it.find_hold(id))
    }

    /// Records a hold whose charges were taken before, for example by a process that has ended. Returns
    /// whether the hold was new. Charges nothing, and takes no slots.
    fn put_hold<'a>(&'a self, record: &'a HoldRecord) -> Reply<'a, bool> {
        forwarded(self.inner(), HOLDS, |it| it.put_hold(record))
    }

    /// Returns up to `most` holds whose time is over, the longest overdue first. Some of them may have ended
    /// already: [settling](Store::settle) these with [`Settle::Expire`] removes them from the list.
    fn due_holds(&self, most: usize) -> Reply<'_, Vec<HoldId>> {
        match self.inner() {
            Some(inner) => inner.due_holds(most),
            None => Answer::Now(Ok(Vec::new())),
        }
    }

    /// Returns up to `most` holders of a slot of a concurrency limit; none for other limits.
    fn holders<'a>(&'a self, charge: &'a Charge<'a>, most: usize) -> Reply<'a, Vec<Holder>> {
        forwarded(self.inner(), HOLDS, |it| it.holders(charge, most))
    }

    /// Returns the size of the store.
    fn usage(&self) -> Reply<'_, Usage> {
        forwarded(self.inner(), "usage figures", |it| it.usage())
    }

    /// Forgets some of the expired states, if the store does not do that by itself.
    fn sweep(&self) {
        if let Some(inner) = self.inner() {
            inner.sweep();
        }
    }
}

const HOLDS: &str = "reservations or leases";

/// Makes a call to the inner store, if there is one.
fn forwarded<'a, T>(
    inner: Option<&'a dyn Store>,
    what: &'static str,
    call: impl FnOnce(&'a dyn Store) -> Reply<'a, T>,
) -> Reply<'a, T> {
    let unsupported = || Answer::Now(Err(StoreError::Unsupported(what)));
    inner.map_or_else(unsupported, call)
}

/// A store that answers at once, always with [`Answer::Now`], so that synchronous code can use it.
pub trait Immediate: Store {}

impl Store for Arc<dyn Store> {
    fn inner(&self) -> Option<&dyn Store> {
        Some(&**self)
    }

    fn apply<'a>(&'a self, charges: &'a [Charge<'a>], ask: Ask) -> Reply<'a, Applied> {
        (**self).apply(charges, ask)
    }

    fn apply_into<'a>(
        &'a self,
        charges: &'a [Charge<'a>],
        ask: Ask,
        applied: &mut Applied,
    ) -> Option<Reply<'a, Applied>> {
        (**self).apply_into(charges, ask, applied)
    }

    fn peek<'a>(&'a self, charges: &'a [Charge<'a>], ask: Ask) -> Reply<'a, Applied> {
        (**self).peek(charges, ask)
    }

    fn refund<'a>(
        &'a self,
        charges: &'a [Charge<'a>],
        units: u64,
        charged_at: Time,
    ) -> Reply<'a, Applied> {
        (**self).refund(charges, units, charged_at)
    }

    fn reset<'a>(&'a self, charges: &'a [Charge<'a>]) -> Reply<'a, ()> {
        (**self).reset(charges)
    }
}

/// The units that a request asks for. For each unit, a charge takes its `cost`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// This many units, or none.
    Exactly(u64),
    /// As many as are available, at least one, and at most this many.
    UpTo(u64),
}

impl Ask {
    /// Returns the units asked for.
    #[must_use]
    pub fn units(self) -> u64 {
        match self {
            Ask::Exactly(units) | Ask::UpTo(units) => units,
        }
    }
}

/// One outcome per charge, in the order of the charges.
pub type Outcomes = SmallVec<[Outcome; 6]>;

/// The decision of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// The time of the decision by the store's clock.
    pub now: Time,
    /// Whether every enforcing charge allows the request.
    pub allowed: bool,
    /// The units taken; 0 if denied.
    pub granted: u64,
    /// The outcome of each charge.
    pub outcomes: Outcomes,
    /// How the charges were taken together.
    pub guarantee: Guarantee,
}

/// How the charges of a request were taken together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Guarantee {
    /// All at one instant, or none.
    #[default]
    Atomic,
    /// Server by server, because several servers hold the keys. Units taken before a server denied were
    /// given back.
    Compensated,
}

impl Guarantee {
    /// Returns the name in answers.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Guarantee::Atomic => "atomic",
            Guarantee::Compensated => "compensated",
        }
    }
}

impl Applied {
    /// Sets the result of a request for `units`.
    pub(crate) fn settle(&mut self, now: Time, allowed: bool, units: u64) {
        self.now = now;
        self.allowed = allowed;
        self.granted = if allowed { units } else { 0 };
    }
}

/// The size of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The number of states.
    pub keys: u64,
    /// The bytes that the states occupy; 0 if unknown.
    pub bytes: u64,
    /// The requests of new subjects that were decided by a shared state, because the store was full.
    pub shared: u64,
}

/// Why a store could not decide. Nothing was taken, unless a variant says otherwise.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The store did not answer in time. The store may have taken the units.
    #[error("the store did not answer in time")]
    Timeout,
    /// The connection broke before the answer. The store may have taken the units.
    #[error("the connection to the store broke: {0}")]
    Disconnected(Arc<str>),
    /// The store could not be reached, or cannot decide at the moment.
    #[error("the store is unavailable: {0}")]
    Unavailable(Arc<str>),
    /// The ledger behind the store failed. The text names the ledger. The store keeps the units only if the
    /// ledger may have recorded them.
    #[error("{0}")]
    Ledger(Arc<str>),
    /// The store has failed too often recently, and gets no calls for a while.
    #[error(
        "the circuit breaker is open: the store has failed repeatedly, and gets no calls for a while"
    )]
    BreakerOpen,
    /// Too many requests wait for the store already.
    #[error("too many requests wait for the store")]
    Overloaded,
    /// The key holds data that Tollgate did not write. The store left the data alone.
    #[error(
        "the key {0} holds data that Tollgate cannot read: check that no other program uses the `key_prefix`"
    )]
    Foreign(Arc<str>),
    /// The store is full of open holds.
    #[error("the store is full of open holds: settle some, or use a shorter time to live")]
    TooManyHolds,
    /// The store does not do this.
    #[error("this store does not support {0}")]
    Unsupported(&'static str),
    /// The store reports an error of its own.
    #[error("the store reports an error: {0}")]
    Script(Arc<str>),
}

impl StoreError {
    /// Returns the kind of error in metrics.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            StoreError::Timeout => "timeout",
            StoreError::Disconnected(_) => "disconnected",
            StoreError::Unavailable(_) | StoreError::Ledger(_) => "unavailable",
            StoreError::BreakerOpen => "breaker_open",
            StoreError::Overloaded => "overloaded",
            StoreError::Foreign(_) => "foreign_data",
            StoreError::TooManyHolds => "too_many_holds",
            StoreError::Unsupported(_) => "unsupported",
            StoreError::Script(_) => "script",
        }
    }
}
