//! Makes a hold: first in the cluster slot of its id, then in the other slots of its charges.

use std::sync::Arc;

use tollgate_core::{Charge, Time};
use tollgate_store::{
    Applied, Ask, Guarantee, Held, HeldCharge, HoldRecord, MAX_CHARGES, NewHold, StoreError, Wait,
};

use super::call::{HoldCall, HoldReply, Part, RELEASE, UNDO, ask, ask_records, parts};
use super::stored::purpose_code;
use crate::reply;
use crate::request::{Item, Operation, Request};
use crate::script::Family;
use crate::store::Shared;

/// A hold that is being made.
pub(crate) struct Creation {
    shared: Arc<Shared>,
    /// The record. The amounts that its charges take are not known yet.
    record: HoldRecord,
    ttl: u64,
    units: u64,
    wait: Option<Wait>,
    most_open: u64,
    parts: Vec<Part>,
    /// The request of each part.
    requests: Vec<Request>,
}

/// The answer of one part.
struct Taken {
    applied: Applied,
    /// The fence of its slots; 0 without slots.
    fence: u64,
}

impl Creation {
    pub(crate) fn new(
        shared: &Arc<Shared>,
        charges: &[Charge<'_>],
        units: u64,
        new: &NewHold<'_>,
    ) -> Result<Creation, StoreError> {
        if charges.len() > MAX_CHARGES {
            let count = charges.len();
            let why =
                format!("a hold may have at most {MAX_CHARGES} charges, and this one has {count}");
            return Err(StoreError::Script(why.into()));
        }
        let held = charges.iter().map(|charge| HeldCharge::of(charge, 0));
        let record = HoldRecord::new(new, units, 0, held.collect(), Time::default());
        let ask = Ask::Exactly(units);
        let whole = Request::new(&shared.naming, Operation::Hold, charges, ask);
        let parts = parts(shared, new.id, charges.iter().map(|it| it.tag));
        // The script gets only limited charges. So each index into all charges is changed to an index into
        // the limited ones.
        let bounded = |charge: &Charge<'_>| Family::of(charge.limit).is_some();
        let item_of = |index: usize| {
            let earlier = charges[..index].iter().filter(|it| bounded(it));
            bounded(&charges[index]).then(|| earlier.count())
        };
        let requests = parts.iter().map(|part| {
            let indexes = part.indexes.iter().filter_map(|index| item_of(*index));
            whole.only(&indexes.collect::<Vec<_>>())
        });
        Ok(Creation {
            shared: Arc::clone(shared),
            ttl: new.bounded_ttl().as_micros(),
            units,
            wait: new.wait,
            most_open: new.bound.map_or(0, |it| it.most),
            requests: requests.collect(),
            parts,
            record,
        })
    }

    pub(crate) async fn run(mut self) -> Result<Held, StoreError> {
        let shared = Arc::clone(&self.shared);
        let id = self.record.id;
        let mut call = HoldCall {
            how: purpose_code(self.record.purpose),
            time: self.ttl,
            token: self.record.token,
            fingerprint: self.record.fingerprint,
            wait: self.wait,
            most_open: self.most_open,
            text: self.record.to_text(),
            ..HoldCall::default()
        };
        let mut taken: Vec<Taken> = Vec::new();
        for number in 0..self.parts.len() {
            let (part, request) = (&self.parts[number], &self.requests[number]);
            let told = ask(&shared, &self.record, part, request, Operation::Hold, &call);
            let (told, applied) = match told.await {
                Ok(told) => told,
                Err(error) => {
                    self.give_up(number).await;
                    return Err(error);
                }
            };
            match (told, applied) {
                (HoldReply::Done(value), Some(applied)) => {
                    if number == 0 {
                        value.update(&mut self.record, &self.parts[0].indexes);
                        call.time = value.expires_at.as_micros();
                        (call.until, call.text) = (true, String::new());
                        let due = Some(value.expires_at);
                        if let Err(error) = shared.note_due(id, due).await {
                            self.give_up(0).await;
                            return Err(error);
                        }
                    } else {
                        value.update_charges(&mut self.record, &self.parts[number].indexes);
                    }
                    call.least_fence = self.record.fence;
                    taken.push(Taken {
                        applied,
                        fence: value.fence,
                    });
                }
                (HoldReply::Denied(ahead), Some(applied)) => {
                    return self.deny(taken, applied, ahead).await;
                }
                (HoldReply::Already(value), _) if number == 0 => {
                    return Ok(Held::Repeated(shared.whole(id, &value).await?));
                }
                (HoldReply::Conflict(value), _) if number == 0 => {
                    return Ok(Held::Conflict(shared.whole(id, &value).await?));
                }
                (HoldReply::TooMany, _) => return Ok(Held::TooMany),
                (HoldReply::Unknown, _) => {
                    self.give_up(number).await;
                    let why = "the hold expired before all of it was made";
                    return Err(StoreError::Script(why.into()));
                }
                _ => {
                    // This cluster slot still has a part of an earlier hold with this id.
                    self.give_up(number).await;
                    let why = "part of another hold with this id is still there: use another id";
                    return Err(StoreError::Script(why.into()));
                }
            }
        }
        if let Err(error) = self.raise_fences(&taken).await {
            self.give_up(self.parts.len() - 1).await;
            return Err(error);
        }
        let applied: Vec<Applied> = taken.into_iter().map(|it| it.applied).collect();
        let applied = self.gather(&applied);
        let record = Arc::new(self.record);
        shared.recent_holds.remember(Arc::clone(&record));
        Ok(Held::Taken { applied, record })
    }

    /// Raises the next fence of slots with a smaller fence than that of the hold, which is the largest fence
    /// of its parts. A part has a smaller fence if the clock of its server is behind. Later holds there must
    /// get larger fences than this hold.
    async fn raise_fences(&self, taken: &[Taken]) -> Result<(), StoreError> {
        let next = (self.record.fence + 1).to_string();
        for (part, taken) in self.parts.iter().zip(taken) {
            if taken.fence == 0 || taken.fence == self.record.fence {
                continue;
            }
            for charge in self.slots_of(part).filter(|it| it.taken > 0) {
                self.on_slots(part, charge, "raise", next.as_bytes())
                    .await?;
            }
        }
        Ok(())
    }

    /// Returns the charges of a part that are concurrency limits.
    fn slots_of(&self, part: &Part) -> impl Iterator<Item = &HeldCharge> {
        let held = part
            .indexes
            .iter()
            .map(|index| &self.record.charges[*index]);
        held.filter(|it| it.is_slot())
    }

    /// Runs a command of `records.lua` on the slots of a charge.
    async fn on_slots(
        &self,
        part: &Part,
        charge: &HeldCharge,
        command: &str,
        argument: &[u8],
    ) -> Result<(), StoreError> {
        let naming = &self.shared.naming;
        let key = naming.name(&charge.as_charge(), Family::Concurrency);
        let done = ask_records(&self.shared, part.tag, key, command, &[argument]).await;
        done.map(|_| ())
    }

    /// Finishes a denied hold. Undoes the parts that were made, and reads the states of the other parts. In
    /// all parts, charges that count denied requests are charged.
    async fn deny(
        self,
        earlier: Vec<Taken>,
        denial: Applied,
        mut ahead: Option<u64>,
    ) -> Result<Held, StoreError> {
        let number = earlier.len();
        let mut others_deny = false;
        let undone = self.undo(number).await;
        if number > 0 && undone {
            let id = self.record.id;
            if let Err(error) = self.shared.note_due(id, None).await {
                tracing::warn!(%id, %error, "a denied hold is still in the index of due holds");
            }
        }
        let mut told = Vec::new();
        for (other, (part, request)) in self.parts.iter().zip(&self.requests).enumerate() {
            if other == number {
                told.push(denial.clone());
                continue;
            }
            if request.charges.is_empty() {
                told.push(request.unknown(denial.now));
                continue;
            }
            let look = request.denied_elsewhere(self.units);
            let deadline = self.shared.deadline();
            let seen = self.shared.execute(part.slot, look, None, deadline).await;
            // The hold is denied in any case, so an error here is ignored.
            let applied = seen.unwrap_or_else(|_| request.unknown(denial.now));
            // A concurrency limit has a queue, so its denial is not final.
            let has_no_queue = |_, item: &Item| item.family != Family::Concurrency;
            others_deny |= request.denies(&applied.outcomes, has_no_queue);
            told.push(applied);
        }
        if let Some(wait) = self.wait {
            let gives_up = others_deny && ahead.take().is_some();
            let first = if gives_up { number } else { number + 1 };
            // The earlier parts left their queues when they got their slots.
            for part in self.parts.iter().skip(first).filter(|_| ahead.is_none()) {
                self.leave_queues(part, wait).await;
            }
        }
        let mut applied = self.gather(&told);
        (applied.allowed, applied.granted) = (false, 0);
        applied.now = denial.now;
        Ok(Held::Denied { applied, ahead })
    }

    /// Leaves the queues of a part. This is a separate call, because the denial of the part was counted
    /// already.
    async fn leave_queues(&self, part: &Part, wait: Wait) {
        let id = self.record.id;
        let ticket = wait.ticket.to_be_bytes();
        for charge in self.slots_of(part) {
            if let Err(error) = self.on_slots(part, charge, "leave", &ticket).await {
                tracing::warn!(%id, %error, "cannot leave a queue now; the place expires");
            }
        }
    }

    /// Releases the parts up to and including part `number`, whose outcome is unknown. The deciding record
    /// stays. A part that cannot be released now is released when the hold is due.
    async fn give_up(&self, number: usize) {
        if !self.shared.is_cluster() {
            return;
        }
        for part in self.parts.iter().take(number + 1) {
            self.release(part, RELEASE).await;
        }
    }

    /// Undoes the first `count` parts, the deciding part last. Returns whether all are undone. If not, the
    /// deciding record stays and says "released". The other parts are released when the hold is due.
    async fn undo(&self, count: usize) -> bool {
        let mut undone = true;
        for (number, part) in self.parts.iter().enumerate().take(count).rev() {
            let how = if number > 0 || undone { UNDO } else { RELEASE };
            undone &= self.release(part, how).await;
        }
        undone
    }

    /// Releases or undoes a part. Returns false if that failed.
    async fn release(&self, part: &Part, how: u8) -> bool {
        let call = HoldCall {
            how,
            certain: true,
            just_made: how == UNDO,
            ..HoldCall::default()
        };
        let told = self.shared.settle_part(&self.record, part, &call).await;
        if let Err(error) = &told {
            let id = self.record.id;
            tracing::warn!(%id, %error, "cannot release part of a hold now; it is released when the hold is due");
        }
        told.is_ok()
    }

    /// Merges the answers of the parts into one.
    fn gather(&self, told: &[Applied]) -> Applied {
        let charges = &self.record.charges;
        let mut outcomes = vec![None; charges.len()];
        for (part, applied) in self.parts.iter().zip(told) {
            let bounded = |index: &&usize| Family::of(&charges[**index].limit).is_some();
            let indexes = part.indexes.iter().filter(bounded);
            for (index, outcome) in indexes.zip(&applied.outcomes) {
                outcomes[*index] = Some(*outcome);
            }
        }
        let mut applied = Applied {
            // The time of the deciding record.
            now: told.first().map_or(Time::default(), |it| it.now),
            allowed: true,
            granted: self.units,
            outcomes: outcomes.into_iter().flatten().collect(),
            guarantee: match self.parts.len() {
                1 => Guarantee::Atomic,
                _ => Guarantee::Compensated,
            },
            unanswered: None,
        };
        let charges: Vec<Charge<'_>> = charges.iter().map(HeldCharge::as_charge).collect();
        reply::fill(&mut applied, &charges);
        applied
    }
}
