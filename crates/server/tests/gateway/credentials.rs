//! Credentials at the gateway.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tollgate::{Clock, SystemClock};

use crate::common;
use crate::common::gate::{Gate, Script};
use crate::common::issuer::{Issuer, encode};
use crate::write_certificates;

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

/// Starts a gateway with this config, whose files are in `folder`.
fn gate_in(folder: &Path, yaml: &str) -> Gate {
    let file = folder.join("rules.yaml");
    std::fs::write(&file, yaml).unwrap();
    Gate::of_config(tollgate_config::load(&file).unwrap_or_else(|error| panic!("{error}")))
}

#[test]
fn tokens_are_verified_before_a_request_reaches_the_upstream() {
    let (app, issuer) = (Script::echo(), Issuer::new());
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("jwks.json"), issuer.jwks()).unwrap();
    let yaml = format!(
        "version: 1\nserver: {{ http: \"127.0.0.1:0\", gateway: \"127.0.0.1:0\" }}\n\
         authentication: {{ jwt: {{ jwks_file: jwks.json, issuer: me, audience: api, claims: {{ tenant: org }} }}, required: true }}\n\
         rules: [{{ id: tenant, per: [tenant], missing: deny, algorithm: fixed-window, limit: 1, window: 10d }}]\n{}",
        app.section("")
    );
    let gate = gate_in(folder.path(), &yaml);
    let ask = |token: &str| gate.get_with("/", &[("authorization", &format!("Bearer {token}"))]);
    let now = SystemClock::new().now().as_micros() / 1_000_000;
    let claims = |audience: &str, expires: u64| json!({ "iss": "me", "aud": audience, "exp": expires, "org": "acme" });
    let right = claims("api", now + 600);
    let token = issuer.token(&right);
    let unsigned = {
        let header = encode(json!({ "alg": "none", "kid": "k" }).to_string());
        format!("{header}.{}.", encode(right.to_string()))
    };
    let forged = {
        let (signed, _) = token.rsplit_once('.').unwrap();
        format!("{signed}.{}", encode([7; 64]))
    };
    let rejected = [
        ("alg: none", unsigned),
        ("another signature", forged),
        ("another key", Issuer::new().token(&right)),
        ("expired", issuer.token(&claims("api", now - 600))),
        (
            "another audience",
            issuer.token(&claims("other", now + 600)),
        ),
    ];
    for (name, token) in rejected {
        let answer = ask(&token);
        assert_eq!(answer.status, 401, "{name}: {}", answer.text);
        assert_eq!(answer.json()["code"], Value::from("BAD_TOKEN"), "{name}");
        let challenge = answer.header("www-authenticate");
        assert!(
            challenge.starts_with(r#"Bearer error="invalid_token""#),
            "{name}: {challenge}"
        );
    }
    let none = gate.get("/");
    assert_eq!(
        (none.status, none.header("www-authenticate")),
        (401, "Bearer".to_owned())
    );
    assert_eq!(app.requests(), 0);
    let accepted = ask(&token);
    assert_eq!(accepted.status, 200, "{}", accepted.text);
    for line in [
        "x-tollgate-tenant: acme\r\n",
        "x-tollgate-authentication: jwt\r\n",
    ] {
        assert!(accepted.text.contains(line), "{line} in {}", accepted.text);
    }
    assert_eq!(ask(&token).status, 429, "the rule counts by the claim");
}

#[test]
fn name_in_a_client_certificate_becomes_an_attribute() {
    let app = Script::echo();
    let folder = tempfile::tempdir().unwrap();
    write_certificates(folder.path());
    let files = folder.path().display();
    let yaml = format!(
        "version: 1\nserver:\n  http: \"127.0.0.1:0\"\n  \
         gateway: {{ address: \"127.0.0.1:0\", tls: {{ cert: {files}/server.pem, key: {files}/server.key, client_ca: {files}/ca.pem }} }}\n\
         authentication: {{ client_certificates: {{ service_account: common_name }} }}\n\
         rules: [{{ id: services, per: [service_account], missing: deny, algorithm: fixed-window, limit: 1, window: 10d }}]\n{}",
        app.section("")
    );
    let gate = gate_in(folder.path(), &yaml);
    let certificate = |name: &str| CertificateDer::from_pem_file(folder.path().join(name)).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(certificate("ca.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(folder.path().join("server.key")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(vec![certificate("server.pem")], key)
        .unwrap();
    let config = Arc::new(config);
    let ask = || {
        let name = ServerName::try_from("localhost").unwrap();
        let client = ClientConnection::new(Arc::clone(&config), name).unwrap();
        let mut stream = StreamOwned::new(client, gate.connect());
        let request = "GET / HTTP/1.1\r\nhost: localhost\r\nx-service-account: evil\r\nconnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).unwrap();
        common::read_all(stream)
    };
    let known = ask();
    assert!(known.starts_with("HTTP/1.1 200"), "{known}");
    for line in [
        "x-tollgate-service-account: localhost\r\n",
        "x-tollgate-authentication: certificate\r\n",
    ] {
        assert!(known.contains(line), "{line} in {known}");
    }
    assert!(
        ask().starts_with("HTTP/1.1 429"),
        "the rule counts by the name"
    );
    assert_eq!(app.requests(), 1);
}
