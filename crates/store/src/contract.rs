//! The contract of a store.

use std::sync::Arc;

use smallvec::SmallVec;
use tollgate_core::concurrency::Holder;
use tollgate_core::{Balance, Charge, HoldId, Outcome, Span, StoreId, Time, Token};

use crate::answer::Answer;
use crate::holds::{Extended, Held, HoldRecord, NewHold, Settle, Settled};

/// How long a store keeps an expired state, in case the clock steps back.
pub const GRACE: Span = Span::SECOND;

/// The answer of a store, or the reason why there is none.
pub type Reply<'a, T> = Answer<'a, Result<T, StoreError>>;

/// Keeps the states of many subjects, and decides requests atomically.
///
/// [`apply`](Store::apply) decides all charges of a request at one instant of the store's clock. Then it
/// takes all of them or none. A denied request leaves every state exactly as it was, except in the cases
/// below.
///
/// * **Shadows and candidates** never deny the request. A shadow is charged with the others if its own limit
///   allows the request. A candidate ([`Instead`](tollgate_core::Enforcement::Instead) of another charge) is
///   charged as if it replaced that charge. A denial by the replaced charge does not matter to it.
/// * **Charged denials**: a charge with [`OnDenied::Charge`](tollgate_core::OnDenied::Charge) also counts
///   denied requests, whichever charge denies them.
/// * **Strikes**: a charge with [`OnDenied::Strike`](tollgate_core::OnDenied::Strike) counts denials by the
///   charge it watches, and its own denials, but not denials by other charges.
/// * **Outcomes** of charges that count a denied request describe the state after the count.
/// * **Charges of the same key** in one request add up: the second charge sees the state after the first.
///
/// # Changed numbers
/// If the numbers of a limit have changed since a state was written, the first `apply` carries over the
/// state, even if it denies the request. The charge's `carry_over` says how. If several charges have the
/// same key, the first charge says how. A limit of another algorithm does not find the old state, which
/// expires later. GCRA and token bucket count as one algorithm here.
///
/// A refund and a report carry nothing over, because a caller that does not know the new numbers yet may send
/// them late. They change the state in its present numbers. Usage that a change has reset is not given back. The
/// answer has the amounts that the numbers of the caller give.
///
/// # Missing states
/// A state is kept for [`GRACE`] after it has expired. So a delayed request, or a clock that steps back by
/// less than [`GRACE`], still finds the state, and not a full allowance.
///
/// A charge that [needs a state](Charge::needs_state) has its usage recorded elsewhere. If its key has no
/// state at all, the charge answers [`Unrestored`](tollgate_core::Denial::Unrestored), whatever its cost.
/// If such a charge enforces, the request is denied and changes no state, not even a state that counts
/// denied requests. The caller restores the state and asks again. A state of an earlier period does not
/// need to be restored.
///
/// # Holds
/// A hold is taken now, and settled or given back later. Stores without holds keep the default methods,
/// which answer [`StoreError::Unsupported`].
///
/// * **Making**: [`hold`](Store::hold) decides as `apply` does: all charges at one instant, all or none. A
///   hold of 0 units is decided like a hold of 1 unit, and takes nothing. If a charge of a concurrency limit
///   has a cost above 0, `hold` takes one slot. `apply` and `peek` take no slot, and only check whether one
///   is free.
/// * **Bounds**: a hold whose subject has too many open holds is [not made](Held::TooMany). A hold that was
///   made before with the same id is still found.
/// * **Slots** become free when the hold ends or expires. They become free at the expiry even if no call has
///   ended the hold.
/// * **Other charges** of the hold come back when the hold is settled. A store does not settle holds by
///   itself. It only lists the [expired holds](Store::due_holds).
/// * **Expired holds** that have not ended can still be committed, because their units were used. They can
///   also be extended, unless they had slots: another hold may have these slots by now. A hold that lost its
///   slots by a [reset](Store::reset) cannot be extended either.
/// * **Changed numbers**: a hold is settled in the present numbers of the state. Settling carries nothing
///   over. Usage that a change has reset is not given back. If the state is missing or expired, the hold is
///   settled in its own numbers.
/// * **Missing states**: a charge that [needs a state](Charge::needs_state) may have none. If settling a
///   reservation would take from the charge or give back to it, the reservation does not end before a
///   [restore](Store::restore). A lease leaves such charges as they are.
/// * **Records** are kept for [`RETAIN`](crate::RETAIN) after the hold has ended. The record of an open hold
///   is never forgotten to make room. It is also kept for a time after the hold has expired.
///
/// # Several stores
/// A store may send charges to several stores ([`Charge::store`]). It then answers
/// [`Compensated`](Guarantee::Compensated): each store decides its own charges in one step, one store after
/// the other, and what was taken is given back if a later store denies. Stores after the one that denies are
/// not asked: their outcomes are [`Outcome::UNDECIDED`]. They are asked only to count the denied request, if
/// one of their charges counts denied requests.
///
/// # Wrappers
/// A store that wraps another store returns that store from [`inner`](Store::inner). It implements only the
/// methods to which it adds something. All other methods forward to the inner store.
pub trait Store: Send + Sync {
    /// Returns the store that this store wraps, if it wraps one.
    fn inner(&self) -> Option<&dyn Store> {
        None
    }

    /// Returns the kind of store, as traces show it.
    fn name(&self) -> &'static str {
        self.inner().map_or("other", Store::name)
    }

    /// Returns whether the states live in this process only. Such a store always answers, and its states end
    /// with the process.
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

    /// Does the same as `apply`. If the decision is ready at once, writes it to `applied` and returns `None`.
    /// Otherwise returns the answer. A store in memory implements this to save copies of the outcomes.
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

    /// Returns what `apply` would decide at this instant. Takes nothing, so `remaining` is the amount before
    /// the request.
    fn peek<'a>(&'a self, charges: &'a [Charge<'a>], ask: Ask) -> Reply<'a, Applied>;

    /// Gives back `units` of each charge that were taken at `charged_at`, as reported by
    /// [`Applied::now`]. An amount that has already come back by itself is not given back twice.
    fn refund<'a>(
        &'a self,
        charges: &'a [Charge<'a>],
        units: u64,
        charged_at: Time,
    ) -> Reply<'a, Applied>;

    /// Forgets the state of each charge, as if its subject had never been seen.
    fn reset<'a>(&'a self, charges: &'a [Charge<'a>]) -> Reply<'a, ()>;

    /// Writes `balances` as the states of quotas that have no state. Balance `i` belongs to charge `i`. If
    /// two callers restore the same quota, the first wins. A balance of an earlier period is carried over
    /// into the current period, as a state would be. Limits that are not quotas stay as they are.
    fn restore<'a>(&'a self, charges: &'a [Charge<'a>], balances: &'a [Balance]) -> Reply<'a, ()> {
        forwarded(self.inner(), "restored usage", |it| {
            it.restore(charges, balances)
        })
    }

    /// Adds `used` to the usage of a quota in the current period, and `extra` to the amount beyond its limit.
    /// Neither sum falls below zero. The usage may exceed the limit. Returns the new balance. If there is no
    /// state, or the limit is not a quota, changes nothing and returns `None`.
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

    /// Counts `units` of a charge that were admitted without asking this store, even if the limit does not allow
    /// them. The allowance may fall below zero, as far as its state can count. Returns the level afterwards. If
    /// the limit has no amount, or its usage has to be restored first, changes nothing and returns `None`. With
    /// 0 units, only reads the level.
    fn report<'a>(
        &'a self,
        charge: &'a Charge<'a>,
        units: u64,
    ) -> Reply<'a, Option<AllowanceLevel>> {
        forwarded(self.inner(), "reported usage", |it| {
            it.report(charge, units)
        })
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

    /// Extends a hold to `ttl` from now, unless it already lasts longer. For a lease, `token` is its
    /// secret. For a reservation, `token` is `None`.
    fn extend(&self, id: HoldId, ttl: Span, token: Option<Token>) -> Reply<'_, Extended> {
        forwarded(self.inner(), HOLDS, |it| it.extend(id, ttl, token))
    }

    /// Returns the record of a hold, if there is one.
    fn find_hold(&self, id: HoldId) -> Reply<'_, Option<Arc<HoldRecord>>> {
        forwarded(self.inner(), HOLDS, |it| it.find_hold(id))
    }

    /// Records a hold that was made before, for example by a process that has ended. Returns whether the hold
    /// was new. Charges nothing, and takes no slots.
    fn put_hold<'a>(&'a self, record: &'a HoldRecord) -> Reply<'a, bool> {
        forwarded(self.inner(), HOLDS, |it| it.put_hold(record))
    }

    /// Returns up to `most` expired holds, the earliest expiry first. Some of them may have ended already. To
    /// remove a hold from the list, [settle](Store::settle) it with [`Settle::Expire`].
    fn due_holds(&self, most: usize) -> Reply<'_, Vec<HoldId>> {
        match self.inner() {
            Some(inner) => inner.due_holds(most),
            None => Answer::Now(Ok(Vec::new())),
        }
    }

    /// Returns up to `most` holders of the slots of a concurrency limit. Other limits have no holders.
    fn holders<'a>(&'a self, charge: &'a Charge<'a>, most: usize) -> Reply<'a, Vec<Holder>> {
        forwarded(self.inner(), HOLDS, |it| it.holders(charge, most))
    }

    /// Returns the size of the store.
    fn usage(&self) -> Reply<'_, Usage> {
        forwarded(self.inner(), "usage figures", |it| it.usage())
    }

    /// Forgets some of the expired states, if the store does not forget them by itself.
    fn sweep(&self) {
        if let Some(inner) = self.inner() {
            inner.sweep();
        }
    }
}

const HOLDS: &str = "reservations or leases";

/// Calls the inner store. Without an inner store, answers [`StoreError::Unsupported`].
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
    /// The request needs this many units, and gets all or none of them.
    Exactly(u64),
    /// The request gets as many units as are available, up to this many. It is denied if there is not even
    /// one.
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

/// The outcomes of the charges, in the order of the charges.
pub type Outcomes = SmallVec<[Outcome; 6]>;

/// The decision of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// The time of the decision by the store's clock.
    pub now: Time,
    /// Whether every enforcing charge allows the request.
    pub allowed: bool,
    /// The units that were taken; 0 if the request is denied.
    pub granted: u64,
    /// The outcome of each charge.
    pub outcomes: Outcomes,
    /// How the charges were taken together.
    pub guarantee: Guarantee,
    /// Why some charges have no answer, if a store of several did not answer. Their outcomes are
    /// [`Outcome::UNDECIDED`]. The other stores allow the request, and have taken the units.
    pub unanswered: Option<Box<Unanswered>>,
}

/// The level of an allowance after a [report](Store::report).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllowanceLevel {
    /// The time of the report by the store's clock.
    pub now: Time,
    /// The amount left; below zero if more was used than the limit allows.
    pub left: i64,
    /// The part of the reported amount that the limit would not have admitted at this instant.
    pub excess: u64,
    /// The instant at which the whole allowance is back, if nothing more is charged.
    pub reset_at: Time,
}

impl AllowanceLevel {
    /// Returns the level after an amount of `reported`, which found the level `before`.
    #[must_use]
    pub fn after(
        reported: u64,
        before: i64,
        left: i64,
        now: Time,
        reset_at: Time,
    ) -> AllowanceLevel {
        let admitted = u64::try_from(before).unwrap_or(0).min(reported);
        AllowanceLevel {
            now,
            left,
            excess: reported - admitted,
            reset_at,
        }
    }
}

/// One of several stores did not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unanswered {
    /// The error of the store that failed first.
    pub error: StoreError,
    /// The stores that took the units, each with the time of its decision by its clock. A refund needs it.
    pub taken: SmallVec<[(StoreId, Time); 2]>,
}

/// How the charges of a request were taken together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Guarantee {
    /// The store took all charges at one instant, or none.
    #[default]
    Atomic,
    /// The charges were taken server by server, because several servers or several stores have the keys. If
    /// one denied, the units that others had taken were given back.
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
    /// How many requests of new subjects were decided by a shared state, because the store was full.
    pub shared: u64,
    /// The number of open reservations; 0 if unknown.
    pub reservations: u64,
    /// The number of leases that are held; 0 if unknown.
    pub leases: u64,
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
    /// The store has no room for new keys, and the request needs a key that does not exist yet. Requests for existing
    /// keys are still decided.
    #[error(
        "the store has no room for a new key: give the server more memory, or raise `subjects.max_keys` if it has \
         enough"
    )]
    Full,
    /// The store is full of open holds.
    #[error("the store is full of open holds: settle some, or use a shorter time to live")]
    TooManyHolds,
    /// The store does not support this.
    #[error("this store does not support {0}")]
    Unsupported(&'static str),
    /// The store itself reported an error, for example from a script.
    #[error("the store reports an error: {0}")]
    Script(Arc<str>),
}

impl StoreError {
    /// Returns the name of the error in metrics.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            StoreError::Timeout => "timeout",
            StoreError::Disconnected(_) => "disconnected",
            StoreError::Unavailable(_) | StoreError::Ledger(_) => "unavailable",
            StoreError::BreakerOpen => "breaker_open",
            StoreError::Overloaded => "overloaded",
            StoreError::Foreign(_) => "foreign_data",
            StoreError::Full => "full",
            StoreError::TooManyHolds => "too_many_holds",
            StoreError::Unsupported(_) => "unsupported",
            StoreError::Script(_) => "script",
        }
    }
}
