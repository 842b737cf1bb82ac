//! The one path of a request: resolve the rules, ask the store, finish.
//!
//! A request holds a [`Snapshot`]: a limiter, and the config that was active when the request began.
//! The request sees that config until it is answered, even if another config is put in force meanwhile.
//! Checks, peeks, refunds and resets are here, for every store. Batches are in `batch.rs`, reservations
//! and leases in `holds/`.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use tollgate_config::{Attributes, Explanation, RequestLimits, Resolution};
use tollgate_core::{Charge, Limit, Span, Time};
use tollgate_store::{Answer, Applied, Ask, Immediate, Store, StoreError};

use crate::active_config::ActiveConfig;
use crate::decision::Decision;
use crate::denial::RequestOrigin;
use crate::limiter::{Limiter, now};
use crate::reply::{Part, Reply, conclude, is_denied};
use crate::throttle::Throttled;

/// A limiter with the config that a request sees.
pub struct Snapshot<'l, S = Arc<dyn Store>, C = Arc<ActiveConfig>> {
    pub(crate) limiter: &'l Limiter<S>,
    pub(crate) active: C,
    /// The time of the request, if the caller brings one; otherwise the epoch.
    pub(crate) at: Time,
    pub(crate) origin: RequestOrigin,
}

impl<S, C> fmt::Debug for Snapshot<'_, S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot").finish_non_exhaustive()
    }
}

impl<'l, S: Store, C: Deref<Target = ActiveConfig>> Snapshot<'l, S, C> {
    /// Returns the limiter.
    #[must_use]
    pub fn limiter(&self) -> &'l Limiter<S> {
        self.limiter
    }

    /// Returns the config that this request sees.
    #[must_use]
    pub fn active(&self) -> &C {
        &self.active
    }

    /// Returns a snapshot for a request that was made at `time`. A store that goes by the caller's clock
    /// (`clock: caller`) decides checks and peeks at this time. Other stores use their own clock.
    #[must_use]
    pub fn at(self, time: Time) -> Self {
        Snapshot { at: time, ..self }
    }

    /// Returns the same snapshot, for a request that came from `origin`.
    #[must_use]
    pub fn with_origin(&self, origin: RequestOrigin) -> Snapshot<'l, S, &ActiveConfig> {
        Snapshot {
            limiter: self.limiter,
            active: &self.active,
            at: self.at,
            origin,
        }
    }

    /// Decides whether a request may proceed now. If so, takes as many units as `ask` says from every
    /// rule that applies to the request.
    #[inline]
    pub async fn ask(&self, attributes: &Attributes<'_>, ask: Ask) -> Decision {
        let mut decision = Decision::new(self.active.rules());
        self.ask_into(attributes, ask, &mut decision).await;
        decision
    }

    /// Like `ask`, but writes the decision in place: each move of a decision through a future costs
    /// time.
    #[inline]
    pub(crate) async fn ask_into(
        &self,
        attributes: &Attributes<'_>,
        ask: Ask,
        decision: &mut Decision,
    ) {
        if let Some(block) = self.block_of(attributes) {
            *decision = self.deny_blocked(block, attributes);
            return;
        }
        let limits = RequestLimits::default();
        let mut resolution = Resolution::default();
        self.resolve_for(attributes, &limits, &mut resolution);
        let mut reply = Reply::default();
        if let Some(rest) = self.ask_store(&resolution, ask, &mut reply) {
            reply = self.wait_for(rest, &resolution, ask).await;
        }
        self.end(attributes, &resolution, &reply, decision);
    }

    /// Resolves the rules for a request without limits of its own.
    #[inline]
    fn resolve_for<'r, 'a: 'r>(
        &'r self,
        attributes: &Attributes<'a>,
        limits: &'r RequestLimits,
        resolution: &mut Resolution<'r>,
    ) {
        let rules = self.active.rules();
        rules.resolve_into(attributes, limits, resolution);
        self.adjust(resolution, limits);
    }

    /// Asks the store, if no rule has denied the request. If the store answers at once, writes its answer to
    /// `reply` and returns `None`.
    #[inline]
    fn ask_store<'q, 'r: 'q>(
        &'q self,
        resolution: &'q Resolution<'r>,
        ask: Ask,
        reply: &mut Reply,
    ) -> Option<Rest<'q>> {
        if is_denied(resolution) {
            return Some(Rest::Denied);
        }
        let (store, charges) = (&self.limiter.store, &resolution.charges);
        match store.apply_into(charges, ask, &mut reply.applied) {
            None => {
                self.follow(resolution, &reply.applied);
                None
            }
            Some(answer) => Some(Rest::Asked(answer)),
        }
    }

    /// Waits for the rest of the reply.
    async fn wait_for(&self, rest: Rest<'_>, resolution: &Resolution<'_>, ask: Ask) -> Reply {
        match rest {
            // Rare, and boxed so that the future of a check stays small.
            Rest::Denied => Box::pin(self.count_denied(resolution, ask)).await,
            Rest::Asked(answer) => self.reply_to(answer, resolution, ask, true).await,
        }
    }

    /// Writes the decision that follows from the reply, and counts it.
    #[inline(never)]
    fn end(
        &self,
        attributes: &Attributes<'_>,
        resolution: &Resolution<'_>,
        reply: &Reply,
        decision: &mut Decision,
    ) {
        self.decide_into(resolution, reply, decision);
        self.tell_time(decision);
        self.finish(attributes, resolution, reply, decision);
    }

    /// Returns what [`ask`](Self::ask) would decide now. Takes nothing, and is not counted.
    pub async fn peek(&self, attributes: &Attributes<'_>, ask: Ask) -> Decision {
        if let Some(block) = self.block_of(attributes) {
            return self.blocked(block);
        }
        let limits = RequestLimits::default();
        let mut resolution = self.active.rules().resolve(attributes, &limits);
        self.adjust(&mut resolution, &limits);
        let reply = self.look(&resolution, ask).await;
        let mut decision = self.decide(&resolution, &reply);
        self.tell_time(&mut decision);
        decision
    }

    /// Gives the limits of this instance and the time of the request to its charges. Every way to decide a request
    /// does so after its rules are resolved.
    #[inline]
    pub(crate) fn adjust<'r>(&self, resolution: &mut Resolution<'r>, limits: &'r RequestLimits) {
        self.adapt(resolution, limits);
        self.set_time(resolution);
    }

    /// Gives the time of the request to its charges.
    #[inline]
    fn set_time(&self, resolution: &mut Resolution<'_>) {
        if self.at != Time::default() {
            for charge in &mut resolution.charges {
                charge.at = self.at;
            }
        }
    }

    /// Lets the waits of a decision count from now on, if it was made at the time of the request.
    #[inline]
    pub(crate) fn tell_time(&self, decision: &mut Decision) {
        if self.at != Time::default() && decision.decided_at() == self.at {
            decision.answer_later(self.limiter.clock.now().since(self.at));
        }
    }

    /// Gives back `units` that a decision at `charged_at` ([`Decision::decided_at`]) has taken. Returns
    /// the state after that. Units that the limit has already refilled are not given back twice.
    ///
    /// # Errors
    /// If the store does not answer. Then nothing was given back, unless only the answer was lost.
    pub async fn refund(
        &self,
        attributes: &Attributes<'_>,
        units: u64,
        charged_at: Time,
    ) -> Result<Decision, StoreError> {
        let limits = RequestLimits::default();
        let resolution = self.active.rules().resolve(attributes, &limits);
        let store = &self.limiter.store;
        let refunded = store.refund(&resolution.charges, units, charged_at);
        Ok(self.decide(&resolution, &refunded.await?.into()))
    }

    /// Forgets the usage of the subjects of this request.
    ///
    /// # Errors
    /// If the store does not answer.
    pub async fn reset(&self, attributes: &Attributes<'_>) -> Result<(), StoreError> {
        let limits = RequestLimits::default();
        let resolution = self.active.rules().resolve(attributes, &limits);
        self.limiter.fallback.forget(&resolution.charges);
        self.limiter.store.reset(&resolution.charges).await
    }

    /// Returns which rules apply to this request, and why the other rules do not.
    #[must_use]
    pub fn explain(&self, attributes: &Attributes<'_>) -> Vec<Explanation> {
        self.active.rules().explain(attributes)
    }

    /// Asks the store for its answer without taking anything.
    pub(crate) async fn look(&self, resolution: &Resolution<'_>, ask: Ask) -> Reply {
        let peeked = self.limiter.store.peek(&resolution.charges, ask);
        self.reply_to(peeked, resolution, ask, false).await
    }

    /// Waits for the store's answer, and makes the reply: see [`reply`](Self::reply). If only some of several
    /// stores have answered, failure policies answer for the others.
    pub(crate) async fn reply_to(
        &self,
        answer: Answer<'_, Result<Applied, StoreError>>,
        resolution: &Resolution<'_>,
        ask: Ask,
        take: bool,
    ) -> Reply {
        let (applied, latency) = self.limiter.answered(answer).await;
        match applied {
            Ok(applied) if applied.unanswered.is_some() => {
                // Rare, and boxed so that the future of a check stays small.
                let reply = Box::pin(self.reply_in_part(applied, resolution, ask, take)).await;
                Reply { latency, ..reply }
            }
            applied => self.reply(applied, latency, resolution, ask, take),
        }
    }

    /// Answers a request that a rule denied before the store was asked. Only charges that count denied
    /// requests are charged.
    pub(crate) async fn count_denied(&self, resolution: &Resolution<'_>, ask: Ask) -> Reply {
        let charges = &resolution.charges;
        let counting = charges.iter().enumerate();
        let counting = counting.filter(|(_, charge)| charge.counts_denied());
        let (places, counting): (Vec<usize>, Vec<Charge<'_>>) = counting.unzip();
        if counting.is_empty() {
            return self.look(resolution, ask).await;
        }
        // Both calls run at the same time, so that they take no longer than one call.
        let store = &self.limiter.store;
        let both = store.peek(charges, ask).and(store.apply(&counting, ask));
        let applied = both.map(|(looked, counted)| {
            let (mut looked, counted) = (looked?, counted?);
            for (place, outcome) in places.into_iter().zip(counted.outcomes) {
                if outcome.is_decided() {
                    looked.outcomes[place] = outcome;
                }
            }
            Ok(looked)
        });
        self.reply_to(applied, resolution, ask, false).await
    }

    /// Makes the reply from the store's answer or, without an answer, from failure policies. With
    /// `take`, failure policies count the units that they admit. `latency` is how long the store took;
    /// `None` if it answered at once.
    #[inline]
    pub(crate) fn reply(
        &self,
        answer: Result<Applied, StoreError>,
        latency: Option<Span>,
        resolution: &Resolution<'_>,
        ask: Ask,
        take: bool,
    ) -> Reply {
        match answer {
            Ok(applied) => {
                if take {
                    self.follow(resolution, &applied);
                }
                Reply {
                    applied,
                    policies: None,
                    latency,
                }
            }
            Err(error) => Reply {
                latency,
                ..self.reply_by_policy(&error, resolution, ask, take)
            },
        }
    }

    /// Passes an answer of the store to the failure policies that remember it.
    #[inline]
    fn follow(&self, resolution: &Resolution<'_>, applied: &Applied) {
        let (fallback, fallbacks) = (&self.limiter.fallback, self.active.fallbacks());
        if fallbacks.has_cached {
            fallback.follow(fallbacks, resolution, applied);
        }
    }

    /// Makes the reply of failure policies after `error`.
    #[cold]
    fn reply_by_policy(
        &self,
        error: &StoreError,
        resolution: &Resolution<'_>,
        ask: Ask,
        take: bool,
    ) -> Reply {
        let (limiter, fallbacks) = (self.limiter, self.active.fallbacks());
        let takes = take && !is_denied(resolution);
        let reply = limiter.fallback.decide(fallbacks, resolution, ask, takes);
        if take {
            limiter.failures.count(reply.policies.as_deref());
            limiter.failures.log(reply.applied.now, error);
        }
        reply
    }

    /// Returns the decision about a request that is not part of a batch.
    pub(crate) fn decide(&self, resolution: &Resolution<'_>, reply: &Reply) -> Decision {
        let mut decision = Decision::new(self.active.rules());
        self.decide_into(resolution, reply, &mut decision);
        decision
    }

    #[inline]
    fn decide_into(&self, resolution: &Resolution<'_>, reply: &Reply, decision: &mut Decision) {
        let allowed = reply.applied.allowed && !is_denied(resolution);
        let granted = |_: &[_]| (allowed, reply.applied.granted);
        conclude(
            resolution,
            &Part::whole(resolution),
            reply,
            granted,
            decision,
        );
    }

    /// Counts a final decision. Logs a denial, and raises the events of quotas that are nearly used up.
    #[inline]
    pub(crate) fn finish(
        &self,
        attributes: &Attributes<'_>,
        resolution: &Resolution<'_>,
        reply: &Reply,
        decision: &Decision,
    ) {
        let metrics = self.active.metrics();
        metrics.count(decision.outcomes(), resolution.plan);
        metrics.count_fair(&resolution.charges, &resolution.rules, decision);
        if decision.is_allowed() {
            self.active
                .notice(&resolution.charges, reply, |_| attributes);
        } else {
            let from = (&*self.active, self.origin);
            let latency = reply.latency;
            self.limiter
                .denied(from, decision, attributes, latency, None);
        }
    }

    /// Takes `cost` from the allowance of `key` under an ad-hoc `limit`: see [`Limiter::throttle`].
    ///
    /// # Errors
    /// If the store does not answer. Without a rule there is no failure policy.
    pub async fn throttle(
        &self,
        key: &[u8],
        limit: &Limit,
        cost: u64,
    ) -> Result<Throttled, StoreError> {
        if let Some(blocked) = self.blocked_key(key, limit) {
            return Ok(blocked);
        }
        let charge = self.active.keyed().throttle.charge(key, limit);
        let charges = std::slice::from_ref(&charge);
        let answer = self.limiter.store.apply(charges, Ask::Exactly(cost));
        let (applied, latency) = self.limiter.answered(answer).await;
        self.throttled(&charge, applied, latency)
    }

    /// Like [`throttle`](Self::throttle), if the store answers at once. Otherwise takes nothing and
    /// returns `None`.
    #[inline]
    pub fn try_throttle(&self, key: &[u8], limit: &Limit, cost: u64) -> Option<Throttled> {
        if !self.limiter.store.is_local() {
            return None;
        }
        if let Some(blocked) = self.blocked_key(key, limit) {
            return Some(blocked);
        }
        let charge = self.active.keyed().throttle.charge(key, limit);
        let charges = std::slice::from_ref(&charge);
        match self.limiter.store.apply(charges, Ask::Exactly(cost)) {
            Answer::Now(applied) => self.throttled(&charge, applied, None).ok(),
            Answer::Later(_) => None,
        }
    }

    /// Counts the outcome of an ad-hoc limit. Logs and records a denial.
    #[inline]
    fn throttled(
        &self,
        charge: &Charge<'_>,
        applied: Result<Applied, StoreError>,
        latency: Option<Span>,
    ) -> Result<Throttled, StoreError> {
        let limiter = self.limiter;
        let applied = applied.inspect_err(|error| {
            limiter.throttles.count(None);
            limiter.failures.log(limiter.clock.now(), error);
        })?;
        limiter.throttles.count(Some(applied.allowed));
        let told = Throttled {
            outcome: applied.outcomes[0],
            decided_at: applied.now,
            is_blocked: false,
        };
        if !applied.allowed {
            let from = (&*self.active, self.origin);
            limiter.denied_throttle(from, charge, &told, latency);
        }
        Ok(told)
    }
}

/// The steps that remain before a request has its reply.
#[allow(
    clippy::large_enum_variant,
    reason = "the value is moved once, and a box would cost an allocation for each check on Redis"
)]
enum Rest<'q> {
    /// A rule denies the request. The store only counts it.
    Denied,
    /// The store answers later, or has failed.
    Asked(Answer<'q, Result<Applied, StoreError>>),
}

impl<S: Immediate, C: Deref<Target = ActiveConfig>> Snapshot<'_, S, C> {
    /// Like [`ask_into`](Self::ask_into), for a store that answers at once: the same steps without a future. The
    /// place of the values of a future costs time.
    #[inline]
    pub(crate) fn ask_at_once(
        &self,
        attributes: &Attributes<'_>,
        ask: Ask,
        decision: &mut Decision,
    ) {
        if let Some(block) = self.block_of(attributes) {
            *decision = self.deny_blocked(block, attributes);
            return;
        }
        let limits = RequestLimits::default();
        let mut resolution = Resolution::default();
        self.resolve_for(attributes, &limits, &mut resolution);
        let mut reply = Reply::default();
        if let Some(rest) = self.ask_store(&resolution, ask, &mut reply) {
            reply = self.wait_now(rest, &resolution, ask);
        }
        self.end(attributes, &resolution, &reply, decision);
    }

    #[cold]
    fn wait_now(&self, rest: Rest<'_>, resolution: &Resolution<'_>, ask: Ask) -> Reply {
        now(self.wait_for(rest, resolution, ask))
    }
}

impl<'l, S: Store> Snapshot<'l, S> {
    /// Like [`with_origin`](Self::with_origin), with an owned handle to the config.
    #[must_use]
    pub fn owned_with_origin(&self, origin: RequestOrigin) -> Snapshot<'l, S> {
        Snapshot {
            limiter: self.limiter,
            active: Arc::clone(&self.active),
            at: self.at,
            origin,
        }
    }
}

impl<S> Limiter<S> {
    /// Waits for an answer, and measures how long that took. An answer that is ready does not read the
    /// clock.
    pub(crate) async fn answered<T>(&self, answer: Answer<'_, T>) -> (T, Option<Span>) {
        match answer {
            Answer::Now(answer) => (answer, None),
            Answer::Later(later) => {
                let started = self.clock.now();
                let answer = later.await;
                (answer, Some(self.clock.now().since(started)))
            }
        }
    }
}
