//! Upstreams that speak HTTP/2: how many connections are opened, and what becomes of them.

use std::convert::Infallible;
use std::io::Read;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tollgate_rig::wait;

use super::NONE;
use crate::common::gate::{Gate, SOON, Script};

/// An upstream over HTTP/2, or over TLS with the protocol that it offers now. It keeps requests to `/held` until the test
/// lets them go.
struct App {
    address: SocketAddr,
    state: Arc<State>,
    runtime: Option<Runtime>,
}

struct State {
    connections: AtomicUsize,
    in_flight: AtomicUsize,
    checks: AtomicUsize,
    /// Whether TLS offers HTTP/2.
    is_http2: AtomicBool,
    /// Whether requests to `/held` may go.
    go: watch::Sender<bool>,
    /// Grows when all connections are closed.
    closed: watch::Sender<usize>,
}

impl App {
    /// Starts an upstream that takes `streams` requests at a time on each connection.
    fn start(streams: u32, certificates: Option<&Path>) -> App {
        let runtime = Runtime::new().unwrap();
        let state = Arc::new(State {
            connections: AtomicUsize::new(0),
            in_flight: AtomicUsize::new(0),
            checks: AtomicUsize::new(0),
            is_http2: AtomicBool::new(true),
            go: watch::Sender::new(false),
            closed: watch::Sender::new(0),
        });
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let tls = certificates.map(|folder| {
            let of = |protocol: &[u8]| {
                let key = PrivateKeyDer::from_pem_file(folder.join("server.key")).unwrap();
                let chain = CertificateDer::pem_file_iter(folder.join("server.pem")).unwrap();
                let chain = chain.map(Result::unwrap).collect();
                let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
                let config = ServerConfig::builder_with_provider(provider);
                let config = config.with_safe_default_protocol_versions().unwrap();
                let config = config.with_no_client_auth();
                let mut config = config.with_single_cert(chain, key).unwrap();
                config.alpn_protocols = vec![protocol.to_vec()];
                TlsAcceptor::from(Arc::new(config))
            };
            (of(b"h2"), of(b"http/1.1"))
        });
        let shared = Arc::clone(&state);
        runtime.spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                shared.connections.fetch_add(1, Ordering::SeqCst);
                let (state, tls) = (Arc::clone(&shared), tls.clone());
                let is_http2 = state.is_http2.load(Ordering::SeqCst);
                let mut closed = state.closed.subscribe();
                let serving = async move {
                    let service = service_fn(move |request| answer(Arc::clone(&state), request));
                    let mut builder = http2::Builder::new(TokioExecutor::new());
                    builder.max_concurrent_streams(streams);
                    let _ = match tls {
                        None => {
                            builder
                                .serve_connection(TokioIo::new(stream), service)
                                .await
                        }
                        Some((http2, _)) if is_http2 => {
                            let Ok(stream) = http2.accept(stream).await else {
                                return;
                            };
                            builder
                                .serve_connection(TokioIo::new(stream), service)
                                .await
                        }
                        Some((_, plain)) => {
                            let Ok(stream) = plain.accept(stream).await else {
                                return;
                            };
                            let builder = http1::Builder::new();
                            builder
                                .serve_connection(TokioIo::new(stream), service)
                                .await
                        }
                    };
                };
                tokio::spawn(async move {
                    tokio::select! {
                        () = serving => {}
                        _ = closed.changed() => {}
                    }
                });
            }
        });
        App {
            address,
            state,
            runtime: Some(runtime),
        }
    }

    fn connections(&self) -> usize {
        self.state.connections.load(Ordering::SeqCst)
    }

    fn in_flight(&self) -> usize {
        self.state.in_flight.load(Ordering::SeqCst)
    }

    fn section(&self, scheme: &str, more: &str) -> String {
        let port = self.address.port();
        format!("upstreams: {{ app: {{ servers: [\"{scheme}://localhost:{port}\"]{more} }} }}\n")
    }
}

impl Drop for App {
    fn drop(&mut self) {
        self.state.go.send_replace(true);
        self.runtime.take().unwrap().shutdown_background();
    }
}

async fn answer(
    state: Arc<State>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    match head.uri.path() {
        "/healthz" => {
            state.checks.fetch_add(1, Ordering::SeqCst);
        }
        "/held" => {
            let mut go = state.go.subscribe();
            state.in_flight.fetch_add(1, Ordering::SeqCst);
            let _ = go.wait_for(|go| *go).await;
            state.in_flight.fetch_sub(1, Ordering::SeqCst);
        }
        _ => {}
    }
    let _ = body.collect().await;
    Ok(Response::new(Full::from("done")))
}

/// A server that allows two requests at a time on each connection gets as many connections as it needs.
#[test]
fn full_connection_is_followed_by_another() {
    let app = App::start(2, None);
    let gate = Gate::start(&format!(
        "{}{NONE}",
        app.section("http", ", protocol: http2")
    ));
    assert_eq!(gate.get("/").text, "done");
    std::thread::scope(|scope| {
        let held: Vec<_> = (0..6)
            .map(|_| scope.spawn(|| gate.get("/held").status))
            .collect();
        wait::until("all requests are at the server", SOON, || {
            app.in_flight() == 6
        });
        assert_eq!(app.connections(), 3);
        app.state.go.send_replace(true);
        for status in held {
            assert_eq!(status.join().unwrap(), 200);
        }
    });
    // There is room on the connections that are open.
    assert_eq!(gate.get("/").text, "done");
    assert_eq!(app.connections(), 3);
}

/// Requests that wait for a connection share its failure: they do not try one after the other.
#[test]
fn failure_to_connect_is_shared() {
    let folder = tempfile::tempdir().unwrap();
    super::write_certificates(folder.path());
    // Takes connections, but never sets up TLS.
    let mute = Script::start(|mut stream| drop(stream.read_to_end(&mut Vec::new())));
    let section = format!(
        "upstreams: {{ app: {{ servers: [\"https://localhost:{}\"], protocol: http2, retries: 0, connect_timeout: 3s, ca: \"{}\" }} }}\n",
        mute.address.port(),
        folder.path().join("ca.pem").display()
    );
    let gate = Gate::start(&format!("{section}{NONE}"));
    std::thread::scope(|scope| {
        let asked: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| gate.get("/").status))
            .collect();
        wait::until("all requests wait", SOON, || {
            gate.metric("tollgate_upstream_open_requests") == 8
        });
        for status in asked {
            assert_eq!(status.join().unwrap(), 502);
        }
    });
    assert_eq!(mute.connections(), 1);
}

/// A request does not wait for a connection beyond its own time.
#[test]
fn wait_for_a_connection_ends_with_the_time_of_the_request() {
    let folder = tempfile::tempdir().unwrap();
    super::write_certificates(folder.path());
    let mute = Script::start(|mut stream| drop(stream.read_to_end(&mut Vec::new())));
    let section = format!(
        "upstreams: {{ app: {{ servers: [\"https://localhost:{}\"], protocol: http2, connect_timeout: 10s, timeout: 100ms, ca: \"{}\" }} }}\n",
        mute.address.port(),
        folder.path().join("ca.pem").display()
    );
    let gate = Gate::start(&format!("{section}{NONE}"));
    assert_eq!(gate.get("/").status, 504);
}

/// A deployment may end HTTP/2 at the servers. Then connections over HTTP/1 are kept for the next request.
#[test]
fn connections_are_kept_after_a_server_has_left_http2() {
    let folder = tempfile::tempdir().unwrap();
    super::write_certificates(folder.path());
    let app = App::start(100, Some(folder.path()));
    let ca = folder.path().join("ca.pem");
    let more = format!(", ca: \"{}\"", ca.display());
    let gate = Gate::start(&format!("{}{NONE}", app.section("https", &more)));
    assert_eq!(gate.get("/").text, "done");
    app.state.is_http2.store(false, Ordering::SeqCst);
    app.state.closed.send_modify(|times| *times += 1);
    let more = "GET / HTTP/1.1\r\nhost: a\r\n\r\n".repeat(5);
    let last = "GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
    let answers = gate.raw(format!("{more}{last}").as_bytes());
    assert_eq!(answers.matches("200 OK").count(), 6, "{answers}");
    assert_eq!(app.connections(), 2);
}

/// Health checks go on while requests use all connections.
#[test]
fn health_checks_need_no_room() {
    for protocol in ["http1", "http2"] {
        let folder = tempfile::tempdir().unwrap();
        super::write_certificates(folder.path());
        let app = App::start(100, Some(folder.path()));
        app.state
            .is_http2
            .store(protocol == "http2", Ordering::SeqCst);
        let more = format!(
            ", protocol: {protocol}, max_connections: 1, health: {{ path: /healthz, every: 100ms }}, ca: \"{}\"",
            folder.path().join("ca.pem").display()
        );
        let gate = Gate::start(&format!("{}{NONE}", app.section("https", &more)));
        let held = std::thread::scope(|scope| {
            let held = scope.spawn(|| gate.get("/held").status);
            wait::until("the request is at the server", SOON, || {
                app.in_flight() == 1
            });
            let before = app.state.checks.load(Ordering::SeqCst);
            wait::until("checks go on", SOON, || {
                app.state.checks.load(Ordering::SeqCst) >= before + 5
            });
            let port = app.address.port();
            let up = format!(
                "tollgate_upstream_up{{upstream=\"app\",server=\"https://localhost:{port}\"}} "
            );
            assert_eq!(gate.metric(&up), 1);
            app.state.go.send_replace(true);
            held.join().unwrap()
        });
        assert_eq!(held, 200);
    }
}

/// A body that the client does not send well is the fault of the client, also over HTTP/2.
#[test]
fn bad_body_over_http2_takes_no_server_out() {
    let app = App::start(100, None);
    let door = "gateway: { address: \"127.0.0.1:0\", max_body: 1KB }";
    let section = app.section("http", ", protocol: http2");
    let gate = Gate::start_with(door, &format!("{section}{NONE}"));
    let chunk = format!("3e8\r\n{}\r\n", "x".repeat(1000));
    for _ in 0..4 {
        let raw = format!(
            "POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n{chunk}{chunk}0\r\n\r\n"
        );
        let answer = gate.raw(raw.as_bytes());
        assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    }
    let port = app.address.port();
    let up =
        format!("tollgate_upstream_up{{upstream=\"app\",server=\"http://localhost:{port}\"}} ");
    assert_eq!(gate.metric(&up), 1);
}
