//! How each part of a limits file of Limitador is converted.

#![allow(clippy::unwrap_used)] // Test helpers may panic.

mod common;

use common::{notes, works};
use proptest::prelude::*;
use tollgate_import::{Imported, Kind, Source, limitador};

/// How many requests a test sends: more than any limit in this file.
const ALL: usize = 20;

fn import(text: &str) -> Imported {
    limitador(&Source {
        name: "limits.yaml",
        text,
    })
    .unwrap()
}

/// Imports one limit of 2, with a condition and a variable.
fn one(condition: &str, variable: &str) -> Imported {
    let list = |text: &str| match text {
        "" => "[]".to_owned(),
        text => format!("\n  - {text:?}"),
    };
    let (condition, variable) = (list(condition), list(variable));
    import(&format!(
        "- namespace: d\n  max_value: 2\n  seconds: 60\n  conditions: {condition}\n  variables: {variable}\n"
    ))
}

fn left_out(imported: &Imported) -> String {
    assert_eq!(imported.rules, 0);
    let notes = notes(imported, Kind::LeftOut);
    assert_eq!(notes.len(), 1, "{notes:?}");
    notes[0].clone()
}

#[test]
fn other_entries_are_ignored() {
    let works = works(&one("descriptors[0].a == 'x'", "descriptors[0]['b']"));
    assert_eq!(works.passed("d", &[("a", "x"), ("b", "1"), ("c", "1")]), 2);
    assert_eq!(works.passed("d", &[("a", "x"), ("b", "2")]), 2);
    assert_eq!(works.passed("d", &[("a", "y"), ("b", "1")]), ALL);
    assert_eq!(works.passed("d", &[("a", "x")]), ALL);
    assert_eq!(works.passed("other", &[("a", "x"), ("b", "1")]), ALL);
}

#[test]
fn limit_without_variables_counts_the_namespace() {
    let works = works(&one("", ""));
    assert_eq!(works.passed("d", &[("a", "1")]), 2);
    assert_eq!(works.passed("d", &[("a", "2")]), 0);
}

#[test]
fn conditions_are_converted() {
    let passes: [(&str, &[(&str, &str)]); 8] = [
        ("descriptors[0].a != 'x'", &[("a", "x")]),
        ("!(descriptors[0].a == 'x')", &[("a", "x")]),
        (
            "descriptors[0].a == 'x' && descriptors[0].b == 'y'",
            &[("a", "x"), ("b", "x")],
        ),
        (
            "descriptors[0].a == 'x' || descriptors[0].b == 'y'",
            &[("a", "y"), ("b", "x")],
        ),
        (
            "descriptors[0].a == 'x' || descriptors[0].b == 'y'",
            &[("b", "x")],
        ),
        ("has(descriptors[0].a)", &[("b", "x")]),
        ("int(descriptors[0].a) % 2 == 1", &[("a", "4")]),
        ("descriptors[0].a == 'x' ? true : false", &[("a", "y")]),
    ];
    for (condition, entries) in passes {
        assert_eq!(
            works(&one(condition, "")).passed("d", entries),
            ALL,
            "{condition}"
        );
    }
    let limited: [(&str, &[(&str, &str)]); 10] = [
        ("'x*' == descriptors[0].a", &[("a", "x*")]),
        ("descriptors[0].a in ['x', 'y']", &[("a", "y")]),
        (
            "descriptors[0].a == 'x' || descriptors[0].b == 'y'",
            &[("b", "y")],
        ),
        (
            "descriptors[0].a == 'x' || descriptors[0].b == 'y'",
            &[("a", "x")],
        ),
        ("has(descriptors[0].a)", &[("a", "")]),
        (
            "descriptors[0]['in'].startsWith('x') && true",
            &[("in", "xx")],
        ),
        ("size(descriptors[0].a) >= 2", &[("a", "ää")]),
        (
            "descriptors[0].a < descriptors[0].b",
            &[("a", "1"), ("b", "2")],
        ),
        ("descriptors[0].a == 'it\\'s'", &[("a", "it's")]),
        ("descriptors[0].a == '\\u00e4'", &[("a", "ä")]),
    ];
    for (condition, entries) in limited {
        assert_eq!(
            works(&one(condition, "")).passed("d", entries),
            2,
            "{condition}"
        );
    }
}

#[test]
fn two_values_of_one_entry_match_no_request() {
    let works = works(&one(
        "descriptors[0].a == 'x' && descriptors[0].a == 'y'",
        "",
    ));
    assert_eq!(works.passed("d", &[("a", "x")]), ALL);
    assert_eq!(works.passed("d", &[("a", "y")]), ALL);
}

#[test]
fn unsupported_conditions_leave_the_limit_out() {
    let cases = [
        (
            "descriptors[0].a.matches('x+')",
            "",
            "does not support `matches`",
        ),
        (
            "descriptors.exists(d, d.a == 'x')",
            "",
            "to read a descriptor",
        ),
        (
            "descriptors[0].exists(k, k == 'x')",
            "",
            "to read a descriptor",
        ),
        ("size(descriptors) == 1", "", "to read a descriptor"),
        (
            "request.path == '/'&&true",
            "",
            "does not support `request`",
        ),
        ("descriptors[0].a.b == 'x'", "", "does not support `b`"),
        ("descriptors[0].a == 5", "", "Tollgate rejects"),
        ("descriptors[0].a", "", "Tollgate rejects"),
        ("descriptors[0].a == ", "", "Tollgate rejects"),
        ("descriptors[0].a == 'x", "", "no closing quote"),
        ("descriptors[0].a == r'x'", "", "prefix `r`"),
        (
            "descriptors[0]['a b'] == 'x'",
            "",
            "`a b` cannot be the key",
        ),
        ("descriptors[0].domain == 'x'", "", "not `domain`"),
        (
            "descriptors[0].a == descriptors[1].a",
            "",
            "several descriptors",
        ),
        ("limit.max == 'x'", "", "only `limit.name` and `limit.id`"),
        (
            "",
            "descriptors[0].a + 'x'",
            "must be the value of an entry",
        ),
        ("", "'constant'", "must be the value of an entry"),
    ];
    for (condition, variable, why) in cases {
        let note = left_out(&one(condition, variable));
        assert!(note.contains(why), "{condition} {variable}: {note}");
        assert!(note.starts_with("limits.yaml:"), "{note}");
    }
    let long = format!("descriptors[0].a == '{}'", "x".repeat(3_000));
    assert!(left_out(&one(&long, "")).contains("longer than 2048 bytes"));
}

#[test]
fn other_descriptor_than_the_first_is_noted() {
    let imported = one("descriptors[1].a == 'x'", "");
    assert_eq!(imported.rules, 1);
    let differs = notes(&imported, Kind::Differs);
    assert!(differs[0].contains("only `descriptors[1]`"), "{differs:?}");
}

#[test]
fn condition_can_read_the_name_of_the_limit() {
    let text = |name: &str| {
        format!(
            "- {{ namespace: d, max_value: 2, seconds: 60, name: {name}, variables: [], conditions: \
             ['limit.name == \"slow\"'] }}"
        )
    };
    let slow = import(&text("slow"));
    assert_eq!(works(&slow).passed("d", &[("a", "1")]), 2);
    assert_eq!(
        works(&import(&text("fast"))).passed("d", &[("a", "1")]),
        ALL
    );
    assert!(slow.yaml.contains("id: d.slow\n"));
}

#[test]
fn syntax_before_version_2_is_converted_with_a_note() {
    let imported = one("req.method == 'GET'", "user_id");
    let works = works(&imported);
    assert_eq!(
        works.passed("d", &[("req.method", "GET"), ("user_id", "1")]),
        2
    );
    assert_eq!(
        works.passed("d", &[("req.method", "PUT"), ("user_id", "1")]),
        ALL
    );
    let differs = notes(&imported, Kind::Differs);
    assert!(
        differs
            .iter()
            .any(|note| note.contains("before Limitador 2")),
        "{differs:?}"
    );
}

#[test]
fn unusual_numbers_are_noted() {
    let with = |numbers: &str| {
        import(&format!(
            "- {{ namespace: d, {numbers}, conditions: , variables: ~ }}"
        ))
    };
    let imported = with("seconds: 60");
    assert_eq!(works(&imported).passed("d", &[("a", "1")]), 0);
    assert!(notes(&imported, Kind::Odd)[0].contains("`max_value` is missing and counts as 0"));

    let imported = with("max_value: 18446744073709551615, seconds: 60");
    assert!(imported.yaml.contains("limit: unlimited"));
    assert!(notes(&imported, Kind::Differs)[0].contains("written as `unlimited`"));

    assert!(left_out(&with("max_value: 1, seconds: 0")).contains("0 seconds"));
    assert!(left_out(&with("max_value: 1, seconds: 9999999999999")).contains("Tollgate rejects"));
}

#[test]
fn equal_limits_become_one_rule() {
    let text = "
- { namespace: d, max_value: 3, seconds: 60, conditions: [], variables: [] }
- { namespace: d, max_value: 1, seconds: 60, conditions: [], variables: [] }
- { namespace: d, max_value: 5, seconds: 90, conditions: [], variables: [] }
";
    let imported = import(text);
    assert_eq!(imported.rules, 2);
    assert!(notes(&imported, Kind::LeftOut)[0].contains("the one on line 2"));
    assert_eq!(works(&imported).passed("d", &[("a", "1")]), 3);
}

#[test]
fn too_many_limits_are_rejected() {
    let text = "- {}\n".repeat(10_001);
    let errors = limitador(&Source {
        name: "limits.yaml",
        text: &text,
    })
    .unwrap_err();
    assert!(errors[0].to_string().contains("more than 10000"));
}

proptest! {
    #[test]
    fn no_condition_panics(condition in "(descriptors|\\[|\\]|0|[a-z.]|'|\"|=|!|&&|\\|\\||\\(|\\)|limit|\\\\| |ä|in|,){0,20}") {
        one(&condition, "");
        one("", &condition);
    }

    #[test]
    fn no_text_panics(text in "([- ]{0,4}(namespace|seconds|conditions|variables)?:? ?[a*&'\"{}\\[\\]0-9\n]{0,6}\n?){0,12}") {
        let _ = limitador(&Source { name: "x", text: &text });
    }
}
