//! What each door counts: requests by status, bad requests by reason, decisions by outcome, and requests
//! that no rule applied to.

#![allow(clippy::unwrap_used)] // Test helpers may panic.

#[path = "common/grpc.rs"]
mod grpc;
#[path = "common/own.rs"]
mod own;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use grpc::{descriptor, request};
use own::{TollgateClient, check};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tollgate::Engine;
use tollgate_rig::Redis;
use tollgate_server::{ControlPlane, Doors};
use tonic::transport::Channel;

/// How long a test waits for something that takes a moment.
const PATIENCE: Duration = Duration::from_secs(20);

struct Server {
    http: SocketAddr,
    grpc: SocketAddr,
    resp: SocketAddr,
    admin: SocketAddr,
    _stop: oneshot::Sender<()>,
}

impl Server {
    /// Starts a server with all doors. `more` is the rest of its config.
    async fn start(more: &str) -> Server {
        Server::with(more, "allow").await
    }

    async fn with(more: &str, unknown_domain: &str) -> Server {
        let any = "127.0.0.1:0";
        let yaml = format!(
            "version: 1\n\
             subjects: {{ hash_secret: 0123456789abcdef, trusted_proxies: [127.0.0.0/8] }}\n\
             server:\n  http: {any}\n  resp: {any}\n  admin: {any}\n  \
             grpc: {{ address: \"{any}\", unknown_domain: {unknown_domain} }}\n{more}"
        );
        let config = tollgate_config::parse("rules.yaml", &yaml, &|_| None).unwrap();
        let engine = Arc::new(Engine::start(&config).await.unwrap());
        let doors = Doors::open(&config).await.unwrap();
        let addresses = doors.addresses().unwrap();
        let address = |door| addresses.iter().find(|it| it.door == door).unwrap().address;
        let (http, grpc) = (address("http"), address("grpc"));
        let (resp, admin) = (address("resp"), address("admin"));
        let (stop, stopped) = oneshot::channel::<()>();
        let control = Arc::new(ControlPlane::of(engine));
        tokio::spawn(doors.serve(control, async {
            drop(stopped.await);
            Duration::ZERO
        }));
        Server {
            http,
            grpc,
            resp,
            admin,
            _stop: stop,
        }
    }

    /// Sends a check, and returns the status of the answer.
    async fn check(&self, body: &str) -> u16 {
        self.post("/v1/check", body).await
    }

    async fn post(&self, path: &str, body: &str) -> u16 {
        let length = body.len();
        let head = format!("POST {path} HTTP/1.1\r\ncontent-length: {length}\r\n");
        status(&send(self.http, &head, body).await)
    }

    async fn get(&self, path: &str, headers: &str) -> u16 {
        let head = format!("GET {path} HTTP/1.1\r\n{headers}");
        status(&send(self.http, &head, "").await)
    }

    /// Sends commands, and returns the answers.
    async fn resp(&self, commands: &str) -> String {
        exchange(self.resp, &format!("{commands}QUIT\r\n")).await
    }

    async fn channel(&self) -> Channel {
        let endpoint = Channel::from_shared(format!("http://{}", self.grpc)).unwrap();
        endpoint.connect().await.unwrap()
    }

    async fn envoy(&self) -> grpc::Client {
        use tollgate_server::grpc::proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
        grpc::Client(RateLimitServiceClient::new(self.channel().await))
    }

    /// Returns the page of metrics.
    async fn page(&self) -> String {
        let page = send(self.admin, "GET /metrics HTTP/1.1\r\n", "").await;
        assert_eq!(status(&page), 200, "{page}");
        page
    }

    /// Asserts that the page has these samples.
    async fn shows(&self, samples: &[&str]) {
        let page = self.page().await;
        for sample in samples {
            let line = format!("\n{sample}\n");
            assert!(page.contains(&line), "no {sample} in {page}");
        }
    }

    /// Waits until the page has this sample.
    async fn comes_to_show(&self, sample: &str) {
        let line = format!("\n{sample}\n");
        let showing = async {
            while !self.page().await.contains(&line) {
                tokio::task::yield_now().await;
            }
        };
        let shown = tokio::time::timeout(PATIENCE, showing).await;
        assert!(shown.is_ok(), "no {sample} in {}", self.page().await);
    }
}

/// Sends a request with this start of its head, and returns the whole answer.
async fn send(address: SocketAddr, head: &str, body: &str) -> String {
    let request = format!("{head}host: 127.0.0.1\r\nconnection: close\r\n\r\n{body}");
    exchange(address, &request).await
}

/// Sends bytes, and returns the answer until the server closes the connection.
async fn exchange(address: SocketAddr, bytes: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(bytes.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    // The server may reset the connection after its answer.
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

fn status(answer: &str) -> u16 {
    let status = answer.split(' ').nth(1).unwrap_or_default();
    status.parse().unwrap_or_default()
}

const LOGIN: &str = "
routes:
  - { path: '/search*', action: search }
  - { path: /login, action: login }
rules:
  - { id: login, match: { action: login }, algorithm: fixed-window, limit: 2, window: 10d }
";

fn action(action: &str) -> String {
    format!(r#"{{"attributes":{{"action":"{action}"}}}}"#)
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_without_a_rule_are_counted_by_door_and_action() {
    let server = Server::start(LOGIN).await;
    assert_eq!(server.check(&action("login")).await, 200);
    assert_eq!(server.check(&action("search")).await, 200);
    assert_eq!(server.check(&action("nonsense")).await, 200);
    let nothing = r#"{"attributes":{}}"#;
    assert_eq!(server.check(nothing).await, 200);
    let both = format!(r#"{{"requests":[{},{nothing}]}}"#, action("login"));
    assert_eq!(server.post("/v1/check/batch", &both).await, 200);
    // A peek decides nothing.
    assert_eq!(server.post("/v1/peek", nothing).await, 200);
    let proxied = |path: &str| format!("x-forwarded-method: GET\r\nx-forwarded-uri: {path}\r\n");
    assert_eq!(server.get("/auth", &proxied("/search/a")).await, 200);
    assert_eq!(server.get("/auth", &proxied("/login")).await, 429);
    let mut client = TollgateClient::new(server.channel().await);
    assert!(client.check(check([])).await.unwrap().into_inner().allowed);
    let answer = server.resp("TG.CHECK action login\r\nTG.CHECK user ann\r\n");
    assert!(answer.await.ends_with("+OK\r\n"));
    let unmatched = |door, action, count| {
        format!("rate_limit_unmatched_total{{door=\"{door}\",action=\"{action}\"}} {count}")
    };
    let expected = [
        unmatched("http", "", 2),
        unmatched("http", "other", 1),
        unmatched("http", "search", 1),
        unmatched("auth", "", 0),
        unmatched("auth", "search", 1),
        unmatched("grpc", "", 1),
        unmatched("resp", "", 1),
    ];
    server.shows(&expected.each_ref().map(String::as_str)).await;
    let page = server.page().await;
    assert!(!page.contains("nonsense") && !page.contains("action=\"login\""));
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_domains_are_counted_by_their_answer() {
    let rules = "rules: [{ id: shop, match: { domain: shop, path: x }, algorithm: fixed-window, limit: 5, window: 10d }]";
    for (unknown_domain, outcome, other, answer) in [
        ("allow", "allowed", "rejected", "OK: OK"),
        ("deny", "rejected", "allowed", "OVER_LIMIT: OVER_LIMIT"),
    ] {
        let server = Server::with(rules, unknown_domain).await;
        let mut client = server.envoy().await;
        let mut asked = request([descriptor([("path", "x")])]);
        asked.domain = "typo".to_owned();
        assert_eq!(client.words(asked.clone()).await, answer);
        // No rule applies to this request either, but a rule knows the domain.
        asked.domain = "shop".to_owned();
        asked.descriptors = vec![descriptor([("path", "y")])];
        assert_eq!(client.words(asked).await, "OK: OK");
        let domains = "rate_limit_unknown_domains_total";
        let one = format!("{domains}{{outcome=\"{outcome}\"}} 1");
        let none = format!("{domains}{{outcome=\"{other}\"}} 0");
        let unmatched = "rate_limit_unmatched_total{door=\"grpc\",action=\"\"} 2";
        server.shows(&[&one, &none, unmatched]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_counted_by_status_and_bad_ones_by_reason() {
    let server = Server::start(LOGIN).await;
    for status in [200, 200, 429] {
        assert_eq!(server.check(&action("login")).await, status);
    }
    assert_eq!(server.check("{").await, 400);
    assert_eq!(server.check(r#"{"attributes":{"no name":"x"}}"#).await, 400);
    assert_eq!(server.get("/nowhere", "").await, 404);
    assert_eq!(server.get("/v1/check", "").await, 405);
    assert_eq!(server.get("/auth", "").await, 400);
    assert_eq!(status(&exchange(server.http, "\u{1}\r\n\r\n").await), 400);
    let admin = "GET /nowhere HTTP/1.1\r\n";
    assert_eq!(status(&send(server.admin, admin, "").await), 404);
    let mut envoy = server.envoy().await;
    assert!(envoy.ask(request([])).await.is_err());
    assert!(envoy.ask(request([descriptor([("a", "b")])])).await.is_ok());
    let answers = server
        .resp("NONSENSE\r\nCL.THROTTLE k\r\nPING\r\nCL.THROTTLE k 0 1 3600\r\nCL.THROTTLE k 0 1 3600\r\n")
        .await;
    assert!(answers.starts_with("-ERR unknown command"), "{answers}");
    let answer = exchange(server.resp, "*1\r\n:1\r\n").await;
    assert!(answer.starts_with("-ERR Protocol error"), "{answer}");
    server
        .shows(&[
            "rate_limit_requests_total{door=\"http\",status=\"200\"} 2",
            "rate_limit_requests_total{door=\"http\",status=\"429\"} 1",
            "rate_limit_requests_total{door=\"http\",status=\"400\"} 2",
            "rate_limit_requests_total{door=\"http\",status=\"404\"} 1",
            "rate_limit_requests_total{door=\"http\",status=\"405\"} 1",
            "rate_limit_requests_total{door=\"auth\",status=\"400\"} 1",
            "rate_limit_requests_total{door=\"admin\",status=\"404\"} 1",
            "rate_limit_requests_total{door=\"grpc\",status=\"OK\"} 1",
            "rate_limit_requests_total{door=\"grpc\",status=\"INVALID_ARGUMENT\"} 1",
            // PING, two decisions, and QUIT.
            "rate_limit_requests_total{door=\"resp\",status=\"OK\"} 4",
            "rate_limit_requests_total{door=\"resp\",status=\"ERR\"} 2",
            "rate_limit_bad_requests_total{door=\"http\",reason=\"body\"} 1",
            "rate_limit_bad_requests_total{door=\"http\",reason=\"question\"} 1",
            "rate_limit_bad_requests_total{door=\"http\",reason=\"unknown\"} 2",
            "rate_limit_bad_requests_total{door=\"auth\",reason=\"header\"} 1",
            "rate_limit_bad_requests_total{door=\"admin\",reason=\"unknown\"} 1",
            "rate_limit_bad_requests_total{door=\"grpc\",reason=\"question\"} 1",
            "rate_limit_bad_requests_total{door=\"resp\",reason=\"unknown\"} 1",
            "rate_limit_bad_requests_total{door=\"resp\",reason=\"question\"} 1",
            "rate_limit_bad_requests_total{door=\"resp\",reason=\"protocol\"} 1",
            "rate_limit_decision_seconds_count{door=\"http\",outcome=\"allowed\"} 2",
            "rate_limit_decision_seconds_count{door=\"http\",outcome=\"rejected\"} 1",
            "rate_limit_decision_seconds_count{door=\"grpc\",outcome=\"allowed\"} 1",
            "rate_limit_decision_seconds_count{door=\"resp\",outcome=\"allowed\"} 1",
            "rate_limit_decision_seconds_count{door=\"resp\",outcome=\"rejected\"} 1",
        ])
        .await;
    // The server counts this one when the connection ends, after the answer.
    let protocol = "rate_limit_bad_requests_total{door=\"http\",reason=\"protocol\"} 1";
    server.comes_to_show(protocol).await;
    let within =
        "rate_limit_decision_seconds_bucket{door=\"http\",outcome=\"rejected\",le=\"0.003\"}";
    assert!(server.page().await.contains(within));
}

#[tokio::test(flavor = "multi_thread")]
async fn open_holds_and_waiting_clients_are_shown() {
    let rules = "rules:\n\
        - { id: slots, match: { action: job }, algorithm: concurrency, limit: 1, lease: 1h }\n\
        - { id: tokens, match: { action: llm }, algorithm: quota, limit: 100, period: month }\n";
    let server = Arc::new(Server::start(&format!("namespace: n\n{rules}")).await);
    let none = "rate_limit_open_holds{namespace=\"n\",kind=\"lease\"} 0";
    server.shows(&[none]).await;
    for _ in 0..2 {
        let reserved = server.post("/v1/reservations", &action("llm")).await;
        assert_eq!(reserved, 201);
    }
    assert_eq!(server.post("/v1/leases", &action("job")).await, 201);
    let holds = [
        "rate_limit_open_holds{namespace=\"n\",kind=\"reservation\"} 2",
        "rate_limit_open_holds{namespace=\"n\",kind=\"lease\"} 1",
        "rate_limit_lease_waiters{door=\"http\"} 0",
    ];
    server.shows(&holds).await;
    let waiting = Arc::clone(&server);
    let body = r#"{"attributes":{"action":"job"},"wait":"30s"}"#;
    let waiting = tokio::spawn(async move { waiting.post("/v1/leases", body).await });
    server
        .comes_to_show("rate_limit_lease_waiters{door=\"http\"} 1")
        .await;
    // The client that waits goes away.
    waiting.abort();
    server
        .comes_to_show("rate_limit_lease_waiters{door=\"http\"} 0")
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_and_the_process_are_shown() {
    let server = Server::start("rules: []").await;
    let mut idle = TcpStream::connect(server.resp).await.unwrap();
    idle.write_all(b"PING\r\n").await.unwrap();
    let mut pong = [0; 7];
    idle.read_exact(&mut pong).await.unwrap();
    server
        .shows(&[
            "tollgate_connections{door=\"resp\"} 1",
            "tollgate_connections{door=\"grpc\"} 0",
            "tollgate_max_connections 10000",
            "tollgate_cut_connections_total{door=\"resp\"} 0",
        ])
        .await;
    drop(idle);
    server
        .comes_to_show("tollgate_connections{door=\"resp\"} 0")
        .await;
    let page = server.page().await;
    let number = |name: &str| {
        let line = page.lines().find_map(|it| it.strip_prefix(name));
        line.and_then(|it| it.trim().parse::<f64>().ok())
    };
    assert!(
        number("process_resident_memory_bytes ") > Some(1e6),
        "{page}"
    );
    assert!(number("process_open_fds ") > Some(3.0), "{page}");
    assert!(
        number("process_start_time_seconds ") > Some(1.7e9),
        "{page}"
    );
    assert!(number("process_cpu_seconds_total ") >= Some(0.0), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn decisions_and_holds_of_redis_are_shown() {
    let redis = Redis::start();
    let url = redis.url();
    let more = format!(
        "namespace: n\nstore: {{ redis: {{ url: \"{url}\" }} }}\nrules:\n\
         - {{ id: tokens, match: {{ action: llm }}, algorithm: quota, limit: 100, period: month }}\n\
         - {{ id: one, match: {{ action: login }}, algorithm: fixed-window, limit: 1, window: 10d }}\n\
         - {{ id: open, match: {{ action: search }}, algorithm: fixed-window, limit: 9, window: 10d, on_store_failure: fail-open }}\n"
    );
    let server = Server::start(&more).await;
    for _ in 0..3 {
        let reserved = server.post("/v1/reservations", &action("llm")).await;
        assert_eq!(reserved, 201);
    }
    let holds = "rate_limit_open_holds{namespace=\"n\",kind=\"any\"} 3";
    server.comes_to_show(holds).await;
    assert_eq!(server.check(&action("login")).await, 200);
    let answers = server.resp("TG.CHECK action login\r\nTG.CHECK user ann\r\n");
    assert!(answers.await.ends_with("+OK\r\n"));
    redis.kill();
    assert_eq!(server.check(&action("search")).await, 200);
    server
        .shows(&[
            "rate_limit_decision_seconds_count{door=\"http\",outcome=\"allowed\"} 4",
            "rate_limit_decision_seconds_count{door=\"http\",outcome=\"store_failed\"} 1",
            "rate_limit_decision_seconds_count{door=\"resp\",outcome=\"allowed\"} 1",
            "rate_limit_decision_seconds_count{door=\"resp\",outcome=\"rejected\"} 1",
            "rate_limit_unmatched_total{door=\"resp\",action=\"\"} 1",
            "rate_limit_requests_total{door=\"resp\",status=\"OK\"} 3",
        ])
        .await;
}
