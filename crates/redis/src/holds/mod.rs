//! Holds: their records, and what is done to the states in the same step.
//!
//! A hold has a record in the slot of its id's tag, which decides. Where a cluster keeps its charges in
//! several slots, each has a part of it: a record of the charges there. It is made slot by slot, the one
//! that decides first, and undone if a later one refuses; it ends in the slot that decides, and then in
//! the others as that one says.
//!
//! When holds are due is noted in an index. Outside a cluster that is one step with the hold. In a
//! cluster it is another call, as the index may be elsewhere: if it fails, the hold is given back.
//!
//! An open record is kept for a week after its time is over, so that its charges come back although no
//! instance was there to end it; one that has ended as long as the contract says.
//!
//! # What can go wrong
//! In a cluster, if this process dies between a hold and its note, nobody finds out when it is due. Its
//! slots are free by time alone, and what it took of rates comes back by itself; what it took of a quota
//! comes back with the next period, or when the books are compared. If it dies between two slots, what it
//! took in the first is given back when the hold is due, and so is what could not be undone. A repeated call that comes while a hold is being
//! made in several slots may see it before a later slot has refused it.

mod call;
mod known;
mod make;
mod value;

use std::sync::Arc;

use redis::Value as Reply;
use tollgate_core::concurrency::Holder;
use tollgate_core::{Charge, HoldId, Limit, Span, Time, Token};
use tollgate_store::{
    Ask, Extended, Held, HeldCharge, HoldRecord, HoldState, HoldStore, MAX_TTL, NewHold, Purpose,
    RETAIN, Settle, Settled, StoreError,
};

use self::call::{
    Asked, COMMIT, EXPIRE, Part, RELEASE, RELEASE_LEASE, Told, ask, ask_index, ask_records, get,
    items, parts,
};
pub(crate) use self::known::Known;
use self::value::Value;
use crate::reply;
use crate::script::Family;
use crate::store::{RedisStore, Shared};
use crate::wire::{Operation, Request};

/// How long the record of an open hold is kept after its time is over: until some instance comes to end it, as
/// nothing of it comes back otherwise.
pub(crate) const ABANDONED: Span = Span::from_secs(7 * 86_400);
/// When what is due and could not be ended is due again.
const AGAIN: Span = Span::from_secs(10);
/// How often a record is read anew because another hold has its name by now.
const ATTEMPTS: usize = 3;
/// The most ids or holders that are listed at once.
const MOST_LISTED: usize = 10_000;

impl Shared {
    /// The record of a hold, whose charges and owner are to be believed; none if there is no record.
    async fn made(&self, id: HoldId) -> Result<Option<Arc<HoldRecord>>, StoreError> {
        if let Some(known) = self.known.find(id) {
            return Ok(Some(known));
        }
        match get(self, id.tag(), id).await? {
            Some(value) => self.whole(id, &value).await.map(Some),
            None => Ok(None),
        }
    }

    /// The record that a value ends with.
    fn read(&self, id: HoldId, value: &Value) -> Result<HoldRecord, StoreError> {
        let name = || {
            let name = self.naming.hold(id.tag().number(), id.bits());
            StoreError::Foreign(String::from_utf8_lossy(&name).into())
        };
        let record = HoldRecord::from_text(&value.text).map_err(|error| {
            tracing::error!(%id, %error, "the record of a hold cannot be read");
            name()
        })?;
        if record.id != id {
            return Err(name());
        }
        Ok(record)
    }

    /// The whole record, given that of the slot that decides.
    async fn whole(&self, id: HoldId, value: &Value) -> Result<Arc<HoldRecord>, StoreError> {
        let mut record = self.read(id, value)?;
        let parts = self.parts(&record);
        value.update(&mut record, &parts[0].places);
        for part in &parts[1..] {
            if let Some(value) = get(self, part.tag, id).await? {
                value.update_charges(&mut record, &part.places);
            }
        }
        Ok(Arc::new(record))
    }

    fn parts(&self, record: &HoldRecord) -> Vec<Part> {
        parts(self, record.id, record.charges.iter().map(|it| it.tag))
    }

    /// Takes a hold out of the index, or notes when it is due instead. Where that is one step with what
    /// was done, it has happened. What fails is put right when the hold is found to be due.
    async fn note_due(&self, id: HoldId, due: Option<Time>) -> Result<(), StoreError> {
        if !self.is_cluster() {
            return Ok(());
        }
        self.note_due_at(id, due).await
    }

    async fn note_due_at(&self, id: HoldId, due: Option<Time>) -> Result<(), StoreError> {
        let name = id.to_string();
        let retain = ABANDONED.as_millis_ceil().to_string();
        match due {
            None => ask_index(self, "forget", &[name.as_bytes()]).await?,
            Some(due) => {
                let due = due.as_micros().to_string();
                let arguments = [name.as_bytes(), due.as_bytes(), retain.as_bytes()];
                ask_index(self, "note", &arguments).await?
            }
        };
        Ok(())
    }

    /// Asks one slot to settle its part of a hold.
    async fn settle_part(
        &self,
        record: &HoldRecord,
        part: &Part,
        asked: &Asked,
    ) -> Result<Told, StoreError> {
        let bounded = |it: &HeldCharge| Family::of(&it.limit).is_some();
        let request = items(self, &record.charges, &part.places, bounded);
        let operation = Operation::Settle;
        let told = ask(
            self,
            record.id,
            part,
            &record.charges,
            &request,
            operation,
            asked,
        );
        told.await.map(|(told, _)| told)
    }

    /// Ends the other parts of a hold as the record that decides says, and brings `record` to where
    /// they stand. Whether all have ended.
    async fn finish(&self, record: &mut HoldRecord, parts: &[Part]) -> bool {
        let how = match (record.state, record.purpose) {
            (HoldState::Reserved, _) => return false,
            (HoldState::Consumed, _) => COMMIT,
            (HoldState::Released, Purpose::Reservation) => RELEASE,
            (HoldState::Released, Purpose::Lease) => RELEASE_LEASE,
            (HoldState::Expired, _) => EXPIRE,
        };
        let asked = Asked {
            how,
            units: record.actual.unwrap_or(0),
            certain: true,
            owner: Arc::clone(&record.owner),
            ..Asked::default()
        };
        let mut finished = true;
        for part in parts {
            match self.settle_part(record, part, &asked).await {
                Ok(Told::Done(Some(value)) | Told::Before(value)) => {
                    value.update_charges(record, &part.places);
                }
                Ok(_) => {
                    // Its server has lost it, or whoever makes the hold has not come to it: that may be until
                    // the hold's time is over, and not after.
                    finished &= self.now() >= record.expires_at;
                    for place in &part.places {
                        let charge = &mut record.charges[*place];
                        // What only a ledger knows of takes what it costs.
                        charge.taken = match charge.as_charge().needs_state() {
                            true => charge.cost.saturating_mul(asked.units),
                            false => 0,
                        };
                    }
                }
                Err(error) => {
                    let id = record.id;
                    tracing::debug!(%id, %error, "a part of a hold is ended when the hold is due");
                    finished = false;
                }
            }
        }
        finished
    }

    /// Whether a charge of these parts that a ledger keeps too has no state, and would change.
    async fn lacks_state(
        &self,
        record: &HoldRecord,
        how: Settle,
        parts: &[Part],
    ) -> Result<bool, StoreError> {
        for part in parts {
            for place in &part.places {
                let held = &record.charges[*place];
                let charge = held.as_charge();
                let changes = record.settles(held) && record.due(held, how) != held.taken;
                if !changes || !charge.needs_state() {
                    continue;
                }
                let (naming, ask) = (&self.naming, Ask::Exactly(0));
                let look =
                    Request::new(naming, Operation::Balance, &[charge], ask, Time::default());
                let deadline = self.deadline();
                let told = self.execute(part.slot, look, None, deadline).await?;
                if reply::balance_in(&told).is_none() {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Ends a hold. What is due and cannot be ended now is due again in a while, so that it does not keep
    /// others from being found.
    async fn settle(self: Arc<Self>, id: HoldId, how: Settle) -> Result<Settled, StoreError> {
        let mut settled = Ok(None);
        for _ in 0..ATTEMPTS {
            settled = self.settle_once(id, how).await;
            if !matches!(settled, Ok(None)) {
                break;
            }
        }
        let settled = settled.and_then(|it| it.ok_or_else(made_anew));
        if settled.is_err() && how == Settle::Expire {
            self.put_off(id).await;
        }
        settled
    }

    async fn put_off(&self, id: HoldId) {
        let later = self.now() + AGAIN;
        if let Err(error) = self.note_due_at(id, Some(later)).await {
            tracing::debug!(%id, %error, "a hold that cannot be ended now is still noted as due");
        }
    }

    /// Nothing if what was known is no more: another has this id by now.
    async fn settle_once(&self, id: HoldId, how: Settle) -> Result<Option<Settled>, StoreError> {
        let Some(made) = self.made(id).await? else {
            self.note_due_at(id, None).await?;
            return Ok(Some(Settled::Unknown));
        };
        let parts = self.parts(&made);
        let (code, units, token) = match how {
            Settle::Commit { actual } => (COMMIT, actual, Token::NONE),
            Settle::Release => (RELEASE, 0, Token::NONE),
            Settle::Expire => (EXPIRE, 0, Token::NONE),
            Settle::ReleaseLease { token } => (RELEASE_LEASE, 0, token),
        };
        let asked = Asked {
            how: code,
            units,
            token,
            made: made.charged_at,
            owner: Arc::clone(&made.owner),
            ..Asked::default()
        };
        // The first part decides, so what is missing in the others has to be known before.
        if self.lacks_state(&made, how, &parts[1..]).await? {
            return Ok(Some(Settled::Unrestored(made)));
        }
        let mut record = HoldRecord::clone(&made);
        let told = self.settle_part(&record, &parts[0], &asked).await?;
        let (value, is_done) = match told {
            Told::Done(Some(value)) => (value, true),
            Told::Before(value) => (value, false),
            Told::NotYet(value) => {
                self.note_due(id, Some(value.expires_at)).await?;
                return Ok(Some(Settled::NotYet(self.whole(id, &value).await?)));
            }
            Told::NotYours => return Ok(Some(Settled::NotYours)),
            Told::Other => {
                self.known.forget(id);
                return Ok(None);
            }
            Told::Unrestored => return Ok(Some(Settled::Unrestored(made))),
            _ => {
                self.known.forget(id);
                self.note_due(id, None).await?;
                return Ok(Some(Settled::Unknown));
            }
        };
        self.known.forget(id);
        value.update(&mut record, &parts[0].places);
        if !self.finish(&mut record, &parts[1..]).await {
            if self.now() >= record.expires_at {
                self.put_off(id).await;
            }
        } else if let Err(error) = self.note_due(id, None).await {
            tracing::warn!(%id, %error, "an ended hold is still noted as due");
        }
        Ok(Some(match is_done {
            true => Settled::Done(record.into()),
            false => Settled::Already(record.into()),
        }))
    }

    async fn extend(
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
        Err(made_anew())
    }

    /// How a hold stands, one of whose slots is gone.
    async fn lapsed(&self, id: HoldId) -> Result<Extended, StoreError> {
        let Some(value) = get(self, id.tag(), id).await? else {
            return Ok(Extended::Unknown);
        };
        let record = self.whole(id, &value).await?;
        Ok(match record.is_open() {
            true => Extended::Lapsed(record),
            false => Extended::Ended(record),
        })
    }

    /// Nothing if what was known is no more: another has this id by now.
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
        let mut asked = Asked {
            time: ttl.min(MAX_TTL).as_micros(),
            token: token.unwrap_or(Token::NONE),
            made: made.charged_at,
            owner: Arc::clone(&made.owner),
            ..Asked::default()
        };
        let mut record = HoldRecord::clone(&made);
        let slots = |it: &HeldCharge| it.is_slot() && it.taken > 0;
        let has_slots = |part: &Part| part.places.iter().any(|it| slots(&made.charges[*it]));
        // Whether all slots are there is seen before anything lasts longer.
        let look = Asked {
            has_slots: true,
            certain: true,
            owner: Arc::clone(&made.owner),
            ..Asked::default()
        };
        for part in parts[1..].iter().filter(|it| has_slots(it)) {
            let request = items(self, &made.charges, &part.places, slots);
            let operation = Operation::Extend;
            let told = ask(self, id, part, &made.charges, &request, operation, &look).await?;
            if matches!(told.0, Told::Lapsed(_) | Told::Unknown) {
                return self.lapsed(id).await.map(Some);
            }
        }
        for (number, part) in parts.iter().enumerate() {
            let has_slots = has_slots(part);
            // The record that decides is over with the slots of all parts; each of the others with its own.
            asked.has_slots = if number == 0 {
                made.has_slots()
            } else {
                has_slots
            };
            let request = items(self, &made.charges, &part.places, slots);
            let operation = Operation::Extend;
            let told = ask(self, id, part, &made.charges, &request, operation, &asked).await?;
            let value = match told.0 {
                Told::Done(Some(value)) => value,
                Told::Before(value) if number == 0 => {
                    return Ok(Some(Extended::Ended(self.whole(id, &value).await?)));
                }
                Told::Lapsed(value) if number == 0 => {
                    return Ok(Some(Extended::Lapsed(self.whole(id, &value).await?)));
                }
                Told::NotYours if number == 0 => return Ok(Some(Extended::NotYours)),
                Told::Other => {
                    self.known.forget(id);
                    return Ok(None);
                }
                _ if number == 0 => return Ok(Some(Extended::Unknown)),
                // Its slots have gone meanwhile. What lasts longer already is free when that is over.
                _ if has_slots => return self.lapsed(id).await.map(Some),
                // Ended meanwhile: the record that decides says so to the next.
                _ => continue,
            };
            if number == 0 {
                value.update(&mut record, &part.places);
                asked.time = value.expires_at.as_micros();
                (asked.until, asked.certain) = (true, true);
                // Each part was charged at its own time.
                asked.made = Time::default();
            } else {
                value.update_charges(&mut record, &part.places);
            }
        }
        self.note_due(id, Some(record.expires_at)).await?;
        Ok(Some(Extended::Done(record.into())))
    }
}

/// A name is not used again that often.
fn made_anew() -> StoreError {
    StoreError::Script("the hold is made anew all the time: use another id".into())
}

/// Runs `work` on a task of its own, so that it is finished whatever becomes of the caller.
async fn finished<T: Send + 'static>(
    work: impl Future<Output = Result<T, StoreError>> + Send + 'static,
) -> Result<T, StoreError> {
    match tokio::spawn(work).await {
        Ok(done) => done,
        Err(error) => Err(StoreError::Unavailable(error.to_string().into())),
    }
}

impl HoldStore for RedisStore {
    async fn hold(
        &self,
        charges: &[Charge<'_>],
        units: u64,
        new: &NewHold<'_>,
    ) -> Result<Held, StoreError> {
        let making = make::Making::new(&self.shared, charges, units, new)?;
        if making.is_whole() {
            return making.run().await;
        }
        finished(making.run()).await
    }

    async fn settle(&self, id: HoldId, how: Settle) -> Result<Settled, StoreError> {
        let settling = Arc::clone(&self.shared).settle(id, how);
        if self.shared.is_cluster() {
            return finished(settling).await;
        }
        settling.await
    }

    async fn extend(
        &self,
        id: HoldId,
        ttl: Span,
        token: Option<Token>,
    ) -> Result<Extended, StoreError> {
        let extending = Arc::clone(&self.shared).extend(id, ttl, token);
        if self.shared.is_cluster() {
            return finished(extending).await;
        }
        extending.await
    }

    async fn find_hold(&self, id: HoldId) -> Result<Option<Arc<HoldRecord>>, StoreError> {
        match get(&self.shared, id.tag(), id).await? {
            Some(value) => self.shared.whole(id, &value).await.map(Some),
            None => Ok(None),
        }
    }

    async fn put_hold(&self, record: &HoldRecord) -> Result<bool, StoreError> {
        let shared = &self.shared;
        let parts = shared.parts(record);
        let left = record.expires_at.since(shared.now());
        let retain = if record.is_open() { ABANDONED } else { RETAIN };
        let kept = left.as_millis_ceil() + retain.as_millis_ceil();
        // The record that decides comes last: what it says holds of the others.
        let mut is_new = false;
        for (number, part) in parts.iter().enumerate().rev() {
            let value = Value::of(record, &part.places, number == 0).to_bytes();
            let key = shared.naming.hold(part.tag.number(), record.id.bits());
            let kept = kept.to_string();
            let arguments = [value.as_slice(), kept.as_bytes()];
            let put = ask_records(shared, part.tag, key, "put", &arguments).await?;
            is_new = put == Reply::Int(1);
        }
        // Last: whoever finds it due and no record forgets it.
        if record.is_open() {
            shared
                .note_due_at(record.id, Some(record.expires_at))
                .await?;
        }
        Ok(is_new)
    }

    async fn due_holds(&self, most: usize) -> Result<Vec<HoldId>, StoreError> {
        let most = most.min(MOST_LISTED).to_string();
        let reply = ask_index(&self.shared, "due", &[most.as_bytes()]).await?;
        let ids: Vec<String> = redis::from_redis_value(reply)
            .map_err(|error| StoreError::Script(error.to_string().into()))?;
        // What is no id was put there by others.
        Ok(ids.iter().filter_map(|it| it.parse().ok()).collect())
    }

    async fn holders(&self, charge: &Charge<'_>, most: usize) -> Result<Vec<Holder>, StoreError> {
        let Limit::Concurrency(_) = charge.limit else {
            return Ok(Vec::new());
        };
        let key = self.shared.naming.name(charge, Family::Concurrency);
        let most = most.min(MOST_LISTED).to_string();
        let reply =
            ask_records(&self.shared, charge.tag, key, "holders", &[most.as_bytes()]).await?;
        let listed: Vec<(Vec<u8>, u64)> = redis::from_redis_value(reply)
            .map_err(|error| StoreError::Script(error.to_string().into()))?;
        let holders = listed.into_iter().filter_map(|(member, expires_at)| {
            let (head, owner) = member.split_at_checked(24)?;
            let (b'h', parts) = head.split_first()? else {
                return None;
            };
            let (hold, fence) = parts.split_at(16);
            let digits = fence.iter().rev();
            Some(Holder {
                hold: u128::from_be_bytes(hold.try_into().ok()?),
                owner: String::from_utf8_lossy(owner).into(),
                fence: digits.fold(0, |sum, byte| sum << 8 | u64::from(*byte)),
                expires_at: Time::from_micros(expires_at),
            })
        });
        Ok(holders.collect())
    }
}
