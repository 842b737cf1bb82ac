//! The contract of a store.

use std::future::Future;
use std::sync::Arc;

use smallvec::SmallVec;
use tollgate_core::{Balance, Charge, Outcome, Span, Time};

/// How far a clock may step back without any state having been forgotten that still counts then.
pub const GRACE: Span = Span::SECOND;

/// State for many subjects, decided atomically.
///
/// * [`apply`](Store::apply) looks at all charges at one instant of the store's clock and then
///   charges all of them or none. A charge that only shadows is charged with the others if its own
///   limit allows, and never keeps the request from passing. A charge that stands `Instead` of
///   another does not need that one to allow the request: it is charged as if it had been asked in its
///   place.
/// * A charge that charges what is denied counts refused requests too, whoever refuses. One that strikes
///   counts what the charge it watches refuses, and what it refuses itself; what only others refuse it
///   does not count. What it says then is how things stand after that.
/// * Charges of the same key in one request add up: the second sees what the first has taken.
/// * When the numbers of a limit have changed since a state was written, the state is carried over
///   at the first `apply`, whatever the request's fate: as the charge's `carry_over` says, and as the
///   algorithm does that. Of several charges of one key the first decides. Limits of another algorithm
///   find no state, and leave that of the old one to expire; GCRA and token bucket are one in this.
/// * Apart from these, a refused request leaves every state exactly as it was.
/// * A charge that a ledger keeps too ([`Charge::needs_state`]), of a key that has no state at all, says
///   [`Unrestored`](tollgate_core::Denial::Unrestored), whatever its cost. If it enforces, the request is
///   refused and leaves no trace anywhere, not even where refused requests count: it will be asked again.
///   A state of an earlier period is a state.
/// * A state is kept for [`GRACE`] after it has expired, so that a clock that steps back by less
///   than that, or a request that was held up, does not find it forgotten and its allowance whole.
pub trait Store: Send + Sync {
    /// What kind of store it is, in traces.
    fn name(&self) -> &'static str {
        "other"
    }

    /// Decides `charges`, and takes what they ask for if all enforcing ones allow it.
    fn apply(
        &self,
        charges: &[Charge<'_>],
        ask: Ask,
    ) -> impl Future<Output = Result<Applied, StoreError>> + Send;

    /// What `apply` would decide at this instant. Takes nothing; `remaining` is what is there now.
    fn peek(
        &self,
        charges: &[Charge<'_>],
        ask: Ask,
    ) -> impl Future<Output = Result<Applied, StoreError>> + Send;

    /// Gives back `units` of each charge that were taken at `charged_at`, as reported by
    /// [`Applied::now`]. What has come back by itself since is not given back twice.
    fn refund(
        &self,
        charges: &[Charge<'_>],
        units: u64,
        charged_at: Time,
    ) -> impl Future<Output = Result<Applied, StoreError>> + Send;

    /// Forgets the state of each charge, as if its subject had never been seen.
    fn reset(&self, charges: &[Charge<'_>]) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Writes what was used of quotas, each where there is no state, in the order of the charges: of two
    /// that restore at once, one wins. What is of an earlier period is rolled forward, as a state would be.
    /// Limits that are no quotas are left alone.
    fn restore(
        &self,
        charges: &[Charge<'_>],
        balances: &[Balance],
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Adds to what is used of a quota in the period in force, and to what there is beside its limit.
    /// Neither goes below nothing; what is used may go above the limit. The balance after that; none, and
    /// nothing is done, if there is no state or the limit is no quota.
    fn adjust(
        &self,
        charge: &Charge<'_>,
        used: i64,
        extra: i64,
    ) -> impl Future<Output = Result<Option<Balance>, StoreError>> + Send;

    /// What is used of a quota in the period in force; none if there is no state or the limit is no quota.
    fn balance(
        &self,
        charge: &Charge<'_>,
    ) -> impl Future<Output = Result<Option<Balance>, StoreError>> + Send;

    /// How much is kept.
    fn usage(&self) -> impl Future<Output = Result<Usage, StoreError>> + Send;
}

/// How much a request wants. A unit costs each charge its `cost`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// This many units or nothing.
    Exactly(u64),
    /// As many as there are, up to this many, and at least one.
    UpTo(u64),
}

impl Ask {
    /// The units asked for.
    #[must_use]
    pub fn units(self) -> u64 {
        match self {
            Ask::Exactly(units) | Ask::UpTo(units) => units,
        }
    }
}

/// One outcome per charge, in their order.
pub type Outcomes = SmallVec<[Outcome; 6]>;

/// What a store has decided.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// The store's time of the decision.
    pub now: Time,
    /// Whether every enforcing charge allows the request.
    pub allowed: bool,
    /// The units taken: none if refused.
    pub granted: u64,
    /// What each charge says.
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
    /// Server by server, as they are kept by several; what was taken before one refused was given
    /// back.
    Compensated,
}

impl Guarantee {
    /// The name in answers.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Guarantee::Atomic => "atomic",
            Guarantee::Compensated => "compensated",
        }
    }
}

impl Applied {
    /// Notes the fate of a request for `units`.
    pub(crate) fn settle(&mut self, now: Time, allowed: bool, units: u64) {
        self.now = now;
        self.allowed = allowed;
        self.granted = if allowed { units } else { 0 };
    }
}

/// How much a store keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// States that have not been forgotten yet.
    pub keys: u64,
    /// Bytes they occupy, where the store can tell.
    pub bytes: u64,
    /// Requests of strangers that were decided by a shared state because the store was full.
    pub shared: u64,
}

/// A store could not decide. Unless said otherwise, nothing was taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The store did not answer in time. Whether anything was taken is not known.
    #[error("the store did not answer in time")]
    Timeout,
    /// The connection broke before the answer. Whether anything was taken is not known.
    #[error("the connection to the store broke: {0}")]
    Disconnected(Arc<str>),
    /// The store could not be reached, or is not able to decide at the moment.
    #[error("the store is unavailable: {0}")]
    Unavailable(Arc<str>),
    /// The store has failed too often of late to be asked now.
    #[error("the store has been failing and is not asked for a while")]
    BreakerOpen,
    /// As many requests as may wait for the store do so already.
    #[error("too many requests wait for the store")]
    Overloaded,
    /// Something that Tollgate did not write stands where a state should be. It was left alone.
    #[error("the key {0} holds something that is not a state of this rule")]
    Foreign(Arc<str>),
    /// The store keeps as many holds as it may, all of them open.
    #[error("the store keeps as many holds as it may: settle some, or give them less time")]
    TooManyHolds,
    /// The store refused the request itself.
    #[error("the store reports an error: {0}")]
    Script(Arc<str>),
}

impl StoreError {
    /// The kind of error in metrics.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            StoreError::Timeout => "timeout",
            StoreError::Disconnected(_) => "disconnected",
            StoreError::Unavailable(_) => "unavailable",
            StoreError::BreakerOpen => "breaker_open",
            StoreError::Overloaded => "overloaded",
            StoreError::Foreign(_) => "foreign_data",
            StoreError::TooManyHolds => "too_many_holds",
            StoreError::Script(_) => "script",
        }
    }
}
