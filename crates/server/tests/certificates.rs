//! TLS at every door: certificates that are renewed while the server runs, and clients that must
//! present a certificate. On a paused clock.

#![allow(clippy::unwrap_used)] // Test helpers may panic.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::sleep;
use tokio_rustls::TlsConnector;
use tollgate::Engine;
use tollgate_server::{ControlPlane, Doors};

/// Long enough for the files to be checked again.
const A_WHILE: Duration = Duration::from_secs(3);

/// A folder with a CA, and certificates of a server and a client that it signed.
struct Files {
    folder: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Files {
    fn new() -> Files {
        let folder = TempDir::new().unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = params.self_signed(&key).unwrap().pem();
        fs::write(folder.path().join("ca.pem"), ca).unwrap();
        let files = Files {
            folder,
            issuer: Issuer::new(params, key),
        };
        files.issue("server");
        files.issue("client");
        files
    }

    /// Replaces the certificate of this name.
    fn issue(&self, name: &str) -> CertificateDer<'static> {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.not_after = date_time_ymd(2040, 1, 1);
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        fs::write(self.path(&format!("{name}.pem")), cert.pem()).unwrap();
        fs::write(self.path(&format!("{name}.key")), key.serialize_pem()).unwrap();
        cert.der().clone()
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    fn client(&self, with_certificate: bool) -> TlsConnector {
        let read = |name: &str| CertificateDer::from_pem_file(self.path(name)).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(read("ca.pem")).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let config = match with_certificate {
            true => {
                let key = PrivateKeyDer::from_pem_file(self.path("client.key")).unwrap();
                let certificate = vec![read("client.pem")];
                builder.with_client_auth_cert(certificate, key).unwrap()
            }
            false => builder.with_no_client_auth(),
        };
        TlsConnector::from(Arc::new(config))
    }
}

/// Starts a server with all four doors, and with `more` TLS settings.
async fn start(folder: &Path, more: &str) -> (Vec<SocketAddr>, oneshot::Sender<()>) {
    let (folder, any) = (folder.display(), "127.0.0.1:0");
    let yaml = format!(
        "version: 1\nrules: []\nserver:\n  http: {any}\n  grpc: {any}\n  resp: {any}\n  admin: {any}\n  \
         tls: {{ cert: {folder}/server.pem, key: {folder}/server.key{more} }}\n"
    );
    let config = tollgate_config::parse("rules.yaml", &yaml, &|_| None).unwrap();
    let engine = Arc::new(Engine::start(&config).await.unwrap());
    let doors = Doors::open(&config).await.unwrap();
    let addresses = doors.addresses().unwrap();
    assert!(addresses.iter().all(|it| it.tls));
    let (stop, stopped) = oneshot::channel::<()>();
    tokio::spawn(doors.serve(Arc::new(ControlPlane::of(engine)), async {
        drop(stopped.await);
        Duration::ZERO
    }));
    (addresses.iter().map(|it| it.address).collect(), stop)
}

/// Connects, and returns the certificate that the server presents; `None` if the server closes the
/// connection.
async fn shown(address: SocketAddr, client: &TlsConnector) -> Option<CertificateDer<'static>> {
    let stream = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = client.connect(name, stream).await.ok()?;
    let certificate = stream.get_ref().1.peer_certificates()?.first()?.clone();
    // A server rejects clients after they have seen its certificate. A server that accepts them
    // waits, or speaks first, as HTTP/2 does.
    let mut answer = [0; 64];
    let read = stream.read(&mut answer);
    match tokio::time::timeout(Duration::from_secs(1), read).await {
        Ok(Err(_) | Ok(0)) => None,
        Ok(Ok(_)) | Err(_) => Some(certificate.into_owned()),
    }
}

/// Returns the metrics of TLS that the HTTP door shows of itself.
async fn metrics(address: SocketAddr, client: &TlsConnector) -> [String; 3] {
    let stream = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = client.connect(name, stream).await.unwrap();
    let request = "GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut page = Vec::new();
    // The server may close without the goodbye of TLS.
    let _ = stream.read_to_end(&mut page).await;
    let page = String::from_utf8_lossy(&page);
    [
        "tollgate_tls_certificate_expiry_timestamp_seconds",
        "tollgate_tls_reload_failures_total",
        "tollgate_tls_last_reload_success",
    ]
    .map(|name| {
        let line = format!("{name}{{door=\"http\"}} ");
        let value = page.lines().find_map(|it| it.strip_prefix(&line));
        value.unwrap_or_default().to_owned()
    })
}

/// The start of 2040, in seconds since the epoch.
const EXPIRY: &str = "2208988800";

#[tokio::test(start_paused = true)]
async fn new_certificate_is_used_at_every_door_without_a_restart() {
    let files = Files::new();
    let first = files.issue("server");
    let (addresses, _stop) = start(files.folder.path(), "").await;
    let client = files.client(false);
    for address in &addresses {
        assert_eq!(shown(*address, &client).await.unwrap(), first);
    }
    assert_eq!(metrics(addresses[0], &client).await, [EXPIRY, "0", "1"]);

    // A certificate that does not fit its key is not used, because the key may not have been
    // written yet.
    let key = fs::read(files.path("server.key")).unwrap();
    let second = files.issue("server");
    let its_key = fs::read(files.path("server.key")).unwrap();
    fs::write(files.path("server.key"), key).unwrap();
    sleep(A_WHILE).await;
    for address in &addresses {
        assert_eq!(shown(*address, &client).await.unwrap(), first);
    }
    // Counted once, although the files are tried every second.
    assert_eq!(metrics(addresses[0], &client).await, [EXPIRY, "1", "0"]);

    fs::write(files.path("server.key"), its_key).unwrap();
    sleep(A_WHILE).await;
    for address in &addresses {
        assert_eq!(shown(*address, &client).await.unwrap(), second);
    }
    assert_eq!(metrics(addresses[0], &client).await, [EXPIRY, "1", "1"]);
}

#[tokio::test(start_paused = true)]
async fn clients_without_a_certificate_are_rejected_at_every_door() {
    let files = Files::new();
    let ca = format!(", client_ca: {}", files.path("ca.pem").display());
    let (addresses, _stop) = start(files.folder.path(), &ca).await;
    for address in &addresses {
        assert!(shown(*address, &files.client(false)).await.is_none());
        assert!(shown(*address, &files.client(true)).await.is_some());
    }
}
