//! The example in `examples/envoy` with a real Envoy. Only the ports differ.

#![allow(clippy::unwrap_used)] // Test helpers may panic.

#[path = "common/grpc.rs"]
mod common;

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use common::Grpc;
use tokio::runtime::Runtime;
use tollgate_rig::{Fault, Proxy, ReverseProxy, ReverseProxyKind, wait};

const ENVOY: &str = include_str!("../../../examples/envoy/envoy.yaml");
const RULES: &str = include_str!("../../../examples/envoy/rules.yaml");

/// Envoy between clients and an upstream, with Tollgate beside it.
struct Setup {
    tollgate: Grpc,
    runtime: Runtime,
    /// The connection from Envoy to Tollgate.
    way: Proxy,
    envoy: ReverseProxy,
}

impl Setup {
    /// Starts with Envoy's config, changed by `edit`.
    fn new(edit: impl FnOnce(String) -> String) -> Setup {
        Setup::with_rules(RULES, edit)
    }

    fn with_rules(rules: &str, edit: impl FnOnce(String) -> String) -> Setup {
        let runtime = Runtime::new().unwrap();
        let tollgate = runtime.block_on(Grpc::start(rules));
        let way = Proxy::to(&tollgate.address.to_string());
        let envoy = ReverseProxy::start(ReverseProxyKind::Envoy, |address| {
            let mut config = edit(ENVOY.to_owned());
            for (written, real) in [
                ("10000", address),
                ("8081", &way.address()),
                ("8000", &upstream()),
                // Any free port: no test uses it.
                ("9901", "127.0.0.1:0"),
            ] {
                let (_, real) = real.rsplit_once(':').unwrap();
                let port = |port: &str| format!("port_value: {port} ");
                assert_eq!(config.matches(&port(written)).count(), 1, "port {written}");
                config = config.replace(&port(written), &port(real));
            }
            vec![("envoy.yaml", config)]
        });
        Setup {
            tollgate,
            runtime,
            way,
            envoy,
        }
    }

    /// Ends all connections to Tollgate, and rejects new connections.
    fn cut_off(&self) {
        self.way.set(Fault::Reset);
        self.way.set(Fault::Refuse);
    }

    fn get(&self, path: &str, api_key: &str) -> Answer {
        let mut request = agent().get(format!("http://{}{path}", self.envoy.address()));
        if !api_key.is_empty() {
            request = request.header("x-api-key", api_key);
        }
        Answer(request.call().unwrap())
    }

    /// Sends several requests one after the other, and returns their statuses.
    fn statuses<const N: usize>(&self, path: &str, api_key: &str) -> [u16; N] {
        [(); N].map(|()| self.get(path, api_key).status())
    }
}

struct Answer(ureq::http::Response<ureq::Body>);

impl Answer {
    fn status(&self) -> u16 {
        self.0.status().as_u16()
    }

    fn header(&self, name: &str) -> Option<&str> {
        let value = self.0.headers().get(name)?;
        Some(value.to_str().unwrap())
    }
}

fn agent() -> ureq::Agent {
    ureq::Agent::config_builder()
        .http_status_as_error(false)
        .timeout_global(Some(Duration::from_secs(10)))
        .build()
        .into()
}

/// Starts a server that answers every request with 200 until the process ends. Returns its address.
fn upstream() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || answer_all(&stream));
        }
    });
    address
}

fn answer_all(mut stream: &TcpStream) {
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        if line.is_empty() {
            let answer = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nhi\n";
            let _ = stream.write_all(answer.as_bytes());
        }
    }
}

#[test]
fn envoy_shows_its_token() {
    // The SHA-256 hash of `secret`.
    let sha256 = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";
    let rules = format!(
        "{RULES}\nserver: {{ tokens: [{{ name: envoy, scopes: [check], sha256: {sha256} }}] }}\n"
    );
    let service = "envoy_grpc: { cluster_name: tollgate } }";
    let setup = |metadata: &str, deny: bool| {
        Setup::with_rules(&rules, |config| {
            assert_eq!(config.matches(service).count(), 1);
            let with = service.replace(" } }", &format!(" }}{metadata} }}"));
            config.replace(service, &with).replace(
                "failure_mode_deny: false",
                &format!("failure_mode_deny: {deny}"),
            )
        })
    };
    let token = ", initial_metadata: [{ key: authorization, value: Bearer secret }]";
    let with_token = setup(token, true);
    let expected = [200, 200, 200, 200, 200, 429];
    assert_eq!(with_token.statuses("/", "ann"), expected);
    // Without the token Tollgate decides nothing, so Envoy's own failure mode does.
    assert_eq!(setup("", true).statuses("/", "ann"), [500; 6]);
}

#[test]
fn client_gets_the_body_of_the_template() {
    let body = r#"headers: { denial_body: '{"error":"{{code}}","rule":{{rule}}}' }"#;
    let rules = RULES.replace("version: 1", &format!("version: 1\n{body}"));
    let setup = Setup::with_rules(&rules, |config| config);
    assert_eq!(setup.statuses("/", "ann"), [200, 200, 200, 200, 200]);
    let mut denied = setup.get("/", "ann");
    assert_eq!(denied.status(), 429);
    assert_eq!(denied.header("content-type"), Some("application/json"));
    let body = denied.0.body_mut().read_to_string().unwrap();
    assert_eq!(body, r#"{"error":"RATE_LIMIT","rule":"per-key"}"#);
}

#[test]
fn requests_are_limited_by_header_and_by_route() {
    let setup = Setup::new(|config| config);
    let first = setup.get("/", "ann");
    assert_eq!(first.status(), 200);
    assert_eq!(first.header("ratelimit-limit"), Some("5"));
    assert_eq!(first.header("ratelimit-remaining"), Some("4"));
    assert_eq!(first.header("x-ratelimit-limit"), None);
    assert_eq!(first.header("retry-after"), None);
    assert_eq!(setup.statuses("/", "ann"), [200, 200, 200, 200, 429, 429]);

    let refused = setup.get("/", "ann");
    assert_eq!(refused.status(), 429);
    assert_eq!(refused.header("x-envoy-ratelimited"), Some("true"));
    assert_eq!(refused.header("ratelimit-remaining"), Some("0"));
    let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&wait), "{wait}");

    assert_eq!(
        setup.get("/", "bob").status(),
        200,
        "others are not affected"
    );
    // Without the header there is one descriptor less, and only the route's limit applies.
    let nobody = setup.get("/", "");
    assert_eq!(
        (nobody.status(), nobody.header("ratelimit-limit")),
        (200, Some("200"))
    );
}

#[test]
fn hits_limits_and_shadow_rules_work_as_in_the_example() {
    let setup = Setup::new(|config| config);
    // 20 of 60 points each.
    assert_eq!(setup.statuses("/search", "ann"), [200, 200, 200, 429]);
    let refused = setup.get("/search", "ann");
    assert_eq!(refused.header("ratelimit-limit"), Some("60"));
    // The rule allows a thousand requests an hour, and Envoy's own limit allows two.
    let trial = setup.get("/trial", "");
    assert_eq!(trial.header("ratelimit-limit"), Some("2"));
    assert_eq!(setup.statuses("/trial", ""), [200, 429]);
    // A shadow rule never denies, even if its limit is used up.
    assert_eq!(setup.statuses("/beta", ""), [200, 200, 200]);
    let engine = &setup.tollgate.engine;
    let live = engine.active();
    let rules = live.rules().rules().iter().zip(live.metrics().counts());
    let shadowed = rules
        .filter(|(rule, _)| rule.id() == "beta")
        .map(|(_, it)| it.shadow_denied);
    assert!(shadowed.sum::<u64>() >= 2);
}

#[test]
fn without_tollgate_envoy_passes_requests_and_asks_again_later() {
    let setup = Setup::new(|config| config);
    assert_eq!(setup.get("/", "ann").status(), 200);
    setup.cut_off();
    assert_eq!(setup.statuses("/search", "ann"), [200; 5]);
    assert_eq!(setup.get("/", "ann").header("ratelimit-limit"), None);
    // Tollgate does not answer: Envoy waits as long as the example says.
    setup.way.set(Fault::BlackHole);
    assert_eq!(setup.get("/search", "ann").status(), 200);
    setup.way.set(Fault::None);
    wait::until("Envoy asks again", Duration::from_secs(10), || {
        setup.get("/search", "ann").status() == 429
    });
}

#[test]
fn without_tollgate_envoy_denies_requests_if_configured() {
    let (allow, deny) = ("failure_mode_deny: false", "failure_mode_deny: true");
    let setup = Setup::new(|config| config.replace(allow, deny));
    assert_eq!(setup.get("/", "ann").status(), 200);
    setup.cut_off();
    assert_eq!(setup.statuses("/", "ann"), [500; 3]);
}

#[test]
fn stopping_tollgate_looks_like_an_absent_one() {
    let Setup {
        tollgate,
        runtime,
        way: _way,
        envoy,
    } = Setup::new(|config| config);
    let url = format!("http://{}/", envoy.address());
    let status = || agent().get(&url).call().unwrap().status().as_u16();
    assert_eq!(status(), 200);
    runtime.block_on(tollgate.stop());
    assert_eq!(status(), 200, "as the example says");
}
