//! Holds in Redis. A record and its charges change in the same step.
//!
//! The record of a hold in the cluster slot of its id decides. If the charges of a hold are in several
//! cluster slots, each slot has a part of the hold: a record of the charges there. A hold is made slot by
//! slot, the deciding slot first, and undone if a later slot denies. A hold ends in the deciding slot
//! first, and then in the others.
//!
//! A hold is due when an instance has to end it: when it has expired, or later if ending it failed. An index
//! has the ids of all open holds, by the time when they are due. Outside a cluster, the script updates the
//! index in the same step. In a cluster, the index may be on another server, so a second call updates it. If
//! that call fails, the hold is released.
//!
//! The record of an open hold is kept for a week after the hold has expired. So its charges are returned even
//! if no instance was running when it expired. The record of an ended hold is kept for at least
//! `tollgate_store::RETAIN`.
//!
//! # What can go wrong
//! In a cluster, this process may die after making a hold and before adding it to the index. No instance ends
//! such a hold. Its slots expire, and its charges of rates refill. Its charges of a quota return with the
//! next period, or when the store is reconciled with the ledger.
//!
//! If the process dies after the call to one cluster slot and before the call to the next, the charges so far
//! are returned when the hold is due.
//!
//! A repeated call may arrive while a hold is being made in several cluster slots. Such a call may see the
//! hold before a later slot denies it.

mod call;
mod create;
mod recent;
mod stored;

use std::sync::Arc;

use redis::{FromRedisValue, Value as Reply};
use tollgate_core::concurrency::Holder;
use tollgate_core::{Charge, HoldId, Limit, Span, Tag, Time, Token};
use tollgate_store::{
    Ask, Extended, HeldCharge, HoldRecord, HoldState, MAX_TTL, Purpose, RETAIN, Settle, Settled,
    StoreError,
};

use self::call::UNDO;
use self::call::{
    COMMIT, EXPIRE, HoldCall, HoldReply, Part, RELEASE, RELEASE_LEASE, ask, ask_index, ask_records,
    get, items, parts,
};
pub(crate) use self::create::Creation;
pub(crate) use self::recent::RecentHolds;
use self::stored::{StoredHold, number};
use crate::key_name::KeyName;
use crate::reply;
use crate::request::{Operation, Request};
use crate::script::Family;
use crate::store::Shared;

/// How long the record of an open hold is kept after the hold has expired. An instance has to end the hold
/// in this time, or its charges are not returned.
pub(crate) const ABANDONED: Span = Span::from_secs(7 * 86_400);
/// After how long a hold is due again, if it could not be ended.
const RETRY_DUE: Span = Span::from_secs(10);
/// How often ending or extending a hold is tried. A try fails if the id was reused: since the record was
/// read, another hold was made with the same id.
const ATTEMPTS: usize = 3;
/// The most ids or holders that are listed at once.
const MOST_LISTED: usize = 10_000;

impl Shared {
    /// Returns the record of a hold as it was made, or `None` if there is no record. Its charges and its
    /// owner never change; the other fields may be out of date.
    async fn made(&self, id: HoldId) -> Result<Option<Arc<HoldRecord>>, StoreError> {
        match self.recent_holds.find(id) {
            Some(recent) => Ok(Some(recent)),
            None => self.find_hold(id).await,
        }
    }

    /// Parses the text of a stored record.
    fn read(&self, id: HoldId, value: &StoredHold) -> Result<HoldRecord, StoreError> {
        let record = HoldRecord::from_text(&value.text);
        let record = record.inspect_err(|error| {
            tracing::error!(%id, %error, "cannot read the record of a hold");
        });
        record.ok().filter(|it| it.id == id).ok_or_else(|| {
            let name = self.naming.hold(id.tag(), id.bits());
            StoreError::Foreign(String::from_utf8_lossy(&name).into())
        })
    }

    /// Returns the whole record: `value` is the deciding part, and the other parts are read.
    async fn whole(&self, id: HoldId, value: &StoredHold) -> Result<Arc<HoldRecord>, StoreError> {
        let mut record = self.read(id, value)?;
        let parts = self.parts(&record);
        value.update(&mut record, &parts[0].indexes);
        for part in &parts[1..] {
            if let Some(value) = get(self, part.tag, id).await? {
                value.update_charges(&mut record, &part.indexes);
            }
        }
        Ok(Arc::new(record))
    }

    fn parts(&self, record: &HoldRecord) -> Vec<Part> {
        parts(self, record.id, record.charges.iter().map(|it| it.tag))
    }

    /// Updates the index of due holds; `None` removes the hold. Does nothing outside a cluster, where the
    /// script has updated the index. If the index is out of date, it is corrected when an instance tries to
    /// end the hold.
    async fn note_due(&self, id: HoldId, due: Option<Time>) -> Result<(), StoreError> {
        if !self.is_cluster() {
            return Ok(());
        }
        self.note_due_at(id, due).await
    }

    async fn note_due_at(&self, id: HoldId, due: Option<Time>) -> Result<(), StoreError> {
        let Some(due) = due else {
            let name = id.to_string();
            let forgotten = ask_index(self, "forget", &[name.as_bytes()]).await;
            return forgotten.map(|_| ());
        };
        let index = self.naming.due(&self.options.namespace);
        self.note_open(Tag::default(), index, id, due).await
    }

    /// Returns the tag and the name of the set of a subject's open holds. In a cluster, there is a set in each
    /// cluster slot that has records of the subject's holds.
    fn open_holds(&self, id: HoldId, subject: u128) -> (Tag, KeyName) {
        let tag = match self.is_cluster() {
            true => id.tag(),
            false => Tag::default(),
        };
        (tag, self.naming.open(tag, subject))
    }

    /// Adds an open hold to a set: the index of due holds, or the open holds of a subject.
    async fn note_open(
        &self,
        tag: Tag,
        set: KeyName,
        id: HoldId,
        due: Time,
    ) -> Result<(), StoreError> {
        let (name, due) = (id.to_string(), due.as_micros().to_string());
        let retain = ABANDONED.as_millis_ceil().to_string();
        let arguments = [name.as_bytes(), due.as_bytes(), retain.as_bytes()];
        let noted = ask_records(self, tag, set, "note", &arguments).await;
        noted.map(|_| ())
    }

    /// Settles the part of a hold in one cluster slot.
    async fn settle_part(
        &self,
        record: &HoldRecord,
        part: &Part,
        call: &HoldCall,
    ) -> Result<HoldReply, StoreError> {
        let request = items(self, &record.charges, &part.indexes, |_| true);
        let told = ask(self, record, part, &request, Operation::Settle, call);
        told.await.map(|(told, _)| told)
    }

    /// Ends the other parts of a hold in the way that the deciding record says, and updates `record`. Returns
    /// whether all parts have ended.
    async fn finish(&self, record: &mut HoldRecord, parts: &[Part]) -> bool {
        let how = match (record.state, record.purpose) {
            (HoldState::Reserved, _) => return false,
            (HoldState::Consumed, _) => COMMIT,
            (HoldState::Released, Purpose::Reservation) => RELEASE,
            (HoldState::Released, Purpose::Lease) => RELEASE_LEASE,
            (HoldState::Expired, _) => EXPIRE,
        };
        let call = HoldCall {
            how,
            units: record.actual.unwrap_or(0),
            certain: true,
            ..HoldCall::default()
        };
        let mut finished = true;
        for part in parts {
            match self.settle_part(record, part, &call).await {
                Ok(HoldReply::Done(value) | HoldReply::Already(value)) => {
                    value.update_charges(record, &part.indexes);
                }
                Ok(_) => {
                    // The server has lost the part, or another call is still making it. No part is made after
                    // the hold has expired.
                    finished &= self.now() >= record.expires_at;
                    for index in &part.indexes {
                        let charge = &mut record.charges[*index];
                        // A quota without a state is settled in the ledger, with the full cost.
                        charge.taken = match charge.as_charge().needs_state() {
                            true => charge.cost.saturating_mul(call.units),
                            false => 0,
                        };
                    }
                }
                Err(error) => {
                    let id = record.id;
                    tracing::debug!(%id, %error, "cannot end part of a hold now; it ends when the hold is due");
                    finished = false;
                }
            }
        }
        finished
    }

    /// Returns whether a charge of these parts would change, but has no state. If so, the ledger must restore
    /// the state first.
    async fn lacks_state(
        &self,
        record: &HoldRecord,
        how: Settle,
        parts: &[Part],
    ) -> Result<bool, StoreError> {
        for part in parts {
            for index in &part.indexes {
                let held = &record.charges[*index];
                let charge = held.as_charge();
                let changes = record.settles(held) && record.due(held, how) != held.taken;
                if !changes || !charge.needs_state() {
                    continue;
                }
                let (naming, ask) = (&self.naming, Ask::Exactly(0));
                let look = Request::new(naming, Operation::Balance, &[charge], ask);
                let deadline = self.deadline();
                let told = self.execute(part.slot, look, None, deadline).await?;
                if reply::balance_in(&told).is_none() {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Ends a hold. A due hold that cannot be ended now becomes due again later, so that it does not delay
    /// other holds in the index.
    pub(crate) async fn settle(
        self: Arc<Self>,
        id: HoldId,
        how: Settle,
    ) -> Result<Settled, StoreError> {
        let mut settled = Ok(None);
        for _ in 0..ATTEMPTS {
            settled = self.settle_once(id, how).await;
            if !matches!(settled, Ok(None)) {
                break;
            }
        }
        let settled = settled.and_then(|it| it.ok_or_else(reused_id));
        if settled.is_err() && how == Settle::Expire {
            self.postpone(id).await;
        }
        settled
    }

    async fn postpone(&self, id: HoldId) {
        let later = self.now() + RETRY_DUE;
        if let Err(error) = self.note_due_at(id, Some(later)).await {
            tracing::debug!(%id, %error, "cannot postpone a due hold in the index");
        }
    }

    /// Tries to end a hold. Returns `None` if another hold has this id by now.
    async fn settle_once(&self, id: HoldId, how: Settle) -> Result<Option<Settled>, StoreError> {
        let Some(made) = self.made(id).await? else {
            self.note_due_at(id, None).await?;
            return Ok(Some(Settled::Unknown));
        };
        let parts = self.parts(&made);
        if how == Settle::Undo {
            return self.undo(&made, &parts).await.map(Some);
        }
        let (code, units, token) = match how {
            Settle::Commit { actual } => (COMMIT, actual, Token::NONE),
            Settle::Release => (RELEASE, 0, Token::NONE),
            Settle::Expire | Settle::Undo => (EXPIRE, 0, Token::NONE),
            Settle::ReleaseLease { token } => (RELEASE_LEASE, 0, token),
        };
        let call = HoldCall {
            how: code,
            units,
            token,
            made: made.charged_at,
            ..HoldCall::default()
        };
        // The call to the first part ends the hold. So missing states in the other parts must be found before
        // that call.
        if self.lacks_state(&made, how, &parts[1..]).await? {
            return Ok(Some(Settled::Unrestored(made)));
        }
        let mut record = HoldRecord::clone(&made);
        let told = self.settle_part(&record, &parts[0], &call).await?;
        let (value, is_done) = match told {
            HoldReply::Done(value) => (value, true),
            HoldReply::Already(value) => (value, false),
            HoldReply::NotYet(value) => {
                self.note_due(id, Some(value.expires_at)).await?;
                return Ok(Some(Settled::NotYet(self.whole(id, &value).await?)));
            }
            HoldReply::NotYours => return Ok(Some(Settled::NotYours)),
            HoldReply::Replaced => {
                self.recent_holds.forget(id);
                return Ok(None);
            }
            HoldReply::Unrestored => return Ok(Some(Settled::Unrestored(made))),
            _ => {
                self.recent_holds.forget(id);
                self.note_due(id, None).await?;
                return Ok(Some(Settled::Unknown));
            }
        };
        self.recent_holds.forget(id);
        value.update(&mut record, &parts[0].indexes);
        if !self.finish(&mut record, &parts[1..]).await {
            if self.now() >= record.expires_at {
                self.postpone(id).await;
            }
        } else if let Err(error) = self.note_due(id, None).await {
            tracing::warn!(%id, %error, "an ended hold is still in the index of due holds");
        }
        Ok(Some(match is_done {
            true => Settled::Done(record.into()),
            false => Settled::Already(record.into()),
        }))
    }

    /// Gives back everything that a hold took, and deletes its records, the deciding one last.
    async fn undo(&self, made: &HoldRecord, parts: &[Part]) -> Result<Settled, StoreError> {
        let call = HoldCall {
            how: UNDO,
            certain: true,
            ..HoldCall::default()
        };
        let mut told = HoldReply::Unknown;
        // The fence is in the part that has the slots.
        let mut fence = 0;
        for part in parts.iter().rev() {
            told = self.settle_part(made, part, &call).await?;
            if let HoldReply::Done(value) = &told {
                fence = value.fence.max(fence);
            }
        }
        self.recent_holds.forget(made.id);
        self.note_due(made.id, None).await?;
        let mut record = made.clone();
        Ok(match told {
            HoldReply::Done(value) => {
                value.update(&mut record, &parts[0].indexes);
                record.fence = fence;
                for charge in &mut record.charges {
                    charge.taken = 0;
                }
                Settled::Done(record.into())
            }
            // Each part knows its own charges, and the fence of its slots.
            HoldReply::Already(value) => Settled::Already(self.whole(made.id, &value).await?),
            _ => Settled::Unknown,
        })
    }

    pub(crate) async fn extend(
        self: Arc<Self>,
        id: HoldId,
        ttl: Span,
        token: Option<Token>,
    ) -> Result<Extended, StoreError> {
        for _ in 0..ATTEMPTS {
            if let Some(extended) = self.extend_once(id, ttl, token).await? {
                return Ok(extended);
            }
        }
        Err(reused_id())
    }

    /// Returns the answer for a hold that has lost a slot.
    async fn lapsed(&self, id: HoldId) -> Result<Extended, StoreError> {
        Ok(match self.find_hold(id).await? {
            None => Extended::Unknown,
            Some(record) if record.is_open() => Extended::Lapsed(record),
            Some(record) => Extended::Ended(record),
        })
    }

    /// Tries to extend a hold. Returns `None` if another hold has this id by now.
    async fn extend_once(
        &self,
        id: HoldId,
        ttl: Span,
        token: Option<Token>,
    ) -> Result<Option<Extended>, StoreError> {
        let Some(made) = self.made(id).await? else {
            return Ok(Some(Extended::Unknown));
        };
        if !made.may_extend(token) {
            return Ok(Some(Extended::NotYours));
        }
        let parts = self.parts(&made);
        let mut call = HoldCall {
            time: ttl.min(MAX_TTL).as_micros(),
            token: token.unwrap_or(Token::NONE),
            made: made.charged_at,
            ..HoldCall::default()
        };
        let mut record = HoldRecord::clone(&made);
        let slots = |it: &HeldCharge| it.is_slot() && it.taken > 0;
        let has_slots = |part: &Part| part.indexes.iter().any(|it| slots(&made.charges[*it]));
        // Checks that all slots are still there before anything is extended.
        let look = HoldCall {
            has_slots: true,
            certain: true,
            ..HoldCall::default()
        };
        let extend = async |part: &Part, call: &HoldCall| {
            let request = items(self, &made.charges, &part.indexes, slots);
            let told = ask(self, &made, part, &request, Operation::Extend, call);
            told.await.map(|(told, _)| told)
        };
        for part in parts[1..].iter().filter(|it| has_slots(it)) {
            let told = extend(part, &look).await?;
            if matches!(told, HoldReply::Lapsed(_) | HoldReply::Unknown) {
                return self.lapsed(id).await.map(Some);
            }
        }
        for (number, part) in parts.iter().enumerate() {
            let has_slots = has_slots(part);
            // The deciding part lapses if any slot of the hold has expired. Another part lapses only if it
            // has slots itself.
            call.has_slots = has_slots || number == 0 && made.has_slots();
            let value = match extend(part, &call).await? {
                HoldReply::Done(value) => value,
                HoldReply::Already(value) if number == 0 => {
                    return Ok(Some(Extended::Ended(self.whole(id, &value).await?)));
                }
                HoldReply::Lapsed(value) if number == 0 => {
                    return Ok(Some(Extended::Lapsed(self.whole(id, &value).await?)));
                }
                HoldReply::NotYours if number == 0 => return Ok(Some(Extended::NotYours)),
                HoldReply::Replaced => {
                    self.recent_holds.forget(id);
                    return Ok(None);
                }
                _ if number == 0 => return Ok(Some(Extended::Unknown)),
                // The slots of this part expired meanwhile. The parts that were extended already will expire
                // too.
                _ if has_slots => return self.lapsed(id).await.map(Some),
                // The hold ended meanwhile: the next attempt reads that from the deciding record.
                _ => continue,
            };
            if number == 0 {
                value.update(&mut record, &part.indexes);
                call.time = value.expires_at.as_micros();
                (call.until, call.certain) = (true, true);
                // Each part has its own time of charge.
                call.made = Time::default();
            } else {
                value.update_charges(&mut record, &part.indexes);
            }
        }
        self.note_due(id, Some(record.expires_at)).await?;
        Ok(Some(Extended::Done(record.into())))
    }

    pub(crate) async fn find_hold(
        &self,
        id: HoldId,
    ) -> Result<Option<Arc<HoldRecord>>, StoreError> {
        match get(self, id.tag(), id).await? {
            Some(value) => self.whole(id, &value).await.map(Some),
            None => Ok(None),
        }
    }

    pub(crate) async fn put_hold(&self, record: &HoldRecord) -> Result<bool, StoreError> {
        let parts = self.parts(record);
        let left = record.expires_at.since(self.now());
        let retain = if record.is_open() { ABANDONED } else { RETAIN };
        let kept = left.as_millis_ceil() + retain.as_millis_ceil();
        // The deciding record is written last. So when it exists, the other parts exist too.
        let mut is_new = false;
        for (number, part) in parts.iter().enumerate().rev() {
            let value = StoredHold::of(record, &part.indexes, number == 0).to_bytes();
            let key = self.naming.hold(part.tag, record.id.bits());
            let kept = kept.to_string();
            let arguments = [value.as_slice(), kept.as_bytes()];
            let put = ask_records(self, part.tag, key, "put", &arguments).await?;
            is_new = put == Reply::Int(1);
        }
        // The index comes last, because a due hold without a record is removed from it.
        if record.is_open() {
            let due = Some(record.expires_at);
            self.note_due_at(record.id, due).await?;
        }
        if let Some(subject) = record.subject.filter(|_| record.is_open()) {
            let (tag, open) = self.open_holds(record.id, subject);
            let due = record.expires_at;
            self.note_open(tag, open, record.id, due).await?;
        }
        Ok(is_new)
    }

    pub(crate) async fn due_holds(&self, most: usize) -> Result<Vec<HoldId>, StoreError> {
        let most = most.min(MOST_LISTED).to_string();
        let reply = ask_index(self, "due", &[most.as_bytes()]).await?;
        let ids: Vec<String> = parse(reply)?;
        // Members that are not ids were added by other programs.
        Ok(ids.iter().filter_map(|it| it.parse().ok()).collect())
    }

    pub(crate) async fn holders(
        &self,
        charge: &Charge<'_>,
        most: usize,
    ) -> Result<Vec<Holder>, StoreError> {
        let Limit::Concurrency(_) = charge.limit else {
            return Ok(Vec::new());
        };
        let key = self.naming.name(charge, Family::Concurrency);
        let most = most.min(MOST_LISTED).to_string();
        let reply = ask_records(self, charge.tag, key, "holders", &[most.as_bytes()]).await?;
        let listed: Vec<(Vec<u8>, u64)> = parse(reply)?;
        let holders = listed.into_iter().filter_map(|(member, expires_at)| {
            let (head, owner) = member.split_at_checked(24)?;
            let (b'h', parts) = head.split_first()? else {
                return None;
            };
            let (hold, fence) = parts.split_at(16);
            Some(Holder {
                hold: u128::from_be_bytes(hold.try_into().ok()?),
                owner: String::from_utf8_lossy(owner).into(),
                fence: number(fence),
                expires_at: Time::from_micros(expires_at),
            })
        });
        Ok(holders.collect())
    }
}

/// Returns the error for an id that was used again on every attempt.
fn reused_id() -> StoreError {
    StoreError::Script("other calls keep reusing the id of this hold: use another id".into())
}

fn parse<T: FromRedisValue>(reply: Reply) -> Result<T, StoreError> {
    let parsed = redis::from_redis_value(reply);
    parsed.map_err(|error| StoreError::Script(error.to_string().into()))
}
