//! Reservations and leases of an engine, whatever its store.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tollgate_core::Span;
use tollgate_rules::Attributes;
use tollgate_store::Wait;

use super::{
    Acquire, AcquireOutcome, Hold, HoldError, HoldName, Holders, LeaseToken, MOST_WAIT, PATIENCE,
    Reserve, ReserveOutcome, random, within,
};
use crate::active_config::ActiveConfig;
use crate::engine::with_limiter;
use crate::{Engine, Snapshot};

/// How often somebody who waits for a lease asks again, if it is among the next few.
const ASK_EVERY: Duration = Duration::from_millis(20);
/// How many those are.
const FEW: u32 = 4;
/// How often the last in a long queue asks again: often enough to keep its place, though an ask be late.
const ASK_AT_LEAST_EVERY: Duration = Duration::from_millis(333);

impl Engine {
    /// Takes an estimate from every rule of a request, to be settled later.
    ///
    /// # Errors
    /// If the wish is out of bounds, or its idempotency key was used for something else.
    pub async fn reserve(
        &self,
        attributes: &Attributes<'_>,
        wish: &Reserve<'_>,
    ) -> Result<ReserveOutcome, HoldError> {
        self.reserve_under(&self.live(), attributes, wish).await
    }

    async fn reserve_under(
        &self,
        live: &ActiveConfig,
        attributes: &Attributes<'_>,
        wish: &Reserve<'_>,
    ) -> Result<ReserveOutcome, HoldError> {
        with_limiter!(
            self,
            |limiter| limiter.reserve_under(live, attributes, wish),
            |limiter| Box::pin(limiter.reserve_under(live, attributes, wish)).await
        )
    }

    /// Takes a slot of every concurrency rule of a request, and waits for it as long as is wished, in the
    /// order of arrival.
    ///
    /// # Errors
    /// If the wish is out of bounds, or no concurrency rule applies.
    pub async fn acquire(
        &self,
        attributes: &Attributes<'_>,
        wish: &Acquire<'_>,
    ) -> Result<AcquireOutcome, HoldError> {
        self.acquire_under(&self.live(), attributes, wish).await
    }

    async fn acquire_under(
        &self,
        live: &ActiveConfig,
        attributes: &Attributes<'_>,
        wish: &Acquire<'_>,
    ) -> Result<AcquireOutcome, HoldError> {
        let wait = within("a wait", wish.wait, Span::ZERO, MOST_WAIT)?;
        let until = Instant::now() + Duration::from(wait);
        let ticket = (wait > Span::ZERO).then(random);
        loop {
            let now = Instant::now();
            // Who asks for the last time is judged by its place, and has no patience to keep it.
            let patience = if now < until { PATIENCE } else { Span::ZERO };
            let waits = ticket.map(|ticket| Wait { ticket, patience });
            let (acquiring, ahead) = with_limiter!(
                self,
                |limiter| limiter.acquire_under(live, attributes, wish, waits),
                |limiter| Box::pin(limiter.acquire_under(live, attributes, wish, waits)).await
            )?;
            let decision = acquiring.decision();
            let Some(ahead) = ahead.filter(|_| may_wait(decision)) else {
                with_limiter!(
                    self,
                    |limiter| limiter.count(live, attributes, decision),
                    |limiter| limiter.count(live, attributes, decision)
                );
                return Ok(acquiring);
            };
            sleep_until((now + pause(ahead)).min(until)).await;
        }
    }

    /// Ends a reservation with what was really used: less gives the rest back, more is charged as far as
    /// the rules' overdrafts go.
    ///
    /// # Errors
    /// If there is none, or it has ended otherwise.
    pub async fn commit(&self, name: &HoldName, actual: u64) -> Result<Hold, HoldError> {
        with_limiter!(self, |limiter| limiter.commit(name, actual), |limiter| {
            Box::pin(limiter.commit(name, actual)).await
        })
    }

    /// Gives back all that a reservation holds.
    ///
    /// # Errors
    /// If there is none, or it was used.
    pub async fn release(&self, name: &HoldName) -> Result<Hold, HoldError> {
        with_limiter!(self, |limiter| limiter.release(name), |limiter| {
            Box::pin(limiter.release(name)).await
        })
    }

    /// Keeps a reservation for so long from now.
    ///
    /// # Errors
    /// If there is none, or it has ended.
    pub async fn extend(&self, name: &HoldName, ttl: Span) -> Result<Hold, HoldError> {
        with_limiter!(self, |limiter| limiter.extend(name, ttl), |limiter| {
            Box::pin(limiter.extend(name, ttl)).await
        })
    }

    /// How a reservation stands.
    ///
    /// # Errors
    /// If there is none, or it is a lease.
    pub async fn find_hold(&self, name: &HoldName) -> Result<Hold, HoldError> {
        with_limiter!(self, |limiter| limiter.find_hold(name), |limiter| {
            Box::pin(limiter.find_hold(name)).await
        })
    }

    /// Keeps a lease for so long from now: as long as its rules say, unless given.
    ///
    /// # Errors
    /// If there is none, it has ended, or the token is another's.
    pub async fn renew(
        &self,
        name: &HoldName,
        token: LeaseToken,
        ttl: Option<Span>,
    ) -> Result<Hold, HoldError> {
        with_limiter!(self, |limiter| limiter.renew(name, token, ttl), |limiter| {
            Box::pin(limiter.renew(name, token, ttl)).await
        })
    }

    /// Gives a lease back.
    ///
    /// # Errors
    /// If there is none, or the token is another's.
    pub async fn free(&self, name: &HoldName, token: LeaseToken) -> Result<Hold, HoldError> {
        with_limiter!(self, |limiter| limiter.free(name, token), |limiter| {
            Box::pin(limiter.free(name, token)).await
        })
    }

    /// Who holds slots of the concurrency rules of a request, by rule.
    ///
    /// # Errors
    /// If the store cannot be asked.
    pub async fn holders(&self, attributes: &Attributes<'_>) -> Result<Vec<Holders>, HoldError> {
        with_limiter!(self, |limiter| limiter.holders(attributes), |limiter| {
            Box::pin(limiter.holders(attributes)).await
        })
    }

    /// Ends some of the reservations and leases whose time is over, and says how many it could end. To be
    /// called about once a second.
    ///
    /// # Errors
    /// If the store, or the ledger, cannot be asked.
    pub async fn sweep_holds(&self) -> Result<usize, HoldError> {
        with_limiter!(self, |limiter| limiter.sweep_holds(), |limiter| {
            Box::pin(limiter.sweep_holds()).await
        })
    }
}

/// How long somebody pauses before it asks again who has so many before it. All who wait would ask too often
/// together, and who is far back has no turn soon.
fn pause(ahead: u64) -> Duration {
    let ahead = u32::try_from(ahead).unwrap_or(u32::MAX);
    let pause = ASK_EVERY.saturating_mul(1 + ahead / FEW);
    pause.min(ASK_AT_LEAST_EVERY)
}

/// Whether only slots are missing, for which somebody can wait.
fn may_wait(decision: &crate::Decision) -> bool {
    let mut refusing = decision
        .rules()
        .filter(|rule| !rule.is_allowed() && !rule.is_shadow());
    refusing.all(|rule| {
        rule.rule().limit().algorithm() == tollgate_core::Algorithm::Concurrency
            && rule.reason() == Some(crate::Reason::Exceeded)
    })
}

impl Snapshot<'_> {
    /// As [`Engine::reserve`].
    ///
    /// # Errors
    /// As there.
    pub async fn reserve(
        &self,
        attributes: &Attributes<'_>,
        wish: &Reserve<'_>,
    ) -> Result<ReserveOutcome, HoldError> {
        self.engine()
            .reserve_under(self.live(), attributes, wish)
            .await
    }

    /// As [`Engine::acquire`].
    ///
    /// # Errors
    /// As there.
    pub async fn acquire(
        &self,
        attributes: &Attributes<'_>,
        wish: &Acquire<'_>,
    ) -> Result<AcquireOutcome, HoldError> {
        let live = Arc::clone(self.live());
        self.engine().acquire_under(&live, attributes, wish).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_far_back_asks_seldom_and_keeps_its_place() {
        assert_eq!(pause(0), ASK_EVERY);
        assert_eq!(pause(3), ASK_EVERY);
        assert_eq!(pause(4), ASK_EVERY * 2);
        assert!((0..2_000).all(|ahead| pause(ahead) <= pause(ahead + 1)));
        assert_eq!(pause(u64::MAX), ASK_AT_LEAST_EVERY);
        assert!(ASK_AT_LEAST_EVERY * 3 <= Duration::from(PATIENCE));
    }
}
