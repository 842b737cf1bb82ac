//! What is noted of a hold.

use std::sync::Arc;

use tollgate_core::{
    CarryOver, Charge, Enforcement, HoldId, Key, Limit, Recorded, Tag, Time, Token,
};

use super::{MAX_MEMO, NewHold, Settle, cut};

/// What a hold is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Its charges are provisional.
    Reservation,
    /// It holds slots, and its other charges are final.
    Lease,
}

/// Where a hold stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldState {
    /// It is open.
    Reserved,
    /// It was committed.
    Consumed,
    /// It was given back.
    Released,
    /// Its time was over before anybody ended it, and it was given back.
    Expired,
}

/// What is noted of a hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldRecord {
    /// Its name.
    pub id: HoldId,
    /// What it is for.
    pub purpose: Purpose,
    /// Where it stands.
    pub state: HoldState,
    /// The units that it was made for.
    pub units: u64,
    /// The units that were used, once it was committed.
    pub actual: Option<u64>,
    /// When its charges were taken.
    pub charged_at: Time,
    /// When its time is over.
    pub expires_at: Time,
    /// The hash of what was asked.
    pub fingerprint: u64,
    /// The number of its slots: larger than those of all who held them before. 0 if it has none.
    pub fence: u64,
    /// What only the owner of a lease knows.
    pub token: Token,
    /// Who it is for.
    pub owner: Arc<str>,
    /// What its maker wants to find again with it.
    pub memo: Arc<str>,
    /// What was taken.
    pub charges: Vec<HeldCharge>,
}

/// A charge of a hold, owned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldCharge {
    /// Where the state is kept.
    pub key: Key,
    /// Where the state is kept that strangers share.
    pub overflow: Key,
    /// The rule's name.
    pub rule: Arc<str>,
    /// What its keys are placed by.
    pub tag: Tag,
    /// The numbers.
    pub limit: Limit,
    /// The cost of one unit.
    pub cost: u64,
    /// Whether it could refuse.
    pub enforcement: Enforcement,
    /// What becomes of a state under other numbers.
    pub carry_over: CarryOver,
    /// Whether a ledger keeps it too.
    pub ledgered: bool,
    /// How far below nothing a commit may take it.
    pub overdraft: u64,
    /// What it has been charged so far: the cost of all units when the hold is made, and of those that
    /// were used once it is settled, as far as the overdraft goes. Of a concurrency limit 1 while it
    /// holds a slot. Nothing if it only shadows, and would have refused.
    pub taken: u64,
}

impl HeldCharge {
    /// The charge as stores know it.
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

    /// A charge of which `taken` is taken.
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

    /// Whether it is of slots.
    #[must_use]
    pub fn is_slot(&self) -> bool {
        matches!(self.limit, Limit::Concurrency(_))
    }
}

/// A text of a record. Most have none, which needs no memory.
fn shared(text: &str) -> Arc<str> {
    match text {
        "" => Arc::default(),
        text => text.into(),
    }
}

/// What a hold of `units` that passes takes of a charge that allows it or not.
#[must_use]
pub(crate) fn taken_by(charge: &Charge<'_>, units: u64, allowed: bool) -> u64 {
    let cost = charge.cost.saturating_mul(units);
    match charge.limit {
        _ if !allowed => 0,
        Limit::Backoff(_) => 0,
        Limit::Concurrency(_) => cost.min(1),
        _ => cost,
    }
}

impl HoldRecord {
    /// The record of a hold of `units` that was made at `now`; what each charge took is in `charges`.
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
            charges,
        }
    }

    /// Whether it is open.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.state == HoldState::Reserved
    }

    /// Whether it holds slots.
    #[must_use]
    pub fn has_slots(&self) -> bool {
        self.charges.iter().any(|it| it.is_slot() && it.taken > 0)
    }

    /// Whether `how` is for this hold, and by who may.
    #[must_use]
    pub fn may_settle(&self, how: Settle) -> bool {
        match (self.purpose, how) {
            (_, Settle::Expire)
            | (Purpose::Reservation, Settle::Commit { .. } | Settle::Release) => true,
            (Purpose::Lease, Settle::ReleaseLease { token }) => token == self.token,
            _ => false,
        }
    }

    /// Whether who has this token, or none, may extend it: a reservation has none.
    #[must_use]
    pub fn may_extend(&self, token: Option<Token>) -> bool {
        match self.purpose {
            Purpose::Reservation => token.is_none(),
            Purpose::Lease => token == Some(self.token),
        }
    }

    /// Whether a charge is settled with this hold, slots aside. Of a back-off nothing is ever taken; and what
    /// took nothing although it costs something only shadows, and would have refused. What was made for
    /// nothing, as its cost is known only afterwards, is charged for what was used.
    #[must_use]
    pub fn settles(&self, charge: &HeldCharge) -> bool {
        let costs = charge.cost > 0 && self.units > 0;
        let is_watching = matches!(charge.limit, Limit::Backoff(_));
        charge.taken > 0 || !costs && !charge.is_slot() && !is_watching
    }

    /// What a charge that [is settled](HoldRecord::settles) is to have taken once this hold has ended as `how` says;
    /// slots aside, which are free then.
    #[must_use]
    pub fn due(&self, charge: &HeldCharge, how: Settle) -> u64 {
        match (self.purpose, how) {
            (Purpose::Lease, _) => charge.taken,
            (_, Settle::Commit { actual }) => charge.cost.saturating_mul(actual),
            _ => 0,
        }
    }

    /// Notes how it has ended.
    pub fn end(&mut self, how: Settle) {
        (self.state, self.actual) = match how {
            Settle::Commit { actual } => (HoldState::Consumed, Some(actual)),
            Settle::Release | Settle::ReleaseLease { .. } => (HoldState::Released, None),
            Settle::Expire => (HoldState::Expired, None),
        };
    }
}
