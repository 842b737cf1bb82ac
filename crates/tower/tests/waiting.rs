//! Requests that wait for their turn in the layer, on virtual time.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::Request;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tollgate::{Clock, Limiter, MemoryStore, Span, Time, Traced};
use tollgate_tower::TollgateLayer;
use tower::ServiceExt;

/// The clock of the store: virtual time.
#[derive(Clone)]
struct TokioClock(Instant);

impl Clock for TokioClock {
    fn now(&self) -> Time {
        let passed = u64::try_from(self.0.elapsed().as_micros()).unwrap();
        Time::from_micros(1_800_000_000_000_000) + Span::from_micros(passed)
    }
}

type Memory = Limiter<Traced<MemoryStore<TokioClock>>>;

fn app(rule: &str) -> (Router, Arc<Memory>) {
    let yaml = format!("version: 1\nrules: [{{ id: all, {rule} }}]\n");
    let config = tollgate::parse("rules.yaml", &yaml, &|_| None).unwrap();
    let limiter = Limiter::with_clock(&config, TokioClock(Instant::now())).unwrap();
    let limiter = Arc::new(limiter);
    let layer = TollgateLayer::new(Arc::clone(&limiter), |_| {});
    let app = Router::new().route("/", get(|| async { "hello" }));
    (app.layer(layer), limiter)
}

/// Sends a request. Returns its status, and the field `retry-after`.
fn send(app: &Router) -> JoinHandle<(u16, String)> {
    let asking = app
        .clone()
        .oneshot(Request::get("/").body(Body::empty()).unwrap());
    tokio::spawn(async move {
        let answer = asking.await.unwrap();
        let retry = answer.headers().get("retry-after");
        let retry = retry.map(|it| it.to_str().unwrap().to_owned());
        (answer.status().as_u16(), retry.unwrap_or_default())
    })
}

#[tokio::test(start_paused = true)]
async fn requests_wait_for_their_turn() {
    let (app, limiter) = app("algorithm: gcra, rate: 10/s, burst: 1, max_wait: 1s");
    let began = Instant::now();
    let requests: Vec<_> = (0..4).map(|_| send(&app)).collect();
    for request in requests {
        assert_eq!(request.await.unwrap().0, 200);
    }
    let passed = began.elapsed();
    assert!(passed >= Duration::from_millis(300), "{passed:?}");
    assert!(passed < Duration::from_millis(310), "{passed:?}");
    assert_eq!(limiter.waiting_room().waiting(), 0);
}

#[tokio::test(start_paused = true)]
async fn full_queue_is_503_and_a_dropped_request_leaves_it() {
    let (app, limiter) = app("algorithm: gcra, rate: 6/m, burst: 1, max_wait: 30s, max_waiting: 1");
    assert_eq!(send(&app).await.unwrap().0, 200);
    let waiting = send(&app);
    sleep(Duration::from_millis(1)).await;
    assert_eq!(limiter.waiting_room().waiting(), 1);
    assert_eq!(send(&app).await.unwrap(), (503, "10".to_owned()));
    waiting.abort();
    sleep(Duration::from_millis(1)).await;
    assert_eq!(limiter.waiting_room().waiting(), 0);
    assert_eq!(limiter.metrics().counts()[0].allowed, 1);
}
