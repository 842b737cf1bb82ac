//! Keys that change, and key servers that fail. The clock of these tests is paused.

use super::*;

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

/// Without ids, only the signature shows that a key is new.
#[tokio::test(start_paused = true)]
async fn new_key_without_an_id_is_found() {
    let without_id = |signer: &Signer| {
        let mut key = signer.jwk("");
        key.as_object_mut().unwrap().remove("kid");
        key
    };
    let token = |signer: &Signer, header: Value| signer.token(&header, &claims());
    let (old, new) = (Signer::p256(), Signer::p256());
    let named = json!({ "alg": "ES256", "kid": "new" });
    let unnamed = json!({ "alg": "ES256" });
    for (first, second, header) in [
        (without_id(&old), without_id(&new), unnamed.clone()),
        (old.jwk("old"), new.jwk("new"), unnamed),
        (without_id(&old), new.jwk("new"), named),
    ] {
        let server = KeyServer::new(Ok(json!({ "keys": [first] }).to_string()));
        let authenticator = server.authenticator();
        let of_old = token(&old, json!({ "alg": "ES256" }));
        assert!(verify(&authenticator, &of_old).await.is_ok());
        server.set(&[second]);
        tokio::time::advance(Duration::from_secs(10)).await;
        let of_new = token(&new, header);
        assert!(verify(&authenticator, &of_new).await.is_ok());
        assert_eq!(server.fetches(), 2);
        // Wrong signatures do not flood the key server.
        let wrong = token(&Signer::p256(), json!({ "alg": "ES256" }));
        for _ in 0..100 {
            let found = verify(&authenticator, &wrong).await;
            assert_eq!(found, rejected(TokenError::Signature));
            tokio::time::advance(Duration::from_millis(100)).await;
        }
        assert!(server.fetches() <= 4, "{}", server.fetches());
    }
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
