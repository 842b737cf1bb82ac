//! API keys, certificates, and requests with several credentials.

use super::*;

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
