//! A limiter whose store fails: every policy keeps its promise, and known denials ask nobody.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::{Options, START, Setup};
use tollgate::{Ask, Attributes, FailurePolicy, Limit, Rate, Reason, Span, StoreError, Time};
use tollgate_conformance::block_on;

/// One rule of 10 in a minute with what else it says.
fn rule(more: &str) -> String {
    format!("  - {{ id: r, per: [user], algorithm: fixed-window, limit: 10, window: 1m{more} }}\n")
}

#[test]
fn fail_open_allows_and_says_so() {
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
fn fail_closed_refuses_for_five_seconds() {
    let setup = Setup::new(&rule(", on_store_failure: fail-closed"));
    setup.store_is_down(true);
    let decision = setup.check("ann");
    assert!(!decision.is_allowed());
    assert_eq!(decision.retry_after(), Some(Span::from_secs(5)));
    assert_eq!(decision.rule().unwrap().reason(), Some(Reason::StoreFailed));
    assert_eq!(setup.counted("fail-closed"), 1);
}

#[test]
fn without_a_policy_the_request_is_refused_as_unavailable() {
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
fn local_fallback_admits_this_instances_share_of_the_limit() {
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
    let refused = setup.check("ann");
    assert_eq!(refused.rule().unwrap().limit(), Some(3));
    assert_eq!(refused.fallback(), Some(FailurePolicy::LocalFallback));
    assert!(refused.retry_after().unwrap() <= Span::MINUTE);
}

#[test]
fn a_share_is_never_less_than_one() {
    let options = Options {
        replicas: 1000,
        ..Options::default()
    };
    let setup = Setup::with_options(&rule(", on_store_failure: local-fallback"), options);
    setup.store_is_down(true);
    assert_eq!(setup.admitted("ann", 20), 1);
}

#[test]
fn cached_goes_on_from_the_last_known_state() {
    let setup = Setup::new(&rule(", on_store_failure: cached"));
    assert_eq!(setup.admitted("ann", 7), 7);
    setup.store_is_down(true);
    assert_eq!(setup.admitted("ann", 20), 3);
    // Of somebody never seen nothing is known, so nothing is used.
    assert_eq!(setup.admitted("bob", 20), 10);
}

#[test]
fn a_quota_is_told_the_same_way_whoever_decides() {
    let setup = Setup::new(
        "  - { id: r, per: [user], algorithm: quota, limit: 10, grace: 5, period: day, on_store_failure: cached }\n",
    );
    assert_eq!(setup.admitted("ann", 11), 11);
    let told = |setup: &Setup| {
        let decision = setup.ask("ann", Ask::Exactly(1));
        let rule = decision.rules().next().unwrap();
        (
            rule.limit(),
            rule.remaining(),
            rule.grace().is_some(),
            rule.window(),
        )
    };
    let before = told(&setup);
    assert_eq!(before, (Some(10), Some(0), true, Span::DAY));
    setup.store_is_down(true);
    assert_eq!(told(&setup), before);
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
fn an_emergency_limit_is_for_all_subjects_together() {
    let setup = Setup::new(&rule(
        ", on_store_failure: emergency-limit, emergency_limit: 4/s",
    ));
    setup.store_is_down(true);
    assert_eq!(setup.admitted("ann", 3) + setup.admitted("bob", 3), 4);
    setup.pass(Span::SECOND);
    assert_eq!(setup.admitted("cid", 9), 4);
}

#[test]
fn who_is_refused_by_one_policy_takes_nothing_from_another() {
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
fn a_shadow_rule_never_refuses_whatever_its_policy() {
    for policy in ["", ", on_store_failure: fail-closed"] {
        let setup = Setup::new(&rule(&format!(", state: shadow{policy}")));
        setup.store_is_down(true);
        assert!(setup.check("ann").is_allowed(), "{policy}");
    }
}

#[test]
fn a_peek_takes_nothing_from_a_policy_either() {
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
fn when_the_store_is_back_its_state_decides() {
    let setup = Setup::new(&rule(", on_store_failure: local-fallback"));
    assert_eq!(setup.admitted("ann", 4), 4);
    setup.store_is_down(true);
    assert_eq!(setup.admitted("ann", 20), 10);
    setup.store_is_down(false);
    // Neither forgotten nor counted twice: 4 were taken from the store.
    assert_eq!(setup.admitted("ann", 20), 6);
    assert_eq!(setup.check("ann").fallback(), None);
}

#[test]
fn a_refund_that_cannot_be_made_is_an_error() {
    let setup = Setup::new(&rule(", on_store_failure: fail-open"));
    setup.store_is_down(true);
    let ann = Attributes::from([("user", "ann")]);
    assert!(block_on(setup.limiter.refund(&ann, 1, START)).is_err());
    assert!(block_on(setup.limiter.reset(&ann)).is_err());
}

#[test]
fn a_known_denial_asks_nobody_until_its_instant() {
    let options = Options {
        denial_cache: Some(Span::MINUTE),
        ..Options::default()
    };
    let setup = Setup::with_options(&rule(""), options);
    let refused = {
        setup.admitted("ann", 10);
        setup.check("ann")
    };
    let before = setup.asked();
    setup.pass(Span::SECOND);
    let again = setup.check("ann");
    assert!(!again.is_allowed());
    assert_eq!(setup.asked(), before);
    assert_eq!(setup.known_denials(), 1);
    // It tells the same instant, by the store's clock.
    assert_eq!(again.decided_at(), refused.decided_at() + Span::SECOND);
    assert_eq!(
        again.decided_at() + again.retry_after().unwrap(),
        refused.decided_at() + refused.retry_after().unwrap()
    );
    assert_eq!(again.rule().unwrap().remaining(), Some(0));

    setup.pass(again.retry_after().unwrap());
    assert!(setup.check("ann").is_allowed());
}

#[test]
fn a_known_denial_is_forgotten_after_the_longest_time() {
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
fn a_denial_that_others_can_change_is_asked_again() {
    let setup = Setup::new(&rule(""));
    assert!(setup.ask("ann", Ask::Exactly(7)).is_allowed());
    let denied = setup.ask("ann", Ask::Exactly(5));
    assert_eq!(denied.rule().unwrap().remaining(), Some(3));
    // Something is left, and a smaller request takes it.
    assert!(setup.ask("ann", Ask::Exactly(3)).is_allowed());
    let before = setup.asked();
    let denied = setup.ask("ann", Ask::Exactly(5));
    assert_eq!(denied.rule().unwrap().remaining(), Some(0));
    assert_eq!(setup.asked(), before + 1);
}

#[test]
fn a_denial_by_one_of_two_rules_is_asked_again() {
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
    // The rule that allows has changed meanwhile, and the answer says so.
    let denied = setup.check("ann");
    let left: Vec<_> = denied.rules().map(|rule| rule.remaining()).collect();
    assert_eq!(left, [Some(0), Some(8)]);
    assert_eq!(setup.known_denials(), 0);
}

#[test]
fn a_refund_and_a_reset_forget_a_known_denial() {
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
fn who_counts_refused_requests_sees_each() {
    let setup = Setup::new(&rule(", charge_denied: true"));
    setup.admitted("ann", 10);
    let before = setup.asked();
    setup.admitted("ann", 5);
    assert_eq!(setup.asked(), before + 5);
}

#[test]
fn a_clock_that_goes_back_knows_no_denials() {
    let setup = Setup::new(&rule(""));
    setup.admitted("ann", 11);
    let before = setup.asked();
    setup.clock.set(Time::from_micros(START.as_micros() - 1));
    setup.check("ann");
    assert_eq!(setup.asked(), before + 1);
}

#[test]
fn a_request_refused_on_sight_is_counted_where_refused_requests_count() {
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
fn denials_are_not_remembered_where_that_is_off() {
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
fn an_ad_hoc_limit_has_no_policy_and_tells_that_the_store_failed() {
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
fn a_known_denial_of_an_ad_hoc_limit_asks_nobody_and_holds_for_its_numbers_alone() {
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

    // A look is no request for anything, and other numbers are another question.
    assert!(throttle(&narrow, 0).unwrap().is_allowed());
    assert_eq!(throttle(&wide, 1).unwrap().remaining(), 1);
    assert_eq!(setup.asked(), 4);
}
