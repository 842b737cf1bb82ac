//! Requests whose keys are in several cluster slots.
//!
//! Each cluster slot gets one atomic call. The slot that is most likely to deny comes first. When a call
//! denies or fails, the charges of the earlier calls are refunded, each at most once. A refund and the marker
//! that it was made are one atomic call, so a refund can be repeated when its outcome is unknown.
//!
//! # What can go wrong
//! This process may die between two calls, or an answer may be lost. The charges of the earlier calls then
//! stay until they expire or refill, like those of any admitted request. A charge that was not made is never
//! refunded. A refund that comes late may return units that have refilled meanwhile, if the bucket was full
//! when they were charged. If a caller stops waiting, the request is still finished.
//!
//! If the ledger has to restore a quota in one slot, the other slots treat the request as denied. They charge
//! it where denied requests are charged.
//!
//! A candidate is treated as a shadow if the charge that it may replace is in another cluster slot.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout_at};
use tollgate_core::{Tag, Time};
use tollgate_store::{Applied, Ask, Guarantee, StoreError};

use crate::connect::RETRY;
use crate::key_name::{KeyName, slot_of};
use crate::request::{Operation, Request};
use crate::store::{Shared, detached};

/// How often a refund is tried while its outcome is unknown.
const ATTEMPTS: u32 = 5;

/// The charges of a request in one cluster slot.
struct Part {
    slot: u16,
    tag: Tag,
    /// The indexes of these charges in the request.
    indexes: Vec<usize>,
    request: Request,
}

/// Runs a request in a cluster.
pub(crate) async fn run(shared: &Arc<Shared>, request: Request) -> Result<Applied, StoreError> {
    let mut by_slot: BTreeMap<u16, (Tag, Vec<usize>)> = BTreeMap::new();
    for (index, tag) in request.charges.iter().map(|it| it.tag).enumerate() {
        let part = by_slot.entry(slot_of(tag)).or_insert((tag, Vec::new()));
        part.1.push(index);
    }
    if by_slot.len() == 1
        && let Some((slot, _)) = by_slot.first_key_value()
    {
        let deadline = shared.deadline();
        return shared.execute(*slot, request, None, deadline).await;
    }
    let parts = by_slot.into_iter().map(|(slot, (tag, indexes))| Part {
        slot,
        tag,
        request: request.only(&indexes),
        indexes,
    });
    let mut parts: Vec<Part> = parts.collect();
    parts.sort_by_key(|part| part.request.fewest_that_fit());
    let call = MultiSlot {
        shared: Arc::clone(shared),
        deadline: shared.deadline(),
        charges: request.charges.len(),
        operation: request.operation,
        ask: request.ask,
        parts,
    };
    detached(call.run()).await
}

struct MultiSlot {
    shared: Arc<Shared>,
    deadline: Instant,
    charges: usize,
    operation: Operation,
    ask: Ask,
    parts: Vec<Part>,
}

impl MultiSlot {
    async fn run(self) -> Result<Applied, StoreError> {
        match self.operation {
            Operation::Apply => self.apply().await,
            Operation::Peek => self.peek().await,
            _ => {
                let mut answers = Vec::new();
                for part in &self.parts {
                    answers.push(self.execute(part, part.request.clone()).await?);
                }
                Ok(self.gather(&answers, 0))
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
        // All answers must be about the same number of units.
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
            // Ask each slot for no more units than the slot with the fewest units has. So few units are
            // charged and then refunded.
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
                        return self.deny(told).await;
                    }
                    if let Ask::UpTo(_) = ask {
                        ask = Ask::UpTo(granted);
                    }
                }
                Err(error) => {
                    for (part, taken) in self.parts.iter().zip(&mut told) {
                        let (all, units) = (0..part.indexes.len(), taken.granted);
                        self.refund(part, taken, all.collect(), units).await;
                    }
                    return Err(error);
                }
            }
        }
        // An earlier slot may have granted more units than the last.
        let granted = told.last().map_or(0, |it| it.granted);
        for (part, taken) in self.parts.iter().zip(&mut told) {
            let (all, more) = (0..part.indexes.len(), taken.granted - granted);
            self.refund(part, taken, all.collect(), more).await;
        }
        Ok(self.gather(&told, granted))
    }

    /// Finishes a denied request: the last answer in `told` denies. Refunds the charges of the earlier slots,
    /// except where denied requests are charged.
    async fn deny(&self, mut told: Vec<Applied>) -> Result<Applied, StoreError> {
        // A request for up to some units counts as one unit when it is denied.
        let units = match self.ask {
            Ask::Exactly(units) => units,
            Ask::UpTo(units) => units.min(1),
        };
        let earlier = told.len() - 1;
        for (part, taken) in self.parts.iter().zip(told.iter_mut().take(earlier)) {
            let beyond = taken.granted.saturating_sub(units);
            for (counts, back) in [(false, taken.granted), (true, beyond)] {
                let indexes = part.request.charged_when_denied(counts);
                self.refund(part, taken, indexes, back).await;
            }
        }
        let denied_at = told.last().map_or(Time::default(), |it| it.now);
        let mut others_deny = false;
        for part in &self.parts[told.len()..] {
            // Charges only the limits that also charge denied requests. The request is denied in any case,
            // so an error here is ignored.
            let request = part.request.denied_elsewhere(units);
            let seen = self.execute(part, request).await;
            let seen = seen.unwrap_or_else(|_| part.request.unknown(denied_at));
            others_deny |= part.request.denies(&seen.outcomes, |_, _| true);
            told.push(seen);
        }
        // The candidate for the charge that denied is in the same slot. It was charged before the denials of
        // the later slots were known.
        if others_deny
            && let (Some(part), Some(taken)) = (self.parts.get(earlier), told.get_mut(earlier))
        {
            let indexes = part.request.charged_instead(&taken.outcomes);
            self.refund(part, taken, indexes, units).await;
        }
        let mut applied = self.gather(&told, 0);
        applied.allowed = false;
        Ok(applied)
    }

    /// Refunds `units` of the charges of a part at `indexes`. Updates the remaining amounts in `taken`, if
    /// the answer comes before the deadline. After the deadline, the refund continues without the caller.
    async fn refund(&self, part: &Part, taken: &mut Applied, mut indexes: Vec<usize>, units: u64) {
        // A shadow that would have denied has taken nothing.
        indexes.retain(|index| taken.outcomes[*index].is_allowed());
        if indexes.is_empty() || units == 0 {
            return;
        }
        let refund = part.request.only(&indexes).refund(units, taken.now);
        let once = self.shared.naming.undone(part.tag, fastrand::u128(..));
        let (tell, told) = oneshot::channel();
        let shared = Arc::clone(&self.shared);
        tokio::spawn(refund_once(shared, part.slot, refund, once, tell));
        if let Ok(Ok(left)) = timeout_at(self.deadline, told).await {
            for (index, after) in indexes.iter().zip(&left.outcomes) {
                let outcome = &mut taken.outcomes[*index];
                (outcome.remaining, outcome.reset_at) = (after.remaining, after.reset_at);
            }
        }
    }

    /// Merges the answers of the parts into one.
    fn gather(&self, told: &[Applied], granted: u64) -> Applied {
        let allowed = told.iter().all(|it| it.allowed);
        let mut outcomes = vec![None; self.charges];
        for (part, applied) in self.parts.iter().zip(told) {
            for (index, outcome) in part.indexes.iter().zip(&applied.outcomes) {
                outcomes[*index] = Some(*outcome);
            }
        }
        Applied {
            // The earliest time, so that a refund later on does not return units that have refilled since
            // then.
            now: told.iter().map(|it| it.now).min().unwrap_or_default(),
            allowed,
            granted: if allowed { granted } else { 0 },
            outcomes: outcomes.into_iter().flatten().collect(),
            guarantee: Guarantee::Compensated,
            unanswered: None,
        }
    }
}

/// Makes a refund, and repeats it while its outcome is unknown. The key `once` remembers the refund. Only the
/// answer of the first attempt is sent to `tell`.
async fn refund_once(
    shared: Arc<Shared>,
    slot: u16,
    refund: Request,
    once: KeyName,
    tell: oneshot::Sender<Applied>,
) {
    let attempt = || shared.execute(slot, refund.clone(), Some(once.clone()), shared.deadline());
    match attempt().await {
        Ok(applied) => {
            // The caller may have stopped waiting.
            let _ = tell.send(applied);
            return;
        }
        Err(error) => tracing::warn!(%error, "a refund failed and is tried again"),
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
        "a refund failed and is not tried again: its units stay taken until they expire or refill"
    );
}

/// Returns the number of units that every part grants.
fn fewest(told: &[Applied]) -> u64 {
    told.iter().map(|it| it.granted).min().unwrap_or_default()
}
