//! Many who want few slots, some of whom die holding one.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tollgate::{Acquire, Acquiring, Attributes, Engine, Span};
use tollgate_rig::Redis;

const CLIENTS: usize = 64;
const SLOTS: usize = 3;
const ROUNDS: usize = 4;

#[tokio::test(flavor = "multi_thread")]
async fn nobody_starves_in_memory() {
    fight("store: memory").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_starves_on_redis() {
    let redis = Redis::start();
    let store = format!(
        "store: {{ redis: {{ urls: [\"{}\"], timeout: 2s }} }}",
        redis.url()
    );
    fight(&store).await;
}

async fn fight(store: &str) {
    let text = format!(
        "
version: 1
{store}
subjects: {{ hash_secret: a secret of sixteen bytes }}
rules:
  - {{ id: jobs, per: [tenant], algorithm: concurrency, limit: {SLOTS}, lease: 300ms }}
"
    );
    let config = tollgate_rules::parse("rules.yaml", &text, &|_| None).unwrap();
    let engine = Arc::new(Engine::start(&config).await.unwrap());
    let holding = Arc::new(AtomicUsize::new(0));
    let fences = Arc::new(Mutex::new(HashSet::new()));
    let clients = (0..CLIENTS).map(|client| {
        let (engine, holding) = (Arc::clone(&engine), Arc::clone(&holding));
        let fences = Arc::clone(&fences);
        tokio::spawn(async move {
            for round in 0..ROUNDS {
                let (lease, token) = acquire(&engine).await;
                let now = holding.fetch_add(1, Ordering::SeqCst) + 1;
                assert!(now <= SLOTS, "{now} hold one of {SLOTS}");
                assert!(fences.lock().insert(lease.fence), "a fence was given twice");
                tokio::time::sleep(Duration::from_millis(1)).await;
                holding.fetch_sub(1, Ordering::SeqCst);
                // One in ten dies, and its slot is back when its lease is over.
                if (client * 7 + round * 13) % 10 != 0 {
                    engine.free(&lease.id, token).await.unwrap();
                }
            }
        })
    });
    let clients: Vec<_> = clients.collect();
    for client in clients {
        client.await.unwrap();
    }
    assert_eq!(fences.lock().len(), CLIENTS * ROUNDS);
}

/// Everybody gets its turn: nobody waits in vain.
async fn acquire(engine: &Engine) -> (tollgate::Hold, tollgate::LeaseToken) {
    let wish = Acquire {
        owner: "worker",
        wait: Span::from_secs(30),
        ..Acquire::default()
    };
    let acme = Attributes::from([("tenant", "acme")]);
    match engine.acquire(&acme, &wish).await.unwrap() {
        Acquiring::Granted { lease, token, .. } => (lease, token),
        Acquiring::Refused(decision) => panic!("starved: {decision:?}"),
    }
}
