//! Which rules apply to requests, at which cost, and the explanations.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::prelude::*;
use tollgate_core::{Enforcement, Keyring};
use tollgate_rules::{Attributes, Effect, Policy, RequestLimits, RuleDenialReason, RuleSet};

fn config(rules: &str) -> Policy {
    let text = format!("version: 1\nrules:\n{rules}");
    Policy::parse("rules.yaml", &text).unwrap_or_else(|error| panic!("{error}"))
}

fn compile(rules: &str) -> RuleSet {
    RuleSet::compile(&config(rules), Keyring::new(b"0123456789abcdef", "test"))
}

/// Makes a rule `r` that allows 10 requests a minute, with these further fields.
fn rule(fields: &str) -> RuleSet {
    compile(&format!(
        "  - {{ id: r, algorithm: fixed-window, limit: 10, window: 1m, {fields} }}\n"
    ))
}

/// Returns the cost of a request under the only rule. `Err` if the rule denies, `None` if the rule does
/// not apply.
fn cost(rules: &RuleSet, request: &[(&str, &str)]) -> Result<Option<u64>, RuleDenialReason> {
    let request: Attributes<'_> = request.iter().copied().collect();
    let request_limits = RequestLimits::default();
    let resolution = rules.resolve(&request, &request_limits);
    assert_eq!(resolution.charges.len(), resolution.rules.len());
    match resolution.denials.first() {
        Some(refusal) => Err(refusal.reason),
        None => Ok(resolution.charges.first().map(|charge| charge.cost)),
    }
}

fn why(rules: &RuleSet, request: &[(&str, &str)]) -> String {
    let request: Attributes<'_> = request.iter().copied().collect();
    rules.explain(&request)[0].to_string()
}

const MISSING: Result<Option<u64>, RuleDenialReason> = Err(RuleDenialReason::MissingAttribute);
const BROKEN: Result<Option<u64>, RuleDenialReason> = Err(RuleDenialReason::BadExpression);

#[test]
fn a_match_accepts_values_lists_and_globs_and_all_must_hold() {
    let rules = rule("match: { action: [search, lookup], path: '/v1/*', retries: 3, debug: true }");
    let full = [
        ("action", "lookup"),
        ("path", "/v1/x"),
        ("retries", "3"),
        ("debug", "true"),
    ];
    assert_eq!(cost(&rules, &full), Ok(Some(1)));
    for absent in 0..full.len() {
        let mut request = full.to_vec();
        request.remove(absent);
        assert_eq!(
            cost(&rules, &request),
            Ok(None),
            "without {}",
            full[absent].0
        );
    }
    let mut other = full;
    other[0].1 = "login";
    assert_eq!(cost(&rules, &other), Ok(None));
}

#[test]
fn a_request_that_no_rule_matches_resolves_to_nothing() {
    let rules = rule("match: { action: search }");
    let request_limits = RequestLimits::default();
    let resolution = rules.resolve(&Attributes::new(), &request_limits);
    assert!(resolution.charges.is_empty() && resolution.denials.is_empty());
    let none = compile("  []\n");
    assert!(
        none.resolve(&Attributes::from([("a", "b")]), &RequestLimits::default())
            .charges
            .is_empty()
    );
}

#[test]
fn subjects_differ_by_value_and_rules_by_id() {
    let rules = compile(
        "  - { id: a, per: [tenant, key], algorithm: gcra, rate: 1/s }
  - { id: b, per: [key, tenant], algorithm: gcra, rate: 1/s }
  - { id: c, algorithm: gcra, rate: 1/s }
",
    );
    let keys = |tenant: &str, key: &str| -> Vec<_> {
        let request = Attributes::from([("tenant", tenant), ("key", key)]);
        let request_limits = RequestLimits::default();
        let resolution = rules.resolve(&request, &request_limits);
        resolution.charges.iter().map(|charge| charge.key).collect()
    };
    let (one, other) = (keys("acme", "1"), keys("acme", "2"));
    assert_eq!(one.len(), 3);
    assert_ne!(one[0], one[1], "two rules have two states");
    assert_ne!(one[0], other[0], "two subjects have two states");
    assert_eq!(one[2], other[2], "without `per` all share one state");
    assert_ne!(keys("a", "b")[0], keys("b", "a")[0]);
    assert_eq!(one, keys("acme", "1"));
}

#[test]
fn the_order_of_per_does_not_matter_to_the_state() {
    let of = |per: &str| {
        let rules = rule(&format!("per: {per}"));
        let request = Attributes::from([("a", "1"), ("b", "2")]);
        rules.resolve(&request, &RequestLimits::default()).charges[0].key
    };
    assert_eq!(of("[a, b]"), of("[b, a]"));
    assert_ne!(of("[a, b]"), of("[a]"));
}

#[test]
fn a_missing_subject_skips_or_denies() {
    let skip = rule("per: [tenant]");
    assert_eq!(cost(&skip, &[]), Ok(None));
    let deny = rule("per: [tenant], missing: deny");
    assert_eq!(cost(&deny, &[]), MISSING);
    assert_eq!(
        cost(&deny, &[("tenant", "")]),
        Ok(Some(1)),
        "empty is not absent"
    );
    let elsewhere = rule("per: [tenant], missing: deny, match: { action: a }");
    assert_eq!(
        cost(&elsewhere, &[]),
        Ok(None),
        "the rule does not apply at all"
    );
    let when = rule("per: [tenant], missing: deny, when: 'action == \"a\"'");
    assert_eq!(cost(&when, &[("action", "b")]), Ok(None));
    assert_eq!(cost(&when, &[("action", "a")]), MISSING);
}

#[test]
fn when_decides_whether_a_rule_applies() {
    let rules = rule("when: 'method != \"OPTIONS\"'");
    assert_eq!(cost(&rules, &[("method", "GET")]), Ok(Some(1)));
    assert_eq!(cost(&rules, &[("method", "OPTIONS")]), Ok(None));
    assert_eq!(cost(&rules, &[]), Ok(None), "absent: skipped");
    let deny = rule("missing: deny, when: 'method != \"OPTIONS\"'");
    assert_eq!(cost(&deny, &[]), MISSING);
}

#[test]
fn expressions_read_attributes_by_name_and_by_map() {
    let holds = |when: &str, request: &[(&str, &str)]| {
        cost(&rule(&format!("when: '{when}', missing: deny")), request)
    };
    let yes = Ok(Some(1));
    assert_eq!(holds("has(attributes.a)", &[("a", "1")]), yes);
    assert_eq!(holds("has(attributes.a)", &[]), Ok(None));
    assert_eq!(holds("\"a\" in attributes", &[("a", "1")]), yes);
    assert_eq!(holds("\"a\" in attributes", &[]), Ok(None));
    assert_eq!(
        holds("attributes[\"x-key\"] == \"1\"", &[("x-key", "1")]),
        yes
    );
    assert_eq!(holds("attributes[\"x-key\"] == \"1\"", &[]), MISSING);
    assert_eq!(holds("attributes.a == \"1\"", &[]), MISSING);
    assert_eq!(
        holds("user.tier == \"gold\"", &[("user.tier", "gold")]),
        yes
    );
    assert_eq!(holds("user.tier == \"gold\"", &[("user", "x")]), MISSING);
    assert_eq!(holds("has(attributes.a) && a == \"1\"", &[]), Ok(None));
    assert_eq!(holds("!has(attributes.a) || a == \"1\"", &[]), yes);
    assert_eq!(
        holds("a == \"1\" || b == \"2\"", &[("b", "2")]),
        yes,
        "one side suffices"
    );
    assert_eq!(
        holds(
            "[\"/a\", \"/b\"].exists(p, path.startsWith(p))",
            &[("path", "/b/c")]
        ),
        yes
    );
    assert_eq!(holds("attributes.all(k, k != \"x\")", &[("a", "1")]), yes);
    assert_eq!(
        holds("size(attributes) == 2", &[("a", "1"), ("b", "1")]),
        yes
    );
    assert_eq!(
        holds("[1, 2].map(x, x * 2).filter(x, x > 2).size() == 1", &[]),
        yes
    );
    assert_eq!(
        holds(
            "double(score) >= 0.5 && bool(beta)",
            &[("score", "0.7"), ("beta", "true")]
        ),
        yes
    );
}

#[test]
fn costs_are_numbers_or_expressions() {
    assert_eq!(cost(&rule("cost: 1_000"), &[]), Ok(Some(1000)));
    assert_eq!(cost(&rule("cost: 0"), &[]), Ok(Some(0)));
    assert_eq!(cost(&rule("cost: '2 * 3'"), &[]), Ok(Some(6)));
    let by_action = rule("cost: 'action == \"search\" ? 5 : 1'");
    assert_eq!(cost(&by_action, &[("action", "search")]), Ok(Some(5)));
    assert_eq!(cost(&by_action, &[("action", "other")]), Ok(Some(1)));
    assert_eq!(cost(&by_action, &[]), Ok(None));
    let by_plan = rule("cost: '{\"free\": 10, \"pro\": 1}[plan]'");
    assert_eq!(cost(&by_plan, &[("plan", "pro")]), Ok(Some(1)));
}

#[test]
fn a_request_cannot_escape_a_rule_by_breaking_its_expression() {
    for missing in ["skip", "deny"] {
        let tokens = rule(&format!("missing: {missing}, cost: 'int(tokens) * 1000'"));
        assert_eq!(cost(&tokens, &[("tokens", "7")]), Ok(Some(7000)));
        for wrong in [
            "abc",
            "",
            "-1",
            "9223372036854775807",
            "4503599627371",
            "1e3",
        ] {
            assert_eq!(cost(&tokens, &[("tokens", wrong)]), BROKEN, "{wrong}");
        }
        let plan = rule(&format!(
            "missing: {missing}, cost: '{{\"free\": 10}}[plan]'"
        ));
        for wrong in ["gold", "attributes", "plan", ""] {
            assert_eq!(cost(&plan, &[("plan", wrong)]), BROKEN, "{wrong}");
        }
        let when = rule(&format!("missing: {missing}, when: 'int(n) > 3'"));
        assert_eq!(cost(&when, &[("n", "x")]), BROKEN);
        let both = rule(&format!(
            "missing: {missing}, when: '(absent == \"a\" || true) && int(n) > 3'"
        ));
        assert_eq!(
            cost(&both, &[("n", "x")]),
            BROKEN,
            "an ignored absent attribute does not hide the error"
        );
    }
}

#[test]
fn unlimited_and_zero_are_limits_too() {
    for numbers in [
        "algorithm: gcra, rate: unlimited",
        "algorithm: token-bucket, capacity: unlimited, refill: 1/s",
        "algorithm: token-bucket, capacity: 5, refill: unlimited",
        "algorithm: sliding-log, limit: unlimited, window: 1s",
        "algorithm: leaky-bucket, rate: unlimited",
        "algorithm: fixed-window, limit: 0, window: 1s",
        "algorithm: token-bucket, capacity: 0, refill: 1/s",
        "algorithm: gcra, rate: 1/s, burst: 0",
        "algorithm: sliding-counter, limit: 5, window: 1m",
        "algorithm: sliding-counter, limit: 5, window: 1m, buckets: 6",
        "algorithm: sliding-counter, limit: 5, window: 1m, estimate: two-window",
        "algorithm: leaky-bucket, rate: 5/s, queue: 3, shape: true, max_wait: 2s",
    ] {
        let rules = compile(&format!("  - {{ id: r, {numbers} }}\n"));
        let request_limits = RequestLimits::default();
        let resolution = rules.resolve(&Attributes::new(), &request_limits);
        assert_eq!(resolution.charges.len(), 1, "{numbers}");
        let algorithm = rules.rules()[0].algorithm();
        assert!(numbers.contains(algorithm.name()), "{numbers}");
        assert_eq!(resolution.charges[0].limit.algorithm(), algorithm);
    }
}

#[test]
fn shadow_rules_charge_and_mark_their_denials_and_disabled_ones_do_nothing() {
    let shadow = rule("state: shadow, per: [tenant], missing: deny");
    let request = Attributes::from([("tenant", "a")]);
    assert_eq!(
        shadow.resolve(&request, &RequestLimits::default()).charges[0].enforcement,
        Enforcement::Shadow
    );
    assert!(
        shadow
            .resolve(&Attributes::new(), &RequestLimits::default())
            .denials[0]
            .shadow
    );
    let disabled = rule("state: disabled, per: [tenant], missing: deny");
    assert_eq!(cost(&disabled, &[]), Ok(None));
    assert_eq!(why(&disabled, &[]), "r: does not apply: disabled");
}

#[test]
fn explanations_give_the_reason() {
    let matched = rule("match: { action: [search, lookup] }, per: [tenant, key], cost: 3");
    assert_eq!(
        why(&matched, &[("action", "login")]),
        "r: does not apply: match: action is \"login\", wanted one of [search, lookup]"
    );
    assert_eq!(
        why(&matched, &[]),
        "r: does not apply: match: the request carries no action, wanted one of [search, lookup]"
    );
    assert_eq!(
        why(&matched, &[("action", "search"), ("tenant", "a")]),
        "r: does not apply: per: the request carries no key"
    );
    assert_eq!(
        why(
            &matched,
            &[("action", "search"), ("tenant", "a"), ("key", "b")]
        ),
        "r: applies, cost 3, per tenant + key: limit 10 (rule), window 1m (rule)"
    );
    let when = rule("when: 'int(n) > 3', missing: deny, state: shadow");
    assert_eq!(
        why(&when, &[("n", "1")]),
        "r: does not apply: when: false (shadow)"
    );
    assert_eq!(
        why(&when, &[]),
        "r: denies: when: the request carries no n (shadow)"
    );
    assert!(why(&when, &[("n", "x")]).starts_with("r: denies: when: "));
    assert_eq!(
        why(&when, &[("n", "4")]),
        "r: applies, cost 1, one allowance for all: limit 10 (rule), window 1m (rule) (shadow)"
    );
    let rollout = rule("per: [tenant], rollout: 0.5%");
    let out = (0..100)
        .map(|n| n.to_string())
        .find(|n| cost(&rollout, &[("tenant", n)]) == Ok(None));
    let text = why(&rollout, &[("tenant", &out.unwrap())]);
    assert!(
        text.starts_with("r: does not apply: rollout: subject is at "),
        "{text}"
    );
    assert!(text.ends_with("%, rollout is 0.5%"), "{text}");
}

#[test]
fn a_rollout_is_even() {
    let tenants: Vec<String> = (0..100_000).map(|n| format!("tenant-{n}")).collect();
    for percent in [1, 25, 50, 90] {
        let rules = rule(&format!("per: [tenant], rollout: {percent}%"));
        let inside = tenants
            .iter()
            .filter(|t| cost(&rules, &[("tenant", t)]) == Ok(Some(1)))
            .count();
        let expected = percent * tenants.len() / 100;
        assert!(inside.abs_diff(expected) < tenants.len() / 100, "{inside}");
    }
}

#[test]
fn rules_are_shared_between_threads() {
    fn shared<T: Send + Sync>(_: &T) {}
    shared(&rule("cost: 'int(n)'"));
    shared(&config("  []\n"));
}

proptest! {
    #[test]
    fn a_subject_in_a_rollout_stays_in_a_larger_one(tenant in ".{0,12}", a in 0u32..=100, b in 0u32..=100) {
        let at = |percent: u32| {
            let rules = rule(&format!("per: [tenant], rollout: {percent}%"));
            cost(&rules, &[("tenant", &tenant)]) == Ok(Some(1))
        };
        let (small, large) = (a.min(b), a.max(b));
        prop_assert!(!at(small) || at(large));
        prop_assert!(at(100) && !at(0));
    }

    #[test]
    fn explanations_agree_with_resolutions(
        action in proptest::option::of("[a-c]"),
        tenant in proptest::option::of("[a-c]"),
        n in proptest::option::of("[0-9x]{1,2}"),
    ) {
        let rules = compile("  - { id: a, match: { action: [a, b] }, per: [tenant], algorithm: gcra, rate: 1/s }
  - { id: b, per: [tenant], missing: deny, when: 'int(n) > 3', algorithm: gcra, rate: 1/s }
  - { id: c, per: [action], cost: 'int(n)', rollout: 50%, algorithm: gcra, rate: 1/s }
  - { id: d, state: shadow, missing: deny, cost: 'int(n) - 5', algorithm: gcra, rate: 1/s }
");
        let mut request = Attributes::new();
        for (name, value) in [("action", &action), ("tenant", &tenant), ("n", &n)] {
            if let Some(value) = value {
                request.push(name, value);
            }
        }
        let request_limits = RequestLimits::default();
        let resolution = rules.resolve(&request, &request_limits);
        for explanation in rules.explain(&request) {
            let charge = resolution.rules.iter().position(|rule| *rule == explanation.rule);
            let refusal = resolution.denials.iter().find(|refusal| refusal.rule == explanation.rule);
            match explanation.effect {
                Effect::Applies { cost, .. } => {
                    prop_assert_eq!(charge.map(|at| resolution.charges[at].cost), Some(cost));
                    prop_assert!(refusal.is_none());
                }
                Effect::Denies { reason, .. } => {
                    prop_assert_eq!(refusal.map(|refusal| (refusal.reason, refusal.shadow)), Some((reason, explanation.shadow)));
                    prop_assert!(charge.is_none());
                }
                _ => prop_assert!(charge.is_none() && refusal.is_none()),
            }
        }
    }
}

/// Rules without exceptions are charged on a shorter way than others. A condition that always holds sends the same
/// rules on the longer way.
#[test]
fn plain_rules_make_the_same_charges_as_rules_with_exceptions() {
    let text = |when: &str| {
        format!(
            "  - {{ id: all, match: {{ action: [search, find] }}, algorithm: gcra, rate: 9/s, burst: 3{when} }}\n\
             \x20 - {{ id: user, per: [user], cost: 3, charge_denied: true, algorithm: fixed-window, limit: 10, window: 1m{when} }}\n\
             \x20 - {{ id: strict, per: [tenant], missing: deny, algorithm: quota, limit: 100, period: month, overdraft: 10%{when} }}\n\
             \x20 - {{ id: seen, match: {{ action: 'sea*' }}, state: shadow, algorithm: sliding-log, limit: 5, window: 1s{when} }}\n"
        )
    };
    let plain = compile(&text(""));
    let other = compile(&text(", when: 'action != \"never\"'"));
    let limits = RequestLimits::default();
    for request in [
        vec![("action", "search"), ("user", "ann"), ("tenant", "acme")],
        vec![("action", "find"), ("tenant", "acme")],
        vec![("action", "other"), ("user", "ann")],
        vec![("action", "search")],
    ] {
        let request: Attributes<'_> = request.into_iter().collect();
        let (plain, other) = (
            plain.resolve(&request, &limits),
            other.resolve(&request, &limits),
        );
        assert_eq!(format!("{plain:?}"), format!("{other:?}"));
    }
}
