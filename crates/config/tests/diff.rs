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
