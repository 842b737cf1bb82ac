//! Denials at the gRPC door: held back, and with bodies from templates.

#![allow(clippy::unwrap_used, clippy::panic)] // Test helpers may panic.

#[path = "common/grpc.rs"]
mod common;
#[path = "common/own.rs"]
mod own;

use std::time::Duration;

use common::{Grpc, descriptor, header, request};
use own::{TollgateClient, check};
use tollgate_server::grpc::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;

const RULES: &str = r#"
version: 1
headers:
  denial_body: { template: "{{rule}} {{dimension}} {{trace_id}}", content_type: text/plain }
rules:
  - { id: delayed, match: { kind: delayed }, algorithm: fixed-window, limit: 0, window: 1000d, delay_denials: 5s }
  - { id: plain, match: { kind: plain }, per: [kind], algorithm: fixed-window, limit: 1, window: 1000d }
  - { id: json, match: { kind: json }, algorithm: fixed-window, limit: 0, window: 1h, denial_body: '{"rule":{{rule}}}' }
"#;

/// Waits until this many denials are held back.
async fn wait_for_held(server: &Grpc, held: usize) {
    let waiting = async {
        while server.engine.denial_delays().held() != held {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waiting)
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_services_hold_denials_back_until_the_server_stops() {
    let mut server = Grpc::start(RULES).await;
    let mut envoy = server.client().await;
    let mut own = TollgateClient::new(server.channel().await);
    let envoy = tokio::spawn(async move {
        let asked = envoy.ask(request([descriptor([("kind", "delayed")])]));
        asked.await.unwrap().overall_code()
    });
    let own = tokio::spawn(async move {
        let decision = own.check(check([("kind", "delayed")])).await;
        decision.unwrap().into_inner().allowed
    });
    wait_for_held(&server, 2).await;
    server.tell_to_stop();
    assert_eq!(envoy.await.unwrap(), Code::OverLimit);
    assert!(!own.await.unwrap());
    assert_eq!(server.engine.denial_delays().held(), 0);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_that_goes_away_ends_its_delay() {
    let server = Grpc::start(RULES).await;
    let mut staying = server.client().await;
    let staying = tokio::spawn(async move {
        let asked = staying.ask(request([descriptor([("kind", "delayed")])]));
        asked.await.unwrap()
    });
    wait_for_held(&server, 1).await;
    let mut leaving = server.client().await;
    let leaving = tokio::spawn(async move {
        let asked = leaving.ask(request([descriptor([("kind", "delayed")])]));
        asked.await
    });
    wait_for_held(&server, 2).await;
    // The request is reset.
    leaving.abort();
    wait_for_held(&server, 1).await;
    // The other denial came before, and is still held back.
    assert!(!staying.is_finished());
    staying.abort();
}

#[tokio::test]
async fn denial_to_envoy_has_the_body_of_a_template() {
    let server = Grpc::start(RULES).await;
    let mut client = server.client().await;
    let plain = || request([descriptor([("kind", "plain")])]);
    let allowed = client.ask(plain()).await.unwrap();
    assert!(allowed.raw_body.is_empty());
    assert_eq!(header(&allowed, "content-type"), None);
    let mut asked = tonic::Request::new(plain());
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    asked
        .metadata_mut()
        .insert("traceparent", parent.parse().unwrap());
    let denied = client
        .0
        .should_rate_limit(asked)
        .await
        .unwrap()
        .into_inner();
    let body = "plain kind 4bf92f3577b34da6a3ce929d0e0e4736";
    assert_eq!(String::from_utf8(denied.raw_body.clone()).unwrap(), body);
    assert_eq!(
        header(&denied, "content-type").as_deref(),
        Some("text/plain")
    );
    let json = client.ask(request([descriptor([("kind", "json")])])).await;
    let json = json.unwrap();
    assert_eq!(json.raw_body, br#"{"rule":"json"}"#);
    assert_eq!(
        header(&json, "content-type").as_deref(),
        Some("application/json")
    );
}
