//! How many clients may wait for a lease at one door, so that they leave room for others.

use tokio::sync::Semaphore;
use tollgate::{Acquire, AcquireOutcome, Attributes, HoldError, Snapshot, Span};

/// How many clients may wait for a lease at a door. Further clients get an answer at once, as if they
/// did not want to wait.
pub(crate) const MAX_WAITING: usize = 1024;

/// One permit for each client that may wait at a door.
pub(crate) struct LeaseWait(Semaphore);

impl LeaseWait {
    pub(crate) fn new() -> LeaseWait {
        LeaseWait(Semaphore::new(MAX_WAITING))
    }

    /// Acquires a lease. Waits for it as long as `acquire` says, if a permit is free.
    pub(crate) async fn acquire(
        &self,
        snapshot: &Snapshot<'_>,
        attributes: &Attributes<'_>,
        acquire: &Acquire<'_>,
    ) -> Result<AcquireOutcome, HoldError> {
        if acquire.wait == Span::ZERO {
            return snapshot.acquire(attributes, acquire).await;
        }
        let permit = self.0.try_acquire();
        let wait = match permit {
            Ok(_) => acquire.wait,
            Err(_) => Span::ZERO,
        };
        let acquire = Acquire { wait, ..*acquire };
        snapshot.acquire(attributes, &acquire).await
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;
    use tollgate::Engine;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn client_without_a_permit_is_answered_at_once() {
        let rules =
            "version: 1\nrules: [{ id: slots, algorithm: concurrency, limit: 1, lease: 1h }]";
        let engine = Engine::from_yaml("rules.yaml", rules).unwrap();
        let (snapshot, lease_wait) = (engine.snapshot(), LeaseWait::new());
        let wanted = Acquire {
            wait: Span::from_secs(30),
            ..Acquire::default()
        };
        let any = Attributes::new();
        let acquire = || lease_wait.acquire(&snapshot, &any, &wanted);
        let first = acquire().await.unwrap();
        assert!(matches!(first, AcquireOutcome::Granted { .. }));
        let permits = lease_wait.0.try_acquire_many(1024).unwrap();
        let started = Instant::now();
        let denied = acquire().await.unwrap();
        assert!(matches!(denied, AcquireOutcome::Denied(_)));
        assert_eq!(started.elapsed().as_secs(), 0);
        drop(permits);
        let denied = acquire().await.unwrap();
        assert!(matches!(denied, AcquireOutcome::Denied(_)));
        assert_eq!(started.elapsed().as_secs(), 30);
    }
}
