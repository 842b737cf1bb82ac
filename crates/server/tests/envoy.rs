//! The example in `examples/envoy` with a real Envoy: only its ports are others here.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // Helpers of tests fail and tell as tests do.

#[path = "common/grpc.rs"]
mod common;

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use common::Grpc;
use tokio::runtime::Runtime;
use tollgate_rig::{Envoy, Port, wait};
use tollgate_server::grpc::Options;

const ENVOY: &str = include_str!("../../../examples/envoy/envoy.yaml");
const RULES: &str = include_str!("../../../examples/envoy/rules.yaml");

/// Envoy between clients and an upstream, with Tollgate beside it.
struct Setup {
    tollgate: Option<Grpc>,
    runtime: Runtime,
    envoy: Envoy,
    address: SocketAddr,
    limits: Port,
    _listener: Port,
}

impl Setup {
    /// With Envoy's config, changed by `edit`.
    fn new(edit: impl FnOnce(String) -> String) -> Setup {
        let (listener, limits) = (Port::free(), Port::free());
        let mut config = edit(ENVOY.to_owned());
        for (theirs, ours) in [
            (10_000, listener.number()),
            (8081, limits.number()),
            (8000, upstream()),
            // Any that is free: nobody asks for it.
            (9901, 0),
        ] {
            let port = |number: u16| format!("port_value: {number} ");
            assert_eq!(config.matches(&port(theirs)).count(), 1, "port {theirs}");
            config = config.replace(&port(theirs), &port(ours));
        }
        let mut setup = Setup {
            tollgate: None,
            runtime: Runtime::new().unwrap(),
            envoy: Envoy::start(&config, listener.number()),
            address: SocketAddr::from(([127, 0, 0, 1], listener.number())),
            limits,
            _listener: listener,
        };
        setup.start();
        // Envoy counts a connection as broken that was refused before Tollgate was there.
        wait::until("Envoy asks Tollgate", Duration::from_secs(10), || {
            setup.get("/beta", "").header("ratelimit-limit").is_some()
        });
        setup
    }

    fn start(&mut self) {
        let address = SocketAddr::from(([127, 0, 0, 1], self.limits.number()));
        let starting = Grpc::at(address, RULES, Options::default(), None);
        self.tollgate = Some(self.runtime.block_on(starting));
    }

    fn stop(&mut self) {
        let tollgate = self.tollgate.take().unwrap();
        self.runtime.block_on(tollgate.stop());
    }

    fn get(&self, path: &str, api_key: &str) -> Answer {
        let mut request = agent().get(format!("http://{}{path}", self.address));
        if !api_key.is_empty() {
            request = request.header("x-api-key", api_key);
        }
        Answer(request.call().unwrap())
    }

    /// The statuses of so many requests in a row.
    fn statuses<const N: usize>(&self, path: &str, api_key: &str) -> [u16; N] {
        [(); N].map(|()| self.get(path, api_key).status())
    }
}

impl Drop for Setup {
    fn drop(&mut self) {
        if thread::panicking() {
            println!("{}", self.envoy.log());
        }
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

/// A server that answers everything with 200, for as long as the process lives. Its port.
fn upstream() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || answer_all(&stream));
        }
    });
    port
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
fn requests_are_limited_by_header_and_by_route() {
    let setup = Setup::new(|config| config);
    let first = setup.get("/", "ann");
    assert_eq!(first.status(), 200);
    assert_eq!(
        first.header("ratelimit-policy"),
        Some("\"per-key\";q=5;w=60")
    );
    assert_eq!(first.header("ratelimit-remaining"), Some("4"));
    assert_eq!(first.header("x-ratelimit-limit"), Some("5"));
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
    // Without the header there is one descriptor less, and the route's limit is left.
    let nobody = setup.get("/", "");
    assert_eq!(
        (nobody.status(), nobody.header("ratelimit-limit")),
        (200, Some("200"))
    );
}

#[test]
fn hits_limits_and_shadow_rules_are_as_the_example_says() {
    let setup = Setup::new(|config| config);
    // 20 of 60 points each.
    assert_eq!(setup.statuses("/search", "ann"), [200, 200, 200, 429]);
    let refused = setup.get("/search", "ann");
    assert_eq!(
        refused.header("ratelimit-policy"),
        Some("\"points\";q=60;w=3600")
    );
    // The rule says a thousand an hour, and Envoy two.
    let trial = setup.get("/trial", "");
    assert_eq!(
        trial.header("ratelimit-policy"),
        Some("\"trial\";q=2;w=3600")
    );
    assert_eq!(setup.statuses("/trial", ""), [200, 429]);
    // Long since used up, and only watched.
    assert_eq!(setup.statuses("/beta", ""), [200, 200, 200]);
    let engine = &setup.tollgate.as_ref().unwrap().engine;
    let rules = engine.rules().rules().iter().zip(engine.metrics().counts());
    let shadowed = rules
        .filter(|(rule, _)| rule.id() == "beta")
        .map(|(_, it)| it.shadow_rejected);
    assert!(shadowed.sum::<u64>() >= 2);
}

#[test]
fn without_tollgate_envoy_passes_requests_and_asks_again_when_it_is_back() {
    let mut setup = Setup::new(|config| config);
    assert_eq!(setup.get("/", "ann").status(), 200);
    setup.stop();
    assert_eq!(setup.statuses("/search", "ann"), [200; 5]);
    assert_eq!(setup.get("/", "ann").header("ratelimit-limit"), None);
    setup.start();
    wait::until("Envoy asks again", Duration::from_secs(10), || {
        setup.get("/search", "ann").status() == 429
    });
}

#[test]
fn without_tollgate_envoy_refuses_requests_if_it_is_told_to() {
    let deny =
        |config: String| config.replace("failure_mode_deny: false", "failure_mode_deny: true");
    let mut setup = Setup::new(deny);
    assert_eq!(setup.get("/", "ann").status(), 200);
    setup.stop();
    assert_eq!(setup.statuses("/", "ann"), [500; 3]);
}
