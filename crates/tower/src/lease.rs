//! The slots that a request holds, and the removal of expired state.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::{MissedTickBehavior, sleep};
use tollgate::{AskedLease, Hold, HoldError, HoldName, LeaseToken, Limiter, Store, Time};

use crate::HasLimiter;

/// How often a lease is renewed while its request lasts: three times in its length.
const RENEWALS: u32 = 3;
/// The shortest pause between two renewals.
const LEAST_PAUSE: Duration = Duration::from_millis(100);
/// How often the release of a lease is tried if the store does not answer, or does not know the lease.
const RELEASES: u32 = 3;
/// The longest pause between these tries.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How often expired state is removed.
const SWEEP_EVERY: Duration = Duration::from_millis(50);
/// How often expired reservations and leases are ended.
const SWEEP_HOLDS_EVERY: u32 = 5;

/// The slots of a request. They are given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    _held: oneshot::Sender<()>,
}

/// A lease that is asked for. If the client goes away before the answer, or the answer never comes, the store may have
/// granted the lease all the same: then it is given back when this is dropped.
pub(crate) struct AskingLease<'l, T: HasLimiter> {
    limiter: &'l Arc<T>,
    lease: AskedLease,
}

impl<'l, T: HasLimiter> AskingLease<'l, T> {
    pub(crate) fn new(limiter: &'l Arc<T>) -> AskingLease<'l, T> {
        let lease = AskedLease::default();
        AskingLease { limiter, lease }
    }

    /// Returns where to note the lease.
    pub(crate) fn lease(&self) -> &AskedLease {
        &self.lease
    }

    /// Keeps a lease that was granted at `now`, and gives it back later. A lease ends by itself if this
    /// process dies.
    pub(crate) fn keep(&self, lease: &Hold, token: LeaseToken, now: Time) -> Lease {
        self.lease.take();
        let limiter = Arc::clone(self.limiter);
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
            give_back(&*limiter, id, token, pause.min(LONGEST_PAUSE)).await;
        });
        Lease { _held: held }
    }
}

impl<T: HasLimiter> Drop for AskingLease<'_, T> {
    fn drop(&mut self) {
        let Some((id, token)) = self.lease.take() else {
            return;
        };
        if self.limiter.limiter().store().is_local() {
            // The store answers at once.
            let _ = self.limiter.limiter().free(&id, token).now_or_never();
        } else if let Ok(runtime) = Handle::try_current() {
            let limiter = Arc::clone(self.limiter);
            runtime.spawn(async move { give_back(&*limiter, id, token, LONGEST_PAUSE).await });
        }
        // Without a runtime the process ends, and the lease expires.
    }
}

/// Gives a lease back. The store may get to know the lease after this, on another connection: an unknown lease is tried
/// again.
async fn give_back<T: HasLimiter>(limiter: &T, id: HoldName, token: LeaseToken, pause: Duration) {
    for attempt in 1..=RELEASES {
        let freed = limiter.limiter().free(&id, token).await;
        match freed {
            Err(HoldError::Store(_) | HoldError::Unknown) if attempt < RELEASES => {
                sleep(pause).await;
            }
            _ => return,
        }
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
