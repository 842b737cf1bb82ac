//! Stores that wrap stores: each alone, on a store with scripted answers, and each through the
//! conformance suite.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;
#[path = "common/with_ledger.rs"]
mod with_ledger;

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tempfile::TempDir;
use tollgate::{
    Admission, Answer, Ask, Clock, Guarantee, GuardOptions, Guarded, LedgerSync, Ledgered, Limit,
    ManualClock, MemoryStore, Mode, Outcome, Prepaid, Rate, Remembered, Reply, Reported, Span,
    Store, StoreError, Time, Traced,
};
use tollgate_conformance::{Fixture, block_on};
use tollgate_core::{Charge, Denial, Key};
use tollgate_ledger::{Database, Ledger, Options};
use tollgate_store::{AllowanceLevel, Applied, BreakerOptions, BreakerState};

const START: Time = Time::from_micros(1_700_000_000_000_000);

/// A store that returns scripted answers in order, and then never answers.
#[derive(Default)]
struct Scripted {
    answers: Mutex<VecDeque<Result<Applied, StoreError>>>,
    asked: Mutex<usize>,
}

impl Scripted {
    fn of(answers: impl IntoIterator<Item = Result<Applied, StoreError>>) -> Scripted {
        Scripted {
            answers: Mutex::new(answers.into_iter().collect()),
            asked: Mutex::default(),
        }
    }

    fn asked(&self) -> usize {
        *self.asked.lock().unwrap()
    }

    fn answer(&self) -> Reply<'_, Applied> {
        *self.asked.lock().unwrap() += 1;
        match self.answers.lock().unwrap().pop_front() {
            Some(answer) => Answer::later(async move { answer }),
            None => Answer::later(std::future::pending()),
        }
    }
}

impl Store for Scripted {
    fn apply<'a>(&'a self, _: &'a [Charge<'a>], _: Ask) -> Reply<'a, Applied> {
        self.answer()
    }

    fn peek<'a>(&'a self, _: &'a [Charge<'a>], _: Ask) -> Reply<'a, Applied> {
        self.answer()
    }

    fn refund<'a>(&'a self, _: &'a [Charge<'a>], _: u64, _: Time) -> Reply<'a, Applied> {
        self.answer()
    }

    fn reset<'a>(&'a self, _: &'a [Charge<'a>]) -> Reply<'a, ()> {
        self.answer().map(|answer| answer.map(|_| ()))
    }
}

/// Makes a denial of one charge until one second later, with `remaining` left.
fn denied(remaining: u64) -> Applied {
    Applied {
        now: START,
        outcomes: [Outcome {
            admission: Admission::Denied(Denial::Until(START + Span::SECOND)),
            limit: 5,
            remaining,
            reset_at: START + Span::MINUTE,
        }]
        .into_iter()
        .collect(),
        ..Applied::default()
    }
}

fn limit() -> Limit {
    Limit::gcra(Rate::new(60, Span::MINUTE).unwrap(), 5).unwrap()
}

async fn ask(store: &impl Store, charge: Charge<'_>, units: u64) -> Result<Applied, StoreError> {
    store.apply(&[charge], Ask::Exactly(units)).await
}

fn remembered(answers: Vec<Applied>) -> (Remembered<Scripted>, ManualClock) {
    let clock = ManualClock::at(START);
    let store = Scripted::of(answers.into_iter().map(Ok));
    let clock_of_store = Arc::new(clock.clone());
    (Remembered::new(store, Span::MINUTE, clock_of_store), clock)
}

#[test]
fn a_denial_is_remembered_until_its_retry_time() {
    let (store, clock) = remembered(vec![denied(0), denied(0)]);
    let limit = limit();
    let charge = Charge::new(Key::from_bits(7), &limit);
    block_on(async {
        ask(&store, charge, 1).await.unwrap();
        clock.advance(Span::from_millis(999));
        let known = ask(&store, charge, 1).await.unwrap();
        assert_eq!(known.outcomes, denied(0).outcomes);
        assert_eq!(known.now, START + Span::from_millis(999));
        assert_eq!(store.store().asked(), 1);
        assert_eq!(store.answered().load(Ordering::Relaxed), 1);
        clock.advance(Span::from_millis(1));
        ask(&store, charge, 1).await.unwrap();
        assert_eq!(store.store().asked(), 2);
    });
}

#[test]
fn a_denial_that_may_change_is_not_remembered() {
    let limit = limit();
    let charge = Charge::new(Key::from_bits(7), &limit);
    block_on(async {
        // One unit is left, which a smaller request may take.
        let (store, _) = remembered(vec![denied(1), denied(0)]);
        for _ in 0..2 {
            ask(&store, charge, 1).await.unwrap();
        }
        assert_eq!(store.store().asked(), 2);
        // A cost above 1 waits for more than the next unit.
        let (store, _) = remembered(vec![denied(0), denied(0)]);
        for _ in 0..2 {
            ask(&store, charge, 2).await.unwrap();
        }
        assert_eq!(store.store().asked(), 2);
    });
}

#[test]
fn a_refund_and_a_reset_end_a_remembered_denial() {
    let limit = limit();
    let charge = Charge::new(Key::from_bits(7), &limit);
    let (store, _) = remembered(vec![denied(0); 5]);
    block_on(async {
        ask(&store, charge, 1).await.unwrap();
        store.refund(&[charge], 1, START).await.unwrap();
        ask(&store, charge, 1).await.unwrap();
        store.reset(&[charge]).await.unwrap();
        ask(&store, charge, 1).await.unwrap();
    });
    assert_eq!(store.store().asked(), 5);
}

#[test]
fn other_numbers_are_another_question() {
    let limit = limit();
    let raised = Limit::gcra(Rate::new(60, Span::MINUTE).unwrap(), 6).unwrap();
    let (store, _) = remembered(vec![denied(0); 2]);
    block_on(async {
        ask(&store, Charge::new(Key::from_bits(7), &limit), 1)
            .await
            .unwrap();
        ask(&store, Charge::new(Key::from_bits(7), &raised), 1)
            .await
            .unwrap();
    });
    assert_eq!(store.store().asked(), 2);
}

fn guard(max_in_flight: usize) -> GuardOptions {
    GuardOptions {
        timeout: Duration::from_millis(50),
        max_in_flight,
        breaker: BreakerOptions {
            consecutive_failures: 1,
            ..BreakerOptions::default()
        },
    }
}

#[tokio::test]
async fn a_store_that_does_not_answer_is_a_timeout_and_then_not_asked() {
    let limit = limit();
    let charge = Charge::new(Key::from_bits(7), &limit);
    let store = Guarded::new(Scripted::default(), guard(10));
    assert_eq!(ask(&store, charge, 1).await, Err(StoreError::Timeout));
    assert_eq!(store.breaker_state(), BreakerState::Open);
    assert_eq!(ask(&store, charge, 1).await, Err(StoreError::BreakerOpen));
    assert_eq!(store.store().asked(), 1);
}

#[tokio::test]
async fn calls_above_the_limit_are_turned_away() {
    let limit = limit();
    let charge = [Charge::new(Key::from_bits(7), &limit)];
    let store = Guarded::new(Scripted::of([Ok(denied(0))]), guard(1));
    let first = store.apply(&charge, Ask::Exactly(1));
    let second = store.apply(&charge, Ask::Exactly(1)).await;
    assert_eq!(second, Err(StoreError::Overloaded));
    assert_eq!(first.await, Ok(denied(0)));
}

#[tokio::test]
async fn an_error_that_a_well_store_reports_does_not_open_the_breaker() {
    let limit = limit();
    let charge = Charge::new(Key::from_bits(7), &limit);
    let script = StoreError::Script("wrong".into());
    let store = Guarded::new(Scripted::of([Err(script.clone())]), guard(10));
    assert_eq!(ask(&store, charge, 1).await, Err(script));
    assert_eq!(store.breaker_state(), BreakerState::Closed);
}

/// A wrapped memory store, and its clock.
struct Wrapped<S> {
    store: S,
    clock: ManualClock,
}

impl<S: Store> Wrapped<S> {
    fn new(wrap: impl FnOnce(MemoryStore<ManualClock>, ManualClock) -> S) -> Wrapped<S> {
        let clock = ManualClock::default();
        let store = MemoryStore::with_clock(100_000, clock.clone());
        Wrapped {
            store: wrap(store, clock.clone()),
            clock,
        }
    }
}

impl<S: Store> Fixture for Wrapped<S> {
    type Store = S;

    fn store(&self) -> &S {
        &self.store
    }

    fn set_time(&self, now: Time) {
        self.clock.set(now);
    }
}

tollgate_conformance::conformance_suite! {
    one_test: the_suite_passes_with_spans,
    shared: _nothing = (),
    fixture: Wrapped::new(|store, _| Traced(store)),
    block_on: block_on,
    steps: tollgate_conformance::STEPS,
}

tollgate_conformance::conformance_suite! {
    one_test: the_suite_passes_with_known_denials,
    shared: _nothing = (),
    fixture: Wrapped::new(|store, clock| Remembered::new(store, Span::MINUTE, Arc::new(clock))),
    block_on: block_on,
    steps: tollgate_conformance::STEPS,
}

tollgate_conformance::conformance_suite! {
    one_test: the_suite_passes_with_slices,
    shared: _nothing = (),
    fixture: Wrapped::new(|store, clock| Prepaid::new(store, Arc::new(clock), 1)),
    block_on: block_on,
    steps: tollgate_conformance::STEPS,
}

tollgate_conformance::conformance_suite! {
    one_test: the_suite_passes_with_reports,
    shared: _nothing = (),
    fixture: Wrapped::new(|store, clock| Reported::new(store, Arc::new(clock))),
    block_on: block_on,
    steps: tollgate_conformance::STEPS,
}

/// Async mode with a report after every request. Then one instance knows everything, and has to give the answers of
/// an exact store.
struct ReportsAtOnce(Reported<MemoryStore<ManualClock>>);

impl ReportsAtOnce {
    /// Returns the charges in async mode.
    fn in_mode<'a>(charges: &[Charge<'a>]) -> Vec<Charge<'a>> {
        let mode = Mode::Async {
            flush: Span::MINUTE,
        };
        charges.iter().map(|it| Charge { mode, ..*it }).collect()
    }
}

impl Store for ReportsAtOnce {
    fn inner(&self) -> Option<&dyn Store> {
        Some(&self.0)
    }

    fn apply<'a>(&'a self, charges: &'a [Charge<'a>], ask: Ask) -> Reply<'a, Applied> {
        Answer::later(async move {
            let charges = ReportsAtOnce::in_mode(charges);
            let answer = self.0.apply(&charges, ask).await;
            self.0.close().await;
            // A request in parts has another guarantee, and no other difference.
            answer.map(|it| Applied {
                guarantee: Guarantee::Atomic,
                ..it
            })
        })
    }

    fn peek<'a>(&'a self, charges: &'a [Charge<'a>], ask: Ask) -> Reply<'a, Applied> {
        Answer::later(async move { self.0.peek(&ReportsAtOnce::in_mode(charges), ask).await })
    }

    fn refund<'a>(
        &'a self,
        charges: &'a [Charge<'a>],
        units: u64,
        charged_at: Time,
    ) -> Reply<'a, Applied> {
        Answer::later(async move {
            let charges = ReportsAtOnce::in_mode(charges);
            let answer = self.0.refund(&charges, units, charged_at).await;
            self.0.close().await;
            answer
        })
    }

    fn reset<'a>(&'a self, charges: &'a [Charge<'a>]) -> Reply<'a, ()> {
        self.0.reset(charges)
    }

    fn report<'a>(
        &'a self,
        charge: &'a Charge<'a>,
        units: u64,
    ) -> Reply<'a, Option<AllowanceLevel>> {
        self.0.report(charge, units)
    }
}

/// A fixture whose clock never goes back.
struct Steady(Wrapped<ReportsAtOnce>);

impl Fixture for Steady {
    type Store = ReportsAtOnce;

    fn store(&self) -> &ReportsAtOnce {
        &self.0.store
    }

    fn set_time(&self, now: Time) {
        self.0.clock.set(now);
    }

    fn range(&self) -> tollgate_conformance::random::Range {
        tollgate_conformance::random::Range::Steady
    }
}

#[test]
fn one_instance_in_async_mode_gives_the_answers_of_an_exact_store() {
    // The copies of other algorithms differ by less than a unit, or in the times of units that the store had counted
    // before.
    let kinds = [tollgate_conformance::Kind::FixedWindow];
    let fixture = Steady(Wrapped::new(|store, clock| {
        ReportsAtOnce(Reported::new(store, Arc::new(clock)))
    }));
    let same = tollgate_conformance::random::same_answers(&fixture, &kinds, 2000);
    block_on(same);
    let usage = fixture.0.store.0.reported_usage();
    assert!(usage.decided > 200, "{usage:?}");
}

tollgate_conformance::conformance_suite! {
    one_test: the_suite_passes_with_bounds,
    shared: _nothing = (),
    fixture: Wrapped::new(|store, _| Guarded::new(store, GuardOptions::default())),
    block_on: block_on,
    steps: tollgate_conformance::STEPS,
}

/// A runtime with a ledger on it.
struct Books {
    runtime: tokio::runtime::Runtime,
    sync: Arc<LedgerSync>,
    _directory: TempDir,
}

impl Books {
    fn open() -> Books {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("ledger.db");
        let options = Options::new(Database::Sqlite(file));
        let ledger = runtime.block_on(Ledger::open(options)).unwrap();
        let clock: Arc<dyn Clock> = Arc::new(ManualClock::at(START));
        let sync = Arc::new(LedgerSync::new(ledger, "conformance", clock));
        Books {
            runtime,
            sync,
            _directory: directory,
        }
    }
}

static LEDGER: std::sync::LazyLock<Books> = std::sync::LazyLock::new(Books::open);

fn on_ledger_runtime<F: Future>(future: F) -> F::Output {
    LEDGER.runtime.block_on(future)
}

tollgate_conformance::conformance_suite! {
    one_test: the_suite_passes_with_a_ledger,
    shared: _nothing = (),
    fixture: Wrapped::new(|store, _| Ledgered::new(store, Arc::clone(&LEDGER.sync))),
    block_on: on_ledger_runtime,
    steps: tollgate_conformance::STEPS,
}
