//! The output of `diff` for parts of a config that are not rules.

#![allow(clippy::unwrap_used)]

use tollgate_config::{Config, diff, parse};

fn config(text: &str) -> Config {
    parse("rules.yaml", &format!("version: 1\n{text}"), &|_| None).unwrap()
}

fn said(old: &str, new: &str) -> Vec<String> {
    let differences = diff(&config(old), &config(new));
    differences.iter().map(ToString::to_string).collect()
}

#[test]
fn the_deployment_is_compared_before_the_rules() {
    assert_eq!(
        said(
            "namespace: a\nrules: [{ id: r, algorithm: gcra, rate: 1/s }]\n",
            "namespace: z\nrules: [{ id: r, algorithm: gcra, rate: 1/s, cost: 2 }]\n",
        ),
        [
            "namespace: a becomes z: after a restart, all counts start from zero",
            "rule r: cost 1 becomes 2",
        ]
    );
}

#[test]
fn each_changed_section_is_named() {
    let old = "store: memory\nrules: []\n";
    let new = "server: { http: 127.0.0.1:9000 }\nheaders: { problem_json: true }\n\
               routes: [{ action: all }]\nrules: []\n";
    let said = said(old, new);
    let sections: Vec<&str> = said
        .iter()
        .map(|it| it.split(':').next().unwrap())
        .collect();
    assert_eq!(sections, ["server", "headers", "routes"]);
}

#[test]
fn changed_tokens_of_data_doors_need_no_restart() {
    let token = |scope: &str| {
        let hash = "0f".repeat(32);
        format!("tokens: [{{ name: a, scopes: [{scope}], sha256: {hash} }}]")
    };
    let server = |more: &str| format!("server: {{ http: \"127.0.0.1:1\", {more} }}\nrules: []\n");
    let (check, usage) = (server(&token("check")), server(&token("usage")));
    let changed = "server.tokens: changed: other tokens open the data doors";
    assert_eq!(said(&check, &usage), [changed]);
    assert_eq!(said(&server(""), &usage), [changed]);
    let off = check.replace(
        "\"127.0.0.1:1\"",
        "{ address: \"127.0.0.1:1\", tokens: off }",
    );
    assert_eq!(said(&check, &off), [changed]);
    let removed = "server.tokens: removed: the data doors need no token";
    assert_eq!(said(&check, &server("")), [removed]);
}
