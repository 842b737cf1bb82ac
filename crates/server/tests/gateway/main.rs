//! The gateway, with real clients and upstreams.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bodies;
#[path = "../common/mod.rs"]
mod common;
mod credentials;
mod docs;
#[path = "../common/doors.rs"]
mod doors;
#[path = "../common/frames.rs"]
mod frames;
mod http2;
#[path = "../common/own.rs"]
mod own;
mod passing;
mod programs;
mod protocols;
mod redis;
mod shares;
mod shedding;
mod slots;
mod waiting;
mod wire;

use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

const NONE: &str = "rules: []\n";

/// Writes a certificate authority, and a certificate of `localhost` that it signed, into `folder`.
fn write_certificates(folder: &Path) {
    let write = |name: &str, text: String| std::fs::write(folder.join(name), text).unwrap();
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params
        .distinguished_name
        .push(DnType::CommonName, "authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    write("ca.pem", params.self_signed(&key).unwrap().pem());
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    params
        .distinguished_name
        .push(DnType::CommonName, "localhost");
    write("server.pem", params.signed_by(&key, &issuer).unwrap().pem());
    write("server.key", key.serialize_pem());
}
