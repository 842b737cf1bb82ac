//! Overrides and blocks of one subject.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::sync::Arc;

use tollgate_core::{Keyring, Limit};
use tollgate_rules::{Attributes, Blocks, Effect, Override, Policy, RequestLimits, RuleSet, Scope};

const CONFIG: &str = "
version: 1
plans: { pro: { api: { limit: 100 } } }
tenants: { acme: { plan: pro } }
rules:
  - { id: api, per: [tenant, user], algorithm: fixed-window, limit: 10, window: 1m, limit_from: attributes.rate_limit, ceiling: 500 }
  - { id: address, per: [ip], algorithm: fixed-window, limit: 30, window: 1m }
  - { id: all, algorithm: fixed-window, limit: 1000, window: 1m }
";

fn keyring() -> Keyring {
    Keyring::new(b"0123456789abcdef", "test")
}

fn policy() -> Policy {
    Policy::parse("rules.yaml", CONFIG).unwrap_or_else(|error| panic!("{error}"))
}

fn overriding(text: &str) -> Arc<Override> {
    let read = Override::parse_request(text, 1_000, &keyring());
    stored(&read.unwrap_or_else(|error| panic!("{error}")).by("ops"))
}

fn block(text: &str) -> Arc<Override> {
    let read = Override::parse_block(text, 1_000, &keyring());
    stored(&read.unwrap_or_else(|error| panic!("{error}")).by("ops"))
}

/// Returns an override after it was written and read again.
fn stored(it: &Override) -> Arc<Override> {
    let text = it.to_json().to_string();
    let read = Override::parse(&text, 9_999).unwrap_or_else(|error| panic!("{text}: {error}"));
    assert_eq!(read.to_json(), it.to_json());
    Arc::new(read)
}

/// Returns the limit of `rule` for a request, as a decision and an explanation use it.
fn limit(rules: &RuleSet, rule: &str, request: &[(&str, &str)]) -> u64 {
    let request: Attributes<'_> = request.iter().copied().collect();
    let request_limits = RequestLimits::default();
    let resolution = rules.resolve(&request, &request_limits);
    let mut charges = resolution.charges.iter().zip(&resolution.rules);
    let charge = charges.find(|(_, index)| rules.rules()[**index as usize].id() == rule);
    let limit: Limit = charge.unwrap().0.limit.clone();
    let explained = rules.explain(&request);
    let it = explained.iter().find(|it| &*it.id == rule).unwrap();
    assert!(
        matches!(&it.effect, Effect::Applies { limit: told, .. } if *told == limit),
        "{it:?}"
    );
    limit.capacity()
}

#[test]
fn an_override_changes_the_limits_of_one_subject() {
    let ann = overriding(
        r#"{"subject":"user=ann","rule":"api","numbers":{"limit":3},"for":"1h","reason":"x"}"#,
    );
    assert!(ann.name().starts_with("subject:user:") && ann.name().ends_with("/api"));
    assert!(!format!("{ann:?}{}", ann.to_json()).contains("ann"));
    let net =
        overriding(r#"{"subject":"ip=10.0.0.0/8","scale":"50%","forever":true,"reason":"x"}"#);
    assert_eq!(net.name(), "subject:ip:10.0.0.0/8/*");
    assert!(matches!(net.scope(), Scope::Subject(_)));
    let rules = RuleSet::compile_with(&policy(), keyring(), &[ann, net]);
    assert_eq!(rules.idle_overrides().count(), 0);
    let of = |tenant, user, ip| {
        let request = [("tenant", tenant), ("user", user), ("ip", ip)];
        ["api", "address", "all"].map(|rule| limit(&rules, rule, &request))
    };
    assert_eq!(of("acme", "ann", "192.0.2.1"), [3, 30, 1000]);
    assert_eq!(of("else", "ann", "10.1.2.3"), [3, 15, 1000]);
    assert_eq!(of("acme", "bob", "[::ffff:10.1.2.3]:80"), [100, 15, 1000]);
    assert_eq!(of("else", "bob", "192.0.2.1"), [10, 30, 1000]);
    // A request cannot bring other numbers for a subject with numbers of its own.
    let brought = [("tenant", "acme"), ("user", "ann"), ("rate_limit", "400")];
    assert_eq!(limit(&rules, "api", &brought), 3);
    let brought = [("tenant", "acme"), ("user", "bob"), ("rate_limit", "400")];
    assert_eq!(limit(&rules, "api", &brought), 400);
    let explained = rules.explain(&[("tenant", "acme"), ("user", "ann")].into_iter().collect());
    let explained = explained[0].to_string();
    assert!(
        explained.contains("limit 3 (override subject:user:"),
        "{explained}"
    );
}

#[test]
fn an_override_for_everyone_comes_after_that_of_a_subject() {
    let ann = overriding(
        r#"{"subject":"user=ann","rule":"api","numbers":{"limit":30},"for":"1h","reason":"x"}"#,
    );
    let all = overriding(r#"{"rule":"api","numbers":{"limit":4},"for":"1h","reason":"x"}"#);
    let half = overriding(r#"{"scale":"50%","for":"1h","reason":"x"}"#);
    let request = [("tenant", "else"), ("user", "ann")];
    let rules = RuleSet::compile_with(&policy(), keyring(), &[Arc::clone(&ann), half]);
    assert_eq!(limit(&rules, "api", &request), 15);
    let rules = RuleSet::compile_with(&policy(), keyring(), &[ann, all]);
    assert_eq!(limit(&rules, "api", &request), 4);
}

#[test]
fn an_override_without_effect_says_why() {
    for (text, why) in [
        (
            r#"{"subject":"user=ann","rule":"all","scale":"50%","for":"1h","reason":"x"}"#,
            "subjects share the allowance of `all`: its `per` has no user",
        ),
        (
            r#"{"subject":"user=ann","rule":"none","scale":"50%","for":"1h","reason":"x"}"#,
            "there is no rule or budget `none`",
        ),
    ] {
        assert_eq!(overriding(text).misfit(&policy()).as_deref(), Some(why));
    }
    let ann = overriding(r#"{"subject":"user=ann","scale":"50%","for":"1h","reason":"x"}"#);
    let other = Keyring::new(b"another secret of it", "test");
    let rules = RuleSet::compile_with(&policy(), other, &[ann]);
    let idle: Vec<&str> = rules.idle_overrides().map(|(_, why)| why).collect();
    assert_eq!(idle.len(), 1);
    assert!(idle[0].contains("another hash_secret"), "{idle:?}");
    assert_eq!(
        limit(&rules, "api", &[("tenant", "a"), ("user", "ann")]),
        10
    );
}

#[test]
fn wrong_subjects_are_rejected() {
    let keyring = keyring();
    for (text, expected) in [
        (r#"{"for":"1h","reason":"x"}"#, "a block needs a `subject`"),
        (
            r#"{"subject":"ann","for":"1h","reason":"x"}"#,
            "the subject has no `=`",
        ),
        (
            r#"{"subject":"1=ann","for":"1h","reason":"x"}"#,
            "`1` is not the name of an attribute",
        ),
        (
            r#"{"subject":"user=","for":"1h","reason":"x"}"#,
            "empty or too long",
        ),
        (
            r#"{"subject":"ip=10.0.0.1/8","for":"1h","reason":"x"}"#,
            "has bits set after the prefix",
        ),
        (
            r#"{"subject":"ip=300.1.1.1","for":"1h","reason":"x"}"#,
            "is not an address",
        ),
        (r#"{"subject":"user=ann","reason":"x"}"#, "needs an end"),
        (
            r#"{"subject":"user=ann","for":"1h","forever":true,"reason":"x"}"#,
            "has an end or is forever",
        ),
        (r#"{"subject":"user=ann","for":"1h"}"#, "needs a `reason`"),
        (
            r#"{"subject":"user=ann","rule":"api","for":"1h","reason":"x"}"#,
            "a block has no `rule`",
        ),
        (
            r#"{"subject":"user=ann","tenant":"a","for":"1h","reason":"x"}"#,
            "a block has no `tenant`",
        ),
        (
            r#"{"attribute":"user","hash":"00","for":"1h","reason":"x"}"#,
            "a request cannot set `hash`",
        ),
        (
            r#"{"subject":"user=ann","block":true,"for":"1h","reason":"x"}"#,
            "a request cannot set `block`",
        ),
        ("", "api_key=k1"),
    ] {
        let error = Override::parse_block(text, 0, &keyring)
            .unwrap_err()
            .to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
    for text in [
        r#"{"attribute":"user","block":true,"forever":true,"reason":"x"}"#,
        r#"{"attribute":"user","hash":"xyz","hashedBy":"a","block":true,"forever":true,"reason":"x"}"#,
        r#"{"attribute":"ip","network":"10.0.0.1/8","block":true,"forever":true,"reason":"x"}"#,
        r#"{"subject":"user=ann","block":true,"forever":true,"reason":"x"}"#,
        r#"{"tenant":"acme","block":true,"for":"1h","reason":"x"}"#,
    ] {
        assert!(Override::parse(text, 0).is_err(), "{text}");
    }
}

#[test]
fn blocks_are_found_by_value_and_by_network() {
    let all = [
        block(r#"{"subject":"api_key=k1","for":"1h","reason":"abuse"}"#),
        block(r#"{"subject":"ip=10.0.0.0/8","for":"2h","reason":"flood"}"#),
        block(r#"{"subject":"ip=10.9.0.0/16","forever":true,"reason":"flood"}"#),
        block(r#"{"subject":"ip=2001:db8::/32","for":"1h","reason":"flood"}"#),
        block(r#"{"subject":"ip=unknown","for":"1h","reason":"odd"}"#),
        block(r#"{"subject":"key=user:bob","for":"1h","reason":"odd"}"#),
        overriding(r#"{"subject":"user=ann","scale":"50%","for":"1h","reason":"x"}"#),
    ];
    let blocks = Blocks::new(&all, &keyring());
    let at = |now: u64, request: &[(&str, &str)]| {
        let request: Attributes<'_> = request.iter().copied().collect();
        let found = blocks.find(&request, || now);
        found.map(|it| (it.reason().to_owned(), it.expires_at()))
    };
    let end = |hours: u64| Some(1_000 + hours * 3_600_000);
    assert_eq!(
        at(2_000, &[("api_key", "k1")]),
        Some(("abuse".to_owned(), end(1)))
    );
    assert_eq!(
        at(
            2_000,
            &[("api_key", "k2"), ("user", "ann"), ("ip", "11.0.0.1")]
        ),
        None
    );
    assert_eq!(at(2_000, &[("user", "k1")]), None);
    // Of several blocks, the one that ends last counts.
    let both = [("api_key", "k1"), ("ip", "10.1.1.1:443")];
    assert_eq!(at(2_000, &both), Some(("flood".to_owned(), end(2))));
    assert_eq!(
        at(2_000, &[("ip", "10.9.1.1")]),
        Some(("flood".to_owned(), None))
    );
    assert_eq!(
        at(2_000, &[("ip", "2001:db8:1::1")]),
        Some(("flood".to_owned(), end(1)))
    );
    assert_eq!(at(2_000, &[("ip", "unknown")]).unwrap().0, "odd");
    // A block ends to the millisecond.
    let key = [("api_key", "k1")];
    assert!(at(3_600_999, &key).is_some());
    assert!(at(3_601_000, &key).is_none());
    assert!(blocks.find_key(b"user:bob", || 2_000).is_some());
    assert!(blocks.find_key(b"user:ann", || 2_000).is_none());
    let other = Keyring::new(b"another secret of it", "test");
    let rehashed = Blocks::new(&all, &other);
    let request = Attributes::from([("api_key", "k1")]);
    assert!(rehashed.find(&request, || 2_000).is_none());
    // Networks are not hashed.
    let request = Attributes::from([("ip", "10.0.0.1")]);
    assert!(rehashed.find(&request, || 2_000).is_some());
    assert!(Blocks::default().is_empty());
}
