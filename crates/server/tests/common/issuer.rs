//! Issues tokens that are signed with ES256.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING as P256, EcdsaKeyPair, KeyPair};
use serde_json::{Value, json};

pub(crate) fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

pub(crate) struct Issuer(EcdsaKeyPair);

impl Issuer {
    pub(crate) fn new() -> Issuer {
        let random = SystemRandom::new();
        let key = EcdsaKeyPair::generate_pkcs8(&P256, &random).unwrap();
        Issuer(EcdsaKeyPair::from_pkcs8(&P256, key.as_ref(), &random).unwrap())
    }

    pub(crate) fn jwks(&self) -> String {
        let (x, y) = self.0.public_key().as_ref()[1..].split_at(32);
        let key =
            json!({ "kty": "EC", "crv": "P-256", "kid": "k", "x": encode(x), "y": encode(y) });
        json!({ "keys": [key] }).to_string()
    }

    pub(crate) fn token(&self, claims: &Value) -> String {
        let header = encode(json!({ "alg": "ES256", "kid": "k" }).to_string());
        let signed = format!("{header}.{}", encode(claims.to_string()));
        let signature = self
            .0
            .sign(&SystemRandom::new(), signed.as_bytes())
            .unwrap();
        format!("{signed}.{}", encode(signature))
    }
}
