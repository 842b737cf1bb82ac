//! The server around the rate limit service: health, reflection, TLS, stopping, and clients that do
//! not speak gRPC.

#![allow(clippy::unwrap_used)] // Test helpers may panic.

#[path = "common/grpc.rs"]
mod common;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use common::{Client, Grpc, descriptor, request};
use tollgate_server::grpc::PROTOCOLS;
use tollgate_server::grpc::proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tollgate_server::tls::{Tls, TlsFiles};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Identity};

const RULES: &str = r"
version: 1
rules:
  - { id: key, per: [api_key], algorithm: fixed-window, limit: 10, window: 1h }
";

async fn client(yaml: &str) -> (Grpc, Client) {
    let server = Grpc::start(yaml).await;
    let client = server.client().await;
    (server, client)
}

#[tokio::test]
async fn probes_see_the_health_of_the_server() {
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_client::HealthClient;

    let mut server = Grpc::start(RULES).await;
    let mut health = HealthClient::new(server.channel().await);
    let service = |service: &str| HealthCheckRequest {
        service: service.to_owned(),
    };
    let limits = "envoy.service.ratelimit.v3.RateLimitService";
    for name in ["", limits, "tollgate.v1.Tollgate"] {
        let answer = health.check(service(name)).await.unwrap().into_inner();
        assert_eq!(answer.status().as_str_name(), "SERVING", "{name}");
    }
    let unknown = health.check(service("another")).await.unwrap_err();
    assert_eq!(unknown.code(), tonic::Code::NotFound);

    let mut watched = health.watch(service(limits)).await.unwrap().into_inner();
    let mut next = async || {
        let seen = watched.message().await.unwrap();
        seen.map(|it| it.status().as_str_name())
    };
    assert_eq!(next().await, Some("SERVING"));
    server.tell_to_stop();
    assert_eq!(next().await, Some("NOT_SERVING"));
    assert_eq!(next().await, None);
    server.stop().await;
}

#[tokio::test]
async fn draining_server_is_not_healthy_but_serves() {
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_client::HealthClient;

    let (mut server, mut before) = client(RULES).await;
    let mut health = HealthClient::new(server.channel().await);
    let mut watched = health.watch(HealthCheckRequest::default()).await.unwrap();
    let mut seen = async || watched.get_mut().message().await.unwrap().unwrap();
    assert_eq!(seen().await.status().as_str_name(), "SERVING");
    // The server goes on for longer than the test.
    server.drain(Duration::from_secs(3600));
    assert_eq!(seen().await.status().as_str_name(), "NOT_SERVING");
    let mut after = server.client().await;
    for client in [&mut before, &mut after] {
        let asked = client.ask(request([descriptor([("a", "b")])])).await;
        asked.unwrap();
    }
    let services = [
        "",
        "envoy.service.ratelimit.v3.RateLimitService",
        "tollgate.v1.Tollgate",
    ];
    for service in services.map(str::to_owned) {
        let request = HealthCheckRequest { service };
        let answer = health.check(request).await.unwrap().into_inner();
        assert_eq!(answer.status().as_str_name(), "NOT_SERVING");
    }
}

#[tokio::test]
async fn reflection_lists_the_services() {
    use tonic_reflection::pb::v1::ServerReflectionRequest;
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

    let server = Grpc::start(RULES).await;
    let mut reflection = ServerReflectionClient::new(server.channel().await);
    let mut ask = async |message: MessageRequest| {
        let request = ServerReflectionRequest {
            host: String::new(),
            message_request: Some(message),
        };
        let request = tonic::Request::new(futures_util::stream::iter([request]));
        let answers = reflection.server_reflection_info(request).await;
        let answer = answers.unwrap().into_inner().message().await.unwrap();
        answer.unwrap().message_response.unwrap()
    };
    let MessageResponse::ListServicesResponse(list) =
        ask(MessageRequest::ListServices(String::new())).await
    else {
        panic!("no list of services");
    };
    let mut names: Vec<&str> = list.service.iter().map(|it| it.name.as_str()).collect();
    names.sort_unstable();
    let expected = [
        "envoy.service.ratelimit.v3.RateLimitService",
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "tollgate.v1.Tollgate",
    ];
    assert_eq!(names, expected);

    for symbol in [
        "envoy.service.ratelimit.v3.RateLimitService.ShouldRateLimit",
        "tollgate.v1.Tollgate.CheckBatch",
    ] {
        let MessageResponse::FileDescriptorResponse(files) =
            ask(MessageRequest::FileContainingSymbol(symbol.to_owned())).await
        else {
            panic!("no file of {symbol}");
        };
        assert!(!files.file_descriptor_proto.is_empty());
    }

    for import in [
        "envoy/extensions/common/ratelimit/v3/ratelimit.proto",
        "envoy/type/v3/ratelimit_unit.proto",
        "google/protobuf/wrappers.proto",
    ] {
        let answer = ask(MessageRequest::FileByFilename(import.to_owned())).await;
        assert!(
            matches!(answer, MessageResponse::FileDescriptorResponse(_)),
            "no file {import}"
        );
    }
}

#[tokio::test]
async fn stopping_server_accepts_no_connections_and_ends() {
    let (server, mut client) = client(RULES).await;
    client
        .ask(request([descriptor([("a", "b")])]))
        .await
        .unwrap();
    let address = server.address;
    server.stop().await;
    assert!(std::net::TcpStream::connect(address).is_err());
}

struct Certificates {
    directory: tempfile::TempDir,
}

impl Certificates {
    /// Makes a CA, and certificates of a server and a client.
    fn make() -> Certificates {
        use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

        let directory = tempfile::tempdir().unwrap();
        let mut authority = CertificateParams::new([]).unwrap();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority_key = KeyPair::generate().unwrap();
        let put =
            |name: &str, text: String| std::fs::write(directory.path().join(name), text).unwrap();
        put(
            "ca.pem",
            authority.self_signed(&authority_key).unwrap().pem(),
        );
        let issuer = Issuer::new(authority, authority_key);
        for name in ["server", "client"] {
            let params = CertificateParams::new(["localhost".to_owned()]).unwrap();
            let key = KeyPair::generate().unwrap();
            put(
                &format!("{name}.pem"),
                params.signed_by(&key, &issuer).unwrap().pem(),
            );
            put(&format!("{name}.key"), key.serialize_pem());
        }
        Certificates { directory }
    }

    fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.directory.path().join(name)).unwrap()
    }

    fn tls(&self, clients: bool) -> Arc<Tls> {
        let path = |name: &str| self.directory.path().join(name);
        let files = TlsFiles {
            cert: path("server.pem"),
            key: path("server.key"),
            client_ca: clients.then(|| path("ca.pem")),
        };
        Tls::new(files, PROTOCOLS).unwrap()
    }

    fn client(&self) -> ClientTlsConfig {
        let config = ClientTlsConfig::new().domain_name("localhost");
        config.ca_certificate(Certificate::from_pem(self.read("ca.pem")))
    }
}

async fn over_tls(
    address: SocketAddr,
    tls: ClientTlsConfig,
) -> Result<String, tonic::transport::Error> {
    let endpoint = Channel::from_shared(format!("https://{address}")).unwrap();
    let channel = endpoint.tls_config(tls)?.connect().await?;
    let mut client = Client(RateLimitServiceClient::new(channel));
    Ok(client
        .words(request([descriptor([("api_key", "k")])]))
        .await)
}

#[tokio::test]
async fn tls_and_mutual_tls_work() {
    let certificates = Certificates::make();
    let server = Grpc::with(RULES, Some(certificates.tls(false))).await;
    let answer = over_tls(server.address, certificates.client())
        .await
        .unwrap();
    assert_eq!(answer, "OK: OK key 10/HOUR left 9");

    let mutual = Grpc::with(RULES, Some(certificates.tls(true))).await;
    let stranger = over_tls(mutual.address, certificates.client()).await;
    assert!(
        !matches!(&stranger, Ok(answer) if answer.starts_with("OK")),
        "{stranger:?}"
    );
    let identity = Identity::from_pem(
        certificates.read("client.pem"),
        certificates.read("client.key"),
    );
    let known = over_tls(mutual.address, certificates.client().identity(identity)).await;
    assert_eq!(known.unwrap(), "OK: OK key 10/HOUR left 9");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_without_grpc_are_rejected_and_others_are_served() {
    use std::io::{Read, Write};

    let (server, mut client) = client(RULES).await;
    let address = server.address;
    let raw = move |bytes: Vec<u8>| {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        let limit = Some(Duration::from_secs(10));
        stream.set_read_timeout(limit).unwrap();
        // The server may close before it has read everything, but after its answer.
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        answer
    };
    let hello = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let http1 = raw(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec());
    assert!(String::from_utf8_lossy(&http1).contains("speaks gRPC"));
    let mut seed = 0x9E37_79B9_7F4A_7C15_u64;
    for round in 0..200_usize {
        let mut bytes = if round % 2 == 0 {
            hello.to_vec()
        } else {
            Vec::new()
        };
        for _ in 0..round * 3 {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            bytes.push(seed.to_le_bytes()[0]);
        }
        raw(bytes);
    }
    raw(hello[..10].to_vec());
    raw(Vec::new());
    assert_eq!(
        client
            .words(request([descriptor([("api_key", "k")])]))
            .await,
        "OK: OK key 10/HOUR left 9"
    );
}

#[tokio::test]
async fn large_or_broken_messages_are_rejected() {
    use http_body_util::{BodyExt, Full};
    use tonic::body::Body;
    use tonic::codegen::Service;

    let (server, mut client) = client(RULES).await;
    let mut large = request([]);
    large.descriptors = vec![descriptor([("a", &"v".repeat(1024))]); 63];
    assert!(client.words(large.clone()).await.starts_with("OK: "));
    large
        .descriptors
        .push(descriptor([("a", &"v".repeat(1024))]));
    let words = client.words(large).await;
    assert!(
        words.starts_with("OutOfRange: ") || words.starts_with("ResourceExhausted: "),
        "{words}"
    );

    let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    let valid = [0, 0, 0, 0, 0].to_vec();
    for (path, content_type, body) in [
        (path, "application/grpc", Vec::new()),
        (path, "application/grpc", vec![0, 0, 0]),
        (path, "application/grpc", vec![0, 0, 0, 0, 9, 1]),
        (path, "application/grpc", vec![7, 0, 0, 0, 1, 1]),
        (path, "application/grpc", vec![1, 0, 0, 0, 1, 1]),
        (path, "application/grpc", vec![0, 0xff, 0xff, 0xff, 0xff, 1]),
        (
            path,
            "application/grpc",
            [vec![0, 0, 0, 0, 200], vec![0xff; 200]].concat(),
        ),
        (path, "application/grpc", valid.clone()),
        (path, "text/plain", valid.clone()),
        (
            "/envoy.service.ratelimit.v3.RateLimitService/Other",
            "application/grpc",
            valid.clone(),
        ),
        (
            "/envoy.service.ratelimit.v3.RateLimitServiceX/ShouldRateLimit",
            "application/grpc",
            valid.clone(),
        ),
        ("/", "application/grpc", valid.clone()),
    ] {
        let mut channel = server.channel().await;
        let body = Body::new(Full::from(body).map_err(|never| match never {}));
        let http = http::Request::post(format!("http://{}{path}", server.address))
            .header("content-type", content_type)
            .header("te", "trailers")
            .body(body)
            .unwrap();
        std::future::poll_fn(|context| channel.poll_ready(context))
            .await
            .unwrap();
        let response = channel.call(http).await.unwrap();
        let status = response.headers().get("grpc-status").cloned();
        let trailers = response.into_body().collect().await.unwrap();
        let status = status.or_else(|| trailers.trailers()?.get("grpc-status").cloned());
        let status = status.unwrap_or_else(|| panic!("{path} {content_type}: no status"));
        assert_ne!(status, "0", "{path} {content_type}");
    }
    assert_eq!(
        client
            .words(request([descriptor([("api_key", "k")])]))
            .await,
        "OK: OK key 10/HOUR left 9"
    );
}
