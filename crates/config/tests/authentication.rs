//! Key sets and tables of API keys that a config names: what is accepted, and where problems are.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use tollgate_config::{Config, ConfigError, JwtKeys, KeyMaterial, load, other_paths};

/// Loads a config with this section, and one file beside it.
fn load_with(section: &str, file: &str, text: &str) -> Result<Config, ConfigError> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join(file), text).unwrap();
    let path = folder.path().join("config.yaml");
    let config = format!("version: 1\nauthentication: {section}\nrules: []\n");
    std::fs::write(&path, config).unwrap();
    let paths = other_paths(&path);
    assert_eq!(paths, [folder.path().join(file)]);
    load(&path).inspect(|config| assert_eq!(config.other_files(), paths))
}

fn keys(text: &str) -> Result<Config, ConfigError> {
    load_with("{ jwt: { jwks_file: jwks.json } }", "jwks.json", text)
}

fn table(text: &str) -> Result<Config, ConfigError> {
    load_with("{ api_keys: { file: keys.csv } }", "keys.csv", text)
}

#[test]
fn wrong_key_sets_are_rejected_with_their_position() {
    let long = "A".repeat(40);
    let table = [
        ("", "write a JSON Web Key Set"),
        ("[]", "expected a key set"),
        ("{}", "1:1: this is not a key set: it has no `keys`"),
        (r#"{"keys": {}}"#, "1:10: expected a list of keys"),
        (
            r#"{"keys": []}"#,
            "the set has no key that verifies signatures",
        ),
        (
            r#"{"keys": [{"kty": "RSA", "use": "enc"}]}"#,
            "the set has no key",
        ),
        (
            r#"{"keys": [{"alg": "ES256"}]}"#,
            "1:11: this key has no `kty`",
        ),
        (
            r#"{"keys": [{"kty": "EC", "crv": "P-256", "x": "AA"}]}"#,
            "`x` of this key has 1 bytes",
        ),
        (
            r#"{"keys": [{"kty": "OKP", "crv": "Ed25519", "x": "A+"}]}"#,
            "is not base64url",
        ),
        (
            r#"{"keys": [{"kty": "RSA", "n": "AQAB", "e": "AQAB"}]}"#,
            "this RSA key has 24 bits",
        ),
        (
            r#"{"keys": [{"kty": "oct", "k": "aHVudGVyMg"}]}"#,
            "this secret has only 7 bytes",
        ),
        (
            "{\"keys\": [\n{\"kty\": \"oct\", \"alg\": \"ES256\", \"k\": \"LONG\"}]}",
            "2:1: ES256 cannot use a key of this kind",
        ),
    ];
    for (text, expected) in table {
        let error = keys(&text.replace("LONG", &format!("{long}{long}")))
            .unwrap_err()
            .to_string();
        assert!(error.contains(expected), "{text}\n{error}");
        assert!(
            !error.contains("aHVudGVyMg") && !error.contains(&long),
            "{error}"
        );
    }
}

#[test]
fn keys_of_other_kinds_are_ignored() {
    let text = r#"{"keys": [
        {"kty": "EC", "crv": "P-521", "x": "AA", "y": "AA"},
        {"kty": "new", "anything": [1, {"x": 2}]},
        {"kty": "EC", "crv": "secp256k1", "alg": "ES256K"},
        {"kty": "oct", "kid": "only", "k": "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY"}
    ]}"#;
    let config = keys(text).unwrap();
    let JwtKeys::File(_, Some(set)) = config.authentication.jwt.unwrap().keys else {
        panic!("the file was read");
    };
    assert_eq!(set.keys.len(), 1);
    assert_eq!(set.keys[0].id.as_deref(), Some("only"));
    let KeyMaterial::Hmac(secret) = &set.keys[0].material else {
        panic!("a secret");
    };
    assert_eq!(secret, b"0123456789abcdef0123456789abcdef");
    assert!(!format!("{set:?}").contains("0123456789"));
}

#[test]
fn wrong_tables_are_rejected_with_their_position() {
    let hash = "0".repeat(64);
    for (text, expected) in [
        ("", "the table is empty"),
        ("tenant,plan\n", "1:1: there is no column `sha256`"),
        (
            "sha256,key\n",
            "1:8: a table of API keys cannot have a column `key`",
        ),
        ("sha256,ip\n", "no credential can set the attribute `ip`"),
        ("sha256,a b\n", "`a b` cannot be the name of an attribute"),
        (
            "sha256,plan,plan\n",
            "1:13: the column `plan` is given twice",
        ),
        (
            "sha256\nhunter2\n",
            "2:1: this is not a SHA-256 in hexadecimal digits",
        ),
        ("sha256,tenant\n,acme\n", "2:1: this is not a SHA-256"),
        (
            "sha256,revoked\nHASH,maybe\n",
            "2:66: `revoked` is neither true nor false",
        ),
        ("sha256\nHASH\n\nHASH\n", "4:1: this key is listed twice"),
        (
            "sha256\nHASH,x\n",
            "2:66: this row has more cells than columns (1)",
        ),
        ("sha256,a\nHASH,\"x\n", "a quote is not closed"),
    ] {
        let error = table(&text.replace("HASH", &hash)).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}\n{error}");
        assert!(!error.contains("hunter2"), "{error}");
    }
}

#[test]
fn another_table_is_another_version() {
    let row = |hash: char| format!("sha256\n{}\n", hash.to_string().repeat(64));
    let version = |text: &str| table(text).unwrap().policy.version;
    assert_eq!(version(&row('a')), version(&row('a')));
    assert_ne!(version(&row('a')), version(&row('b')));
    let config = table("sha256,tenant\n").unwrap();
    assert!(config.authentication.api_keys.unwrap().table.is_empty());
}

#[test]
fn claim_of_a_limit_is_read_from_tokens() {
    let text = "
version: 1
authentication: { jwt: { secret: 0123456789abcdef0123456789abcdef } }
rules:
  - { id: api, per: [user], algorithm: gcra, rate: 1/s, limit_from: jwt.claims.limits.api, ceiling: 10/s }
";
    let config = tollgate_config::parse("c.yaml", text, &|_| None).unwrap();
    let claims = config.authentication.jwt.unwrap().claims;
    let claims: Vec<_> = claims
        .iter()
        .map(|(name, claim)| (&**name, claim.as_str()))
        .collect();
    assert_eq!(
        claims,
        [("user", "sub"), ("jwt.claims.limits.api", "limits.api")]
    );
}
