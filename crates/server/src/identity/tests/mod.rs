//! Signs tokens, and asks an authenticator about them.
//!
//! * `tokens`: tokens that attackers send, and claims. `credentials`: API keys, certificates, several
//!   credentials. `key_server`: keys that change, and key servers that fail.

mod credentials;
mod key_server;
mod tokens;

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, OnceLock};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{self, KeyPair};
use ring::{hmac, rsa};
use serde_json::{Value, json};
use tollgate::{ManualClock, Time};
use tollgate_config::{Config, HttpUrl, JwtKeys};

use super::*;

const SECRET: &[u8] = b"a secret of at least thirty-two bytes";
/// The time of all tests, in seconds.
const NOW: u64 = 1_800_000_000;

fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Signs tokens.
enum Signer {
    Rsa(Box<signature::RsaKeyPair>),
    Ec(signature::EcdsaKeyPair),
    Ed(signature::Ed25519KeyPair),
    Secret(Vec<u8>),
}

impl Signer {
    fn rsa() -> Signer {
        static KEY: LazyLock<Vec<u8>> = LazyLock::new(|| {
            let arguments =
                "genpkey -quiet -algorithm RSA -pkeyopt rsa_keygen_bits:2048 -outform DER";
            let made = Command::new("openssl").args(arguments.split(' ')).output();
            let made = made.expect("openssl makes RSA keys: apt-get install -y openssl");
            assert!(
                made.status.success(),
                "{}",
                String::from_utf8_lossy(&made.stderr)
            );
            made.stdout
        });
        // OpenSSL writes one form or the other, by its version.
        let key = signature::RsaKeyPair::from_der(&KEY);
        let key = key.or_else(|_| signature::RsaKeyPair::from_pkcs8(&KEY));
        Signer::Rsa(Box::new(key.unwrap()))
    }

    fn ec(algorithm: &'static signature::EcdsaSigningAlgorithm) -> Signer {
        let random = SystemRandom::new();
        let key = signature::EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
        let key = signature::EcdsaKeyPair::from_pkcs8(algorithm, key.as_ref(), &random);
        Signer::Ec(key.unwrap())
    }

    fn p256() -> Signer {
        Signer::ec(&signature::ECDSA_P256_SHA256_FIXED_SIGNING)
    }

    fn ed() -> Signer {
        let key = signature::Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        Signer::Ed(signature::Ed25519KeyPair::from_pkcs8(key.as_ref()).unwrap())
    }

    /// Returns the public key as a JWK.
    fn jwk(&self, kid: &str) -> Value {
        match self {
            Signer::Rsa(key) => {
                let parts = rsa::PublicKeyComponents::<Vec<u8>>::from(key.public());
                json!({ "kty": "RSA", "kid": kid, "n": encode(parts.n), "e": encode(parts.e) })
            }
            Signer::Ec(key) => {
                let point = &key.public_key().as_ref()[1..];
                let (x, y) = point.split_at(point.len() / 2);
                let crv = if x.len() == 32 { "P-256" } else { "P-384" };
                json!({ "kty": "EC", "crv": crv, "kid": kid, "x": encode(x), "y": encode(y), "use": "sig" })
            }
            Signer::Ed(key) => {
                let x = encode(key.public_key());
                json!({ "kty": "OKP", "crv": "Ed25519", "kid": kid, "x": x })
            }
            Signer::Secret(secret) => json!({ "kty": "oct", "kid": kid, "k": encode(secret) }),
        }
    }

    fn sign(&self, algorithm: &str, message: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        match self {
            Signer::Rsa(key) => {
                let padding: &dyn signature::RsaEncoding = match algorithm {
                    "RS256" => &signature::RSA_PKCS1_SHA256,
                    "RS384" => &signature::RSA_PKCS1_SHA384,
                    "RS512" => &signature::RSA_PKCS1_SHA512,
                    "PS256" => &signature::RSA_PSS_SHA256,
                    "PS384" => &signature::RSA_PSS_SHA384,
                    _ => &signature::RSA_PSS_SHA512,
                };
                let mut signed = vec![0; key.public().modulus_len()];
                key.sign(padding, &random, message, &mut signed).unwrap();
                signed
            }
            Signer::Ec(key) => key.sign(&random, message).unwrap().as_ref().to_vec(),
            Signer::Ed(key) => key.sign(message).as_ref().to_vec(),
            Signer::Secret(secret) => {
                let hash = match algorithm {
                    "HS384" => hmac::HMAC_SHA384,
                    "HS512" => hmac::HMAC_SHA512,
                    _ => hmac::HMAC_SHA256,
                };
                let key = hmac::Key::new(hash, secret);
                hmac::sign(&key, message).as_ref().to_vec()
            }
        }
    }

    fn token(&self, header: &Value, claims: &Value) -> String {
        let signed = format!(
            "{}.{}",
            encode(header.to_string()),
            encode(claims.to_string())
        );
        let algorithm = header["alg"].as_str().unwrap_or_default();
        let signature = self.sign(algorithm, signed.as_bytes());
        format!("{signed}.{}", encode(signature))
    }
}

fn claims() -> Value {
    json!({ "iss": "https://login.test", "aud": ["api", "other"], "sub": "ann", "exp": NOW + 60 })
}

fn with(name: &str, value: impl Into<Value>) -> Value {
    let mut claims = claims();
    claims[name] = value.into();
    claims
}

/// Loads a config with this `authentication` section, and these files beside it.
fn config(authentication: &str, files: &[(&str, String)]) -> Config {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let path = folder.path().join("config.yaml");
    let text = format!("version: 1\nauthentication: {authentication}\nrules: []\n");
    std::fs::write(&path, text).unwrap();
    tollgate_config::load(&path).unwrap_or_else(|error| panic!("{error}"))
}

fn authenticator(config: &Config) -> Authenticator {
    authenticator_at(config, NOW)
}

fn authenticator_at(config: &Config, seconds: u64) -> Authenticator {
    let clock = ManualClock::at(Time::from_micros(seconds * 1_000_000));
    Authenticator::new(&config.authentication, RemoteKeys::new, Arc::new(clock))
}

fn jwks(keys: &[Value]) -> (&'static str, String) {
    ("jwks.json", json!({ "keys": keys }).to_string())
}

/// Identifies a request with these headers. Returns the attributes as `name=value`.
async fn identify(
    authenticator: &Authenticator,
    headers: &[(&'static str, &str)],
) -> Result<Vec<String>, IdentityError> {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.append(*name, value.parse().unwrap());
    }
    let identity = authenticator.identify(&map, None).await?;
    let attributes = identity.attributes();
    Ok(attributes
        .map(|(name, value)| format!("{name}={value}"))
        .collect())
}

async fn verify(authenticator: &Authenticator, token: &str) -> Result<Vec<String>, IdentityError> {
    identify(
        authenticator,
        &[("authorization", &format!("Bearer {token}"))],
    )
    .await
}

fn rejected(error: TokenError) -> Result<Vec<String>, IdentityError> {
    Err(IdentityError::Token(error))
}

const JWT: &str = "{ jwt: { jwks_file: jwks.json, issuer: https://login.test, audience: api } }";
