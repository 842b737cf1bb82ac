//! The denial log: its fields, its bound and its cost.

#![allow(clippy::unwrap_used)] // Helpers of tests fail as tests do.

mod common;
#[path = "common/log.rs"]
mod log;

use common::{START, Setup};
use log::Log;
use serde_json::{Value, json};
use tollgate::{
    Attributes, Demand, Effect, Limit, Limiter, ManualClock, MemoryStore, REJECTIONS, Rate, Span,
    Traced,
};

const RULES: &str = "
version: 1
telemetry: { rejections_per_second: 3 }
rules:
  - id: login
    match: { action: login }
    per: [tenant, user]
    algorithm: fixed-window
    limit: 1
    window: 1m
  - { id: strict, match: { action: pay }, per: [card], missing: deny, algorithm: gcra, rate: 1/s }
  - { id: watched, state: shadow, match: { action: look }, algorithm: fixed-window, limit: 0, window: 1m }
";

fn limiter(clock: &ManualClock) -> Limiter<Traced<MemoryStore<ManualClock>>> {
    let config = tollgate_config::parse("rules.yaml", RULES, &|_| None).unwrap();
    Limiter::with_clock(&config, clock.clone()).unwrap()
}

fn login(user: &str) -> Attributes<'_> {
    Attributes::from([("action", "login"), ("tenant", "acme"), ("user", user)])
}

#[test]
fn denial_is_one_log_line_without_the_subject_in_clear() {
    let (log, clock) = (Log::default(), ManualClock::at(START));
    let (limiter, denied) = log.with(REJECTIONS, || {
        let limiter = limiter(&clock);
        assert!(limiter.check_now(&login("ann")).is_allowed());
        assert_eq!(
            log.take(),
            [Value::Null; 0],
            "an allowed request is not logged"
        );
        clock.advance(Span::from_millis(1));
        let denied = limiter.check_now(&login("ann"));
        (limiter, denied)
    });
    let subject = denied.rule().unwrap().subject().unwrap().to_string();
    let retry = denied.retry_after().unwrap().as_millis_ceil();
    let lines = log.take();
    assert_eq!(
        lines,
        [json!({
            "level": "INFO",
            "target": "tollgate::rejections",
            "message": "denied",
            "event": "rate_limit_denied",
            "ruleId": "login",
            "tenantId": "acme",
            "subjectType": "tenant+user",
            "subjectHashPrefix": subject[..8],
            "algorithm": "fixed-window",
            "limit": 1,
            "remaining": 0,
            "retryAfterMillis": retry,
            "kind": "rate",
            "reason": "exceeded",
            "action": "login",
            "door": "library",
            "numbersFrom": "limit 1 (rule), window 1m (rule)",
            "configVersion": limiter.rules().version(),
        })]
    );
    assert!(!lines[0].to_string().contains("ann"));
}

#[test]
fn denials_before_the_store_are_logged_and_shadow_denials_are_not() {
    let (log, clock) = (Log::default(), ManualClock::at(START));
    log.with(REJECTIONS, || {
        let limiter = limiter(&clock);
        assert!(limiter.check_now(&[("action", "look")].into()).is_allowed());
        assert!(!limiter.check_now(&[("action", "pay")].into()).is_allowed());
        // A peek is not a denial.
        let _ = limiter.peek_now(&[("action", "pay")].into(), tollgate::Ask::Exactly(1));
    });
    let lines = log.take();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert_eq!(lines[0]["ruleId"], "strict");
    assert_eq!(lines[0]["reason"], "missing_attribute");
    assert_eq!(lines[0].get("subjectHashPrefix"), None);
    assert_eq!(lines[0].get("tenantId"), None);
}

#[test]
fn denials_above_the_bound_are_counted_in_the_next_line() {
    let (log, clock) = (Log::default(), ManualClock::at(START));
    log.with(REJECTIONS, || {
        let limiter = limiter(&clock);
        let _ = limiter.check_now(&login("ann"));
        for _ in 0..10 {
            assert!(!limiter.check_now(&login("ann")).is_allowed());
        }
        let lines = log.take();
        assert_eq!(lines.len(), 3);
        assert!(lines.iter().all(|line| line.get("suppressed").is_none()));
        clock.advance(Span::SECOND);
        for _ in 0..2 {
            assert!(!limiter.check_now(&login("ann")).is_allowed());
        }
        let lines = log.take();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0]["suppressed"], 7);
        assert_eq!(lines[1].get("suppressed"), None);
    });
}

#[test]
fn rule_that_logs_all_is_not_bounded() {
    let (log, clock) = (Log::default(), ManualClock::at(START));
    let rules = RULES.replace("- id: login", "- id: login\n    log_denials: all");
    let config = tollgate_config::parse("rules.yaml", &rules, &|_| None).unwrap();
    log.with(REJECTIONS, || {
        let limiter = Limiter::with_clock(&config, clock).unwrap();
        for _ in 0..11 {
            let _ = limiter.check_now(&login("ann"));
            let _ = limiter.check_now(&[("action", "pay")].into());
        }
    });
    let lines = log.take();
    let of = |rule| lines.iter().filter(|line| line["ruleId"] == rule).count();
    assert_eq!((of("login"), of("strict")), (10, 3));
}

#[test]
fn bound_of_zero_logs_nothing() {
    let (log, clock) = (Log::default(), ManualClock::at(START));
    let rules = RULES.replace("rejections_per_second: 3", "rejections_per_second: 0");
    let config = tollgate_config::parse("rules.yaml", &rules, &|_| None).unwrap();
    log.with(REJECTIONS, || {
        let limiter = Limiter::with_clock(&config, clock).unwrap();
        assert!(!limiter.check_now(&[("action", "pay")].into()).is_allowed());
    });
    assert_eq!(log.take(), [Value::Null; 0]);
}

#[test]
fn denied_demands_of_a_batch_are_logged() {
    let (log, clock) = (Log::default(), ManualClock::at(START));
    log.with(REJECTIONS, || {
        let limiter = limiter(&clock);
        let _ = limiter.check_now(&login("ann"));
        let mut look = Demand::take(login("ann"), 1);
        look.effect = Effect::Look;
        let demands = [
            Demand::take(login("bob"), 1),
            Demand::take(login("ann"), 1),
            look,
        ];
        assert!(!limiter.ask_all_now(&demands).unwrap().is_allowed());
        assert_eq!(log.take().len(), 2);
        clock.advance(Span::SECOND);
        assert!(limiter.ask_all_now(&demands[..1]).unwrap().is_allowed());
        assert_eq!(log.take().len(), 0);
    });
}

#[test]
fn denial_of_an_ad_hoc_limit_is_logged_without_its_key() {
    let (log, clock) = (Log::default(), ManualClock::at(START));
    let limit = Limit::gcra(Rate::new(1, Span::MINUTE).unwrap(), 1).unwrap();
    log.with(REJECTIONS, || {
        let limiter = limiter(&clock);
        let allowed = [1, 1, 2].map(|cost| {
            let throttled = limiter.throttle_now(b"ann@example.com", &limit, cost);
            throttled.unwrap().is_allowed()
        });
        assert_eq!(allowed, [true, false, false]);
    });
    let lines = log.take();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert_eq!(lines[0]["ruleId"], "@throttle");
    assert_eq!(lines[0]["subjectType"], "key");
    assert_eq!(lines[0]["subjectHashPrefix"].as_str().unwrap().len(), 8);
    assert_eq!(lines[0]["algorithm"], "gcra");
    assert_eq!(lines[0]["retryAfterMillis"], 60_000);
    assert_eq!(lines[1]["reason"], "never_fits");
    assert_eq!(lines[1].get("retryAfterMillis"), None);
    assert!(!format!("{lines:?}").contains("ann"));
}

#[test]
fn known_denials_are_logged_without_latency() {
    let log = Log::default();
    log.with(REJECTIONS, || {
        let rule = "  - { id: login, per: [user], algorithm: fixed-window, limit: 1, window: 1m }";
        let setup = Setup::new(rule);
        for _ in 0..3 {
            setup.check("ann");
        }
        setup.store_is_down(true);
        setup.check("bob");
    });
    let lines = log.take();
    let latencies: Vec<_> = lines
        .iter()
        .map(|it| it.get("redisLatencyMillis"))
        .collect();
    // The clock of the test does not advance.
    assert_eq!(latencies, [Some(&json!(0.0)), None, Some(&json!(0.0))]);
    assert_eq!(lines[2]["reason"], "store_unavailable");
}

#[test]
fn denial_above_the_bound_allocates_nothing() {
    let (log, clock) = (Log::default(), ManualClock::at(START));
    let limit = Limit::gcra(Rate::new(1, Span::MINUTE).unwrap(), 1).unwrap();
    log.with(REJECTIONS, || {
        let limiter = limiter(&clock);
        let deny = || {
            assert!(!limiter.check_now(&login("ann")).is_allowed());
            assert!(
                !limiter
                    .throttle_now(b"key", &limit, 1)
                    .unwrap()
                    .is_allowed()
            );
        };
        let _ = limiter.check_now(&login("ann"));
        let _ = limiter.throttle_now(b"key", &limit, 1);
        for _ in 0..3 {
            deny();
        }
        assert_eq!(log.take().len(), 3);
        let counted = allocation_counter::measure(deny);
        assert_eq!(counted.count_total, 0, "{counted:?}");
    });
}
