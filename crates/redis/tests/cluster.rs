//! A cluster: the conformance suite with all keys in one cluster slot and in several. Also slots
//! that are being moved, and masters that stop answering or die.
//!
//! If no other client interferes, a store with keys in several slots answers like one atomic store. There are
//! three exceptions, so random sequences across slots keep to [`Range::Steady`]:
//!
//! * A refund undoes a charge only while the clock does not go back. A state remembers the latest time it has seen,
//!   and a charge before that time cannot be found again.
//! * A denied request does not reach the slots after the one that denies. If limits have changed, the states
//!   in these slots are carried over later, by the next request that reaches them.
//! * A fair bucket remembers a client whose charge was refunded. So there are no fair buckets in requests with several
//!   charges.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tollgate_conformance::random::{self, Range};
use tollgate_conformance::{Fixture, Kind};
use tollgate_core::concurrency::Holder;
use tollgate_core::{Charge, HoldId, Key, Limit, Span, Tag, Time, Token};
use tollgate_redis::{Options, RedisStore, Servers};
use tollgate_rig::{Cluster, wait};
use tollgate_store::{
    AllowanceLevel, Answer, Applied, Ask, Balance, Extended, Guarantee, Held, HoldRecord,
    ManualClock, NewHold, Reply, Settle, Settled, Store, StoreError, Usage,
};

use common::{LIMIT, LONG, RUNTIME, block_on, charge, take};

tollgate_conformance::conformance_suite! {
    one_test: the_whole_suite_passes_in_one_slot,
    shared: cluster = Cluster::start(3, 1),
    fixture: InOneSlot::new(&cluster),
    block_on: common::block_on,
    steps: common::steps() / 8,
}

tollgate_conformance::conformance_suite! {
    one_test: the_whole_suite_passes_across_slots,
    shared: cluster = Cluster::start(3, 1),
    fixture: AcrossSlots::new(&cluster, Range::Steady),
    block_on: common::block_on,
    steps: common::steps() / 4,
}

#[test]
fn requests_with_one_charge_are_decided_alike_in_any_slot() {
    let cluster = Cluster::start(3, 0);
    let fixture = AcrossSlots::new(&cluster, Range::OneCharge);
    block_on(random::same_answers(&fixture, &Kind::ALL, common::steps()));
}

#[test]
fn moving_a_slot_loses_and_repeats_nothing() {
    let cluster = Cluster::start(3, 0);
    let slot = slot_of(&cluster, Tag::default());
    let here = cluster.master_of_slot(slot);
    let there = (here + 1) % 3;
    let store = common::connect(common::cluster_options(&cluster));
    let traffic = Traffic::start(&store);
    for (from, to) in [(here, there), (there, here)] {
        let migration = cluster.begin_migration(slot, from, to);
        traffic.wait_for_requests(100);
        // Some keys are on one server, some on the other, and some do not exist yet.
        while migration.move_keys(50) > 0 {
            traffic.wait_for_requests(20);
        }
        traffic.wait_for_requests(100);
        migration.finish();
        traffic.wait_for_requests(100);
    }
    let (admitted, limit) = (traffic.stop(), hot());
    let rest = block_on(common::admitted(&store, HOT, &limit, 16, 400));
    assert_eq!(admitted + rest, limit.capacity());
}

#[test]
fn a_request_waits_for_keys_that_are_being_moved() {
    let cluster = Cluster::start(3, 0);
    let slot = slot_of(&cluster, Tag::default());
    let from = cluster.master_of_slot(slot);
    let store = common::connect(common::cluster_options(&cluster));
    let limit = Kind::Gcra.limit(10, LONG);
    let both = [charge(1, &limit), charge(2, &limit)];
    let applied = block_on(store.apply(&both, Ask::Exactly(1)));
    assert!(applied.unwrap().allowed);
    let migration = cluster.begin_migration(slot, from, (from + 1) % 3);
    assert_eq!(migration.move_keys(1), 1);
    let (asking, its_limit) = (store.clone(), limit.clone());
    let request = RUNTIME.spawn(async move {
        let both = [charge(1, &its_limit), charge(2, &its_limit)];
        asking.apply(&both, Ask::Exactly(1)).await
    });
    // Requests for one of the keys do not wait.
    for number in [1, 2] {
        assert!(block_on(take(&store, number, &limit)).unwrap().allowed);
    }
    assert!(!request.is_finished(), "{:?}", block_on(request));
    assert_eq!(migration.move_keys(1), 1);
    migration.finish();
    assert!(block_on(request).unwrap().unwrap().allowed);
    for number in [1, 2] {
        assert_eq!(block_on(common::left(&store, number, &limit)), 7);
    }
}

#[test]
fn a_silent_master_does_not_delay_other_requests() {
    let cluster = common::cluster_that_bears_pauses();
    let store = common::connect(common::cluster_options(&cluster));
    let limit = Kind::Gcra.limit(1_000, LONG);
    let ask = |tag| ask(store.clone(), tag, limit.clone());
    let tags: Vec<Tag> = (0..30).map(Tag::new).collect();
    let silent = cluster.master_of_slot(slot_of(&cluster, tags[0]));
    let is_silent = |tag: &Tag| cluster.master_of_slot(slot_of(&cluster, *tag)) == silent;
    let (held_up, others): (Vec<Tag>, Vec<Tag>) = tags.into_iter().partition(is_silent);
    cluster.nodes()[silent].pause();
    let held_up = held_up.into_iter();
    let waiting: Vec<_> = held_up.map(|tag| RUNTIME.spawn(ask(tag))).collect();
    wait::until("requests wait", LIMIT, || {
        store.in_flight() == waiting.len()
    });
    for tag in others {
        assert!(block_on(ask(tag)).unwrap().allowed);
    }
    assert_eq!(store.in_flight(), waiting.len(), "they are still waiting");
    cluster.nodes()[silent].resume();
    for request in waiting {
        assert!(block_on(request).unwrap().unwrap().allowed);
    }
}

#[test]
fn a_silent_master_keeps_its_count_of_keys() {
    let cluster = common::cluster_that_bears_pauses();
    let store = common::connect(common::cluster_options(&cluster));
    let limit = Kind::Gcra.limit(1_000, LONG);
    for tag in (0..60).map(Tag::new) {
        assert!(block_on(ask(store.clone(), tag, limit.clone())).is_ok());
    }
    wait::until("a count of all keys", LIMIT, || store.census().keys() == 60);
    let silent = cluster.master_of_slot(slot_of(&cluster, Tag::new(0)));
    cluster.nodes()[silent].pause();
    wait::until("a count without the silent master", LIMIT, || {
        store.census().servers.len() == 2
    });
    assert_eq!(store.census().keys(), 60);
    cluster.nodes()[silent].resume();
    wait::until("a count of all masters", LIMIT, || {
        store.census().servers.len() == 3
    });
    assert_eq!(store.census().keys(), 60);
}

/// Charges one unit to a subject with this tag.
async fn ask(store: RedisStore, tag: Tag, limit: Limit) -> Result<Applied, StoreError> {
    let charge = Charge {
        tag,
        ..charge(1, &limit)
    };
    store.apply(&[charge], Ask::Exactly(1)).await
}

#[test]
fn a_dead_master_is_replaced() {
    let cluster = Cluster::start(3, 1);
    // The default settings: after five failures the breaker is open for 30 seconds.
    let nodes = common::addresses(cluster.nodes());
    let store = common::connect(Options::new(Servers::Cluster(nodes)));
    let limit = Kind::Gcra.limit(1_000_000, LONG);
    wait::until("an answer", LIMIT, || {
        block_on(take(&store, 1, &limit)).is_ok()
    });
    let slot = slot_of(&cluster, Tag::default());
    let old = cluster.master_of_slot(slot);
    let replica = cluster.replicas_of(old)[0];
    wait::until("a copy of the state", LIMIT, || {
        !cluster.nodes()[replica].connect().keys().is_empty()
    });
    cluster.nodes()[old].kill();
    wait::until("the breaker opens", LIMIT, || {
        block_on(take(&store, 1, &limit)) == Err(StoreError::BreakerOpen)
    });
    assert_eq!(cluster.wait_for_failover(slot, old), replica);
    let soon = Duration::from_secs(10);
    wait::until("an answer", soon, || {
        block_on(take(&store, 1, &limit)).is_ok()
    });
    let left = block_on(common::left(&store, 1, &limit));
    assert!(left <= 1_000_000 - 2, "the state was lost: {left}");
    // The old master comes back as a replica, and gets no requests.
    cluster.nodes()[old].restart();
    cluster.wait_until_complete();
    for _ in 0..20 {
        wait::until("an answer", soon, || {
            block_on(take(&store, 1, &limit)).is_ok()
        });
    }
    assert_eq!(store.breakers().len(), 3);
}

fn slot_of(cluster: &Cluster, tag: Tag) -> u16 {
    cluster.slot_of(&format!("{{{:08x}}}", tag.number()))
}

/// The subject that all callers share.
const HOT: u64 = u64::MAX / 2;

fn hot() -> Limit {
    Kind::Gcra.limit(5_000, LONG)
}

/// Callers that keep charging one shared subject. In between, each caller charges a new subject
/// twice.
struct Traffic {
    over: Arc<AtomicBool>,
    requests: Arc<AtomicU64>,
    callers: Vec<tokio::task::JoinHandle<u64>>,
}

impl Traffic {
    fn start(store: &RedisStore) -> Traffic {
        let (over, requests) = (Arc::default(), Arc::default());
        let caller = |_| {
            let (over, requests) = (Arc::clone(&over), Arc::clone(&requests));
            RUNTIME.spawn(Traffic::run(store.clone(), over, requests))
        };
        let callers = (0..8).map(caller).collect();
        Traffic {
            over,
            requests,
            callers,
        }
    }

    async fn run(store: RedisStore, over: Arc<AtomicBool>, requests: Arc<AtomicU64>) -> u64 {
        let (hot, once) = (hot(), Kind::FixedWindow.limit(1, LONG));
        let mut admitted = 0;
        while !over.load(Ordering::Relaxed) {
            let number = requests.fetch_add(1, Ordering::Relaxed);
            admitted += u64::from(take(&store, HOT, &hot).await.unwrap().allowed);
            assert!(take(&store, number, &once).await.unwrap().allowed);
            assert!(!take(&store, number, &once).await.unwrap().allowed);
        }
        admitted
    }

    /// Waits until `count` more requests have arrived.
    fn wait_for_requests(&self, count: u64) {
        let from = self.requests.load(Ordering::Relaxed);
        wait::until("requests", LIMIT, || {
            self.requests.load(Ordering::Relaxed) >= from + count
        });
    }

    /// Returns how many requests for the shared subject were allowed.
    fn stop(self) -> u64 {
        self.over.store(true, Ordering::Relaxed);
        let callers = self.callers.into_iter();
        callers.map(|caller| block_on(caller).unwrap()).sum()
    }
}

/// A store with a manual clock, on a shared cluster.
struct InOneSlot {
    store: RedisStore,
    clock: ManualClock,
}

impl InOneSlot {
    fn new(cluster: &Cluster) -> InOneSlot {
        let clock = ManualClock::default();
        let options = common::by_clock(common::cluster_options(cluster), &clock);
        let store = common::connect(options);
        InOneSlot { store, clock }
    }
}

impl Fixture for InOneSlot {
    type Store = RedisStore;

    fn store(&self) -> &RedisStore {
        &self.store
    }

    fn set_time(&self, now: Time) {
        self.clock.set(now);
    }
}

/// Like [`InOneSlot`], with keys in four cluster slots.
struct AcrossSlots {
    store: Spread,
    clock: ManualClock,
    range: Range,
}

impl AcrossSlots {
    fn new(cluster: &Cluster, range: Range) -> AcrossSlots {
        let InOneSlot { store, clock } = InOneSlot::new(cluster);
        AcrossSlots {
            store: Spread(store),
            clock,
            range,
        }
    }
}

impl Fixture for AcrossSlots {
    type Store = Spread;

    fn store(&self) -> &Spread {
        &self.store
    }

    fn set_time(&self, now: Time) {
        self.clock.set(now);
    }

    fn range(&self) -> Range {
        self.range
    }
}

/// A store that gives each charge one of four tags, by its key. The suite expects atomic answers, so this
/// store reports its answers as atomic.
struct Spread(RedisStore);

impl Spread {
    fn spread<'c>(charges: &[Charge<'c>]) -> Vec<Charge<'c>> {
        let charges = charges.iter();
        charges
            .map(|it| Charge {
                tag: Spread::tag(it.key),
                ..*it
            })
            .collect()
    }

    fn tag(key: Key) -> Tag {
        Tag::new((key.bits() & 3) as u32)
    }

    /// Returns a record with the original tags of its charges.
    fn gathered(mut record: Arc<HoldRecord>) -> Arc<HoldRecord> {
        for held in &mut Arc::make_mut(&mut record).charges {
            held.tag = Tag::default();
        }
        record
    }

    fn seen(applied: Result<Applied, StoreError>) -> Result<Applied, StoreError> {
        applied.map(|it| Applied {
            guarantee: Guarantee::Atomic,
            ..it
        })
    }
}

impl Store for Spread {
    fn hold<'a>(
        &'a self,
        charges: &'a [Charge<'a>],
        units: u64,
        new: &'a NewHold<'a>,
    ) -> Reply<'a, Held> {
        Answer::later(async move {
            let held = self.0.hold(&Spread::spread(charges), units, new).await?;
            let atomic = |mut applied: Applied| {
                applied.guarantee = Guarantee::Atomic;
                applied
            };
            Ok(match held {
                Held::Taken { applied, record } => Held::Taken {
                    applied: atomic(applied),
                    record: Spread::gathered(record),
                },
                Held::Denied { applied, ahead } => Held::Denied {
                    applied: atomic(applied),
                    ahead,
                },
                Held::Repeated(record) => Held::Repeated(Spread::gathered(record)),
                Held::Conflict(record) => Held::Conflict(Spread::gathered(record)),
                Held::TooMany => Held::TooMany,
            })
        })
    }

    fn settle<'a>(&'a self, id: HoldId, how: Settle) -> Reply<'a, Settled> {
        Answer::later(async move {
            Ok(match self.0.settle(id, how).await? {
                Settled::Done(record) => Settled::Done(Spread::gathered(record)),
                Settled::Already(record) => Settled::Already(Spread::gathered(record)),
                Settled::NotYet(record) => Settled::NotYet(Spread::gathered(record)),
                Settled::Unrestored(record) => Settled::Unrestored(Spread::gathered(record)),
                other => other,
            })
        })
    }

    fn extend<'a>(&'a self, id: HoldId, ttl: Span, token: Option<Token>) -> Reply<'a, Extended> {
        Answer::later(async move {
            Ok(match self.0.extend(id, ttl, token).await? {
                Extended::Done(record) => Extended::Done(Spread::gathered(record)),
                Extended::Ended(record) => Extended::Ended(Spread::gathered(record)),
                Extended::Lapsed(record) => Extended::Lapsed(Spread::gathered(record)),
                other => other,
            })
        })
    }

    fn find_hold<'a>(&'a self, id: HoldId) -> Reply<'a, Option<Arc<HoldRecord>>> {
        Answer::later(async move {
            let found = self.0.find_hold(id).await?;
            Ok(found.map(Spread::gathered))
        })
    }

    fn put_hold<'a>(&'a self, record: &'a HoldRecord) -> Reply<'a, bool> {
        Answer::later(async move {
            let mut record = record.clone();
            for held in &mut record.charges {
                held.tag = Spread::tag(held.key);
            }
            self.0.put_hold(&record).await
        })
    }

    fn due_holds<'a>(&'a self, most: usize) -> Reply<'a, Vec<HoldId>> {
        Answer::later(async move { self.0.due_holds(most).await })
    }

    fn holders<'a>(&'a self, charge: &'a Charge<'a>, most: usize) -> Reply<'a, Vec<Holder>> {
        Answer::later(async move { self.0.holders(&Spread::spread(&[*charge])[0], most).await })
    }

    fn apply<'a>(&'a self, charges: &'a [Charge<'a>], ask: Ask) -> Reply<'a, Applied> {
        Answer::later(
            async move { Spread::seen(self.0.apply(&Spread::spread(charges), ask).await) },
        )
    }

    fn peek<'a>(&'a self, charges: &'a [Charge<'a>], ask: Ask) -> Reply<'a, Applied> {
        Answer::later(async move { Spread::seen(self.0.peek(&Spread::spread(charges), ask).await) })
    }

    fn refund<'a>(
        &'a self,
        charges: &'a [Charge<'a>],
        units: u64,
        charged_at: Time,
    ) -> Reply<'a, Applied> {
        Answer::later(async move {
            let charges = Spread::spread(charges);
            Spread::seen(self.0.refund(&charges, units, charged_at).await)
        })
    }

    fn reset<'a>(&'a self, charges: &'a [Charge<'a>]) -> Reply<'a, ()> {
        Answer::later(async move { self.0.reset(&Spread::spread(charges)).await })
    }

    fn restore<'a>(&'a self, charges: &'a [Charge<'a>], to: &'a [Balance]) -> Reply<'a, ()> {
        Answer::later(async move { self.0.restore(&Spread::spread(charges), to).await })
    }

    fn adjust<'a>(
        &'a self,
        charge: &'a Charge<'a>,
        used: i64,
        extra: i64,
    ) -> Reply<'a, Option<Balance>> {
        Answer::later(async move {
            let charge = Spread::spread(&[*charge])[0];
            self.0.adjust(&charge, used, extra).await
        })
    }

    fn balance<'a>(&'a self, charge: &'a Charge<'a>) -> Reply<'a, Option<Balance>> {
        Answer::later(async move { self.0.balance(&Spread::spread(&[*charge])[0]).await })
    }

    fn report<'a>(
        &'a self,
        charge: &'a Charge<'a>,
        units: u64,
    ) -> Reply<'a, Option<AllowanceLevel>> {
        Answer::later(async move {
            let charge = Spread::spread(&[*charge])[0];
            self.0.report(&charge, units).await
        })
    }

    fn usage<'a>(&'a self) -> Reply<'a, Usage> {
        Answer::later(async move { self.0.usage().await })
    }
}
