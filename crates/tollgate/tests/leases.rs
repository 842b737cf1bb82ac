//! Many clients compete for few slots, and some crash while they hold one.
//!
//! The store's clock decides when a lease was granted and when it expires. A crashed client holds its
//! slot until the lease expires. A slow client does not hold it longer than that.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test that tells how it began"
)]

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tollgate::{
    Acquire, AcquireOutcome, Attributes, Engine, Hold, HoldError, LeaseToken, Span, Time,
};
use tollgate_rig::Redis;

const CLIENTS: u64 = 64;
const SLOTS: usize = 3;
const ROUNDS: usize = 4;
/// One client in this many crashes. Leases are long, so that none of them expires on a stalled machine.
/// Crashes are rare, so that the other clients need not wait for long.
const CRASHES: u64 = 32;

#[tokio::test(flavor = "multi_thread")]
async fn every_client_gets_a_slot_in_memory() {
    compete(vec![start("store: memory").await]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_client_gets_a_slot_on_redis() {
    let redis = Redis::start();
    compete(vec![start(&on(&redis)).await]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_client_gets_a_slot_with_two_instances() {
    let redis = Redis::start();
    compete(vec![start(&on(&redis)).await, start(&on(&redis)).await]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_of_crashed_clients_are_free_after_their_lease_in_memory() {
    wait_for_expiry(&start("store: memory").await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_of_crashed_clients_are_free_after_their_lease_on_redis() {
    let redis = Redis::start();
    wait_for_expiry(&start(&on(&redis)).await).await;
}

fn on(redis: &Redis) -> String {
    format!(
        "store: {{ redis: {{ urls: [\"{}\"], timeout: 10s }} }}",
        redis.url()
    )
}

async fn start(store: &str) -> Engine {
    let text = format!(
        "
version: 1
{store}
subjects: {{ hash_secret: a secret of sixteen bytes }}
rules:
  - {{ id: jobs, per: [tenant], algorithm: concurrency, limit: {SLOTS}, lease: 2s }}
"
    );
    let config = tollgate_config::parse("rules.yaml", &text, &|_| None).unwrap();
    Engine::start(&config).await.unwrap()
}

/// Pseudo-random numbers from a seed.
struct Random(u64);

impl Random {
    /// Draws a number in `0..below`.
    fn below(&mut self, below: u64) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (bits ^ (bits >> 31)) % below
    }
}

/// Returns a fixed seed. Long runs use a random seed.
fn seed() -> u64 {
    let seed = match std::env::var_os("TOLLGATE_PROOF_CASES") {
        Some(_) => RandomState::new().hash_one(0) >> 8,
        None => 1,
    };
    println!("seed {seed}");
    seed
}

/// A lease that was granted.
struct Grant {
    lease: Hold,
    token: LeaseToken,
    at: Time,
}

/// The leases of all clients.
#[derive(Default)]
struct Register {
    /// The leases that may be held, by fence: when each was granted, and when it expires.
    holding: BTreeMap<u64, (Time, Time)>,
    /// Every fence, and when its lease was granted.
    given: BTreeMap<u64, Time>,
}

impl Register {
    fn grant(&mut self, grant: &Grant) {
        let fence = grant.lease.fence;
        let before = self.given.insert(fence, grant.at);
        assert_eq!(before, None, "fence {fence} was given twice");
        self.holding
            .insert(fence, (grant.at, grant.lease.expires_at));
        // None of these leases was given back. So all of them were held when the last one was granted,
        // except leases that had expired by then.
        let now = self.holding.values().map(|(since, _)| *since).max();
        let now = now.unwrap_or_default();
        self.holding.retain(|_, (_, until)| *until > now);
        let holders = self.holding.len();
        assert!(
            holders <= SLOTS,
            "at {now:?} there are {holders}: {:?}",
            self.holding
        );
    }
}

async fn compete(engines: Vec<Engine>) {
    let (seed, engines) = (seed(), Arc::new(engines));
    let register = Arc::new(Mutex::new(Register::default()));
    let clients = (0..CLIENTS).map(|client| {
        let (engines, register) = (Arc::clone(&engines), Arc::clone(&register));
        tokio::spawn(async move {
            let mut random = Random(seed + (client << 56));
            let mut crashes = 0;
            for _ in 0..ROUNDS {
                let place = random.below(engines.len() as u64);
                let engine = &engines[usize::try_from(place).unwrap()];
                let grant = acquire(engine).await;
                register.lock().grant(&grant);
                tokio::time::sleep(Duration::from_micros(random.below(3_000))).await;
                if random.below(4) == 0 {
                    renew(engine, &grant, &register).await;
                }
                if random.below(CRASHES) == 0 {
                    crashes += 1;
                    continue;
                }
                // Removed here before the store frees the slot: afterwards another client may get it.
                register.lock().holding.remove(&grant.lease.fence);
                engine.free(&grant.lease.id, grant.token).await.unwrap();
            }
            crashes
        })
    });
    let clients: Vec<_> = clients.collect();
    let mut crashes = 0;
    for client in clients {
        crashes += client.await.unwrap();
    }
    let register = register.lock();
    let granted = usize::try_from(CLIENTS).unwrap() * ROUNDS;
    assert_eq!(register.given.len(), granted);
    assert!(crashes > SLOTS, "{crashes} crashes");
    let times: Vec<&Time> = register.given.values().collect();
    assert!(times.is_sorted(), "fences grow in the order of grants");
}

/// Renews a lease, unless it has expired.
async fn renew(engine: &Engine, grant: &Grant, register: &Mutex<Register>) {
    let fence = grant.lease.fence;
    match engine.renew(&grant.lease.id, grant.token, None).await {
        Ok(lease) => {
            assert_eq!(lease.fence, fence);
            if let Some((_, until)) = register.lock().holding.get_mut(&fence) {
                *until = lease.expires_at;
            }
        }
        Err(HoldError::Ended(_) | HoldError::Unknown) => {
            register.lock().holding.remove(&fence);
        }
        Err(error) => panic!("{error}"),
    }
}

/// Makes all holders crash while others wait. No waiting client gets a slot before a lease has expired.
async fn wait_for_expiry(engine: &Engine) {
    let mut free_at = Vec::new();
    for _ in 0..SLOTS {
        free_at.push(acquire(engine).await.lease.expires_at);
    }
    free_at.sort();
    // No lease is given back, so slots become free only by expiry.
    let waiting = (0..SLOTS).map(|_| async { acquire(engine).await.at });
    let mut granted = futures_util::future::join_all(waiting).await;
    granted.sort();
    for (granted, free_at) in granted.iter().zip(&free_at) {
        assert!(granted >= free_at, "{granted:?}, free at {free_at:?}");
    }
}

/// Acquires a lease, and fails the test if the wait ends without one.
async fn acquire(engine: &Engine) -> Grant {
    let request = Acquire {
        owner: "worker",
        wait: Span::from_secs(30),
        ..Acquire::default()
    };
    let acme = Attributes::from([("tenant", "acme")]);
    match engine.acquire(&acme, &request).await.unwrap() {
        AcquireOutcome::Granted {
            lease,
            token,
            decision,
        } => Grant {
            lease,
            token,
            at: decision.decided_at(),
        },
        AcquireOutcome::Denied(decision) => panic!("starved: {decision:?}"),
    }
}
