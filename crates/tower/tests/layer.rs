//! What the layer does with requests: headers, denials, waits, and slots.

#![allow(clippy::unwrap_used)]

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::routing::get;
use axum::{Router, response::IntoResponse};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tokio::time::Instant;
use tollgate::{Attributes, Config, Engine, Limiter, ManualClock, MemoryStore, Time, Traced};
use tollgate_tower::TollgateLayer;
use tower::{Layer, Service, ServiceExt};

/// A limiter whose clock stands still.
type Still = Limiter<Traced<MemoryStore<ManualClock>>>;

fn config(rules: &str) -> Config {
    let yaml = format!("version: 1\nrules: [{rules}]\n");
    tollgate::parse("rules.yaml", &yaml, &|_| None).unwrap()
}

fn limiter(rules: &str) -> Arc<Still> {
    let clock = ManualClock::at(Time::from_micros(1_700_000_000_000_000));
    Arc::new(Limiter::with_clock(&config(rules), clock).unwrap())
}

fn request(user: &str) -> Request<Body> {
    let request = Request::get("/").header("x-user", user);
    request.body(Body::empty()).unwrap()
}

/// An axum server with this limiter. Counts the requests that reach its handler.
fn app(limiter: Arc<Still>) -> (Router, Arc<AtomicUsize>) {
    let calls: Arc<AtomicUsize> = Arc::default();
    let counted = Arc::clone(&calls);
    let handler = move || {
        counted.fetch_add(1, Ordering::Relaxed);
        async { "hello" }
    };
    let layer = TollgateLayer::new(limiter, |request| {
        request.set_from_header("user", "x-user");
    });
    (Router::new().route("/", get(handler)).layer(layer), calls)
}

async fn ask(app: &Router, request: Request<Body>) -> (StatusCode, http::HeaderMap, String) {
    let answer = app.clone().oneshot(request).await.unwrap();
    let (parts, body) = answer.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    (
        parts.status,
        parts.headers,
        String::from_utf8(body.to_vec()).unwrap(),
    )
}

#[tokio::test]
async fn allowed_and_denied_requests_get_the_fields_of_the_server() {
    let limiter =
        limiter("{ id: api, per: [user], algorithm: fixed-window, limit: 1, window: 1h }");
    let (app, calls) = app(limiter);
    let (status, headers, body) = ask(&app, request("ann")).await;
    assert_eq!((status.as_u16(), body.as_str()), (200, "hello"));
    assert_eq!(headers["ratelimit-limit"], "1");
    assert_eq!(headers["ratelimit-remaining"], "0");
    let (status, headers, body) = ask(&app, request("ann")).await;
    assert_eq!(status, 429);
    assert!(headers.contains_key("retry-after"));
    let body: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        (body["code"].as_str(), body["ruleId"].as_str()),
        (Some("RATE_LIMIT"), Some("api"))
    );
    assert_eq!(
        calls.load(Ordering::Relaxed),
        1,
        "a denied request does not reach the service"
    );
    // Another user has an allowance of its own.
    assert_eq!(ask(&app, request("bob")).await.0, 200);
    // A header that is given twice names nobody, and the rule does not apply.
    let mut twice = request("ann");
    twice.headers_mut().append("x-user", "bob".parse().unwrap());
    assert_eq!(ask(&app, twice).await.0, 200);
    let mut problem = request("ann");
    problem
        .headers_mut()
        .insert("accept", "application/problem+json".parse().unwrap());
    let (_, headers, body) = ask(&app, problem).await;
    assert_eq!(headers["content-type"], "application/problem+json");
    assert!(body.contains("\"status\":429"), "{body}");
}

#[tokio::test]
async fn cost_is_taken_and_a_reload_takes_effect() {
    let rules =
        |limit| format!("{{ id: api, algorithm: fixed-window, limit: {limit}, window: 1h }}");
    let limiter = limiter(&rules(10));
    let layer = TollgateLayer::new(Arc::clone(&limiter), |request| request.cost(6));
    let service =
        |_: Request<()>| async { Ok::<_, Infallible>(Response::new(Full::new(Bytes::new()))) };
    let mut service = layer.layer(tower::service_fn(service));
    let mut call = async || {
        let ready = service.ready().await.unwrap();
        let answer = ready.call(Request::new(())).await.unwrap();
        (
            answer.status().as_u16(),
            answer.headers()["ratelimit-limit"].clone(),
        )
    };
    assert_eq!(call().await.0, 200);
    assert_eq!(call().await.0, 429);
    limiter.reload(&config(&rules(20)));
    let (status, limit) = call().await;
    assert_eq!((status, limit.to_str().unwrap()), (200, "20"));
}

const SLOTS: &str = "{ id: slots, per: [user], algorithm: concurrency, limit: 1, lease: 3s }";

fn held(limiter: &Still) -> usize {
    let ann = Attributes::from([("user", "ann")]);
    limiter.holders_now(&ann).unwrap()[0].holders.len()
}

/// Lets the tasks that give leases back run.
async fn settle() {
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn slot_is_held_until_the_body_has_ended() {
    let limiter = limiter(SLOTS);
    let (app, _) = app(Arc::clone(&limiter));
    let first = app.clone().oneshot(request("ann")).await.unwrap();
    assert_eq!((first.status().as_u16(), held(&limiter)), (200, 1));
    assert_eq!(ask(&app, request("ann")).await.0, 429);
    assert_eq!(ask(&app, request("bob")).await.0, 200);
    first.into_body().collect().await.unwrap();
    settle().await;
    assert_eq!(held(&limiter), 0);
    assert_eq!(ask(&app, request("ann")).await.0, 200);
    // A response that is dropped gives its slot back too.
    settle().await;
    let second = app.clone().oneshot(request("ann")).await.unwrap();
    assert_eq!(held(&limiter), 1);
    drop(second);
    settle().await;
    assert_eq!(held(&limiter), 0);
}

#[tokio::test(start_paused = true)]
async fn slot_is_given_back_if_the_client_goes_away_or_the_service_fails() {
    let limiter = limiter(SLOTS);
    let layer = TollgateLayer::new(Arc::clone(&limiter), |request| {
        request.set_from_header("user", "x-user");
    });
    let hangs = tower::service_fn(|_: Request<Body>| async {
        std::future::pending::<()>().await;
        Ok::<_, Infallible>("never".into_response())
    });
    let calling = layer.layer(hangs).oneshot(request("ann"));
    assert!(
        tokio::time::timeout(Duration::from_millis(50), calling)
            .await
            .is_err()
    );
    settle().await;
    assert_eq!(held(&limiter), 0);
    let fails = tower::service_fn(|_: Request<Body>| async { Err::<Response<Body>, _>("failed") });
    assert_eq!(
        layer
            .layer(fails)
            .oneshot(request("ann"))
            .await
            .unwrap_err(),
        "failed"
    );
    settle().await;
    assert_eq!(held(&limiter), 0);
}

#[tokio::test]
async fn cost_is_taken_together_with_a_slot() {
    let quota = "{ id: units, per: [user], algorithm: fixed-window, limit: 10, window: 1h }";
    let layer = TollgateLayer::new(limiter(&format!("{SLOTS}, {quota}")), |request| {
        request.set_from_header("user", "x-user");
        request.cost(6);
    });
    let app = Router::new().route("/", get(|| async { "hello" }));
    let app = app.layer(layer);
    assert_eq!(ask(&app, request("ann")).await.0, 200);
    settle().await;
    let (status, _, body) = ask(&app, request("ann")).await;
    assert_eq!(status, 429, "6 of 10 units are taken");
    assert!(body.contains("\"ruleId\":\"units\""), "{body}");
}

#[tokio::test(start_paused = true)]
async fn shaped_requests_wait_for_their_turn() {
    let limiter =
        limiter("{ id: out, algorithm: leaky-bucket, rate: 10/s, queue: 3, shape: true }");
    let (app, calls) = app(limiter);
    let started = Instant::now();
    let answers = (0..6).map(|_| ask(&app, request("ann")));
    let answers = futures_util::future::join_all(answers).await;
    let statuses: Vec<u16> = answers.iter().map(|(status, ..)| status.as_u16()).collect();
    assert_eq!(
        statuses.iter().filter(|status| **status == 200).count(),
        4,
        "{statuses:?}"
    );
    assert_eq!(
        statuses.iter().filter(|status| **status == 503).count(),
        2,
        "{statuses:?}"
    );
    assert_eq!(calls.load(Ordering::Relaxed), 4);
    // The paused clock advances to the last turn.
    assert!(
        started.elapsed() >= Duration::from_millis(300),
        "{:?}",
        started.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn denials_are_held_back() {
    let rule = "{ id: login, algorithm: fixed-window, limit: 0, window: 1h, delay_denials: 2s }";
    let (app, _) = app(limiter(rule));
    let started = Instant::now();
    assert_eq!(ask(&app, request("ann")).await.0, 429);
    assert!(started.elapsed() >= Duration::from_secs(2));
}

#[tokio::test]
async fn engine_is_a_limiter_too() {
    let config = config("{ id: api, algorithm: fixed-window, limit: 1, window: 1h }");
    let engine = Arc::new(Engine::start(&config).await.unwrap());
    let layer = TollgateLayer::new(Arc::clone(&engine), |_| {});
    tokio::spawn(tollgate_tower::sweep(&engine));
    let app = Router::new()
        .route("/", get(|| async { "hello" }))
        .layer(layer);
    let statuses = [
        ask(&app, request("a")).await.0,
        ask(&app, request("a")).await.0,
    ];
    assert_eq!(statuses, [200, 429]);
}
