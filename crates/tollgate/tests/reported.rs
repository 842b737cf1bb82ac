//! Async mode: which requests ask the store, what is reported, and what becomes of it.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;
#[path = "common/late.rs"]
mod late;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use common::{Flaky, START, config};
use late::{Late, pause};
use tollgate::{
    Applied, Ask, Attributes, CarryOver, Charge, Decision, Engine, Guarantee, Key, Limit, Limiter,
    ManualClock, MemoryStore, Mode, OnDenied, Override, Prepaid, Rate, Reported, Span, Store,
    StoreError,
};
use tollgate_conformance::{block_on, seed};
use tollgate_core::{Anchor, Calendar, Unit, Zone};
use tollgate_core::{HoldId, Tag, Token};
use tollgate_rig::Redis;
use tollgate_store::{Held, NewHold, Purpose};

const FLUSH: Span = Span::from_millis(500);
const ASYNC: Mode = Mode::Async { flush: FLUSH };

/// The instances of a fleet on one store, with one clock.
struct Fleet {
    instances: Vec<Reported<Flaky>>,
    store: Flaky,
    clock: ManualClock,
}

impl Fleet {
    fn of(instances: usize) -> Fleet {
        let clock = ManualClock::at(START);
        let store = Flaky {
            store: Arc::new(MemoryStore::with_clock(10_000, clock.clone())),
            down: Arc::default(),
            asked: Arc::default(),
        };
        let new = |_| Reported::new(store.clone(), Arc::new(clock.clone()));
        Fleet {
            instances: (0..instances).map(new).collect(),
            store,
            clock,
        }
    }

    fn try_ask(&self, index: usize, charges: &[Charge<'_>]) -> Result<Applied, StoreError> {
        block_on(
            self.instances[index]
                .apply(charges, Ask::Exactly(1))
                .into_future(),
        )
    }

    fn ask(&self, index: usize, charges: &[Charge<'_>]) -> Applied {
        self.try_ask(index, charges).unwrap()
    }

    /// Asks until an instance decides the charge by itself: twice.
    fn join(&self, index: usize, charge: Charge<'_>) {
        for _ in 0..2 {
            self.ask(index, &[charge]);
        }
        assert!(self.instances[index].reported_usage().keys > 0);
    }

    fn calls(&self) -> usize {
        self.store.asked.load(Ordering::Relaxed)
    }

    fn report_all(&self) {
        for instance in &self.instances {
            block_on(instance.close());
        }
    }

    /// Returns the level in the store.
    fn left(&self, charge: Charge<'_>) -> i64 {
        self.store.store.report(&charge, 0).unwrap().left
    }
}

fn window(limit: u64) -> Limit {
    Limit::fixed_window(limit, Span::HOUR).unwrap()
}

fn charge(key: u128, limit: &Limit) -> Charge<'_> {
    Charge {
        mode: ASYNC,
        ..Charge::new(Key::from_bits(key << 96 | key), limit)
    }
}

#[test]
fn a_busy_key_is_decided_here_and_reported_once_a_flush() {
    let (it, limit) = (Fleet::of(1), window(1000));
    let one = charge(1, &limit);
    it.join(0, one);
    let before = it.calls();
    for _ in 0..490 {
        assert!(it.ask(0, &[one]).allowed);
        it.clock.advance(Span::from_millis(1));
        it.instances[0].report_due();
    }
    assert_eq!(it.calls() - before, 1);
    it.report_all();
    assert_eq!(it.left(one), 1000 - 492);
    let usage = it.instances[0].reported_usage();
    assert_eq!((usage.decided, usage.asked), (490, 2));
    assert_eq!((usage.reported_units, usage.overdrawn_units), (490, 0));
    assert_eq!(usage.pending_units, 0);
}

#[test]
fn a_key_that_is_seldom_asked_for_is_decided_by_the_store() {
    let (it, limit) = (Fleet::of(1), window(1000));
    for request in 1..10 {
        it.ask(0, &[charge(1, &limit)]);
        assert_eq!(it.calls(), request);
        it.clock.advance(Span::SECOND);
        it.instances[0].sweep();
    }
    assert_eq!(it.instances[0].reported_usage().keys, 0);
}

#[test]
fn an_instance_denies_until_the_use_of_the_others_is_repaid() {
    let limit = Limit::gcra(Rate::new(100, Span::SECOND).unwrap(), 50).unwrap();
    let (it, one) = (Fleet::of(3), charge(1, &limit));
    for index in 0..3 {
        it.join(index, one);
    }
    let admitted = (0..3).map(|index| {
        let asked = (0..60).map(|_| u64::from(it.ask(index, &[one]).allowed));
        asked.sum::<u64>()
    });
    // The level at which each has joined: 48, 46, 44.
    assert_eq!(admitted.sum::<u64>(), 48 + 46 + 44);
    it.report_all();
    assert_eq!(it.left(one), 44 - 48 - 46 - 44);
    let excess = it
        .instances
        .iter()
        .map(|it| it.reported_usage().overdrawn_units);
    assert_eq!(excess.sum::<u64>(), 94);
    // Each instance has read the others' use with its last report. The level is back at 0 after 940 ms.
    for _ in 0..2 {
        for index in 0..3 {
            assert!(!it.ask(index, &[one]).allowed);
        }
        it.report_all();
        it.clock.advance(Span::from_millis(460));
    }
    it.clock.advance(Span::from_millis(30));
    assert!(it.ask(0, &[one]).allowed);
}

#[test]
fn a_level_that_was_read_too_long_ago_decides_nothing() {
    let (it, limit) = (Fleet::of(1), window(1000));
    let one = charge(1, &limit);
    it.join(0, one);
    let before = it.calls();
    it.clock.advance(Span::from_millis(999));
    it.ask(0, &[one]);
    assert_eq!(it.calls(), before);
    it.clock.advance(Span::from_millis(1));
    it.ask(0, &[one]);
    assert!(it.calls() > before);
}

#[test]
fn the_store_may_fail_for_two_flushes_and_nothing_is_counted_twice() {
    let (it, limit) = (Fleet::of(1), window(1000));
    let one = charge(1, &limit);
    it.join(0, one);
    it.store.down.store(true, Ordering::Relaxed);
    for _ in 0..10 {
        assert!(it.ask(0, &[one]).allowed);
        it.clock.advance(Span::from_millis(60));
        it.instances[0].report_due();
    }
    it.clock.advance(Span::from_millis(500));
    assert_eq!(it.try_ask(0, &[one]), Err(StoreError::Timeout));
    it.store.down.store(false, Ordering::Relaxed);
    it.report_all();
    // A report without an answer is not repeated: the store may have counted it.
    let usage = it.instances[0].reported_usage();
    assert!(usage.unconfirmed_units > 0, "{usage:?}");
    let known = usage.reported_units + usage.unconfirmed_units;
    assert_eq!(known, 10);
    assert_eq!(
        it.left(one),
        1000 - 2 - i64::try_from(usage.reported_units).unwrap()
    );
}

#[test]
fn an_exact_charge_beside_an_async_one_takes_the_units_back_if_it_denies() {
    let (it, limit, small) = (Fleet::of(1), window(1000), window(3));
    let exact = Charge::new(Key::from_bits(9), &small);
    let both = [charge(1, &limit), exact];
    for _ in 0..3 {
        assert!(it.ask(0, &both).allowed);
    }
    let denied = it.ask(0, &both);
    assert_eq!(
        (denied.allowed, denied.guarantee),
        (false, Guarantee::Compensated)
    );
    assert_eq!(denied.outcomes[0].remaining, 997);
    it.report_all();
    assert_eq!((it.left(both[0]), it.left(exact)), (997, 0));
    // If the local copy denies, the store is not asked.
    let none = window(1);
    let both = [charge(2, &none), Charge::new(Key::from_bits(8), &limit)];
    it.ask(0, &both);
    it.ask(0, &both);
    let before = it.calls();
    let denied = it.ask(0, &both);
    assert_eq!((denied.allowed, it.calls()), (false, before));
    assert!(!denied.outcomes[1].is_decided());
    assert_eq!(it.left(both[1]), 999);
}

#[test]
fn a_charge_that_counts_denials_is_exact() {
    let (it, limit) = (Fleet::of(1), window(5));
    let one = Charge {
        on_denied: OnDenied::Charge,
        ..charge(1, &limit)
    };
    for request in 1..20 {
        it.ask(0, &[one]);
        assert_eq!(it.calls(), request);
    }
}

#[test]
fn a_refund_gives_back_what_is_reported_and_what_is_not() {
    let (it, limit) = (Fleet::of(1), window(1000));
    let one = charge(1, &limit);
    it.join(0, one);
    let reported = it.ask(0, &[one]);
    it.clock.advance(Span::from_millis(10));
    it.report_all();
    it.clock.advance(Span::from_millis(10));
    let pending = it.ask(0, &[one]);
    for applied in [reported, pending] {
        let charges = [one];
        let refunded = it.instances[0].refund(&charges, 1, applied.now);
        block_on(refunded.into_future()).unwrap();
    }
    it.report_all();
    assert_eq!(it.left(one), 998);
    assert_eq!(it.ask(0, &[one]).outcomes[0].remaining, 997);
}

#[test]
fn a_reset_forgets_what_was_not_reported() {
    let (it, limit) = (Fleet::of(1), window(10));
    let one = charge(1, &limit);
    it.join(0, one);
    for _ in 0..8 {
        it.ask(0, &[one]);
    }
    assert!(!it.ask(0, &[one]).allowed);
    block_on(it.instances[0].reset(&[one]).into_future()).unwrap();
    it.report_all();
    assert_eq!(it.left(one), 10);
    assert!(it.ask(0, &[one]).allowed);
}

#[test]
fn other_numbers_are_decided_by_the_store_until_its_level_was_read() {
    let (it, limit, other) = (Fleet::of(1), window(1000), window(2000));
    it.join(0, charge(1, &limit));
    for _ in 0..5 {
        it.ask(0, &[charge(1, &limit)]);
    }
    for _ in 0..5 {
        it.ask(0, &[charge(1, &other)]);
        it.clock.advance(Span::from_millis(200));
        it.instances[0].report_due();
    }
    it.report_all();
    assert_eq!(it.left(charge(1, &other)), 2000 - 12);
    assert!(it.instances[0].reported_usage().decided > 5);
}

const HOURLY: &str = "
  - { id: api, per: [user], algorithm: fixed-window, limit: 100000, window: 1h, mode: leased }
";

fn check(limiter: &Limiter<Arc<dyn Store>>) -> Decision {
    block_on(limiter.check(&Attributes::from([("user", "ann")])))
}

/// The mode changes a thousand times while requests come. No unit is lost or counted twice.
#[test]
fn switching_between_all_modes_keeps_every_count() {
    let fleet = Fleet::of(0);
    let clock: Arc<ManualClock> = Arc::new(fleet.clock.clone());
    let prepaid = Prepaid::new(fleet.store.clone(), clock.clone(), 1);
    let reported = Arc::new(Reported::new(prepaid, clock));
    let limiter = Limiter::builder(&config(HOURLY), Arc::clone(&reported) as Arc<dyn Store>)
        .clock(fleet.clock.clone())
        .build();
    let modes = ["exact", "async", "leased"].map(|mode| {
        let text =
            format!(r#"{{ "rule": "api", "mode": "{mode}", "for": "1h", "reason": "a test" }}"#);
        Arc::new(Override::parse(&text, START.as_micros() / 1000).unwrap())
    });
    let mut random = fastrand::Rng::with_seed(seed(3));
    let mut admitted = 0;
    for _ in 0..1000 {
        let mode = &modes[random.usize(..3)];
        limiter.set_overrides([Arc::clone(mode)].into());
        for _ in 0..9 {
            admitted += u64::from(check(&limiter).is_allowed());
            fleet.clock.advance(Span::from_millis(2));
        }
        reported.sweep();
    }
    assert_eq!(admitted, 9000);
    let (usage, slices) = (reported.reported_usage(), reported.store().prepaid_usage());
    assert!(
        usage.decided > 1000 && usage.unconfirmed_units == 0,
        "{usage:?}"
    );
    assert!(
        slices.covered > 1000 && slices.lost_units == 0,
        "{slices:?}"
    );
    fleet.clock.advance(Span::SECOND);
    reported.sweep();
    limiter.set_overrides([Arc::clone(&modes[0])].into());
    let peeked = block_on(limiter.peek(&Attributes::from([("user", "ann")]), Ask::Exactly(1)));
    let left = peeked.rule().and_then(|rule| rule.remaining());
    assert_eq!(left, Some(100_000 - 9000));
}

/// Returns the rule of this test in a mode, with a limit.
fn hourly(mode: &str, limit: u64) -> String {
    format!(
        "  - {{ id: api, per: [user], algorithm: fixed-window, limit: {limit}, window: 30d, {mode}, on_store_failure: fail-closed }}\n"
    )
}

const MODES: [&str; 3] = [
    "mode: exact",
    "mode: async, flush: 50ms",
    "mode: leased, slice: 50ms",
];

/// The config file changes mode and limit three hundred times while requests come. No unit is lost or counted twice.
#[test]
fn reloads_between_all_modes_keep_every_count() {
    let fleet = Fleet::of(0);
    let clock: Arc<ManualClock> = Arc::new(fleet.clock.clone());
    let prepaid = Prepaid::new(fleet.store.clone(), clock.clone(), 1);
    let reported = Arc::new(Reported::new(prepaid, clock));
    let first = config(&hourly(MODES[0], 100_000));
    let limiter = Limiter::builder(&first, Arc::clone(&reported) as Arc<dyn Store>)
        .clock(fleet.clock.clone())
        .build();
    let mut random = fastrand::Rng::with_seed(seed(5));
    let mut admitted = 0;
    for _ in 0..300 {
        let limit = [100_000, 90_000][random.usize(..2)];
        limiter.reload(&config(&hourly(MODES[random.usize(..3)], limit)));
        for _ in 0..random.usize(1..20) {
            admitted += u64::from(check(&limiter).is_allowed());
            fleet.clock.advance(Span::from_millis(2));
        }
        reported.sweep();
    }
    let (usage, slices) = (reported.reported_usage(), reported.store().prepaid_usage());
    assert!(
        usage.decided > 500 && usage.unconfirmed_units == 0,
        "{usage:?}"
    );
    assert!(slices.covered > 300 && slices.lost_units == 0, "{slices:?}");
    limiter.reload(&first);
    fleet.clock.advance(Span::SECOND);
    reported.sweep();
    let peeked = block_on(limiter.peek(&Attributes::from([("user", "ann")]), Ask::Exactly(1)));
    let left = peeked.rule().and_then(|rule| rule.remaining());
    assert_eq!(left, Some(100_000 - admitted));
}

/// The same with two instances on a real Redis, each with its own reloads.
#[tokio::test(flavor = "multi_thread")]
async fn reloads_of_two_instances_on_redis_keep_every_count() {
    let redis = Redis::start();
    let with = |mode: &str, limit: u64| {
        let text = format!(
            "version: 1\nsubjects: {{ hash_secret: a secret of 16 bytes }}\n\
             store: {{ redis: {{ url: \"{}\", timeout: 10s, replicas: 2 }} }}\nrules:\n{}",
            redis.url(),
            hourly(mode, limit)
        );
        tollgate::parse("rules.yaml", &text, &|_| None).unwrap()
    };
    let first = with(MODES[0], 100_000);
    let start = async || Engine::start(&first).await.unwrap();
    let instances = [start().await, start().await];
    let mut random = fastrand::Rng::with_seed(seed(7));
    let ann = Attributes::from([("user", "ann")]);
    let mut admitted = 0;
    for _ in 0..60 {
        for engine in &instances {
            let limit = [100_000, 90_000][random.usize(..2)];
            engine.reload(&with(MODES[random.usize(..3)], limit));
        }
        for request in 0..80 {
            let engine = &instances[random.usize(..2)];
            admitted += u64::from(engine.check(&ann).await.is_allowed());
            if request % 16 == 0 {
                // Reports and draws get their turn.
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        }
    }
    assert_eq!(admitted, 60 * 80);
    for engine in &instances {
        let (usage, slices) = (engine.reported_usage(), engine.prepaid_usage());
        assert!(usage.decided > 100, "{usage:?}");
        assert!(slices.covered > 100, "{slices:?}");
        engine.reload(&first);
        engine.close().await;
        let (usage, slices) = (engine.reported_usage(), engine.prepaid_usage());
        assert_eq!((usage.unconfirmed_units, slices.lost_units), (0, 0));
    }
    let judge = start().await;
    let peeked = judge.peek(&ann, Ask::Exactly(1)).await;
    let left = peeked.rule().and_then(|rule| rule.remaining());
    assert_eq!(left, Some(100_000 - admitted));
}

/// An instance whose report is on its way, with the answer held back.
struct Reporting {
    instance: Reported<Late>,
    late: Late,
    fleet: Fleet,
}

impl Reporting {
    async fn new(one: Charge<'_>) -> Reporting {
        let fleet = Fleet::of(0);
        let late = Late::new(fleet.store.clone());
        let clock = Arc::new(fleet.clock.clone());
        let it = Reporting {
            instance: Reported::new(late.clone(), clock),
            late,
            fleet,
        };
        for _ in 0..3 {
            it.remaining(&[one]).await;
        }
        pause().await;
        assert_eq!(it.instance.reported_usage().decided, 1);
        it.late.hold_back();
        it.fleet.clock.advance(FLUSH);
        it.instance.report_due();
        pause().await;
        assert_eq!(it.late.waiting(), 1, "a report is on its way");
        it
    }

    async fn remaining(&self, charges: &[Charge<'_>]) -> u64 {
        let applied = self.instance.apply(charges, Ask::Exactly(1)).await;
        applied.unwrap().outcomes[0].remaining
    }
}

#[tokio::test]
async fn a_late_level_does_not_undo_what_the_store_has_taken_since() {
    for limit in [window(1000), Limit::sliding_log(1000, Span::HOUR).unwrap()] {
        let (one, other) = (charge(1, &limit), window(1000));
        let it = Reporting::new(one).await;
        let large = Charge { cost: 500, ..one };
        // The other key is new, so the store decides both.
        assert_eq!(it.remaining(&[large, charge(2, &other)]).await, 497);
        it.late.release().await;
        assert_eq!(it.remaining(&[one]).await, 496, "{limit:?}");
        // The next level is exact again.
        it.fleet.clock.advance(FLUSH);
        it.instance.report_due();
        pause().await;
        assert_eq!(it.remaining(&[one]).await, 495, "{limit:?}");
    }
}

#[tokio::test]
async fn a_late_level_does_not_undo_a_hold() {
    let limit = window(1000);
    let one = charge(1, &limit);
    let it = Reporting::new(one).await;
    let new = NewHold {
        id: HoldId::new(7, Tag::default()),
        ttl: Span::MINUTE,
        purpose: Purpose::Reservation,
        token: Token::NONE,
        owner: "",
        memo: "",
        idempotency_key: None,
        fingerprint: 0,
        wait: None,
        bound: None,
    };
    let held = it.instance.hold(&[one], 500, &new).await.unwrap();
    assert!(matches!(held, Held::Taken { .. }));
    it.late.release().await;
    assert_eq!(it.remaining(&[one]).await, 496);
}

#[tokio::test]
async fn a_level_from_before_a_correction_decides_nothing() {
    let calendar = Calendar::new(1, Unit::Month, Anchor::First, Zone::utc()).unwrap();
    let limit = Limit::quota(1000, 0, 0, calendar).unwrap();
    let one = charge(1, &limit);
    let it = Reporting::new(one).await;
    let adjusting = it.instance.adjust(&one, 500, 0);
    let releasing = async {
        pause().await;
        it.late.release().await;
    };
    let (adjusted, ()) = tokio::join!(adjusting.into_future(), releasing);
    adjusted.unwrap();
    assert_eq!(it.remaining(&[one]).await, 496);
}

#[tokio::test]
async fn a_level_from_before_an_exact_request_decides_nothing() {
    let limit = window(1000);
    let one = charge(1, &limit);
    let it = Reporting::new(one).await;
    let exact = Charge {
        mode: Mode::Exact,
        cost: 500,
        ..one
    };
    it.remaining(&[exact]).await;
    it.late.release().await;
    assert_eq!(it.remaining(&[one]).await, 496);
}

#[tokio::test]
async fn a_close_waits_for_a_report_and_sends_what_is_newer() {
    let limit = window(1000);
    let one = charge(1, &limit);
    let it = Reporting::new(one).await;
    for _ in 0..10 {
        it.remaining(&[one]).await;
    }
    let instance = Arc::new(it.instance);
    let closing = Arc::clone(&instance);
    let closing = tokio::spawn(async move { closing.close().await });
    pause().await;
    assert!(!closing.is_finished());
    while !closing.is_finished() {
        it.late.release().await;
    }
    assert_eq!(it.fleet.left(one), 1000 - 13);
    assert_eq!(instance.reported_usage().pending_units, 0);
}

/// An instance that has not heard of a higher limit reports under the old numbers.
#[test]
fn a_late_report_under_old_numbers_keeps_the_use_under_the_new_ones() {
    for carry_over in [CarryOver::Keep, CarryOver::Reset] {
        let it = Fleet::of(1);
        let [old, new] =
            [90, 900].map(|burst| Limit::gcra(Rate::new(1, Span::HOUR).unwrap(), burst).unwrap());
        let with = |limit| Charge {
            carry_over,
            ..charge(1, limit)
        };
        it.join(0, with(&old));
        for _ in 0..5 {
            it.ask(0, &[with(&old)]);
        }
        let raised = Charge {
            mode: Mode::Exact,
            ..with(&new)
        };
        assert!(it.store.store.apply(&[raised], Ask::Exactly(800)).allowed);
        it.report_all();
        let used = 800 + 5 + i64::from(carry_over == CarryOver::Keep) * 2;
        assert_eq!(it.left(raised), 900 - used, "{carry_over:?}");
    }
}
