//! Addresses and networks in `match` and in expressions.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fmt::Write;

use tollgate_core::Keyring;
use tollgate_rules::{Attributes, Policy, RequestLimits, RuleSet};

fn compile(rules: &str) -> RuleSet {
    let text = format!("version: 1\nrules:\n{rules}");
    let policy = Policy::parse("rules.yaml", &text).unwrap_or_else(|error| panic!("{error}"));
    RuleSet::compile(&policy, Keyring::new(b"0123456789abcdef", "test"))
}

fn rule(id: &str, fields: &str) -> String {
    format!("  - {{ id: {id}, algorithm: fixed-window, limit: 10, window: 1m, {fields} }}\n")
}

/// Returns the ids of the rules that apply to a request from `ip`.
fn found(rules: &RuleSet, ip: &str) -> Vec<String> {
    let limits = RequestLimits::default();
    let resolution = rules.resolve(&Attributes::from([("ip", ip)]), &limits);
    assert!(resolution.denials.is_empty());
    let ids = resolution.rules.iter();
    ids.map(|index| rules.rules()[*index as usize].id().to_owned())
        .collect()
}

fn errors(fields: &str) -> String {
    let text = format!("version: 1\nrules:\n{}", rule("r", fields));
    Policy::parse("rules.yaml", &text).unwrap_err().to_string()
}

#[test]
fn match_takes_networks_addresses_and_lists_of_both() {
    let rules = compile(
        &[
            rule("ten", "match: { ip: 10.0.0.0/8 }"),
            rule("local", "match: { ip: ['fd00::/8', '::1', 127.0.0.0/8] }"),
            rule("one", "match: { ip: 192.0.2.1 }"),
            rule(
                "mixed",
                "match: { ip: [192.0.2.0/24, unknown, '198.51.*'] }",
            ),
        ]
        .concat(),
    );
    for (ip, expected) in [
        ("10.1.2.3", &["ten"][..]),
        ("10.1.2.3:443", &["ten"]),
        ("::ffff:10.1.2.3", &["ten"]),
        ("[::ffff:10.1.2.3]:80", &["ten"]),
        (" 10.1.2.3 ", &["ten"]),
        ("11.1.2.3", &[]),
        ("fd12::1", &["local"]),
        ("[fd12::1]:80", &["local"]),
        ("0:0::1", &["local"]),
        ("::2", &[]),
        ("127.255.0.1", &["local"]),
        ("192.0.2.1", &["one", "mixed"]),
        ("192.0.2.2", &["mixed"]),
        ("198.51.100.1", &["mixed"]),
        ("unknown", &["mixed"]),
        ("10.0.0.0/8", &[]),
        ("", &[]),
    ] {
        assert_eq!(found(&rules, ip), expected, "{ip}");
    }
}

/// With many rules, an index finds the rules that apply. The index finds the same rules as a
/// search.
#[test]
fn index_finds_the_same_networks() {
    let mut text = String::new();
    for n in 0..200 {
        let fields = format!("match: {{ ip: [10.{n}.0.0/16, 10.{n}.7.0/24, 'fd00:{n}::/32'] }}");
        text += &rule(&format!("n{n}"), &fields);
    }
    text += &rule("ten", "match: { ip: 10.0.0.0/8 }");
    text += &rule("all4", "match: { ip: 0.0.0.0/0 }");
    text += &rule("all6", "match: { ip: '::/0' }");
    text += &rule("word", "match: { ip: [unknown, 10.3.0.0/16] }");
    let rules = compile(&text);
    assert_eq!(found(&rules, "10.3.1.1"), ["n3", "ten", "all4", "word"]);
    // Two networks of one rule contain the address: the rule is charged once.
    assert_eq!(found(&rules, "10.5.7.1:80"), ["n5", "ten", "all4"]);
    assert_eq!(found(&rules, "10.255.7.1"), ["ten", "all4"]);
    assert_eq!(found(&rules, "fd00:9::1"), ["n9", "all6"]);
    assert_eq!(found(&rules, "::ffff:10.9.0.1"), ["n9", "ten", "all4"]);
    assert_eq!(found(&rules, "unknown"), ["word"]);
    assert_eq!(found(&rules, "other"), [""; 0]);
}

#[test]
fn expressions_ask_for_networks() {
    let rules = compile(
        &[
            rule(
                "in",
                "when: 'ip in cidr(\"10.0.0.0/8\") || ip in cidr(\"fd00::/8\")'",
            ),
            rule("not", "when: '!(ip in cidr(\"10.0.0.0/8\"))'"),
            rule("cost", "cost: 'ip in cidr(\"10.0.0.0/8\") ? 1 : 5'"),
        ]
        .concat(),
    );
    for (ip, expected) in [
        ("10.1.2.3", &["in", "cost"][..]),
        ("::ffff:10.1.2.3", &["in", "cost"]),
        ("10.1.2.3:80", &["in", "cost"]),
        ("fd12::1", &["in", "not", "cost"]),
        ("192.0.2.1", &["not", "cost"]),
        ("somebody", &["not", "cost"]),
    ] {
        assert_eq!(found(&rules, ip), expected, "{ip}");
    }
    // Any attribute may hold an address.
    let rules = compile(&rule(
        "r",
        "when: 'attributes[\"x-peer\"] in cidr(\"::1/128\")'",
    ));
    let limits = RequestLimits::default();
    let charges = |peer| {
        let request = Attributes::from([("x-peer", peer)]);
        rules.resolve(&request, &limits).charges.len()
    };
    assert_eq!((charges("[::1]"), charges("::2")), (1, 0));
}

#[test]
fn wrong_networks_are_rejected_with_their_place() {
    for (fields, says, help) in [
        ("match: { ip: 10.0.0.0/33 }", "2:", "10.0.0.0/8"),
        (
            "match: { ip: 10.1.0.0/8 }",
            "bits set after the prefix",
            "write the network, 10.0.0.0/8",
        ),
        (
            "match: { ip: '::ffff:10.0.0.0/104' }",
            "IPv4 network in IPv6",
            "10.0.0.0/8",
        ),
        (
            "match: { ip: [10.0.0.0/8, '1.2.3.4:80'] }",
            "not an address",
            "write 1.2.3.4",
        ),
        (
            "when: 'ip in cidr(\"10.0.0.1/8\")'",
            "bits set after the prefix",
            "10.0.0.0/8",
        ),
        (
            "when: 'ip in cidr(\"10.0.0\")'",
            "not a network",
            "10.0.0.0/8",
        ),
        (
            "when: 'ip in cidr(ip)'",
            "must be written in the expression",
            "in quotes",
        ),
        ("when: 'ip in cidr()'", "cannot be called", "cidr("),
        (
            "when: 'ip == cidr(\"10.0.0.0/8\")'",
            "never equals a network",
            "ip in cidr",
        ),
        (
            "when: 'ip in [cidr(\"10.0.0.0/8\")]'",
            "never equals a network",
            "ip in cidr",
        ),
        (
            "when: '5 in cidr(\"10.0.0.0/8\")'",
            "not an address",
            "ip in cidr",
        ),
        (
            "when: 'cidr(\"10.0.0.0/8\")'",
            "must yield a bool",
            "compare",
        ),
    ] {
        let error = errors(fields);
        assert!(error.starts_with("rules.yaml:3:"), "{error}");
        let says = if says == "2:" { "not a network" } else { says };
        assert!(error.contains(says) && error.contains(help), "{error}");
    }
}

#[test]
fn notations_of_one_address_share_an_allowance() {
    let rules = compile(&rule("r", "per: [ip]"));
    let key = |ip: &str| {
        let limits = RequestLimits::default();
        let request = Attributes::from([("ip", ip)]);
        rules.resolve(&request, &limits).charges[0].key
    };
    for ip in [
        "1.2.3.4:80",
        " 1.2.3.4",
        "[::ffff:1.2.3.4]:80",
        "::ffff:102:304",
    ] {
        assert_eq!(key(ip), key("1.2.3.4"), "{ip}");
    }
    for ip in ["[::1]", "[::1]:80", "::1%lo", "::2"] {
        assert_eq!(key(ip), key("::1"), "{ip}");
    }
    assert_ne!(key("1.2.3.5"), key("1.2.3.4"));
    assert_ne!(key("unknown"), key("1.2.3.4"));
}

#[test]
fn nested_macros_are_rejected_when_the_rules_are_read() {
    let mut body = "true".to_owned();
    for level in 0..5 {
        body = format!("[1, 2, 3, 4, 5, 6, 7, 8, 9, 10].all(x{level}, {body})");
    }
    let error = errors(&format!("when: '{body}'"));
    assert!(error.contains("steps for one request"), "{error}");
    assert!(
        error.starts_with("rules.yaml:3:") && error.contains("help: use fewer"),
        "{error}"
    );
    // A list that the request fills is bounded too.
    let error = errors("when: 'attributes.all(a, attributes.all(b, attributes.all(c, a != b)))'");
    assert!(error.contains("steps for one request"), "{error}");
}

/// The largest expressions that are accepted take little time. The bound is checked by counting, so
/// this test only shows that evaluation works near the bound.
#[test]
fn expressions_below_the_bound_work() {
    let mut list = String::new();
    for n in 0..30 {
        write!(list, "{n}, ").unwrap();
    }
    let list = format!("[{}]", list.trim_end_matches(", "));
    let rules = compile(&rule(
        "r",
        &format!("when: '{list}.exists(a, {list}.exists(b, a * b == 841))'"),
    ));
    assert_eq!(found(&rules, "::1"), ["r"]);
}
