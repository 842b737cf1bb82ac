//! Configs that are accepted, and their values.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::prelude::*;
use tollgate_config::{
    AnswerForm, Attributes, FailurePolicy, Placement, RequestLimits, Store, parse,
};
use tollgate_core::Keyring;

const FULL: &str = r#"
version: 1
namespace: ${STAGE}-eu
server: { http: "[::1]:${PORT}" }
store: memory
subjects: { hash_secret: "${TOLLGATE_SECRET}", trusted_proxies: [10.0.0.0/8, "fd00::/8"], ipv6_prefix: 56, max_keys: 1_000_000 }
headers:  { families: [ietf, x-ratelimit], problem_json: true }
rules:
  - id: api-rate
    match: { action: [search, lookup] }
    when: 'method != "OPTIONS"'
    per: [tenant, api_key]
    missing: skip
    algorithm: gcra
    rate: 100/m
    burst: 20
    cost: 'action == "search" ? 5 : 1'
    on_store_failure: emergency-limit
    emergency_limit: 50/s
    placement: rule
    state: enforce
    rollout: 100%
    mode: exact
    charge_denied: true
    message: Slow down.
"#;

fn env(name: &str) -> Option<String> {
    let value = match name {
        "STAGE" => "prod",
        "PORT" => "9000",
        "TOLLGATE_SECRET" => "0123456789abcdef",
        _ => return None,
    };
    Some(value.to_owned())
}

#[test]
fn every_field_is_read() {
    let config = parse("full.yaml", FULL, &env).unwrap();
    assert_eq!(config.namespace, "prod-eu");
    assert_eq!(config.server.http.address, "[::1]:9000".parse().unwrap());
    assert_eq!(config.store, Store::Memory);
    assert_eq!(config.subjects.trusted_proxies.len(), 2);
    assert_eq!(config.subjects.ipv6_prefix, 56);
    assert_eq!(config.subjects.max_keys, 1_000_000);
    assert_eq!(config.subjects.max_anonymous_keys, 500_000);
    let secret = config.subjects.hash_secret.as_ref().unwrap();
    assert_eq!(secret.expose(), b"0123456789abcdef");
    assert_eq!(format!("{secret:?}"), "***");
    assert!(!format!("{config:?}").contains("0123456789abcdef"));
    let families = config.headers.families;
    assert!(families.ietf && !families.ratelimit && families.x_ratelimit);
    assert!(config.headers.problem_json);
    let rule = &config.policy.rules[0];
    assert_eq!(rule.id(), "api-rate");
    assert_eq!(rule.per(), ["tenant", "api_key"]);
    assert_eq!(rule.subject_type(), "tenant+api_key");
    assert_eq!(rule.on_store_failure(), Some(FailurePolicy::EmergencyLimit));
    let emergency = rule.emergency_limit().map(|rate| rate.to_string());
    assert_eq!(emergency.as_deref(), Some("50/s"));
    assert_eq!(rule.placement(), Placement::Rule);
    assert_eq!(rule.message(), Some("Slow down."));
    assert!(rule.charge_denied());
    assert_eq!(rule.rollout(), 10_000);
}

#[test]
fn the_smallest_config_has_defaults() {
    let config = parse("small.yaml", "version: 1\nrules: []\n", &|_| None).unwrap();
    assert_eq!(config.namespace, "default");
    let http = &config.server.http;
    assert_eq!(http.address, "127.0.0.1:8080".parse().unwrap());
    assert_eq!(config.server.doors(), [("http", http)]);
    assert_eq!(config.server.tls, None);
    assert!(config.routes.is_empty());
    assert_eq!(config.telemetry.otlp, None);
    assert_eq!(config.telemetry.sample, 100);
    assert_eq!(config.telemetry.rejections_per_second, 10);
    let denials = &config.telemetry.denials;
    assert_eq!(denials.directory, None);
    assert_eq!(
        (denials.max_size, denials.recent, denials.per_second),
        (256 << 20, 10_000, 100)
    );
    assert_eq!(config.subjects.max_keys, 10_000_000);
    assert_eq!(config.subjects.ipv6_prefix, 64);
    assert!(config.subjects.hash_secret.is_none());
    let families = config.headers.families;
    assert!(!families.ietf && families.ratelimit && !families.x_ratelimit);
    assert_eq!(config.headers.answers, AnswerForm::Full);
    assert!(config.policy.rules.is_empty());
}

#[test]
fn the_version_names_the_text() {
    let version = |text: &str| parse("x", text, &|_| None).unwrap().policy.version;
    let one = version("version: 1\nrules: []\n");
    assert_eq!(one.len(), 12);
    assert_eq!(one, version("version: 1\nrules: []\n"));
    assert_ne!(one, version("version: 1\nrules: [] # changed\n"));
}

#[test]
fn aliases_share_values() {
    let text = "version: 1\nrules:\n  - { id: a, match: &m { action: x }, algorithm: gcra, rate: 1/s }\n  \
                - { id: b, match: *m, algorithm: gcra, rate: 2/s }\n";
    let config = parse("x", text, &|_| None).unwrap();
    assert_eq!(config.policy.rules.len(), 2);
}

#[test]
fn files_are_read_or_rejected_by_name() {
    let folder = std::env::temp_dir().join(format!("tollgate-config-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = |name: &str, content: &[u8]| {
        let path = folder.join(name);
        std::fs::write(&path, content).unwrap();
        tollgate_config::load(&path)
    };
    assert!(file("good.yaml", b"version: 1\nrules: []\n").is_ok());
    let latin = file("latin.yaml", b"version: 1 # caf\xe9\n").unwrap_err();
    assert!(latin.to_string().contains("not UTF-8"), "{latin}");
    let large = file("large.yaml", &vec![b'#'; 4 * 1024 * 1024 + 1]).unwrap_err();
    assert!(large.to_string().contains("larger than 4 MiB"), "{large}");
    let absent = tollgate_config::load(&folder.join("absent.yaml")).unwrap_err();
    assert!(
        absent.to_string().contains("absent.yaml: cannot read"),
        "{absent}"
    );
    assert!(!absent.render_color().is_empty());
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
#[cfg(feature = "schema")]
fn the_schema_knows_every_field_of_the_example() {
    let schema = tollgate_config::json_schema();
    assert_eq!(schema["additionalProperties"], false);
    let definitions = &schema["$defs"];
    let top = &schema["properties"];
    for field in [
        "version",
        "namespace",
        "server",
        "store",
        "subjects",
        "headers",
        "routes",
        "telemetry",
        "ledger",
        "events",
        "attributes",
        "budgets",
        "plans",
        "default_plan",
        "tenants",
        "tenant_files",
        "rules",
    ] {
        assert!(top[field].is_object(), "{field}");
        assert!(top[field]["description"].is_string(), "{field}");
    }
    assert_eq!(schema["required"], serde_json::json!(["version", "rules"]));
    let rule = &definitions["Rule"];
    assert_eq!(rule["additionalProperties"], false);
    assert_eq!(rule["required"], serde_json::json!(["id"]));
    let written = FULL
        .lines()
        .skip_while(|line| !line.starts_with("rules:"))
        .skip(1);
    for line in written {
        let field = line
            .trim_start_matches([' ', '-'])
            .split(':')
            .next()
            .unwrap();
        assert!(rule["properties"][field].is_object(), "{field}");
    }
    assert_eq!(
        rule["properties"]["algorithm"]["enum"]
            .as_array()
            .unwrap()
            .len(),
        8
    );
}

#[test]
fn the_whole_configs_of_the_docs_are_valid() {
    let docs = concat!(
        include_str!("../../../docs/rules.md"),
        include_str!("../../../docs/shedding.md")
    );
    let env = |_: &str| Some("0123456789abcdef".to_owned());
    let mut count = 0;
    for block in docs.split("```yaml\n").skip(1) {
        let block = block.split("```").next().unwrap();
        if block.starts_with("version: 1") {
            count += 1;
            parse("docs", block, &env).unwrap_or_else(|error| panic!("{block}{error}"));
        }
    }
    assert!(count >= 5, "{count}");
}

/// Makes texts of config pieces in any order. They reach more of the parser than random letters.
fn fragments() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("version: 1\n".to_owned()),
        Just("rules:\n".to_owned()),
        Just("  - id: a\n".to_owned()),
        Just("    algorithm: gcra\n".to_owned()),
        Just("    rate: 1/s\n".to_owned()),
        Just("    placement: sharded(".to_owned()),
        Just("subjects: { hash_secret: 0123456789abcdef }\n".to_owned()),
        Just("store: { redis: { ".to_owned()),
        Just("url: redis://a:b@h:1/2, ".to_owned()),
        Just("urls: [redis://, rediss://[::1], ".to_owned()),
        Just("mode: sentinel, sentinel_master: ${".to_owned()),
        Just("password: ".to_owned()),
        Just("server: { http: ".to_owned()),
        Just("{ address: 127.0.0.1:1, tls: ".to_owned()),
        Just("admin: { address: 0.0.0.0:1, tokens: [{ name: a, role: read, sha256: ".to_owned()),
        Just("subjects: { headers: { user: ".to_owned()),
        Just("internal: [10.0.0.0/8, ::ffff:0:0/96, ".to_owned()),
        Just("routes:\n  - { action: a, method: ".to_owned()),
        Just("  - { action: b, path: [/a%, \"*/%2e\", ".to_owned()),
        Just("telemetry: { otlp: http".to_owned()),
        Just("ledger: { postgres: postgres://a:b@".to_owned()),
        Just("events: { near_limit: [1, 100, ".to_owned()),
        Just("webhook: { url: http".to_owned()),
        Just("  - { id: q, per: [tenant], algorithm: quota, limit: 9, period: ".to_owned()),
        Just("2 weeks, anchor: ".to_owned()),
        Just("sunday, grace: 1%, carry_over: ".to_owned()),
        Just("tenants: { a: { timezone: ".to_owned()),
        Just("s://h:1/x".to_owned()),
        Just(" } }\n".to_owned()),
        Just("    when: '".to_owned()),
        Just("    cost: ".to_owned()),
        Just("    match: { a: ".to_owned()),
        Just("[1, \"x\"].exists(x, x == a)".to_owned()),
        Just("int(a) + attributes[\"b\"]".to_owned()),
        "[a-z\"'(){}\\[\\]*&!|>?:.,<=+ -]{0,8}",
        "\\PC{0,6}",
        Just("\n".to_owned()),
        Just("\t".to_owned()),
    ];
    proptest::collection::vec(piece, 0..30).prop_map(|pieces| pieces.concat())
}

/// Returns `cases`, multiplied by `TOLLGATE_PROOF_CASES`, at most by 25.
fn cases(cases: u32) -> u32 {
    let times = std::env::var("TOLLGATE_PROOF_CASES").ok();
    let times = times.map_or(1, |times| times.parse::<u32>().expect("a whole number"));
    cases * times.min(25)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(2_000)))]

    #[test]
    fn no_text_panics(text in fragments()) {
        match parse("x.yaml", &text, &|_| None) {
            Ok(config) => {
                let rules = config.compile(Keyring::new(b"0123456789abcdef", "x"), &[]);
                let _ = rules.resolve(&Attributes::from([("a", "1"), ("b", "x")]), &RequestLimits::default());
            }
            Err(error) => {
                prop_assert!(!error.to_string().is_empty());
                prop_assert!(!error.render_color().is_empty());
            }
        }
    }

    #[test]
    fn no_expression_panics(expression in "[a-z0-9\"'(){}\\[\\]!?:.,<=>+*/%&| -]{0,40}", value in "\\PC{0,8}") {
        let quoted = expression.replace('\'', "''");
        for field in ["when", "cost"] {
            let text = format!("version: 1\nrules:\n  - id: a\n    algorithm: gcra\n    rate: 1/s\n    {field}: '{quoted}'\n");
            if let Ok(config) = parse("x.yaml", &text, &|_| None) {
                let rules = config.compile(Keyring::new(b"0123456789abcdef", "x"), &[]);
                let _ = rules.resolve(&Attributes::from([("a", value.as_str()), ("b", "1")]), &RequestLimits::default());
            }
        }
    }
}
