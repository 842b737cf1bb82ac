//! Credentials at the gateway.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};

use crate::common;
use crate::common::gate::{Gate, Script};

/// Writes a table of API keys, whose first column is the key itself, and starts a gateway with it.
fn gate_with_keys(rows: &[&str], columns: &str, more: &str) -> Gate {
    let folder = tempfile::tempdir().unwrap();
    let mut table = format!("sha256,{columns}\n");
    for row in rows {
        let (key, rest) = row.split_once(',').unwrap();
        for byte in Sha256::digest(key) {
            write!(table, "{byte:02x}").unwrap();
        }
        writeln!(table, ",{rest}").unwrap();
    }
    std::fs::write(folder.path().join("keys.csv"), table).unwrap();
    let yaml = format!("{more}server: {{ http: \"127.0.0.1:0\", gateway: \"127.0.0.1:0\" }}\n");
    let file = folder.path().join("rules.yaml");
    std::fs::write(&file, yaml).unwrap();
    Gate::of_config(tollgate_config::load(&file).unwrap_or_else(|error| panic!("{error}")))
}

/// The limit comes from the key, its plan or the network, each with a default and a ceiling.
#[test]
fn limits_come_from_keys_plans_and_networks() {
    let app = Script::echo();
    let docs = include_str!("../../../../docs/authentication.md");
    let rules = docs.split_once("<!-- limits -->\n\n```yaml\n").unwrap().1;
    let rules = rules.split_once("```").unwrap().0;
    let gate = gate_with_keys(
        &[
            "own,acme,free,40",
            "too-much,acme,free,100000",
            "pro,acme,pro,",
            "huge,acme,pro,9999999",
            "none,acme,,",
            "unknown,acme,gold,",
            "free,acme,free,",
        ],
        "tenant,plan,rate_limit",
        &format!("{rules}{}", app.section("")),
    );
    for (key, limit) in [
        ("own", "40"),
        ("too-much", "2000"),
        ("pro", "500"),
        ("huge", "2000"),
        ("none", "10"),
        ("unknown", "10"),
        ("free", "20"),
    ] {
        let answer = gate.get_with("/", &[("x-api-key", key)]);
        let told = answer.header("ratelimit-limit");
        assert_eq!(
            (answer.status, told),
            (200, limit.to_owned()),
            "{key}: {}",
            answer.text
        );
    }
    for (client, limit) in [("198.51.100.7", "50"), ("192.0.2.1", "5")] {
        let answer = gate.get_with("/", &[("x-forwarded-for", client)]);
        assert_eq!(answer.header("ratelimit-limit"), limit, "{client}");
    }
}

#[test]
fn only_verified_callers_reach_the_upstream_and_it_learns_who_they_are() {
    let app = Script::echo();
    let folder = tempfile::tempdir().unwrap();
    let mut hash = String::new();
    for byte in Sha256::digest(b"the key of acme") {
        write!(hash, "{byte:02x}").unwrap();
    }
    let table = format!("sha256,tenant,plan\n{hash},acme,pro\n");
    std::fs::write(folder.path().join("keys.csv"), table).unwrap();
    let yaml = format!(
        "version: 1\nserver: {{ http: \"127.0.0.1:0\", gateway: {{ address: \"127.0.0.1:0\", exempt: [/free] }} }}\n\
         authentication: {{ api_keys: {{ file: keys.csv }}, required: true }}\n\
         routes: [{{ action: all, attributes: {{ claimed: header.x-claimed }} }}]\n\
         rules: [{{ id: tenant, per: [tenant], missing: deny, algorithm: fixed-window, limit: 2, window: 1h }}]\n{}",
        app.section("")
    );
    let file = folder.path().join("rules.yaml");
    std::fs::write(&file, yaml).unwrap();
    let config = tollgate_config::load(&file).unwrap_or_else(|error| panic!("{error}"));
    let gate = Gate::of_config(config);
    // An exempt path has no limits, but it needs credentials.
    for path in ["/", "/free"] {
        let missing = gate.get(path);
        assert_eq!(missing.status, 401, "{}", missing.text);
        assert!(
            !missing.header("www-authenticate").is_empty() || missing.text.contains("x-api-key")
        );
        assert_eq!(gate.get_with(path, &[("x-api-key", "wrong")]).status, 401);
    }
    assert_eq!(app.requests(), 0);
    let key = [
        ("x-api-key", "the key of acme"),
        ("x-tollgate-tenant", "evil"),
        ("x-tenant-id", "evil"),
    ];
    let known = gate.get_with("/", &key);
    assert_eq!(known.status, 200, "{}", known.text);
    for line in [
        "x-tollgate-tenant: acme\r\n",
        "x-tollgate-plan: pro\r\n",
        "x-tollgate-authentication: api_key\r\n",
    ] {
        assert!(known.text.contains(line), "{line} in {}", known.text);
    }
    assert!(!known.text.contains("evil"), "{}", known.text);
    assert_eq!(gate.get_with("/free", &key).status, 200);
    let url = format!("http://{}/", gate.address);
    assert_eq!(common::get(&url, &key).status, 200);
    assert_eq!(common::get(&url, &key).status, 429);
}
