//! Near-limit events: when they happen and what they contain. Each one happens exactly once.

#![allow(clippy::unwrap_used, clippy::panic)] // Helpers of tests fail as tests do.

mod common;
#[path = "common/log.rs"]
mod log;

use std::sync::{Arc, Mutex};

use common::{START, Setup};
use log::Log;
use serde_json::json;
use tollgate::{
    Acquire, ActiveConfig, Ask, Attributes, Config, Demand, EVENTS, Effect, Engine, Event,
    EventKind, Limiter, ManualClock, MemoryStore, Reserve, ReserveOutcome, Span, Traced,
};
use tollgate_conformance::block_on;
use tollgate_rig::Redis;

/// The events since the last `take`.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<Arc<Event>>>>);

impl Seen {
    fn of(active: &ActiveConfig) -> Seen {
        let seen = Seen::default();
        seen.listen(active);
        seen
    }

    fn listen(&self, active: &ActiveConfig) {
        let seen = self.clone();
        active
            .events()
            .listen(move |event| seen.0.lock().unwrap().push(Arc::clone(event)));
    }

    fn take(&self) -> Vec<Arc<Event>> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }

    /// Returns the thresholds and usages of the events. The threshold of an exhausted quota is `None`.
    fn steps(&self) -> Vec<(Option<u8>, u64)> {
        let all = self.take();
        all.iter().map(|it| (it.threshold, it.used)).collect()
    }

    fn thresholds(&self) -> Vec<Option<u8>> {
        self.steps().into_iter().map(|(it, _)| it).collect()
    }
}

fn limiter(rules: &str) -> (Limiter<Traced<MemoryStore<ManualClock>>>, ManualClock, Seen) {
    let text = format!("version: 1\n{rules}");
    let config = tollgate_config::parse("rules.yaml", &text, &|_| None).unwrap();
    let clock = ManualClock::at(START);
    let limiter = Limiter::with_clock(&config, clock.clone()).unwrap();
    let seen = Seen::of(&limiter.active());
    (limiter, clock, seen)
}

const MONTHLY: &str = "rules:\n- { id: monthly, per: [tenant], algorithm: quota, limit: 100, period: month, grace: 10 }\n";
const DAILY: &str =
    "rules:\n- { id: daily, per: [tenant], algorithm: quota, limit: 10, period: day }\n";

const YEARLY: &str =
    "rules:\n- { id: yearly, per: [tenant], algorithm: quota, limit: 10, period: year }\n";

/// Makes a config with a yearly quota on Redis.
fn on_redis(redis: &Redis, limit: u64) -> Config {
    let text = format!(
        "version: 1\nsubjects: {{ hash_secret: 0123456789abcdef }}\n\
         store: {{ redis: {{ url: \"{}\", timeout: 5s }} }}\n\
         rules:\n- {{ id: yearly, per: [tenant], algorithm: quota, limit: {limit}, period: year, \
         on_store_failure: fail-closed }}\n",
        redis.url()
    );
    tollgate_config::parse("rules.yaml", &text, &|_| None).unwrap()
}

fn acme() -> Attributes<'static> {
    Attributes::from([("tenant", "acme"), ("action", "search")])
}

#[test]
fn each_threshold_raises_one_event() {
    let (limiter, _, seen) = limiter(MONTHLY);
    let mut answer = Vec::new();
    for request in 1..=115 {
        let allowed = limiter.check_now(&acme()).is_allowed();
        assert_eq!(allowed, request <= 110);
        answer.extend(seen.steps().into_iter().map(|step| (request, step)));
    }
    let expected = [
        (80, (Some(80), 80)),
        (90, (Some(90), 90)),
        (100, (Some(100), 100)),
        (110, (None, 110)),
    ];
    assert_eq!(answer, expected);
}

#[test]
fn event_has_tenant_action_usage_and_period() {
    let (limiter, _, seen) = limiter(MONTHLY);
    let decision = limiter.ask_now(&acme(), Ask::Exactly(85));
    let [event] = &seen.take()[..] else { panic!() };
    assert_eq!(event.kind, EventKind::NearLimit);
    assert_eq!((&*event.rule, event.at), ("monthly", START));
    let names = (event.tenant.as_deref(), event.action.as_deref());
    assert_eq!(names, (Some("acme"), Some("search")));
    assert_eq!(Some(event.subject), decision.rule().unwrap().subject());
    assert_eq!((event.used, event.limit, event.grace), (85, 100, 10));
    // START is in November 2023.
    let (start, end) = (event.period.start, event.period.end);
    assert_eq!(start.as_micros(), 1_698_796_800_000_000);
    assert_eq!(end.as_micros(), 1_701_388_800_000_000);
    assert_eq!(decision.rule().unwrap().reset_at(), Some(end));
}

#[test]
fn one_request_may_cross_several_thresholds() {
    let (limiter, _, seen) = limiter(DAILY);
    assert!(limiter.ask_now(&acme(), Ask::Exactly(10)).is_allowed());
    let kinds: Vec<_> = seen.take().iter().map(|it| it.kind.name()).collect();
    assert_eq!(
        kinds,
        ["near_limit", "near_limit", "limit_reached", "exhausted"]
    );
}

#[test]
fn up_to_counts_the_granted_units() {
    let (limiter, _, seen) = limiter(DAILY);
    assert_eq!(limiter.ask_now(&acme(), Ask::Exactly(7)).granted(), 7);
    assert_eq!(seen.steps(), []);
    assert_eq!(limiter.ask_now(&acme(), Ask::UpTo(2)).granted(), 2);
    assert_eq!(seen.steps(), [(Some(80), 9), (Some(90), 9)]);
    assert_eq!(limiter.ask_now(&acme(), Ask::UpTo(50)).granted(), 1);
    assert_eq!(seen.steps(), [(Some(100), 10), (None, 10)]);
}

#[test]
fn next_period_raises_events_again() {
    let (limiter, clock, seen) = limiter(DAILY);
    for day in 0..3 {
        let now = limiter.ask_now(&acme(), Ask::Exactly(8)).decided_at();
        let events = seen.take();
        assert_eq!(events.len(), 1, "day {day}");
        let period = events[0].period;
        assert!(period.start <= now && now < period.end);
        clock.advance(Span::DAY);
    }
}

#[test]
fn denied_requests_peeks_and_shadow_rules_raise_no_events() {
    let rules = "rules:
- { id: daily, per: [tenant], algorithm: quota, limit: 10, period: day }
- { id: rate, per: [tenant], algorithm: fixed-window, limit: 5, window: 1h }
- { id: watch, per: [tenant], state: shadow, algorithm: quota, limit: 2, period: day }
- { id: strict, match: { action: pay }, per: [card], missing: deny, algorithm: quota, limit: 1, period: day }
";
    let (limiter, _, seen) = limiter(rules);
    let _ = limiter.peek_now(&acme(), Ask::Exactly(9));
    assert!(!limiter.ask_now(&acme(), Ask::Exactly(9)).is_allowed());
    let pay = Attributes::from([("tenant", "acme"), ("action", "pay")]);
    assert!(!limiter.ask_now(&pay, Ask::Exactly(5)).is_allowed());
    assert!(limiter.ask_now(&acme(), Ask::Exactly(5)).is_allowed());
    assert_eq!(seen.steps(), [], "neither a rate nor a shadow has events");
}

#[test]
fn refunded_usage_raises_its_event_again() {
    let (limiter, _, seen) = limiter(DAILY);
    let decision = limiter.ask_now(&acme(), Ask::Exactly(8));
    assert_eq!(seen.thresholds(), [Some(80)]);
    let _ = limiter.refund_now(&acme(), 3, decision.decided_at());
    assert_eq!(seen.steps(), []);
    let _ = limiter.ask_now(&acme(), Ask::Exactly(3));
    assert_eq!(seen.thresholds(), [Some(80)]);
}

#[test]
fn carried_over_amount_is_used_first() {
    let rules = "rules:\n- { id: daily, per: [tenant], algorithm: quota, limit: 10, period: day, carry_over: 5 }\n";
    let (limiter, clock, seen) = limiter(rules);
    let _ = limiter.ask_now(&acme(), Ask::Exactly(1));
    clock.advance(Span::DAY);
    let _ = limiter.ask_now(&acme(), Ask::Exactly(12));
    assert_eq!(seen.steps(), [], "7 of 10 after the 5 of yesterday");
    let _ = limiter.ask_now(&acme(), Ask::Exactly(1));
    assert_eq!(seen.steps(), [(Some(80), 8)]);
    let _ = limiter.ask_now(&acme(), Ask::Exactly(2));
    assert_eq!(seen.steps(), [(Some(90), 10), (Some(100), 10), (None, 10)]);
}

#[test]
fn event_of_a_budget_has_its_name_and_is_raised_once() {
    let rules = "
budgets: { tokens: { per: [tenant], algorithm: quota, limit: 100, period: month } }
rules:
- { id: input, budget: tokens, cost: 30 }
- { id: output, budget: tokens, cost: 15 }
";
    let (limiter, _, seen) = limiter(rules);
    assert!(limiter.check_now(&acme()).is_allowed());
    assert_eq!(seen.steps(), []);
    assert!(limiter.check_now(&acme()).is_allowed());
    let events = seen.take();
    let answer: Vec<_> = events
        .iter()
        .map(|it| (&*it.rule, it.threshold, it.used))
        .collect();
    assert_eq!(answer, [("tokens", Some(80), 90), ("tokens", Some(90), 90)]);
}

#[test]
fn event_of_a_batch_has_the_tenant_of_its_demand() {
    let (limiter, _, seen) = limiter(DAILY);
    let of = |tenant, units| Demand::take(Attributes::from([("tenant", tenant)]), units);
    let look = Demand {
        effect: Effect::Look,
        ..of("corp", 1)
    };
    let demands = [of("acme", 5), look, of("corp", 9), of("acme", 4)];
    assert!(limiter.ask_all_now(&demands).unwrap().is_allowed());
    let mut answer: Vec<_> = seen
        .take()
        .iter()
        .map(|it| {
            (
                it.tenant.as_deref().unwrap().to_owned(),
                it.threshold.unwrap(),
                it.used,
            )
        })
        .collect();
    answer.sort();
    let expected = [
        ("acme", 80, 9),
        ("acme", 90, 9),
        ("corp", 80, 9),
        ("corp", 90, 9),
    ];
    assert_eq!(answer, expected.map(|(t, p, u)| (t.to_owned(), p, u)));
    assert!(
        !limiter
            .ask_all_now(&[of("acme", 1), of("corp", 2)])
            .unwrap()
            .is_allowed()
    );
    assert_eq!(seen.steps(), []);
}

#[test]
fn reservations_and_leases_raise_events() {
    let rules = "rules:
- { id: daily, per: [tenant], algorithm: quota, limit: 10, period: day }
- { id: slots, match: { action: hold }, per: [tenant], algorithm: concurrency, limit: 3 }
";
    let (limiter, _, seen) = limiter(rules);
    let request = Reserve {
        units: 8,
        idempotency_key: Some("one"),
        ..Reserve::default()
    };
    let ReserveOutcome::Held { hold, .. } = limiter.reserve_now(&acme(), &request).unwrap() else {
        panic!()
    };
    assert_eq!(seen.steps(), [(Some(80), 8)]);
    let _ = limiter.reserve_now(&acme(), &request).unwrap();
    assert_eq!(seen.steps(), [], "a repetition takes nothing");
    limiter.commit_now(&hold.id, 5).unwrap();
    assert_eq!(seen.steps(), []);
    let _ = limiter.ask_now(&acme(), Ask::Exactly(3));
    assert_eq!(seen.steps(), [(Some(80), 8)]);
    let hold = Attributes::from([("tenant", "acme"), ("action", "hold")]);
    let _ = limiter
        .try_acquire_now(&hold, &Acquire::default(), None)
        .unwrap();
    assert_eq!(seen.steps(), [(Some(90), 9)]);
}

#[test]
fn sixty_four_threads_cross_each_threshold_once() {
    let rules = "version: 1\nrules:\n- { id: yearly, per: [tenant], algorithm: quota, limit: 1000, period: year, grace: 100 }\n";
    let limiter = Limiter::from_yaml("rules.yaml", rules).unwrap();
    let seen = Seen::of(&limiter.active());
    let admitted: usize = std::thread::scope(|scope| {
        let work = |_| {
            let limiter = &limiter;
            scope.spawn(move || {
                (0..30)
                    .filter(|_| limiter.check_now(&acme()).is_allowed())
                    .count()
            })
        };
        let threads: Vec<_> = (0..64).map(work).collect();
        threads.into_iter().map(|it| it.join().unwrap()).sum()
    });
    assert_eq!(admitted, 1100);
    let mut answer = seen.steps();
    answer.sort();
    let expected = [
        (None, 1100),
        (Some(80), 800),
        (Some(90), 900),
        (Some(100), 1000),
    ];
    assert_eq!(answer, expected);
    let counts = limiter.active().events().counts(&limiter.rules());
    assert!(counts.iter().all(|it| it.events == 1), "{counts:?}");
    assert_eq!(counts.len(), 4);
}

#[test]
fn two_engines_on_one_redis_cross_each_threshold_once() {
    let redis = Redis::start();
    let config = on_redis(&redis, 1000);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let seen = Seen::default();
        let mut tasks = Vec::new();
        for _ in 0..2 {
            let engine = Arc::new(Engine::start(&config).await.unwrap());
            seen.listen(&engine.active());
            for _ in 0..32 {
                let engine = Arc::clone(&engine);
                tasks.push(tokio::spawn(async move {
                    let mut admitted = 0;
                    for _ in 0..20 {
                        let decision = engine.ask(&acme(), Ask::Exactly(1)).await;
                        admitted += usize::from(decision.is_allowed());
                    }
                    admitted
                }));
            }
        }
        let mut admitted = 0;
        for task in tasks {
            admitted += task.await.unwrap();
        }
        assert_eq!(admitted, 1000);
        let mut answer = seen.steps();
        answer.sort();
        let expected = [
            (None, 1000),
            (Some(80), 800),
            (Some(90), 900),
            (Some(100), 1000),
        ];
        assert_eq!(answer, expected);
    });
}

#[tokio::test]
async fn reservations_on_redis_raise_events() {
    let redis = Redis::start();
    let engine = Engine::start(&on_redis(&redis, 10)).await.unwrap();
    let seen = Seen::of(&engine.active());
    let request = Reserve {
        units: 8,
        ..Reserve::default()
    };
    engine.reserve(&acme(), &request).await.unwrap();
    assert_eq!(seen.steps(), [(Some(80), 8)]);
    assert!(!engine.ask(&acme(), Ask::Exactly(3)).await.is_allowed());
    let demands = [Demand::take(acme(), 1), Demand::take(acme(), 1)];
    assert!(engine.ask_all(&demands).await.unwrap().is_allowed());
    assert_eq!(seen.steps(), [(Some(90), 9), (Some(100), 10), (None, 10)]);
}

#[tokio::test]
async fn each_threshold_raises_one_event_with_a_ledger() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger.db");
    let strict = "{ id: strict, match: { action: pay }, per: [tenant], algorithm: quota, limit: 10, period: year, durability: strict }";
    let text = format!(
        "version: 1\nledger: {{ sqlite: {} }}\nsubjects: {{ hash_secret: 0123456789abcdef }}\n\
         {YEARLY}- {strict}\n",
        path.display()
    );
    let config = tollgate_config::parse("rules.yaml", &text, &|_| None).unwrap();
    let engine = Engine::start(&config).await.unwrap();
    let seen = Seen::of(&engine.active());
    for _ in 0..9 {
        assert!(engine.ask(&acme(), Ask::Exactly(1)).await.is_allowed());
    }
    assert_eq!(seen.steps(), [(Some(80), 8), (Some(90), 9)]);
    let pay = Attributes::from([("tenant", "corp"), ("action", "pay")]);
    assert!(engine.ask(&pay, Ask::Exactly(8)).await.is_allowed());
    assert_eq!(
        seen.steps(),
        [(Some(80), 8), (Some(80), 8)],
        "of both rules"
    );
    engine.close().await;
}

#[test]
fn every_path_raises_events_and_failure_policies_raise_none() {
    let setup = Setup::new(
        "- { id: daily, per: [user], algorithm: quota, limit: 10, period: day, on_store_failure: local-fallback }\n\
         - { id: slots, match: { action: hold }, per: [user], algorithm: concurrency, limit: 3, on_store_failure: fail-open }",
    );
    let seen = Seen::of(&setup.limiter.active());
    setup.store_is_down(true);
    assert!(setup.ask("ann", Ask::Exactly(9)).is_allowed());
    assert_eq!(seen.steps(), [], "a share of the limit is not the limit");
    setup.store_is_down(false);
    assert!(setup.ask("ann", Ask::Exactly(8)).is_allowed());
    assert_eq!(seen.steps(), [(Some(80), 8)]);
    let ann = Attributes::from([("user", "ann")]);
    let demands = [Demand::take(ann.clone(), 1)];
    block_on(setup.limiter.ask_all(&demands)).unwrap();
    assert_eq!(seen.steps(), [(Some(90), 9)]);
    let request = Reserve {
        units: 1,
        ..Reserve::default()
    };
    block_on(setup.limiter.reserve(&ann, &request)).unwrap();
    assert_eq!(seen.steps(), [(Some(100), 10), (None, 10)]);
    let bob = Attributes::from([("user", "bob"), ("action", "hold")]);
    assert!(setup.ask("bob", Ask::Exactly(7)).is_allowed());
    block_on(setup.limiter.try_acquire(&bob, &Acquire::default(), None)).unwrap();
    assert_eq!(seen.steps(), [(Some(80), 8)]);
}

#[test]
fn thresholds_come_from_the_config() {
    let (with_two, _, seen) = limiter(&format!("events: {{ near_limit: [50, 95] }}\n{DAILY}"));
    let _ = with_two.ask_now(&acme(), Ask::Exactly(10));
    assert_eq!(seen.thresholds(), [Some(50), Some(95), None]);
    let (without, _, seen) = limiter(&format!("events: {{ near_limit: [] }}\n{DAILY}"));
    let _ = without.ask_now(&acme(), Ask::Exactly(10));
    assert_eq!(seen.steps(), []);
    assert_eq!(without.active().events().counts(&without.rules()), []);
}

#[test]
fn counts_and_listeners_survive_a_reload() {
    let (limiter, _, seen) = limiter(DAILY);
    let _ = limiter.ask_now(&acme(), Ask::Exactly(8));
    let more =
        format!("version: 1\n{DAILY}- {{ id: other, algorithm: quota, limit: 10, period: day }}\n");
    let config = tollgate_config::parse("rules.yaml", &more, &|_| None).unwrap();
    assert!(limiter.reload(&config).needs_restart.is_empty());
    let _ = limiter.ask_now(&acme(), Ask::Exactly(1));
    assert_eq!(seen.thresholds(), [Some(80), Some(90)]);
    let counts = limiter.active().events().counts(&limiter.rules());
    let counts: Vec<_> = counts.iter().map(|it| (&*it.rule, it.events)).collect();
    let expected = [("daily", 1), ("daily", 1), ("daily", 0), ("daily", 0)];
    assert_eq!(counts[..4], expected);
    assert_eq!(counts[4..], [("other", 0); 4]);
}

#[test]
fn quota_check_without_event_allocates_nothing() {
    let (limiter, _, _) = limiter(MONTHLY);
    let acme = acme();
    let check = || drop(limiter.check_now(&acme));
    (0..85).for_each(|_| check());
    let counted = allocation_counter::measure(check);
    assert_eq!(counted.count_total, 0, "{counted:?}");
}

/// A subscriber that records nothing and never disables a log line for good.
struct Undecided;

impl tracing::Subscriber for Undecided {
    fn register_callsite(
        &self,
        _: &'static tracing::Metadata<'static>,
    ) -> tracing::subscriber::Interest {
        tracing::subscriber::Interest::sometimes()
    }

    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        false
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {}

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

/// Runs `test` with `log`. Other tests run at the same time without a subscriber of their own. Without
/// the global subscriber, `tracing` would remember their log lines as disabled.
fn logged<T>(log: &Log, test: impl FnOnce() -> T) -> T {
    let _ = tracing::subscriber::set_global_default(Undecided);
    log.with(EVENTS, test)
}

#[test]
fn event_is_one_log_line_without_the_subject_in_clear() {
    let log = Log::default();
    let rules = "rules:\n- { id: monthly, per: [tenant, user], algorithm: quota, limit: 10, period: month }\n";
    let (limiter, _, seen) = limiter(rules);
    let ann = Attributes::from([("tenant", "acme"), ("user", "ann")]);
    logged(&log, || {
        let _ = limiter.ask_now(&ann, Ask::Exactly(8));
        let _ = limiter.ask_now(&ann, Ask::Exactly(2));
    });
    let (lines, events) = (log.take(), seen.take());
    let levels: Vec<_> = lines.iter().map(|it| it["level"].clone()).collect();
    assert_eq!(levels, ["INFO", "INFO", "WARN", "WARN"]);
    assert_eq!(
        lines[0],
        json!({
            "level": "INFO",
            "target": "tollgate::events",
            "message": "a quota is nearly used up",
            "id": events[0].id.to_string(),
            "kind": "near_limit",
            "rule": "monthly",
            "tenant": "acme",
            "subject": events[0].subject.to_string()[..8],
            "threshold": 80,
            "used": 8,
            "limit": 10,
            "period_start": 1_698_796_800,
            "period_end": 1_701_388_800,
        })
    );
    assert!(lines.iter().all(|it| !it.to_string().contains("ann")));
}

#[test]
fn log_lines_are_bounded_per_second_and_suppressed_ones_counted() {
    let log = Log::default();
    let (limiter, clock, seen) = limiter(DAILY);
    logged(&log, || {
        let cross = |tenant: String| {
            let _ = limiter.ask_now(
                &Attributes::from([("tenant", tenant.as_str())]),
                Ask::Exactly(8),
            );
        };
        (0..150).for_each(|it| cross(format!("tenant{it}")));
        assert_eq!(log.take().len(), 100);
        clock.advance(Span::SECOND);
        cross("another".to_owned());
    });
    assert_eq!(log.take()[0]["suppressed"], 50);
    assert_eq!(seen.take().len(), 151, "only the log is bounded");
}

#[test]
fn config_in_the_docs_is_valid() {
    let docs = include_str!("../../../docs/events.md");
    let block = docs.split("```yaml\n").nth(1).unwrap();
    let block = block.split("```").next().unwrap();
    let env = |_: &str| Some("0123456789abcdef".to_owned());
    let config = tollgate_config::parse("docs", block, &env).unwrap();
    assert_eq!(config.events.webhook.unwrap().attempts, 8);
}
