//! Requests whose keys a cluster keeps in several slots.
//!
//! One atomic call for each slot, the one most likely to refuse first. When one refuses or fails,
//! what the earlier ones have taken is given back, each at most once: the refund and the note that
//! it has happened are one atomic call, so that it can be tried again when its fate is unknown.
//!
//! # What can go wrong
//! If this process dies between the slots, or a slot's answer is lost, what one request has taken
//! from the slots asked so far stays taken until it comes back by itself, as with any admitted
//! request. Nothing is ever given back that was not taken. What is given back late may have come back
//! by itself in part, if the bucket was full when it was taken. A caller that goes away in the middle
//! changes nothing: the request is finished without it.
//!
//! What has to be restored in one slot is a refusal like any other to the others: where refused requests
//! count, it does.
//!
//! A charge that is judged in the place of one in another slot is judged as a shadow.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout_at};
use tollgate_core::{Tag, Time};
use tollgate_store::{Applied, Ask, Guarantee, StoreError};

use crate::connect::RETRY;
use crate::name::Name;
use crate::store::{Shared, slot};
use crate::wire::{Operation, Request};

/// How often a refund is tried whose fate is unknown.
const ATTEMPTS: u32 = 5;

/// The charges of a request in one slot.
struct Part {
    slot: u16,
    tag: Tag,
    /// Their places in the request.
    places: Vec<usize>,
    request: Request,
}

/// Runs a request in a cluster.
pub(crate) async fn run(shared: &Arc<Shared>, request: Request) -> Result<Applied, StoreError> {
    let mut by_slot: BTreeMap<u16, (Tag, Vec<usize>)> = BTreeMap::new();
    for (place, tag) in request.tags().enumerate() {
        let part = by_slot.entry(slot(tag)).or_insert((tag, Vec::new()));
        part.1.push(place);
    }
    if by_slot.len() == 1
        && let Some((slot, _)) = by_slot.first_key_value()
    {
        return shared
            .execute(*slot, request, None, shared.deadline())
            .await;
    }
    let parts = by_slot.into_iter().map(|(slot, (tag, places))| Part {
        slot,
        tag,
        request: request.at(&places),
        places,
    });
    let mut parts: Vec<Part> = parts.collect();
    parts.sort_by_key(|part| part.request.fewest_that_fit());
    let crossing = Crossing {
        shared: Arc::clone(shared),
        deadline: shared.deadline(),
        charges: request.charges(),
        operation: request.operation,
        ask: request.ask(),
        parts,
    };
    // On a task of its own, so that it is finished whatever becomes of the caller.
    match tokio::spawn(crossing.run()).await {
        Ok(applied) => applied,
        Err(error) => Err(StoreError::Unavailable(error.to_string().into())),
    }
}

struct Crossing {
    shared: Arc<Shared>,
    deadline: Instant,
    charges: usize,
    operation: Operation,
    ask: Ask,
    parts: Vec<Part>,
}

impl Crossing {
    async fn run(self) -> Result<Applied, StoreError> {
        match self.operation {
            Operation::Apply => self.apply().await,
            Operation::Peek => self.peek().await,
            Operation::Refund
            | Operation::Reset
            | Operation::Restore
            | Operation::Adjust
            | Operation::Balance
            | Operation::Hold
            | Operation::Settle
            | Operation::Extend => {
                let mut told = Vec::new();
                for part in &self.parts {
                    told.push(self.execute(part, part.request.clone()).await?);
                }
                Ok(self.gather(&told, 0))
            }
        }
    }

    async fn execute(&self, part: &Part, request: Request) -> Result<Applied, StoreError> {
        self.shared
            .execute(part.slot, request, None, self.deadline)
            .await
    }

    async fn peek(&self) -> Result<Applied, StoreError> {
        let told = self.peek_all(self.ask).await?;
        let granted = fewest(&told);
        // They are to speak of the same number of units.
        if let Ask::UpTo(_) = self.ask
            && told.iter().any(|it| it.granted != granted)
        {
            let units = granted.max(1);
            let told = self.peek_all(Ask::Exactly(units)).await?;
            return Ok(self.gather(&told, units));
        }
        Ok(self.gather(&told, granted))
    }

    async fn peek_all(&self, ask: Ask) -> Result<Vec<Applied>, StoreError> {
        let mut told = Vec::new();
        for part in &self.parts {
            let request = part.request.asking(Operation::Peek, ask);
            told.push(self.execute(part, request).await?);
        }
        Ok(told)
    }

    async fn apply(&self) -> Result<Applied, StoreError> {
        let mut ask = self.ask;
        if let Ask::UpTo(2..) = ask {
            // All are asked for what the scarcest has: little is then taken only to be given back.
            ask = Ask::UpTo(fewest(&self.peek_all(ask).await?).max(1));
        }
        let mut told: Vec<Applied> = Vec::new();
        for part in &self.parts {
            let request = part.request.asking(Operation::Apply, ask);
            match self.execute(part, request).await {
                Ok(applied) => {
                    let (allowed, granted) = (applied.allowed, applied.granted);
                    told.push(applied);
                    if !allowed {
                        return self.refuse(told).await;
                    }
                    if let Ask::UpTo(_) = ask {
                        ask = Ask::UpTo(granted);
                    }
                }
                Err(error) => {
                    for (part, taken) in self.parts.iter().zip(&mut told) {
                        let (all, units) = (0..part.places.len(), taken.granted);
                        self.give_back(part, taken, all.collect(), units).await;
                    }
                    return Err(error);
                }
            }
        }
        // The first may have granted more than the last had.
        let granted = told.last().map_or(0, |it| it.granted);
        for (part, taken) in self.parts.iter().zip(&mut told) {
            let (all, more) = (0..part.places.len(), taken.granted - granted);
            self.give_back(part, taken, all.collect(), more).await;
        }
        Ok(self.gather(&told, granted))
    }

    /// The last of those told has refused: what the others took is given back, except where refused
    /// requests count.
    async fn refuse(&self, mut told: Vec<Applied>) -> Result<Applied, StoreError> {
        // Of a request for as many as there are, one unit was refused.
        let units = match self.ask {
            Ask::Exactly(units) => units,
            Ask::UpTo(units) => units.min(1),
        };
        let earlier = told.len() - 1;
        for (part, taken) in self.parts.iter().zip(told.iter_mut().take(earlier)) {
            for (counts, back) in [
                (false, taken.granted),
                (true, taken.granted.saturating_sub(units)),
            ] {
                let places = part.request.charged_when_refused(counts);
                self.give_back(part, taken, places, back).await;
            }
        }
        let refused_at = told.last().map_or(Time::default(), |it| it.now);
        let mut others_refuse = false;
        for part in &self.parts[told.len()..] {
            // That it is refused is certain: what cannot be learnt about the others is left open.
            // Counted where refused requests count.
            let seen = self.execute(part, part.request.refused(units)).await;
            let seen = seen.unwrap_or_else(|_| part.request.unknown(refused_at));
            others_refuse |= part.request.refuses(&seen.outcomes);
            told.push(seen);
        }
        // What stood in for the one that refused did not know of those.
        if others_refuse
            && let (Some(part), Some(taken)) = (self.parts.get(earlier), told.get_mut(earlier))
        {
            let places = part.request.stood_in(&taken.outcomes);
            self.give_back(part, taken, places, units).await;
        }
        let mut applied = self.gather(&told, 0);
        applied.allowed = false;
        Ok(applied)
    }

    /// Gives back `units` of what a part has taken for its charges at `places`, and notes what is
    /// left then, if that is known in time. Who waits for the answer does not wait longer than for
    /// any other; the refund does.
    async fn give_back(
        &self,
        part: &Part,
        taken: &mut Applied,
        mut places: Vec<usize>,
        units: u64,
    ) {
        // A shadow that would have refused has taken nothing.
        places.retain(|place| taken.outcomes[*place].is_allowed());
        if places.is_empty() || units == 0 {
            return;
        }
        let refund = part.request.at(&places).refund(units, taken.now);
        let once = self
            .shared
            .naming
            .undone(part.tag.number(), fastrand::u128(..));
        let (tell, told) = oneshot::channel();
        let shared = Arc::clone(&self.shared);
        tokio::spawn(refund_once(shared, part.slot, refund, once, tell));
        if let Ok(Ok(left)) = timeout_at(self.deadline, told).await {
            for (place, after) in places.iter().zip(&left.outcomes) {
                let outcome = &mut taken.outcomes[*place];
                (outcome.remaining, outcome.reset_at) = (after.remaining, after.reset_at);
            }
        }
    }

    /// One answer of those of the parts.
    fn gather(&self, told: &[Applied], granted: u64) -> Applied {
        let allowed = told.iter().all(|it| it.allowed);
        let mut outcomes = vec![None; self.charges];
        for (part, applied) in self.parts.iter().zip(told) {
            for (place, outcome) in part.places.iter().zip(&applied.outcomes) {
                outcomes[*place] = Some(*outcome);
            }
        }
        Applied {
            // A refund takes the earliest: what came back since is then not given back twice.
            now: told.iter().map(|it| it.now).min().unwrap_or_default(),
            allowed,
            granted: if allowed { granted } else { 0 },
            outcomes: outcomes.into_iter().flatten().collect(),
            guarantee: Guarantee::Compensated,
        }
    }
}

/// Makes a refund, which `once` remembers, and tries again while its fate is unknown. What the first
/// attempt has found is told.
async fn refund_once(
    shared: Arc<Shared>,
    slot: u16,
    refund: Request,
    once: Name,
    tell: oneshot::Sender<Applied>,
) {
    let attempt = || shared.execute(slot, refund.clone(), Some(once.clone()), shared.deadline());
    match attempt().await {
        Ok(applied) => {
            // Who no longer waits need not know.
            let _ = tell.send(applied);
            return;
        }
        Err(error) => tracing::warn!(%error, "a refund has to be tried again"),
    }
    drop(tell);
    for _ in 1..ATTEMPTS {
        sleep(RETRY).await;
        if attempt().await.is_ok() {
            return;
        }
    }
    tracing::error!(
        slot,
        "a refund was given up: what was taken comes back by itself"
    );
}

/// The units that all parts grant.
fn fewest(told: &[Applied]) -> u64 {
    told.iter().map(|it| it.granted).min().unwrap_or_default()
}
