//! Tokens that attackers send, keys that change, and key servers that fail.

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

#[tokio::test]
async fn every_algorithm_is_verified_and_gives_attributes() {
    let (rsa, p256, ed) = (Signer::rsa(), Signer::p256(), Signer::ed());
    let p384 = Signer::ec(&signature::ECDSA_P384_SHA384_FIXED_SIGNING);
    let secret = Signer::Secret(vec![7; 64]);
    let all = [
        (&rsa, "RS256", "rsa"),
        (&rsa, "RS384", "rsa"),
        (&rsa, "RS512", "rsa"),
        (&rsa, "PS256", "rsa"),
        (&rsa, "PS384", "rsa"),
        (&rsa, "PS512", "rsa"),
        (&p256, "ES256", "p256"),
        (&p384, "ES384", "p384"),
        (&ed, "EdDSA", "ed"),
        (&secret, "HS256", "oct"),
        (&secret, "HS384", "oct"),
        (&secret, "HS512", "oct"),
    ];
    let keys = [&all[0], &all[6], &all[7], &all[8], &all[9]];
    let keys = keys.map(|(signer, _, kid)| signer.jwk(kid));
    let authenticator = authenticator(&config(JWT, &[jwks(&keys)]));
    for (signer, alg, kid) in all {
        let token = signer.token(&json!({ "alg": alg, "kid": kid, "typ": "JWT" }), &claims());
        // The second time, the token is known.
        for _ in 0..2 {
            let attributes = verify(&authenticator, &token).await.unwrap();
            let expected = [
                "user=ann",
                "subject=user:ann",
                "subject_type=user",
                "authentication=jwt",
            ];
            assert_eq!(attributes, expected, "{alg}");
        }
        // Another signature of the same length.
        let (signed, signature) = token.rsplit_once('.').unwrap();
        let mut signature = URL_SAFE_NO_PAD.decode(signature).unwrap();
        signature[5] ^= 1;
        let forged = format!("{signed}.{}", encode(signature));
        assert_eq!(
            verify(&authenticator, &forged).await,
            rejected(TokenError::Signature),
            "{alg}"
        );
        // Without an id, the keys that fit are tried.
        let token = signer.token(&json!({ "alg": alg }), &claims());
        assert!(verify(&authenticator, &token).await.is_ok(), "{alg}");
    }
}

#[tokio::test]
async fn token_without_a_signature_is_rejected() {
    let signer = Signer::p256();
    let authenticator = authenticator(&config(JWT, &[jwks(&[signer.jwk("a")])]));
    for alg in [
        "none", "None", "NONE", "nOnE", "", "ES257", "es256", "HS256 ",
    ] {
        let header = encode(json!({ "alg": alg, "kid": "a" }).to_string());
        let body = format!("{header}.{}", encode(claims().to_string()));
        for token in [format!("{body}."), format!("{body}.AA")] {
            let expected = rejected(TokenError::Algorithm);
            assert_eq!(verify(&authenticator, &token).await, expected, "{alg}");
        }
    }
    let no_alg = signer.token(&json!({ "kid": "a" }), &claims());
    assert_eq!(
        verify(&authenticator, &no_alg).await,
        rejected(TokenError::Malformed)
    );
    let empty = format!(
        "{}.{}.",
        encode(r#"{"alg":"ES256"}"#),
        encode(claims().to_string())
    );
    assert_eq!(
        verify(&authenticator, &empty).await,
        rejected(TokenError::Signature)
    );
}

/// The public key of an issuer is not a secret, so it must never verify an HMAC.
#[tokio::test]
async fn public_key_is_never_used_as_a_secret() {
    let rsa = Signer::rsa();
    let jwk = rsa.jwk("a");
    let authenticator = authenticator(&config(JWT, &[jwks(std::slice::from_ref(&jwk))]));
    let n = URL_SAFE_NO_PAD.decode(jwk["n"].as_str().unwrap()).unwrap();
    let e = URL_SAFE_NO_PAD.decode(jwk["e"].as_str().unwrap()).unwrap();
    let as_text = jwk["n"].as_str().unwrap().as_bytes().to_vec();
    for secret in [
        n.clone(),
        [n, e].concat(),
        as_text,
        jwk.to_string().into_bytes(),
        Vec::new(),
    ] {
        let forger = Signer::Secret(secret);
        for header in [
            json!({ "alg": "HS256", "kid": "a" }),
            json!({ "alg": "HS512" }),
        ] {
            let token = forger.token(&header, &claims());
            assert_eq!(
                verify(&authenticator, &token).await,
                rejected(TokenError::Algorithm)
            );
        }
    }
    // A key that is for one algorithm is not used for another of its kind.
    let mut only = rsa.jwk("a");
    only["alg"] = "RS512".into();
    let authenticator = super::tests::authenticator(&config(JWT, &[jwks(&[only])]));
    let right = rsa.token(&json!({ "alg": "RS512", "kid": "a" }), &claims());
    assert!(verify(&authenticator, &right).await.is_ok());
    let wrong = rsa.token(&json!({ "alg": "RS256", "kid": "a" }), &claims());
    assert_eq!(
        verify(&authenticator, &wrong).await,
        rejected(TokenError::Algorithm)
    );
}

#[tokio::test]
async fn algorithms_of_the_config_are_a_bound() {
    let text = "{ jwt: { jwks_file: jwks.json, algorithms: [PS256] } }";
    let rsa = Signer::rsa();
    let authenticator = authenticator(&config(text, &[jwks(&[rsa.jwk("a")])]));
    let token = |alg: &str| rsa.token(&json!({ "alg": alg, "kid": "a" }), &claims());
    assert!(verify(&authenticator, &token("PS256")).await.is_ok());
    assert_eq!(
        verify(&authenticator, &token("RS256")).await,
        rejected(TokenError::Algorithm)
    );
}

/// The header of a token is written by its sender: nothing in it is a key, a path or a query.
#[tokio::test]
async fn header_of_a_token_brings_no_key() {
    let (ours, theirs) = (Signer::p256(), Signer::p256());
    let authenticator = authenticator(&config(JWT, &[jwks(&[ours.jwk("a")])]));
    let url = "http://127.0.0.1:1/jwks.json";
    for extra in [
        json!({ "jku": url }),
        json!({ "x5u": url }),
        json!({ "jwk": theirs.jwk("a") }),
        json!({ "x5c": ["AAAA"] }),
    ] {
        let mut header = json!({ "alg": "ES256", "kid": "a" });
        for (name, value) in extra.as_object().unwrap() {
            header[name] = value.clone();
        }
        let forged = theirs.token(&header, &claims());
        let expected = rejected(TokenError::Signature);
        assert_eq!(verify(&authenticator, &forged).await, expected, "{extra}");
        // The fields are ignored, also in a genuine token.
        let genuine = ours.token(&header, &claims());
        assert!(verify(&authenticator, &genuine).await.is_ok(), "{extra}");
    }
    for kid in [
        "../../../dev/null",
        "a' OR '1'='1",
        "b",
        "",
        "a\u{0}",
        "A",
        "*",
    ] {
        let token = ours.token(&json!({ "alg": "ES256", "kid": kid }), &claims());
        let expected = rejected(TokenError::UnknownKey);
        assert_eq!(verify(&authenticator, &token).await, expected, "{kid}");
    }
    for header in [
        json!({ "alg": "ES256", "kid": 1 }),
        json!({ "alg": "ES256", "kid": ["a"] }),
        json!({ "alg": ["ES256"], "kid": "a" }),
        json!([]),
    ] {
        let token = ours.token(&header, &claims());
        assert_eq!(
            verify(&authenticator, &token).await,
            rejected(TokenError::Malformed)
        );
    }
    let critical = json!({ "alg": "ES256", "kid": "a", "b64": false, "crit": ["b64"] });
    let token = ours.token(&critical, &claims());
    assert_eq!(
        verify(&authenticator, &token).await,
        rejected(TokenError::Critical)
    );
}

#[tokio::test]
async fn claims_are_checked() {
    let signer = Signer::p256();
    let authenticator = authenticator(&config(JWT, &[jwks(&[signer.jwk("a")])]));
    let mut no_expiry = claims();
    no_expiry.as_object_mut().unwrap().remove("exp");
    let table = [
        (claims(), None),
        // 30 seconds of leeway.
        (with("exp", NOW - 29), None),
        (with("exp", NOW - 30), Some(TokenError::Expired)),
        (with("exp", 1), Some(TokenError::Expired)),
        (no_expiry, Some(TokenError::NoExpiry)),
        (with("exp", Value::Null), Some(TokenError::Malformed)),
        (
            with("exp", (NOW + 60).to_string()),
            Some(TokenError::Malformed),
        ),
        (with("exp", -1), Some(TokenError::Malformed)),
        (with("exp", 1e300), None),
        (with("exp", json!(NOW as f64 + 0.5)), None),
        (with("nbf", NOW + 30), None),
        (with("nbf", NOW + 31), Some(TokenError::NotYet)),
        (with("nbf", json!({})), Some(TokenError::Malformed)),
        (with("iat", NOW + 31), Some(TokenError::NotYet)),
        (with("iss", "https://login.test/"), Some(TokenError::Issuer)),
        (
            with("iss", json!(["https://login.test"])),
            Some(TokenError::Issuer),
        ),
        (with("iss", Value::Null), Some(TokenError::Issuer)),
        (with("aud", "api"), None),
        (with("aud", "apis"), Some(TokenError::Audience)),
        (with("aud", json!([])), Some(TokenError::Audience)),
        (with("aud", json!([["api"]])), Some(TokenError::Audience)),
        (with("aud", Value::Null), Some(TokenError::Audience)),
        (with("sub", "x".repeat(1025)), Some(TokenError::LongClaim)),
        (json!([]), Some(TokenError::Malformed)),
        (json!("text"), Some(TokenError::Malformed)),
    ];
    for (claims, expected) in table {
        let token = signer.token(&json!({ "alg": "ES256", "kid": "a" }), &claims);
        let found = verify(&authenticator, &token).await.err();
        assert_eq!(found, expected.map(IdentityError::Token), "{claims}");
    }
}

#[tokio::test]
async fn known_token_expires() {
    let signer = Signer::p256();
    let config = config(JWT, &[jwks(&[signer.jwk("a")])]);
    let clock = Arc::new(ManualClock::at(Time::from_micros(NOW * 1_000_000)));
    let authenticator = Authenticator::new(
        &config.authentication,
        RemoteKeys::new,
        Arc::clone(&clock) as Arc<dyn Clock>,
    );
    let token = signer.token(&json!({ "alg": "ES256", "kid": "a" }), &claims());
    assert!(verify(&authenticator, &token).await.is_ok());
    clock.advance(tollgate::Span::from_secs(89));
    assert!(verify(&authenticator, &token).await.is_ok());
    clock.advance(tollgate::Span::from_secs(1));
    assert_eq!(
        verify(&authenticator, &token).await,
        rejected(TokenError::Expired)
    );
}

#[tokio::test]
async fn malformed_and_huge_tokens_are_rejected() {
    let signer = Signer::p256();
    let authenticator = authenticator(&config(JWT, &[jwks(&[signer.jwk("a")])]));
    let header = json!({ "alg": "ES256", "kid": "a" });
    let token = signer.token(&header, &claims());
    let [head, body, sign] = token.split('.').collect::<Vec<_>>()[..] else {
        panic!("three parts")
    };
    for bad in [
        String::new(),
        ".".to_owned(),
        "..".to_owned(),
        "a.b.c".to_owned(),
        format!("{head}.{body}"),
        format!("{token}.{sign}"),
        format!(".{token}"),
        format!("{head}=.{body}.{sign}"),
        format!("{head}.{body}.{sign}="),
        format!("{head} .{body}.{sign}"),
        format!(
            "{}.{body}.{sign}",
            encode("{\"alg\":\"ES256\",\"alg\":\"none\"}")
        ),
        format!("{}.{body}.{sign}", encode("[".repeat(3000))),
    ] {
        assert_eq!(
            verify(&authenticator, &bad).await,
            rejected(TokenError::Malformed),
            "{bad}"
        );
    }
    let deep = format!("{{\"exp\":{}}}", "[".repeat(5000));
    let signed = format!("{head}.{}", encode(deep));
    let deep = format!(
        "{signed}.{}",
        encode(signer.sign("ES256", signed.as_bytes()))
    );
    assert_eq!(
        verify(&authenticator, &deep).await,
        rejected(TokenError::Malformed)
    );
    let huge = signer.token(&header, &with("pad", "x".repeat(MAX_TOKEN)));
    let header = IdentityError::BadHeader(AUTHORIZATION);
    assert_eq!(verify(&authenticator, &huge).await, Err(header));
    let tokens = authenticator.tokens.as_ref().unwrap();
    let direct = tokens.verify(&huge).await.unwrap_err();
    assert_eq!(direct, IdentityError::Token(TokenError::TooLong));
}

#[tokio::test]
async fn claims_become_attributes() {
    let text = r#"{ jwt: { secret: "a secret of at least thirty-two bytes",
        claims: { tenant: org, user: sub, rate_limit: limits.rate, beta: beta, "role": "https://acme.test/role" } } }"#;
    let authenticator = authenticator(&config(text, &[]));
    let claims = json!({
        "sub": "ann", "exp": NOW + 1, "org": "acme", "limits": { "rate": 500 }, "beta": true,
        "https://acme.test/role": "admin", "unmapped": "x",
    });
    // Without key ids, a secret verifies tokens with any id.
    let signer = Signer::Secret(SECRET.to_vec());
    let token = signer.token(&json!({ "alg": "HS256", "kid": "any" }), &claims);
    let expected = [
        "tenant=acme",
        "user=ann",
        "rate_limit=500",
        "beta=true",
        "role=admin",
        "subject=user:ann",
        "subject_type=user",
        "authentication=jwt",
    ];
    assert_eq!(verify(&authenticator, &token).await.unwrap(), expected);
    let other = json!({ "exp": NOW + 1, "org": ["acme"], "limits": 5, "sub": null });
    let token = signer.token(&json!({ "alg": "HS256" }), &other);
    assert_eq!(
        verify(&authenticator, &token).await.unwrap(),
        ["authentication=jwt"]
    );
}

#[tokio::test]
async fn missing_scope_is_told() {
    let text =
        r#"{ jwt: { secret: "a secret of at least thirty-two bytes", scopes: [read, write] } }"#;
    let authenticator = authenticator(&config(text, &[]));
    let signer = Signer::Secret(SECRET.to_vec());
    for (claim, value, missing) in [
        ("scope", json!("write admin read"), None),
        ("scp", json!(["read", "write"]), None),
        ("scope", json!("readwrite"), Some("read")),
        ("scope", json!("read"), Some("write")),
        ("scope", json!(5), Some("read")),
    ] {
        let claims = json!({ "exp": NOW + 1, claim: value });
        let token = signer.token(&json!({ "alg": "HS256" }), &claims);
        let found = verify(&authenticator, &token).await.err();
        let expected = missing.map(|scope: &str| IdentityError::Scope {
            scope: scope.to_owned(),
        });
        assert_eq!(found, expected, "{claims}");
    }
}

fn sha256(text: &str) -> String {
    let hash: [u8; 32] = Sha256::digest(text).into();
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn table() -> (&'static str, String) {
    let (one, two, three) = (sha256("key-one"), sha256("key-two"), sha256("key-three"));
    let rows = format!("{one},acme,pro,500,\n{two},corp,,,true\n{three},,,,no\n");
    (
        "keys.csv",
        format!("sha256,tenant,plan,rate_limit,revoked\n{rows}"),
    )
}

#[tokio::test]
async fn api_key_is_found_by_its_hash() {
    let config = config("{ api_keys: { file: keys.csv } }", &[table()]);
    let authenticator = authenticator(&config);
    let known = identify(&authenticator, &[("x-api-key", "key-one")])
        .await
        .unwrap();
    let hash = sha256("key-one");
    let expected = [
        "tenant=acme".to_owned(),
        "plan=pro".to_owned(),
        "rate_limit=500".to_owned(),
        format!("api_key={hash}"),
        format!("subject=api_key:{hash}"),
        "subject_type=api_key".to_owned(),
        "authentication=api_key".to_owned(),
    ];
    assert_eq!(known, expected);
    assert!(
        identify(&authenticator, &[("x-api-key", "key-three")])
            .await
            .is_ok()
    );
    let error = IdentityError::ApiKey(authenticator.accepted());
    for wrong in ["key-two", "key-ones", "KEY-ONE", &hash] {
        let found = identify(&authenticator, &[("x-api-key", wrong)]).await;
        assert_eq!(found, Err(error.clone()), "{wrong}");
    }
    // Tokens are not read, so they are for the service behind the door.
    let anonymous = identify(&authenticator, &[("authorization", "Bearer key-one")]).await;
    assert_eq!(anonymous.unwrap(), ["authentication=anonymous"]);
    let long = "x".repeat(2000);
    let found = identify(&authenticator, &[("x-api-key", &long)]).await;
    let header = HeaderName::from_static("x-api-key");
    assert_eq!(found, Err(IdentityError::BadHeader(header)));
}

#[tokio::test]
async fn bearer_tokens_may_be_api_keys() {
    let text =
        "{ jwt: { jwks_file: jwks.json }, api_keys: { file: keys.csv, header: Authorization } }";
    let signer = Signer::p256();
    let authenticator = authenticator(&config(text, &[table(), jwks(&[signer.jwk("a")])]));
    let attributes = verify(&authenticator, "key-one").await.unwrap();
    assert!(attributes.contains(&"tenant=acme".to_owned()));
    let token = signer.token(&json!({ "alg": "ES256", "kid": "a" }), &claims());
    assert!(verify(&authenticator, &token).await.is_ok());
    // Basic credentials are for the service behind the door.
    let basic = identify(&authenticator, &[("authorization", "Basic YTpi")]).await;
    assert_eq!(basic.unwrap(), ["authentication=anonymous"]);
}

#[tokio::test]
async fn ambiguous_credentials_are_rejected() {
    let text = "{ jwt: { jwks_file: jwks.json }, api_keys: { file: keys.csv }, required: true }";
    let signer = Signer::p256();
    let authenticator = authenticator(&config(text, &[table(), jwks(&[signer.jwk("a")])]));
    let token = signer.token(&json!({ "alg": "ES256", "kid": "a" }), &claims());
    let bearer = format!("bearer {token}");
    let both = [("authorization", bearer.as_str()), ("x-api-key", "key-one")];
    assert_eq!(
        identify(&authenticator, &both).await,
        Err(IdentityError::Several)
    );
    let twice = [
        ("authorization", bearer.as_str()),
        ("authorization", "Basic x"),
    ];
    let repeated = IdentityError::Repeated(AUTHORIZATION);
    assert_eq!(identify(&authenticator, &twice).await, Err(repeated));
    let missing = IdentityError::Missing(authenticator.accepted());
    assert_eq!(identify(&authenticator, &[]).await, Err(missing.clone()));
    assert_eq!(
        identify(&authenticator, &[("authorization", "Basic x")]).await,
        Err(missing)
    );
    assert!(identify(&authenticator, &both[..1]).await.is_ok());
    assert!(identify(&authenticator, &both[1..]).await.is_ok());
}

#[tokio::test]
async fn certificate_gives_attributes_that_a_token_replaces() {
    let text = "{ client_certificates: { service_account: common_name, site: uri }, api_keys: { file: keys.csv } }";
    let authenticator = authenticator(&config(text, &[table()]));
    let certificate = ClientCertificate {
        common_name: Some("billing".into()),
        ..ClientCertificate::default()
    };
    let identity = authenticator
        .identify(&HeaderMap::new(), Some(&certificate))
        .await
        .unwrap();
    let attributes: Vec<_> = identity.attributes().collect();
    let expected = [
        ("service_account", "billing"),
        ("subject", "service_account:billing"),
        ("subject_type", "service_account"),
        ("authentication", "certificate"),
    ];
    assert_eq!(attributes, expected);
    let mut headers = HeaderMap::new();
    headers.insert("x-api-key", "key-one".parse().unwrap());
    let identity = authenticator
        .identify(&headers, Some(&certificate))
        .await
        .unwrap();
    let last = |name| {
        identity
            .attributes()
            .filter(|(known, _)| *known == name)
            .last()
    };
    assert_eq!(
        last("service_account"),
        Some(("service_account", "billing"))
    );
    assert_eq!(last("authentication"), Some(("authentication", "api_key")));
    // A certificate without these names is not a credential.
    let (headers, bare) = (HeaderMap::new(), ClientCertificate::default());
    let identity = authenticator.identify(&headers, Some(&bare)).await.unwrap();
    assert_eq!(
        identity.attributes().last(),
        Some(("authentication", "anonymous"))
    );
}

#[tokio::test]
async fn without_authentication_nothing_is_read() {
    let config = tollgate_config::parse("c.yaml", "version: 1\nrules: []\n", &|_| None).unwrap();
    let authenticator = authenticator(&config);
    let found = identify(
        &authenticator,
        &[("authorization", "Bearer x"), ("x-api-key", "y")],
    );
    assert!(found.await.unwrap().is_empty());
    assert_eq!(subjects(&config), config.subjects);
}

/// A key server that answers what a test says, and counts the fetches.
struct KeyServer {
    answer: Mutex<Result<String, &'static str>>,
    fetches: AtomicUsize,
}

impl KeyServer {
    fn new(answer: Result<String, &'static str>) -> Arc<KeyServer> {
        Arc::new(KeyServer {
            answer: Mutex::new(answer),
            fetches: AtomicUsize::new(0),
        })
    }

    fn fetches(&self) -> usize {
        self.fetches.load(Ordering::Relaxed)
    }

    fn set(&self, keys: &[Value]) {
        *self.answer.lock() = Ok(json!({ "keys": keys }).to_string());
    }

    /// Makes an authenticator that fetches its keys here.
    fn authenticator(self: &Arc<Self>) -> Authenticator {
        static CONFIG: OnceLock<Config> = OnceLock::new();
        let text = "{ jwt: { jwks_url: 'http://127.0.0.1:9/jwks.json', refresh: 5m } }";
        let config = CONFIG.get_or_init(|| config(text, &[]));
        let clock = ManualClock::at(Time::from_micros(NOW * 1_000_000));
        let remote = |url: &HttpUrl, refresh| {
            let server = Arc::clone(self);
            RemoteKeys::with_fetch(url, refresh, move || {
                server.fetches.fetch_add(1, Ordering::Relaxed);
                let answer = server.answer.lock().clone();
                Box::pin(async move {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    Ok(answer?)
                })
            })
        };
        assert!(matches!(
            config.authentication.jwt.as_ref().unwrap().keys,
            JwtKeys::Url(..)
        ));
        Authenticator::new(&config.authentication, remote, Arc::new(clock))
    }
}

fn signed(signer: &Signer, kid: &str) -> String {
    signer.token(&json!({ "alg": "ES256", "kid": kid }), &claims())
}

#[tokio::test(start_paused = true)]
async fn keys_are_fetched_once_and_again_when_they_are_old() {
    let signer = Signer::p256();
    let server = KeyServer::new(Ok(json!({ "keys": [signer.jwk("a")] }).to_string()));
    let authenticator = server.authenticator();
    let token = signed(&signer, "a");
    // Requests that come together wait for one fetch.
    let all = futures_util::future::join_all((0..50).map(|_| verify(&authenticator, &token))).await;
    assert!(all.iter().all(Result::is_ok));
    assert_eq!(server.fetches(), 1);
    tokio::time::advance(Duration::from_secs(299)).await;
    assert!(verify(&authenticator, &token).await.is_ok());
    assert_eq!(server.fetches(), 1);
    tokio::time::advance(Duration::from_secs(1)).await;
    // This request does not wait for the fetch.
    assert!(verify(&authenticator, &token).await.is_ok());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(server.fetches(), 2);
}

#[tokio::test(start_paused = true)]
async fn new_key_is_found_and_old_key_ends() {
    let (old, new) = (Signer::p256(), Signer::p256());
    let server = KeyServer::new(Ok(json!({ "keys": [old.jwk("old")] }).to_string()));
    let authenticator = server.authenticator();
    assert!(verify(&authenticator, &signed(&old, "old")).await.is_ok());
    server.set(&[old.jwk("old"), new.jwk("new")]);
    tokio::time::advance(Duration::from_secs(10)).await;
    assert!(verify(&authenticator, &signed(&new, "new")).await.is_ok());
    assert!(verify(&authenticator, &signed(&old, "old")).await.is_ok());
    assert_eq!(server.fetches(), 2);
    // A key that is gone verifies nothing, not even tokens that were verified before.
    server.set(&[new.jwk("new")]);
    tokio::time::advance(Duration::from_secs(300)).await;
    assert!(verify(&authenticator, &signed(&new, "new")).await.is_ok());
    tokio::time::sleep(Duration::from_secs(1)).await;
    let ended = verify(&authenticator, &signed(&old, "old")).await;
    assert_eq!(ended, rejected(TokenError::UnknownKey));
}

#[tokio::test(start_paused = true)]
async fn unknown_keys_do_not_flood_the_key_server() {
    let signer = Signer::p256();
    let server = KeyServer::new(Ok(json!({ "keys": [signer.jwk("a")] }).to_string()));
    let authenticator = server.authenticator();
    for number in 0..500 {
        let token = signed(&signer, &format!("unknown-{number}"));
        let found = verify(&authenticator, &token).await;
        assert_eq!(found, rejected(TokenError::UnknownKey));
        tokio::time::advance(Duration::from_millis(100)).await;
    }
    // 50 seconds: the first fetch, and one in 10 seconds.
    assert!(server.fetches() <= 6, "{}", server.fetches());
}

#[tokio::test(start_paused = true)]
async fn keys_stay_in_use_while_their_server_is_down() {
    let signer = Signer::p256();
    let server = KeyServer::new(Err("connection refused"));
    let authenticator = server.authenticator();
    let token = signed(&signer, "a");
    // Without keys nothing is verified, and the server is asked once a second.
    for _ in 0..20 {
        assert_eq!(
            verify(&authenticator, &token).await,
            Err(IdentityError::NoKeys)
        );
        tokio::time::advance(Duration::from_millis(100)).await;
    }
    assert!((2..=4).contains(&server.fetches()), "{}", server.fetches());
    server.set(&[signer.jwk("a")]);
    tokio::time::advance(Duration::from_secs(1)).await;
    assert!(verify(&authenticator, &token).await.is_ok());
    for answer in [
        Err("connection refused"),
        Ok("not a key set".to_owned()),
        Ok(r#"{ "keys": [] }"#.to_owned()),
        Ok(
            r#"{ "keys": [{ "kty": "oct", "k": "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA" }] }"#
                .to_owned(),
        ),
    ] {
        *server.answer.lock() = answer;
        tokio::time::advance(Duration::from_secs(301)).await;
        assert!(verify(&authenticator, &token).await.is_ok());
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(verify(&authenticator, &token).await.is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn unusable_keys_of_a_server_are_ignored() {
    let signer = Signer::p256();
    let bad = [
        json!({ "kty": "EC", "crv": "P-521", "x": "AA", "y": "AA" }),
        json!({ "kty": "EC", "crv": "P-256", "x": "AA", "y": "AA" }),
        json!({ "kty": "RSA", "n": "AQAB", "e": "AQAB" }),
        json!({ "kty": "unheard-of" }),
        json!({ "use": "enc", "kty": "RSA" }),
        json!({ "no": "kty" }),
        signer.jwk("a"),
    ];
    let server = KeyServer::new(Ok(json!({ "keys": bad }).to_string()));
    let authenticator = server.authenticator();
    assert!(verify(&authenticator, &signed(&signer, "a")).await.is_ok());
}

/// Requests with the old key and with the new key come all the time, and none of them fails.
#[tokio::test(start_paused = true)]
async fn keys_rotate_under_load() {
    let (old, new) = (Signer::p256(), Signer::p256());
    let server = KeyServer::new(Ok(json!({ "keys": [old.jwk("old")] }).to_string()));
    let authenticator = Arc::new(server.authenticator());
    let (old_token, new_token) = (signed(&old, "old"), signed(&new, "new"));
    assert!(verify(&authenticator, &old_token).await.is_ok());
    tokio::time::advance(Duration::from_secs(10)).await;
    // An issuer publishes a key before it signs with it.
    server.set(&[old.jwk("old"), new.jwk("new")]);
    let clients = (0..64).map(|client| {
        let authenticator = Arc::clone(&authenticator);
        let tokens = [old_token.clone(), new_token.clone()];
        tokio::spawn(async move {
            for turn in 0..200 {
                let found = verify(&authenticator, &tokens[(client + turn) % 2]).await;
                assert!(found.is_ok(), "client {client}, turn {turn}: {found:?}");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
    });
    for client in futures_util::future::join_all(clients).await {
        client.unwrap();
    }
    assert_eq!(server.fetches(), 2);
}
