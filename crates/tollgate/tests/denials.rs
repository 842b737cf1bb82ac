//! The feed of denials: which denials are sent, with which facts, and at which cost.

#![allow(clippy::unwrap_used)] // Helpers of tests fail as tests do.

mod common;

use std::sync::Arc;

use common::{START, Setup, config};
use tollgate::{
    Acquire, AcquireOutcome, Ask, Attributes, Demand, DeniedRequest, Limit, Limiter, ManualClock,
    MemoryStore, Numbers, Override, Rate, RequestOrigin, Reserve, ReserveOutcome, Span, Traced,
};
use tollgate_conformance::block_on;

type Local = Limiter<Traced<MemoryStore<ManualClock>>>;

fn limiter(rules: &str) -> (Local, ManualClock) {
    let clock = ManualClock::at(START);
    let limiter = Limiter::with_clock(&config(rules), clock.clone()).unwrap();
    (limiter, clock)
}

fn user(user: &str) -> Attributes<'_> {
    Attributes::from([("user", user), ("tenant", "acme"), ("action", "login")])
}

/// The rule, the reason, and the failure policy of a denial.
fn summary(denial: &DeniedRequest) -> (String, &'static str, Option<&'static str>) {
    let policy = denial.policy.map(tollgate::FailurePolicy::name);
    (denial.rule().to_owned(), denial.reason, policy)
}

#[test]
fn denial_has_the_numbers_and_their_source() {
    let text = "
version: 1
plans: { free: { login: { limit: 2 } } }
tenants: { acme: { plan: free } }
rules:
  - { id: login, per: [tenant, user], algorithm: fixed-window, limit: 5, window: 1m }
  - { id: all, per: [tenant], algorithm: fixed-window, limit: 900, window: 1m }
";
    let config = tollgate_config::parse("rules.yaml", text, &|_| None).unwrap();
    let limiter = Limiter::with_clock(&config, ManualClock::at(START)).unwrap();
    let reader = limiter.read_denials(8).unwrap();
    assert!(limiter.read_denials(8).is_none(), "there is one reader");
    let allowed = [0; 3].map(|_| limiter.check_now(&user("ann")).is_allowed());
    assert_eq!(allowed, [true, true, false]);
    let denial = reader.next().unwrap();
    assert!(reader.next().is_none(), "allowed requests are not sent");
    assert_eq!(summary(&denial), ("login".to_owned(), "exceeded", None));
    assert_eq!((denial.limit, denial.remaining), (Some(2), Some(0)));
    assert_eq!(denial.at, START);
    assert!(denial.retry_after.unwrap() > Span::ZERO);
    assert_eq!(denial.subject_type(), Some("tenant+user"));
    assert_eq!(
        (denial.tenant(), denial.action()),
        (Some("acme"), Some("login"))
    );
    assert_eq!(
        (denial.algorithm(), denial.kind),
        (Some("fixed-window"), "rate")
    );
    assert_eq!(denial.origin, RequestOrigin::default());
    let source = denial.source().unwrap();
    assert_eq!(source.numbers, "limit 2 (plan free), window 1m (rule)");
    assert_eq!(source.by_override, None);
    let given = limiter.active().subjects_of(&user("ann"));
    let found: Vec<_> = denial.subjects().collect();
    assert_eq!(Some(found[0]), denial.subject());
    assert!(found.iter().all(|it| given.contains(it)));
    // The denial is found by the subject, and by each attribute of it.
    for attribute in [("tenant", "acme"), ("user", "ann")] {
        let alone = limiter.active().subjects_of(&[attribute].into());
        assert!(found.iter().any(|it| alone.contains(it)), "{attribute:?}");
    }
    let other = limiter.active().subjects_of(&[("user", "bob")].into());
    assert!(!found.iter().any(|it| other.contains(it)));
}

#[test]
fn blocked_request_is_found_by_the_blocked_subject() {
    let (limiter, _) = limiter(
        "  - { id: login, per: [tenant], algorithm: fixed-window, limit: 5, window: 1m }\n",
    );
    let reader = limiter.read_denials(8).unwrap();
    let text = r#"{ "subject": "user=ann", "for": "1h", "reason": "leaked" }"#;
    let now = START.as_millis_ceil();
    let block = Override::parse_block(text, now, limiter.rules().keyring()).unwrap();
    limiter.set_overrides(Arc::new([Arc::new(block)]));
    assert!(!limiter.check_now(&user("ann")).is_allowed());
    let denial = reader.next().unwrap();
    assert_eq!(summary(&denial), ("@block".to_owned(), "blocked", None));
    assert_eq!((denial.subject_type(), denial.limit), (Some("user"), None));
    assert_eq!(denial.retry_after, Some(Span::HOUR));
    assert_eq!((denial.source(), denial.algorithm()), (None, None));
    for attribute in [("tenant", "acme"), ("user", "ann")] {
        let alone = limiter.active().subjects_of(&[attribute].into());
        assert!(
            denial.subjects().any(|it| alone.contains(&it)),
            "{attribute:?}"
        );
    }
}

#[test]
fn override_that_caused_the_denial_is_named() {
    let (limiter, _) = limiter(
        "  - { id: login, per: [tenant], algorithm: fixed-window, limit: 5, window: 1m }\n\
         \x20 - { id: off, state: shadow, match: { action: pay }, algorithm: fixed-window, limit: 0, window: 1m }\n",
    );
    let reader = limiter.read_denials(8).unwrap();
    let text = r#"{ "tenant": "acme", "rule": "login", "scale": "20%", "reason": "load" }"#;
    let scaled = Override::parse(text, 0).unwrap();
    let text = r#"{ "rule": "off", "state": "enforce", "for": "1h", "reason": "attack" }"#;
    let enforced = Override::parse(text, 0).unwrap();
    limiter.set_overrides(Arc::new([Arc::new(scaled), Arc::new(enforced)]));
    let allowed = [0; 2].map(|_| limiter.check_now(&user("ann")).is_allowed());
    assert_eq!(allowed, [true, false]);
    let source = reader.next().unwrap().source().unwrap();
    assert_eq!(source.by_override.as_deref(), Some("tenant:acme/login"));
    assert_eq!(
        source.numbers,
        "limit 5 (rule), window 1m (rule), scale 20% (override tenant:acme/login: load)"
    );
    assert!(!limiter.check_now(&[("action", "pay")].into()).is_allowed());
    let source = reader.next().unwrap().source().unwrap();
    assert_eq!(source.by_override.as_deref(), Some("everyone/off"));
}

#[test]
fn numbers_that_the_request_brings_are_told() {
    let (limiter, _) = limiter(
        "  - { id: api, per: [user], algorithm: fixed-window, limit: 5, window: 1m, limit_from: attributes.most, ceiling: 100 }\n",
    );
    let reader = limiter.read_denials(8).unwrap();
    let asking = Attributes::from([("user", "ann"), ("most", "1")]);
    assert!(limiter.check_now(&asking).is_allowed());
    assert!(!limiter.check_now(&asking).is_allowed());
    let source = reader.next().unwrap().source().unwrap();
    let expected = "limit 5 (rule), window 1m (rule), limit_from (attribute most)";
    assert_eq!(source.numbers, expected);
    // A value that is not a limit is ignored.
    let wrong = Attributes::from([("user", "bob"), ("most", "many")]);
    let _ = limiter.ask_now(&wrong, Ask::Exactly(6));
    let source = reader.next().unwrap().source().unwrap();
    assert_eq!(source.numbers, "limit 5 (rule), window 1m (rule)");
    let mut demand = Demand::take(user("cat"), 2);
    demand.numbers = Some(Numbers {
        amount: 1,
        period: Span::MINUTE,
    });
    assert!(!limiter.ask_all_now(&[demand]).unwrap().is_allowed());
    let denial = reader.next().unwrap();
    assert_eq!(denial.limit, Some(1));
    let expected = "limit 5 (rule), window 1m (rule), limit (request)";
    assert_eq!(denial.source().unwrap().numbers, expected);
}

#[test]
fn every_kind_of_denial_is_sent() {
    let (limiter, clock) = limiter(
        "  - { id: login, match: { action: login }, per: [user], algorithm: fixed-window, limit: 1, window: 1s, backoff: { after: 1, base: 1h } }\n\
         \x20 - { id: strict, match: { action: pay }, per: [card], missing: deny, algorithm: gcra, rate: 1/s }\n\
         \x20 - { id: month, match: { action: tokens }, per: [user], algorithm: quota, limit: 3, period: month }\n\
         \x20 - { id: slots, match: { action: run }, per: [user], algorithm: concurrency, limit: 1, lease: 30s }\n",
    );
    let reader = limiter.read_denials(32).unwrap();
    let attributes = |action| Attributes::from([("action", action), ("user", "ann")]);
    let next = || summary(&reader.next().unwrap());
    let sent = |rule: &str, reason: &'static str| (rule.to_owned(), reason, None);
    // A rate, and then its back-off, when the rate itself would allow the request again.
    let allowed = [0; 3].map(|_| limiter.check_now(&attributes("login")).is_allowed());
    assert_eq!(allowed, [true, false, false]);
    assert_eq!(next(), sent("login", "exceeded"));
    clock.advance(Span::from_secs(5));
    assert!(!limiter.check_now(&attributes("login")).is_allowed());
    assert_eq!(next(), sent("login", "backed_off"));
    // A rule that denies before the store is asked.
    assert!(!limiter.check_now(&attributes("pay")).is_allowed());
    let denial = reader.next().unwrap();
    assert_eq!(summary(&denial), sent("strict", "missing_attribute"));
    assert_eq!((denial.subject(), denial.remaining), (None, None));
    // A reservation of a quota.
    let reserve = Reserve {
        units: 4,
        ..Reserve::default()
    };
    let reserved = limiter
        .reserve_now(&attributes("tokens"), &reserve)
        .unwrap();
    assert!(matches!(reserved, ReserveOutcome::Denied(_)));
    let denial = reader.next().unwrap();
    assert_eq!(summary(&denial), sent("month", "never_fits"));
    assert_eq!((denial.kind, denial.limit), ("quota", Some(3)));
    // A lease.
    let acquire = || limiter.try_acquire_now(&attributes("run"), &Acquire::default(), None);
    assert!(matches!(acquire().unwrap(), AcquireOutcome::Granted { .. }));
    assert!(matches!(acquire().unwrap(), AcquireOutcome::Denied(_)));
    let denial = reader.next().unwrap();
    assert_eq!(summary(&denial), sent("slots", "exceeded"));
    assert_eq!(denial.kind, "concurrency");
    // An ad-hoc limit.
    let limit = Limit::gcra(Rate::new(1, Span::MINUTE).unwrap(), 1).unwrap();
    let throttled = [0; 2].map(|_| limiter.throttle_now(b"k", &limit, 1).unwrap().is_allowed());
    assert_eq!(throttled, [true, false]);
    let denial = reader.next().unwrap();
    assert_eq!(summary(&denial), sent("@throttle", "exceeded"));
    let by_key = limiter.active().subjects_of(&[("key", "k")].into());
    assert_eq!(denial.subjects().collect::<Vec<_>>(), by_key[..1]);
    assert!(reader.next().is_none());
}

#[test]
fn subject_with_too_many_open_holds_is_sent() {
    let text = "
version: 1
subjects: { max_open_holds: 1 }
rules: [{ id: tokens, per: [tenant], algorithm: token-bucket, capacity: 100, refill: 1/h }]
";
    let config = tollgate_config::parse("rules.yaml", text, &|_| None).unwrap();
    let limiter = Limiter::with_clock(&config, ManualClock::at(START)).unwrap();
    let reader = limiter.read_denials(8).unwrap();
    let reserve = || limiter.reserve_now(&user("ann"), &Reserve::default());
    assert!(reserve().is_ok());
    assert!(reserve().is_err());
    let denial = reader.next().unwrap();
    assert_eq!(
        summary(&denial),
        ("@holds".to_owned(), "too_many_holds", None)
    );
    assert_eq!(denial.limit, Some(1));
    let tenant = limiter.active().subjects_of(&[("tenant", "acme")].into());
    assert_eq!(denial.subjects().collect::<Vec<_>>(), tenant);
}

#[test]
fn denials_of_failure_policies_are_sent() {
    let setup = Setup::new(
        "  - { id: closed, per: [user], on_store_failure: fail-closed, algorithm: fixed-window, limit: 9, window: 1m }\n",
    );
    let reader = setup.limiter.read_denials(8).unwrap();
    setup.store_is_down(true);
    setup.check("ann");
    let denial = reader.next().unwrap();
    let expected = ("closed".to_owned(), "store_failed", Some("fail-closed"));
    assert_eq!(summary(&denial), expected);
    assert_eq!((denial.limit, denial.remaining), (Some(9), None));
    assert_eq!(denial.retry_after, Some(Span::from_secs(5)));
    let none = Setup::new(
        "  - { id: open, per: [user], algorithm: fixed-window, limit: 9, window: 1m }\n",
    );
    let reader = none.limiter.read_denials(8).unwrap();
    none.store_is_down(true);
    none.check("ann");
    let expected = ("open".to_owned(), "store_unavailable", None);
    assert_eq!(summary(&reader.next().unwrap()), expected);
}

#[test]
fn known_denials_are_sent_too() {
    let setup = Setup::new(
        "  - { id: login, per: [user], log_denials: all, algorithm: fixed-window, limit: 1, window: 1m }\n",
    );
    let reader = setup.limiter.read_denials(8).unwrap();
    for _ in 0..4 {
        setup.check("ann");
    }
    assert_eq!(setup.known_denials(), 2);
    assert_eq!(std::iter::from_fn(|| reader.next()).count(), 3);
}

#[test]
fn rule_sends_up_to_a_number_per_second_unless_it_sends_all() {
    let text = "
version: 1
telemetry: { denials: { per_second: 2 } }
rules:
  - { id: some, match: { action: some }, per: [user], algorithm: fixed-window, limit: 0, window: 1d }
  - { id: every, match: { action: every }, per: [user], log_denials: all, algorithm: fixed-window, limit: 0, window: 1d }
";
    let parse = |text: &str| tollgate_config::parse("rules.yaml", text, &|_| None).unwrap();
    let clock = ManualClock::at(START);
    let limiter = Limiter::with_clock(&parse(text), clock.clone()).unwrap();
    let reader = limiter.read_denials(100).unwrap();
    // Denies a request of each of these users, and returns how many denials each record has left out.
    let deny = |action: &str, users: std::ops::Range<u32>| {
        for user in users {
            let user = user.to_string();
            let attributes = Attributes::from([("action", action), ("user", user.as_str())]);
            assert!(!limiter.check_now(&attributes).is_allowed());
        }
        let sent: Vec<_> = std::iter::from_fn(|| reader.next()).collect();
        sent.iter().map(|it| it.suppressed).collect::<Vec<_>>()
    };
    assert_eq!(deny("every", 0..20), [0; 20]);
    assert_eq!(deny("every", 0..20), [0; 20]);
    assert_eq!(deny("some", 0..20), [0, 0]);
    // A reload keeps the counts of the rule.
    limiter.reload(&parse(&text.replace("window: 1d", "window: 2d")));
    assert_eq!(deny("some", 20..21), [0; 0]);
    clock.advance(Span::SECOND);
    assert_eq!(deny("some", 0..3), [19, 0]);
    clock.advance(Span::SECOND);
    // One denial of a subject in a second.
    assert_eq!(deny("some", 0..1), [1]);
    assert_eq!(deny("some", 0..1), [0; 0]);
    assert_eq!(deny("some", 1..2), [1]);
    // A reload sets another bound, also of rules that it keeps.
    let reloaded = limiter.reload(&parse(&text.replace("per_second: 2", "per_second: 5")));
    assert!(reloaded.needs_restart.is_empty(), "{reloaded:?}");
    assert_eq!(deny("some", 2..9), [0, 0, 0]);
    clock.advance(Span::SECOND);
    assert_eq!(deny("some", 0..7), [4, 0, 0, 0, 0]);
    let none = Limiter::with_clock(
        &parse(&text.replace("per_second: 2", "per_second: 0")),
        clock,
    );
    let none = none.unwrap();
    let reader = none.read_denials(8).unwrap();
    let ann = |action| Attributes::from([("action", action), ("user", "ann")]);
    assert!(!none.check_now(&ann("some")).is_allowed());
    assert!(reader.next().is_none());
    assert!(!none.check_now(&ann("every")).is_allowed());
    assert!(reader.next().is_some());
}

#[test]
fn full_queue_drops_and_counts_without_allocating() {
    let (limiter, _) = limiter(
        "  - { id: all, per: [user], log_denials: all, algorithm: fixed-window, limit: 0, window: 1d }\n",
    );
    let reader = limiter.read_denials(64).unwrap();
    let deny = || assert!(!limiter.check_now(&user("ann")).is_allowed());
    let dropped = || reader.dropped().load(std::sync::atomic::Ordering::Relaxed);
    let read = || std::iter::from_fn(|| reader.next()).count();
    // The sketch of busy subjects allocates when it first sees the subject, by chance.
    (0..1000).for_each(|_| deny());
    assert_eq!((read(), dropped()), (64, 936));
    let counted = allocation_counter::measure(|| (0..100).for_each(|_| deny()));
    assert_eq!(counted.count_total, 0, "{counted:?}");
    assert_eq!((read(), dropped()), (64, 936 + 36));
    deny();
    assert!(reader.next().is_some());
}

#[test]
fn origin_of_a_request_is_sent() {
    let (limiter, _) = limiter("  - { id: none, algorithm: fixed-window, limit: 0, window: 1d }\n");
    let reader = limiter.read_denials(8).unwrap();
    let origin = RequestOrigin {
        door: "grpc",
        trace: Some(42),
    };
    let snapshot = limiter.snapshot();
    let snapshot = snapshot.with_origin(origin);
    assert!(!block_on(snapshot.ask(&user("ann"), Ask::Exactly(1))).is_allowed());
    assert_eq!(reader.next().unwrap().origin, origin);
    let limit = Limit::fixed_window(0, Span::MINUTE).unwrap();
    let throttled = limiter.once_from(origin).try_throttle(b"k", &limit, 1);
    assert!(!throttled.unwrap().is_allowed());
    assert_eq!(reader.next().unwrap().origin, origin);
}
