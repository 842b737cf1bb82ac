//! The one path of a request: resolve the rules, ask the store, finish.
//!
//! A [`Snapshot`] is what a request holds: a limiter, and the config that was active when the request
//! began. The request sees that config from the first look to the answer, whatever is put in force
//! meanwhile. Checks, peeks, refunds and resets are here, for every store; batches are in `batch.rs`,
//! reservations and leases in `holds/`.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use tollgate_config::{Attributes, Explanation, RequestLimits, Resolution};
use tollgate_core::{Charge, Span, Time};
use tollgate_store::{Answer, Applied, Ask, Store, StoreError};

use crate::active_config::ActiveConfig;
use crate::decision::Decision;
use crate::limiter::Limiter;
use crate::reply::{Part, Reply, conclude, is_denied};

/// A limiter with the config that a request sees.
pub struct Snapshot<'l, S = Arc<dyn Store>, C = Arc<ActiveConfig>> {
    pub(crate) limiter: &'l Limiter<S>,
    pub(crate) active: C,
}

impl<S, C> fmt::Debug for Snapshot<'_, S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot").finish_non_exhaustive()
    }
}

impl<'l, S: Store, C: Deref<Target = ActiveConfig>> Snapshot<'l, S, C> {
    /// The limiter.
    #[must_use]
    pub fn limiter(&self) -> &'l Limiter<S> {
        self.limiter
    }

    /// The config that this request sees.
    #[must_use]
    pub fn active(&self) -> &C {
        &self.active
    }

    /// Decides whether a request may proceed now. If so, takes as many units as `ask` says from every
    /// rule that applies to the request.
    #[inline]
    pub async fn ask(&self, attributes: &Attributes<'_>, ask: Ask) -> Decision {
        let limits = RequestLimits::default();
        let mut resolution = Resolution::default();
        self.active
            .rules()
            .resolve_into(attributes, &limits, &mut resolution);
        let reply = if is_denied(&resolution) {
            self.count_denied(&resolution, ask).await
        } else {
            self.take(&resolution, ask).await
        };
        let decision = self.decide(&resolution, &reply);
        self.finish(attributes, &resolution, &reply, &decision);
        decision
    }

    /// Returns what [`ask`](Self::ask) would decide now. Takes nothing, and is not counted.
    pub async fn peek(&self, attributes: &Attributes<'_>, ask: Ask) -> Decision {
        let limits = RequestLimits::default();
        let resolution = self.active.rules().resolve(attributes, &limits);
        let reply = self.look(&resolution, ask).await;
        self.decide(&resolution, &reply)
    }

    /// Gives back `units` that were taken by a decision at `charged_at` ([`Decision::decided_at`]), and
    /// says how things stand then. Units that have come back by themselves are not given back twice.
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

    /// Forgets what the subjects of this request have used.
    ///
    /// # Errors
    /// If the store does not answer.
    pub async fn reset(&self, attributes: &Attributes<'_>) -> Result<(), StoreError> {
        let limits = RequestLimits::default();
        let resolution = self.active.rules().resolve(attributes, &limits);
        self.limiter.fallback.forget(&resolution.charges);
        self.limiter.store.reset(&resolution.charges).await
    }

    /// Which rules apply to this request, and why the others do not.
    #[must_use]
    pub fn explain(&self, attributes: &Attributes<'_>) -> Vec<Explanation> {
        self.active.rules().explain(attributes)
    }

    /// Asks the store to take what a request wants.
    #[inline]
    pub(crate) async fn take(&self, resolution: &Resolution<'_>, ask: Ask) -> Reply {
        // A ready answer takes the short way: the state of a waiting future is large.
        let later = match self.limiter.store.apply(&resolution.charges, ask) {
            Answer::Now(applied) => return self.reply(applied, resolution, ask, true),
            later => later,
        };
        let (applied, latency) = self.limiter.answered(later).await;
        let reply = self.reply(applied, resolution, ask, true);
        Reply { latency, ..reply }
    }

    /// Asks the store what it would answer now; takes nothing.
    pub(crate) async fn look(&self, resolution: &Resolution<'_>, ask: Ask) -> Reply {
        let peeked = self.limiter.store.peek(&resolution.charges, ask);
        let (peeked, latency) = self.limiter.answered(peeked).await;
        let reply = self.reply(peeked, resolution, ask, false);
        Reply { latency, ..reply }
    }

    /// Answers a request that a rule denied before the store was asked. The request takes nothing, except
    /// from charges that count denied requests.
    pub(crate) async fn count_denied(&self, resolution: &Resolution<'_>, ask: Ask) -> Reply {
        let charges = &resolution.charges;
        let counting = charges.iter().enumerate();
        let counting = counting.filter(|(_, charge)| charge.counts_denied());
        let (places, counting): (Vec<usize>, Vec<Charge<'_>>) = counting.unzip();
        if counting.is_empty() {
            return self.look(resolution, ask).await;
        }
        // Both calls run at the same time, so that they take no longer than one.
        let store = &self.limiter.store;
        let both = store.peek(charges, ask).and(store.apply(&counting, ask));
        let ((looked, counted), latency) = self.limiter.answered(both).await;
        let applied = looked.and_then(|mut looked| {
            for (place, outcome) in places.into_iter().zip(counted?.outcomes) {
                looked.outcomes[place] = outcome;
            }
            Ok(looked)
        });
        let reply = self.reply(applied, resolution, ask, false);
        Reply { latency, ..reply }
    }

    /// Makes the reply from the store's answer or, if there is none, from failure policies. With `take`,
    /// failure policies count the units that they admit.
    #[inline]
    pub(crate) fn reply(
        &self,
        answer: Result<Applied, StoreError>,
        resolution: &Resolution<'_>,
        ask: Ask,
        take: bool,
    ) -> Reply {
        let (limiter, fallbacks) = (self.limiter, self.active.fallbacks());
        match answer {
            Ok(applied) => {
                if take {
                    limiter.fallback.follow(fallbacks, resolution, &applied);
                }
                applied.into()
            }
            Err(error) => {
                let takes = take && !is_denied(resolution);
                let reply = limiter.fallback.decide(fallbacks, resolution, ask, takes);
                if take {
                    limiter.failures.count(reply.policies.as_deref());
                    limiter.failures.log(reply.applied.now, &error);
                }
                reply
            }
        }
    }

    /// Returns the decision about a request that is not part of a batch.
    #[inline]
    pub(crate) fn decide(&self, resolution: &Resolution<'_>, reply: &Reply) -> Decision {
        let allowed = reply.applied.allowed && !is_denied(resolution);
        let granted = (allowed, reply.applied.granted);
        let part = Part::whole(resolution);
        conclude(self.active.rules(), resolution, &part, reply, granted)
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
        if decision.is_allowed() {
            self.active
                .notice(&resolution.charges, reply, |_| attributes);
        } else {
            self.limiter.log_denial(decision, attributes, reply.latency);
        }
    }
}

impl<S> Limiter<S> {
    /// Waits for an answer, and says how long that took. An answer that is there costs no look at the
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
