//! TLS for listeners: a certificate, a key and, for mTLS, the CA of the clients' certificates. The
//! files are read again when they change, without a restart.
//!
//! * `expiry`: when a certificate expires. `client_certificate`: the names in the certificate of a client.
//! * `der`: the encoding of certificates.

mod client_certificate;
mod der;
mod expiry;

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;
pub use tollgate_config::TlsFiles;

pub(crate) use self::client_certificate::ClientCertificate;

/// How often the files are checked for changes.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or lacks the PEM block it should have.
    #[error("{setting}: {path}: {what}")]
    File {
        /// The setting that names the file.
        setting: &'static str,
        /// The path of the file.
        path: String,
        /// The problem with the file.
        what: String,
    },
    /// The certificate and the key do not belong together.
    #[error("the certificate and the key cannot be used together: {0}")]
    Unfit(#[from] rustls::Error),
}

/// The current TLS configuration.
#[derive(Debug)]
pub struct Tls {
    files: TlsFiles,
    protocols: Vec<Vec<u8>>,
    current: ArcSwap<Current>,
    /// How often changed files could not be used.
    failures: AtomicU64,
    /// Whether the files have changed and cannot be used.
    is_stale: AtomicBool,
}

/// The files as they were last read.
#[derive(Debug)]
struct Current {
    config: Arc<ServerConfig>,
    /// When the first certificate expires, in seconds since the epoch; `None` if unknown.
    expires_at: Option<i64>,
}

impl Tls {
    /// Sets up TLS with these files, for a listener that offers `protocols` (ALPN), the preferred
    /// first.
    ///
    /// # Errors
    /// If the files cannot be read, or cannot be used together.
    pub fn new(files: TlsFiles, protocols: &[&str]) -> Result<Arc<Tls>, TlsError> {
        let protocols: Vec<Vec<u8>> = protocols.iter().map(|it| it.as_bytes().to_vec()).collect();
        let current = load(&files, &protocols)?;
        Ok(Arc::new(Tls {
            files,
            protocols,
            current: ArcSwap::from_pointee(current),
            failures: AtomicU64::new(0),
            is_stale: AtomicBool::new(false),
        }))
    }

    /// Accepts connections with the files as they were last read.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.current.load().config))
    }

    /// Returns when the first certificate of the chain expires, in seconds since the epoch; `None` if
    /// unknown.
    pub(crate) fn expires_at(&self) -> Option<i64> {
        self.current.load().expires_at
    }

    /// Returns how often changed files could not be used.
    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Returns whether the files are in use as they are.
    pub(crate) fn is_current(&self) -> bool {
        !self.is_stale.load(Ordering::Relaxed)
    }

    /// Reads the files again whenever they have changed, until dropped. Files that do not fit
    /// together change nothing: the new certificate may have been written, but not yet its key. They are
    /// tried again every second, and logged and counted once for each change.
    pub(crate) async fn watch(self: Arc<Tls>) {
        let mut seen = self.changed_at();
        let mut failed = None;
        let mut ticks = tokio::time::interval(LOOK_EVERY);
        loop {
            ticks.tick().await;
            let now = self.changed_at();
            if now == seen {
                // The old files are back.
                self.is_stale.store(false, Ordering::Relaxed);
                continue;
            }
            match load(&self.files, &self.protocols) {
                Ok(current) => {
                    self.current.store(Arc::new(current));
                    self.is_stale.store(false, Ordering::Relaxed);
                    seen = now;
                    tracing::info!(cert = %self.files.cert.display(), "the TLS certificate was reloaded");
                }
                Err(error) if failed.as_ref() != Some(&now) => {
                    self.failures.fetch_add(1, Ordering::Relaxed);
                    self.is_stale.store(true, Ordering::Relaxed);
                    failed = Some(now);
                    tracing::warn!(%error, "the TLS files have changed but cannot be used; the old certificate stays");
                }
                Err(_) => {}
            }
        }
    }

    fn changed_at(&self) -> Vec<Option<SystemTime>> {
        let files = [Some(&self.files.cert), Some(&self.files.key)];
        let files = files.into_iter().chain([self.files.client_ca.as_ref()]);
        let changed = |path: &PathBuf| fs::metadata(path).and_then(|it| it.modified()).ok();
        files.flatten().map(changed).collect()
    }
}

fn load(files: &TlsFiles, protocols: &[Vec<u8>]) -> Result<Current, TlsError> {
    let certs = certificates("cert", &files.cert)?;
    let expires_at = expiry::first_expiry(&certs);
    let key = PrivateKeyDer::from_pem_slice(&read("key", &files.key)?)
        .map_err(|error| file("key", &files.key, error))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for root in certificates("client_ca", path)? {
                let added = roots.add(root);
                added.map_err(|error| file("client_ca", path, error))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            let verifier = verifier.build();
            let verifier = verifier.map_err(|error| file("client_ca", path, error))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder.with_single_cert(certs, key)?;
    config.alpn_protocols = protocols.to_vec();
    Ok(Current {
        config: Arc::new(config),
        expires_at,
    })
}

fn certificates(
    setting: &'static str,
    path: &PathBuf,
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let text = read(setting, path)?;
    let certs: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match certs {
        Ok(certs) if certs.is_empty() => Err(file(setting, path, "has no certificate")),
        Ok(certs) => Ok(certs),
        Err(error) => Err(file(setting, path, error)),
    }
}

fn read(setting: &'static str, path: &PathBuf) -> Result<Vec<u8>, TlsError> {
    fs::read(path).map_err(|error: io::Error| file(setting, path, error))
}

fn file(setting: &'static str, path: &std::path::Path, what: impl std::fmt::Display) -> TlsError {
    TlsError::File {
        setting,
        path: path.display().to_string(),
        what: what.to_string(),
    }
}
