//! The output of `diff` for two configs.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use tollgate_rules::{Policy, diff};

fn config(text: &str) -> Policy {
    let text = format!("version: 1\n{text}");
    Policy::parse("rules.yaml", &text).unwrap_or_else(|error| panic!("{error}"))
}

fn said(old: &str, new: &str) -> Vec<String> {
    let differences = diff(&config(old), &config(new));
    differences.iter().map(ToString::to_string).collect()
}

/// Returns the output of `diff` for a rule with the fields `old` that change to `new`.
fn of_rule(old: &str, new: &str) -> Vec<String> {
    let rule = |fields: &str| format!("rules: [{{ id: r, {fields} }}]\n");
    said(&rule(old), &rule(new))
}

#[test]
fn equal_policies_have_no_differences() {
    let text = "plans: { a: { r: { rate: 2/s } } }\nrules: [{ id: r, per: [tenant], algorithm: gcra, rate: 1/s }]\n";
    assert!(said(text, text).is_empty());
    let again = text.replace("plans:", "# a comment\nplans:");
    assert!(said(text, &again).is_empty());
}

#[test]
fn added_and_removed_rules_are_named() {
    assert_eq!(
        said(
            "rules: [{ id: old, match: { action: login }, algorithm: gcra, rate: 1/s }]\n",
            "rules: [{ id: new, match: { action: [a, 'b*'] }, per: [user], algorithm: gcra, rate: 5/m, state: shadow }]\n",
        ),
        [
            "rule old: is gone: requests with action login are no longer limited by it",
            "rule new: is new: gcra of rate 5/m, per user, for requests with action a or b*; it only observes",
        ]
    );
}

#[test]
fn changed_numbers_tell_more_or_less() {
    let whom = "for tenants without a plan";
    for (old, new, expected) in [
        ("rate: 10/s", "rate: 20/s", "rate 10/s becomes 20/s: more"),
        (
            "rate: 10/s, burst: 5",
            "rate: 10/s, burst: 3",
            "burst 5 becomes 3: less",
        ),
        (
            "rate: 10/s, burst: 5",
            "rate: 5/s, burst: 50",
            "burst 5 becomes 50, rate 10/s becomes 5/s: more at once and less in the long run",
        ),
        (
            "rate: 10/s, burst: 5",
            "rate: 20/s, burst: 2",
            "burst 5 becomes 2, rate 10/s becomes 20/s: less at once and more in the long run",
        ),
        (
            "rate: 10/s",
            "rate: unlimited",
            "rate 10/s becomes unlimited: more",
        ),
        (
            "rate: unlimited",
            "rate: 10/s",
            "rate unlimited becomes 10/s: less",
        ),
        (
            "rate: 10/s",
            "rate: 10/s, burst: 10",
            "burst unset becomes 10: the same in effect",
        ),
    ] {
        let found = of_rule(
            &format!("algorithm: gcra, {old}"),
            &format!("algorithm: gcra, {new}"),
        );
        assert_eq!(found, [format!("rule r: {expected} {whom}")]);
    }
}

#[test]
fn everything_of_a_rule_is_compared() {
    let base = "algorithm: fixed-window, limit: 5, window: 1m, per: [a]";
    for (old, new, expected) in [
        ("state: shadow", "", "shadow becomes enforce: it denies"),
        ("", "state: disabled", "enforce becomes disabled: it is off"),
        (
            "rollout: 25%",
            "rollout: 50%",
            "rollout 25% becomes 50%: it stays on for its subjects, and further ones are added",
        ),
        (
            "rollout: 50%",
            "rollout: 0.5%",
            "rollout 50% becomes 0.5%: it stays on for some of its subjects only, and none are added",
        ),
        (
            "",
            "match: { x: y }",
            "is for requests with x y, and was for all requests",
        ),
        ("", "when: 'x == \"1\"'", "when always becomes x == \"1\""),
        ("cost: 1", "cost: 'int(n)'", "cost 1 becomes int(n)"),
        (
            "",
            "cost: { table: [{ match: { x: y }, cost: 3 }] }",
            "cost 1 becomes 3 for requests with x y, 1 otherwise",
        ),
        ("", "missing: deny", "missing skip becomes deny"),
        ("", "charge_denied: true", "charge_denied no becomes yes"),
        (
            "",
            "on_store_failure: fail-open",
            "on_store_failure none becomes fail-open",
        ),
        ("", "message: no", "has another message for denied clients"),
    ] {
        let found = of_rule(&format!("{base}, {old}"), &format!("{base}, {new}"));
        assert_eq!(found, [format!("rule r: {expected}")]);
    }
    let found = of_rule(base, "algorithm: gcra, rate: 5/m, per: [b]");
    assert_eq!(
        found,
        [
            "rule r: per a becomes per b: its counts start from zero",
            "rule r: fixed-window of limit 5, window 1m becomes gcra of rate 5/m: its counts start from zero",
        ]
    );
}

#[test]
fn changed_plans_and_tenants_are_named() {
    let config = |plans: &str, tenants: &str| {
        format!(
            "plans: {plans}\ndefault_plan: free\ntenants: {tenants}\n\
             rules: [{{ id: api, per: [tenant], algorithm: gcra, rate: 1/s }}]\n"
        )
    };
    let many = |plan: &str| {
        let tenants: Vec<String> = (0..8)
            .map(|n| format!("t{n}: {{ plan: {plan} }}"))
            .collect();
        tenants.join(", ")
    };
    let old = config(
        "{ free: { api: { burst: 5 } }, pro: { api: { burst: 50 } }, old: {} }",
        &format!("{{ {}, acme: {{ plan: pro }}, gone: {{}} }}", many("free")),
    );
    let new = config(
        "{ free: { api: { burst: 6 } }, pro: { api: { burst: 50 } }, new: {} }",
        &format!(
            "{{ {}, acme: {{ plan: pro, overrides: {{ api: {{ burst: 70 }} }} }}, come: {{}} }}",
            many("pro")
        ),
    );
    assert_eq!(
        said(&old, &new),
        [
            "plan old: is gone",
            "plan free: api: burst 5 becomes 6; 1 tenant is on it",
            "plan new: is new",
            "tenant acme: api: 50 in 50s becomes 70 in 70s: more",
            "tenants t0, t1, t2, t3, t4 and 3 more: from plan free to plan pro",
            "tenant come: newly named, on plan free",
            "tenant gone: no longer named",
        ]
    );
}

#[test]
fn budgets_are_compared() {
    assert_eq!(
        said(
            "budgets: { b: { algorithm: token-bucket, capacity: 5, refill: 1/s } }\nrules: [{ id: r, budget: b }]\n",
            "budgets: { b: { per: [tenant], algorithm: token-bucket, capacity: 9, refill: 1/s } }\nrules: [{ id: r, budget: b, cost: 2 }]\n",
        ),
        [
            "rule r: cost 1 becomes 2",
            "budget b: one allowance for all becomes per tenant: its counts start from zero",
            "budget b: capacity 5 becomes 9: more for tenants without a plan",
        ]
    );
}
