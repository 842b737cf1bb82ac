//! Several stores and the local tier, on stores that a test can switch off.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use common::{Flaky, START};
use tollgate::{
    Ask, Attributes, Charge, Decision, Enforcement, Guarantee, Key, Limit, Limiter, ManualClock,
    MemoryStore, OnDenied, Rate, Reason, Reserve, ReserveOutcome, Routed, Span, Store, StoreError,
    StoreId,
};
use tollgate_conformance::{Fixture, block_on, seed};

const ABUSE: StoreId = StoreId::named("abuse");

/// A limiter on a local store and two others.
struct Fleet {
    limiter: Limiter<Arc<dyn Store>>,
    local: Arc<MemoryStore<ManualClock>>,
    default: Flaky,
    abuse: Flaky,
    clock: ManualClock,
}

fn flaky(clock: &ManualClock) -> Flaky {
    Flaky {
        store: Arc::new(MemoryStore::with_clock(10_000, clock.clone())),
        down: Arc::default(),
        asked: Arc::default(),
    }
}

impl Fleet {
    fn new(rules: &str) -> Fleet {
        let text = format!(
            "version: 1\nsubjects: {{ hash_secret: 0123456789abcdef }}\n\
             store: {{ redis: {{ url: redis://h }} }}\nstores: {{ abuse: {{ redis: {{ url: redis://g }} }} }}\n\
             rules:\n{rules}"
        );
        let config = tollgate_config::parse("rules.yaml", &text, &|_| None).unwrap();
        let clock = ManualClock::at(START);
        let local = Arc::new(MemoryStore::with_clock(10_000, clock.clone()));
        let (default, abuse) = (flaky(&clock), flaky(&clock));
        let routed = Routed::new(local.clone(), Arc::new(default.clone()));
        let routed = routed.with(ABUSE, Arc::new(abuse.clone()));
        let limiter = Limiter::builder(&config, Arc::new(routed) as Arc<dyn Store>);
        Fleet {
            limiter: limiter.clock(clock.clone()).build(),
            local,
            default,
            abuse,
            clock,
        }
    }

    fn check(&self) -> Decision {
        block_on(self.limiter.check(&ann()))
    }

    fn remaining(&self, rule: &str) -> u64 {
        let decision = block_on(self.limiter.peek(&ann(), Ask::Exactly(1)));
        let mut rules = decision.rules();
        let rule = rules.find(|it| it.rule().id() == rule).unwrap();
        rule.remaining().unwrap()
    }

    fn calls(&self) -> [usize; 2] {
        [&self.default, &self.abuse].map(|it| it.asked.swap(0, Ordering::Relaxed))
    }
}

fn ann() -> Attributes<'static> {
    Attributes::from([("user", "ann"), ("tenant", "acme")])
}

fn ids(decision: &Decision) -> Vec<&str> {
    decision.rules().map(|it| it.rule().id()).collect()
}

const ALL: &str = "
  - { id: far, per: [user], store: abuse, algorithm: fixed-window, limit: 3, window: 1h, on_store_failure: fail-open }
  - { id: near, per: [user], store: local, algorithm: fixed-window, limit: 5, window: 1h }
  - { id: main, per: [user], algorithm: fixed-window, limit: 4, window: 1h, on_store_failure: fail-closed }
";

#[test]
fn local_denial_makes_no_call_and_allocates_nothing() {
    let fleet = Fleet::new(
        "
  - { id: main, per: [user], algorithm: gcra, rate: 50/s, burst: 100 }
  - { id: near, per: [user], store: local, algorithm: fixed-window, limit: 2, window: 1h }
",
    );
    for _ in 0..2 {
        let decision = fleet.check();
        assert!(decision.is_allowed());
        assert_eq!(decision.guarantee(), Guarantee::Compensated);
    }
    assert_eq!(fleet.calls(), [2, 0]);
    let attributes = ann();
    let mut decision = None;
    let counted = allocation_counter::measure(|| {
        decision = Some(block_on(fleet.limiter.check(&attributes)));
    });
    let decision = decision.unwrap();
    assert!(!decision.is_allowed());
    assert_eq!(decision.reason(), Some(Reason::Exceeded));
    // The other rule was not asked, so the decision does not name it.
    assert_eq!(ids(&decision), ["near"]);
    assert_eq!(decision.guarantee(), Guarantee::Atomic);
    assert_eq!(fleet.calls(), [0, 0]);
    // Only the wake-up of `block_on` allocates.
    let awake = allocation_counter::measure(|| block_on(async {}));
    assert_eq!(counted.count_total, awake.count_total, "{counted:?}");
}

#[test]
fn denial_by_a_later_store_gives_everything_back() {
    let fleet = Fleet::new(ALL);
    let admitted = (0..10).filter(|_| fleet.check().is_allowed()).count();
    assert_eq!(admitted, 3);
    let decision = fleet.check();
    assert_eq!(decision.rule().unwrap().rule().id(), "far");
    assert_eq!(decision.guarantee(), Guarantee::Compensated);
    let left = ["far", "near", "main"].map(|rule| fleet.remaining(rule));
    assert_eq!(left, [0, 2, 1]);
}

#[test]
fn store_that_denies_is_asked_first() {
    let fleet = Fleet::new(ALL);
    for _ in 0..30 {
        fleet.check();
    }
    fleet.calls();
    // After many denials by `abuse`, the default store is not asked any more.
    assert!(!fleet.check().is_allowed());
    assert_eq!(fleet.calls(), [0, 1]);
    // It is still asked after the local store.
    assert_eq!(ids(&fleet.check()), ["far", "near"]);
}

#[test]
fn rules_of_a_failed_store_are_answered_by_their_policies() {
    let fleet = Fleet::new(ALL);
    fleet.abuse.down.store(true, Ordering::Relaxed);
    // `far` fails open. The other rules decide, and are charged once.
    for left in [3, 2, 1, 0] {
        let decision = fleet.check();
        assert!(decision.is_allowed());
        assert_eq!(ids(&decision), ["far", "near", "main"]);
        let of = |id| decision.rules().find(|it| it.rule().id() == id).unwrap();
        assert_eq!(of("main").remaining(), Some(left));
        assert_eq!(of("near").remaining(), Some(left + 1));
        assert_eq!(of("far").fallback().unwrap().name(), "fail-open");
        assert_eq!(of("main").fallback(), None);
    }
    let decision = fleet.check();
    assert_eq!(decision.rule().unwrap().rule().id(), "main");
    let fallbacks: Vec<_> = fleet.limiter.fallbacks().filter(|it| it.1 > 0).collect();
    assert_eq!(fallbacks, [("fail-open", 4)]);
    fleet.abuse.down.store(false, Ordering::Relaxed);
    assert_eq!(fleet.remaining("far"), 3);
    assert_eq!(fleet.remaining("near"), 1);
}

#[test]
fn policy_that_denies_gives_back_what_healthy_stores_took() {
    let fleet = Fleet::new(ALL);
    fleet.default.down.store(true, Ordering::Relaxed);
    for _ in 0..5 {
        let decision = fleet.check();
        assert!(!decision.is_allowed());
        assert_eq!(decision.reason(), Some(Reason::StoreFailed));
        assert_eq!(ids(&decision), ["far", "near", "main"]);
    }
    fleet.default.down.store(false, Ordering::Relaxed);
    let left = ["far", "near", "main"].map(|rule| fleet.remaining(rule));
    assert_eq!(left, [3, 5, 4]);
}

#[test]
fn local_rules_decide_while_all_stores_are_down() {
    let fleet = Fleet::new(
        "
  - { id: near, per: [user], store: local, algorithm: fixed-window, limit: 2, window: 1h }
  - { id: main, per: [user], algorithm: fixed-window, limit: 9, window: 1h, on_store_failure: fail-open }
",
    );
    fleet.default.down.store(true, Ordering::Relaxed);
    let admitted = (0..5).filter(|_| fleet.check().is_allowed()).count();
    assert_eq!(admitted, 2);
}

#[test]
fn batch_over_several_stores_is_all_or_nothing() {
    use tollgate::Demand;
    let fleet = Fleet::new(ALL);
    let of = |units| Demand::take(ann(), units);
    let both = block_on(fleet.limiter.ask_all(&[of(2), of(1)])).unwrap();
    assert!(both.is_allowed());
    let denied = block_on(fleet.limiter.ask_all(&[of(1)])).unwrap();
    assert!(!denied.is_allowed());
    let left = ["far", "near", "main"].map(|rule| fleet.remaining(rule));
    assert_eq!(left, [0, 2, 1]);
}

#[test]
fn as_many_units_as_the_scarcest_store_has_are_granted() {
    let fleet = Fleet::new(ALL);
    let decision = block_on(fleet.limiter.ask(&ann(), Ask::UpTo(100)));
    assert_eq!(decision.granted(), 3);
    let left = ["far", "near", "main"].map(|rule| fleet.remaining(rule));
    assert_eq!(left, [0, 2, 1]);
    let peeked = block_on(fleet.limiter.peek(&ann(), Ask::UpTo(100)));
    assert!(!peeked.is_allowed());
}

#[test]
fn refund_and_reset_reach_every_store() {
    let fleet = Fleet::new(ALL);
    let decision = fleet.check();
    block_on(fleet.limiter.refund(&ann(), 1, decision.decided_at())).unwrap();
    let left = || ["far", "near", "main"].map(|rule| fleet.remaining(rule));
    assert_eq!(left(), [3, 5, 4]);
    fleet.check();
    block_on(fleet.limiter.reset(&ann())).unwrap();
    assert_eq!(left(), [3, 5, 4]);
    fleet.abuse.down.store(true, Ordering::Relaxed);
    assert!(block_on(fleet.limiter.reset(&ann())).is_err());
}

#[test]
fn charged_denials_count_in_every_store() {
    let fleet = Fleet::new(
        "
  - { id: near, per: [user], store: local, algorithm: fixed-window, limit: 2, window: 1h }
  - { id: tries, per: [user], store: abuse, algorithm: fixed-window, limit: 9, window: 1h, charge_denied: true }
  - { id: main, per: [user], algorithm: fixed-window, limit: 9, window: 1h }
",
    );
    for _ in 0..5 {
        fleet.check();
    }
    assert_eq!(fleet.remaining("tries"), 4);
    assert_eq!(fleet.remaining("main"), 7);
}

#[test]
fn back_offs_and_candidates_stay_with_their_rules() {
    let fleet = Fleet::new(
        "
  - { id: near, per: [user], store: local, algorithm: fixed-window, limit: 100, window: 1h }
  - { id: main, per: [user], algorithm: fixed-window, limit: 100, window: 1h }
  - { id: far, per: [user], store: abuse, algorithm: fixed-window, limit: 2, window: 1s, backoff: { base: 30s } }
  - { id: next, candidate_of: far, algorithm: fixed-window, limit: 5, window: 1h }
",
    );
    for _ in 0..2 {
        assert!(fleet.check().is_allowed());
    }
    assert!(!fleet.check().is_allowed());
    fleet.clock.advance(Span::from_secs(2));
    // The window is over, but the back-off blocks.
    assert_eq!(fleet.check().reason(), Some(Reason::BackedOff));
    // The candidate was compared in the store of its rule: it allowed 3 of the requests so far.
    assert_eq!(fleet.abuse.store.usage().keys, 3);
    assert_eq!(fleet.remaining("next"), 1);
    assert_eq!(fleet.remaining("main"), 98);
}

#[test]
fn rule_in_a_store_that_is_not_open_is_answered_by_its_policy() {
    let fleet = Fleet::new(ALL);
    let text = "version: 1\nsubjects: { hash_secret: 0123456789abcdef }\n\
                store: { redis: { url: redis://h } }\nstores: { other: { redis: { url: redis://g } } }\n\
                rules:\n  - { id: new, per: [user], store: other, algorithm: gcra, rate: 5/s }\n";
    let config = tollgate_config::parse("rules.yaml", text, &|_| None).unwrap();
    let reloaded = fleet.limiter.reload(&config);
    assert_eq!(reloaded.needs_restart, ["stores"]);
    assert_eq!(fleet.check().reason(), Some(Reason::StoreUnavailable));
}

fn reserve(units: u64, key: Option<&str>) -> Reserve<'_> {
    Reserve {
        units,
        idempotency_key: key,
        ..Reserve::default()
    }
}

#[test]
fn reservation_is_held_and_settled_in_every_store() {
    let fleet = Fleet::new(ALL);
    let left = || ["far", "near", "main"].map(|rule| fleet.remaining(rule));
    let held = |units, key| {
        let reserved = block_on(fleet.limiter.reserve(&ann(), &reserve(units, key))).unwrap();
        match reserved {
            ReserveOutcome::Held { hold, .. } => Some(hold),
            ReserveOutcome::Denied(_) => None,
        }
    };
    let hold = held(3, None).unwrap();
    assert_eq!(left(), [0, 2, 1]);
    assert!(held(1, Some("once")).is_none());
    assert_eq!(left(), [0, 2, 1]);
    block_on(fleet.limiter.commit(&hold.id, 1)).unwrap();
    assert_eq!(left(), [2, 4, 3]);
    // A repeated commit changes nothing.
    block_on(fleet.limiter.commit(&hold.id, 1)).unwrap();
    assert_eq!(left(), [2, 4, 3]);
    // A denied reservation leaves no record behind, so its key can be used again.
    let first = held(2, Some("once")).unwrap();
    let again = held(2, Some("once")).unwrap();
    assert_eq!(first.id.to_string(), again.id.to_string());
    assert_eq!(left(), [0, 2, 1]);
    block_on(fleet.limiter.release(&first.id)).unwrap();
    assert_eq!(left(), [2, 4, 3]);
}

#[test]
fn expired_reservation_comes_back_in_every_store() {
    let fleet = Fleet::new(ALL);
    let left = || ["far", "near", "main"].map(|rule| fleet.remaining(rule));
    let reserved = block_on(fleet.limiter.reserve(&ann(), &reserve(2, None)));
    assert!(matches!(reserved, Ok(ReserveOutcome::Held { .. })));
    assert_eq!(left(), [1, 3, 2]);
    fleet.clock.advance(Span::from_secs(300));
    assert_eq!(block_on(fleet.limiter.sweep_holds()).unwrap(), 1);
    assert_eq!(left(), [3, 5, 4]);
    assert_eq!(block_on(fleet.limiter.sweep_holds()).unwrap(), 0);
}

#[test]
fn part_of_a_store_that_was_down_follows_the_main_part() {
    let fleet = Fleet::new(ALL);
    let left = || ["far", "near", "main"].map(|rule| fleet.remaining(rule));
    let reserved = block_on(fleet.limiter.reserve(&ann(), &reserve(2, None))).unwrap();
    let ReserveOutcome::Held { hold, .. } = reserved else {
        panic!("it is denied");
    };
    fleet.abuse.down.store(true, Ordering::Relaxed);
    block_on(fleet.limiter.commit(&hold.id, 1)).unwrap();
    fleet.abuse.down.store(false, Ordering::Relaxed);
    assert_eq!(left(), [1, 4, 3]);
    fleet.clock.advance(Span::from_secs(300));
    block_on(fleet.limiter.sweep_holds()).unwrap();
    assert_eq!(left(), [2, 4, 3]);
}

#[test]
fn hold_that_one_store_cannot_make_is_undone_in_the_others() {
    let fleet = Fleet::new(ALL);
    fleet.abuse.down.store(true, Ordering::Relaxed);
    let reserved = block_on(fleet.limiter.reserve(&ann(), &reserve(2, None)));
    // `main` fails closed.
    assert!(matches!(reserved, Ok(ReserveOutcome::Denied(_))));
    fleet.abuse.down.store(false, Ordering::Relaxed);
    let left = ["far", "near", "main"].map(|rule| fleet.remaining(rule));
    assert_eq!(left, [3, 5, 4]);
    assert_eq!(fleet.local.usage().reservations, 0);
}

/// A simple generator of pseudo-random numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % most
    }
}

/// Compares random requests over three stores with the same requests on one store: the decisions and the
/// amounts left must be equal.
#[test]
fn several_stores_admit_what_one_store_admits() {
    let first = seed(0);
    for seed in (0..20).map(|number| first.wrapping_add(number)) {
        let mut random = Random(seed);
        let clock = ManualClock::at(START);
        let one = MemoryStore::with_clock(10_000, clock.clone());
        let store = || Arc::new(MemoryStore::with_clock(10_000, clock.clone()));
        let several = Routed::new(store(), store()).with(ABUSE, store());
        let limits = [
            Limit::fixed_window(20, Span::MINUTE).unwrap(),
            Limit::sliding_log(15, Span::MINUTE).unwrap(),
            Limit::gcra(Rate::new(60, Span::MINUTE).unwrap(), 12).unwrap(),
            Limit::token_bucket(25, Rate::new(30, Span::MINUTE).unwrap()).unwrap(),
        ];
        let all: Vec<Charge<'_>> = (0..6)
            .map(|number: u8| Charge {
                store: [StoreId::DEFAULT, ABUSE, StoreId::LOCAL][usize::from(number % 3)],
                enforcement: match number {
                    5 => Enforcement::Shadow,
                    _ => Enforcement::Enforce,
                },
                on_denied: OnDenied::charged(number == 4),
                cost: 1 + u64::from(number % 2),
                ..Charge::new(
                    Key::from_bits(u128::from(number) << 90 | u128::from(number)),
                    &limits[usize::from(number % 4)],
                )
            })
            .collect();
        for step in 0..300 {
            let charges: Vec<Charge<'_>> = all
                .iter()
                .filter(|_| random.below(3) > 0)
                .copied()
                .collect();
            let units = random.below(3) + 1;
            let ask = match random.below(4) {
                0 => Ask::UpTo(units),
                _ => Ask::Exactly(units),
            };
            let expected = one.apply(&charges, ask);
            let answer = block_on(Store::apply(&several, &charges, ask).into_future()).unwrap();
            let at = format!("seed {seed}, step {step}");
            assert_eq!(answer.allowed, expected.allowed, "{at}");
            assert_eq!(answer.granted, expected.granted, "{at}");
            for charge in &all {
                let charge = std::slice::from_ref(charge);
                let left = one.peek(charge, Ask::Exactly(0)).outcomes[0].remaining;
                let look = Store::peek(&several, charge, Ask::Exactly(0));
                let there = block_on(look.into_future()).unwrap().outcomes[0].remaining;
                assert_eq!(there, left, "{at}");
            }
            clock.advance(Span::from_millis(random.below(3_000)));
        }
    }
}

#[test]
fn store_that_is_not_open_is_an_error() {
    let clock = ManualClock::at(START);
    let store = || Arc::new(MemoryStore::with_clock(10_000, clock.clone()));
    let routed = Routed::new(store(), store());
    let limit = Limit::fixed_window(20, Span::MINUTE).unwrap();
    let charge = Charge {
        store: ABUSE,
        ..Charge::new(Key::from_bits(7), &limit)
    };
    let answer = block_on(Store::apply(&routed, &[charge], Ask::Exactly(1)).into_future());
    assert!(matches!(answer, Err(StoreError::Unavailable(_))));
}

struct Suite {
    store: Routed,
    clock: ManualClock,
}

impl Fixture for Suite {
    type Store = Routed;

    fn store(&self) -> &Routed {
        &self.store
    }

    fn set_time(&self, now: tollgate::Time) {
        self.clock.set(now);
    }
}

fn suite() -> Suite {
    let clock = ManualClock::default();
    let store = || Arc::new(MemoryStore::with_clock(100_000, clock.clone()));
    Suite {
        store: Routed::new(store(), store()).with(ABUSE, store()),
        clock,
    }
}

tollgate_conformance::conformance_suite! {
    one_test: the_suite_passes_with_several_stores,
    shared: _nothing = (),
    fixture: suite(),
    block_on: block_on,
    steps: tollgate_conformance::STEPS,
}
