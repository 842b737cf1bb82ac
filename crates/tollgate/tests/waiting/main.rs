//! Requests that wait for their turn, on virtual time: the clock of the store follows Tokio's paused clock.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proptest::prelude::*;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tollgate::{
    Answer, Applied, Ask, Attributes, Charge, Clock, Config, Decision, HasLimiter, Limiter,
    MemoryStore, Reason, Reply, Span, Store, Time, Traced, WaitOutcome,
};

const START: Time = Time::from_micros(1_800_000_000_000_000);
const ONE: Ask = Ask::Exactly(1);
const LONG: Span = Span::from_secs(30);

/// The clock of the store: virtual time.
#[derive(Clone)]
struct TokioClock(Instant);

impl Clock for TokioClock {
    fn now(&self) -> Time {
        START + Span::from_micros(u64::try_from(self.0.elapsed().as_micros()).unwrap())
    }
}

type Memory = Limiter<Traced<MemoryStore<TokioClock>>>;

fn config(rules: &str) -> Config {
    let text = format!("version: 1\nrules:\n{rules}");
    let config = tollgate_config::parse("rules.yaml", &text, &|_| None);
    config.unwrap_or_else(|error| panic!("{error}"))
}

fn limiter(rules: &str) -> Arc<Memory> {
    let clock = TokioClock(Instant::now());
    Arc::new(Limiter::with_clock(&config(rules), clock).unwrap())
}

/// The requests that were admitted, in order: their names, and when.
type Log = Arc<Mutex<Vec<(usize, Duration)>>>;

/// Starts a request of a tenant, which notes its name when it is admitted.
fn start<T: HasLimiter>(
    limiter: &Arc<T>,
    tenant: &'static str,
    name: usize,
    log: &Log,
) -> JoinHandle<Decision> {
    let (limiter, log, began) = (Arc::clone(limiter), Arc::clone(log), Instant::now());
    tokio::spawn(async move {
        let attributes = Attributes::from([("tenant", tenant), ("plan", tenant)]);
        let decision = limiter.ask_or_wait(&attributes, ONE, LONG).await;
        if decision.is_allowed() {
            log.lock().unwrap().push((name, began.elapsed()));
        }
        decision
    })
}

/// Lets all requests run until they wait. Virtual time goes on only then.
async fn settle() {
    sleep(Duration::from_millis(1)).await;
}

fn nobody() -> Attributes<'static> {
    Attributes::new()
}

fn ended<T: HasLimiter>(limiter: &Arc<T>, outcome: WaitOutcome) -> u64 {
    let metrics = limiter.limiter().metrics();
    metrics.waits(0).unwrap().ended(outcome).0.iter().sum()
}

fn assert_empty<T: HasLimiter>(limiter: &Arc<T>) {
    let room = limiter.limiter().waiting_room();
    assert_eq!((room.waiting(), room.queues()), (0, 0));
    assert_eq!(
        limiter.limiter().metrics().waits(0).unwrap().waiting(),
        0,
        "the gauge is back at zero"
    );
}

#[tokio::test(start_paused = true)]
async fn requests_are_served_in_the_order_of_arrival_at_the_rate_of_the_rule() {
    let limiter = limiter("- { id: all, algorithm: gcra, rate: 100/s, burst: 1, max_wait: 1s }");
    let log = Log::default();
    let requests: Vec<_> = (0..20)
        .map(|name| start(&limiter, "a", name, &log))
        .collect();
    settle().await;
    assert_eq!(limiter.waiting_room().waiting(), 19);
    for request in requests {
        assert!(request.await.unwrap().is_allowed());
    }
    let log = log.lock().unwrap();
    assert_eq!(
        log.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
        (0..20).collect::<Vec<_>>()
    );
    for (name, at) in log.iter() {
        let due = Duration::from_millis(10 * *name as u64);
        assert!(
            (due..due + Duration::from_millis(2)).contains(at),
            "{name}: {at:?}"
        );
    }
    assert_eq!(ended(&limiter, WaitOutcome::Admitted), 19);
    let counts = limiter.metrics().counts()[0];
    assert_eq!((counts.allowed, counts.denied.iter().sum::<u64>()), (20, 0));
    assert_empty(&limiter);
}

/// Requests that come in a loop are too late to wait. They must not take the units for which others wait.
#[tokio::test(start_paused = true)]
async fn newcomers_do_not_overtake_requests_that_wait() {
    for algorithm in [
        "gcra, rate: 100/s, burst: 1, max_wait: 200ms",
        "token-bucket, capacity: 1, refill: 100/s, max_wait: 200ms",
        "gcra, rate: 100/s, burst: 1, max_wait: 10s, max_waiting: 20",
        "token-bucket, capacity: 2, refill: 100/s, fair: { per: [tenant], max_wait: 200ms }",
    ] {
        let limiter = limiter(&format!("- {{ id: all, algorithm: {algorithm} }}"));
        let log = Log::default();
        let requests: Vec<_> = (0..20)
            .map(|name| start(&limiter, "a", name, &log))
            .collect();
        tokio::task::yield_now().await;
        let newcomers = {
            let (limiter, log) = (Arc::clone(&limiter), Arc::clone(&log));
            tokio::spawn(async move {
                let mut started = Vec::new();
                for name in 20..1_520 {
                    tokio::time::advance(Duration::from_micros(200)).await;
                    started.push(start(&limiter, "a", name, &log));
                }
                started
            })
        };
        for (name, request) in requests.into_iter().enumerate() {
            let decision = request.await.unwrap();
            assert!(decision.is_allowed(), "{algorithm}: request {name}");
        }
        for newcomer in newcomers.await.unwrap() {
            newcomer.await.unwrap();
        }
        let log = log.lock().unwrap();
        assert!(
            log.is_sorted_by_key(|(name, _)| *name),
            "{algorithm}: {log:?}"
        );
        // Nothing is lost either: the newcomers ask for 300 ms, and the last one may wait for 200 ms.
        assert!(log.len() >= 30, "{algorithm}: {}", log.len());
        assert_empty(&limiter);
    }
}

/// A request at its deadline does not take the units for which the request before it waits.
#[tokio::test(start_paused = true)]
async fn request_that_expires_behind_others_does_not_overtake_them() {
    let limiter =
        limiter("- { id: all, algorithm: token-bucket, capacity: 3, refill: 10/s, max_wait: 10s }");
    let began = Instant::now();
    assert!(limiter.ask(&nobody(), Ask::Exactly(3)).await.is_allowed());
    let start = |ask, longest| {
        let limiter = Arc::clone(&limiter);
        tokio::spawn(async move {
            let longest = Span::from_millis(longest);
            limiter.ask_or_wait(&nobody(), ask, longest).await
        })
    };
    let first = start(Ask::Exactly(3), 10_000);
    settle().await;
    // Its turn comes at 400 ms.
    let second = start(ONE, 405);
    sleep(Duration::from_millis(250)).await;
    // A door without waiting takes two units. So the first request waits until 500 ms, and there is a unit at
    // the deadline of the second one.
    assert!(limiter.ask(&nobody(), Ask::Exactly(2)).await.is_allowed());
    let second = second.await.unwrap();
    assert_eq!(began.elapsed().as_millis(), 406);
    assert_eq!((second.is_allowed(), second.granted()), (false, 0));
    assert_eq!(second.reason(), Some(Reason::Exceeded));
    assert!(second.retry_after() >= Some(Span::from_millis(94)));
    assert!(first.await.unwrap().is_allowed());
    assert!(began.elapsed() < Duration::from_millis(505));
    assert_empty(&limiter);
}

#[tokio::test(start_paused = true)]
async fn request_does_not_wait_in_vain() {
    let limiter = limiter("- { id: all, algorithm: gcra, rate: 10/s, burst: 1, max_wait: 250ms }");
    let log = Log::default();
    let began = Instant::now();
    let requests: Vec<_> = (0..4)
        .map(|name| start(&limiter, "a", name, &log))
        .collect();
    settle().await;
    // Two wait: for 100 and 200 ms. The third would have to wait for 300 ms, and is denied at once.
    assert_eq!(limiter.waiting_room().waiting(), 2);
    let mut decisions = Vec::new();
    for request in requests {
        decisions.push(request.await.unwrap());
    }
    let allowed: Vec<_> = decisions.iter().map(Decision::is_allowed).collect();
    assert_eq!(allowed, [true, true, true, false]);
    assert_eq!(decisions[3].reason(), Some(Reason::Exceeded));
    assert_eq!(decisions[3].retry_after(), Some(Span::from_millis(300)));
    assert_eq!(decisions[3].waited(), Span::ZERO);
    assert!(decisions[2].waited() >= Span::from_millis(200));
    assert!(began.elapsed() < Duration::from_millis(210));
    assert_empty(&limiter);
}

#[tokio::test(start_paused = true)]
async fn wait_is_bounded_by_the_client_and_by_the_rule() {
    let limiter = limiter("- { id: all, algorithm: gcra, rate: 1/s, burst: 1, max_wait: 5s }");
    let began = Instant::now();
    assert!(limiter.ask_or_wait(&nobody(), ONE, LONG).await.is_allowed());
    for (wait, allowed, passed) in [(0, false, 0), (900, false, 0), (1_000, true, 1_000)] {
        let wait = Span::from_millis(wait);
        let decision = limiter.ask_or_wait(&nobody(), ONE, wait).await;
        assert_eq!(decision.is_allowed(), allowed, "{wait}");
        assert_eq!(began.elapsed().as_millis(), passed, "{wait}");
    }
    // A request for more than the rule refills in `max_wait`.
    let (decision, before) = (
        limiter.ask_or_wait(&nobody(), Ask::Exactly(7), LONG).await,
        Instant::now(),
    );
    assert_eq!(decision.reason(), Some(Reason::NeverFits));
    assert_eq!(before.elapsed(), Duration::ZERO);
    assert_empty(&limiter);
}

#[tokio::test(start_paused = true)]
async fn full_queue_is_told_apart_from_a_denial() {
    let limiter = limiter(
        "- { id: all, algorithm: gcra, rate: 1/s, burst: 1, max_wait: 30s, max_waiting: 2 }",
    );
    let log = Log::default();
    let waiting: Vec<_> = (0..3)
        .map(|name| start(&limiter, "a", name, &log))
        .collect();
    settle().await;
    let full = limiter.ask_or_wait(&nobody(), ONE, LONG).await;
    assert_eq!(full.reason(), Some(Reason::QueueFull));
    assert_eq!(full.retry_after(), Some(Span::from_millis(999)));
    assert_eq!(ended(&limiter, WaitOutcome::Full), 1);
    let counts = limiter.metrics().counts()[0];
    assert_eq!(counts.denied[Reason::QueueFull as usize], 1);
    // The retry time is true: then a place is free.
    sleep(full.retry_after().unwrap().into()).await;
    sleep(Duration::from_millis(2)).await;
    let later = start(&limiter, "a", 3, &log);
    for request in waiting.into_iter().chain([later]) {
        assert!(request.await.unwrap().is_allowed());
    }
    assert_empty(&limiter);
}

#[tokio::test(start_paused = true)]
async fn dropped_request_leaves_the_queue_and_costs_nothing() {
    let limiter = limiter("- { id: all, algorithm: gcra, rate: 10/s, burst: 1, max_wait: 10s }");
    let log = Log::default();
    let requests: Vec<_> = (0..6)
        .map(|name| start(&limiter, "a", name, &log))
        .collect();
    sleep(Duration::from_millis(50)).await;
    // The head, which has the turn, and one in the middle.
    requests[1].abort();
    requests[3].abort();
    sleep(Duration::from_millis(1)).await;
    assert_eq!(limiter.waiting_room().waiting(), 3);
    for (name, request) in requests.into_iter().enumerate() {
        assert_eq!(request.await.is_ok(), name != 1 && name != 3);
    }
    let log = log.lock().unwrap();
    let names: Vec<_> = log.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, [0, 2, 4, 5]);
    // No turn passed unused.
    assert!(log[3].1 < Duration::from_millis(310), "{log:?}");
    assert_eq!(ended(&limiter, WaitOutcome::Cancelled), 2);
    assert_eq!(limiter.metrics().counts()[0].allowed, 4);
    assert_empty(&limiter);
}

#[tokio::test(start_paused = true)]
async fn waiting_clients_get_turns_by_weight() {
    let limiter = limiter(
        "- { id: matching, algorithm: token-bucket, capacity: 10, refill: 100/s, \
           fair: { per: [tenant], weights: { plan: { heavy: 5 } }, max_wait: 30s, max_waiting: 5000 } }",
    );
    let (heavy, light) = (Log::default(), Log::default());
    let mut requests = Vec::new();
    for name in 0..1_000 {
        requests.push(start(&limiter, "light", name, &light));
        requests.push(start(&limiter, "heavy", name, &heavy));
    }
    sleep(Duration::from_secs(9)).await;
    let admitted = |log: &Log| log.lock().unwrap().clone();
    let (heavy, light) = (admitted(&heavy), admitted(&light));
    // In nine seconds, 900 units refill, and ten were there. Shares within 3%.
    let (got, total) = (heavy.len(), heavy.len() + light.len());
    assert!((880..=910).contains(&total), "{total}");
    let expected = total * 5 / 6;
    assert!(
        got.abs_diff(expected) * 100 <= expected * 3,
        "{got} of {total}"
    );
    for log in [&heavy, &light] {
        assert!(log.is_sorted_by_key(|(name, _)| *name), "order of arrival");
    }
    for request in requests {
        request.abort();
    }
    settle().await;
    assert_empty(&limiter);
}

#[tokio::test(start_paused = true)]
async fn quiet_client_does_not_queue_behind_a_loud_one() {
    let limiter = limiter(
        "- { id: matching, algorithm: token-bucket, capacity: 100, refill: 100/s, \
           fair: { per: [tenant], max_wait: 10s, max_waiting: 5000 } }",
    );
    let (loud, quiet) = (Log::default(), Log::default());
    // Known, with its share saved up.
    start(&limiter, "quiet", 0, &quiet).await.unwrap();
    let _loud: Vec<_> = (0..900)
        .map(|name| start(&limiter, "loud", name, &loud))
        .collect();
    for name in 1..30 {
        sleep(Duration::from_millis(100)).await;
        let decision = start(&limiter, "quiet", name, &quiet).await.unwrap();
        assert!(decision.is_allowed());
        assert_eq!(decision.waited(), Span::ZERO, "request {name}");
    }
    // Nothing is wasted: the loud client gets the rest. Half of the capacity stays in the bucket, for clients that
    // come.
    let got = loud.lock().unwrap().len();
    assert!((300..=340).contains(&got), "{got}");
}

#[tokio::test(start_paused = true)]
async fn rule_without_max_wait_denies_at_once() {
    let limiter = limiter(
        "- { id: turns, algorithm: gcra, rate: 10/s, burst: 1, max_wait: 10s }\n\
         - { id: strict, algorithm: fixed-window, limit: 1, window: 1h }",
    );
    assert!(limiter.ask_or_wait(&nobody(), ONE, LONG).await.is_allowed());
    let began = Instant::now();
    let denied = limiter.ask_or_wait(&nobody(), ONE, LONG).await;
    assert_eq!(denied.rule().unwrap().rule().id(), "strict");
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert_empty(&limiter);
}

#[tokio::test(start_paused = true)]
async fn request_that_another_bucket_denies_waits_there_and_lets_others_pass() {
    let limiter = limiter(
        "- { id: all, algorithm: gcra, rate: 100/s, burst: 1, max_wait: 10s }\n\
         - { id: own, per: [tenant], algorithm: gcra, rate: 1/s, burst: 2, max_wait: 10s }",
    );
    let log = Log::default();
    // The third and fourth request of `a` wait for its own bucket. Meanwhile `b` gets its turns.
    let mut requests: Vec<_> = (0..4)
        .map(|name| start(&limiter, "a", name, &log))
        .collect();
    requests.extend((4..6).map(|name| start(&limiter, "b", name, &log)));
    for request in requests {
        assert!(request.await.unwrap().is_allowed());
    }
    let names: Vec<_> = log.lock().unwrap().iter().map(|(name, _)| *name).collect();
    assert_eq!(names, [0, 1, 4, 5, 2, 3]);
    assert_empty(&limiter);
}

#[tokio::test(start_paused = true)]
async fn only_the_last_denial_of_a_request_counts() {
    let limiter = limiter(
        "- { id: turns, algorithm: gcra, rate: 10/s, burst: 1, max_wait: 10s }\n\
         - { id: tries, algorithm: fixed-window, limit: 100, window: 1h, charge_denied: true }",
    );
    let log = Log::default();
    let requests: Vec<_> = (0..5)
        .map(|name| start(&limiter, "a", name, &log))
        .collect();
    for request in requests {
        assert!(request.await.unwrap().is_allowed());
    }
    let (short, anyone) = (Span::from_millis(1), nobody());
    let denied = limiter.ask_or_wait(&anyone, ONE, short).await;
    assert!(!denied.is_allowed());
    let looked = limiter.peek(&nobody(), Ask::Exactly(0)).await;
    let tries = looked.rules().find(|it| it.rule().id() == "tries").unwrap();
    assert_eq!(tries.remaining(), Some(100 - 6));
    let counts = limiter.metrics().counts()[0];
    assert_eq!((counts.allowed, counts.denied.iter().sum::<u64>()), (5, 1));
}

#[tokio::test(start_paused = true)]
async fn windows_let_requests_wait_too() {
    for algorithm in [
        "algorithm: fixed-window, limit: 3, window: 1s",
        "algorithm: sliding-log, limit: 3, window: 1s",
        "algorithm: sliding-counter, limit: 3, window: 1s",
        "algorithm: sliding-counter, limit: 3, window: 1s, estimate: two-window",
        "algorithm: token-bucket, capacity: 3, refill: 3/s",
    ] {
        let limiter = limiter(&format!("- {{ id: all, {algorithm}, max_wait: 10s }}"));
        let log = Log::default();
        let requests: Vec<_> = (0..9)
            .map(|name| start(&limiter, "a", name, &log))
            .collect();
        for request in requests {
            assert!(request.await.unwrap().is_allowed(), "{algorithm}");
        }
        let log = log.lock().unwrap();
        let names: Vec<_> = log.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, (0..9).collect::<Vec<_>>(), "{algorithm}");
        assert!(log[8].1 < Duration::from_secs(5), "{algorithm}: {log:?}");
        assert_empty(&limiter);
    }
}

/// A store on another machine: its answers take five milliseconds.
struct Far {
    memory: MemoryStore<TokioClock>,
    asked: AtomicUsize,
}

impl Store for Far {
    fn inner(&self) -> Option<&dyn Store> {
        Some(&self.memory)
    }

    fn is_local(&self) -> bool {
        false
    }

    fn apply<'a>(&'a self, charges: &'a [Charge<'a>], ask: Ask) -> Reply<'a, Applied> {
        Answer::later(async move {
            self.asked.fetch_add(1, Ordering::Relaxed);
            let applied = self.memory.apply(charges, ask);
            sleep(Duration::from_millis(5)).await;
            Ok(applied)
        })
    }

    fn peek<'a>(&'a self, charges: &'a [Charge<'a>], ask: Ask) -> Reply<'a, Applied> {
        Answer::later(async move { Ok(self.memory.peek(charges, ask)) })
    }

    fn refund<'a>(
        &'a self,
        charges: &'a [Charge<'a>],
        units: u64,
        charged_at: Time,
    ) -> Reply<'a, Applied> {
        Answer::later(async move { Ok(self.memory.refund(charges, units, charged_at)) })
    }

    fn reset<'a>(&'a self, charges: &'a [Charge<'a>]) -> Reply<'a, ()> {
        Answer::later(async move {
            self.memory.reset(charges);
            Ok(())
        })
    }
}

fn far(rules: &str) -> Arc<Limiter<Far>> {
    let clock = TokioClock(Instant::now());
    let store = Far {
        memory: MemoryStore::with_clock(1_000, clock.clone()),
        asked: AtomicUsize::new(0),
    };
    let config = config(rules);
    Arc::new(Limiter::builder(&config, store).clock(clock).build())
}

#[tokio::test(start_paused = true)]
async fn units_of_a_request_that_is_dropped_while_the_store_is_asked_are_given_back() {
    let limiter =
        far("- { id: all, algorithm: token-bucket, capacity: 2, refill: 1/s, max_wait: 10s }");
    for _ in 0..2 {
        assert!(limiter.ask_or_wait(&nobody(), ONE, LONG).await.is_allowed());
    }
    let log = Log::default();
    let waiting = start(&limiter, "a", 0, &log);
    // The store takes the unit, and its answer is on the way.
    while limiter.metrics().waits(0).unwrap().waiting() == 0 {
        sleep(Duration::from_millis(1)).await;
    }
    let asked = limiter.store().asked.load(Ordering::Relaxed);
    while limiter.store().asked.load(Ordering::Relaxed) == asked {
        sleep(Duration::from_millis(1)).await;
    }
    waiting.abort();
    sleep(Duration::from_millis(20)).await;
    assert_empty(&limiter);
    assert_eq!(ended(&limiter, WaitOutcome::Cancelled), 1);
    assert!(log.lock().unwrap().is_empty());
    // The unit is there for the next request.
    let next = limiter.ask(&nobody(), ONE).await;
    assert!(next.is_allowed());
}

/// Requests that ask the store at the same time do not know of each other. The second one finds the first one waiting.
#[tokio::test(start_paused = true)]
async fn request_does_not_wait_in_vain_behind_another_that_asked_at_the_same_time() {
    let limiter = far("- { id: all, algorithm: gcra, rate: 10/s, burst: 1, max_wait: 150ms }");
    assert!(limiter.ask_or_wait(&nobody(), ONE, LONG).await.is_allowed());
    let (log, began) = (Log::default(), Instant::now());
    let (first, second) = (start(&limiter, "a", 0, &log), start(&limiter, "a", 1, &log));
    // The turn of the second one would come in 200 ms.
    let second = second.await.unwrap();
    assert!(!second.is_allowed());
    assert!(began.elapsed() < Duration::from_millis(10));
    let retry = second.retry_after().unwrap();
    assert!(retry > Span::from_millis(180), "{retry}");
    assert!(first.await.unwrap().is_allowed());
    assert_empty(&limiter);
}

#[tokio::test(start_paused = true)]
async fn questions_do_not_depend_on_how_many_requests_wait() {
    let limiter = far(
        "- { id: all, algorithm: gcra, rate: 100/s, burst: 1, max_wait: 30s, max_waiting: 2000 }",
    );
    let log = Log::default();
    assert!(limiter.ask_or_wait(&nobody(), ONE, LONG).await.is_allowed());
    start(&limiter, "a", 0, &log);
    sleep(Duration::from_millis(6)).await;
    let before = limiter.store().asked.load(Ordering::Relaxed);
    let requests: Vec<_> = (1..1_000)
        .map(|name| start(&limiter, "a", name, &log))
        .collect();
    settle().await;
    let joined = limiter.store().asked.load(Ordering::Relaxed);
    assert_eq!(joined, before, "a request that joins others does not ask");
    for request in requests {
        assert!(request.await.unwrap().is_allowed());
    }
    let asked = limiter.store().asked.load(Ordering::Relaxed) - before;
    assert!(asked <= 1_100, "{asked} questions for 1000 requests");
    assert_empty(&limiter);
}

#[tokio::test(start_paused = true)]
async fn many_clients_do_not_ask_all_at_once() {
    let limiter = far(
        "- { id: all, store: local, algorithm: token-bucket, capacity: 10, refill: 100/s, \
           fair: { per: [tenant], max_wait: 30s, max_waiting: 2000 } }",
    );
    let log = Log::default();
    let names: Vec<&'static str> = (0..500)
        .map(|n| &*Box::leak(format!("client-{n}").into_boxed_str()))
        .collect();
    let requests: Vec<_> = names
        .iter()
        .enumerate()
        .map(|(name, tenant)| start(&limiter, tenant, name, &log))
        .collect();
    for request in requests {
        assert!(request.await.unwrap().is_allowed());
    }
    // One question on arrival, one that is admitted, and at most four that are denied for each unit.
    let asked = limiter.store().asked.load(Ordering::Relaxed);
    assert!(asked <= 500 * 6, "{asked} questions for 500 clients");
    let last = log.lock().unwrap().last().unwrap().1;
    assert!(last < Duration::from_secs(15), "{last:?}");
    assert_empty(&limiter);
}

/// One request of the random test.
#[derive(Clone, Debug)]
struct Planned {
    tenant: usize,
    arrives: u64,
    /// When the request is dropped, in milliseconds after its arrival, and whether its task crashes.
    ends: Option<(u64, bool)>,
}

fn planned() -> impl Strategy<Value = Planned> {
    let ends = prop_oneof![
        3 => Just(None),
        1 => (0..400_u64, any::<bool>()).prop_map(Some),
    ];
    (0..5_usize, 0..200_u64, ends).prop_map(|(tenant, arrives, ends)| Planned {
        tenant,
        arrives,
        ends,
    })
}

/// Runs the plan. Returns the requests that were admitted, in order.
async fn run<T: HasLimiter>(limiter: &Arc<T>, plan: &[Planned]) -> Vec<usize> {
    const TENANTS: [&str; 5] = ["a", "b", "c", "d", "e"];
    let log = Log::default();
    let mut tasks = Vec::new();
    for (name, it) in plan.iter().enumerate() {
        let (limiter, log, it) = (Arc::clone(limiter), Arc::clone(&log), it.clone());
        tasks.push(tokio::spawn(async move {
            sleep(Duration::from_millis(it.arrives)).await;
            let attributes = Attributes::from([("tenant", TENANTS[it.tenant])]);
            let asking = limiter.ask_or_wait(&attributes, ONE, LONG);
            let Some((after, crashes)) = it.ends else {
                let decision = asking.await;
                let (waited, retry) = (decision.waited(), decision.retry_after());
                assert!(
                    decision.is_allowed(),
                    "request {name} was denied after {waited}: {:?}, {retry:?}",
                    decision.reason()
                );
                log.lock().unwrap().push((name, Duration::ZERO));
                return;
            };
            tokio::select! {
                biased;
                decision = asking => if decision.is_allowed() {
                    log.lock().unwrap().push((name, Duration::ZERO));
                },
                () = sleep(Duration::from_millis(after)) => {
                    if crashes {
                        // A panic, without a message in the output of the test.
                        std::panic::resume_unwind(Box::new("a crash"));
                    }
                }
            }
        }));
    }
    for (name, task) in tasks.into_iter().enumerate() {
        let ended = task.await;
        let may_crash = matches!(plan[name].ends, Some((_, true)));
        assert!(ended.is_ok() || may_crash, "request {name}");
    }
    // Units that are given back need a call.
    sleep(Duration::from_millis(50)).await;
    assert_empty(limiter);
    log.lock().unwrap().iter().map(|(name, _)| *name).collect()
}

fn check(plan: &[Planned], admitted: &[usize], is_far: bool) {
    for tenant in 0..5 {
        let of_tenant = admitted.iter().filter(|name| plan[**name].tenant == tenant);
        let arrivals: Vec<_> = of_tenant.map(|name| plan[*name].arrives).collect();
        // Two requests that ask a far store at the same time do not wait for each other yet.
        let is_sorted = arrivals.is_sorted();
        assert!(is_far || is_sorted, "order of a client: {arrivals:?}");
    }
    for (name, it) in plan.iter().enumerate() {
        assert!(
            it.ends.is_some() || admitted.contains(&name),
            "request {name} is lost"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn nobody_is_lost_and_nothing_leaks(plan in prop::collection::vec(planned(), 64), is_far in any::<bool>()) {
        let rules = "- { id: all, store: local, algorithm: token-bucket, capacity: 4, refill: 100/s, \
                       fair: { per: [tenant], max_wait: 20s } }";
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let admitted = match is_far {
                true => run(&far(rules), &plan).await,
                false => run(&limiter(rules), &plan).await,
            };
            check(&plan, &admitted, is_far);
        });
    }
}
