//! Tokens of the data doors: each request needs the scope of its path, method or command.

#![allow(clippy::unwrap_used)] // Test helpers may panic.

mod common;
#[path = "common/own.rs"]
mod own;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use common::{Answer, get, post};
use own::{TollgateClient, attributes, pb};
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tollgate::{Config, Engine};
use tollgate_server::grpc::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tollgate_server::grpc::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use tollgate_server::grpc::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use tollgate_server::grpc::proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tollgate_server::{ControlPlane, Doors};
use tonic::transport::Channel;
use tonic::{Code, Request};

const RULES: &str = "
subjects: { trusted_proxies: [127.0.0.0/8] }
rules:
  - { id: api, match: { action: search }, per: [user], algorithm: fixed-window, limit: 1000, window: 1d }
  - { id: edge, match: { domain: edge }, algorithm: fixed-window, limit: 1000, window: 1d }
  - { id: slots, match: { action: job }, algorithm: concurrency, limit: 10, lease: 1m }
";

/// The tokens: their names are their scopes.
const SCOPES: [&str; 5] = ["check", "reserve", "refund", "usage", "metrics"];

const ANN: &str = r#"{"attributes":{"action":"search","user":"ann"}}"#;

/// Makes a config with the three data doors and these tokens (name, scopes, token).
fn config(tokens: &[(&str, &[&str], &str)], more: &str) -> Config {
    let tokens = tokens.iter().map(|(name, scopes, token)| {
        let digest = Sha256::digest(token);
        let hash: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        json!({ "name": name, "scopes": scopes, "sha256": hash })
    });
    let tokens: Vec<_> = tokens.collect();
    let tokens = match tokens.is_empty() {
        true => String::new(),
        false => format!("  tokens: {}\n", json!(tokens)),
    };
    let any = "\"127.0.0.1:0\"";
    let yaml = format!(
        "version: 1\nserver:\n  http: {any}\n  grpc: {any}\n  resp: {{ address: {any}{more} }}\n{tokens}{RULES}"
    );
    tollgate_config::parse("rules.yaml", &yaml, &|_| None).unwrap()
}

/// Makes a config with one token for each scope; the token is the scope twice.
fn one_for_each_scope() -> Config {
    let tokens = SCOPES.map(|scope| (scope, vec![scope], scope.repeat(2)));
    let tokens: Vec<_> = tokens
        .iter()
        .map(|(name, scopes, token)| (*name, scopes.as_slice(), token.as_str()))
        .collect();
    config(&tokens, "")
}

struct Server {
    http: SocketAddr,
    grpc: SocketAddr,
    resp: SocketAddr,
    engine: Arc<Engine>,
    runtime: Option<Runtime>,
    _stop: oneshot::Sender<()>,
}

impl Server {
    fn start(config: &Config) -> Server {
        let runtime = Runtime::new().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let (engine, addresses) = runtime.block_on(async {
            let engine = Arc::new(Engine::start(config).await.unwrap());
            let doors = Doors::open(config).await.unwrap();
            let addresses = doors.addresses().unwrap();
            let control = Arc::new(ControlPlane::of(Arc::clone(&engine)));
            tokio::spawn(doors.serve(control, async {
                drop(stopped.await);
                Duration::ZERO
            }));
            (engine, addresses)
        });
        let [http, grpc, resp] = [0, 1, 2].map(|door: usize| addresses[door].address);
        Server {
            http,
            grpc,
            resp,
            engine,
            runtime: Some(runtime),
            _stop: stop,
        }
    }

    /// Sends a request to the HTTP door: `GET` without a body, `POST` with one.
    fn ask(&self, path: &str, body: &str, headers: &[(&str, &str)]) -> Answer {
        let url = format!("http://{}{path}", self.http);
        match body {
            "" => get(&url, headers),
            body => post(&url, body, headers),
        }
    }

    /// Sends a request with a token.
    fn ask_with(&self, path: &str, body: &str, token: &str) -> Answer {
        let authorization = format!("Bearer {token}");
        self.ask(path, body, &[("authorization", &authorization)])
    }

    fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.as_ref().unwrap().block_on(future)
    }

    fn channel(&self) -> Channel {
        let endpoint = Channel::from_shared(format!("http://{}", self.grpc)).unwrap();
        self.block_on(endpoint.connect()).unwrap()
    }

    fn connect(&self) -> Client {
        Client(TcpStream::connect(self.resp).unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }
}

/// A Redis client that sends inline commands, and reads one line of each answer.
struct Client(TcpStream);

impl Client {
    fn run(&mut self, command: &str) -> String {
        self.0.write_all(command.as_bytes()).unwrap();
        self.0.write_all(b"\r\n").unwrap();
        let mut read = Vec::new();
        // The answers that the tests look at fit into one packet.
        let mut buffer = [0; 4096];
        while !read.ends_with(b"\r\n") {
            let count = self.0.read(&mut buffer).unwrap();
            assert_ne!(count, 0, "the server closed the connection after {command}");
            read.extend_from_slice(&buffer[..count]);
        }
        let text = String::from_utf8(read).unwrap();
        text.lines().next().unwrap().to_owned()
    }
}

#[test]
fn each_path_needs_the_scope() {
    let server = Server::start(&one_for_each_scope());
    let id = "00000000000000000000000000000000";
    let commit = format!("/v1/reservations/{id}/commit");
    let renew = format!("/v1/leases/{id}/renew");
    let paths = [
        ("/v1/check", ANN, "check"),
        ("/v1/check/batch", r#"{"requests":[]}"#, "check"),
        ("/v1/peek", ANN, "check"),
        ("/v1/refund", ANN, "refund"),
        (
            "/v1/report",
            r#"{"attributes":{"user":"ann"},"latency":"5ms"}"#,
            "reserve",
        ),
        ("/v1/reservations", ANN, "reserve"),
        (&format!("/v1/reservations/{id}"), "", "reserve"),
        (&commit, r#"{"actual":1}"#, "reserve"),
        (&commit.replace("commit", "release"), "{}", "reserve"),
        (&commit.replace("commit", "extend"), "{}", "reserve"),
        ("/v1/leases", ANN, "reserve"),
        ("/v1/leases/holders", ANN, "reserve"),
        (&renew, "{}", "reserve"),
        ("/v1/usage/acme", "", "usage"),
        ("/metrics", "", "metrics"),
    ];
    let description = server.ask("/openapi.json", "", &[]).json();
    for (path, body, needed) in paths {
        let method = if body.is_empty() { "get" } else { "post" };
        let described = path.replace(id, "{id}").replace("acme", "{tenant}");
        let responses = &description["paths"][described][method]["responses"];
        assert!(
            responses["401"].is_object() && responses["403"].is_object(),
            "{path}"
        );
        let unknown = server.ask(path, body, &[]);
        assert_eq!(unknown.status, 401, "{path}: {}", unknown.text);
        assert_eq!(unknown.json()["code"], "NO_TOKEN", "{path}");
        assert_eq!(unknown.header("www-authenticate"), "Bearer", "{path}");
        for scope in SCOPES {
            let answer = server.ask_with(path, body, &scope.repeat(2));
            if scope == needed {
                assert!(
                    ![401, 403].contains(&answer.status),
                    "{path}: {}",
                    answer.text
                );
                continue;
            }
            assert_eq!(answer.status, 403, "{path} with {scope}: {}", answer.text);
            assert_eq!(answer.json()["code"], "NOT_PERMITTED");
            let message = answer.json()["message"].to_string();
            assert!(message.contains(&format!("`{needed}` scope")), "{message}");
            let challenge = format!("Bearer error=\"insufficient_scope\", scope=\"{needed}\"");
            assert_eq!(answer.header("www-authenticate"), challenge);
        }
    }
    // A lease is released with its token in a header, or in the body.
    let with_token: &[(&str, &str)] = &[("lease-token", "x")];
    for headers in [&[], with_token] {
        let url = format!("http://{}/v1/leases/{id}", server.http);
        let mut request = ureq::delete(&url)
            .config()
            .http_status_as_error(false)
            .build();
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        assert_eq!(request.call().unwrap().status().as_u16(), 401);
    }
    for path in ["/healthz", "/readyz", "/openapi.json"] {
        assert_eq!(server.ask(path, "", &[]).status, 200, "{path}");
    }
    // The scheme and the token are compared as a whole.
    for wrong in ["Bearer", "Basic checkcheck", "Bearer check", "checkcheck"] {
        let answer = server.ask("/v1/check", ANN, &[("authorization", wrong)]);
        assert_eq!(answer.status, 401, "{wrong}");
    }
}

#[test]
fn proxy_shows_its_token_beside_that_of_its_client() {
    let server = Server::start(&one_for_each_scope());
    let described = [("x-forwarded-method", "GET"), ("x-forwarded-uri", "/")];
    let ask = |headers: &[(&str, &str)]| server.ask("/auth", "", &[&described, headers].concat());
    let client = ("authorization", "Bearer of-the-client");
    let denied = ask(&[]);
    assert_eq!(
        (denied.status, denied.header("www-authenticate").as_str()),
        (401, "Bearer")
    );
    let message = denied.json()["message"].to_string();
    assert!(message.contains("Tollgate-Token"), "{message}");
    assert_eq!(ask(&[client]).status, 401);
    assert_eq!(ask(&[client, ("tollgate-token", "checkcheck")]).status, 200);
    assert_eq!(ask(&[client, ("tollgate-token", "nonsense")]).status, 401);
    assert_eq!(ask(&[client, ("tollgate-token", "usageusage")]).status, 403);
    assert_eq!(ask(&[("authorization", "Bearer checkcheck")]).status, 200);
}

/// Makes a request with a token, if there is one.
fn with<M>(message: M, token: &str) -> Request<M> {
    let mut request = Request::new(message);
    if !token.is_empty() {
        let value = format!("Bearer {token}").parse().unwrap();
        request.metadata_mut().insert("authorization", value);
    }
    request
}

#[test]
fn each_grpc_method_needs_the_scope() {
    let server = Server::start(&one_for_each_scope());
    let channel = server.channel();
    macro_rules! codes {
        ($method:ident, $message:expr) => {
            ["", "nonsense", "checkcheck", "refundrefund"].map(|token| {
                let mut client = TollgateClient::new(channel.clone());
                let answer = server.block_on(client.$method(with($message, token)));
                answer.map_or_else(
                    |status| (status.code(), status.message().to_owned()),
                    |_| (Code::Ok, String::new()),
                )
            })
        };
    }
    let check = || pb::CheckRequest {
        attributes: attributes([("action", "search"), ("user", "ann")]),
        ..pb::CheckRequest::default()
    };
    let [none, wrong, right, other] = codes!(check, check());
    assert_eq!([none.0, wrong.0], [Code::Unauthenticated; 2]);
    assert_eq!((right.0, other.0), (Code::Ok, Code::PermissionDenied));
    assert_eq!(other.1, "this token lacks the `check` scope");
    let refund = || pb::RefundRequest {
        attributes: attributes([("action", "search"), ("user", "ann")]),
        ..pb::RefundRequest::default()
    };
    let [none, _, other, right] = codes!(refund, refund());
    assert_eq!((none.0, right.0), (Code::Unauthenticated, Code::Ok));
    assert_eq!(other.1, "this token lacks the `refund` scope");
    let [_, _, other, _] = codes!(get_usage, pb::GetUsageRequest::default());
    assert_eq!(other.1, "this token lacks the `usage` scope");
    let [none, _, other, _] = codes!(list_holders, pb::ListHoldersRequest::default());
    assert_eq!(none.0, Code::Unauthenticated);
    assert_eq!(other.1, "this token lacks the `reserve` scope");

    // Envoy's service.
    let limit = |negative: bool, token: &str| {
        let entry = Entry {
            key: "route".to_owned(),
            value: "all".to_owned(),
        };
        let request = RateLimitRequest {
            domain: "edge".to_owned(),
            descriptors: vec![RateLimitDescriptor {
                entries: vec![entry],
                hits_addend: Some(1),
                is_negative_hits: negative,
                ..RateLimitDescriptor::default()
            }],
            hits_addend: 0,
        };
        let mut client = RateLimitServiceClient::new(channel.clone());
        let answer = server.block_on(client.should_rate_limit(with(request, token)));
        answer.map_or_else(|status| status.code(), |_| Code::Ok)
    };
    assert_eq!(limit(false, ""), Code::Unauthenticated);
    assert_eq!(limit(false, "usageusage"), Code::PermissionDenied);
    assert_eq!(limit(false, "checkcheck"), Code::Ok);
    // Negative hits give back units, as a refund does.
    assert_eq!(limit(true, "checkcheck"), Code::PermissionDenied);

    let mut health = tonic_health::pb::health_client::HealthClient::new(channel.clone());
    let probe = tonic_health::pb::HealthCheckRequest::default();
    assert!(server.block_on(health.check(probe)).is_ok());
}

#[test]
fn each_command_needs_the_scope() {
    let server = Server::start(&one_for_each_scope());
    let mut client = server.connect();
    for command in [
        "PING",
        "TG.CHECK action search user ann",
        "INFO",
        "NONSENSE",
    ] {
        assert!(client.run(command).starts_with("-NOAUTH "), "{command}");
    }
    assert!(client.run("HELLO 3").starts_with("-NOAUTH "));
    assert!(client.run("AUTH nonsense").starts_with("-WRONGPASS "));
    assert!(
        client
            .run("AUTH refund checkcheck")
            .starts_with("-WRONGPASS ")
    );
    assert_eq!(client.run("AUTH checkcheck"), "+OK");
    assert_eq!(client.run("PING"), "+PONG");
    assert!(
        client
            .run("TG.CHECK action search user ann")
            .starts_with('*')
    );
    assert!(
        client
            .run("TG.PEEK action search user ann")
            .starts_with('*')
    );
    assert!(client.run("CL.THROTTLE key 15 30 60").starts_with('*'));
    let needs = |scope: &str| format!("-NOPERM this token lacks the `{scope}` scope");
    assert_eq!(
        client.run("TG.REFUND action search user ann"),
        needs("refund")
    );
    assert_eq!(
        client.run("TG.RESERVE action search user ann"),
        needs("reserve")
    );
    assert_eq!(client.run("TG.ACQUIRE action job"), needs("reserve"));
    assert_eq!(client.run("TG.USAGE acme"), needs("usage"));
    // A user with the name of the token, and the end of a login.
    assert_eq!(client.run("AUTH refund refundrefund"), "+OK");
    assert!(
        client
            .run("TG.REFUND action search user ann")
            .starts_with('*')
    );
    assert_eq!(
        client.run("TG.CHECK action search user ann"),
        needs("check")
    );
    assert_eq!(client.run("RESET"), "+RESET");
    assert!(client.run("PING").starts_with("-NOAUTH "));
    let mut client = server.connect();
    assert!(client.run("HELLO 3 AUTH check checkcheck").starts_with('%'));
    assert!(
        client
            .run("TG.CHECK action search user ann")
            .starts_with('%')
    );
}

#[test]
fn password_of_the_resp_door_allows_everything() {
    let tokens = [("shop", &["check"][..], "a token of the shop")];
    let server = Server::start(&config(&tokens, ", password: hunter2"));
    let mut client = server.connect();
    assert!(client.run("PING").starts_with("-NOAUTH "));
    assert_eq!(client.run("AUTH hunter2"), "+OK");
    assert!(
        client
            .run("TG.REFUND action search user ann")
            .starts_with('*')
    );
    assert!(client.run("AUTH shop hunter2").starts_with("-WRONGPASS "));
    assert_eq!(client.run("AUTH shop \"a token of the shop\""), "+OK");
    assert!(
        client
            .run("TG.REFUND action search user ann")
            .starts_with("-NOPERM ")
    );
}

#[test]
fn tokens_follow_the_config_without_a_restart() {
    let open = config(&[], "");
    let server = Server::start(&open);
    let mut client = server.connect();
    let mut grpc = TollgateClient::new(server.channel());
    let mut statuses = |token: &str| {
        let mut check = Request::new(pb::CheckRequest::default());
        let value = format!("Bearer {token}").parse().unwrap();
        check.metadata_mut().insert("authorization", value);
        let grpc = server.block_on(grpc.check(check));
        let grpc = grpc.map_or_else(|status| status.code(), |_| Code::Ok);
        (server.ask_with("/v1/check", ANN, token).status, grpc)
    };
    assert_eq!(statuses("any"), (200, Code::Ok));
    assert_eq!(client.run("PING"), "+PONG");

    let reload = |config: &Config| {
        assert_eq!(server.engine.reload(config).needs_restart, [""; 0]);
    };
    reload(&config(&[("a", &["check"], "first")], ""));
    assert_eq!(statuses("any"), (401, Code::Unauthenticated));
    assert_eq!(statuses("first"), (200, Code::Ok));
    // A connection from before the change needs to log in now.
    assert!(client.run("PING").starts_with("-NOAUTH "));
    assert_eq!(client.run("AUTH first"), "+OK");

    reload(&config(
        &[("a", &["usage"], "first"), ("b", &["check"], "second")],
        "",
    ));
    assert_eq!(statuses("first"), (403, Code::PermissionDenied));
    assert_eq!(statuses("second"), (200, Code::Ok));
    assert!(client.run("TG.PEEK action search").starts_with("-NOPERM "));
    reload(&config(&[("b", &["check"], "second")], ""));
    assert!(
        client.run("PING").starts_with("-NOAUTH "),
        "the token is gone"
    );

    // A door may be exempt.
    reload(&config(&[("b", &["check"], "second")], ", tokens: off"));
    assert_eq!(client.run("PING"), "+PONG");
    assert_eq!(statuses("first"), (401, Code::Unauthenticated));

    reload(&open);
    assert_eq!(statuses("any"), (200, Code::Ok));
    assert_eq!(client.run("PING"), "+PONG");
}

#[test]
fn wrong_tokens_are_counted_by_door_and_do_not_lock_out_the_right_one() {
    let tokens = [("ops", &["check", "metrics"][..], "right")];
    let server = Server::start(&config(&tokens, ""));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..12 {
                assert_eq!(server.ask_with("/v1/check", ANN, "guess").status, 401);
            }
        });
        for _ in 0..12 {
            assert_eq!(server.ask_with("/v1/check", ANN, "right").status, 200);
        }
    });
    // A request without a token is not an attempt.
    assert_eq!(server.ask("/v1/check", ANN, &[]).status, 401);
    let mut client = server.connect();
    assert!(client.run("AUTH guess").starts_with("-WRONGPASS "));
    let mut grpc = TollgateClient::new(server.channel());
    let mut check = Request::new(pb::CheckRequest::default());
    let value = "Bearer guess".parse().unwrap();
    check.metadata_mut().insert("authorization", value);
    server.block_on(grpc.check(check)).unwrap_err();
    let page = server.ask_with("/metrics", "", "right").text;
    for (door, count) in [("http", 12), ("grpc", 1), ("resp", 1)] {
        let line = format!("\ntollgate_wrong_tokens_total{{door=\"{door}\"}} {count}\n");
        assert!(page.contains(&line), "{line} in\n{page}");
    }
}

#[test]
fn client_with_many_wrong_passwords_is_cut_off() {
    let server = Server::start(&one_for_each_scope());
    let mut client = server.connect();
    for _ in 0..8 {
        assert!(client.run("AUTH nonsense").starts_with("-WRONGPASS "));
    }
    let mut rest = Vec::new();
    assert_eq!(client.0.read_to_end(&mut rest).unwrap(), 0);
}
