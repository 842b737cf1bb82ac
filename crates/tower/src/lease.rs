//! The slots that a request holds, and the removal of expired state.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{MissedTickBehavior, sleep};
use tollgate::{Hold, LeaseToken, Limiter, Store, Time};

use crate::HasLimiter;

/// How often a lease is renewed while its request lasts: three times in its length.
const RENEWALS: u32 = 3;
/// The shortest pause between two renewals.
const LEAST_PAUSE: Duration = Duration::from_millis(100);
/// How often expired state is removed.
const SWEEP_EVERY: Duration = Duration::from_millis(50);
/// How often expired reservations and leases are ended.
const SWEEP_HOLDS_EVERY: u32 = 5;

/// The slots of a request. They are given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    _held: oneshot::Sender<()>,
}

impl Lease {
    /// Keeps a lease that was granted at `now`, and gives it back later. A lease ends by itself if this
    /// process dies.
    pub(crate) fn keep<T: HasLimiter>(
        limiter: Arc<T>,
        lease: &Hold,
        token: LeaseToken,
        now: Time,
    ) -> Lease {
        let (held, mut dropped) = oneshot::channel();
        let length = Duration::from(lease.expires_at.since(now));
        let pause = (length / RENEWALS).max(LEAST_PAUSE);
        let id = lease.id;
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    biased;
                    _ = &mut dropped => break,
                    () = sleep(pause) => {
                        // A lease that cannot be renewed ends by itself.
                        let _ = limiter.limiter().renew(&id, token, None).await;
                    }
                }
            }
            let _ = limiter.limiter().free(&id, token).await;
        });
        Lease { _held: held }
    }
}

/// Removes expired state of a limiter, and ends expired reservations and leases, until the limiter is
/// dropped. Spawn it once for each limiter:
///
/// ```
/// # use std::sync::Arc;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let limiter = Arc::new(tollgate::Limiter::from_yaml("rules.yaml", "{ version: 1, rules: [] }")?);
/// tokio::spawn(tollgate_tower::sweep(&limiter));
/// # Ok(())
/// # }
/// ```
pub fn sweep<T: HasLimiter>(limiter: &Arc<T>) -> impl Future<Output = ()> + Send + use<T> {
    let limiter: Weak<T> = Arc::downgrade(limiter);
    async move {
        let mut ticks = tokio::time::interval(SWEEP_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut turn = 0_u32;
        loop {
            ticks.tick().await;
            let Some(limiter) = limiter.upgrade() else {
                return;
            };
            turn = turn.wrapping_add(1);
            sweep_once(limiter.limiter(), turn.is_multiple_of(SWEEP_HOLDS_EVERY)).await;
        }
    }
}

async fn sweep_once<S: Store>(limiter: &Limiter<S>, holds: bool) {
    limiter.sweep();
    if holds {
        // A store that does not answer is asked again soon.
        let _ = limiter.sweep_holds().await;
    }
}
