//! Concurrency rules whose limit follows the latency that clients report.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use tollgate::{
    Acquire, AcquireOutcome, AdaptedLimit, Ask, Attributes, Decision, Demand, HasLimiter,
    LatencyReport, Limiter, ManualClock, MemoryStore, Span, Time, Traced,
};

type Still = Limiter<Traced<MemoryStore<ManualClock>>>;

const RULES: &str = "version: 1
rules:
  - { id: slots, per: [service], algorithm: concurrency, limit: 10, lease: 1h, adaptive: { min: 2, slow: 50ms } }
";

fn limiter(text: &str) -> (Still, ManualClock) {
    let clock = ManualClock::at(Time::from_micros(1_700_000_000_000_000));
    let config = tollgate::parse("rules.yaml", text, &|_| None).unwrap();
    (Limiter::with_clock(&config, clock.clone()).unwrap(), clock)
}

fn search() -> Attributes<'static> {
    Attributes::from([("service", "search")])
}

/// Takes slots until one is denied. Returns how many were free.
fn free_slots(limiter: &Still, attributes: &Attributes<'_>) -> usize {
    let mut held = Vec::new();
    while let AcquireOutcome::Granted { lease, token, .. } = limiter
        .try_acquire_now(attributes, &Acquire::default(), None)
        .unwrap()
    {
        held.push((lease.id, token));
    }
    for (id, token) in &held {
        limiter.free_now(id, *token).unwrap();
    }
    held.len()
}

/// Reports requests of this latency for ten seconds.
fn report(limiter: &Still, clock: &ManualClock, latency: Span) -> Vec<AdaptedLimit> {
    let report = LatencyReport {
        latency,
        in_flight: Some(10),
        ..LatencyReport::default()
    };
    let mut last = Vec::new();
    for _ in 0..1000 {
        clock.advance(Span::from_millis(10));
        last = limiter.snapshot().report(&search(), &report);
    }
    last
}

#[test]
fn reports_move_the_limit_between_min_and_the_limit_of_the_rule() {
    let (limiter, clock) = limiter(RULES);
    assert_eq!(free_slots(&limiter, &search()), 10);
    let slow = report(&limiter, &clock, Span::from_millis(200));
    let expected = AdaptedLimit {
        rule: "slots".to_owned(),
        limit: 2,
        ceiling: 10,
        degraded: true,
    };
    assert_eq!(slow, [expected]);
    assert_eq!(limiter.adapted_limits(), [("slots".into(), 2)]);
    assert_eq!(free_slots(&limiter, &search()), 2);
    let other = Attributes::from([("service", "mail")]);
    assert_eq!(
        free_slots(&limiter, &other),
        10,
        "each subject has its own limit"
    );
    let fast = report(&limiter, &clock, Span::from_millis(10));
    assert_eq!(fast[0].limit, 10);
    assert_eq!(limiter.adapted_limits(), [("slots".into(), 10)]);
    // Few requests in flight leave room.
    let idle = LatencyReport {
        latency: Span::from_millis(10),
        in_flight: Some(3),
        ..LatencyReport::default()
    };
    assert!(!limiter.snapshot().report(&search(), &idle)[0].degraded);
    assert_eq!(free_slots(&limiter, &search()), 10);
}

#[test]
fn decisions_tell_the_limit_in_force() {
    let (limiter, clock) = limiter(RULES);
    report(&limiter, &clock, Span::from_millis(200));
    let decision = limiter.peek_now(&search(), Ask::Exactly(1));
    assert_eq!(decision.rule().unwrap().limit(), Some(2));
}

/// Every way to decide a request sees the limit of this instance: alone, in a batch, and if it may wait.
#[tokio::test]
async fn batches_and_requests_that_may_wait_see_the_limit_in_force() {
    let rules = format!(
        "{RULES}  - {{ id: rate, algorithm: gcra, rate: 1000/s, burst: 100, max_wait: 1s }}\n"
    );
    let (limiter, clock) = limiter(&rules);
    let limiter = Arc::new(limiter);
    report(&limiter, &clock, Span::from_millis(200));
    let limit = |decision: &Decision| {
        let mut rules = decision.rules();
        rules.find(|it| it.rule().id() == "slots").unwrap().limit()
    };
    let one = Ask::Exactly(1);
    assert_eq!(limit(&limiter.ask(&search(), one).await), Some(2));
    let waits = limiter.ask_or_wait(&search(), one, Span::SECOND).await;
    assert_eq!(limit(&waits), Some(2));
    let batch = limiter.ask_all_now(&[Demand::take(search(), 1)]).unwrap();
    assert_eq!(limit(&batch.decisions()[0]), Some(2));
}

#[test]
fn limit_grows_only_while_slots_are_in_use() {
    let (limiter, clock) = limiter(RULES);
    report(&limiter, &clock, Span::from_millis(200));
    let fast = LatencyReport {
        latency: Span::from_millis(10),
        ..LatencyReport::default()
    };
    let idle = |limiter: &Still| {
        for _ in 0..1000 {
            clock.advance(Span::from_millis(10));
            let _ = limiter.snapshot().report(&search(), &fast);
        }
        free_slots(limiter, &search())
    };
    assert_eq!(idle(&limiter), 2, "no slot was held when a report came");
    // Now the limiter has seen both slots held.
    assert!(idle(&limiter) > 2);
}

#[test]
fn report_without_an_adaptive_rule_moves_nothing() {
    let rules = "{ version: 1, rules: [{ id: slots, algorithm: concurrency, limit: 10 }] }";
    let (limiter, clock) = limiter(rules);
    assert_eq!(report(&limiter, &clock, Span::from_secs(5)), []);
    assert_eq!(free_slots(&limiter, &search()), 10);
}

#[test]
fn subjects_with_a_limit_of_their_own_are_bounded() {
    let (limiter, clock) = limiter(RULES);
    let slow = LatencyReport {
        latency: Span::from_millis(200),
        failed: true,
        in_flight: Some(10),
    };
    for index in 0..10_000 {
        let name = format!("service-{index}");
        let attributes = Attributes::from([("service", name.as_str())]);
        let _ = limiter.snapshot().report(&attributes, &slow);
    }
    report(&limiter, &clock, Span::from_millis(200));
    assert_eq!(
        free_slots(&limiter, &search()),
        10,
        "there is no room for its limit"
    );
    // Subjects that are not reported any more make room.
    clock.advance(Span::from_secs(700));
    report(&limiter, &clock, Span::from_millis(200));
    assert_eq!(free_slots(&limiter, &search()), 2);
}
