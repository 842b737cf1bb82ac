//! How each part of a config of Envoy's rate limit service is converted.

#![allow(clippy::unwrap_used)] // Test helpers may panic.

mod common;

use common::{notes, works};
use proptest::prelude::*;
use tollgate_import::{Domains, Imported, Kind, Source, envoy_ratelimit};

/// How many requests a test sends: more than any limit in this file.
const ALL: usize = 20;

fn import(descriptors: &str) -> Imported {
    let text = format!("domain: d\ndescriptors:\n{descriptors}");
    let name = "limits.yaml";
    envoy_ratelimit(&[Source { name, text: &text }], Domains::Once).unwrap()
}

fn limit(amount: u32) -> String {
    format!("{{ unit: day, requests_per_unit: {amount} }}")
}

/// Imports descriptors with limits: the first has a limit of 1, the second of 2, and so on.
fn limited(descriptors: &[&str]) -> Imported {
    let lines = (1..).zip(descriptors).map(|(amount, fields)| {
        let limit = limit(amount);
        format!("- {{ {fields}, rate_limit: {limit} }}\n")
    });
    import(&lines.collect::<String>())
}

#[test]
fn request_with_more_or_fewer_entries_is_not_limited() {
    let works = works(&import(&format!(
        "- key: a\n  rate_limit: {}\n- key: b\n  descriptors: [{{ key: c, rate_limit: {} }}]",
        limit(1),
        limit(2)
    )));
    assert_eq!(works.passed("d", &[("a", "1")]), 1);
    assert_eq!(works.passed("d", &[("a", "1"), ("x", "1")]), ALL);
    assert_eq!(works.passed("d", &[("b", "1")]), ALL);
    assert_eq!(works.passed("d", &[("b", "1"), ("c", "1")]), 2);
    assert_eq!(
        works.passed("d", &[("b", "1"), ("c", "1"), ("x", "1")]),
        ALL
    );
    assert_eq!(works.passed("other", &[("a", "1")]), ALL);
}

#[test]
fn value_wins_over_wildcard_and_wildcard_over_key() {
    let works = works(&import(&format!(
        "- {{ key: a, rate_limit: {} }}\n- {{ key: a, value: 'x*', rate_limit: {} }}\n\
         - {{ key: a, value: xy, rate_limit: {} }}\n- {{ key: a, value: free }}",
        limit(1),
        limit(2),
        limit(3)
    )));
    assert_eq!(works.passed("d", &[("a", "other")]), 1);
    assert_eq!(works.passed("d", &[("a", "another")]), 1);
    assert_eq!(works.passed("d", &[("a", "xx")]), 2);
    assert_eq!(works.passed("d", &[("a", "xy")]), 3);
    assert_eq!(works.passed("d", &[("a", "free")]), ALL);
}

#[test]
fn node_without_limit_still_takes_its_values() {
    // The descriptor `a: 1` has no `c` below it, and the service does not go back to `a` without a
    // value.
    let works = works(&import(&format!(
        "- key: a\n  value: 1\n  descriptors: [{{ key: b, rate_limit: {0} }}]\n\
         - key: a\n  descriptors: [{{ key: c, rate_limit: {0} }}]",
        limit(1)
    )));
    assert_eq!(works.passed("d", &[("a", "1"), ("c", "x")]), ALL);
    assert_eq!(works.passed("d", &[("a", "2"), ("c", "x")]), 1);
}

#[test]
fn value_equal_to_the_text_of_a_wildcard_selects_that_wildcard() {
    let works = works(&limited(&["key: a, value: '*x*'", "key: a, value: 'x*'"]));
    assert_eq!(works.passed("d", &[("a", "xx")]), 1);
    assert_eq!(works.passed("d", &[("a", "x*")]), 2);
}

#[test]
fn prefix_and_suffix_of_a_wildcard_do_not_overlap() {
    let works = works(&limited(&["key: a, value: '/v1/*/x'", "key: a"]));
    assert_eq!(works.passed("d", &[("a", "/v1/x")]), 2);
    assert_eq!(works.passed("d", &[("a", "/v1//x")]), 1);
}

#[test]
fn share_threshold_shares_one_count() {
    let works = works(&import(&format!(
        "- {{ key: a, value: 's*', share_threshold: true, rate_limit: {0} }}\n\
         - {{ key: a, value: 'o*', rate_limit: {0} }}",
        limit(1)
    )));
    assert_eq!(works.passed("d", &[("a", "s1")]), 1);
    assert_eq!(works.passed("d", &[("a", "s2")]), 0);
    assert_eq!(works.passed("d", &[("a", "o1")]), 1);
    assert_eq!(works.passed("d", &[("a", "o2")]), 1);
}

#[test]
fn shadow_mode_allows_and_zero_denies() {
    let imported = import(&format!(
        "- {{ key: a, shadow_mode: yes, rate_limit: {0} }}\n- {{ key: b, rate_limit: {0} }}\n\
         - {{ key: c, rate_limit: {{ unit: DAY }} }}\n- {{ key: e, rate_limit: {{ unlimited: on }} }}",
        limit(0)
    ));
    let works = works(&imported);
    assert_eq!(works.passed("d", &[("a", "1")]), ALL);
    assert_eq!(works.passed("d", &[("b", "1")]), 0);
    assert_eq!(works.passed("d", &[("c", "1")]), 0);
    assert_eq!(works.passed("d", &[("e", "1")]), ALL);
    let odd = notes(&imported, Kind::Odd);
    assert_eq!(odd.len(), 1);
    assert!(
        odd[0].contains("`requests_per_unit` is missing and counts as 0"),
        "{odd:?}"
    );
}

#[test]
fn units_have_the_length_that_the_service_uses() {
    let units = ["second", "Minute", "HOUR", "day", "week", "month", "year"];
    let descriptors: Vec<String> = units
        .iter()
        .map(|unit| {
            format!("- {{ key: {unit}, rate_limit: {{ unit: {unit}, requests_per_unit: 1 }} }}")
        })
        .collect();
    let imported = import(&descriptors.join("\n"));
    let windows: Vec<&str> = imported
        .yaml
        .lines()
        .filter_map(|line| line.trim().strip_prefix("window: "))
        .collect();
    assert_eq!(windows, ["1s", "1m", "1h", "1d", "7d", "30d", "365d"]);
}

#[test]
fn any_value_is_quoted_correctly() {
    let hard = [
        "null",
        "true",
        "~",
        "12",
        "a: b",
        "#",
        "it's",
        "\"x\"",
        r"back\slash",
        "what?",
        "tab\there",
        "line\nbreak",
        "ä\u{2028}\u{7f}",
        " ",
        "{a}",
        "- x",
        "!tag",
        "&a",
        "%",
    ];
    for value in hard {
        let quoted = format!("\"{}\"", value.escape_default());
        // Rust writes \u{7f}, YAML writes \x7F.
        let quoted = quoted
            .replace("\\u{e4}", "ä")
            .replace("\\u{2028}", "\\L")
            .replace("\\u{7f}", "\\x7F")
            .replace("\\'", "'");
        let works = works(&limited(&[&format!("key: a, value: {quoted}"), "key: a"]));
        assert_eq!(works.passed("d", &[("a", value)]), 1, "{value:?}");
        assert_eq!(works.passed("d", &[("a", "other")]), 2, "{value:?}");
    }
}

#[test]
fn files_of_a_domain_are_merged_on_request() {
    let text = |key: &str| {
        format!(
            "domain: d\ndescriptors: [{{ key: {key}, rate_limit: {} }}]",
            limit(1)
        )
    };
    let (one, other) = (text("a"), text("b"));
    let sources = [
        ("one.yaml", &one),
        ("other.yaml", &other),
        ("again.yaml", &one),
    ];
    let [one, other, again] = sources.map(|(name, text)| Source { name, text });
    let errors = envoy_ratelimit(&[one, other], Domains::Once).unwrap_err();
    let said = errors[0].to_string();
    let expected = "other.yaml:1:9: duplicate domain `d`";
    assert!(said.starts_with(expected), "{said}");
    assert!(said.contains("the first one is at one.yaml:1,"), "{said}");
    let imported = envoy_ratelimit(&[one, other], Domains::Merged).unwrap();
    assert_eq!(imported.rules, 2);

    let errors = envoy_ratelimit(&[one, again], Domains::Merged).unwrap_err();
    let said = errors[0].to_string();
    let expected = "again.yaml:2:15: duplicate descriptor `d.a`";
    assert!(said.starts_with(expected), "{said}");
    assert!(said.contains("one.yaml:2"), "{said}");
}

#[test]
fn domains_do_not_affect_each_other() {
    let text = |domain: &str, amount| {
        format!(
            "domain: {domain}\ndescriptors: [{{ key: a, rate_limit: {} }}]",
            limit(amount)
        )
    };
    let (one, other) = (text("one", 1), text("other", 2));
    let sources = [
        Source {
            name: "one.yaml",
            text: &one,
        },
        Source {
            name: "other.yaml",
            text: &other,
        },
    ];
    let works = works(&envoy_ratelimit(&sources, Domains::Once).unwrap());
    assert_eq!(works.passed("one", &[("a", "1")]), 1);
    assert_eq!(works.passed("other", &[("a", "1")]), 2);
}

#[test]
fn unreachable_limits_are_left_out_with_a_note() {
    let imported = import(&format!(
        "- {{ key: domain, rate_limit: {0} }}\n- {{ key: 'a b', rate_limit: {0} }}\n\
         - {{ key: 'k*', rate_limit: {0} }}\n- key: generic_key\n  value: x\n  descriptors:\n  \
         - key: generic_key\n    rate_limit: {0}\n    descriptors: [{{ key: z, rate_limit: {0} }}]\n\
         - {{ key: 'no limit' }}",
        limit(1)
    ));
    assert_eq!(imported.rules, 0);
    assert!(imported.yaml.ends_with("rules: []\n"));
    let left_out = notes(&imported, Kind::LeftOut);
    assert_eq!(left_out.len(), 4, "{left_out:?}");
    assert!(
        left_out[0].contains("limits.yaml:3:3: left out: a limit: Tollgate uses the name `domain`")
    );
    assert!(left_out[1].contains("`a b` cannot be the key"));
    assert!(left_out[3].contains("2 limits: `generic_key` occurs twice"));
}

#[test]
fn misplaced_fields_are_noted() {
    let imported = import(
        "- key: a\n  unlimited: true\n  name: x\n  rate_limit: { unit: day, requests_per_unit: 1, \
         shadow_mode: true }",
    );
    let ignored = notes(&imported, Kind::NoEffect);
    assert_eq!(ignored.len(), 3, "{ignored:?}");
    assert!(ignored[2].contains("`shadow_mode` has no meaning in a rate limit"));
    assert_eq!(works(&imported).passed("d", &[("a", "1")]), 1);
}

#[test]
fn replaced_limits_are_noted() {
    let imported = import(&format!(
        "- key: a\n  rate_limit: {{ unit: day, requests_per_unit: 1, name: slow }}\n\
         - key: b\n  rate_limit: {{ unit: day, requests_per_unit: 1, replaces: [{{ name: slow }}, {{ name: \
         gone }}] }}\n- {{ key: c, quota_mode: true, rate_limit: {} }}",
        limit(1)
    ));
    let differs = notes(&imported, Kind::Differs);
    assert_eq!(differs.len(), 2, "{differs:?}");
    assert!(differs[0].contains("does not count `slow`"));
    assert!(differs[1].contains("`quota_mode`"));
    assert!(notes(&imported, Kind::NoEffect)[0].contains("the name `gone`"));
    assert!(imported.yaml.contains("id: d.slow\n"));
}

#[test]
fn entries_in_another_order_are_noted() {
    let imported = import(&format!(
        "- {{ key: a, descriptors: [{{ key: b, value: x, rate_limit: {0} }}] }}\n\
         - {{ key: b, descriptors: [{{ key: a, value: y, rate_limit: {0} }}] }}\n\
         - {{ key: b, value: z, descriptors: [{{ key: a, rate_limit: {0} }}] }}",
        limit(1)
    ));
    let differs = notes(&imported, Kind::Differs);
    assert_eq!(differs.len(), 2, "{differs:?}");
    assert!(differs[0].contains("limits.yaml:4:"), "{differs:?}");
    assert!(differs[0].contains("the entries of `d.a.b-x` in another order"));
    assert!(differs[1].contains("may come in any order"));
}

#[test]
fn values_that_do_not_fit_into_an_expression_are_noted() {
    let imported = import(&format!(
        "- {{ key: a, value: 'x*y*z', rate_limit: {0} }}\n- {{ key: a, rate_limit: {0} }}",
        limit(1)
    ));
    let differs = notes(&imported, Kind::Differs);
    assert!(
        differs[0].contains("matches `x*y*z` counts under both descriptors"),
        "{differs:?}"
    );

    let mut many = String::new();
    for index in 0..300 {
        many += &format!(
            "- {{ key: a, value: value-{index}, rate_limit: {} }}\n",
            limit(3)
        );
    }
    let imported = import(&format!("{many}- {{ key: a, rate_limit: {} }}", limit(2)));
    assert_eq!(imported.rules, 301);
    let differs = notes(&imported, Kind::Differs);
    assert_eq!(differs.len(), 1);
    assert!(differs[0].contains("longer than 2048 bytes"), "{differs:?}");
    let works = works(&imported);
    assert_eq!(works.passed("d", &[("a", "value-7")]), 2);
    assert_eq!(works.passed("d", &[("a", "other")]), 2);
}

#[test]
fn nodes_that_are_never_reached_are_noted() {
    let imported = import(&format!(
        "- {{ key: a, value: '*', rate_limit: {0} }}\n- {{ key: a, value: 'x*', rate_limit: {1} }}\n\
         - {{ key: a, rate_limit: {0} }}",
        limit(1),
        limit(2)
    ));
    assert_eq!(imported.rules, 2);
    assert!(notes(&imported, Kind::Odd)[0].contains("only for the value `x*` itself"));
    assert!(notes(&imported, Kind::NoEffect)[0].contains("never uses this descriptor"));
    let works = works(&imported);
    assert_eq!(works.passed("d", &[("a", "xx")]), 1);
    assert_eq!(works.passed("d", &[("a", "x*")]), 2);
}

#[test]
fn addresses_are_noted() {
    let imported = import(&format!("- {{ key: ip, rate_limit: {} }}", limit(1)));
    assert!(notes(&imported, Kind::Differs)[0].contains("/64"));
}

#[test]
fn too_many_descriptors_are_rejected() {
    let mut text = "domain: d\ndescriptors:\n- &a { key: a, descriptors: [".to_owned();
    for index in 0..200 {
        text += &format!("{{ key: k{index} }},");
    }
    text += "] }\n";
    for index in 0..100 {
        text += &format!("- {{ key: b{index}, descriptors: [*a] }}\n");
    }
    let source = Source {
        name: "limits.yaml",
        text: &text,
    };
    let errors = envoy_ratelimit(&[source], Domains::Once).unwrap_err();
    assert!(
        errors[0]
            .to_string()
            .contains("more than 10000 descriptors")
    );
}

proptest! {
    #[test]
    fn no_text_panics(text in "(domain: d\n)?(descriptors:\n)?([- ]{0,4}(key|value|rate_limit|unit|replaces|name)?:? ?[a*_&'\"{}\\[\\]0-9\n]{0,6}\n?){0,12}") {
        let _ = envoy_ratelimit(&[Source { name: "x", text: &text }], Domains::Merged);
    }
}
