//! HTTP/1 and HTTP/2, in plain text and encrypted: the same answers, and bounds on both.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::fs;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use common::Running;
use h2::client::SendRequest;
use http::{Request, StatusCode};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tollgate_config::TlsFiles;
use tollgate_server::http::bounds;

const RULES: &str =
    "version: 1\nrules: [{ id: all, per: [user], algorithm: fixed-window, limit: 2, window: 1d }]";

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Runtime::new().unwrap().block_on(future)
}

/// Speaks HTTP/2 on a stream, without an upgrade.
async fn http2(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> SendRequest<Bytes> {
    let (client, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    client.ready().await.unwrap()
}

async fn plain_http2(address: SocketAddr) -> SendRequest<Bytes> {
    http2(TcpStream::connect(address).await.unwrap()).await
}

fn request(path: &str) -> http::request::Builder {
    Request::post(format!("http://tollgate{path}"))
}

/// Checks `user`, and returns the status and the body of the answer.
async fn check(client: &mut SendRequest<Bytes>, user: &str) -> (StatusCode, String) {
    let body = format!(r#"{{"attributes":{{"user":"{user}"}}}}"#);
    let (answer, mut sending) = client
        .send_request(request("/v1/check").body(()).unwrap(), false)
        .unwrap();
    sending.send_data(body.into(), true).unwrap();
    let answer = answer.await.unwrap();
    let status = answer.status();
    let mut body = answer.into_body();
    let mut text = Vec::new();
    while let Some(data) = body.data().await {
        let data = data.unwrap();
        body.flow_control().release_capacity(data.len()).unwrap();
        text.extend_from_slice(&data);
    }
    (status, String::from_utf8(text).unwrap())
}

#[test]
fn both_protocols_share_a_port_and_their_counts() {
    let server = Running::start(RULES);
    block_on(async {
        let mut client = plain_http2(server.address).await;
        let (status, body) = check(&mut client, "ann").await;
        assert_eq!(status, 200);
        assert!(body.contains(r#""remaining":1"#), "{body}");
    });
    let body = r#"{"attributes":{"user":"ann"}}"#;
    assert_eq!(server.post("/v1/check", body).status, 200);
    assert_eq!(server.post("/v1/check", body).status, 429);
    block_on(async {
        let mut client = plain_http2(server.address).await;
        assert_eq!(check(&mut client, "ann").await.0, 429);
        // Many requests at a time on one connection.
        let asking = (0..50).map(|i| {
            let mut client = client.clone();
            async move { check(&mut client, &format!("user-{i}")).await.0 }
        });
        for status in futures_util::future::join_all(asking).await {
            assert_eq!(status, 200);
        }
    });
}

#[test]
fn request_that_arrives_byte_by_byte_is_understood() {
    let server = Running::start(RULES);
    let mut stream = server.connect();
    stream.set_nodelay(true).unwrap();
    // The first two letters could be either protocol.
    for byte in b"PUT /healthz HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n" {
        stream.write_all(&[*byte]).unwrap();
    }
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
}

#[test]
fn too_many_headers_are_431_on_http2() {
    let server = Running::start(RULES);
    block_on(async {
        let mut client = plain_http2(server.address).await;
        let mut many = request("/healthz").method("GET");
        for i in 0..=bounds::MAX_HEADERS {
            many = many.header(format!("x-{i}"), "y");
        }
        let (answer, _) = client.send_request(many.body(()).unwrap(), true).unwrap();
        assert_eq!(answer.await.unwrap().status(), 431);
        // Heads beyond the bound do not become requests.
        let long = "y".repeat(2 * bounds::MAX_HEADER_BYTES);
        let long = request("/healthz").header("x", long).body(()).unwrap();
        let (answer, _) = client.send_request(long, true).unwrap();
        match answer.await {
            Ok(answer) => assert_eq!(answer.status(), 431),
            Err(error) => assert!(error.is_reset() || error.is_go_away(), "{error}"),
        }
        let mut client = plain_http2(server.address).await;
        assert_eq!(check(&mut client, "ann").await.0, 200);
    });
}

#[test]
fn bodies_beyond_the_bound_are_413_on_http2() {
    let server = Running::start(RULES);
    block_on(async {
        let mut client = plain_http2(server.address).await;
        let head = request("/v1/check").body(()).unwrap();
        let (answer, mut sending) = client.send_request(head, false).unwrap();
        let body = Bytes::from(vec![b' '; bounds::MAX_BODY + 1]);
        sending.send_data(body, true).unwrap();
        assert_eq!(answer.await.unwrap().status(), 413);
    });
}

#[test]
fn client_learns_how_many_requests_may_be_open() {
    let server = Running::start(RULES);
    block_on(async {
        let client = plain_http2(server.address).await;
        // The settings arrive with the first frames.
        let mut client = client;
        check(&mut client, "ann").await;
        let most = client.current_max_send_streams();
        assert_eq!(most, usize::try_from(bounds::MAX_STREAMS).unwrap());
    });
}

#[test]
fn stop_lets_an_open_stream_finish_and_closes_idle_connections() {
    let mut server = Running::start(RULES);
    let address = server.address;
    block_on(async {
        let mut client = plain_http2(address).await;
        let mut idle = TcpStream::connect(address).await.unwrap();
        let body = r#"{"attributes":{"user":"ann"}}"#;
        let head = request("/v1/check").body(()).unwrap();
        let (answer, mut sending) = client.send_request(head, false).unwrap();
        // A second request makes sure that the first has arrived.
        check(&mut client, "bob").await;
        server.stop();
        while TcpStream::connect(address).await.is_ok() {
            tokio::task::yield_now().await;
        }
        sending.send_data(body.into(), true).unwrap();
        assert_eq!(answer.await.unwrap().status(), 200);
        let mut nothing = Vec::new();
        let closed = tokio::time::timeout(Duration::from_secs(10), idle.read_to_end(&mut nothing));
        assert!(
            closed.await.is_ok(),
            "a connection without a request is closed at once"
        );
    });
    server.join();
}

/// A CA, and certificates that it signed.
struct Authority {
    folder: TempDir,
}

impl Authority {
    fn new() -> Authority {
        let folder = TempDir::new().unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        fs::write(
            folder.path().join("ca.pem"),
            params.self_signed(&key).unwrap().pem(),
        )
        .unwrap();
        let issuer = Issuer::new(params, key);
        for name in ["server", "client"] {
            let key = KeyPair::generate().unwrap();
            let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
            let cert = params.signed_by(&key, &issuer).unwrap().pem();
            fs::write(folder.path().join(format!("{name}.pem")), cert).unwrap();
            fs::write(
                folder.path().join(format!("{name}.key")),
                key.serialize_pem(),
            )
            .unwrap();
        }
        Authority { folder }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn files(&self, mutual: bool) -> TlsFiles {
        TlsFiles {
            cert: self.path().join("server.pem"),
            key: self.path().join("server.key"),
            client_ca: mutual.then(|| self.path().join("ca.pem")),
        }
    }

    /// Makes a client that speaks `protocol`, with or without a certificate.
    fn client(&self, protocol: &str, certificate: bool) -> TlsConnector {
        let mut roots = RootCertStore::empty();
        let ca = CertificateDer::from_pem_file(self.path().join("ca.pem")).unwrap();
        roots.add(ca).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let mut config = if certificate {
            let cert = CertificateDer::from_pem_file(self.path().join("client.pem")).unwrap();
            let key = PrivateKeyDer::from_pem_file(self.path().join("client.key")).unwrap();
            builder.with_client_auth_cert(vec![cert], key).unwrap()
        } else {
            builder.with_no_client_auth()
        };
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        TlsConnector::from(Arc::new(config))
    }
}

async fn connect(
    server: &Running,
    client: &TlsConnector,
) -> tokio_rustls::client::TlsStream<TcpStream> {
    let stream = TcpStream::connect(server.address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    client.connect(name, stream).await.unwrap()
}

#[test]
fn encrypted_connections_use_the_agreed_protocol() {
    let authority = Authority::new();
    let server = Running::start_with(RULES, Some(authority.files(false)));
    block_on(async {
        let stream = connect(&server, &authority.client("h2", false)).await;
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        let mut client = http2(stream).await;
        assert_eq!(check(&mut client, "ann").await.0, 200);

        let mut stream = connect(&server, &authority.client("http/1.1", false)).await;
        let ask = b"GET /healthz HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n";
        stream.write_all(ask).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    });
    // A plain-text client gets no answer, and does not disturb others.
    let plain = server.raw(b"GET /healthz HTTP/1.1\r\nhost: t\r\n\r\n");
    assert!(!plain.contains("200 OK"), "{plain}");
}

#[test]
fn mutual_tls_rejects_clients_without_a_certificate() {
    let authority = Authority::new();
    let server = Running::start_with(RULES, Some(authority.files(true)));
    block_on(async {
        let stream = connect(&server, &authority.client("h2", true)).await;
        let mut client = http2(stream).await;
        assert_eq!(check(&mut client, "ann").await.0, 200);

        // With TLS 1.3 the client learns of it when it reads.
        let mut stream = connect(&server, &authority.client("http/1.1", false)).await;
        let ask = b"GET /healthz HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n";
        let _ = stream.write_all(ask).await;
        let mut answer = Vec::new();
        assert!(stream.read_to_end(&mut answer).await.is_err());
        assert!(answer.is_empty());
    });
}
