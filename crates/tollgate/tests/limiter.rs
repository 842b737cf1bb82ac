//! Decisions of several rules, on a manual clock.

#![allow(clippy::panic, clippy::unwrap_used)] // Helpers of tests fail as tests do.

use tollgate::{Ask, Attributes, Limiter, ManualClock, MemoryStore, Reason, Span, Time, Traced};

const START: Time = Time::from_micros(1_800_000_000_000_000);

fn limiter(rules: &str) -> (Limiter<Traced<MemoryStore<ManualClock>>>, ManualClock) {
    let text = format!("version: 1\nrules:\n{rules}");
    let config = tollgate_config::parse("rules.yaml", &text, &|_| None);
    let config = config.unwrap_or_else(|error| panic!("{error}"));
    let clock = ManualClock::at(START);
    (Limiter::with_clock(&config, clock.clone()).unwrap(), clock)
}

const LAYERS: &str = "
  - { id: second, per: [user], algorithm: gcra, rate: 5/s, burst: 5 }
  - { id: hour, per: [user], algorithm: sliding-log, limit: 8, window: 1h }
  - { id: all, algorithm: fixed-window, limit: 100, window: 1h }
";

fn user(name: &str) -> Attributes<'_> {
    Attributes::from([("user", name)])
}

#[test]
fn a_limiter_in_memory_rejects_a_store_and_a_ledger() {
    let folder = tempfile::tempdir().unwrap();
    let secret = "subjects: { hash_secret: 0123456789abcdef }";
    for (section, text) in [
        (
            "store",
            "store: { redis: { url: \"redis://127.0.0.1:1\" } }",
        ),
        ("ledger", "ledger: { sqlite: ./unused.db }"),
    ] {
        let text = format!("version: 1\n{secret}\n{text}\nrules: []\n");
        let file = folder.path().join("rules.yaml");
        std::fs::write(&file, &text).unwrap();
        for refused in [
            Limiter::load(&file),
            Limiter::from_yaml("rules.yaml", &text),
        ] {
            let error = refused.unwrap_err().to_string();
            let expected = format!(
                "the config has a `{section}` section, and this limiter keeps its state in memory only: \
                 use `Engine::start`, or remove the section"
            );
            assert_eq!(error, expected);
        }
    }
}

#[test]
fn rule_with_the_least_left_decides_an_admission() {
    let (limiter, clock) = limiter(LAYERS);
    let first = limiter.check_now(&user("ann"));
    assert_eq!(first.rule().unwrap().rule().id(), "second");
    assert_eq!(first.rule().unwrap().remaining(), Some(4));
    for _ in 0..4 {
        assert!(limiter.check_now(&user("ann")).is_allowed());
    }
    clock.advance(Span::SECOND);
    let sixth = limiter.check_now(&user("ann"));
    assert_eq!(sixth.rule().unwrap().rule().id(), "hour");
    assert_eq!(sixth.rule().unwrap().remaining(), Some(2));
}

#[test]
fn rule_with_the_longest_wait_decides_a_denial() {
    let (limiter, clock) = limiter(LAYERS);
    for _ in 0..5 {
        assert!(limiter.check_now(&user("ann")).is_allowed());
    }
    let before: Vec<_> = remaining(&limiter, "ann");
    let denied = limiter.check_now(&user("ann"));
    assert_eq!(denied.rule().unwrap().rule().id(), "second");
    assert_eq!(denied.retry_after(), Some(Span::from_millis(200)));
    assert_eq!(remaining(&limiter, "ann"), before);

    clock.advance(Span::SECOND);
    for _ in 0..3 {
        assert!(limiter.check_now(&user("ann")).is_allowed());
    }
    // Both deny three units now; the hour has the longer wait.
    let denied = limiter.ask_now(&user("ann"), Ask::Exactly(3));
    assert_eq!(denied.rule().unwrap().rule().id(), "hour");
    assert_eq!(denied.rules().filter(|rule| !rule.is_allowed()).count(), 2);
    let wait = denied.retry_after().unwrap();
    clock.advance(Span::from_micros(wait.as_micros() - 1));
    assert!(!limiter.peek_now(&user("ann"), Ask::Exactly(3)).is_allowed());
    clock.advance(Span::from_micros(1));
    assert!(limiter.ask_now(&user("ann"), Ask::Exactly(3)).is_allowed());
}

fn remaining(limiter: &Limiter<Traced<MemoryStore<ManualClock>>>, name: &str) -> Vec<Option<u64>> {
    let peeked = limiter.peek_now(&user(name), Ask::Exactly(0));
    peeked.rules().map(|rule| rule.remaining()).collect()
}

#[test]
fn cost_above_the_capacity_never_fits() {
    let (limiter, _) = limiter(LAYERS);
    let denied = limiter.ask_now(&user("ann"), Ask::Exactly(9));
    assert_eq!(denied.rule().unwrap().rule().id(), "second");
    assert_eq!(denied.rule().unwrap().reason(), Some(Reason::NeverFits));
    assert_eq!(denied.retry_after(), None);
}

#[test]
fn request_denied_before_the_store_reports_all_rules() {
    let (limiter, _) = limiter(
        "
  - { id: plain, algorithm: fixed-window, limit: 10, window: 1h }
  - { id: strict, per: [user], missing: deny, algorithm: fixed-window, limit: 10, window: 1h }
  - { id: counts, algorithm: fixed-window, limit: 10, window: 1h, charge_denied: true }
",
    );
    let denied = limiter.check_now(&Attributes::new());
    assert!(!denied.is_allowed());
    assert_eq!(denied.granted(), 0);
    assert_eq!(
        denied.rule().unwrap().reason(),
        Some(Reason::MissingAttribute)
    );
    let ids: Vec<_> = denied.rules().map(|rule| rule.rule().id()).collect();
    assert_eq!(
        ids,
        ["plain", "strict", "counts"],
        "in the order of the file"
    );
    let left: Vec<_> = denied.rules().map(|rule| rule.remaining()).collect();
    // If the subject is not known, the amount that it has left is not known either.
    assert_eq!(left, [Some(10), None, Some(9)]);
}

#[test]
fn charging_denied_requests_keeps_a_hammering_client_out() {
    let (limiter, clock) = limiter(
        "  - { id: code, per: [user], algorithm: sliding-log, limit: 3, window: 1m, charge_denied: true }",
    );
    for _ in 0..3 {
        assert!(limiter.check_now(&user("eve")).is_allowed());
    }
    for _ in 0..100 {
        clock.advance(Span::from_secs(10));
        assert!(!limiter.check_now(&user("eve")).is_allowed());
    }
    clock.advance(Span::MINUTE);
    assert!(limiter.check_now(&user("eve")).is_allowed());
}

#[test]
fn shadow_and_disabled_rules_deny_nothing() {
    let (limiter, _) = limiter(
        "
  - { id: watch, algorithm: fixed-window, limit: 1, window: 1h, state: shadow }
  - { id: off, algorithm: fixed-window, limit: 0, window: 1h, state: disabled }
",
    );
    assert!(!limiter.check_now(&Attributes::new()).shadow_denied());
    let second = limiter.check_now(&Attributes::new());
    assert!(second.is_allowed() && second.shadow_denied());
    assert!(second.rule().is_none(), "no enforcing rule applies");
    let counts = limiter.metrics().counts();
    assert_eq!((counts[0].allowed, counts[0].shadow_denied), (1, 1));
    assert_eq!(counts[1], tollgate::RuleCounts::default());
}

#[test]
fn reset_affects_one_subject() {
    let (limiter, _) =
        limiter("  - { id: one, per: [user], algorithm: fixed-window, limit: 1, window: 1h }");
    for name in ["ann", "bob"] {
        assert!(limiter.check_now(&user(name)).is_allowed());
        assert!(!limiter.check_now(&user(name)).is_allowed());
    }
    limiter.reset_now(&user("ann")).unwrap();
    assert!(limiter.check_now(&user("ann")).is_allowed());
    assert!(!limiter.check_now(&user("bob")).is_allowed());
}

#[test]
fn counts_add_up_over_threads() {
    let (limiter, _) =
        limiter("  - { id: hundred, algorithm: fixed-window, limit: 100, window: 1h }");
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..50).for_each(|_| drop(limiter.check_now(&Attributes::new()))));
        }
    });
    let counts = limiter.metrics().counts()[0];
    assert_eq!(counts.allowed, 100);
    assert_eq!(counts.denied.iter().sum::<u64>(), 300);
    // The allowed checks that left 19 to 0 of 100.
    assert_eq!(counts.near_limit, 20);
}

#[test]
fn subjects_are_hashed_differently_by_each_secret_and_namespace() {
    let subject_of = |text: &str| {
        let rule = "rules: [{ id: a, per: [user], algorithm: fixed-window, limit: 1, window: 1s }]";
        let config = tollgate_config::parse("r", &format!("version: 1\n{text}\n{rule}"), &|_| None);
        let limiter = Limiter::with_clock(&config.unwrap(), ManualClock::at(START)).unwrap();
        limiter
            .check_now(&user("ann"))
            .rule()
            .unwrap()
            .subject()
            .unwrap()
            .to_string()
    };
    let secret = "subjects: { hash_secret: 0123456789abcdef }";
    assert_eq!(subject_of(secret), subject_of(secret));
    assert_ne!(
        subject_of(secret),
        subject_of("subjects: { hash_secret: 0123456789abcdeF }")
    );
    assert_ne!(
        subject_of(secret),
        subject_of(&format!("namespace: other\n{secret}"))
    );
    assert_ne!(
        subject_of(""),
        subject_of(""),
        "a random secret per limiter"
    );
}

#[test]
fn ipv6_clients_are_limited_by_prefix() {
    let (limiter, _) =
        limiter("  - { id: ip, per: [ip, action], algorithm: fixed-window, limit: 2, window: 1h }");
    let from = |ip| {
        limiter
            .check_now(&Attributes::from([("ip", ip), ("action", "a")]))
            .is_allowed()
    };
    assert!(from("2001:db8::1") && from("2001:db8::2"));
    assert!(!from("2001:db8::3"), "the same /64");
    assert!(from("2001:db8:0:1::3"), "another one");
    assert!(from("192.0.2.1") && from("::ffff:192.0.2.1") && !from("192.0.2.1"));
    assert!(from("192.0.2.2"));
}

#[test]
fn ad_hoc_keys_and_subjects_share_no_state() {
    let (limiter, _) =
        limiter("  - { id: r, per: [user], algorithm: gcra, rate: 1/m, burst: 1 }\n");
    let limit = limiter.rules().rules()[0].limit().clone();
    let throttle = || limiter.throttle_now(b"ann", &limit, 1).unwrap();
    assert_eq!([0; 2].map(|_| throttle().is_allowed()), [true, false]);
    assert!(limiter.check_now(&user("ann")).is_allowed());
    assert!(!limiter.check_now(&user("ann")).is_allowed());
    assert_eq!(limiter.metrics().throttles().limited, 1);
    assert_eq!(limiter.metrics().counts()[0].allowed, 1);
}

#[test]
fn ad_hoc_key_may_be_any_bytes() {
    let (limiter, clock) = limiter("  - { id: r, algorithm: gcra, rate: 1/m, burst: 1 }\n");
    let limit = limiter.rules().rules()[0].limit().clone();
    let keys: [&[u8]; 4] = [b"", b"\0", b"\xff\xfe", b"\r\n"];
    for key in keys {
        assert!(limiter.throttle_now(key, &limit, 1).unwrap().is_allowed());
        let denied = limiter.throttle_now(key, &limit, 1).unwrap();
        assert_eq!(denied.retry_after(), Some(Span::MINUTE));
        assert_eq!((denied.limit(), denied.remaining()), (1, 0));
    }
    clock.advance(Span::MINUTE);
    for key in keys {
        assert_eq!(limiter.throttle_now(key, &limit, 0).unwrap().remaining(), 1);
        assert!(limiter.throttle_now(key, &limit, 1).unwrap().is_allowed());
    }
}
