//! Tokens that attackers send, and the attributes of claims.

use super::*;

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
    let authenticator = super::authenticator(&config(JWT, &[jwks(&[only])]));
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
