//! One question of a request that may wait: it ends in a decision, or in a seat in a queue.
//!
//! Only the last question of a request counts: in metrics, in the log and in the journal, for `charge_denied` and
//! for back-offs.

use std::ops::Deref;
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tollgate_config::{Attributes, RequestLimits, Resolution};
use tollgate_core::{Charge, OnDenied, Span, Time};
use tollgate_store::{Ask, Store};
use tracing::Instrument;

use super::HasLimiter;
use super::room::{Arrival, NoSeat, WaitPlace};
use crate::active_config::ActiveConfig;
use crate::decision::{Decision, Reason};
use crate::denial::RequestOrigin;
use crate::reply::{Reply, is_denied};
use crate::snapshot::Snapshot;

/// How long a request may wait, and since when it does.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    pub(super) arrival: Arrival,
    longest: Span,
}

impl Patience {
    pub(super) fn new(arrival: Arrival, longest: Span) -> Patience {
        Patience { arrival, longest }
    }

    /// Returns the end of a wait under a rule.
    pub(super) fn deadline(&self, waiting: tollgate_config::Waiting) -> Instant {
        self.arrival.at + self.longest.min(waiting.max_wait).into()
    }

    /// Returns how long the request has waited.
    pub(super) fn waited(&self) -> Span {
        let waited = self.arrival.at.elapsed().as_micros();
        Span::from_micros(u64::try_from(waited).unwrap_or(u64::MAX))
    }
}

/// The result of a question.
pub(super) enum Asked {
    /// The request is admitted, or denied for good.
    Decided(Box<Decision>),
    /// The request is denied for now, and waits here. The store expects to admit it at this instant.
    Waits(WaitPlace, Instant),
}

/// Why a request must not wait any longer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refusal {
    /// The rule whose queue the request cannot join, when it may try again, and whether the queue is full. Without
    /// one, the request may ask the store once more.
    queue: Option<(u32, Instant, bool)>,
}

impl Refusal {
    /// The request has waited as long as it may, and is the next one of its queue.
    pub(super) fn expired() -> Refusal {
        Refusal { queue: None }
    }

    /// Returns whether others wait before the request, so that it must not take anything.
    pub(super) fn keeps_out(self) -> bool {
        self.queue.is_some()
    }

    /// The request cannot take a seat, or keep it, under the rule at this index.
    pub(super) fn of(rule: u32, no_seat: NoSeat) -> Refusal {
        let queue = match no_seat {
            NoSeat::Empty => None,
            NoSeat::Full(at) => Some((rule, at, true)),
            NoSeat::TooLate(at) => Some((rule, at, false)),
        };
        Refusal { queue }
    }
}

impl<S: Store, C: Deref<Target = ActiveConfig>> Snapshot<'_, S, C> {
    /// Asks the store. If it denies the request, and the request may wait, `sit` finds a seat for it. With a
    /// `refusal` the request does not wait. If others wait before the request, it is denied and takes nothing: a
    /// unit that the store may have by now is for the others.
    pub(super) async fn decide_or_sit(
        &self,
        attributes: &Attributes<'_>,
        ask: Ask,
        patience: Patience,
        mut refusal: Option<Refusal>,
        sit: impl FnOnce(WaitPlace, (Instant, Instant)) -> Result<(), NoSeat> + Send,
    ) -> Asked {
        if let Some(block) = self.block_of(attributes) {
            return Asked::Decided(Box::new(self.deny_blocked(block, attributes)));
        }
        let asked_at = Instant::now();
        let limits = RequestLimits::default();
        let mut resolution = Resolution::default();
        let rules = self.active.rules();
        rules.resolve_into(attributes, &limits, &mut resolution);
        self.adjust(&mut resolution, &limits);
        let is_free = !resolution.charges.iter().any(counts_denials);
        let is_kept_out = refusal.is_some_and(Refusal::keeps_out);
        let may_take = !is_denied(&resolution) && !is_kept_out;
        if may_take {
            // If a denial has an effect, look first: only one denial of a request may have it.
            let reply = match is_free {
                true => self.take(&resolution, ask).await,
                false => self.look(&resolution, ask).await,
            };
            let mut decision = Box::new(self.decide(&resolution, &reply));
            self.tell_time(&mut decision);
            if !decision.is_allowed()
                && refusal.is_none()
                && let Some(place) = self.wait_place(&decision, &resolution, ask, patience)
                && let Some(retry) = decision.retry_after()
            {
                // The next question takes as long to reach the store as this one.
                let next = asked_at + retry.into();
                match sit(place, (Instant::now(), next)) {
                    Ok(()) => return Asked::Waits(place, next),
                    Err(no_seat) => refusal = Some(Refusal::of(place.rule, no_seat)),
                }
            }
            if is_free {
                tell_refusal(&mut decision, refusal, is_kept_out);
                self.finish(attributes, &resolution, &reply, &decision);
                return Asked::Decided(decision);
            }
        }
        let is_kept_out = refusal.is_some_and(Refusal::keeps_out);
        let reply = match may_take && !is_kept_out {
            true => self.take(&resolution, ask).await,
            false => self.count_denied(&resolution, ask).await,
        };
        let mut decision = Box::new(self.decide(&resolution, &reply));
        self.tell_time(&mut decision);
        tell_refusal(&mut decision, refusal, is_kept_out);
        self.finish(attributes, &resolution, &reply, &decision);
        Asked::Decided(decision)
    }

    /// Asks the store to take the units.
    async fn take(&self, resolution: &Resolution<'_>, ask: Ask) -> Reply {
        let mut asked = 0;
        loop {
            let applied = self.limiter.store.apply(&resolution.charges, ask);
            let reply = self.reply_to(applied, resolution, ask, true).await;
            asked += 1;
            // A fair bucket may deny a client and tell that it would admit it now: the denial itself has moved
            // the shares.
            if asked == MOST_ASKED || !is_out_of_date(&reply, resolution) {
                return reply;
            }
        }
    }

    /// Returns where a denied request waits: in the queue of the rule with the longest wait. `None` if the
    /// request cannot wait, because a rule that denies it has no `max_wait`, or not in time.
    fn wait_place(
        &self,
        decision: &Decision,
        resolution: &Resolution<'_>,
        ask: Ask,
        patience: Patience,
    ) -> Option<WaitPlace> {
        let (now, retry) = (Instant::now(), decision.retry_after()?);
        let mut denying = decision
            .rules()
            .filter(|rule| !rule.is_allowed() && !rule.is_shadow());
        let can_wait = denying.all(|rule| {
            let in_time = |waiting| now + retry.into() <= patience.deadline(waiting);
            rule.reason() == Some(Reason::Exceeded) && rule.rule().waiting().is_some_and(in_time)
        });
        if !can_wait {
            return None;
        }
        let deciding = decision.rule()?;
        let index = u32::try_from(deciding.index()).ok()?;
        let place = resolution.rules.iter().position(|rule| *rule == index)?;
        let waiting = deciding.rule().waiting()?;
        let charge = &resolution.charges[place];
        Some(WaitPlace::new(charge, index, waiting, ask))
    }
}

impl<S: Store> Snapshot<'_, S, Arc<ActiveConfig>> {
    /// Asks the store again for a request that has waited. If the store is not in this process, another task
    /// asks. So a request that is dropped meanwhile gets its units back.
    pub(super) async fn decide_or_sit_again<T>(
        &self,
        owner: &Arc<T>,
        attributes: &Attributes<'_>,
        ask: Ask,
        patience: Patience,
        refusal: Option<Refusal>,
    ) -> Asked
    where
        T: HasLimiter<Store = S>,
    {
        // A request that brought its time asks for the time at which its turn has come.
        let at = match self.at == Time::default() {
            true => self.at,
            false => self.at + patience.waited(),
        };
        if self.limiter.store.is_local() {
            let snapshot = Snapshot {
                limiter: self.limiter,
                active: &*self.active,
                at,
                origin: self.origin,
            };
            let sit = |_, _| Ok(());
            return snapshot
                .decide_or_sit(attributes, ask, patience, refusal, sit)
                .await;
        }
        let request = OwnedRequest {
            owner: Arc::clone(owner),
            active: Arc::clone(&self.active),
            at,
            origin: self.origin,
            attributes: attributes
                .iter()
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
        };
        let (answer, answered) = oneshot::channel();
        let asking = async move {
            let asked = request.decide_or_sit(ask, patience, refusal).await;
            // If nobody waits for the answer, it is dropped, and its units are given back.
            let _ = answer.send(Unclaimed(Some((asked, request))));
        };
        tokio::spawn(asking.in_current_span());
        match answered.await.ok().and_then(Unclaimed::claim) {
            Some(asked) => asked,
            // The task was dropped: the runtime ends.
            None => Asked::Decided(Box::new(self.ask(attributes, ask).await)),
        }
    }
}

/// A request that does not borrow.
struct OwnedRequest<T> {
    owner: Arc<T>,
    active: Arc<ActiveConfig>,
    at: Time,
    origin: RequestOrigin,
    attributes: Vec<(Box<str>, Box<str>)>,
}

impl<T: HasLimiter> OwnedRequest<T> {
    fn snapshot(&self) -> Snapshot<'_, T::Store, &ActiveConfig> {
        Snapshot {
            limiter: self.owner.limiter(),
            active: &self.active,
            at: self.at,
            origin: self.origin,
        }
    }

    fn attributes(&self) -> Attributes<'_> {
        let pairs = self.attributes.iter();
        pairs.map(|(name, value)| (&**name, &**value)).collect()
    }

    async fn decide_or_sit(&self, ask: Ask, patience: Patience, refusal: Option<Refusal>) -> Asked {
        let (snapshot, attributes) = (self.snapshot(), self.attributes());
        let sit = |_, _| Ok(());
        snapshot
            .decide_or_sit(&attributes, ask, patience, refusal, sit)
            .await
    }

    /// Gives back what was taken for a request whose client has gone away.
    async fn give_back(&self, units: u64, charged_at: Time) {
        let (snapshot, attributes) = (self.snapshot(), self.attributes());
        // If the store does not answer, the units are lost until they refill.
        let _ = snapshot.refund(&attributes, units, charged_at).await;
    }
}

/// The answer to a question. Unless the request claims it, its units are given back.
struct Unclaimed<T: HasLimiter>(Option<(Asked, OwnedRequest<T>)>);

impl<T: HasLimiter> Unclaimed<T> {
    fn claim(mut self) -> Option<Asked> {
        self.0.take().map(|(asked, _)| asked)
    }
}

impl<T: HasLimiter> Drop for Unclaimed<T> {
    fn drop(&mut self) {
        if let Some((Asked::Decided(decision), request)) = self.0.take()
            && decision.granted() > 0
            && let Ok(runtime) = Handle::try_current()
        {
            let (units, charged_at) = (decision.granted(), decision.decided_at());
            runtime.spawn(async move { request.give_back(units, charged_at).await });
        }
    }
}

/// How often a question is asked if its answer is out of date.
const MOST_ASKED: u32 = 3;

/// Returns whether a request was denied although every charge would admit it now.
fn is_out_of_date(reply: &Reply, resolution: &Resolution<'_>) -> bool {
    let applied = &reply.applied;
    let mut decided = resolution.charges.iter().zip(&applied.outcomes);
    reply.policies.is_none()
        && !applied.allowed
        && !applied.outcomes.is_empty()
        && decided.all(|(charge, outcome)| !charge.enforces() || outcome.is_allowed())
}

/// Returns whether a denied question changes the state of a charge, so that asking again is not free.
fn counts_denials(charge: &Charge<'_>) -> bool {
    matches!(charge.on_denied, OnDenied::Charge | OnDenied::Strike(_))
}

/// Tells a denied request why it does not wait, and until when. If others wait before the request, denies it.
fn tell_refusal(decision: &mut Decision, refusal: Option<Refusal>, is_kept_out: bool) {
    if let Some((rule, at, is_full)) = refusal.and_then(|it| it.queue)
        && (is_kept_out || !decision.is_allowed())
    {
        let wait = at.saturating_duration_since(Instant::now()).as_micros();
        let wait = Span::from_micros(u64::try_from(wait).unwrap_or(u64::MAX));
        decision.keep_out(rule, wait, is_full);
    }
}
