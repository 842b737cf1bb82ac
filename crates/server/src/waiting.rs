//! Those who wait for a lease at a door: so many at a time, so that they leave room for others.

use tokio::sync::Semaphore;
use tollgate::{Acquire, AcquireOutcome, Attributes, HoldError, Snapshot, Span};

/// How many may wait for a lease at a door at a time. More are answered at once, as if they did not want
/// to wait.
pub(crate) const MAX_WAITING: usize = 1024;

/// The places of those who wait at one door.
pub(crate) struct Waiting(Semaphore);

impl Waiting {
    pub(crate) fn new() -> Waiting {
        Waiting(Semaphore::new(MAX_WAITING))
    }

    /// Acquires a lease, and waits for it if there is a place to wait.
    pub(crate) async fn acquire(
        &self,
        engine: &Snapshot<'_>,
        attributes: &Attributes<'_>,
        wish: &Acquire<'_>,
    ) -> Result<AcquireOutcome, HoldError> {
        if wish.wait == Span::ZERO {
            return engine.acquire(attributes, wish).await;
        }
        let place = self.0.try_acquire();
        let wait = match place {
            Ok(_) => wish.wait,
            Err(_) => Span::ZERO,
        };
        engine.acquire(attributes, &Acquire { wait, ..*wish }).await
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;
    use tollgate::{Engine, Limiter};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_finds_no_place_to_wait_is_answered_at_once() {
        let rules =
            "version: 1\nrules: [{ id: slots, algorithm: concurrency, limit: 1, lease: 1h }]";
        let engine = Engine::from(Limiter::from_yaml("rules.yaml", rules).unwrap());
        let (engine, waiting) = (engine.snapshot(), Waiting::new());
        let wish = Acquire {
            wait: Span::from_secs(30),
            ..Acquire::default()
        };
        let any = Attributes::new();
        let acquire = || waiting.acquire(&engine, &any, &wish);
        let first = acquire().await.unwrap();
        assert!(matches!(first, AcquireOutcome::Granted { .. }));
        let places = waiting.0.try_acquire_many(1024).unwrap();
        let started = Instant::now();
        let refused = acquire().await.unwrap();
        assert!(matches!(refused, AcquireOutcome::Denied(_)));
        assert_eq!(started.elapsed().as_secs(), 0);
        drop(places);
        let refused = acquire().await.unwrap();
        assert!(matches!(refused, AcquireOutcome::Denied(_)));
        assert_eq!(started.elapsed().as_secs(), 30);
    }
}
