//! nginx, Traefik, Caddy and Envoy in front of an application, with Tollgate and the configs of
//! `examples/`. Only the ports differ.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::time::Duration;

use common::app::App;
use common::{Answer, Running};
use tollgate_rig::{Fault, Proxy, ReverseProxy, ReverseProxyKind, wait};

/// The ports of the examples: the proxy, Tollgate, the application.
const PROXY: &str = "127.0.0.1:8000";
const TOLLGATE: &str = "127.0.0.1:8080";
const APP: &str = "127.0.0.1:9000";

const LOGINS: usize = 5;

/// Headers by which a client tries to pass for another client or request.
const SPOOFED: &[(&str, &str)] = &[
    ("x-real-ip", "198.51.100.7"),
    ("forwarded", "for=198.51.100.7"),
    ("x-forwarded-uri", "/free"),
    ("x-forwarded-method", "GET"),
    ("x-user-id", "eve"),
    ("x-tenant-id", "evil"),
    ("x-forwarded-for", "198.51.100.7"),
];

/// A running example.
struct Example {
    front: ReverseProxy,
    /// The connection from the proxy to Tollgate.
    way: Proxy,
    tollgate: Running,
    _app: App,
}

/// The behaviour of an example if Tollgate cannot be reached.
#[derive(Clone, Copy, PartialEq)]
enum Without {
    Passes,
    Refuses(u16),
}

impl Example {
    fn start(kind: ReverseProxyKind, folder: &str, names: &[&'static str]) -> Example {
        Example::start_with(kind, folder, names, |rules| rules)
    }

    /// Starts an example after `change` has changed its rules.
    fn start_with(
        kind: ReverseProxyKind,
        folder: &str,
        names: &[&'static str],
        change: impl FnOnce(String) -> String,
    ) -> Example {
        Example::start_edited(kind, folder, names, change, |config| config)
    }

    /// Starts an example after `change` has changed its rules, and `edit` the files of the proxy.
    fn start_edited(
        kind: ReverseProxyKind,
        folder: &str,
        names: &[&'static str],
        change: impl FnOnce(String) -> String,
        edit: impl Fn(String) -> String,
    ) -> Example {
        let read = |name: &str| {
            let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
            let path = format!("{root}/{folder}/{name}");
            std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
        };
        let app = App::start();
        let tollgate = Running::start(&change(read("rules.yaml")));
        let way = Proxy::to(&tollgate.address.to_string());
        let front = ReverseProxy::start(kind, |address| {
            let adapt = |name: &&'static str| {
                let mut text = edit(read(name));
                let app = app.address.to_string();
                let places = [(PROXY, address), (TOLLGATE, &way.address()), (APP, &app)];
                for (written, real) in places {
                    text = text.replace(written, real);
                    // Envoy has other ports.
                    let port = |address: &str| {
                        let (_, port) = address.rsplit_once(':').unwrap();
                        format!("port_value: {port} ")
                    };
                    text = text.replace(&port(written), &port(real));
                }
                (*name, text)
            };
            names.iter().map(adapt).collect()
        });
        let example = Example {
            front,
            way,
            tollgate,
            _app: app,
        };
        // A proxy may listen before it knows its upstream.
        wait::until(
            "the proxy passes requests on",
            Duration::from_secs(20),
            || example.get("/healthz", &[]).status == 200,
        );
        example
    }

    fn get(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        common::get(&format!("http://{}{path}", self.front.address()), headers)
    }

    fn post(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        let url = format!("http://{}{path}", self.front.address());
        common::post(&url, "name=ann", headers)
    }

    /// Returns how many requests Tollgate has decided so far.
    fn decisions(&self) -> usize {
        let page = self.tollgate.get("/metrics").text;
        let count = page.lines().filter_map(|line| {
            let everybody = line.strip_prefix("rate_limit_checks_total{rule=\"everybody\"")?;
            everybody.rsplit(' ').next()?.parse::<usize>().ok()
        });
        count.sum()
    }

    fn requests_that_are_allowed_reach_the_application(&self) {
        let answer = self.get("/search?q=x", &[("x-api-key", "k1")]);
        assert_eq!(answer.status, 200, "{}", answer.text);
        assert!(
            answer.text.contains("GET /search?q=x HTTP/1.1"),
            "{}",
            answer.text
        );
        assert_eq!(self.decisions(), 1);
        let answer = self.post("/comments", &[]);
        assert!(answer.text.ends_with("\r\n\r\nname=ann"), "{}", answer.text);
        let forbidden = self.get("/forbidden", &[]);
        assert_eq!(forbidden.status, 403, "the application itself denied it");
        assert!(
            forbidden.text.contains("the application"),
            "{}",
            forbidden.text
        );
    }

    /// Sends requests up to the limit, and one above it. Returns the denial. A client cannot pass for
    /// another client or request.
    fn requests_above_the_limit_are_denied(&self, spoofed: &[(&str, &str)]) -> Answer {
        for attempt in 0..LOGINS {
            let headers: &[_] = if attempt % 2 == 0 { spoofed } else { &[] };
            let answer = self.post("//login?x", headers);
            assert_eq!(answer.status, 200, "{attempt}: {}", answer.text);
        }
        let refused = self.post("/%6cogin", spoofed);
        assert_eq!(refused.status, 429, "{}", refused.text);
        let wait: u64 = refused.header("retry-after").parse().unwrap();
        assert!((1..=600).contains(&wait), "{wait}");
        assert_eq!(refused.header("ratelimit-limit"), "5");
        assert_eq!(refused.header("ratelimit-remaining"), "0");
        assert_eq!(refused.header("content-type"), "application/json");
        assert_eq!(refused.json()["code"], "RATE_LIMIT");
        assert!(
            !refused.text.contains("the application"),
            "{}",
            refused.text
        );
        // Another route is not affected.
        assert_eq!(self.get("/login", &[]).status, 200);
        refused
    }

    /// Checks that the application gets the header fields of `allowed`, and that the client gets the
    /// body of a denial.
    fn header_fields_and_denials_are_passed_on(&self, allowed: &Answer) {
        let told = allowed
            .text
            .to_lowercase()
            .contains("ratelimit-remaining: 9");
        assert!(told, "the application is told: {}", allowed.text);
        let refused = self.requests_above_the_limit_are_denied(SPOOFED);
        assert_eq!(
            refused.json()["message"],
            "Too many attempts. Try again later."
        );
        assert_eq!(refused.json()["ruleId"], "login");
        let spoofed = [("x-original-uri", "/free"), ("x-original-method", "GET")];
        assert_eq!(self.post("/login", &spoofed).status, 429);
    }

    fn health_is_never_limited(&self) {
        let before = self.decisions();
        for _ in 0..20 {
            assert_eq!(self.get("/healthz", &[]).status, 200);
        }
        assert_eq!(self.decisions(), before);
    }

    fn without_tollgate(&self, does: Without) {
        for fault in [Fault::Reset, Fault::Refuse] {
            self.way.set(fault);
            let answer = self.post("/login", &[]);
            match does {
                Without::Passes => {
                    assert_eq!(answer.status, 200, "{fault:?} {}", answer.text);
                    assert!(answer.text.ends_with("\r\n\r\nname=ann"), "{}", answer.text);
                }
                Without::Refuses(status) => {
                    assert_eq!(answer.status, status, "{fault:?} {}", answer.text);
                }
            }
            assert_eq!(self.get("/healthz", &[]).status, 200);
        }
        self.way.set(Fault::None);
        assert_eq!(
            self.post("/login", &[]).status,
            429,
            "as soon as it is back"
        );
    }

    fn when_tollgate_hangs_requests_pass(&self) {
        self.way.set(Fault::BlackHole);
        let answer = self.post("/login", &[]);
        assert_eq!(answer.status, 200, "{}", answer.text);
        self.way.set(Fault::None);
        assert_eq!(self.post("/login", &[]).status, 429);
    }
}

#[test]
fn nginx() {
    let example = Example::start(ReverseProxyKind::Nginx, "nginx", &["tollgate.conf"]);
    example.requests_that_are_allowed_reach_the_application();
    let allowed = example.get("/search", &[("x-api-key", "k2")]);
    assert_eq!(allowed.header("ratelimit-remaining"), "9", "for the client");
    // nginx cannot pass on the body.
    let refused = example.requests_above_the_limit_are_denied(SPOOFED);
    assert_eq!(refused.json()["message"], "Too many requests.");
    // A client that sends the headers of nginx itself changes nothing.
    let spoofed = [("x-original-uri", "/free"), ("x-original-url", "/free")];
    assert_eq!(example.post("/login", &spoofed).status, 429);
    let connections = example.way.connections();
    assert!(connections <= 3, "{connections} connections: they are kept");
    example.health_is_never_limited();
    example.without_tollgate(Without::Passes);
    example.when_tollgate_hangs_requests_pass();
}

#[test]
fn nginx_distinguishes_a_full_queue_from_a_limit() {
    let queue = "  - { id: queue, algorithm: leaky-bucket, rate: 1/h, queue: 1, shape: true }\n";
    let example = Example::start_with(
        ReverseProxyKind::Nginx,
        "nginx",
        &["tollgate.conf"],
        |rules| rules + queue,
    );
    assert_eq!(example.get("/", &[]).status, 200);
    assert_eq!(example.get("/", &[]).status, 200);
    let full = example.get("/", &[]);
    assert_eq!(full.status, 503, "{}", full.text);
    assert_ne!(full.header("retry-after"), "");
    assert_eq!(full.json()["code"], "UNAVAILABLE");
}

/// Starts an example with `server.tokens` in the config of Tollgate. The token is `secret`.
fn start_with_token(
    kind: ReverseProxyKind,
    folder: &str,
    names: &[&'static str],
    edit: impl Fn(String) -> String,
) -> Example {
    // The SHA-256 hash of `secret`.
    let sha256 = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";
    let tokens =
        format!("server:\n  tokens: [{{ name: proxy, scopes: [check], sha256: {sha256} }}]\n");
    let change = |rules: String| rules.replace("server:\n", &tokens);
    Example::start_edited(kind, folder, names, change, edit)
}

/// Replaces a text that `config` has once.
fn replaced(config: &str, old: &str, new: &str) -> String {
    assert_eq!(config.matches(old).count(), 1, "{old}");
    config.replace(old, new)
}

/// Checks that requests pass `with` the right token, also if the client sends one of its own. `without` it, they
/// get this status, and a client cannot show the token in place of the proxy.
fn proxy_shows_its_token(with: &Example, without: &Example, status: u16) {
    let of_client = [
        ("authorization", "Bearer of-the-client"),
        ("tollgate-token", "nonsense"),
    ];
    for headers in [&of_client[..], &[]] {
        let answer = with.get("/", headers);
        assert_eq!(answer.status, 200, "{}", answer.text);
        // The application does not learn the token.
        assert!(!answer.text.contains("secret"), "{}", answer.text);
    }
    for _ in 0..LOGINS {
        assert_eq!(with.post("/login", &of_client).status, 200);
    }
    assert_eq!(with.post("/login", &of_client).status, 429);
    for client in ["nonsense", "secret"] {
        let answer = without.get("/", &[("tollgate-token", client)]);
        assert_eq!(answer.status, status, "{}", answer.text);
    }
}

#[test]
fn nginx_shows_its_token() {
    let [with, without] = ["secret", ""].map(|token| {
        let edit = |config: String| {
            let setting = format!("Tollgate-Token \"{token}\"");
            replaced(&config, "Tollgate-Token    \"\"", &setting)
        };
        start_with_token(ReverseProxyKind::Nginx, "nginx", &["tollgate.conf"], edit)
    });
    proxy_shows_its_token(&with, &without, 500);
}

#[test]
fn caddy_shows_its_token() {
    let start = |edit: fn(String) -> String| {
        start_with_token(ReverseProxyKind::Caddy, "caddy", &["Caddyfile"], edit)
    };
    let with = start(|config| {
        let setting = "header_up Tollgate-Token \"secret\"";
        replaced(&config, "header_up -Tollgate-Token", setting)
    });
    proxy_shows_its_token(&with, &start(|config| config), 401);
}

#[test]
fn envoy_shows_its_token() {
    let start = |edit: fn(String) -> String| {
        start_with_token(ReverseProxyKind::Envoy, "envoy-auth", &["envoy.yaml"], edit)
    };
    let with = start(|config| {
        let setting = "path_prefix: /auth\n                        authorization_request: \
                       { headers_to_add: [{ key: tollgate-token, value: secret }] }\n";
        replaced(&config, "path_prefix: /auth\n", setting)
    });
    proxy_shows_its_token(&with, &start(|config| config), 401);
}

#[test]
fn traefik_shows_its_token() {
    let start = |edit: fn(String) -> String| {
        let files = ["traefik.yml", "dynamic.yml"];
        start_with_token(ReverseProxyKind::Traefik, "traefik", &files, edit)
    };
    let with = start(|config| {
        if !config.contains("middlewares: [tollgate]") {
            return config;
        }
        let chain = "middlewares: [token, tollgate, no-token]";
        let config = replaced(&config, "middlewares: [tollgate]", chain);
        let config = replaced(
            &config,
            "[Accept, X-Api-Key]",
            "[Accept, X-Api-Key, Tollgate-Token]",
        );
        let middlewares = "  middlewares:\n    \
            token: { headers: { customRequestHeaders: { Tollgate-Token: secret } } }\n    \
            no-token: { headers: { customRequestHeaders: { Tollgate-Token: \"\" } } }\n";
        replaced(&config, "  middlewares:\n", middlewares)
    });
    proxy_shows_its_token(&with, &start(|config| config), 401);
}

#[test]
fn nginx_does_not_take_a_mistake_for_an_outage() {
    let example = Example::start_with(
        ReverseProxyKind::Nginx,
        "nginx",
        &["tollgate.conf"],
        |rules| rules.replace("127.0.0.1/32", "10.0.0.1/32"),
    );
    assert_eq!(example.get("/", &[]).status, 500);
}

#[test]
fn traefik() {
    let example = Example::start(
        ReverseProxyKind::Traefik,
        "traefik",
        &["traefik.yml", "dynamic.yml"],
    );
    example.requests_that_are_allowed_reach_the_application();
    let allowed = example.get("/search", &[("x-api-key", "k2")]);
    assert_eq!(allowed.header("ratelimit-remaining"), "");
    example.header_fields_and_denials_are_passed_on(&allowed);
    example.health_is_never_limited();
    example.without_tollgate(Without::Refuses(500));
}

#[test]
fn caddy() {
    let example = Example::start(ReverseProxyKind::Caddy, "caddy", &["Caddyfile"]);
    example.requests_that_are_allowed_reach_the_application();
    let allowed = example.get("/search", &[("x-api-key", "k2")]);
    assert_eq!(allowed.header("ratelimit-remaining"), "9", "for the client");
    example.header_fields_and_denials_are_passed_on(&allowed);
    example.health_is_never_limited();
    example.without_tollgate(Without::Passes);
    example.when_tollgate_hangs_requests_pass();
}

#[test]
fn envoy() {
    let example = Example::start(ReverseProxyKind::Envoy, "envoy-auth", &["envoy.yaml"]);
    example.requests_that_are_allowed_reach_the_application();
    let allowed = example.get("/search", &[("x-api-key", "k2")]);
    assert_eq!(allowed.header("ratelimit-remaining"), "9", "for the client");
    // Envoy appends to X-Forwarded-For, and here the client is on the machine of a trusted proxy.
    let (_, spoofed) = SPOOFED.split_last().unwrap();
    let refused = example.requests_above_the_limit_are_denied(spoofed);
    assert_eq!(
        refused.json()["message"],
        "Too many attempts. Try again later."
    );
    assert_eq!(refused.json()["ruleId"], "login");
    example.health_is_never_limited();
    example.without_tollgate(Without::Passes);
    example.when_tollgate_hangs_requests_pass();
}
