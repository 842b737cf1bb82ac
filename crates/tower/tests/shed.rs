//! The layer that sheds requests to a saturated service.

#![allow(clippy::unwrap_used)]

use std::convert::Infallible;
use std::sync::Arc;

use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tokio::sync::Semaphore;
use tollgate::AdaptiveNumbers;
use tollgate_tower::{Degraded, NEVER_SHED, ShedLayer};
use tower::{Layer, Service, ServiceExt};

type Body = Full<bytes::Bytes>;

fn request(class: &str) -> Request<Body> {
    let request = Request::get("/").header("x-class", class);
    request.body(Body::default()).unwrap()
}

fn ten() -> AdaptiveNumbers {
    AdaptiveNumbers {
        min: 10,
        max: 10,
        ..AdaptiveNumbers::default()
    }
}

#[tokio::test]
async fn least_important_requests_are_shed_first() {
    let layer = ShedLayer::new(ten()).unwrap();
    let layer = layer.classes(2, 30, |parts| match parts.headers["x-class"].as_bytes() {
        b"high" => 0,
        _ => 1,
    });
    let layer = layer.unwrap();
    let go = Arc::new(Semaphore::new(0));
    let waits = Arc::clone(&go);
    let inner = tower::service_fn(move |request: Request<Body>| {
        let waits = Arc::clone(&waits);
        async move {
            drop(waits.acquire().await);
            let text = match request.extensions().get::<Degraded>() {
                Some(_) => "cheap",
                None => "whole",
            };
            Ok::<_, Infallible>(Response::new(Body::from(text)))
        }
    });
    let service = layer.layer(inner);
    // The service is always ready.
    let start = |class: &str| tokio::spawn(service.clone().call(request(class)));
    let mut admitted = Vec::new();
    for class in ["low"; 7].into_iter().chain(["high"; 3]) {
        admitted.push(start(class));
    }
    assert_eq!(layer.shedder().in_flight(), 10);
    for class in ["low", "high"] {
        let denied = start(class).await.unwrap().unwrap();
        assert_eq!(denied.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(denied.headers()["retry-after"], "1");
        let body = denied.into_body().collect().await.unwrap().to_bytes();
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body["code"], "SERVICE_SATURATED");
    }
    assert_eq!(layer.shedder().denied().collect::<Vec<_>>(), [1, 1]);
    go.add_permits(10);
    let mut texts = Vec::new();
    for admitted in admitted {
        let response = admitted.await.unwrap().unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        texts.push(response.into_body().collect().await.unwrap().to_bytes());
    }
    // Two of the low ones and two of the high ones used more than 80% of their part.
    let cheap = texts.iter().filter(|text| **text == "cheap").count();
    assert_eq!(cheap, 4);
    assert_eq!(layer.shedder().in_flight(), 0);
    let again = start("low").await.unwrap().unwrap();
    assert_eq!(again.status(), StatusCode::OK);
}

#[tokio::test]
async fn request_that_is_cancelled_frees_its_place() {
    let layer = ShedLayer::new(ten()).unwrap();
    let inner = tower::service_fn(|_: Request<Body>| {
        std::future::pending::<Result<Response<Body>, Infallible>>()
    });
    let mut service = layer.layer(inner);
    let response = service.ready().await.unwrap().call(request("any"));
    assert_eq!(layer.shedder().in_flight(), 1);
    drop(response);
    assert_eq!(layer.shedder().in_flight(), 0);
}

#[tokio::test]
async fn health_checks_are_never_shed() {
    let layer = ShedLayer::new(ten()).unwrap();
    let layer = layer.classes(2, 30, |parts| match parts.headers["x-class"].as_bytes() {
        b"health" => NEVER_SHED,
        _ => 1,
    });
    let layer = layer.unwrap();
    let inner = tower::service_fn(|request: Request<Body>| async move {
        if request.headers()["x-class"] == "health" {
            return Ok::<_, Infallible>(Response::new(Body::default()));
        }
        std::future::pending().await
    });
    let mut service = layer.layer(inner);
    let held: Vec<_> = (0..7).map(|_| service.call(request("low"))).collect();
    assert_eq!(layer.shedder().in_flight(), 7);
    let denied = service.call(request("low")).await.unwrap();
    assert_eq!(denied.status(), StatusCode::SERVICE_UNAVAILABLE);
    let health = service.call(request("health")).await.unwrap();
    assert_eq!(health.status(), StatusCode::OK);
    assert_eq!(layer.shedder().in_flight(), 7);
    drop(held);
}

#[test]
fn reserve_of_more_than_half_is_rejected() {
    let layer = ShedLayer::new(ten()).unwrap();
    assert!(layer.classes(2, 51, |_| 0).is_err());
}
