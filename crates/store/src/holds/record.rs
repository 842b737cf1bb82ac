//! The record of a hold, and the rules for settling it.

use std::sync::Arc;

use tollgate_core::{
    CarryOver, Charge, Enforcement, HoldId, Key, Limit, Recorded, Tag, Time, Token,
};

use super::{MAX_MEMO, NewHold, Settle, cut};

/// The purpose of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A reservation: its charges are provisional.
    Reservation,
    /// A lease: it holds slots, and its other charges are final.
    Lease,
}

/// The state of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldState {
    /// Open.
    Reserved,
    /// Committed.
    Consumed,
    /// Released.
    Released,
    /// Expired before it was settled, and given back.
    Expired,
}

/// The record of a hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldRecord {
    /// The id.
    pub id: HoldId,
    /// The purpose.
    pub purpose: Purpose,
    /// The state.
    pub state: HoldState,
    /// The units that were held.
    pub units: u64,
    /// The units that were used, after a commit.
    pub actual: Option<u64>,
    /// The time of the charges.
    pub charged_at: Time,
    /// The time of the expiry.
    pub expires_at: Time,
    /// The hash of the request that made the hold.
    pub fingerprint: u64,
    /// The fence of the slots: larger than the fences of all earlier holders. 0 without slots.
    pub fence: u64,
    /// The secret of the owner of a lease.
    pub token: Token,
    /// The name of the owner.
    pub owner: Arc<str>,
    /// A text that the caller stored with the hold.
    pub memo: Arc<str>,
    /// The subject whose open holds include this one: see [`NewHold::bound`].
    pub subject: Option<u128>,
    /// The charges that were taken.
    pub charges: Vec<HeldCharge>,
}

/// A charge of a hold, owned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldCharge {
    /// The key of the state.
    pub key: Key,
    /// The key of the state that new subjects of the rule share while the store is full.
    pub overflow: Key,
    /// The rule's name.
    pub rule: Arc<str>,
    /// The tag of its keys.
    pub tag: Tag,
    /// The algorithm and its numbers.
    pub limit: Limit,
    /// The cost of one unit.
    pub cost: u64,
    /// Whether the charge could deny the request.
    pub enforcement: Enforcement,
    /// What happens to a state that was written under other numbers.
    pub carry_over: CarryOver,
    /// Whether a ledger records the charge too.
    pub ledgered: bool,
    /// How far a commit may take the allowance below zero.
    pub overdraft: u64,
    /// The amount that was charged. For an open hold, this is the cost of all held units. For a settled
    /// hold, it is the cost of the used units, as far as the overdraft allowed. For a concurrency limit, it
    /// is 1 while the hold has a slot. For a shadow that would have denied, it is 0.
    pub taken: u64,
}

impl HeldCharge {
    /// Returns the charge as stores take it.
    #[must_use]
    pub fn as_charge(&self) -> Charge<'_> {
        Charge {
            overflow: self.overflow,
            rule: &self.rule,
            tag: self.tag,
            cost: self.cost,
            enforcement: self.enforcement,
            carry_over: self.carry_over,
            recorded: self.ledgered.then(Recorded::default),
            overdraft: self.overdraft,
            ..Charge::new(self.key, &self.limit)
        }
    }

    /// Returns the record of a charge that has taken `taken`.
    #[must_use]
    pub fn of(charge: &Charge<'_>, taken: u64) -> HeldCharge {
        HeldCharge {
            key: charge.key,
            overflow: charge.overflow,
            rule: charge.rule.into(),
            tag: charge.tag,
            limit: charge.limit.clone(),
            cost: charge.cost,
            enforcement: charge.enforcement,
            carry_over: charge.carry_over,
            ledgered: charge.recorded.is_some(),
            overdraft: charge.overdraft,
            taken,
        }
    }

    /// Returns whether the charge is of a concurrency limit.
    #[must_use]
    pub fn is_slot(&self) -> bool {
        matches!(self.limit, Limit::Concurrency(_))
    }
}

/// Returns `text` as a shared text. Most texts are empty and need no memory.
fn shared(text: &str) -> Arc<str> {
    match text {
        "" => Arc::default(),
        text => text.into(),
    }
}

/// Returns what an allowed hold of `units` takes from `charge`. `allowed` says whether the charge itself
/// allows the hold.
#[must_use]
pub(crate) fn taken_by(charge: &Charge<'_>, units: u64, allowed: bool) -> u64 {
    let cost = charge.cost.saturating_mul(units);
    match charge.limit {
        Limit::Backoff(_) => 0,
        _ if !allowed => 0,
        Limit::Concurrency(_) => cost.min(1),
        _ => cost,
    }
}

impl HoldRecord {
    /// Returns the record of a hold of `units` that was made at `now` and took `charges`.
    #[must_use]
    pub fn new(
        new: &NewHold<'_>,
        units: u64,
        fence: u64,
        charges: Vec<HeldCharge>,
        now: Time,
    ) -> HoldRecord {
        HoldRecord {
            id: new.id,
            purpose: new.purpose,
            state: HoldState::Reserved,
            units,
            actual: None,
            charged_at: now,
            expires_at: now + new.bounded_ttl(),
            fingerprint: new.fingerprint,
            fence,
            token: new.token,
            owner: shared(new.bounded_owner()),
            memo: shared(cut(new.memo, MAX_MEMO)),
            subject: new.bound.map(|it| it.subject),
            charges,
        }
    }

    /// Returns whether the hold is open.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.state == HoldState::Reserved
    }

    /// Returns whether the hold has slots.
    #[must_use]
    pub fn has_slots(&self) -> bool {
        self.charges.iter().any(|it| it.is_slot() && it.taken > 0)
    }

    /// Returns whether `how` fits this kind of hold, and has the right token if it is a lease.
    #[must_use]
    pub fn may_settle(&self, how: Settle) -> bool {
        match (self.purpose, how) {
            (_, Settle::Expire | Settle::Undo)
            | (Purpose::Reservation, Settle::Commit { .. } | Settle::Release) => true,
            (Purpose::Lease, Settle::ReleaseLease { token }) => token == self.token,
            _ => false,
        }
    }

    /// Returns whether a caller with this token may extend the hold. A reservation has no token.
    #[must_use]
    pub fn may_extend(&self, token: Option<Token>) -> bool {
        match self.purpose {
            Purpose::Reservation => token.is_none(),
            Purpose::Lease => token == Some(self.token),
        }
    }

    /// Returns whether settling this hold can change the charge. It cannot change a back-off, which takes
    /// nothing. It cannot change a shadow that would have denied: such a charge has a cost but took
    /// nothing. A hold of 0 units, made before the cost was known, is charged for the used units.
    #[must_use]
    pub fn settles(&self, charge: &HeldCharge) -> bool {
        let costs = charge.cost > 0 && self.units > 0;
        let is_watching = matches!(charge.limit, Limit::Backoff(_));
        charge.taken > 0 || !costs && !charge.is_slot() && !is_watching
    }

    /// Returns the final amount of a charge that [is settled](HoldRecord::settles), if the hold ends as `how`
    /// says. For a lease, returns the taken amount of each charge, also of its slots, although the slots become
    /// free.
    #[must_use]
    pub fn due(&self, charge: &HeldCharge, how: Settle) -> u64 {
        match (self.purpose, how) {
            (_, Settle::Undo) => 0,
            (Purpose::Lease, _) => charge.taken,
            (_, Settle::Commit { actual }) => charge.cost.saturating_mul(actual),
            _ => 0,
        }
    }

    /// Ends the hold as `how` says.
    pub fn end(&mut self, how: Settle) {
        (self.state, self.actual) = match how {
            Settle::Commit { actual } => (HoldState::Consumed, Some(actual)),
            Settle::Release | Settle::ReleaseLease { .. } | Settle::Undo => {
                (HoldState::Released, None)
            }
            Settle::Expire => (HoldState::Expired, None),
        };
    }
}
