//! TLS to a door: the certificates to trust and to present, and what went wrong.

use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustls::client::ResolvesClientCert;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, RootCertStore, SignatureScheme, StreamOwned,
};
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, Either, LazyBuffers, NextTimeout, Transport,
    TransportAdapter,
};

use crate::connect::ConnectArgs;

/// The TLS settings of a door.
#[derive(Clone)]
pub(crate) struct Tls {
    config: Arc<ClientConfig>,
    /// The name in the server's certificate, unless it is the host of the address.
    name: Option<ServerName<'static>>,
    client: Arc<ClientCertificate>,
}

/// The certificate that this client presents.
#[derive(Debug)]
struct ClientCertificate {
    key: Option<Arc<CertifiedKey>>,
    /// Whether the door has asked for a certificate.
    was_asked_for: AtomicBool,
}

impl ResolvesClientCert for ClientCertificate {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.was_asked_for.store(true, Ordering::Relaxed);
        self.key.clone()
    }

    fn has_certs(&self) -> bool {
        self.key.is_some()
    }
}

impl Tls {
    /// Reads the files of `args`. Errors are ready to print.
    pub(crate) fn new(args: &ConnectArgs) -> Result<Tls, String> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let roots = match &args.ca {
            Some(path) => authorities(path)?,
            None => system_authorities()?,
        };
        let key = match (&args.cert, &args.key) {
            (Some(cert), Some(key)) => Some(Arc::new(client_key(cert, key, &provider)?)),
            _ => None,
        };
        let client = Arc::new(ClientCertificate {
            key,
            was_asked_for: AtomicBool::new(false),
        });
        let name = args.server_name.as_ref().map(|name| {
            ServerName::try_from(name.clone())
                .map_err(|_| format!("error: --server-name: `{name}` is not a host name\nhelp: write a name in the server's certificate"))
        });
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(crate::failed)?
            .with_root_certificates(roots)
            .with_client_cert_resolver(Arc::clone(&client) as Arc<dyn ResolvesClientCert>);
        Ok(Tls {
            config: Arc::new(config),
            name: name.transpose()?,
            client,
        })
    }

    /// Returns the cause of an error in words, if it is known, and the remedy.
    pub(crate) fn explain(
        &self,
        error: &ureq::Error,
    ) -> (Option<&'static str>, Option<&'static str>) {
        let ureq::Error::Io(error) = error else {
            return (None, None);
        };
        let tls: Option<&rustls::Error> = error.get_ref().and_then(|it| it.downcast_ref());
        // A door that rejects a client closes the connection, and its alert may be lost.
        let is_closed = matches!(
            error.kind(),
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::UnexpectedEof
        );
        let was_asked_for = self.client.was_asked_for.load(Ordering::Relaxed);
        let (what, help) = match tls {
            Some(rustls::Error::InvalidCertificate(error)) => match error {
                // The signature is bad if another authority has the same name.
                CertificateError::UnknownIssuer | CertificateError::BadSignature => (
                    "the server's certificate is not signed by a trusted authority",
                    "give the authority with --ca or TOLLGATE_CA",
                ),
                CertificateError::NotValidForName
                | CertificateError::NotValidForNameContext { .. } => (
                    "the server's certificate is for another name",
                    "use a name of the certificate in the address, or give it with --server-name",
                ),
                CertificateError::Expired | CertificateError::ExpiredContext { .. } => (
                    "the server's certificate has expired",
                    "renew it; the server reads its files again when they change",
                ),
                _ => (
                    "the server's certificate is not valid",
                    "check the certificate of the server, and --ca; a server needs a certificate with \
                     basicConstraints=CA:FALSE",
                ),
            },
            Some(rustls::Error::InvalidMessage(_)) => (
                "the door does not speak TLS",
                "write http:// in the address, or turn TLS on with server.tls in the config",
            ),
            Some(rustls::Error::AlertReceived(_)) | None
                if was_asked_for && (tls.is_some() || is_closed) =>
            {
                match self.client.key {
                    None => (
                        "the door asks for a client certificate",
                        "give it with --cert and --key, or TOLLGATE_CERT and TOLLGATE_KEY",
                    ),
                    Some(_) => (
                        "the door does not accept this client certificate",
                        "give one that is signed by the client_ca of the door, and has not expired",
                    ),
                }
            }
            Some(_) | None => return (None, None),
        };
        (Some(what), Some(help))
    }
}

fn authorities(path: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for authority in certificates("--ca", path)? {
        let added = roots.add(authority);
        added.map_err(|error| unusable("--ca", path, error))?;
    }
    Ok(roots)
}

fn system_authorities() -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    let (added, _) = roots.add_parsable_certificates(found.certs);
    match (added, found.errors.first()) {
        (0, Some(error)) => Err(format!(
            "error: failed to read the certificate authorities of the system: {error}\nhelp: give the authority of \
             the server with --ca"
        )),
        _ => Ok(roots),
    }
}

fn client_key(cert: &Path, key: &Path, provider: &CryptoProvider) -> Result<CertifiedKey, String> {
    let chain = certificates("--cert", cert)?;
    let private =
        PrivateKeyDer::from_pem_file(key).map_err(|error| unusable("--key", key, error))?;
    CertifiedKey::from_der(chain, private, provider).map_err(|error| {
        format!("error: --cert and --key cannot be used together: {error}\nhelp: give the key of the certificate")
    })
}

fn certificates(flag: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let certificates: Vec<_> = read.map_err(|error| unusable(flag, path, error))?;
    match certificates.is_empty() {
        true => Err(unusable(flag, path, "it has no certificate")),
        false => Ok(certificates),
    }
}

fn unusable(flag: &str, path: &Path, error: impl fmt::Display) -> String {
    let path = path.display();
    format!("error: {flag}: {path}: {error}\nhelp: give a PEM file")
}

/// Encrypts connections to https addresses.
pub(crate) struct TlsConnector(Option<Tls>);

impl TlsConnector {
    pub(crate) fn new(tls: Option<&Tls>) -> TlsConnector {
        TlsConnector(tls.cloned())
    }
}

impl fmt::Debug for TlsConnector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsConnector").finish_non_exhaustive()
    }
}

impl<In: Transport> Connector<In> for TlsConnector {
    type Out = Either<In, TlsTransport>;

    fn connect(
        &self,
        details: &ConnectionDetails<'_>,
        chained: Option<In>,
    ) -> Result<Option<Self::Out>, ureq::Error> {
        let Some(transport) = chained else {
            return Ok(None);
        };
        let Some(tls) = self.0.as_ref().filter(|_| details.needs_tls()) else {
            return Ok(Some(Either::A(transport)));
        };
        let name = match &tls.name {
            Some(name) => name.clone(),
            None => {
                let host = details.uri.host().unwrap_or_default();
                let bare = host.trim_start_matches('[').trim_end_matches(']');
                let name = ServerName::try_from(bare.to_owned());
                name.map_err(|_| {
                    ureq::Error::Tls("the host of the address cannot be in a certificate")
                })?
            }
        };
        let connection = ClientConnection::new(Arc::clone(&tls.config), name);
        let mut connection = connection.map_err(|error| ureq::Error::Other(Box::new(error)))?;
        let boxed: Box<dyn Transport> = Box::new(transport);
        let mut socket = TransportAdapter::new(boxed, details.current_time.clone());
        socket.set_timeout(details.timeout);
        connection.complete_io(&mut socket)?;
        let config = details.config;
        Ok(Some(Either::B(TlsTransport {
            buffers: LazyBuffers::new(config.input_buffer_size(), config.output_buffer_size()),
            stream: StreamOwned::new(connection, socket),
        })))
    }
}

/// An encrypted connection.
pub(crate) struct TlsTransport {
    buffers: LazyBuffers,
    stream: StreamOwned<ClientConnection, TransportAdapter>,
}

impl fmt::Debug for TlsTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsTransport").finish_non_exhaustive()
    }
}

impl Transport for TlsTransport {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), ureq::Error> {
        self.stream.get_mut().set_timeout(timeout);
        let output = &self.buffers.output()[..amount];
        self.stream.write_all(output)?;
        Ok(())
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, ureq::Error> {
        self.stream.get_mut().set_timeout(timeout);
        let input = self.buffers.input_append_buf();
        let amount = self.stream.read(input)?;
        self.buffers.input_appended(amount);
        Ok(amount > 0)
    }

    fn is_open(&mut self) -> bool {
        self.stream.get_mut().get_mut().is_open()
    }

    fn is_tls(&self) -> bool {
        true
    }
}
