//! Which layer's numbers apply: plans, tenants, limits in requests, overrides. Also budgets, tables of
//! costs and typed attributes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;

use proptest::prelude::*;
use tollgate_core::{Keyring, Limit, Outcome, Rate, Span};
use tollgate_rules::{Attributes, Effect, Override, Policy, RequestLimits, RuleSet};

const CONFIG: &str = "
version: 1
attributes: { rows: int, vip: bool, score: double }
budgets:
  compute: { per: [tenant], algorithm: token-bucket, capacity: 100, refill: 10/s }
plans:
  free:
    api: { rate: 10/s, burst: 20 }
    daily: { limit: 1000 }
  pro:
    api: { rate: 100/s }
    compute: { capacity: 1000 }
default_plan: free
tenants:
  acme: { plan: pro, overrides: { api: { burst: 500 } } }
  corp: { plan: pro }
  solo: { overrides: { daily: { limit: unlimited } } }
rules:
  - { id: api, match: { action: [search, lookup] }, per: [tenant], algorithm: gcra, rate: 1/s, burst: 5 }
  - { id: daily, per: [tenant], algorithm: fixed-window, limit: 100, window: 1d }
  - { id: search, match: { action: search }, budget: compute, cost: 5 }
  - { id: export, match: { action: export }, budget: compute, cost: 'rows / 100 + 1' }
  - id: keyed
    match: { action: keyed }
    per: [key]
    algorithm: gcra
    rate: 5/s
    limit_from: attributes.rate_limit
    ceiling: 50/s
  - id: counted
    match: { action: counted }
    per: [key]
    algorithm: sliding-log
    limit: 7
    window: 1m
    limit_from: attributes.rate_limit
    ceiling: 99
  - id: table
    match: { action: table }
    algorithm: fixed-window
    limit: 100
    window: 1m
    cost:
      table:
        - { match: { method: POST, path: '/big/*' }, cost: 20 }
        - { match: { method: [POST, PUT] }, cost: 'vip ? 1 : 5' }
        - { match: { method: HEAD }, cost: 0 }
      otherwise: 2
";

fn keyring() -> Keyring {
    Keyring::new(b"0123456789abcdef", "test")
}

fn config() -> Policy {
    Policy::parse("rules.yaml", CONFIG).unwrap_or_else(|error| panic!("{error}"))
}

fn compile(config: &Policy, overrides: &[Override]) -> RuleSet {
    let overrides: Vec<_> = overrides.iter().cloned().map(Arc::new).collect();
    RuleSet::compile_with(config, keyring(), &overrides)
}

fn overriding(text: &str) -> Override {
    Override::parse(text, 1_000).unwrap_or_else(|error| panic!("{error}"))
}

/// Returns the limit of `rule` for a request.
fn limit(rules: &RuleSet, rule: &str, request: &[(&str, &str)]) -> Limit {
    let request_limits = RequestLimits::default();
    let resolution = rules.resolve(&request.iter().copied().collect(), &request_limits);
    let mut charges = resolution.charges.iter().zip(&resolution.rules);
    let charge = charges.find(|(_, index)| rules.rules()[**index as usize].id() == rule);
    let limit = charge.expect("the rule applies").0.limit.clone();
    let explained = rules.explain(&request.iter().copied().collect());
    let it = explained.iter().find(|it| &*it.id == rule).unwrap();
    assert!(
        matches!(&it.effect, Effect::Applies { limit: told, .. } if *told == limit),
        "{it:?}"
    );
    limit
}

fn cost(rules: &RuleSet, rule: &str, request: &[(&str, &str)]) -> Option<u64> {
    let request_limits = RequestLimits::default();
    let resolution = rules.resolve(&request.iter().copied().collect(), &request_limits);
    let mut charges = resolution.charges.iter().zip(&resolution.rules);
    let charge = charges.find(|(_, index)| rules.rules()[**index as usize].id() == rule);
    charge.map(|(charge, _)| charge.cost)
}

fn explained(rules: &RuleSet, rule: &str, request: &[(&str, &str)]) -> String {
    let explained = rules.explain(&request.iter().copied().collect());
    let it = explained.iter().find(|it| &*it.id == rule).unwrap();
    it.to_string()
}

fn gcra(amount: u64, burst: u64) -> Limit {
    Limit::gcra(Rate::new(amount, Span::SECOND).unwrap(), burst).unwrap()
}

#[test]
fn numbers_come_from_rule_plan_and_tenant_in_this_order() {
    let rules = compile(&config(), &[]);
    let api = |tenant: &str| limit(&rules, "api", &[("action", "search"), ("tenant", tenant)]);
    assert_eq!(api("stranger"), gcra(10, 20));
    assert_eq!(api("solo"), gcra(10, 20));
    assert_eq!(api("corp"), gcra(100, 5));
    assert_eq!(api("acme"), gcra(100, 500));
    let daily = |tenant: &str| limit(&rules, "daily", &[("tenant", tenant)]);
    assert_eq!(daily("stranger").capacity(), 1000);
    assert_eq!(daily("acme").capacity(), 100);
    assert_eq!(daily("solo").capacity(), Outcome::UNLIMITED);
}

/// Plans that requests name, beside tenants with plans and numbers of their own.
const NAMED_PLANS: &str = "
version: 1
plans:
  free: { keys: { limit: 20 }, api: { limit: 200 } }
  pro: { keys: { limit: 500 }, api: { limit: 5000, window: 2m } }
default_plan: free
plan_from: attributes.tier
tenants:
  acme: { plan: pro, overrides: { api: { limit: 7000 } } }
  corp: { plan: pro }
rules:
  - { id: keys, per: [key], algorithm: fixed-window, limit: 5, window: 1m, limit_from: attributes.rate_limit, ceiling: 900 }
  - { id: api, per: [tenant], algorithm: fixed-window, limit: 50, window: 1m }
  - { id: all, algorithm: fixed-window, limit: 3, window: 1m }
";

fn named_plans(overrides: &[Override]) -> RuleSet {
    let policy = Policy::parse("rules.yaml", NAMED_PLANS);
    compile(&policy.unwrap_or_else(|error| panic!("{error}")), overrides)
}

#[test]
fn request_names_its_plan() {
    let rules = named_plans(&[]);
    let keys = |more: &[(&str, &str)]| {
        let request = [&[("key", "k")], more].concat();
        limit(&rules, "keys", &request).capacity()
    };
    assert_eq!(keys(&[("tier", "pro")]), 500);
    assert_eq!(keys(&[("tier", "free")]), 20);
    // Without a known name: the plan of the tenant, or the default plan.
    assert_eq!(keys(&[("tier", "gold")]), 20);
    assert_eq!(keys(&[]), 20);
    assert_eq!(keys(&[("tenant", "corp")]), 500);
    assert_eq!(keys(&[("tenant", "corp"), ("tier", "gold")]), 500);
    assert_eq!(keys(&[("tenant", "corp"), ("tier", "free")]), 20);
    // The limit of the request comes after its plan.
    assert_eq!(keys(&[("tier", "pro"), ("rate_limit", "700")]), 700);
    assert_eq!(keys(&[("tier", "pro"), ("rate_limit", "1000")]), 900);
    assert_eq!(keys(&[("tier", "pro"), ("rate_limit", "many")]), 500);
    // An allowance that all requests share has the numbers of the rule.
    assert_eq!(limit(&rules, "all", &[("tier", "pro")]).capacity(), 3);
}

#[test]
fn named_plan_takes_the_place_of_the_tenants_plan() {
    let rules = named_plans(&[]);
    let api = |tenant: &str, tier: &str| {
        let limit = limit(&rules, "api", &[("tenant", tenant), ("tier", tier)]);
        (limit.capacity(), limit.window().as_secs_ceil())
    };
    assert_eq!(api("corp", "pro"), (5000, 120));
    assert_eq!(api("corp", "free"), (200, 60));
    // The tenant's own numbers stay, on top of the plan that the request names.
    assert_eq!(api("acme", "pro"), (7000, 120));
    assert_eq!(api("acme", "free"), (7000, 60));
    assert_eq!(api("acme", "gold"), (7000, 120));
    let request = [("tenant", "acme"), ("tier", "free")];
    assert_eq!(
        explained(&rules, "api", &request),
        "api: applies, cost 1, per tenant: limit 7000 (tenant acme), window 1m (rule), \
         plan_from \"free\" (attribute tier)"
    );
    let request = [("key", "k"), ("tier", "gold")];
    assert_eq!(
        explained(&rules, "keys", &request),
        "keys: applies, cost 1, per key: limit 20 (plan free), window 1m (rule), \
         plan_from \"gold\" (attribute tier, which does not name a plan and is ignored)"
    );
}

#[test]
fn overrides_hold_for_a_plan_that_a_request_names() {
    let of_plan = overriding(
        r#"{ "plan": "pro", "rule": "keys", "numbers": { "limit": 600 }, "for": "1h", "reason": "x" }"#,
    );
    let half = overriding(r#"{ "tenant": "corp", "scale": "50%", "for": "1h", "reason": "x" }"#);
    let rules = named_plans(&[of_plan, half]);
    assert_eq!(rules.idle_overrides().count(), 0);
    let keys = |tier: &str| limit(&rules, "keys", &[("key", "k"), ("tier", tier)]).capacity();
    assert_eq!((keys("pro"), keys("free")), (600, 20));
    let api = |tier: &str| limit(&rules, "api", &[("tenant", "corp"), ("tier", tier)]).capacity();
    assert_eq!((api("pro"), api("free")), (2500, 100));
}

#[test]
fn source_of_a_denial_names_the_plan_of_the_request() {
    let rules = named_plans(&[]);
    let attributes = [("key", "k"), ("tier", "pro")].into_iter().collect();
    let plan = rules.named_plan(&attributes);
    assert_eq!(plan, Some(1));
    let source = rules.source(0, None, plan, &[], None);
    assert_eq!(
        source.numbers,
        "limit 500 (plan pro), window 1m (rule), plan_from \"pro\" (attribute tier)"
    );
}

#[test]
fn explanations_name_the_layer_of_each_number() {
    let emergency = overriding(r#"{ "scale": "50%", "for": "1h", "reason": "db is slow" }"#);
    let rules = compile(&config(), &[emergency]);
    assert_eq!(
        explained(&rules, "api", &[("action", "search"), ("tenant", "acme")]),
        "api: applies, cost 1, per tenant: rate 100/s (plan pro), burst 500 (tenant acme), \
         scale 50% (override everyone/*: db is slow)"
    );
    assert_eq!(
        explained(
            &rules,
            "search",
            &[("action", "search"), ("tenant", "corp")]
        ),
        "search: applies, cost 5, per tenant: capacity 1000 (plan pro), refill 10/s (budget compute), \
         scale 50% (override everyone/*: db is slow)"
    );
    let keyed = |value: &str| {
        let request = [("action", "keyed"), ("key", "k"), ("rate_limit", value)];
        explained(&rules, "keyed", &request)
    };
    assert!(keyed("20/s").contains("limit_from \"20/s\" (attribute rate_limit)"));
    assert!(keyed("80/s").contains("(attribute rate_limit, held to the ceiling)"));
    assert!(keyed("fast").contains("which is not a valid limit and is ignored"));
}

#[test]
fn rules_that_draw_on_one_budget_share_its_state() {
    let rules = compile(&config(), &[]);
    let key = |action: &'static str, tenant: &'static str| {
        let request = [("action", action), ("tenant", tenant), ("rows", "950")];
        let request_limits = RequestLimits::default();
        let resolution = rules.resolve(&request.iter().copied().collect(), &request_limits);
        let budget = resolution.charges.iter().find(|it| it.rule == "compute");
        let budget = budget.unwrap();
        (budget.key, budget.cost, budget.limit.capacity())
    };
    let (search, export) = (key("search", "corp"), key("export", "corp"));
    assert_eq!(search.0, export.0);
    assert_eq!((search.1, export.1), (5, 10));
    assert_eq!((search.2, export.2), (1000, 1000));
    assert_ne!(search.0, key("search", "acme").0);
    assert_eq!(rules.rules()[2].budget(), Some("compute"));
}

#[test]
fn a_request_may_bring_its_limit_up_to_the_ceiling() {
    let rules = compile(&config(), &[]);
    let of = |rule: &'static str, value: Option<&str>| {
        let mut request = vec![("action", rule), ("key", "k")];
        request.extend(value.map(|value| ("rate_limit", value)));
        limit(&rules, rule, &request)
    };
    assert_eq!(of("keyed", None), gcra(5, 5));
    assert_eq!(of("keyed", Some("20")), gcra(20, 20));
    assert_eq!(of("keyed", Some("20/s")), gcra(20, 20));
    assert_eq!(of("keyed", Some("51")), gcra(50, 50));
    assert_eq!(of("keyed", Some("0")).capacity(), 0);
    assert_eq!(of("keyed", Some("0/s")).capacity(), 0);
    // The same rate as the ceiling, written over a longer time. The capacity is still the capacity of
    // the ceiling.
    let slow = Limit::gcra(Rate::new(3000, Span::MINUTE).unwrap(), 50).unwrap();
    assert_eq!(of("keyed", Some("3000/m")), slow);
    for nonsense in [
        "",
        "fast",
        "-1",
        "20/",
        "1e3",
        "unlimited",
        "99999999999999999999",
    ] {
        assert_eq!(of("keyed", Some(nonsense)), gcra(5, 5), "{nonsense}");
        assert_eq!(of("counted", Some(nonsense)).capacity(), 7, "{nonsense}");
    }
    assert_eq!(of("counted", None).capacity(), 7);
    assert_eq!(of("counted", Some("50")).capacity(), 50);
    assert_eq!(of("counted", Some("5000")).capacity(), 99);
    assert_eq!(of("counted", Some("50/h")).capacity(), 7);
}

#[test]
fn tables_set_costs_and_typed_attributes_have_their_types() {
    let rules = compile(&config(), &[]);
    let of = |request: &[(&str, &str)]| {
        let mut all = vec![("action", "table")];
        all.extend_from_slice(request);
        cost(&rules, "table", &all)
    };
    assert_eq!(of(&[("method", "GET")]), Some(2));
    assert_eq!(of(&[]), Some(2));
    assert_eq!(of(&[("method", "HEAD")]), Some(0));
    assert_eq!(of(&[("method", "POST"), ("path", "/big/x")]), Some(20));
    assert_eq!(of(&[("method", "PUT"), ("vip", "true")]), Some(1));
    assert_eq!(of(&[("method", "PUT"), ("vip", "false")]), Some(5));
    assert_eq!(of(&[("method", "PUT"), ("vip", "maybe")]), None);
    let export = |rows| {
        cost(
            &rules,
            "export",
            &[("action", "export"), ("tenant", "a"), ("rows", rows)],
        )
    };
    assert_eq!(export("250"), Some(3));
    assert_eq!(export("many"), None);
    assert_eq!(
        explained(
            &rules,
            "export",
            &[("action", "export"), ("tenant", "a"), ("rows", "many")]
        ),
        "export: denies: cost: rows is declared as int, but its value in this request is not one"
    );
}

#[test]
fn overrides_hold_for_a_tenant_a_plan_or_everyone() {
    let config = config();
    let search = |tenant: &'static str| [("action", "search"), ("tenant", tenant)];
    let tenant = overriding(
        r#"{ "tenant": "acme", "rule": "api", "numbers": { "rate": "7/s" }, "reason": "x" }"#,
    );
    let rules = compile(&config, &[tenant]);
    assert_eq!(limit(&rules, "api", &search("acme")), gcra(7, 500));
    assert_eq!(limit(&rules, "api", &search("corp")), gcra(100, 5));
    // A tenant that the config does not name.
    let stranger = overriding(r#"{ "tenant": "new", "scale": "200%", "reason": "x" }"#);
    let rules = compile(&config, &[stranger]);
    assert_eq!(limit(&rules, "api", &search("new")), gcra(20, 40));
    assert_eq!(limit(&rules, "daily", &search("new")).capacity(), 2000);
    assert_eq!(limit(&rules, "api", &search("old")), gcra(10, 20));
    // A tenant's own numbers win over an override of its plan.
    let plan = overriding(
        r#"{ "plan": "pro", "rule": "api", "numbers": { "rate": "40/s", "burst": 60 }, "reason": "x" }"#,
    );
    let rules = compile(&config, &[plan]);
    assert_eq!(limit(&rules, "api", &search("corp")), gcra(40, 60));
    assert_eq!(limit(&rules, "api", &search("acme")), gcra(40, 500));
    assert_eq!(limit(&rules, "api", &search("solo")), gcra(10, 20));
    // Scales multiply. They also apply to limits that requests bring.
    let scales = [
        overriding(r#"{ "plan": "pro", "scale": "50%", "reason": "x" }"#),
        overriding(r#"{ "scale": "50%", "for": "1h", "reason": "x" }"#),
    ];
    let rules = compile(&config, &scales);
    assert_eq!(limit(&rules, "api", &search("acme")), gcra(25, 125));
    assert_eq!(limit(&rules, "api", &search("solo")), gcra(5, 10));
    let keyed = [("action", "keyed"), ("key", "k"), ("rate_limit", "20")];
    assert_eq!(limit(&rules, "keyed", &keyed), gcra(10, 10));
    // The numbers of an emergency override apply to everyone, above all other numbers.
    let numbers = overriding(
        r#"{ "rule": "keyed", "numbers": { "rate": "2/s", "burst": 3 }, "for": "1h", "reason": "x" }"#,
    );
    let rules = compile(&config, &[numbers]);
    assert_eq!(limit(&rules, "keyed", &keyed), gcra(2, 3));
    // A scale of 0% admits nothing.
    let none = overriding(r#"{ "scale": "0%", "for": "1h", "reason": "x" }"#);
    let rules = compile(&config, &[none]);
    assert_eq!(limit(&rules, "api", &search("acme")).capacity(), 0);
    assert_eq!(limit(&rules, "daily", &search("solo")).capacity(), 0);
}

#[test]
fn a_shadow_rule_takes_nothing_from_a_budget() {
    let text = "
version: 1
budgets: { b: { algorithm: token-bucket, capacity: 100, refill: 10/s } }
rules:
  - { id: real, budget: b }
  - { id: watching, budget: b, state: shadow }
  - { id: next, candidate_of: real, budget: b, cost: 9 }
";
    let config = Policy::parse("rules.yaml", text).unwrap_or_else(|error| panic!("{error}"));
    let rules = compile(&config, &[]);
    let request_limits = RequestLimits::default();
    let charges = rules.resolve(&Attributes::new(), &request_limits).charges;
    let names: Vec<&str> = charges.iter().map(|charge| charge.rule).collect();
    assert_eq!(names, ["b", "watching", "next"]);
    assert!(
        charges[1..]
            .iter()
            .all(|charge| charge.key != charges[0].key)
    );
}

#[test]
fn overrides_for_everyone_win_over_all_layers() {
    let config = config();
    let search = |tenant: &'static str| [("action", "search"), ("tenant", tenant)];
    // An override for one rule does not hide the override for all rules.
    let both = [
        overriding(r#"{ "rule": "api", "scale": "50%", "for": "1h", "reason": "x" }"#),
        overriding(r#"{ "scale": "0%", "for": "1h", "reason": "x" }"#),
    ];
    let rules = compile(&config, &both);
    assert_eq!(limit(&rules, "api", &search("acme")).capacity(), 0);
    // The product of two small scales is not rounded down to zero.
    let little = [
        overriding(r#"{ "plan": "pro", "scale": "0.01%", "reason": "x" }"#),
        overriding(r#"{ "scale": "0.01%", "for": "1h", "reason": "x" }"#),
    ];
    let rules = compile(&config, &little);
    assert_eq!(limit(&rules, "api", &search("acme")).capacity(), 1);
    // Numbers that conflict with the tenant's numbers replace numbers of the rule itself.
    let slow = overriding(
        r#"{ "rule": "api", "numbers": { "rate": "1/60d" }, "for": "1h", "reason": "x" }"#,
    );
    let rules = compile(&config, &[slow]);
    let slow = Rate::new(1, Span::from_secs(60 * 86_400)).unwrap();
    assert_eq!(
        limit(&rules, "api", &search("acme")),
        Limit::gcra(slow, 5).unwrap()
    );
    assert!(
        explained(&rules, "api", &search("acme"))
            .contains("rate 1/60d (override everyone/api: x), burst 5 (rule)"),
        "{}",
        explained(&rules, "api", &search("acme"))
    );
}

#[test]
fn shared_allowances_have_one_set_of_numbers() {
    let text = "
version: 1
plans: { pro: { own: { burst: 9 } } }
tenants: { acme: { plan: pro } }
rules:
  - { id: own, per: [tenant], algorithm: gcra, rate: 1/s, burst: 5 }
  - { id: shared, per: [user], algorithm: gcra, rate: 1/s, burst: 5 }
";
    let config = Policy::parse("rules.yaml", text).unwrap_or_else(|error| panic!("{error}"));
    let all = [
        overriding(r#"{ "tenant": "acme", "scale": "200%", "reason": "x" }"#),
        overriding(r#"{ "plan": "pro", "scale": "200%", "reason": "x" }"#),
    ];
    let rules = compile(&config, &all);
    let request = [("tenant", "acme"), ("user", "ann")];
    assert_eq!(limit(&rules, "own", &request), gcra(4, 36));
    assert_eq!(limit(&rules, "shared", &request), gcra(1, 5));
    assert!(explained(&rules, "shared", &request).ends_with("rate 1/s (rule), burst 5 (rule)"));
    let named =
        overriding(r#"{ "tenant": "acme", "rule": "shared", "scale": "200%", "reason": "x" }"#);
    let why = "tenants share the allowance of `shared`: its `per` has no tenant";
    assert_eq!(named.misfit(&config).as_deref(), Some(why));
}

#[test]
fn an_override_may_turn_a_rule_off_or_to_shadow() {
    let config = config();
    let off = overriding(r#"{ "rule": "api", "state": "disabled", "for": "1h", "reason": "x" }"#);
    let rules = compile(&config, &[off]);
    assert_eq!(
        cost(&rules, "api", &[("action", "search"), ("tenant", "a")]),
        None
    );
    assert_eq!(cost(&rules, "daily", &[("tenant", "a")]), Some(1));
    let shadow = overriding(r#"{ "state": "shadow", "for": "1h", "reason": "x" }"#);
    let rules = compile(&config, &[shadow]);
    assert!(
        rules
            .rules()
            .iter()
            .all(|rule| rule.state().name() == "shadow")
    );
}

#[test]
fn an_override_may_set_the_rollout() {
    let config = config();
    let none = overriding(r#"{ "rule": "api", "rollout": "0%", "for": "1h", "reason": "x" }"#);
    assert_eq!(
        (none.name(), none.effect()),
        ("rollout:everyone/api".to_owned(), "rollout 0%".to_owned())
    );
    // It has a name of its own, so it stands beside an override of the numbers.
    let half = overriding(r#"{ "rule": "api", "scale": "50%", "for": "1h", "reason": "x" }"#);
    let rules = compile(&config, &[none, half]);
    let asked = [("action", "search"), ("tenant", "a")];
    assert_eq!(cost(&rules, "api", &asked), None);
    assert_eq!(rules.rules()[0].rollout(), 0);
    assert_eq!(
        explained(&rules, "api", &asked),
        "api: does not apply: rollout: 0% of the subjects"
    );
    assert_eq!(cost(&rules, "daily", &[("tenant", "a")]), Some(1));
}

/// Returns each change as `rule, whom: what before -> after`.
fn previewed(in_force: &[Override], text: &str) -> Vec<String> {
    let in_force: Vec<_> = in_force.iter().cloned().map(Arc::new).collect();
    let wanted = Arc::new(overriding(text));
    let (changes, is_cut) = tollgate_rules::preview(&config(), &in_force, &wanted, &keyring(), 50);
    assert!(!is_cut);
    let shown = |it: Option<String>| it.unwrap_or_else(|| "none".to_owned());
    let lines = changes.into_iter().map(|it| {
        let rule = it.rule.as_deref().unwrap_or("any").to_owned();
        let (before, after) = (shown(it.before), shown(it.after));
        format!("{rule}, {}: {} {before} -> {after}", it.whom, it.what)
    });
    lines.collect()
}

#[test]
fn a_preview_has_the_values_before_and_after() {
    let half = r#"{ "tenant": "acme", "rule": "api", "scale": "50%", "reason": "x" }"#;
    assert_eq!(
        previewed(&[], half),
        [
            "api, tenant acme: scale 100% -> 50%",
            "api, tenant acme: limit in force gcra: 500 at once, all back in 5s -> gcra: 250 at once, all back in 5s",
        ]
    );
    // What is in force already does not change.
    assert!(previewed(&[overriding(half)], half).is_empty());
    // An override for everyone replaces the numbers of plans and tenants too.
    let all = r#"{ "rule": "daily", "numbers": { "limit": 7 }, "for": "1h", "reason": "x" }"#;
    assert_eq!(
        previewed(&[], all),
        [
            "daily, without a plan: limit 100 -> 7",
            "daily, plan free: limit 1000 -> 7",
            "daily, tenant solo: limit unlimited -> 7",
        ]
    );
    let shadow = r#"{ "rule": "api", "state": "shadow", "for": "1h", "reason": "x" }"#;
    let told = ["api, without a plan: state enforce -> shadow"];
    assert_eq!(previewed(&[], shadow), told);
    let some = r#"{ "rule": "api", "rollout": "12.5%", "for": "1h", "reason": "x" }"#;
    let told = ["api, without a plan: rollout 100% -> 12.5%"];
    assert_eq!(previewed(&[], some), told);
    // A budget concerns the rules that draw on it.
    let budget =
        r#"{ "plan": "pro", "rule": "compute", "numbers": { "capacity": 2000 }, "reason": "x" }"#;
    let told = [
        "search, plan pro: capacity 1000 -> 2000",
        "export, plan pro: capacity 1000 -> 2000",
    ];
    assert_eq!(previewed(&[], budget), told);
}

#[test]
fn a_preview_of_a_block_names_the_hashed_subject() {
    let text = r#"{ "subject": "user=ann", "for": "1h", "reason": "x" }"#;
    let block = Arc::new(Override::parse_block(text, 0, &keyring()).unwrap());
    let told = |in_force: &[Arc<Override>]| {
        let found = tollgate_rules::preview(&config(), in_force, &block, &keyring(), 50);
        found.0[0].clone()
    };
    let first = told(&[]);
    assert_eq!(first.before.as_deref(), Some("decided by the rules"));
    assert_eq!(first.after.as_deref(), Some("denied before any rule"));
    assert!(first.whom.starts_with("subject user:") && !first.whom.contains("ann"));
    let again = told(&[Arc::clone(&block)]);
    assert_eq!(again.before, again.after);
}

#[test]
fn the_numbers_of_a_rule_name_their_layers() {
    let config = config();
    let overrides = [
        r#"{ "tenant": "acme", "rule": "api", "scale": "50%", "reason": "load" }"#,
        r#"{ "rule": "api", "state": "shadow", "for": "1h", "reason": "trial" }"#,
    ];
    let overrides = overrides.map(|text| Arc::new(overriding(text)));
    let standing = tollgate_rules::Standing::new(&config, &overrides, &keyring());
    let (scopes, is_cut) = standing.of("api", 50).unwrap();
    assert!(!is_cut);
    let lines: Vec<String> = scopes
        .iter()
        .map(|it| {
            let numbers: Vec<String> = it.numbers.iter().map(ToString::to_string).collect();
            format!("{}: {}", it.whom, numbers.join(", "))
        })
        .collect();
    assert_eq!(
        lines,
        [
            "without a plan: rate 1/s (rule), burst 5 (rule), \
             state shadow (override everyone/api: trial), rollout 100% (rule)",
            "plan free: rate 10/s (plan free), burst 20 (plan free)",
            "plan pro: rate 100/s (plan pro), burst 5 (rule)",
            "tenant acme: rate 100/s (plan pro), burst 500 (tenant acme), \
             scale 50% (override tenant:acme/api: load)",
        ]
    );
    assert!(standing.of("api", 2).unwrap().1);
    assert!(standing.of("gone", 50).is_none());
}

#[test]
fn overrides_that_do_not_fit_are_named_and_left_out() {
    let config = config();
    let misfits = [
        (
            r#"{ "tenant": "a", "rule": "gone", "scale": "50%", "reason": "x" }"#,
            "there is no rule or budget `gone`",
        ),
        (
            r#"{ "plan": "gold", "scale": "50%", "reason": "x" }"#,
            "there is no plan `gold`",
        ),
        (
            r#"{ "tenant": "a", "rule": "api", "numbers": { "limit": 5 }, "reason": "x" }"#,
            "`limit` is not a field of gcra, which takes rate, and optionally burst",
        ),
        (
            r#"{ "tenant": "a", "rule": "search", "scale": "50%", "reason": "x" }"#,
            "the rule `search` draws on the budget `compute`: override the budget",
        ),
        (
            r#"{ "rule": "compute", "state": "shadow", "for": "1h", "reason": "x" }"#,
            "`compute` is a budget, which has no state",
        ),
        (
            r#"{ "rule": "compute", "rollout": "50%", "for": "1h", "reason": "x" }"#,
            "`compute` is a budget, which has no rollout",
        ),
        (
            r#"{ "rule": "table", "rollout": "50%", "for": "1h", "reason": "x" }"#,
            "all requests share the allowance of `table`: a partial rollout needs subjects to choose from",
        ),
    ];
    for (text, why) in misfits {
        let it = overriding(text);
        assert_eq!(it.misfit(&config).as_deref(), Some(why));
        let rules = compile(&config, &[it]);
        let idle: Vec<&str> = rules.idle_overrides().map(|(_, why)| why).collect();
        assert_eq!(idle, [why]);
        assert_eq!(
            limit(&rules, "api", &[("action", "search"), ("tenant", "acme")]),
            gcra(100, 500)
        );
    }
}

#[test]
fn written_overrides_are_read_back() {
    for text in [
        r#"{ "tenant": "acme", "rule": "api", "numbers": { "burst": 500, "rate": "1_000/s" }, "for": "1d", "reason": "launch \"day\"" }"#,
        r#"{ "plan": "free", "scale": "12.5%", "reason": "x" }"#,
        r#"{ "state": "shadow", "for": "1h", "reason": "x" }"#,
        r#"{ "rule": "api", "rollout": "0.5%", "for": "1h", "reason": "x" }"#,
    ] {
        let it = overriding(text).by("ann");
        let written = it.to_json().to_string();
        let read = Override::parse(&written, 777).unwrap();
        assert_eq!(read.to_json(), it.to_json());
        assert_eq!((read.set_at(), read.author()), (1_000, "ann"));
    }
}

#[test]
fn wrong_overrides_are_rejected_with_the_reason() {
    for (text, expected) in [
        ("{}", "an override needs a `reason`"),
        (
            r#"{ "scale": "50%", "reason": "x" }"#,
            "an override for everyone needs an end",
        ),
        (
            r#"{ "scale": "50%", "state": "shadow", "for": "1h", "reason": "x" }"#,
            "an override makes exactly one change",
        ),
        (
            r#"{ "tenant": "a", "reason": "x" }"#,
            "an override makes exactly one change",
        ),
        (
            r#"{ "tenant": "a", "plan": "b", "scale": "1%", "reason": "x" }"#,
            "an override is for a tenant, a plan or a subject",
        ),
        (
            r#"{ "tenant": "a", "state": "shadow", "reason": "x" }"#,
            "an override of `state` applies to everyone",
        ),
        (
            r#"{ "tenant": "a", "rule": "r", "rollout": "5%", "reason": "x" }"#,
            "an override of `rollout` applies to everyone",
        ),
        (
            r#"{ "rollout": "5%", "for": "1h", "reason": "x" }"#,
            "a rollout belongs to a rule",
        ),
        (
            r#"{ "rule": "r", "rollout": "101%", "for": "1h", "reason": "x" }"#,
            "`101%` is above 100%",
        ),
        (
            r#"{ "tenant": "a", "numbers": { "burst": 5 }, "reason": "x" }"#,
            "numbers belong to a rule",
        ),
        (
            r#"{ "tenant": "a", "rule": "r", "numbers": {}, "reason": "x" }"#,
            "there are no numbers",
        ),
        (
            r#"{ "tenant": "a", "rule": "r", "numbers": { "brust": 5 }, "reason": "x" }"#,
            "`brust` is not a field of numbers",
        ),
        (
            r#"{ "tenant": "a", "scale": "2000%", "reason": "x" }"#,
            "`2000%` is above 1000%",
        ),
        (
            r#"{ "tenant": "a", "scale": "50%", "reason": " " }"#,
            "the reason is empty or too long",
        ),
        (
            r#"{ "tenant": "", "scale": "50%", "reason": "x" }"#,
            "the name is empty or too long",
        ),
        (
            r#"{ "state": "enforce", "for": "1h", "reason": "x" }"#,
            "`enforce` needs a rule",
        ),
        ("[", "override:"),
    ] {
        let error = Override::parse(text, 0).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
    assert!(Override::parse(&" ".repeat(20_000), 0).is_err());
}

#[test]
fn a_request_cannot_set_author_and_times() {
    let asked = r#"{ "tenant": "a", "scale": "50%", "for": "1h", "reason": "x" }"#;
    let it = Override::parse_request(asked, 1_000, &keyring())
        .unwrap()
        .by("ann");
    let kept = it.to_json().to_string();
    assert_eq!(
        Override::parse(&kept, 9_999).unwrap().expires_at(),
        Some(3_601_000)
    );
    let error = Override::parse_request(&kept, 0, &keyring())
        .unwrap_err()
        .to_string();
    for field in ["author", "setAtEpochMillis", "expiresAtEpochMillis"] {
        let told = format!("a request cannot set `{field}`");
        assert!(error.contains(&told), "{error}");
    }
}

#[test]
fn a_candidate_takes_missing_fields_from_its_rule() {
    let text = "
version: 1
rules:
  - { id: next, candidate_of: api, algorithm: gcra, rate: 50/s }
  - { id: api, match: { action: search }, when: 'method != \"HEAD\"', per: [tenant], cost: 3, algorithm: gcra, rate: 10/s }
";
    let config = Policy::parse("rules.yaml", text).unwrap_or_else(|error| panic!("{error}"));
    let rules = compile(&config, &[]);
    let request = [("action", "search"), ("tenant", "a"), ("method", "GET")];
    assert_eq!(cost(&rules, "next", &request), Some(3));
    assert_eq!(
        cost(&rules, "next", &[("action", "login"), ("tenant", "a")]),
        None
    );
    assert_eq!(rules.rules()[0].candidate_of(), Some("api"));
    assert_eq!(rules.rules()[0].per(), ["tenant"]);
}

proptest! {
    /// The tables are computed in advance. This test applies the layers one by one, and expects the
    /// same numbers.
    #[test]
    fn later_layers_win(
        plan in proptest::option::of((1u64..100, proptest::option::of(1u64..100))),
        tenant in proptest::option::of((proptest::option::of(1u64..100), proptest::option::of(1u64..100))),
        plan_override in proptest::option::of(1u64..100),
        tenant_override in proptest::option::of(1u64..100),
        emergency in proptest::option::of(1u64..100),
        request_limits in proptest::option::of(1u64..200),
    ) {
        let numbers = |rate: Option<u64>, burst: Option<u64>| {
            let rate = rate.map(|rate| format!("rate: {rate}/s"));
            let burst = burst.map(|burst| format!("burst: {burst}"));
            let given: Vec<String> = rate.into_iter().chain(burst).collect();
            given.join(", ")
        };
        let mut text = "version: 1\nplans:\n  gold: {".to_owned();
        if let Some((rate, burst)) = plan {
            text += &format!(" r: {{ {} }} ", numbers(Some(rate), burst));
        }
        text += "}\ntenants:\n  t: { plan: gold";
        if let Some((rate, burst)) = tenant && (rate.is_some() || burst.is_some()) {
            text += &format!(", overrides: {{ r: {{ {} }} }}", numbers(rate, burst));
        }
        text += " }\nrules:\n  - { id: r, per: [tenant], algorithm: gcra, rate: 1000/s, burst: 2000, limit_from: attributes.own, ceiling: 150/s }\n";
        let config = Policy::parse("rules.yaml", &text).unwrap_or_else(|error| panic!("{error}"));
        let mut overrides = Vec::new();
        for (scope, rate) in [
            (r#""plan": "gold", "#, plan_override),
            (r#""tenant": "t", "#, tenant_override),
            (r#""for": "1h", "#, emergency),
        ] {
            if let Some(rate) = rate {
                overrides.push(overriding(&format!(
                    r#"{{ {scope} "rule": "r", "numbers": {{ "rate": "{rate}/s" }}, "reason": "x" }}"#
                )));
            }
        }
        let rules = compile(&config, &overrides);
        let own = request_limits.map(|rate| rate.to_string());
        let mut request = vec![("tenant", "t")];
        request.extend(own.as_deref().map(|own| ("own", own)));

        let (mut rate, mut burst) = (1000, 2000);
        if let Some((of_plan, of_plan_burst)) = plan {
            rate = of_plan;
            burst = of_plan_burst.unwrap_or(burst);
        }
        rate = plan_override.unwrap_or(rate);
        if let Some((of_tenant, of_tenant_burst)) = tenant {
            rate = of_tenant.unwrap_or(rate);
            burst = of_tenant_burst.unwrap_or(burst);
        }
        rate = tenant_override.unwrap_or(rate);
        match (emergency, request_limits) {
            (Some(of_emergency), _) => rate = of_emergency,
            (None, Some(own)) => (rate, burst) = (own.min(150), own.min(150)),
            (None, None) => {}
        }
        prop_assert_eq!(limit(&rules, "r", &request), gcra(rate, burst));
    }

    /// The index finds the same rules as a scan of all rules.
    #[test]
    fn the_index_changes_nothing(
        conditions in proptest::collection::vec(
            proptest::collection::vec((0..3usize, "[ab]\\*?|\\*"), 0..3), 0..20),
        request in proptest::collection::vec((0..3usize, "[abc]{1,2}"), 0..4),
    ) {
        const NAMES: [&str; 3] = ["action", "method", "path"];
        let mut text = "version: 1\nrules:\n".to_owned();
        for (index, conditions) in conditions.iter().enumerate() {
            let mut by_name = std::collections::BTreeMap::new();
            for (name, value) in conditions {
                by_name.entry(*name).or_insert_with(Vec::new).push(format!("'{value}'"));
            }
            let conditions: Vec<String> = by_name
                .iter()
                .map(|(name, values)| format!("{}: [{}]", NAMES[*name], values.join(", ")))
                .collect();
            text += &format!("  - {{ id: r{index}, match: {{ {} }}, algorithm: gcra, rate: 1/s }}\n", conditions.join(", "));
        }
        if conditions.is_empty() {
            text += "  []\n";
        }
        let config = Policy::parse("rules.yaml", &text).unwrap_or_else(|error| panic!("{error}"));
        let rules = compile(&config, &[]);
        let request: Attributes<'_> = request.iter().map(|(name, value)| (NAMES[*name], value.as_str())).collect();
        let request_limits = RequestLimits::default();
        let found = rules.resolve(&request, &request_limits).rules.to_vec();
        let applies = rules.explain(&request).into_iter().filter(tollgate_rules::Explanation::applies);
        let expected: Vec<u32> = applies.map(|it| it.rule).collect();
        prop_assert_eq!(found, expected);
    }
}
