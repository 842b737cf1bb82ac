//! Config sections of doors, clients and headers: the accepted forms and their meaning.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::PathBuf;

use tollgate_config::{
    ClientHeader, Config, Password, Role, Subjects, TlsFiles, TokenScope, UnknownDomain, parse,
};
use tollgate_core::Span;

/// Every field, and a value that is not its default.
const FULL: &str = r#"
version: 1
server:
  http: { address: "0.0.0.0:${PORT}", tls: off, origins: [https://App.example.com] }
  grpc: { address: "[::1]:8081", unknown_domain: deny }
  resp: { address: 127.0.0.1:6390, tls: { cert: r.pem, key: r.key }, password: "${PASSWORD}" }
  admin:
    address: 10.0.0.1:8082
    tokens:
      - { name: ops, role: operate, sha256: 0123456789abcdef0123456789abcdef0123456789abcdef0123456789ABCDEF }
      - { name: dev, role: read, sha256: 1123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef }
    hosts: [Admin.example.com, "${PORT}.internal"]
    origins: ["http://localhost:3000"]
  max_connections_per_client: 50
  drain: 90s
  tls: { cert: /tls/cert.pem, key: "/tls/${KEY}", client_ca: ca.pem }
subjects:
  hash_secret: a secret of sixteen bytes
  trusted_proxies: [10.0.0.0/8]
  client_header: forwarded
  headers: { api_key: Api-Key, user: off, service_account: x-robot, tenant: x-org }
  internal: [10.1.0.0/16, "fd00::/8"]
  test_header: X-Test-Traffic
routes:
  - { method: [GET, HEAD], host: "API.*", path: "/search*", action: search }
  - { method: POST, path: [/login, /signin], action: login }
  - { host: "[::1]", action: local }
  - { action: "other:read" }
telemetry:
  otlp: https://collector.internal/otlp/
  sample: 2.5%
  rejections_per_second: 0
  denials: { directory: "./denials-${PORT}", max_size: 64MiB, max_age: 2d, recent: 500, per_second: 0 }
rules: []
"#;

fn config(text: &str) -> Config {
    let env = |name: &str| match name {
        "PORT" => Some("80".to_owned()),
        "PASSWORD" => Some("hunter2".to_owned()),
        "KEY" => Some("key.pem".to_owned()),
        _ => None,
    };
    parse("doors.yaml", text, &env).unwrap_or_else(|error| panic!("{error}"))
}

fn server(text: &str) -> tollgate_config::Server {
    config(&format!("version: 1\nserver: {text}\nrules: []\n")).server
}

#[test]
fn every_door_is_read() {
    let server = config(FULL).server;
    let shared = TlsFiles {
        cert: PathBuf::from("/tls/cert.pem"),
        key: PathBuf::from("/tls/key.pem"),
        client_ca: Some(PathBuf::from("ca.pem")),
    };
    let doors: Vec<String> = server
        .doors()
        .iter()
        .map(|(name, listen)| format!("{name} {}", listen.address))
        .collect();
    let expected = [
        "http 0.0.0.0:80",
        "grpc [::1]:8081",
        "resp 127.0.0.1:6390",
        "admin 10.0.0.1:8082",
    ];
    assert_eq!(doors, expected);
    assert_eq!(server.http.tls, None, "off is off");
    let grpc = server.grpc.as_ref().unwrap();
    assert_eq!(grpc.listen.tls, Some(shared.clone()));
    assert_eq!(grpc.unknown_domain, UnknownDomain::Deny);
    let resp = server.resp.as_ref().unwrap();
    let own = resp.listen.tls.as_ref().unwrap();
    assert_eq!(own.cert, PathBuf::from("r.pem"));
    assert_eq!(own.client_ca, None, "its own is all its own");
    let password = resp.password.as_ref().unwrap().read().unwrap();
    assert_eq!(password.expose(), b"hunter2");
    let admin = server.admin.as_ref().unwrap();
    assert_eq!(admin.listen.tls, Some(shared.clone()));
    let tokens: Vec<_> = admin
        .tokens
        .iter()
        .map(|it| (it.name.as_str(), it.role))
        .collect();
    assert_eq!(tokens, [("ops", Role::Operate), ("dev", Role::Read)]);
    assert_eq!(admin.tokens[0].sha256[..4], [0x01, 0x23, 0x45, 0x67]);
    assert_eq!(admin.tokens[0].sha256[28..], [0x89, 0xab, 0xcd, 0xef]);
    assert_eq!(server.tls, Some(shared));
    assert_eq!(server.http.origins, ["https://app.example.com"]);
    assert_eq!(admin.listen.hosts, ["admin.example.com", "80.internal"]);
    assert_eq!(admin.listen.origins, ["http://localhost:3000"]);
    assert_eq!(server.max_connections_per_client, 50);
    assert_eq!(server.drain, Span::from_secs(90));
}

#[test]
fn secrets_of_doors_are_not_printed() {
    let shown = format!("{:?}", config(FULL));
    for secret in ["hunter2", "0123456789abcdef", "[1, 35, 69, 103"] {
        assert!(!shown.contains(secret), "{shown}");
    }
}

#[test]
fn an_address_alone_is_a_door() {
    let server =
        server("{ http: 127.0.0.1:1, grpc: 0.0.0.0:2, resp: 0.0.0.0:3, admin: '[::1]:4' }");
    assert_eq!(server.doors().len(), 4);
    assert!(
        server
            .doors()
            .iter()
            .all(|(_, listen)| listen.tls.is_none())
    );
    assert_eq!(server.grpc.unwrap().unknown_domain, UnknownDomain::Allow);
    assert_eq!(server.resp.unwrap().password, None);
    assert!(server.admin.unwrap().tokens.is_empty());
}

#[test]
fn doors_use_the_tls_of_the_server() {
    let server = server("{ tls: { cert: c, key: k }, resp: 127.0.0.1:3 }");
    let server = &server;
    assert!(server.http.tls.is_some(), "the default door too");
    assert!(server.resp.as_ref().unwrap().listen.tls.is_some());
}

#[test]
fn free_ports_differ() {
    let server = server("{ http: 127.0.0.1:0, grpc: 127.0.0.1:0, resp: 0.0.0.0:0 }");
    assert_eq!(server.doors().len(), 3);
}

#[test]
fn a_password_may_be_in_a_file() {
    let server = server("{ resp: { address: 127.0.0.1:3, password_file: /run/secrets/resp } }");
    let file = PathBuf::from("/run/secrets/resp");
    assert_eq!(server.resp.unwrap().password, Some(Password::File(file)));
}

#[test]
fn doors_that_were_changed_are_checked_again() {
    let mut config = config("version: 1\nserver: { grpc: 127.0.0.1:81 }\nrules: []\n");
    assert_eq!(config.check_doors(), Ok(()));
    config.server.http.address = "0.0.0.0:81".parse().unwrap();
    let error = config.check_doors().unwrap_err();
    assert!(
        error.contains("`grpc` cannot listen on 127.0.0.1:81"),
        "{error}"
    );
}

#[test]
fn subjects_are_read() {
    let subjects = config(FULL).subjects;
    assert_eq!(subjects.client_header, Some(ClientHeader::Forwarded));
    assert_eq!(subjects.headers.api_key.as_deref(), Some("api-key"));
    assert_eq!(subjects.headers.user, None);
    assert_eq!(subjects.headers.service_account.as_deref(), Some("x-robot"));
    assert_eq!(subjects.headers.tenant.as_deref(), Some("x-org"));
    assert_eq!(subjects.test_header.as_deref(), Some("x-test-traffic"));
    let internal = |address: &str| subjects.is_internal(address.parse().unwrap());
    assert!(internal("10.1.2.3") && internal("fd00::1") && internal("::ffff:10.1.2.3"));
    assert!(!internal("10.2.0.1") && !internal("fe00::1"));
    assert!(subjects.is_trusted("::ffff:10.2.0.1".parse().unwrap()));
    assert!(!subjects.is_trusted("11.0.0.1".parse().unwrap()));
}

#[test]
fn subjects_have_defaults() {
    let subjects = config("version: 1\nrules: []\n").subjects;
    assert_eq!(subjects, Subjects::default());
    assert_eq!(subjects.headers.api_key.as_deref(), Some("x-api-key"));
    assert_eq!(subjects.headers.user.as_deref(), Some("x-user-id"));
    assert_eq!(
        subjects.headers.service_account.as_deref(),
        Some("x-service-account")
    );
    assert_eq!(subjects.headers.tenant.as_deref(), Some("x-tenant-id"));
    assert_eq!((subjects.client_header, subjects.test_header), (None, None));
    assert!(subjects.trusted_proxies.is_empty() && subjects.internal.is_empty());
}

#[test]
fn the_first_route_that_matches_names_the_action() {
    let routes = config(FULL).routes;
    let table = [
        ("GET", Some("api.example.com"), "/search", "search"),
        ("HEAD", Some("api.example.com"), "/searching/x", "search"),
        ("get", Some("api.example.com"), "/search", "other:read"),
        ("POST", Some("api.example.com"), "/search", "other:read"),
        ("GET", Some("www.example.com"), "/search", "other:read"),
        ("GET", None, "/search", "other:read"),
        ("POST", None, "/login", "login"),
        ("POST", Some("api.x"), "/signin", "login"),
        ("POST", Some("[::1]"), "/login/x", "local"),
        ("OPTIONS", Some("[::1]"), "/", "local"),
    ];
    for (method, host, path, action) in table {
        let found = routes.action(method, host, path.as_bytes());
        assert_eq!(found, Some(action), "{method} {host:?} {path}");
    }
    assert_eq!(
        config("version: 1\nrules: []\n")
            .routes
            .action("GET", None, b"/"),
        None
    );
}

#[test]
fn globs_of_paths_may_have_every_wildcard() {
    let text = "version: 1\nroutes: [{ path: ['/v?/*/x', '*.png', '/a%3F\\?', '*', '/%2A\\*'], action: a }]\nrules: []\n";
    // `%2A` is a star, which the normal form of a path does not escape.
    let error = parse("x", text, &|_| None).unwrap_err().to_string();
    assert_eq!(error.matches("help:").count(), 1, "{error}");
    assert!(error.contains(r#"write "/*\*""#), "{error}");
}

#[test]
fn telemetry_is_read() {
    let otlp = |url: &str| {
        let text = format!("version: 1\ntelemetry: {{ otlp: \"{url}\" }}\nrules: []\n");
        config(&text).telemetry.otlp.unwrap().to_string()
    };
    assert_eq!(otlp("http://127.0.0.1:4318"), "http://127.0.0.1:4318");
    assert_eq!(otlp("http://127.0.0.1:4318/"), "http://127.0.0.1:4318");
    assert_eq!(otlp("https://[::1]/a/b/"), "https://[::1]:443/a/b");
    let telemetry = config(FULL).telemetry;
    let url = telemetry.otlp.unwrap();
    assert_eq!((url.tls, url.port, url.path.as_str()), (true, 443, "/otlp"));
    assert_eq!(telemetry.sample, 250);
    assert_eq!(telemetry.rejections_per_second, 0);
    let denials = telemetry.denials;
    assert_eq!(denials.directory, Some("./denials-80".into()));
    assert_eq!(
        (denials.max_size, denials.recent, denials.per_second),
        (64 << 20, 500, 0)
    );
    assert_eq!(denials.max_age, tollgate_core::Span::from_secs(2 * 86_400));
}

#[test]
#[cfg(feature = "schema")]
fn the_schema_knows_every_field_of_the_doors() {
    let schema = tollgate_config::json_schema();
    let definitions = &schema["$defs"];
    for (section, fields) in [
        ("Server", &["http", "grpc", "resp", "admin", "tls"][..]),
        ("Http", &["address", "tls"]),
        ("Grpc", &["address", "tls", "unknown_domain"]),
        ("Resp", &["address", "tls", "password", "password_file"]),
        ("Admin", &["address", "tls", "tokens"]),
        ("Token", &["name", "role", "sha256"]),
        ("Tls", &["cert", "key", "client_ca"]),
        (
            "Subjects",
            &["client_header", "headers", "internal", "test_header"],
        ),
        (
            "SubjectHeaders",
            &["api_key", "user", "service_account", "tenant"],
        ),
        ("Route", &["method", "host", "path", "action"]),
        (
            "Telemetry",
            &["otlp", "sample", "rejections_per_second", "denials"],
        ),
        (
            "Denials",
            &["directory", "max_size", "max_age", "recent", "per_second"],
        ),
    ] {
        let section_schema = &definitions[section];
        assert_eq!(section_schema["additionalProperties"], false, "{section}");
        for field in fields {
            let described = &section_schema["properties"][field]["description"];
            assert!(described.is_string(), "{section}.{field}");
        }
    }
    assert_eq!(
        definitions["Server"]["properties"]["http"]["anyOf"][0]["type"],
        "string"
    );
}

#[test]
fn tokens_of_data_doors_may_come_from_the_environment() {
    let yaml = "
version: 1
rules: []
server:
  http: { address: 0.0.0.0:8080, tokens: off }
  grpc: 0.0.0.0:8081
  tokens: [{ name: shop, scopes: [check, refund], sha256: \"${SHOP}\" }]
";
    let hash = "0f".repeat(32);
    let config = tollgate_config::parse("rules.yaml", yaml, &|name| {
        (name == "SHOP").then(|| hash.clone())
    });
    let server = config.unwrap().server;
    let [token] = server.tokens.as_slice() else {
        panic!("{server:?}");
    };
    assert_eq!((token.name.as_str(), token.sha256), ("shop", [15; 32]));
    let scopes = [TokenScope::Check, TokenScope::Refund];
    assert_eq!(token.scopes, scopes.into_iter().collect());
    assert!(!token.scopes.includes(TokenScope::Usage));
    // A hash is not shown.
    assert!(!format!("{server:?}").contains("15, 15"), "{server:?}");
    assert!(server.tokens_of(&server.http).is_empty());
    assert_eq!(
        server
            .tokens_of(&server.grpc.as_ref().unwrap().listen)
            .len(),
        1
    );
    let open: Vec<&str> = server.open_doors().iter().map(|(door, _)| *door).collect();
    assert_eq!(open, ["http"]);
}
