//! A token that a gateway verifies.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};

/// A token of ES256, and the key set that verifies it.
pub(super) struct Token {
    pub(super) bearer: String,
    pub(super) jwks: String,
}

impl Token {
    pub(super) fn new() -> Result<Token, ring::error::Unspecified> {
        let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let random = SystemRandom::new();
        let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let key = EcdsaKeyPair::generate_pkcs8(algorithm, &random)?;
        let key = EcdsaKeyPair::from_pkcs8(algorithm, key.as_ref(), &random)
            .map_err(|_| ring::error::Unspecified)?;
        // The first byte says that both coordinates follow.
        let point = key.public_key().as_ref();
        let (x, y) = (encode(&point[1..33]), encode(&point[33..]));
        let header = encode(br#"{"alg":"ES256","kid":"bench"}"#);
        let claims = encode(br#"{"sub":"ann","exp":4000000000}"#);
        let signed = format!("{header}.{claims}");
        let signature = key.sign(&random, signed.as_bytes())?;
        Ok(Token {
            bearer: format!("{signed}.{}", encode(signature.as_ref())),
            jwks: format!(
                r#"{{"keys":[{{"kty":"EC","crv":"P-256","kid":"bench","x":"{x}","y":"{y}"}}]}}"#
            ),
        })
    }
}
