//! Reservations, leases and usage of Tollgate's own gRPC service.

#![allow(clippy::unwrap_used)] // Test helpers may panic.

#[path = "common/grpc.rs"]
mod common;
#[path = "common/own.rs"]
mod own;

use common::Grpc;
use own::{Client, TollgateClient, attributes, check, pb};
use tonic::Code;

const RULES: &str = r"
version: 1
rules:
  - { id: tokens, match: { action: llm }, per: [tenant], algorithm: fixed-window, limit: 1000, window: 365d }
  - { id: jobs, match: { action: job }, per: [tenant], algorithm: concurrency, limit: 2, lease: 30s, max_lease: 1h }
";

async fn server() -> (Grpc, Client) {
    let server = Grpc::start(RULES).await;
    let client = TollgateClient::new(server.channel().await);
    (server, client)
}

fn wish(cost: u64, key: Option<&str>) -> pb::ReserveRequest {
    pb::ReserveRequest {
        attributes: attributes([("action", "llm"), ("tenant", "acme")]),
        cost: Some(cost),
        ttl_millis: None,
        idempotency_key: key.map(str::to_owned),
    }
}

async fn reserve(client: &mut Client, cost: u64, key: Option<&str>) -> pb::ReserveResponse {
    client.reserve(wish(cost, key)).await.unwrap().into_inner()
}

async fn commit(
    client: &mut Client,
    id: &str,
    actual: u64,
) -> Result<pb::Reservation, tonic::Status> {
    let request = pb::CommitRequest {
        id: id.to_owned(),
        actual: Some(actual),
    };
    client
        .commit(request)
        .await
        .map(tonic::Response::into_inner)
}

async fn left(client: &mut Client) -> u64 {
    let peek = check([("action", "llm"), ("tenant", "acme")]);
    let peeked = client.peek(peek).await.unwrap().into_inner();
    peeked.remaining.unwrap()
}

#[tokio::test]
async fn reservation_is_settled_once() {
    let (_server, mut client) = server().await;
    let answer = reserve(&mut client, 600, Some("call 1")).await;
    assert!(answer.allowed && !answer.repeated);
    let held = answer.reservation.unwrap();
    assert_eq!(
        (&*held.state, held.cost, held.actual),
        ("RESERVED", 600, None)
    );
    assert_eq!(answer.decision.unwrap().remaining, Some(400));
    let again = reserve(&mut client, 600, Some("call 1")).await;
    assert!(again.allowed && again.repeated && again.decision.is_none());
    assert_eq!(again.reservation.unwrap().id, held.id);
    let refused = reserve(&mut client, 600, None).await;
    assert!(!refused.allowed && refused.reservation.is_none());
    assert_eq!(
        refused.decision.unwrap().code.as_deref(),
        Some("RATE_LIMIT")
    );

    let extend = pb::ExtendRequest {
        id: held.id.clone(),
        ttl_millis: 600_000,
    };
    let extended = client.extend(extend).await.unwrap().into_inner();
    assert!(extended.expires_at_epoch_millis > held.expires_at_epoch_millis);
    for _ in 0..2 {
        let ended = commit(&mut client, &held.id, 120).await.unwrap();
        assert_eq!((&*ended.state, ended.actual), ("CONSUMED", Some(120)));
        assert_eq!(left(&mut client).await, 880);
    }
    let get = pb::GetReservationRequest {
        id: held.id.clone(),
    };
    let found = client.get_reservation(get).await.unwrap().into_inner();
    assert_eq!((&*found.state, found.actual), ("CONSUMED", Some(120)));

    let other = reserve(&mut client, 80, None).await.reservation.unwrap();
    for _ in 0..2 {
        let release = pb::ReleaseRequest {
            id: other.id.clone(),
        };
        let ended = client.release(release).await.unwrap().into_inner();
        assert_eq!((&*ended.state, ended.actual), ("RELEASED", None));
    }
    assert_eq!(left(&mut client).await, 880);
}

#[tokio::test]
async fn each_error_has_its_status() {
    let (_server, mut client) = server().await;
    let first = reserve(&mut client, 10, Some("k")).await;
    let id = first.reservation.unwrap().id;
    let conflict = client.reserve(wish(11, Some("k"))).await.unwrap_err();
    assert_eq!(conflict.code(), Code::AlreadyExists, "{conflict}");
    commit(&mut client, &id, 7).await.unwrap();
    let ended = commit(&mut client, &id, 8).await.unwrap_err();
    assert_eq!(ended.code(), Code::FailedPrecondition);
    assert!(ended.message().contains("7 of 10 units"), "{ended}");
    let nobodys = format!("h1-00000000-{}", "0".repeat(32));
    let unknown = commit(&mut client, &nobodys, 7).await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);
    for (id, actual) in [
        ("", Some(1)),
        ("x", Some(1)),
        (&*id, None),
        (&*id, Some(1 << 52)),
    ] {
        let request = pb::CommitRequest {
            id: id.to_owned(),
            actual,
        };
        let wrong = client.commit(request).await.unwrap_err();
        assert_eq!(wrong.code(), Code::InvalidArgument, "{id} {actual:?}");
    }
    for ttl_millis in [0, 99, 86_400_001, u64::MAX] {
        let request = pb::ReserveRequest {
            ttl_millis: Some(ttl_millis),
            ..wish(1, None)
        };
        let wrong = client.reserve(request).await.unwrap_err();
        assert_eq!(wrong.code(), Code::InvalidArgument, "{ttl_millis}: {wrong}");
    }
    for key in ["", "a\0b", &"k".repeat(257)] {
        let wrong = client.reserve(wish(1, Some(key))).await.unwrap_err();
        assert_eq!(wrong.code(), Code::InvalidArgument, "{key:?}: {wrong}");
    }
    let usage = pb::GetUsageRequest {
        tenant: "acme".to_owned(),
        ..pb::GetUsageRequest::default()
    };
    let unkept = client.get_usage(usage.clone()).await.unwrap_err();
    assert_eq!(unkept.code(), Code::FailedPrecondition, "{unkept}");
    let july = pb::GetUsageRequest {
        period: Some("July".to_owned()),
        ..usage
    };
    let wrong = client.get_usage(july).await.unwrap_err();
    assert_eq!(wrong.code(), Code::InvalidArgument, "{wrong}");
}

fn job(wait_millis: u64) -> pb::AcquireLeaseRequest {
    pb::AcquireLeaseRequest {
        attributes: attributes([("action", "job"), ("tenant", "acme")]),
        ttl_millis: None,
        owner: "worker".to_owned(),
        wait_millis,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_are_acquired_renewed_and_released_by_their_owners() {
    let (_server, mut client) = server().await;
    let first = client.acquire_lease(job(0)).await.unwrap().into_inner();
    assert!(first.allowed && first.decision.unwrap().allowed);
    let (lease, token) = (first.lease.unwrap(), first.token.unwrap());
    assert_eq!((&*lease.state, &*lease.owner), ("HELD", "worker"));
    let second = client.acquire_lease(job(0)).await.unwrap().into_inner();
    assert!(second.lease.unwrap().fence > lease.fence);
    let refused = client.acquire_lease(job(0)).await.unwrap().into_inner();
    assert!(!refused.allowed && refused.lease.is_none() && refused.token.is_none());

    let holders = pb::ListHoldersRequest {
        attributes: job(0).attributes,
    };
    let holders = client.list_holders(holders).await.unwrap().into_inner();
    let [rule] = &holders.rules[..] else {
        panic!("{holders:?}");
    };
    assert_eq!(
        (&*rule.rule_id, rule.limit, rule.truncated),
        ("jobs", 2, false)
    );
    assert_eq!(rule.holders.len(), 2);

    let renew = |token: &str| pb::RenewLeaseRequest {
        id: lease.id.clone(),
        token: token.to_owned(),
        ttl_millis: Some(3_600_000),
    };
    let renewed = client
        .renew_lease(renew(&token))
        .await
        .unwrap()
        .into_inner();
    assert!(renewed.expires_at_epoch_millis > lease.expires_at_epoch_millis);
    let long = pb::RenewLeaseRequest {
        ttl_millis: Some(3_600_001),
        ..renew(&token)
    };
    let long = client.renew_lease(long).await.unwrap_err();
    assert_eq!(long.code(), Code::InvalidArgument, "{long}");
    let long = pb::AcquireLeaseRequest {
        ttl_millis: Some(3_600_001),
        ..job(0)
    };
    let long = client.acquire_lease(long).await.unwrap_err();
    assert!(long.message().contains("max_lease"), "{long}");
    let stranger = client
        .renew_lease(renew(&"0".repeat(32)))
        .await
        .unwrap_err();
    assert_eq!(stranger.code(), Code::PermissionDenied);
    let wrong = client.renew_lease(renew("x")).await.unwrap_err();
    assert_eq!(wrong.code(), Code::InvalidArgument);

    // A client that waits gets the released slot.
    let waiting = tokio::spawn({
        let mut client = client.clone();
        async move { client.acquire_lease(job(30_000)).await }
    });
    for _ in 0..2 {
        let release = pb::ReleaseLeaseRequest {
            id: lease.id.clone(),
            token: token.clone(),
        };
        let freed = client.release_lease(release).await.unwrap().into_inner();
        assert_eq!(freed.state, "RELEASED");
    }
    assert!(waiting.await.unwrap().unwrap().into_inner().allowed);
    let ended = client.renew_lease(renew(&token)).await.unwrap_err();
    assert_eq!(ended.code(), Code::FailedPrecondition);

    let none = pb::AcquireLeaseRequest {
        attributes: attributes([("action", "other")]),
        ..job(0)
    };
    let none = client.acquire_lease(none).await.unwrap_err();
    assert_eq!(none.code(), Code::FailedPrecondition, "{none}");
    let long = client.acquire_lease(job(30_001)).await.unwrap_err();
    assert_eq!(long.code(), Code::InvalidArgument, "{long}");
}
