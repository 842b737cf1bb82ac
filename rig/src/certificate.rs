//! A certificate authority for tests, and a server certificate signed by it.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};

/// The host names of the certificate.
const NAMES: [&str; 2] = ["localhost", "127.0.0.1"];

/// The files of a TLS server, in PEM.
#[derive(Debug)]
pub(crate) struct Files {
    /// The certificate authority that clients must trust.
    pub(crate) authority: PathBuf,
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

impl Files {
    /// Creates the files in `directory`.
    pub(crate) fn make(directory: &Path) -> Files {
        let files = Files {
            authority: directory.join("ca.pem"),
            certificate: directory.join("server.pem"),
            key: directory.join("server.key"),
        };
        files.write().expect("a certificate");
        files
    }

    fn write(&self) -> Result<(), Box<dyn std::error::Error>> {
        let mut authority = params("Tollgate test CA", &[])?;
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let authority_key = KeyPair::generate()?;
        fs::write(
            &self.authority,
            authority.self_signed(&authority_key)?.pem(),
        )?;

        let issuer = Issuer::new(authority, authority_key);
        let server = params("Tollgate test server", &NAMES)?;
        let key = KeyPair::generate()?;
        fs::write(&self.certificate, server.signed_by(&key, &issuer)?.pem())?;
        fs::write(&self.key, key.serialize_pem())?;
        Ok(())
    }
}

fn params(name: &str, subjects: &[&str]) -> Result<CertificateParams, rcgen::Error> {
    let subjects: Vec<String> = subjects.iter().map(ToString::to_string).collect();
    let mut params = CertificateParams::new(subjects)?;
    params.distinguished_name.push(DnType::CommonName, name);
    Ok(params)
}
