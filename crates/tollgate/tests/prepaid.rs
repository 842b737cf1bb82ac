//! Leased mode on one instance: which requests ask the store, and what becomes of slices.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;
#[path = "common/late.rs"]
mod late;
#[path = "common/with_ledger.rs"]
mod with_ledger;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use common::{Flaky, START, config};
use late::{Late, pause};
use tollgate::{
    Answer, Applied, Ask, Attributes, CarryOver, Charge, Decision, Enforcement, Guarantee, Key,
    Limit, Limiter, ManualClock, MemoryStore, Mode, MonotonicClock, OnDenied, Override, Prepaid,
    Rate, Repair, Reply, Reported, Span, Store, Time,
};
use tollgate_conformance::block_on;
use tollgate_ledger::{Database, Ledger, Options};
use with_ledger::WithLedger;

const SLICE: Span = Span::from_millis(100);
const LEASED: Mode = Mode::Leased { slice: SLICE };

struct Setup {
    prepaid: Arc<Prepaid<Flaky>>,
    store: Flaky,
    clock: ManualClock,
}

impl Setup {
    fn new() -> Setup {
        let clock = ManualClock::at(START);
        let store = Flaky {
            store: Arc::new(MemoryStore::with_clock(10_000, clock.clone())),
            down: Arc::default(),
            asked: Arc::default(),
        };
        let prepaid = Prepaid::new(store.clone(), Arc::new(clock.clone()), 1);
        Setup {
            prepaid: Arc::new(prepaid),
            store,
            clock,
        }
    }

    fn ask(&self, charges: &[Charge<'_>], units: u64) -> Applied {
        block_on(
            self.prepaid
                .apply(charges, Ask::Exactly(units))
                .into_future(),
        )
        .unwrap()
    }

    /// Asks until a slice covers the charge.
    fn warm(&self, charge: Charge<'_>) {
        for _ in 0..4 {
            self.ask(&[charge], 1);
        }
        assert!(self.prepaid.prepaid_usage().usable_units > 0);
    }

    fn calls(&self) -> usize {
        self.store.asked.load(Ordering::Relaxed)
    }

    /// Returns what is left in the store, without the units that were drawn.
    fn left(&self, charge: Charge<'_>) -> u64 {
        let exact = Charge {
            mode: Mode::Exact,
            ..charge
        };
        self.store.store.peek(&[exact], Ask::Exactly(0)).outcomes[0].remaining
    }
}

fn window(limit: u64) -> Limit {
    Limit::fixed_window(limit, Span::HOUR).unwrap()
}

fn leased(key: u128, limit: &Limit) -> Charge<'_> {
    Charge {
        mode: LEASED,
        ..Charge::new(Key::from_bits(key << 96 | key), limit)
    }
}

#[test]
fn covered_requests_make_no_call_and_no_allocation() {
    let (it, limit) = (Setup::new(), window(100_000));
    let charge = leased(1, &limit);
    it.warm(charge);
    let mut asked = 4;
    while it.prepaid.prepaid_usage().usable_units < 300 {
        it.ask(&[charge], 1);
        asked += 1;
    }
    let before = it.calls();
    let mut applied = Applied::default();
    let charges = [charge];
    let counted = allocation_counter::measure(|| {
        for _ in 0..50 {
            let later = it
                .prepaid
                .apply_into(&charges, Ask::Exactly(1), &mut applied);
            assert!(later.is_none() && applied.allowed);
        }
    });
    assert_eq!((it.calls() - before, counted.count_total), (0, 0));
    assert_eq!(applied.outcomes[0].remaining, 100_000 - asked - 50);
}

#[test]
fn at_most_one_call_in_a_hundred_under_steady_load() {
    let (it, limit) = (Setup::new(), window(1_000_000));
    let charge = leased(1, &limit);
    for request in 0..20_000 {
        assert!(it.ask(&[charge], 1).allowed);
        it.clock.advance(Span::from_micros(100));
        if request % 500 == 0 {
            it.prepaid.sweep();
        }
    }
    assert!(it.calls() <= 200, "{}", it.calls());
    it.clock.advance(SLICE);
    it.prepaid.sweep();
    // What was not used has come back.
    assert_eq!(it.left(charge), 1_000_000 - 20_000);
}

#[test]
fn a_limit_that_is_reached_is_reached_exactly() {
    for limit in [
        window(500),
        Limit::sliding_log(500, Span::HOUR).unwrap(),
        Limit::gcra(Rate::new(500, Span::HOUR).unwrap(), 500).unwrap(),
    ] {
        let (it, (limit, _)) = (Setup::new(), limit.prepaid(SLICE).unwrap());
        let charge = leased(1, &limit);
        let admitted = (0..700).filter(|_| it.ask(&[charge], 1).allowed).count() as u64;
        let left = it.prepaid.prepaid_usage().usable_units;
        assert_eq!(admitted + left, limit.capacity(), "{limit:?}");
        assert_eq!(left, 0, "{limit:?}");
    }
}

#[test]
fn a_paused_instance_does_not_use_an_old_slice() {
    let (it, limit) = (Setup::new(), window(1000));
    let charge = leased(1, &limit);
    it.warm(charge);
    it.clock.advance(SLICE);
    let before = it.calls();
    it.ask(&[charge], 1);
    assert!(it.calls() > before);
}

#[test]
fn a_slice_of_a_window_ends_with_the_window() {
    let (it, limit) = (
        Setup::new(),
        Limit::fixed_window(1000, Span::SECOND).unwrap(),
    );
    let charge = leased(1, &limit);
    it.clock.advance(Span::from_millis(970));
    it.warm(charge);
    it.clock.advance(Span::from_millis(30));
    let before = it.calls();
    it.ask(&[charge], 1);
    assert!(it.calls() > before);
    it.prepaid.sweep();
    let usable = it.prepaid.prepaid_usage().usable_units;
    // Units of the last window do not come back.
    assert_eq!(it.left(charge) + usable, 999);
}

#[test]
fn an_exact_charge_beside_a_leased_one_asks_for_both() {
    let (it, limit, exact) = (Setup::new(), window(1000), window(2));
    let charges = [leased(1, &limit), Charge::new(Key::from_bits(9), &exact)];
    it.warm(charges[0]);
    let usable = it.prepaid.prepaid_usage().usable_units;
    let allowed = [(); 4].map(|()| it.ask(&charges, 1).allowed);
    assert_eq!(allowed, [true, true, false, false]);
    assert_eq!(it.prepaid.prepaid_usage().usable_units, usable);
}

#[test]
fn a_request_that_one_limit_denies_takes_nothing_from_the_other() {
    let (it, large, small) = (Setup::new(), window(1000), window(20));
    let charges = [leased(1, &large), leased(2, &small)];
    let admitted = (0..50).filter(|_| it.ask(&charges, 1).allowed).count() as u64;
    assert_eq!(admitted, 20);
    it.clock.advance(SLICE);
    it.prepaid.sweep();
    assert_eq!(it.left(charges[0]), 980);
}

#[test]
fn charged_denials_and_shadows_are_counted_by_the_store() {
    let (it, limit, shadowed) = (Setup::new(), window(10), window(5));
    let counting = Charge {
        on_denied: OnDenied::Charge,
        ..leased(1, &limit)
    };
    let shadow = Charge {
        enforcement: Enforcement::Shadow,
        ..leased(2, &shadowed)
    };
    let admitted = (0..20)
        .filter(|_| it.ask(&[counting, shadow], 1).allowed)
        .count();
    assert_eq!(admitted, 10);
    it.clock.advance(SLICE);
    it.prepaid.sweep();
    assert_eq!((it.left(counting), it.left(shadow)), (0, 0));
}

#[test]
fn large_costs_and_large_asks_go_to_the_store() {
    let (it, limit) = (Setup::new(), window(1000));
    let charge = leased(1, &limit);
    it.warm(charge);
    let before = it.calls();
    assert!(
        it.ask(
            &[Charge {
                cost: 500,
                ..charge
            }],
            1
        )
        .allowed
    );
    assert!(it.calls() > before);
    let charges = [charge];
    let up_to = it.prepaid.apply(&charges, Ask::UpTo(5000));
    let granted = block_on(up_to.into_future()).unwrap().granted;
    assert!(granted > 0);
    it.clock.advance(SLICE);
    it.prepaid.sweep();
    assert_eq!(it.left(charge), 1000 - 4 - 500 - granted);
}

#[test]
fn a_peek_sees_slices_and_takes_nothing() {
    let (it, limit) = (Setup::new(), window(1000));
    let charge = leased(1, &limit);
    it.warm(charge);
    let charges = [charge];
    for _ in 0..2 {
        let peeked = it.prepaid.peek(&charges, Ask::Exactly(1));
        let peeked = block_on(peeked.into_future()).unwrap();
        assert_eq!((peeked.allowed, peeked.outcomes[0].remaining), (true, 996));
    }
}

#[test]
fn a_refund_of_a_covered_request_comes_back_whole() {
    let (it, limit) = (Setup::new(), window(1000));
    let charge = leased(1, &limit);
    it.warm(charge);
    let decided_at = it.ask(&[charge], 1).now;
    block_on(it.prepaid.refund(&[charge], 1, decided_at).into_future()).unwrap();
    it.clock.advance(SLICE);
    it.prepaid.sweep();
    assert_eq!(it.left(charge), 996);
}

#[test]
fn a_reset_ends_slices_and_gives_nothing_back() {
    let (it, limit) = (Setup::new(), window(1000));
    let charge = leased(1, &limit);
    it.warm(charge);
    block_on(it.prepaid.reset(&[charge]).into_future()).unwrap();
    assert_eq!(it.prepaid.prepaid_usage().usable_units, 0);
    it.ask(&[charge], 1);
    it.clock.advance(SLICE);
    it.prepaid.sweep();
    assert_eq!(it.left(charge), 999);
}

#[test]
fn other_numbers_end_slices_and_a_window_gets_its_units_back() {
    let (it, limit, other) = (Setup::new(), window(1000), window(10));
    it.warm(leased(1, &limit));
    for _ in 0..3 {
        it.ask(&[leased(1, &other)], 1);
    }
    it.clock.advance(SLICE);
    it.prepaid.sweep();
    assert_eq!(it.left(leased(1, &other)), 10 - 4 - 3);
}

#[test]
fn a_store_that_fails_is_not_drawn_from_for_a_while() {
    let (it, limit) = (Setup::new(), window(100_000));
    let charge = leased(1, &limit);
    it.warm(charge);
    it.store.down.store(true, Ordering::Relaxed);
    let (mut failed, charges) = (0, [charge]);
    for _ in 0..100 {
        let answer = it.prepaid.apply(&charges, Ask::Exactly(1));
        failed += usize::from(block_on(answer.into_future()).is_err());
    }
    assert!(failed > 90);
    it.store.down.store(false, Ordering::Relaxed);
    it.clock.advance(Span::SECOND);
    it.warm(charge);
}

#[test]
fn a_close_gives_everything_back() {
    let (it, limit) = (Setup::new(), window(1000));
    let charge = leased(1, &limit);
    it.warm(charge);
    block_on(it.prepaid.close());
    assert_eq!(it.left(charge), 996);
    assert_eq!(it.prepaid.prepaid_usage().usable_units, 0);
}

const RULES: &str = "
  - { id: api, per: [user], algorithm: gcra, rate: 1000/s, burst: 2000, mode: leased, slice: 100ms }
";

fn check(limiter: &Limiter<Arc<dyn Store>>) -> Decision {
    block_on(limiter.check(&Attributes::from([("user", "ann")])))
}

/// Returns the limit that the decision tells.
fn limit_of(decision: &Decision) -> Option<u64> {
    decision.rule().and_then(|rule| rule.limit())
}

#[test]
fn a_rule_is_leased_under_its_prepaid_numbers_and_switched_by_an_override() {
    let it = Setup::new();
    let limiter = Limiter::builder(&config(RULES), Arc::clone(&it.prepaid) as Arc<dyn Store>)
        .clock(it.clock.clone())
        .build();
    for _ in 0..100 {
        let decision = check(&limiter);
        assert!(decision.is_allowed());
        assert_eq!(limit_of(&decision), Some(1900));
    }
    let covered = it.prepaid.prepaid_usage().covered;
    assert!(covered > 80, "{covered}");
    let text = r#"{ "rule": "api", "mode": "exact", "for": "1h", "reason": "a test" }"#;
    let exact = Override::parse(text, 0).unwrap();
    assert_eq!(exact.name(), "mode:everyone/api");
    limiter.set_overrides([Arc::new(exact)].into());
    let before = it.calls();
    for _ in 0..10 {
        assert_eq!(limit_of(&check(&limiter)), Some(1900), "the same numbers");
    }
    assert_eq!(it.calls() - before, 10);
    limiter.set_overrides([].into());
    check(&limiter);
    assert!(it.prepaid.prepaid_usage().covered > covered);
}

/// The mode changes a thousand times while requests come. No unit is lost or counted twice.
#[test]
fn switching_the_mode_keeps_every_count() {
    const HOURLY: &str = "
  - { id: api, per: [user], algorithm: fixed-window, limit: 100000, window: 1h, mode: leased }
";
    let it = Setup::new();
    let limiter = Limiter::builder(&config(HOURLY), Arc::clone(&it.prepaid) as Arc<dyn Store>)
        .clock(it.clock.clone())
        .build();
    let modes = ["exact", "leased"].map(|mode| {
        let text =
            format!(r#"{{ "rule": "api", "mode": "{mode}", "for": "1h", "reason": "a test" }}"#);
        Arc::new(Override::parse(&text, START.as_micros() / 1000).unwrap())
    });
    let mut admitted = 0;
    for round in 0..1000 {
        limiter.set_overrides([Arc::clone(&modes[round % 2])].into());
        for _ in 0..9 {
            admitted += u64::from(check(&limiter).is_allowed());
            it.clock.advance(Span::from_millis(2));
        }
        it.prepaid.sweep();
    }
    assert_eq!(admitted, 9000);
    let usage = it.prepaid.prepaid_usage();
    assert!(usage.covered > 1000 && usage.lost_units == 0, "{usage:?}");
    it.clock.advance(Span::SECOND);
    it.prepaid.sweep();
    limiter.set_overrides([Arc::clone(&modes[0])].into());
    let peeked = block_on(limiter.peek(&Attributes::from([("user", "ann")]), Ask::Exactly(1)));
    let left = peeked.rule().and_then(|rule| rule.remaining());
    assert_eq!(left, Some(100_000 - 9000));
}

/// The ledger records units when they are used. A crash loses no recorded use, and a comparison with the ledger gives
/// the lost slices back.
#[test]
fn a_ledger_records_what_was_used_and_not_what_was_drawn() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let config = tollgate::parse(
        "rules.yaml",
        "version: 1\nledger: { sqlite: ./ledger.db }\nsubjects: { hash_secret: a secret of 16 bytes }\n\
         rules: [{ id: api, per: [tenant], algorithm: quota, limit: 10000, period: month, mode: leased }]\n",
        &|_| None,
    )
    .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ledger.db");
    let options = Options::new(Database::Sqlite(file));
    runtime.block_on(async {
        let ledger = Ledger::open(options).await.unwrap();
        let (clock, acme) = (
            ManualClock::at(START),
            Attributes::from([("tenant", "acme")]),
        );
        let store = Arc::new(MemoryStore::with_clock(10_000, clock.clone()));
        let shared = Arc::clone(&store) as Arc<dyn Store>;
        let prepaid = Prepaid::new(shared, Arc::new(clock.clone()), 1);
        let limiter = WithLedger::new(&config, prepaid, ledger, clock.clone());
        for _ in 0..100 {
            assert!(limiter.check(&acme).await.is_allowed());
        }
        let usage = limiter.inner().prepaid_usage();
        assert!(usage.covered > 50 && usage.usable_units > 0, "{usage:?}");
        limiter.ledger().flush().await.unwrap();
        // As after a crash: nobody gives the slices back.
        let found = limiter
            .reconcile(None, Repair::Counters, "ann")
            .await
            .unwrap();
        let lost = i64::try_from(usage.usable_units).unwrap();
        let drift = &found.drifts[0];
        assert_eq!((drift.ledger, drift.counter), (100, 100 + lost));
        assert!(drift.repaired);
        clock.advance(Span::SECOND);
        let peeked = limiter.peek(&acme, Ask::Exactly(1)).await;
        assert_eq!(peeked.rule().and_then(|rule| rule.remaining()), Some(9900));
    });
}

/// What another instance has recorded, and reports a `flush` later, is not repaired.
#[test]
fn a_comparison_waits_for_the_reports_of_other_instances() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let config = tollgate::parse(
        "rules.yaml",
        "version: 1\nledger: { sqlite: ./ledger.db }\nsubjects: { hash_secret: a secret of 16 bytes }\n\
         rules: [{ id: api, per: [tenant], algorithm: quota, limit: 10000, period: month, mode: async, flush: 300ms }]\n",
        &|_| None,
    )
    .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let options = Options {
        flush_interval: std::time::Duration::from_millis(10),
        ..Options::new(Database::Sqlite(folder.path().join("ledger.db")))
    };
    runtime.block_on(async {
        let ledger = Ledger::open(options).await.unwrap();
        let (clock, acme) = (
            ManualClock::at(START),
            Attributes::from([("tenant", "acme")]),
        );
        let store = Arc::new(MemoryStore::with_clock(10_000, clock.clone()));
        let instances = [(); 2].map(|()| {
            let shared = Arc::clone(&store) as Arc<dyn Store>;
            let reported = Reported::new(shared, Arc::new(MonotonicClock::new()));
            reported.keep_reporting();
            WithLedger::new(&config, reported, ledger.clone(), clock.clone())
        });
        for _ in 0..100 {
            assert!(instances[0].check(&acme).await.is_allowed());
        }
        let pending = instances[0].inner().reported_usage().pending_units;
        assert!(pending > 50, "{pending}");
        ledger.flush().await.unwrap();
        let found = instances[1].reconcile(None, Repair::Counters, "ann");
        let found = found.await.unwrap();
        assert_eq!((found.compared, found.drifts), (1, vec![]));
        instances[0].inner().close().await;
        let peeked = instances[1].peek(&acme, Ask::Exactly(1)).await;
        assert_eq!(peeked.rule().and_then(|rule| rule.remaining()), Some(9900));
    });
}

/// A store that takes its time: each answer comes a slice later.
struct Slow(Flaky, ManualClock);

impl Store for Slow {
    fn inner(&self) -> Option<&dyn Store> {
        Some(&self.0)
    }

    fn apply<'a>(&'a self, charges: &'a [Charge<'a>], ask: Ask) -> Reply<'a, Applied> {
        Answer::later(async move {
            let applied = self.0.apply(charges, ask).await;
            // Draws are fast, so that there is a slice.
            if ask == Ask::Exactly(1)
                && charges
                    .iter()
                    .any(|it| it.key == Key::from_bits(2 << 96 | 2))
            {
                self.1.advance(SLICE);
            }
            applied
        })
    }

    fn peek<'a>(&'a self, charges: &'a [Charge<'a>], ask: Ask) -> Reply<'a, Applied> {
        self.0.peek(charges, ask)
    }

    fn refund<'a>(&'a self, charges: &'a [Charge<'a>], units: u64, at: Time) -> Reply<'a, Applied> {
        self.0.refund(charges, units, at)
    }

    fn reset<'a>(&'a self, charges: &'a [Charge<'a>]) -> Reply<'a, ()> {
        self.0.reset(charges)
    }
}

#[test]
fn a_slice_that_ends_while_the_store_is_asked_is_not_used() {
    let (it, limit) = (Setup::new(), window(1000));
    let store = Slow(it.store.clone(), it.clock.clone());
    let slow = Prepaid::new(store, Arc::new(it.clock.clone()), 1);
    let charges = [leased(1, &limit), leased(2, &limit)];
    for _ in 0..4 {
        block_on(slow.apply(&charges[..1], Ask::Exactly(1)).into_future()).unwrap();
    }
    assert!(slow.prepaid_usage().usable_units > 0);
    let before = it.calls();
    let applied = block_on(slow.apply(&charges, Ask::Exactly(1)).into_future()).unwrap();
    assert!(applied.allowed);
    // The second charge, its refund, and both charges.
    assert_eq!(it.calls() - before, 3);
    slow.sweep();
    assert_eq!((it.left(charges[0]), it.left(charges[1])), (995, 999));
}

#[test]
fn a_request_that_slices_cover_in_part_asks_for_the_rest() {
    let (it, large, other) = (Setup::new(), window(1000), window(3));
    let charges = [leased(1, &large), leased(2, &other)];
    it.warm(charges[0]);
    let usable = it.prepaid.prepaid_usage().usable_units;
    let first = it.ask(&charges, 1);
    assert!(first.allowed);
    assert_eq!(first.guarantee, Guarantee::Compensated);
    assert_eq!(it.prepaid.prepaid_usage().usable_units, usable - 1);
    assert_eq!(
        it.left(charges[0]),
        996 - usable,
        "nothing was taken in the store"
    );
    let large_cost = Charge {
        cost: 5,
        ..charges[1]
    };
    let denied = it.ask(&[charges[0], large_cost], 1);
    assert!(!denied.allowed && denied.outcomes[0].is_allowed());
    assert_eq!(it.prepaid.prepaid_usage().usable_units, usable - 1);
}

/// An instance that has not heard of a higher limit gives its slices back under the old numbers.
#[test]
fn a_late_refund_under_old_numbers_keeps_the_use_under_the_new_ones() {
    for carry_over in [CarryOver::Keep, CarryOver::Reset] {
        let it = Setup::new();
        let [old, new] = [90, 900].map(|burst| {
            let limit = Limit::gcra(Rate::new(1, Span::HOUR).unwrap(), burst).unwrap();
            limit.prepaid(SLICE).unwrap().0
        });
        let with = |limit| Charge {
            carry_over,
            ..leased(1, limit)
        };
        let raised = with(&new);
        it.warm(with(&old));
        assert!(it.prepaid.prepaid_usage().usable_units > 0);
        let other = Prepaid::new(it.store.clone(), Arc::new(it.clock.clone()), 1);
        let asked = [raised];
        let answer = other.apply(&asked, Ask::Exactly(800));
        assert!(block_on(answer.into_future()).unwrap().allowed);
        it.clock.advance(SLICE);
        it.prepaid.sweep();
        let used = 800 + u64::from(carry_over == CarryOver::Keep) * 4;
        let left = it.left(raised);
        assert!(left <= new.capacity() - used, "{left} left, {carry_over:?}");
    }
}

#[test]
fn a_shorter_slice_is_followed_at_once() {
    let (it, limit) = (Setup::new(), window(1000));
    let long = Charge {
        mode: Mode::Leased {
            slice: Span::from_secs(10),
        },
        ..leased(1, &limit)
    };
    it.warm(long);
    let before = it.calls();
    it.ask(&[leased(1, &limit)], 1);
    assert!(it.calls() > before, "no unit of the longer slice is used");
    it.clock.advance(SLICE);
    it.prepaid.sweep();
    assert_eq!(it.prepaid.prepaid_usage().usable_units, 0);
    assert_eq!(it.left(long), 1000 - 5);
}

#[tokio::test]
async fn a_draw_on_its_way_when_the_numbers_change_is_given_back_or_counted_as_lost() {
    let bucket = |burst| Limit::gcra(Rate::new(1, Span::HOUR).unwrap(), burst).unwrap();
    for limits in [[window(1000), window(900)], [bucket(1000), bucket(900)]] {
        let it = Setup::new();
        let late = Late::new(it.store.clone());
        let prepaid = Prepaid::new(late.clone(), Arc::new(it.clock.clone()), 1);
        let [one, other] = [leased(1, &limits[0]), leased(1, &limits[1])];
        late.hold_back();
        for _ in 0..4 {
            prepaid.apply(&[one], Ask::Exactly(1)).await.unwrap();
        }
        pause().await;
        assert_eq!(late.waiting(), 1, "a draw is on its way");
        prepaid.apply(&[other], Ask::Exactly(1)).await.unwrap();
        late.release().await;
        it.clock.advance(SLICE);
        prepaid.sweep();
        pause().await;
        let usage = prepaid.prepaid_usage();
        let outstanding = 900 - 5 - it.left(other);
        assert_eq!(outstanding, usage.lost_units, "{usage:?}");
        assert_eq!(usage.drawn_units, usage.lost_units + usage.returned_units);
        assert_eq!(usage.lost_units > 0, !limits[0].has_periods());
    }
}

#[tokio::test]
async fn a_close_waits_for_draws_and_gives_back_many_keys_at_once() {
    let (it, limit) = (Setup::new(), window(1000));
    let late = Late::new(it.store.clone());
    let prepaid = Prepaid::new(late.clone(), Arc::new(it.clock.clone()), 1);
    let prepaid = Arc::new(prepaid);
    let warm = async |key| {
        for _ in 0..4 {
            let charges = [leased(key, &limit)];
            prepaid.apply(&charges, Ask::Exactly(1)).await.unwrap();
        }
    };
    for key in 1..=100 {
        warm(key).await;
    }
    late.hold_back();
    warm(101).await;
    pause().await;
    assert_eq!(late.waiting(), 1, "a draw is on its way");
    let closing = Arc::clone(&prepaid);
    let closing = tokio::spawn(async move { closing.close().await });
    pause().await;
    assert!(late.waiting() > 20, "{} refunds at once", late.waiting());
    while !closing.is_finished() {
        late.release().await;
    }
    for key in 1..=101 {
        assert_eq!(it.left(leased(key, &limit)), 996, "key {key}");
    }
}
