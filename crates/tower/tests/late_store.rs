//! Slots of a shared store that answers late, or not at all for a while.

#![allow(clippy::unwrap_used)]

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Empty;
use tokio::time::{sleep, timeout};
use tollgate::{
    Answer, Applied, Ask, Attributes, Charge, Held, HoldId, Limiter, ManualClock, MemoryStore,
    NewHold, Reply, Settle, Settled, Store, StoreError, Time,
};
use tollgate_tower::TollgateLayer;
use tower::{Layer, ServiceExt};

/// A shared store. It takes a hold at once, and answers one second later.
struct Late {
    store: MemoryStore<ManualClock>,
    /// How many of the next calls to end a hold fail.
    failures: Arc<AtomicU32>,
}

impl Store for Late {
    fn inner(&self) -> Option<&dyn Store> {
        Some(&self.store)
    }

    fn is_local(&self) -> bool {
        false
    }

    fn apply<'a>(&'a self, charges: &'a [Charge<'a>], ask: Ask) -> Reply<'a, Applied> {
        Store::apply(&self.store, charges, ask)
    }

    fn peek<'a>(&'a self, charges: &'a [Charge<'a>], ask: Ask) -> Reply<'a, Applied> {
        Store::peek(&self.store, charges, ask)
    }

    fn refund<'a>(
        &'a self,
        charges: &'a [Charge<'a>],
        units: u64,
        charged_at: Time,
    ) -> Reply<'a, Applied> {
        Store::refund(&self.store, charges, units, charged_at)
    }

    fn reset<'a>(&'a self, charges: &'a [Charge<'a>]) -> Reply<'a, ()> {
        Store::reset(&self.store, charges)
    }

    fn hold<'a>(
        &'a self,
        charges: &'a [Charge<'a>],
        units: u64,
        new: &'a NewHold<'a>,
    ) -> Reply<'a, Held> {
        Answer::later(async move {
            let held = Store::hold(&self.store, charges, units, new).await;
            sleep(Duration::from_secs(1)).await;
            held
        })
    }

    fn settle(&self, id: HoldId, how: Settle) -> Reply<'_, Settled> {
        let left = |left: u32| left.checked_sub(1);
        let failing = self
            .failures
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, left);
        match failing {
            Ok(_) => Answer::Now(Err(StoreError::Timeout)),
            Err(_) => Store::settle(&self.store, id, how),
        }
    }
}

type Shared = Arc<Limiter<Late>>;

/// A limiter with one slot. The first `failures` calls to free it fail.
fn limiter(failures: u32) -> (Shared, Arc<AtomicU32>) {
    let yaml =
        "{ version: 1, rules: [{ id: slots, algorithm: concurrency, limit: 1, lease: 1h }] }";
    let config = tollgate::parse("rules.yaml", yaml, &|_| None).unwrap();
    let clock = ManualClock::at(Time::from_micros(1_700_000_000_000_000));
    let failures = Arc::new(AtomicU32::new(failures));
    let store = Late {
        store: MemoryStore::with_clock(100, clock.clone()),
        failures: Arc::clone(&failures),
    };
    let limiter = Limiter::builder(&config, store).clock(clock).build();
    (Arc::new(limiter), failures)
}

async fn send(limiter: &Shared) -> Response<tollgate_tower::LimitedBody<Empty<Bytes>>> {
    let service = |_: Request<()>| async { Ok::<_, Infallible>(Response::new(Empty::new())) };
    let layer = TollgateLayer::new(Arc::clone(limiter), |_| {});
    let service = layer.layer(tower::service_fn(service));
    service.oneshot(Request::new(())).await.unwrap()
}

async fn held(limiter: &Shared) -> usize {
    let holders = limiter.holders(&Attributes::new()).await.unwrap();
    holders[0].holders.len()
}

#[tokio::test(start_paused = true)]
async fn slot_is_freed_if_the_client_goes_away_before_the_store_answers() {
    let (limiter, _) = limiter(0);
    let gone = timeout(Duration::from_millis(500), send(&limiter)).await;
    assert!(gone.is_err());
    sleep(Duration::from_millis(1)).await;
    assert_eq!(held(&limiter).await, 0);
    // A client that waits for the answer keeps its slot until it drops the response.
    let response = send(&limiter).await;
    assert_eq!((response.status().as_u16(), held(&limiter).await), (200, 1));
    drop(response);
    sleep(Duration::from_millis(1)).await;
    assert_eq!(held(&limiter).await, 0);
}

#[tokio::test(start_paused = true)]
async fn slot_is_freed_although_the_store_fails_twice() {
    let (limiter, failures) = limiter(2);
    drop(send(&limiter).await);
    sleep(Duration::from_secs(5)).await;
    assert_eq!(failures.load(Ordering::Relaxed), 0);
    assert_eq!(held(&limiter).await, 0);
}
