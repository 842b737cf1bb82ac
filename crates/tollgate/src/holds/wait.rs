//! Waiting for a lease.

use std::ops::Deref;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tollgate_config::{Attributes, RequestLimits};
use tollgate_core::{Algorithm, Span};
use tollgate_store::{Store, Wait};

use super::make::charge_units;
use super::{Acquire, AcquireOutcome, HoldError, MOST_WAIT, PATIENCE, random, within};
use crate::active_config::ActiveConfig;
use crate::limiter::Limiter;
use crate::snapshot::Snapshot;
use crate::{Decision, Reason};

/// How often a client at the front of a queue asks again.
const ASK_EVERY: Duration = Duration::from_millis(20);
/// How many clients are at the front of a queue.
const FRONT: u32 = 4;
/// How often the last client of a long queue asks again. The client keeps its position in the queue,
/// even if one call is late.
const ASK_AT_LEAST_EVERY: Duration = Duration::from_millis(333);

impl<S: Store, C: Deref<Target = ActiveConfig>> Snapshot<'_, S, C> {
    /// Takes a slot of every concurrency rule of a request. Waits for free slots as long as `acquire`
    /// says, in the order of arrival.
    ///
    /// # Errors
    /// If a setting is out of bounds, or no concurrency rule applies.
    pub async fn acquire(
        &self,
        attributes: &Attributes<'_>,
        acquire: &Acquire<'_>,
    ) -> Result<AcquireOutcome, HoldError> {
        let wait = within("a wait", acquire.wait, Span::ZERO, MOST_WAIT)?;
        if let Some(block) = self.block_of(attributes) {
            let denied = self.deny_blocked(block, attributes);
            return Ok(AcquireOutcome::Denied(denied));
        }
        let until = Instant::now() + Duration::from(wait);
        let ticket = (wait > Span::ZERO).then(random);
        let limits = RequestLimits::default();
        let mut resolution = self.active.rules().resolve(attributes, &limits);
        self.adapt(&mut resolution, &limits);
        charge_units(&mut resolution, acquire);
        loop {
            let now = Instant::now();
            // The last attempt uses the client's position in the queue, but does not keep it
            // afterwards.
            let patience = if now < until { PATIENCE } else { Span::ZERO };
            let wait = ticket.map(|ticket| Wait { ticket, patience });
            let attempt = self.attempt(attributes, &resolution, acquire, wait);
            let attempt = attempt.await?;
            let may_wait = || may_wait(&self.decide(&resolution, &attempt.reply));
            match attempt.ahead.filter(|_| may_wait()) {
                Some(ahead) => sleep_until((now + pause(ahead)).min(until)).await,
                None => return Ok(self.acquired(attributes, &resolution, attempt)),
            }
        }
    }
}

impl<S: Store> Limiter<S> {
    /// Takes a slot of every concurrency rule, and waits for it: see [`Snapshot::acquire`].
    ///
    /// # Errors
    /// The errors of [`Snapshot::acquire`].
    pub async fn acquire(
        &self,
        attributes: &Attributes<'_>,
        acquire: &Acquire<'_>,
    ) -> Result<AcquireOutcome, HoldError> {
        self.snapshot().acquire(attributes, acquire).await
    }
}

/// Returns how long a client waits before it asks again. A client far back in the queue asks less
/// often, because its turn is not soon. Otherwise a long queue would make too many calls.
fn pause(ahead: u64) -> Duration {
    let ahead = u32::try_from(ahead).unwrap_or(u32::MAX);
    let pause = ASK_EVERY.saturating_mul(1 + ahead / FRONT);
    pause.min(ASK_AT_LEAST_EVERY)
}

/// Returns whether only slots are missing. A client can wait for slots.
fn may_wait(decision: &Decision) -> bool {
    let mut denying = decision
        .rules()
        .filter(|rule| !rule.is_allowed() && !rule.is_shadow());
    denying.all(|rule| {
        rule.rule().limit().algorithm() == Algorithm::Concurrency
            && rule.reason() == Some(Reason::Exceeded)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_far_back_asks_less_often_and_keeps_its_place() {
        assert_eq!(pause(0), ASK_EVERY);
        assert_eq!(pause(3), ASK_EVERY);
        assert_eq!(pause(4), ASK_EVERY * 2);
        assert!((0..2_000).all(|ahead| pause(ahead) <= pause(ahead + 1)));
        assert_eq!(pause(u64::MAX), ASK_AT_LEAST_EVERY);
        assert!(ASK_AT_LEAST_EVERY * 3 <= Duration::from(PATIENCE));
    }
}
