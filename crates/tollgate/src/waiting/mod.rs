//! Bounded waiting: a request may wait for its turn instead of being denied (`max_wait`).
//!
//! A request that a rule with `max_wait` denies takes a seat in the queue of that bucket, if the retry time is
//! before its deadline. One request of a queue at a time asks the store again, at the retry time that the store
//! told. It asks for the whole request, so all its rules are decided together, as for any other request. A
//! request that comes while others of its client wait joins them without a question. So the number of questions
//! does not depend on how many requests wait, and the store gives the turns between instances. A request
//! that cannot join them is denied and takes nothing: the next unit is for the requests that wait.
//!
//! * `queue.rs`: the order in which requests ask again.
//! * `room.rs`: the queues of a limiter, and the seats in them.
//! * `asking.rs`: one question to the store, which ends in a decision or in a wait.
//! * `counts.rs`: what metrics tell.

mod asking;
mod counts;
mod queue;
mod room;

use std::sync::Arc;

use tokio::time::Instant;
use tollgate_config::{Attributes, RequestLimits};
use tollgate_core::Span;
use tollgate_store::{Ask, Store};

pub use self::counts::{WAIT_BOUNDS, WaitCounts, WaitOutcome};
pub use self::room::{MAX_SEATS, WaitingRoom};

use self::asking::{Asked, Patience, Refusal};
use self::room::{NoSeat, Seat, WaitEnd, WaitPlace};
use crate::active_config::ActiveConfig;
use crate::decision::Decision;
use crate::engine::Engine;
use crate::limiter::Limiter;
use crate::reply::is_denied;
use crate::snapshot::Snapshot;

/// Something that has a limiter: a [`Limiter`] of any store, or an [`Engine`].
pub trait HasLimiter: Send + Sync + 'static {
    /// The store of the limiter.
    type Store: Store;

    /// Returns the limiter.
    fn limiter(&self) -> &Limiter<Self::Store>;

    /// Decides a request under the config in force, and lets it wait for its turn: see
    /// [`Snapshot::ask_or_wait`].
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tollgate::{Ask, Attributes, HasLimiter, Limiter, Span};
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// let limiter = Arc::new(Limiter::from_yaml("rules.yaml", "
    /// version: 1
    /// rules: [{ id: all, algorithm: token-bucket, capacity: 1, refill: 100/s, max_wait: 1s }]
    /// ")?);
    /// let anyone = Attributes::new();
    /// for _ in 0..3 {
    ///     // The second and the third request wait for 10 milliseconds each.
    ///     let decision = limiter.ask_or_wait(&anyone, Ask::Exactly(1), Span::from_secs(1)).await;
    ///     assert!(decision.is_allowed());
    /// }
    /// # Ok::<(), tollgate::StartError>(())
    /// # }).unwrap();
    /// ```
    fn ask_or_wait(
        self: &Arc<Self>,
        attributes: &Attributes<'_>,
        ask: Ask,
        longest: Span,
    ) -> impl Future<Output = Decision> + Send
    where
        Self: Sized,
    {
        async move {
            let snapshot = self.limiter().snapshot();
            snapshot.ask_or_wait(self, attributes, ask, longest).await
        }
    }
}

impl<S: Store + 'static> HasLimiter for Limiter<S> {
    type Store = S;

    fn limiter(&self) -> &Limiter<S> {
        self
    }
}

impl HasLimiter for Engine {
    type Store = Arc<dyn Store>;

    fn limiter(&self) -> &Limiter<Arc<dyn Store>> {
        self
    }
}

impl<S: Store> Snapshot<'_, S, Arc<ActiveConfig>> {
    /// Decides a request as [`ask`](Snapshot::ask) does, but lets it wait for its turn: at most as long as the
    /// `max_wait` of each rule that denies it, and at most `longest`. `owner` has the limiter of this snapshot.
    ///
    /// The request is denied at once if a rule without `max_wait` denies it, or if its turn would come too
    /// late. If too many requests wait, the reason of the denial is
    /// [`QueueFull`](crate::Reason::QueueFull).
    ///
    /// Drop the future to give up: the request leaves its queue and costs nothing. If the store is asked at
    /// that moment and admits the request, its units are given back.
    pub async fn ask_or_wait<T>(
        &self,
        owner: &Arc<T>,
        attributes: &Attributes<'_>,
        ask: Ask,
        longest: Span,
    ) -> Decision
    where
        T: HasLimiter<Store = S>,
    {
        if longest == Span::ZERO || !self.active.has_waits() {
            return Box::pin(self.ask(attributes, ask)).await;
        }
        // A request that waits keeps only its seat. What else a question needs is boxed, and freed before the wait.
        let patience = Patience::new(self.limiter.waiting_room.arrive(), longest);
        let mut seat = match Box::pin(self.ask_first(attributes, ask, patience)).await {
            Ok(seat) => seat,
            Err(decision) => return *decision,
        };
        loop {
            let end = seat.wait(patience.deadline(seat.place.waiting)).await;
            let asking = self.ask_again(owner, attributes, ask, patience, seat, end);
            match Box::pin(asking).await {
                Ok(taken) => seat = taken,
                Err(decision) => return *decision,
            }
        }
    }

    /// Decides a request for the first time, or takes a seat for it.
    async fn ask_first(
        &self,
        attributes: &Attributes<'_>,
        ask: Ask,
        patience: Patience,
    ) -> Result<Seat<'_>, Box<Decision>> {
        let mut refusal = None;
        let is_busy = self.limiter.waiting_room.waiting() > 0;
        if is_busy && self.block_of(attributes).is_none() {
            match self.join_behind(attributes, ask, patience) {
                Ok(seat) => return Ok(seat),
                Err(found) => refusal = found,
            }
        }
        let mut taken = None;
        let sit = |place: WaitPlace, next| {
            taken = Some(self.join(place, patience, next)?);
            Ok(())
        };
        let asking = self.decide_or_sit(attributes, ask, patience, refusal, sit);
        match (asking.await, taken) {
            (Asked::Decided(decision), _) => Err(decision),
            (Asked::Waits(..), Some(seat)) => Ok(seat),
            (Asked::Waits(..), None) => Err(Box::new(self.ask(attributes, ask).await)),
        }
    }

    /// Decides a request whose wait has ended, or returns the seat in which it waits on.
    async fn ask_again<'s, T>(
        &'s self,
        owner: &Arc<T>,
        attributes: &Attributes<'_>,
        ask: Ask,
        patience: Patience,
        seat: Seat<'s>,
        end: WaitEnd,
    ) -> Result<Seat<'s>, Box<Decision>>
    where
        T: HasLimiter<Store = S>,
    {
        let refusal = match end {
            WaitEnd::Turn => None,
            WaitEnd::ExpiredNext => Some(Refusal::expired()),
            WaitEnd::ExpiredBehind(turn) => {
                Some(Refusal::of(seat.place.rule, NoSeat::TooLate(turn)))
            }
        };
        let is_kept_out = refusal.is_some_and(Refusal::keeps_out);
        let asked_at = Instant::now();
        let asking = self.decide_or_sit_again(owner, attributes, ask, patience, refusal);
        let asked = asking.await;
        let now = Instant::now();
        let (place, next) = match asked {
            Asked::Decided(mut decision) => {
                decision.has_waited(patience.waited());
                let is_own = |index: usize| index == seat.place.rule as usize;
                let told = decision
                    .rules()
                    .find(|rule| is_own(rule.index()))
                    .map(|rule| (rule.remaining(), rule.retry_after()));
                let (remaining, retry) = told.unwrap_or_default();
                match decision.is_allowed() {
                    true => seat.admitted(remaining, asked_at, now),
                    // The retry time is for a place behind the others, and does not say when they may ask.
                    false if is_kept_out => seat.refused(None, now),
                    false => seat.refused(retry.map(|it| asked_at + it.into()), now),
                }
                return Err(decision);
            }
            Asked::Waits(place, next) => (place, next),
        };
        if place.is_in_queue_of(&seat.place) {
            seat.denied((now, next));
            return Ok(seat);
        }
        // Another bucket denies now, so the request waits there. Its former queue goes on.
        seat.move_on(now);
        let no_seat = match self.join(place, patience, (now, next)) {
            Ok(seat) => return Ok(seat),
            Err(no_seat) => no_seat,
        };
        let refusal = Some(Refusal::of(place.rule, no_seat));
        let asking = self.decide_or_sit_again(owner, attributes, ask, patience, refusal);
        match asking.await {
            Asked::Decided(decision) => Err(decision),
            Asked::Waits(..) => Err(Box::new(self.ask(attributes, ask).await)),
        }
    }

    /// Takes a seat behind other requests of the same client, if some wait. Otherwise returns why not; `None` if
    /// the request may ask the store.
    fn join_behind(
        &self,
        attributes: &Attributes<'_>,
        ask: Ask,
        patience: Patience,
    ) -> Result<Seat<'_>, Option<Refusal>> {
        let limits = RequestLimits::default();
        let resolution = self.active.rules().resolve(attributes, &limits);
        if is_denied(&resolution) {
            return Err(None);
        }
        let now = Instant::now();
        for (charge, rule) in resolution.charges.iter().zip(&resolution.rules) {
            let own = &self.active.rules().rules()[*rule as usize];
            let counts = self.active.metrics().waits(*rule as usize);
            let (Some(waiting), Some(counts), true) = (own.waiting(), counts, charge.enforces())
            else {
                continue;
            };
            let place = WaitPlace::new(charge, *rule, waiting, ask);
            let room = &self.limiter.waiting_room;
            let until = (now, patience.deadline(waiting));
            match room.join_behind(place, patience.arrival, until, counts) {
                Ok(seat) => return Ok(seat),
                Err(NoSeat::Empty) => {}
                Err(no_seat) => return Err(Some(Refusal::of(*rule, no_seat))),
            }
        }
        Err(None)
    }

    /// Takes a seat for a request that the store has denied.
    fn join(
        &self,
        place: WaitPlace,
        patience: Patience,
        when: (Instant, Instant),
    ) -> Result<Seat<'_>, NoSeat> {
        let counts = self.active.metrics().waits(place.rule as usize);
        let counts = counts.ok_or(NoSeat::Empty)?;
        let room = &self.limiter.waiting_room;
        let deadline = patience.deadline(place.waiting);
        room.join(place, patience.arrival, when, deadline, counts)
    }
}
