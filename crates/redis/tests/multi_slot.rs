//! Requests with keys in several cluster slots. Charges in one slot are refunded once if another slot
//! denies. A process that dies in between leaves at most the charges of one request.
//!
//! A cluster takes seconds to start, so all cases share one, each with its own store.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinHandle;
use tollgate_conformance::{Kind, key};
use tollgate_core::backoff::Schedule;
use tollgate_core::{Algorithm, Charge, Enforcement, Limit, OnDenied, Span, Tag, Time};
use tollgate_redis::{ClockSource, Options, RedisStore, Servers};
use tollgate_rig::{Cluster, Redis, wait};
use tollgate_store::{Applied, Ask, Clock, Guarantee, Store, StoreError};

use common::{LIMIT, LONG, RUNTIME, block_on, charge};

#[test]
fn requests_across_slots_are_charged_whole_or_refunded() {
    let cluster = common::cluster_that_bears_pauses();
    let situations: [fn(&Cluster); 11] = [
        an_answer_has_its_guarantee,
        a_denial_refunds_earlier_charges,
        a_bucket_refills_while_another_slot_denies,
        a_shadow_that_took_nothing_is_not_refunded,
        a_candidate_replaces_a_rule_in_its_own_slot,
        a_back_off_watches_its_own_slot,
        a_repeated_refund_counts_once,
        a_refund_that_may_be_a_repetition_is_not_made,
        a_lost_answer_costs_at_most_one_request,
        a_caller_that_stops_waiting_changes_nothing,
        a_process_that_dies_leaves_at_most_one_request,
    ];
    for situation in situations {
        situation(&cluster);
        for node in cluster.nodes() {
            common::every_key_expires(node);
        }
    }
}

/// Two masters, a tag on each, and a store.
struct Slots<'c> {
    first: &'c Redis,
    second: &'c Redis,
    tags: [Tag; 2],
    options: Options,
    store: RedisStore,
}

/// The limits in the first and the second slot. A request goes to the smaller one first.
const CAPACITIES: [u64; 2] = [10, 20];

impl<'c> Slots<'c> {
    fn new(cluster: &'c Cluster, timeout: Duration) -> Slots<'c> {
        let mut options = common::cluster_options(cluster);
        options.timeout = timeout;
        // Connects first, so that requests to a paused server are sent and do not wait for a connection.
        options.max_connections = 1;
        let nodes = [0, 1];
        let [first, second] = nodes.map(|node| &cluster.nodes()[node]);
        Slots {
            first,
            second,
            tags: nodes.map(|node| tag_on(cluster, node)),
            store: common::connect(options.clone()),
            options,
        }
    }

    /// Like [`Slots::new`], with a clock that advances by `step` at every call.
    fn stepping(cluster: &'c Cluster, step: Span) -> Slots<'c> {
        let mut slots = Slots::new(cluster, PATIENCE);
        let micros = AtomicU64::new(1_700_000_000_000_000);
        slots.options.clock = ClockSource::Caller(Arc::new(Stepping { step, micros }));
        slots.store = common::connect(slots.options.clone());
        slots
    }

    fn charges<'l>(&self, limits: &'l [Limit; 2]) -> [Charge<'l>; 2] {
        charges(self.tags, limits)
    }

    fn apply(&self, charges: &[Charge<'_>], units: u64) -> Applied {
        block_on(self.store.apply(charges, Ask::Exactly(units))).unwrap()
    }

    /// Returns what is left in both slots.
    fn left(&self, charges: &[Charge<'_>; 2]) -> [u64; 2] {
        charges.map(|charge| {
            let peeked = block_on(self.store.peek(&[charge], Ask::Exactly(0)));
            peeked.unwrap().outcomes[0].remaining
        })
    }

    /// Charges one unit in both slots, on a separate task.
    fn start(&self, limits: &[Limit; 2]) -> JoinHandle<Result<Applied, StoreError>> {
        RUNTIME.spawn(ask(self.store.clone(), self.tags, limits.clone()))
    }
}

/// Returns a limit of this kind for each slot. Most cases use a kind that counts whole units.
fn limits(kind: Kind) -> [Limit; 2] {
    CAPACITIES.map(|capacity| kind.limit(capacity, LONG))
}

/// Returns a tag whose cluster slot `node` has.
fn tag_on(cluster: &Cluster, node: usize) -> Tag {
    let slot = |tag: &u32| cluster.slot_of(&format!("{{{tag:08x}}}"));
    let tag = (0..).find(|tag| cluster.master_of_slot(slot(tag)) == node);
    Tag::new(tag.unwrap())
}

/// Returns how many scripts a server has run.
fn calls(redis: &Redis) -> u64 {
    let stats = redis.info("commandstats");
    let calls = |command: &str| {
        let text = stats.get(&format!("cmdstat_{command}"))?;
        text.strip_prefix("calls=")?.split(',').next()?.parse().ok()
    };
    calls("evalsha").unwrap_or(0) + calls("eval").unwrap_or(0)
}

const PATIENCE: Duration = Duration::from_secs(10);
const IMPATIENCE: Duration = Duration::from_millis(300);

fn an_answer_has_its_guarantee(cluster: &Cluster) {
    let slots = Slots::new(cluster, PATIENCE);
    let limits = limits(Kind::FixedWindow);
    let charges = slots.charges(&limits);
    let beside = Charge {
        key: key(2),
        ..charges[0]
    };
    for (units, allowed) in [(1, true), (100, false)] {
        let across = slots.apply(&charges, units);
        assert_eq!(
            (across.guarantee, across.allowed),
            (Guarantee::Compensated, allowed)
        );
        let within = slots.apply(&[charges[0], beside], units);
        assert_eq!(
            (within.guarantee, within.allowed),
            (Guarantee::Atomic, allowed)
        );
    }
    // An unlimited charge is in no slot.
    let unlimited = Limit::unlimited(Algorithm::Gcra);
    let nowhere = Charge {
        limit: &unlimited,
        ..charges[1]
    };
    let applied = slots.apply(&[charges[0], nowhere], 1);
    assert_eq!(applied.guarantee, Guarantee::Atomic);
}

fn a_denial_refunds_earlier_charges(cluster: &Cluster) {
    for kind in Kind::ALL {
        let slots = Slots::new(cluster, PATIENCE);
        let limits = limits(kind);
        let charges = slots.charges(&limits);
        assert!(slots.apply(&charges[1..], 20).allowed);
        for used in [0, 4] {
            slots.apply(&charges[..1], used);
            let asked = calls(slots.first);
            for _ in 0..3 {
                let denied = slots.apply(&charges, 2);
                assert!(!denied.allowed, "{kind:?}");
                let remaining = [0, 1].map(|i| denied.outcomes[i].remaining);
                assert_eq!(remaining, [10 - used, 0], "{kind:?}");
                assert!(denied.outcomes[0].is_allowed() && !denied.outcomes[1].is_allowed());
            }
            assert!(
                calls(slots.first) >= asked + 6,
                "the first cluster slot was asked nothing first"
            );
            assert_eq!(slots.left(&charges), [10 - used, 0], "{kind:?}");
        }
        // The remaining units can really be charged.
        assert!(slots.apply(&charges[..1], 6).allowed, "{kind:?}");
        assert!(!slots.apply(&charges[..1], 1).allowed, "{kind:?}");
    }
}

/// A clock that advances by a step when it is read. A call reads it once.
struct Stepping {
    step: Span,
    micros: AtomicU64,
}

impl Clock for Stepping {
    fn now(&self) -> Time {
        let step = self.step.as_micros();
        Time::from_micros(self.micros.fetch_add(step, Ordering::Relaxed))
    }
}

fn a_bucket_refills_while_another_slot_denies(cluster: &Cluster) {
    for kind in [Kind::TokenBucket, Kind::Gcra, Kind::LeakyPolice] {
        let step = Span::from_millis(10);
        let slots = Slots::stepping(cluster, step);
        // One unit refills at every call.
        let bucket = kind.limit(1_000, Span::from_secs(10));
        let limits = [bucket, Kind::FixedWindow.limit(2_000, LONG)];
        let charges = slots.charges(&limits);
        assert!(slots.apply(&charges[1..], 2_000).allowed);
        let start = slots.apply(&charges[..1], 900).now;
        for _ in 0..50 {
            assert!(!slots.apply(&charges, 1).allowed);
        }
        let peeked = block_on(slots.store.peek(&charges[..1], Ask::Exactly(0))).unwrap();
        let back = peeked.now.since(start).as_micros() / step.as_micros();
        assert!(back > 100, "the first cluster slot was asked nothing");
        assert_eq!(peeked.outcomes[0].remaining, 100 + back, "{kind:?}");
    }
}

fn a_refund_that_may_be_a_repetition_is_not_made(cluster: &Cluster) {
    // Refunds are remembered for a minute, and this refund comes more than a minute after its charge.
    let slots = Slots::stepping(cluster, Span::from_secs(31));
    let limits = limits(Kind::FixedWindow);
    let charges = slots.charges(&limits);
    assert!(slots.apply(&charges[1..], 20).allowed);
    assert!(!slots.apply(&charges, 1).allowed);
    assert_eq!(slots.left(&charges), [9, 0]);
}

fn a_shadow_that_took_nothing_is_not_refunded(cluster: &Cluster) {
    let slots = Slots::new(cluster, PATIENCE);
    let limits = limits(Kind::FixedWindow);
    let [enforcing, spent] = slots.charges(&limits);
    let full = Charge {
        key: key(2),
        ..enforcing
    };
    let shadow = Charge {
        enforcement: Enforcement::Shadow,
        ..full
    };
    assert!(slots.apply(&[spent], 20).allowed && slots.apply(&[full], 10).allowed);
    assert!(!slots.apply(&[shadow, enforcing, spent], 3).allowed);
    assert_eq!(slots.left(&[shadow, enforcing]), [0, 10]);
}

fn a_candidate_replaces_a_rule_in_its_own_slot(cluster: &Cluster) {
    for spent in [0, 20] {
        let slots = Slots::new(cluster, PATIENCE);
        let limits = limits(Kind::FixedWindow);
        let [current, other] = slots.charges(&limits);
        let beside = |tag, place| Charge {
            key: key(2),
            tag,
            enforcement: Enforcement::Instead(place),
            ..current
        };
        let (candidate, apart) = (beside(current.tag, 0), beside(other.tag, 0));
        assert!(slots.apply(&[current], 10).allowed && slots.apply(&[other], spent).allowed);
        // The slot with `current` and its candidate is asked first. The other slot denies only after that.
        assert!(!slots.apply(&[current, other, candidate], 3).allowed);
        let taken = if spent == 0 { 3 } else { 0 };
        assert_eq!(slots.left(&[candidate, other]), [10 - taken, 20 - spent]);
        // If the candidate is in another slot than `current`, it is a shadow.
        assert!(!slots.apply(&[current, other, apart], 3).allowed);
        assert_eq!(slots.left(&[apart, other]), [10, 20 - spent]);
    }
}

fn a_back_off_watches_its_own_slot(cluster: &Cluster) {
    let schedule = Schedule {
        after: 1,
        base: LONG,
        factor: 1,
        max: LONG,
        forget: LONG,
        penalty: Span::ZERO,
    };
    let (limits, blocks) = (limits(Kind::FixedWindow), Limit::backoff(schedule).unwrap());
    // The watched charge is in the first or in the second slot, and the other slot denies or not.
    for (watched, others_refuse) in [(0, false), (0, true), (1, false), (1, true)] {
        let slots = Slots::new(cluster, PATIENCE);
        let charges = slots.charges(&limits);
        let watching = |tag| Charge {
            key: key(2),
            tag,
            limit: &blocks,
            on_denied: OnDenied::Strike(watched),
            ..charges[0]
        };
        let [own, other] = [watched, 1 - watched].map(usize::from);
        let (beside, apart) = (watching(slots.tags[own]), watching(slots.tags[other]));
        if others_refuse {
            assert!(
                slots
                    .apply(&charges[other..=other], CAPACITIES[other])
                    .allowed
            );
        } else {
            assert!(slots.apply(&[charges[0], charges[1], beside], 1).allowed);
        }
        let free = |charge| slots.left(&[charge, charge])[0];
        let ask = |companion, units| slots.apply(&[charges[0], charges[1], companion], units);
        if others_refuse {
            assert!(!ask(beside, 1).allowed);
            assert_eq!(free(beside), 1, "a denial in another slot is not a strike");
        }
        assert!(slots.apply(&charges[own..=own], free(charges[own])).allowed);
        let before = slots.left(&charges);
        // A back-off in another slot than its watched charge counts nothing.
        assert!(!ask(apart, 1).allowed);
        assert_eq!(free(apart), 1);
        for blocked in [false, true, true] {
            let applied = ask(beside, 1);
            assert!(!applied.allowed);
            assert_eq!(applied.outcomes[2].is_allowed(), !blocked, "{applied:?}");
        }
        assert_eq!(slots.left(&charges), before, "a denial takes nothing");
    }
}

fn a_repeated_refund_counts_once(cluster: &Cluster) {
    let slots = Slots::new(cluster, IMPATIENCE);
    let limits = limits(Kind::FixedWindow);
    let charges = slots.charges(&limits);
    assert!(slots.apply(&charges[..1], 4).allowed && slots.apply(&charges[1..], 20).allowed);
    // The first slot has charged, the second is about to deny, and the first server stops answering.
    slots.second.pause();
    let asked = calls(slots.first);
    let request = slots.start(&limits);
    wait::until("the first slot has charged", LIMIT, || {
        calls(slots.first) > asked
    });
    slots.first.pause();
    slots.second.resume();
    assert!(!block_on(request).unwrap().unwrap().allowed);
    wait::until("a refund was lost", LIMIT, || {
        common::errors(&slots.store, "timeout") == 1
    });
    // Now both the refund that seemed lost and its repetition arrive.
    slots.first.resume();
    wait::until("two refunds", LIMIT, || calls(slots.first) >= asked + 3);
    assert_eq!(slots.left(&charges), [6, 0]);
}

fn a_lost_answer_costs_at_most_one_request(cluster: &Cluster) {
    let slots = Slots::new(cluster, IMPATIENCE);
    let limits = limits(Kind::FixedWindow);
    let charges = slots.charges(&limits);
    assert!(slots.apply(&charges, 4).allowed);
    slots.second.pause();
    let lost = block_on(slots.start(&limits)).unwrap();
    assert_eq!(lost, Err(StoreError::Timeout));
    slots.second.resume();
    wait::until("a refund", LIMIT, || slots.left(&charges)[0] == 6);
    let [first, second] = slots.left(&charges);
    assert!(
        first == 6 && (15..=16).contains(&second),
        "{first} and {second}"
    );
}

fn a_caller_that_stops_waiting_changes_nothing(cluster: &Cluster) {
    let slots = Slots::new(cluster, PATIENCE);
    let limits = limits(Kind::FixedWindow);
    let charges = slots.charges(&limits);
    assert!(slots.apply(&charges, 4).allowed);
    for spent in [false, true] {
        let before = slots.left(&charges);
        slots.second.pause();
        let asked = calls(slots.first);
        let request = slots.start(&limits);
        wait::until("the first slot has charged", LIMIT, || {
            calls(slots.first) > asked
        });
        request.abort();
        assert!(block_on(request).unwrap_err().is_cancelled());
        slots.second.resume();
        // The unit was charged in both slots, or refunded.
        let taken = u64::from(!spent);
        let after = before.map(|left| left - taken);
        wait::until("the end of the request", LIMIT, || {
            slots.store.in_flight() == 0
        });
        wait::until("the end of the request", LIMIT, || {
            slots.left(&charges) == after
        });
        assert!(slots.apply(&charges[1..], before[1] - taken).allowed);
    }
}

fn a_process_that_dies_leaves_at_most_one_request(cluster: &Cluster) {
    let slots = Slots::new(cluster, PATIENCE);
    let limits = limits(Kind::FixedWindow);
    let charges = slots.charges(&limits);
    assert!(slots.apply(&charges, 4).allowed);
    let nodes: Vec<String> = cluster.nodes().iter().map(Redis::address).collect();
    let tags = slots.tags.map(|tag| tag.number().to_string());
    let arguments = [
        &slots.options.key_prefix,
        &tags[0],
        &tags[1],
        &nodes.join(" "),
    ];
    let arguments = arguments.map(String::as_str).join(" ");
    let mut process = common::process("a_process_that_asks_across_slots", &arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let said = BufReader::new(process.stdout.take().unwrap());
    assert!(said.lines().any(|line| line.unwrap() == READY));
    slots.second.pause();
    let asked = calls(slots.first);
    writeln!(process.stdin.take().unwrap()).unwrap();
    wait::until("the first slot has charged", LIMIT, || {
        calls(slots.first) > asked
    });
    process.kill().unwrap();
    process.wait().unwrap();
    slots.second.resume();
    let [first, second] = slots.left(&charges);
    assert!(
        first == 5 && (15..=16).contains(&second),
        "{first} and {second}"
    );
}

const READY: &str = "ready";

#[test]
fn a_process_that_asks_across_slots() {
    let Some(arguments) = common::argument() else {
        return;
    };
    let mut words = arguments.split(' ');
    let prefix = words.next().unwrap();
    let tags = [(); 2].map(|()| Tag::new(words.next().unwrap().parse().unwrap()));
    let nodes = words.map(common::parse).collect();
    let mut options = common::patient(Options::new(Servers::Cluster(nodes)));
    options.key_prefix = prefix.to_owned();
    let store = common::connect(options);
    println!("\n{READY}");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    let asking = ask(store, tags, limits(Kind::FixedWindow));
    block_on(asking).unwrap();
}

/// Charges one unit in both slots.
async fn ask(store: RedisStore, tags: [Tag; 2], limits: [Limit; 2]) -> Result<Applied, StoreError> {
    let charges = charges(tags, &limits);
    store.apply(&charges, Ask::Exactly(1)).await
}

/// Returns a charge in each slot.
fn charges(tags: [Tag; 2], limits: &[Limit; 2]) -> [Charge<'_>; 2] {
    [0, 1].map(|i| Charge {
        tag: tags[i],
        ..charge(1, &limits[i])
    })
}
