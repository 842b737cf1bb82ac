//! A limiter whose store fails: every policy keeps its bound, and known denials do not call the store.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::{Options, START, Setup};
use tollgate::{Ask, Attributes, FailurePolicy, Limit, Rate, Reason, Span, StoreError, Time};
use tollgate_conformance::block_on;

/// Returns a rule of 10 per minute, with further settings.
fn rule(more: &str) -> String {
    format!("  - {{ id: r, per: [user], algorithm: fixed-window, limit: 10, window: 1m{more} }}\n")
}

#[test]
fn fail_open_allows_and_reports_the_policy() {
    let setup = Setup::new(&rule(", on_store_failure: fail-open"));
    setup.store_is_down(true);
    assert_eq!(setup.admitted("ann", 50), 50);
    let decision = setup.check("ann");
    assert_eq!(decision.fallback(), Some(FailurePolicy::FailOpen));
    assert_eq!(decision.rule().unwrap().remaining(), None);
    assert!(!decision.is_degraded());
    assert_eq!(setup.ask("ann", Ask::UpTo(7)).granted(), 7);
    assert_eq!(setup.counted("fail-open"), 52);
}

#[test]
fn fail_closed_denies_for_five_seconds() {
    let setup = Setup::new(&rule(", on_store_failure: fail-closed"));
    setup.store_is_down(true);
    let decision = setup.check("ann");
    assert!(!decision.is_allowed());
    assert_eq!(decision.retry_after(), Some(Span::from_secs(5)));
    assert_eq!(decision.rule().unwrap().reason(), Some(Reason::StoreFailed));
    assert_eq!(setup.counted("fail-closed"), 1);
}

#[test]
fn denial_by_a_failure_is_not_held_back() {
    for policy in [", on_store_failure: fail-closed", ""] {
        let setup = Setup::new(&rule(&format!(", delay_denials: 1s{policy}")));
        assert_eq!(setup.admitted("ann", 20), 10);
        assert_eq!(setup.check("ann").denial_delay(), Span::SECOND);
        setup.store_is_down(true);
        let decision = setup.check("bob");
        assert!(!decision.is_allowed());
        assert_eq!(decision.denial_delay(), Span::ZERO, "{policy}");
    }
}

#[test]
fn rule_without_policy_denies_as_unavailable() {
    let setup = Setup::new(&rule(""));
    setup.store_is_down(true);
    let decision = setup.check("ann");
    assert!(!decision.is_allowed());
    assert_eq!(
        decision.rule().unwrap().reason(),
        Some(Reason::StoreUnavailable)
    );
    assert_eq!(decision.fallback(), None);
    assert_eq!(setup.counted("none"), 1);
}

#[test]
fn degraded_allows_and_is_flagged() {
    let setup = Setup::new(&rule(", on_store_failure: degraded"));
    assert!(!setup.check("ann").is_degraded());
    setup.store_is_down(true);
    let decision = setup.check("ann");
    assert!(decision.is_allowed() && decision.is_degraded());
}

#[test]
fn local_fallback_admits_the_share_of_this_instance() {
    let options = Options {
        replicas: 4,
        fallback_factor: 12_000,
        ..Options::default()
    };
    let setup = Setup::with_options(&rule(", on_store_failure: local-fallback"), options);
    setup.store_is_down(true);
    // 10 / 4 x 120% is 3.
    assert_eq!(setup.admitted("ann", 20), 3);
    assert_eq!(setup.admitted("bob", 20), 3);
    let denied = setup.check("ann");
    assert_eq!(denied.rule().unwrap().limit(), Some(3));
    assert_eq!(denied.fallback(), Some(FailurePolicy::LocalFallback));
    assert!(denied.retry_after().unwrap() <= Span::MINUTE);
}

#[test]
fn share_is_at_least_one() {
    let options = Options {
        replicas: 1000,
        ..Options::default()
    };
    let setup = Setup::with_options(&rule(", on_store_failure: local-fallback"), options);
    setup.store_is_down(true);
    assert_eq!(setup.admitted("ann", 20), 1);
}

#[test]
fn cached_continues_from_the_last_known_state() {
    let setup = Setup::new(&rule(", on_store_failure: cached"));
    assert_eq!(setup.admitted("ann", 7), 7);
    setup.store_is_down(true);
    assert_eq!(setup.admitted("ann", 20), 3);
    // The usage of an unknown subject is zero.
    assert_eq!(setup.admitted("bob", 20), 10);
}

#[test]
fn quota_reports_the_same_figures_from_store_and_policy() {
    let setup = Setup::new(
        "  - { id: r, per: [user], algorithm: quota, limit: 10, grace: 5, period: day, on_store_failure: cached }\n",
    );
    assert_eq!(setup.admitted("ann", 11), 11);
    let answer = |setup: &Setup| {
        let decision = setup.ask("ann", Ask::Exactly(1));
        let rule = decision.rules().next().unwrap();
        (
            rule.limit(),
            rule.remaining(),
            rule.grace().is_some(),
            rule.window(),
        )
    };
    let before = answer(&setup);
    assert_eq!(before, (Some(10), Some(0), true, Span::DAY));
    setup.store_is_down(true);
    assert_eq!(answer(&setup), before);
}

#[test]
fn cached_refills_as_the_store_would() {
    let bucket = "  - { id: r, per: [user], algorithm: gcra, rate: 10/s, burst: 10, on_store_failure: cached }\n";
    let setup = Setup::new(bucket);
    assert_eq!(setup.admitted("ann", 10), 10);
    setup.pass(Span::from_millis(500));
    setup.store_is_down(true);
    assert_eq!(setup.admitted("ann", 20), 5);
}

#[test]
fn emergency_limit_is_shared_by_all_subjects() {
    let setup = Setup::new(&rule(
        ", on_store_failure: emergency-limit, emergency_limit: 4/s",
    ));
    setup.store_is_down(true);
    assert_eq!(setup.admitted("ann", 3) + setup.admitted("bob", 3), 4);
    setup.pass(Span::SECOND);
    assert_eq!(setup.admitted("cid", 9), 4);
}

#[test]
fn request_denied_by_one_policy_takes_nothing_from_another() {
    let both = [
        rule(", on_store_failure: local-fallback"),
        "  - { id: strict, match: { strict: yes }, per: [user], algorithm: fixed-window, \
         limit: 10, window: 1m, on_store_failure: fail-closed }\n"
            .to_owned(),
    ];
    let setup = Setup::new(&both.concat());
    setup.store_is_down(true);
    let strict = Attributes::from([("user", "ann"), ("strict", "yes")]);
    for _ in 0..20 {
        assert!(!block_on(setup.limiter.check(&strict)).is_allowed());
    }
    assert_eq!(setup.admitted("ann", 20), 10);
}

#[test]
fn shadow_rule_never_denies_with_any_policy() {
    for policy in ["", ", on_store_failure: fail-closed"] {
        let setup = Setup::new(&rule(&format!(", state: shadow{policy}")));
        setup.store_is_down(true);
        assert!(setup.check("ann").is_allowed(), "{policy}");
    }
}

#[test]
fn peek_takes_nothing_from_a_policy() {
    let setup = Setup::new(&rule(", on_store_failure: local-fallback"));
    setup.store_is_down(true);
    let ann = Attributes::from([("user", "ann")]);
    for _ in 0..20 {
        assert!(block_on(setup.limiter.peek(&ann, Ask::Exactly(1))).is_allowed());
    }
    assert_eq!(setup.admitted("ann", 20), 10);
    assert_eq!(setup.counted("local-fallback"), 20);
}

#[test]
fn state_of_the_store_decides_after_an_outage() {
    let setup = Setup::new(&rule(", on_store_failure: local-fallback"));
    assert_eq!(setup.admitted("ann", 4), 4);
    setup.store_is_down(true);
    assert_eq!(setup.admitted("ann", 20), 10);
    setup.store_is_down(false);
    // The store has counted 4, and nothing during the outage.
    assert_eq!(setup.admitted("ann", 20), 6);
    assert_eq!(setup.check("ann").fallback(), None);
}

#[test]
fn failed_refund_is_an_error() {
    let setup = Setup::new(&rule(", on_store_failure: fail-open"));
    setup.store_is_down(true);
    let ann = Attributes::from([("user", "ann")]);
    assert!(block_on(setup.limiter.refund(&ann, 1, START)).is_err());
    assert!(block_on(setup.limiter.reset(&ann)).is_err());
}

#[test]
fn known_denial_is_answered_locally_until_its_retry_time() {
    let options = Options {
        denial_cache: Some(Span::MINUTE),
        ..Options::default()
    };
    let setup = Setup::with_options(&rule(""), options);
    let denied = {
        setup.admitted("ann", 10);
        setup.check("ann")
    };
    let before = setup.asked();
    setup.pass(Span::SECOND);
    let again = setup.check("ann");
    assert!(!again.is_allowed());
    assert_eq!(setup.asked(), before);
    assert_eq!(setup.known_denials(), 1);
    // The retry time is the same, by the store's clock.
    assert_eq!(again.decided_at(), denied.decided_at() + Span::SECOND);
    assert_eq!(
        again.decided_at() + again.retry_after().unwrap(),
        denied.decided_at() + denied.retry_after().unwrap()
    );
    assert_eq!(again.rule().unwrap().remaining(), Some(0));

    setup.pass(again.retry_after().unwrap());
    assert!(setup.check("ann").is_allowed());
}

#[test]
fn known_denial_is_forgotten_after_denial_cache() {
    let setup = Setup::new(&rule(""));
    setup.admitted("ann", 11);
    let before = setup.asked();
    setup.pass(Span::from_millis(999));
    setup.check("ann");
    assert_eq!(setup.asked(), before);
    setup.pass(Span::from_millis(1));
    setup.check("ann");
    assert_eq!(setup.asked(), before + 1);
}

#[test]
fn denial_with_units_left_is_not_remembered() {
    let setup = Setup::new(&rule(""));
    assert!(setup.ask("ann", Ask::Exactly(7)).is_allowed());
    let denied = setup.ask("ann", Ask::Exactly(5));
    assert_eq!(denied.rule().unwrap().remaining(), Some(3));
    // Three units are left, and a smaller request takes them.
    assert!(setup.ask("ann", Ask::Exactly(3)).is_allowed());
    let before = setup.asked();
    let denied = setup.ask("ann", Ask::Exactly(5));
    assert_eq!(denied.rule().unwrap().remaining(), Some(0));
    assert_eq!(setup.asked(), before + 1);
}

#[test]
fn denial_by_one_of_two_rules_is_not_remembered() {
    let both = [
        rule(""),
        rule("").replace("id: r", "id: all").replace("[user]", "[]"),
    ]
    .concat();
    let both = both.replace(
        "limit: 10, window: 1m }\n  - { id: all",
        "limit: 1, window: 1m }\n  - { id: all",
    );
    let setup = Setup::new(&both);
    assert_eq!(setup.admitted("ann", 2), 1);
    assert!(setup.check("bob").is_allowed());
    // Meanwhile the other rule has changed, and the decision shows it.
    let denied = setup.check("ann");
    let left: Vec<_> = denied.rules().map(|rule| rule.remaining()).collect();
    assert_eq!(left, [Some(0), Some(8)]);
    assert_eq!(setup.known_denials(), 0);
}

#[test]
fn refund_and_reset_forget_a_known_denial() {
    let setup = Setup::new(&rule(""));
    let ann = Attributes::from([("user", "ann")]);
    setup.admitted("ann", 11);
    block_on(setup.limiter.refund(&ann, 1, START)).unwrap();
    assert!(setup.check("ann").is_allowed());
    assert!(!setup.check("ann").is_allowed());
    block_on(setup.limiter.reset(&ann)).unwrap();
    assert_eq!(setup.admitted("ann", 20), 10);
}

#[test]
fn rule_that_charges_denied_requests_sees_each_of_them() {
    let setup = Setup::new(&rule(", charge_denied: true"));
    setup.admitted("ann", 10);
    let before = setup.asked();
    setup.admitted("ann", 5);
    assert_eq!(setup.asked(), before + 5);
}

#[test]
fn clock_that_goes_back_forgets_known_denials() {
    let setup = Setup::new(&rule(""));
    setup.admitted("ann", 11);
    let before = setup.asked();
    setup.clock.set(Time::from_micros(START.as_micros() - 1));
    setup.check("ann");
    assert_eq!(setup.asked(), before + 1);
}

#[test]
fn request_denied_before_the_store_is_charged_where_denials_are() {
    let rules = [
        "  - { id: strict, per: [tenant], missing: deny, algorithm: fixed-window, limit: 10, window: 1m }\n"
            .to_owned(),
        rule(", charge_denied: true"),
    ];
    let setup = Setup::new(&rules.concat());
    for left in [9, 8] {
        let decision = setup.check("ann");
        assert!(!decision.is_allowed());
        let counted = decision.rules().find(|it| it.rule().id() == "r").unwrap();
        assert_eq!(counted.remaining(), Some(left));
    }
}

#[test]
fn denials_are_not_remembered_without_denial_cache() {
    let options = Options {
        denial_cache: None,
        ..Options::default()
    };
    let setup = Setup::with_options(&rule(""), options);
    setup.admitted("ann", 20);
    assert_eq!(setup.asked(), 20);
}

fn per_minute(rate: u64, burst: u64) -> Limit {
    Limit::gcra(Rate::new(rate, Span::MINUTE).unwrap(), burst).unwrap()
}

#[test]
fn ad_hoc_limit_reports_a_store_failure() {
    let setup = Setup::new(&rule(", on_store_failure: fail-open"));
    let throttle = || block_on(setup.limiter.throttle(b"ann", &per_minute(60, 2), 1));
    assert!(throttle().unwrap().is_allowed());
    setup.store_is_down(true);
    assert_eq!(throttle(), Err(StoreError::Timeout));
    setup.store_is_down(false);
    assert_eq!(throttle().unwrap().remaining(), 0);
    let counts = setup.limiter.metrics().throttles();
    assert_eq!((counts.allowed, counts.limited, counts.failed), (2, 0, 1));
    assert_eq!(setup.counted("fail-open"), 0);
}

#[test]
fn known_denial_of_an_ad_hoc_limit_holds_for_its_numbers_only() {
    let setup = Setup::new(&rule(""));
    let throttle = |limit: &Limit, cost| block_on(setup.limiter.throttle(b"ann", limit, cost));
    let (narrow, wide) = (per_minute(60, 1), per_minute(60, 3));
    assert!(throttle(&narrow, 1).unwrap().is_allowed());
    assert!(!throttle(&narrow, 1).unwrap().is_allowed());
    assert_eq!(setup.asked(), 2);

    setup.pass(Span::from_millis(400));
    let known = throttle(&narrow, 1).unwrap();
    assert_eq!(known.retry_after(), Some(Span::from_millis(600)));
    assert_eq!(setup.asked(), 2);

    // A request with cost 0 and a request with other numbers both call the store.
    assert!(throttle(&narrow, 0).unwrap().is_allowed());
    assert_eq!(throttle(&wide, 1).unwrap().remaining(), 1);
    assert_eq!(setup.asked(), 4);
}
