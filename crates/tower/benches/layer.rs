//! What the layer adds to an axum request: `cargo xtask bench tower`.
//!
//! Both routers answer the same request in turns, on one thread, without a network. The figure is the median of
//! the differences. The exit code is 1 if the bar is missed.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark")]

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use futures_util::FutureExt;
use http::Request;
use tollgate::{Limiter, Stopwatch};
use tollgate_tower::TollgateLayer;
use tower::Service;

/// The most that the layer may add.
const BAR: Duration = Duration::from_nanos(1500);

const RULES: &str = "
version: 1
rules:
  - { id: api, per: [tenant], algorithm: gcra, rate: 1000000000/s, burst: 1000000000 }
  - { id: user, per: [tenant, user], algorithm: gcra, rate: 1000000000/s, burst: 1000000000 }
";

fn round(app: &mut Router, requests: u32) -> Duration {
    let watch = Stopwatch::new();
    let started = watch.start();
    for number in 0..requests {
        let user = ["ann", "bob", "eve", "joe"][(number % 4) as usize];
        let request = Request::get("/")
            .header("x-tenant", "acme")
            .header("x-user", user);
        let request = request.body(Body::empty()).unwrap();
        let answer = app.call(request).now_or_never().unwrap().unwrap();
        assert_eq!(black_box(answer).status(), 200);
    }
    Duration::from_nanos(watch.nanos_since(started)) / requests
}

fn main() -> ExitCode {
    let quick = std::env::args().any(|it| it == "--quick");
    let (rounds, requests) = if quick { (3, 100) } else { (101, 20_000) };
    let limiter = Arc::new(Limiter::from_yaml("rules.yaml", RULES).unwrap());
    let layer = TollgateLayer::new(limiter, |request| {
        request.set_from_header("tenant", "x-tenant");
        request.set_from_header("user", "x-user");
    });
    let plain = Router::new().route("/", get(|| async { "hello" }));
    let (mut limited, mut plain) = (plain.clone().layer(layer), plain);
    let mut figures = Vec::new();
    for _ in 0..rounds {
        let without = round(&mut plain, requests);
        let with = round(&mut limited, requests);
        figures.push((with.saturating_sub(without), without, with));
    }
    figures.sort();
    let (added, without, with) = figures[figures.len() / 2];
    let verdict = if added <= BAR { "met" } else { "missed" };
    println!("two rules in memory, {rounds} rounds of {requests} requests");
    println!("an axum request without the layer: {without:?}");
    println!("with the layer:                    {with:?}");
    println!("the layer adds:                    {added:?} (bar: at most {BAR:?}: {verdict})");
    match added <= BAR || quick {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
