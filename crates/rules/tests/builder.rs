//! A rule from code equals the same rule from a file. Its errors name the rule and the field.

#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use tollgate_core::backoff::{self, Schedule};
use tollgate_core::{
    Algorithm, Anchor, Calendar, CarryOver, Leaky, Limit, ParamError, Rate, Span, Unit, Zone,
};
use tollgate_rules::{
    AttributeType, Ceiling, FailurePolicy, FairShares, Missing, Placement, Policy, Rollout, Rule,
    RuleBuilder, RuleState,
};

/// Reads a file with one rule. `attributes` are the declared types of attributes.
fn read(attributes: &str, rule: &str) -> Rule {
    let text = format!("version: 1\nattributes: {attributes}\nrules: [{rule}]\n");
    let mut policy = Policy::parse("rules.yaml", &text).unwrap();
    policy.rules.remove(0)
}

fn per(amount: u64, period: Span) -> Rate {
    Rate::new(amount, period).unwrap()
}

fn month(anchor: Anchor) -> Calendar {
    let zone = Zone::named("Europe/Berlin").unwrap();
    Calendar::new(1, Unit::Month, anchor, zone).unwrap()
}

#[test]
fn a_rule_from_code_is_the_rule_of_a_file() -> Result<(), ParamError> {
    let minute = Span::MINUTE;
    let new = RuleBuilder::new;
    let backoff = backoff::new(Schedule {
        after: 3,
        base: Span::from_secs(30),
        factor: 2,
        max: Span::HOUR,
        forget: Span::DAY,
        penalty: Span::SECOND,
    })?;
    let table = [
        (
            "{ id: a, algorithm: fixed-window, limit: 5, window: 1m }",
            new("a", Limit::fixed_window(5, minute)?),
        ),
        (
            "{ id: a, algorithm: sliding-log, limit: 5, window: 10m,
               match: { action: [login, 'log*in'] }, per: [user, ip] }",
            new("a", Limit::sliding_log(5, Span::from_secs(600))?)
                .matching("action", ["login"])
                .matching("action", ["log*in"])
                .per(["user", "ip"]),
        ),
        (
            "{ id: a, algorithm: sliding-counter, limit: 5, window: 1m, buckets: 6,
               message: \"it's\\n\\\"é\\\"\" }",
            new("a", Limit::sliding_counter(5, minute, 6)?).message("it's\n\"é\""),
        ),
        (
            "{ id: a, algorithm: sliding-counter, limit: 5, window: 1m, estimate: two-window,
               state: shadow, missing: deny }",
            new("a", Limit::two_window(5, minute)?)
                .state(RuleState::Shadow)
                .missing(Missing::Deny),
        ),
        (
            "{ id: a, algorithm: token-bucket, capacity: 100, refill: 100/m, cost: 5,
               charge_denied: true, overdraft: 20, placement: rule, per: [tenant] }",
            new("a", Limit::token_bucket(100, per(100, minute))?)
                .cost(5)
                .charge_denied()
                .overdraft(20)
                .placement(Placement::Rule)
                .per(["tenant"]),
        ),
        (
            "{ id: a, algorithm: gcra, rate: 100/s, burst: 100, placement: sharded(16) }",
            new("a", Limit::gcra(per(100, Span::SECOND), 100)?)
                .placement(Placement::Sharded(16.try_into().unwrap())),
        ),
        (
            "{ id: a, algorithm: gcra, rate: 10/s, burst: 20, per: [user], rollout: 12.5%,
               on_store_failure: emergency-limit, emergency_limit: 50/s,
               limit_from: attributes.rate, ceiling: 1000/s,
               when: 'tokens > 3 && method != \"HEAD\"', cost: 'tokens * 2' }",
            new("a", Limit::gcra(per(10, Span::SECOND), 20)?)
                .attribute("tokens", AttributeType::Int)
                .per(["user"])
                .rollout(Rollout::hundredths(1250))
                .emergency_limit(per(50, Span::SECOND))
                .limit_from("rate", Ceiling::Rate(per(1000, Span::SECOND)))
                .when("tokens > 3 && method != \"HEAD\"")
                .cost_of("tokens * 2"),
        ),
        (
            "{ id: a, algorithm: leaky-bucket, rate: 3/7s, queue: 9, shape: true, max_wait: 2s,
               carry_over: proportional,
               backoff: { after: 3, base: 30s, factor: 2, max: 1h, forget: 24h, penalty: 1s } }",
            new(
                "a",
                Limit::leaky_bucket(
                    per(3, Span::from_secs(7)),
                    9,
                    Leaky::Shape {
                        max_wait: Some(Span::from_secs(2)),
                    },
                )?,
            )
            .carry_over(CarryOver::Proportional)
            .backoff(&backoff),
        ),
        (
            "{ id: a, algorithm: leaky-bucket, rate: 3/s, queue: 0, on_store_failure: cached }",
            new(
                "a",
                Limit::leaky_bucket(per(3, Span::SECOND), 0, Leaky::Police)?,
            )
            .on_store_failure(FailurePolicy::Cached),
        ),
        (
            "{ id: a, algorithm: quota, limit: 1000, period: month, timezone: Europe/Berlin,
               anchor: 15, grace: 100, carry_over: 50, per: [tenant] }",
            new("a", Limit::quota(1000, 100, 50, month(Anchor::Day(15)))?).per(["tenant"]),
        ),
        (
            "{ id: a, algorithm: quota, limit: 10, period: month, timezone: Europe/Berlin }",
            new("a", Limit::quota(10, 0, 0, month(Anchor::First))?),
        ),
        (
            "{ id: a, algorithm: concurrency, limit: 4, lease: 20s, on_store_failure: degraded }",
            new("a", Limit::concurrency(4, Span::from_secs(20))?)
                .on_store_failure(FailurePolicy::Degraded),
        ),
        (
            "{ id: a, algorithm: token-bucket, capacity: 100, refill: 100/s, mode: leased, slice: 50ms }",
            new("a", Limit::token_bucket(100, per(100, Span::SECOND))?)
                .asynchronous(Span::SECOND)
                .leased(Span::from_millis(50)),
        ),
        (
            "{ id: a, algorithm: quota, limit: 10, period: month, timezone: Europe/Berlin, mode: async, flush: 1s }",
            new("a", Limit::quota(10, 0, 0, month(Anchor::First))?)
                .leased(Span::SECOND)
                .asynchronous(Span::SECOND),
        ),
        (
            "{ id: a, algorithm: token-bucket, capacity: 100, refill: 100/s, fair: {
                 per: [tenant, user], weights: { plan: { free: 1, 'big one': 5 } },
                 lanes: { by: priority, shares: { high: 60%, low: 40% }, strict: [low], otherwise: high } } }",
            new("a", Limit::token_bucket(100, per(100, Span::SECOND))?).fair(
                &FairShares::per(["tenant", "user"])
                    .weights("plan", [("free", 1), ("big one", 5)])
                    .lanes_by("priority")
                    .lane("high", 60)
                    .strict_lane("low", 40)
                    .otherwise("high"),
            ),
        ),
        (
            "{ id: a, algorithm: token-bucket, capacity: 100, refill: 100/s, fair: { per: [user] } }",
            new("a", Limit::token_bucket(100, per(100, Span::SECOND))?)
                .fair(&FairShares::per(["user"])),
        ),
        (
            "{ id: a, algorithm: gcra, rate: unlimited }",
            new("a", Limit::unlimited(Algorithm::Gcra)),
        ),
    ];
    for (file, code) in table {
        let types = match file.contains("tokens") {
            true => "{ tokens: int }",
            false => "{}",
        };
        let file = read(types, file);
        let code = code.build().unwrap();
        assert_eq!(format!("{code:#?}"), format!("{file:#?}"));
    }
    Ok(())
}

#[test]
fn errors_name_the_rule_and_the_field() -> Result<(), ParamError> {
    let new = |id| RuleBuilder::new(id, Limit::fixed_window(5, Span::MINUTE).unwrap());
    let slots = || RuleBuilder::new("a", Limit::concurrency(4, Span::from_secs(20)).unwrap());
    let rolling = Limit::quota(1000, 0, 50, month(Anchor::First))?;
    let schedule = Schedule {
        after: 0,
        base: Span::SECOND,
        factor: 2,
        max: Span::HOUR,
        forget: Span::HOUR,
        penalty: Span::ZERO,
    };
    let table = [
        (new("a b"), "id"),
        (new(""), "id"),
        (new("a\nb: c"), "id"),
        (new("a").per(["user", "the user"]), "per"),
        (new("a").per(["user", "user"]), "per"),
        (new("a").matching("", ["x"]), "match"),
        (new("a").matching("action", [r"a\b"]), "match"),
        (new("a").matching("action", [""; 0]), "match"),
        (new("a").when("user =="), "when"),
        (new("a").cost_of("'many'"), "cost"),
        (new("a").cost(u64::MAX), "cost"),
        (new("a").rollout(Rollout::percent(50)), "rollout"),
        (new("a").limit_from("b c", Ceiling::Amount(1)), "limit_from"),
        (
            new("a").limit_from("b", Ceiling::Rate(per(1, Span::SECOND))),
            "ceiling",
        ),
        (new("a").attribute("b c", AttributeType::Int), "attributes"),
        (new("a").fair(&FairShares::per(["user"])), "fair"),
        (slots().cost(2), "cost"),
        (slots().charge_denied(), "charge_denied"),
        (
            RuleBuilder::new("a", rolling).carry_over(CarryOver::Reset),
            "carry_over",
        ),
        (
            RuleBuilder::new("a", Limit::backoff(schedule)?),
            "algorithm",
        ),
    ];
    for (builder, field) in table {
        let error = builder.clone().build().unwrap_err();
        let fields: Vec<&str> = error.problems().iter().map(|it| it.field).collect();
        assert_eq!(fields, [field], "{builder:?}: {error}");
        let start = format!("rule `{}`, field `{field}`: ", error.rule());
        assert!(error.to_string().starts_with(&start), "{error}");
    }
    Ok(())
}

#[test]
fn one_build_reports_every_problem() {
    let limit = Limit::fixed_window(5, Span::MINUTE).unwrap();
    let wrong = RuleBuilder::new("a b", limit).per(["-"]).when("1");
    let error = wrong.build().unwrap_err();
    let fields: Vec<&str> = error.problems().iter().map(|it| it.field).collect();
    assert_eq!(fields, ["id", "per", "when"]);
    assert_eq!(error.to_string().lines().count(), 3);
}

#[test]
fn a_policy_of_rules_rejects_one_id_for_two_rules() {
    let rule = |id, limit| {
        let limit = Limit::fixed_window(limit, Span::MINUTE).unwrap();
        RuleBuilder::new(id, limit).build().unwrap()
    };
    let version = |limit| Policy::from_rules([rule("a", limit)]).unwrap().version;
    assert_eq!(version(1), version(1));
    assert_ne!(version(1), version(2));

    let error = Policy::from_rules([rule("a", 1), rule("b", 1), rule("a", 2)]).unwrap_err();
    assert!(error.to_string().contains("two rules have the id `a`"));
}

#[test]
fn a_policy_of_rules_rejects_rules_that_need_their_file() {
    let budget = "
version: 1
budgets: { shared: { algorithm: fixed-window, limit: 1, window: 1m } }
rules: [{ id: a, budget: shared }]
";
    let candidate = "
version: 1
rules:
  - { id: b, algorithm: fixed-window, limit: 1, window: 1m }
  - { id: a, algorithm: fixed-window, limit: 2, window: 1m, candidate_of: b }
";
    for text in [budget, candidate] {
        let rules = Policy::parse("rules.yaml", text).unwrap().rules;
        let error = Policy::from_rules(rules).unwrap_err();
        assert!(error.to_string().contains("the rule `a`"), "{error}");
    }
}

fn limits() -> impl Strategy<Value = Limit> {
    let span = (1u64..100_000_000_000).prop_map(Span::from_micros);
    let rate = (1u64..100_000, span.clone()).prop_map(|(amount, period)| per(amount, period));
    let amount = 0u64..1_000_000;
    let leaky = prop_oneof![
        Just(Leaky::Police),
        proptest::option::of(span.clone()).prop_map(|max_wait| Leaky::Shape { max_wait }),
    ];
    let made = prop_oneof![
        (amount.clone(), span.clone()).prop_map(|(n, w)| Limit::fixed_window(n, w)),
        (amount.clone(), span.clone()).prop_map(|(n, w)| Limit::sliding_log(n, w)),
        (amount.clone(), span.clone(), 2u32..60)
            .prop_map(|(n, w, b)| Limit::sliding_counter(n, w, b)),
        (amount.clone(), span).prop_map(|(n, w)| Limit::two_window(n, w)),
        (amount.clone(), rate.clone()).prop_map(|(n, r)| Limit::token_bucket(n, r)),
        (amount.clone(), rate.clone()).prop_map(|(n, r)| Limit::gcra(r, n)),
        (amount.clone(), rate, leaky).prop_map(|(n, r, l)| Limit::leaky_bucket(r, n, l)),
        (amount, 0u64..100, 0u64..100).prop_map(|(n, g, r)| Limit::quota(
            n,
            g,
            r,
            month(Anchor::Day(31))
        )),
        (0u64..1000, 1u64..86_400)
            .prop_map(|(n, lease)| Limit::concurrency(n, Span::from_secs(lease))),
    ];
    made.prop_filter_map("numbers that cannot be counted", Result::ok)
}

proptest! {
    #[test]
    fn every_limit_stays_as_it_is(limit in limits()) {
        let rule = RuleBuilder::new("a", limit.clone()).build().unwrap();
        prop_assert_eq!(rule.limit(), &limit);
    }

    #[test]
    fn every_text_is_read_back(text in "\\PC*|[\\x00-\\x20'\"\\\\{}:#&*!|>%@`é\u{2028}\u{feff}]*") {
        let limit = Limit::fixed_window(5, Span::MINUTE).unwrap();
        let rule = RuleBuilder::new("a", limit).message(&text).build().unwrap();
        prop_assert_eq!(rule.message(), Some(text.as_str()));
    }
}
