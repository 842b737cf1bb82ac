//! Key sets (JWK Sets, RFC 7517): the keys that verify tokens.
//!
//! A set is JSON, which is YAML as well. So it is read like a config, and problems have a line and a
//! column. Keys of a kind that is not supported, and keys that are not for signatures, are ignored, as the
//! standard asks for.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tollgate_rules::document::{
    BadValue, Node, Problems, Short, Value, entries, parse_document, wanted, words,
};

use crate::secrets::Secret;

/// The most keys of a set.
const MAX_KEYS: usize = 100;
/// The longest id of a key.
const MAX_ID: usize = 256;
/// The sizes of an RSA modulus, in bytes: 2048 to 8192 bits.
const RSA_BYTES: std::ops::RangeInclusive<usize> = 256..=1024;

const EMPTY_HELP: &str = "write a JSON Web Key Set: {\"keys\": [ … ]}";

words! {
    /// An algorithm that signs tokens (RFC 7518, RFC 8037).
    pub enum JwtAlgorithm is "an algorithm of tokens" {
        /// HMAC with SHA-256.
        Hs256 = "HS256",
        /// HMAC with SHA-384.
        Hs384 = "HS384",
        /// HMAC with SHA-512.
        Hs512 = "HS512",
        /// RSA (PKCS #1 v1.5) with SHA-256.
        Rs256 = "RS256",
        /// RSA (PKCS #1 v1.5) with SHA-384.
        Rs384 = "RS384",
        /// RSA (PKCS #1 v1.5) with SHA-512.
        Rs512 = "RS512",
        /// RSA (PSS) with SHA-256.
        Ps256 = "PS256",
        /// RSA (PSS) with SHA-384.
        Ps384 = "PS384",
        /// RSA (PSS) with SHA-512.
        Ps512 = "PS512",
        /// ECDSA on P-256 with SHA-256.
        Es256 = "ES256",
        /// ECDSA on P-384 with SHA-384.
        Es384 = "ES384",
        /// Ed25519.
        EdDsa = "EdDSA",
    }
}

impl JwtAlgorithm {
    /// All algorithms.
    pub const ALL: [JwtAlgorithm; 12] = [
        JwtAlgorithm::Hs256,
        JwtAlgorithm::Hs384,
        JwtAlgorithm::Hs512,
        JwtAlgorithm::Rs256,
        JwtAlgorithm::Rs384,
        JwtAlgorithm::Rs512,
        JwtAlgorithm::Ps256,
        JwtAlgorithm::Ps384,
        JwtAlgorithm::Ps512,
        JwtAlgorithm::Es256,
        JwtAlgorithm::Es384,
        JwtAlgorithm::EdDsa,
    ];

    /// Returns the algorithm with this name in tokens; `None` for other algorithms, `none` among them.
    #[must_use]
    pub fn from_name(name: &str) -> Option<JwtAlgorithm> {
        JwtAlgorithm::ALL.into_iter().find(|it| it.name() == name)
    }

    /// Whether the same secret signs and verifies.
    #[must_use]
    pub fn is_symmetric(self) -> bool {
        matches!(
            self,
            JwtAlgorithm::Hs256 | JwtAlgorithm::Hs384 | JwtAlgorithm::Hs512
        )
    }
}

/// A key set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct JwkSet {
    /// The keys, in the order of the text.
    pub keys: Vec<Jwk>,
}

/// A key that verifies tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Jwk {
    /// The id by which tokens name the key (`kid`).
    pub id: Option<String>,
    /// The only algorithm that the key is for, if its set says so.
    pub algorithm: Option<JwtAlgorithm>,
    /// The key itself.
    pub material: KeyMaterial,
}

/// The numbers of a key. Its kind decides which algorithms may use it.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyMaterial {
    /// RSA: modulus and exponent, big-endian.
    Rsa {
        /// The modulus.
        n: Vec<u8>,
        /// The exponent.
        e: Vec<u8>,
    },
    /// A point of P-256, uncompressed.
    P256(Vec<u8>),
    /// A point of P-384, uncompressed.
    P384(Vec<u8>),
    /// A public key of Ed25519.
    Ed25519(Vec<u8>),
    /// A secret.
    Hmac(Vec<u8>),
}

impl fmt::Debug for KeyMaterial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KeyMaterial::Rsa { .. } => "Rsa",
            KeyMaterial::P256(_) => "P256",
            KeyMaterial::P384(_) => "P384",
            KeyMaterial::Ed25519(_) => "Ed25519",
            KeyMaterial::Hmac(_) => "Hmac",
        })
    }
}

impl KeyMaterial {
    /// Whether `algorithm` may use a key of this kind.
    #[must_use]
    pub fn fits(&self, algorithm: JwtAlgorithm) -> bool {
        use JwtAlgorithm::{EdDsa, Es256, Es384, Ps256, Ps384, Ps512, Rs256, Rs384, Rs512};
        match self {
            KeyMaterial::Rsa { .. } => {
                matches!(algorithm, Rs256 | Rs384 | Rs512 | Ps256 | Ps384 | Ps512)
            }
            KeyMaterial::P256(_) => algorithm == Es256,
            KeyMaterial::P384(_) => algorithm == Es384,
            KeyMaterial::Ed25519(_) => algorithm == EdDsa,
            KeyMaterial::Hmac(_) => algorithm.is_symmetric(),
        }
    }
}

impl Jwk {
    /// A key without an id, from a secret.
    #[must_use]
    pub fn of_secret(secret: &Secret) -> Jwk {
        Jwk {
            id: None,
            algorithm: None,
            material: KeyMaterial::Hmac(secret.expose().to_vec()),
        }
    }
}

impl JwkSet {
    /// Reads the set that a key server sent. Returns the usable keys, and the problem of the first key that
    /// is not usable. Secrets are not used: whoever can read the set could sign tokens.
    ///
    /// # Errors
    /// If the text is not a key set, or has no usable key.
    pub fn of_server(text: &str) -> Result<(JwkSet, Option<String>), String> {
        let mut problems = Problems::new(text);
        let mut set = JwkSet::read(&mut problems);
        set.keys
            .retain(|key| !matches!(key.material, KeyMaterial::Hmac(_)));
        let first = (!problems.is_empty()).then(|| {
            let error = problems.into_error("the key set");
            let first = error.problems().first().map(|it| it.message().to_owned());
            first.unwrap_or_default()
        });
        match set.keys.is_empty() {
            true => Err(first.unwrap_or_else(|| "it has no key for signatures".to_owned())),
            false => Ok((set, first)),
        }
    }

    /// Reads the source of `problems`.
    pub(super) fn read(problems: &mut Problems<'_>) -> JwkSet {
        let mut set = JwkSet::default();
        let Some(root) = parse_document(EMPTY_HELP, problems) else {
            return set;
        };
        hide(&root, problems);
        let Some(fields) = entries(&root, "a key set", problems) else {
            return set;
        };
        let keys = fields.iter().find(|(name, ..)| *name == "keys");
        let Some((_, _, node)) = keys else {
            problems.report(
                root.place,
                "this is not a key set: it has no `keys`",
                EMPTY_HELP,
            );
            return set;
        };
        let Value::List(keys) = &node.value else {
            wanted("a list of keys", EMPTY_HELP, node, problems);
            return set;
        };
        if let Some(key) = keys.get(MAX_KEYS) {
            let message = format!("there are more than {MAX_KEYS} keys");
            problems.report(key.place, message, "keep the keys that are in use");
        }
        for node in keys.iter().take(MAX_KEYS) {
            let Some(fields) = entries(node, "a key", problems) else {
                continue;
            };
            match key(&Fields(&fields)) {
                Ok(Some(key)) => set.keys.push(key),
                Ok(None) => {}
                Err(bad) => problems.report(node.place, bad.message, bad.help),
            }
        }
        if set.keys.is_empty() && problems.is_empty() {
            let help = "add a key of the kind RSA, EC (P-256, P-384), OKP (Ed25519) or oct";
            problems.report(
                root.place,
                "the set has no key that verifies signatures",
                help,
            );
        }
        set
    }
}

/// Keeps the secret parts of keys out of messages.
fn hide(node: &Node, problems: &mut Problems<'_>) {
    match &node.value {
        Value::List(items) => items.iter().for_each(|item| hide(item, problems)),
        Value::Map(entries) => {
            for (key, value) in entries.iter() {
                match key.text() {
                    Some("k" | "d" | "p" | "q" | "dp" | "dq" | "qi" | "oth") => {
                        problems.keep_secret(value.place);
                    }
                    _ => hide(value, problems),
                }
            }
        }
        _ => {}
    }
}

struct Fields<'n>(&'n [(&'n str, tollgate_rules::document::Place, &'n Node)]);

impl<'n> Fields<'n> {
    fn text(&self, name: &str) -> Option<&'n str> {
        let (_, _, node) = self.0.iter().find(|(known, ..)| *known == name)?;
        node.text()
    }

    /// Returns the bytes of a number that the key must have.
    fn bytes(&self, name: &str) -> Result<Vec<u8>, BadValue> {
        let help = "copy the key again, or ask its issuer";
        let Some(text) = self.text(name) else {
            return Err(BadValue::new(format!("this key has no `{name}`"), help));
        };
        URL_SAFE_NO_PAD.decode(text).map_err(|_| {
            let message = format!("`{name}` of this key is not base64url without padding");
            BadValue::new(message, help)
        })
    }

    /// Returns the bytes of a number with exactly this length.
    fn exact(&self, name: &str, length: usize) -> Result<Vec<u8>, BadValue> {
        let bytes = self.bytes(name)?;
        match bytes.len() == length {
            true => Ok(bytes),
            false => {
                let message = format!("`{name}` of this key has {} bytes", bytes.len());
                Err(BadValue::new(message, format!("it must have {length}")))
            }
        }
    }
}

/// Reads a key; `None` if it is not supported, or not for signatures.
fn key(fields: &Fields<'_>) -> Result<Option<Jwk>, BadValue> {
    if fields.text("use").is_some_and(|it| it != "sig") {
        return Ok(None);
    }
    let algorithm = match fields.text("alg") {
        None => None,
        Some(name) => match JwtAlgorithm::from_name(name) {
            Some(algorithm) => Some(algorithm),
            None => return Ok(None),
        },
    };
    let point = |length: usize| -> Result<Vec<u8>, BadValue> {
        let mut point = vec![4];
        point.extend(fields.exact("x", length)?);
        point.extend(fields.exact("y", length)?);
        Ok(point)
    };
    let material = match (fields.text("kty"), fields.text("crv")) {
        (Some("RSA"), _) => {
            let trimmed = |name| -> Result<Vec<u8>, BadValue> {
                let bytes = fields.bytes(name)?;
                let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
                Ok(bytes[zeros..].to_vec())
            };
            let (n, e) = (trimmed("n")?, trimmed("e")?);
            if !RSA_BYTES.contains(&n.len()) {
                let message = format!("this RSA key has {} bits", n.len() * 8);
                return Err(BadValue::new(message, "use a key of 2048 to 8192 bits"));
            }
            KeyMaterial::Rsa { n, e }
        }
        (Some("EC"), Some("P-256")) => KeyMaterial::P256(point(32)?),
        (Some("EC"), Some("P-384")) => KeyMaterial::P384(point(48)?),
        (Some("OKP"), Some("Ed25519")) => KeyMaterial::Ed25519(fields.exact("x", 32)?),
        (Some("oct"), _) => {
            let secret = fields.bytes("k")?;
            if secret.len() < super::MIN_HS_SECRET {
                let message = format!("this secret has only {} bytes", secret.len());
                let help = format!("use at least {} random bytes", super::MIN_HS_SECRET);
                return Err(BadValue::new(message, help));
            }
            KeyMaterial::Hmac(secret)
        }
        (Some(_), _) => return Ok(None),
        (None, _) => return Err(BadValue::new("this key has no `kty`", EMPTY_HELP)),
    };
    if let Some(algorithm) = algorithm
        && !material.fits(algorithm)
    {
        let message = format!("{} cannot use a key of this kind", algorithm.name());
        return Err(BadValue::new(message, "correct `alg`, or remove it"));
    }
    let id = fields.text("kid");
    if let Some(id) = id
        && id.len() > MAX_ID
    {
        let message = format!("the id `{}` of this key is too long", Short(id));
        return Err(BadValue::new(
            message,
            format!("use at most {MAX_ID} bytes"),
        ));
    }
    Ok(Some(Jwk {
        id: id.map(str::to_owned),
        algorithm,
        material,
    }))
}
