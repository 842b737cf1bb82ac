//! Making a hold: in the slot of its id, and then in the others that its charges are in.

use std::sync::Arc;

use tollgate_core::{Charge, Time};
use tollgate_store::{
    Applied, Ask, Guarantee, Held, HeldCharge, HoldRecord, MAX_CHARGES, NewHold, StoreError, Wait,
};

use super::call::{Asked, Part, RELEASE, Told, UNDO, ask, ask_records, parts};
use super::value::purpose_code;
use crate::reply;
use crate::script::Family;
use crate::store::Shared;
use crate::wire::{Operation, Request};

/// A hold to be made.
pub(super) struct Making {
    shared: Arc<Shared>,
    /// As it is to be; what is taken is not known yet.
    record: HoldRecord,
    ttl: u64,
    units: u64,
    wait: Option<Wait>,
    parts: Vec<Part>,
    /// What each part asks for.
    requests: Vec<Request>,
}

/// What one part was told.
struct Taken {
    applied: Applied,
    /// The fence of its slots; 0 if it has none.
    fence: u64,
}

impl Making {
    pub(super) fn new(
        shared: &Arc<Shared>,
        charges: &[Charge<'_>],
        units: u64,
        new: &NewHold<'_>,
    ) -> Result<Making, StoreError> {
        if charges.len() > MAX_CHARGES {
            let count = charges.len();
            let why = format!("a hold has at most {MAX_CHARGES} charges, and this has {count}");
            return Err(StoreError::Script(why.into()));
        }
        let held = charges.iter().map(|charge| HeldCharge::of(charge, 0));
        let record = HoldRecord::new(new, units, 0, held.collect(), Time::default());
        let ask = Ask::Exactly(units);
        let whole = Request::new(
            &shared.naming,
            Operation::Hold,
            charges,
            ask,
            Time::default(),
        );
        let parts = parts(shared, new.id, charges.iter().map(|it| it.tag));
        // Places among the charges become places among those that the script sees.
        let bounded = |charge: &Charge<'_>| Family::of(charge.limit).is_some();
        let item_of = |place: usize| {
            let earlier = charges[..place].iter().filter(|it| bounded(it));
            bounded(&charges[place]).then(|| earlier.count())
        };
        let requests = parts.iter().map(|part| {
            let places = part.places.iter().filter_map(|place| item_of(*place));
            whole.at(&places.collect::<Vec<_>>())
        });
        Ok(Making {
            shared: Arc::clone(shared),
            ttl: new.bounded_ttl().as_micros(),
            units,
            wait: new.wait,
            requests: requests.collect(),
            parts,
            record,
        })
    }

    /// Whether one call makes it.
    pub(super) fn is_whole(&self) -> bool {
        !self.shared.is_cluster()
    }

    pub(super) async fn run(mut self) -> Result<Held, StoreError> {
        let shared = Arc::clone(&self.shared);
        let id = self.record.id;
        let mut asked = Asked {
            how: purpose_code(self.record.purpose),
            time: self.ttl,
            token: self.record.token,
            fingerprint: self.record.fingerprint,
            wait: self.wait,
            owner: Arc::clone(&self.record.owner),
            text: self.record.to_text(),
            ..Asked::default()
        };
        let mut taken: Vec<Taken> = Vec::new();
        for number in 0..self.parts.len() {
            let part = &self.parts[number];
            let (charges, request) = (&self.record.charges, &self.requests[number]);
            let told = ask(&shared, id, part, charges, request, Operation::Hold, &asked).await;
            let (told, applied) = match told {
                Ok(told) => told,
                Err(error) => {
                    self.give_up(number).await;
                    return Err(error);
                }
            };
            match (told, applied) {
                (Told::Done(Some(value)), Some(applied)) => {
                    if number == 0 {
                        value.update(&mut self.record, &self.parts[0].places);
                        asked.time = value.expires_at.as_micros();
                        (asked.until, asked.text) = (true, String::new());
                        let due = Some(value.expires_at);
                        if let Err(error) = shared.note_due(id, due).await {
                            self.give_up(0).await;
                            return Err(error);
                        }
                    } else {
                        value.update_charges(&mut self.record, &self.parts[number].places);
                    }
                    asked.least_fence = self.record.fence;
                    taken.push(Taken {
                        applied,
                        fence: value.fence,
                    });
                }
                (Told::Refused(ahead), Some(applied)) => {
                    return self.refuse(taken, applied, ahead).await;
                }
                (Told::Before(value), _) if number == 0 => {
                    return Ok(Held::Repeated(shared.whole(id, &value).await?));
                }
                (Told::Conflict(value), _) if number == 0 => {
                    return Ok(Held::Conflict(shared.whole(id, &value).await?));
                }
                (Told::Unknown, _) => {
                    self.give_up(number).await;
                    let why = "the hold's time was over before all of it was made";
                    return Err(StoreError::Script(why.into()));
                }
                _ => {
                    // A part of a hold that was given up is still there.
                    self.give_up(number).await;
                    let why = "a part of the hold is not what it should be: use another id";
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
        shared.known.remember(Arc::clone(&record));
        Ok(Held::Taken { applied, record })
    }

    /// The fence of a hold is the largest of its parts. Where a part has given a smaller one, as the clock of its
    /// server is behind, it gives none up to this one any more.
    async fn raise_fences(&self, taken: &[Taken]) -> Result<(), StoreError> {
        let next = (self.record.fence + 1).to_string();
        for (part, taken) in self.parts.iter().zip(taken) {
            if taken.fence == 0 || taken.fence == self.record.fence {
                continue;
            }
            let held = part.places.iter().map(|place| &self.record.charges[*place]);
            for charge in held.filter(|it| it.is_slot() && it.taken > 0) {
                let key = self
                    .shared
                    .naming
                    .name(&charge.as_charge(), Family::Concurrency);
                ask_records(&self.shared, part.tag, key, "raise", &[next.as_bytes()]).await?;
            }
        }
        Ok(())
    }

    /// Undoes the parts that were made before one refused, and sees how the others stand. What counts
    /// refused requests counts this one in all of them.
    async fn refuse(
        self,
        earlier: Vec<Taken>,
        refused: Applied,
        mut ahead: Option<u64>,
    ) -> Result<Held, StoreError> {
        let number = earlier.len();
        let mut others_refuse = false;
        let undone = self.undo(number).await;
        if number > 0 && undone {
            let id = self.record.id;
            if let Err(error) = self.shared.note_due(id, None).await {
                tracing::warn!(%id, %error, "a refused hold is still noted as due");
            }
        }
        let mut told = Vec::new();
        for (other, (part, request)) in self.parts.iter().zip(&self.requests).enumerate() {
            if other == number {
                told.push(refused.clone());
                continue;
            }
            if request.is_empty() {
                told.push(request.unknown(refused.now));
                continue;
            }
            let look = request.refused(self.units);
            let deadline = self.shared.deadline();
            let seen = self.shared.execute(part.slot, look, None, deadline).await;
            // That it is refused is certain: what cannot be learnt about the others is left open.
            let applied = seen.unwrap_or_else(|_| request.unknown(refused.now));
            others_refuse |= request.refuses_beyond_slots(&applied.outcomes);
            told.push(applied);
        }
        if let Some(wait) = self.wait {
            let gives_up = others_refuse && ahead.take().is_some();
            let first = if gives_up { number } else { number + 1 };
            // Those before have been left by taking what they had.
            for part in self.parts.iter().skip(first).filter(|_| ahead.is_none()) {
                self.leave_queues(part, wait).await;
            }
        }
        let mut applied = self.gather(&told);
        (applied.allowed, applied.granted) = (false, 0);
        applied.now = refused.now;
        Ok(Held::Denied { applied, ahead })
    }

    /// Gives up the place in the queues of a part. It has been refused, and counted where that counts, so it
    /// is not asked again.
    async fn leave_queues(&self, part: &Part, wait: Wait) {
        let id = self.record.id;
        let ticket = wait.ticket.to_be_bytes();
        let held = part.places.iter().map(|place| &self.record.charges[*place]);
        for charge in held.filter(|it| it.is_slot()) {
            let key = self
                .shared
                .naming
                .name(&charge.as_charge(), Family::Concurrency);
            let left = ask_records(&self.shared, part.tag, key, "leave", &[&ticket]).await;
            if let Err(error) = left {
                tracing::warn!(%id, %error, "a place in a queue is given up when its time is over");
            }
        }
    }

    /// What was made is given back, as far as part `number`, whose fate is unknown. The record stays, and
    /// is found when the hold would have been due: what cannot be given back now is then.
    async fn give_up(&self, number: usize) {
        if !self.shared.is_cluster() {
            return;
        }
        for part in self.parts.iter().take(number + 1) {
            self.give_back(part, RELEASE).await;
        }
    }

    /// Undoes the first parts as if they had never been, the one that decides last. Whether all are undone:
    /// else that one stays and says that the hold was released, and the rest is given back when it is due.
    async fn undo(&self, count: usize) -> bool {
        let mut undone = true;
        for (number, part) in self.parts.iter().enumerate().take(count).rev() {
            let how = if number > 0 || undone { UNDO } else { RELEASE };
            undone &= self.give_back(part, how).await;
        }
        undone
    }

    /// Whether it was given back, or is not there.
    async fn give_back(&self, part: &Part, how: u8) -> bool {
        let asked = Asked {
            how,
            certain: true,
            owner: Arc::clone(&self.record.owner),
            ..Asked::default()
        };
        let told = self.shared.settle_part(&self.record, part, &asked).await;
        if let Err(error) = &told {
            let id = self.record.id;
            tracing::warn!(%id, %error, "what a hold took is given back when it is due");
        }
        told.is_ok()
    }

    /// One answer of those of the parts.
    fn gather(&self, told: &[Applied]) -> Applied {
        let charges = &self.record.charges;
        let mut outcomes = vec![None; charges.len()];
        for (part, applied) in self.parts.iter().zip(told) {
            let bounded = |place: &&usize| Family::of(&charges[**place].limit).is_some();
            let places = part.places.iter().filter(bounded);
            for (place, outcome) in places.zip(&applied.outcomes) {
                outcomes[*place] = Some(*outcome);
            }
        }
        let mut applied = Applied {
            // That of the record.
            now: told.first().map_or(Time::default(), |it| it.now),
            allowed: true,
            granted: self.units,
            outcomes: outcomes.into_iter().flatten().collect(),
            guarantee: match self.parts.len() {
                1 => Guarantee::Atomic,
                _ => Guarantee::Compensated,
            },
        };
        let charges: Vec<Charge<'_>> = charges.iter().map(HeldCharge::as_charge).collect();
        reply::fill(&mut applied, &charges);
        applied
    }
}
