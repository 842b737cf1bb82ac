//! The behaviour that clients of Tollgate's own gRPC service rely on.

#![allow(clippy::unwrap_used)] // Test helpers may panic.

#[path = "common/grpc.rs"]
mod common;
#[path = "common/own.rs"]
mod own;

use common::Grpc;
use own::{Client, TollgateClient, attributes, check, pb};
use tollgate_rig::Redis;
use tonic::Code;

const RULES: &str = r"
version: 1
rules:
  - { id: login, match: { action: login }, per: [user], algorithm: fixed-window, limit: 2, window: 10d }
  - { id: watch, match: { action: login }, per: [user], algorithm: sliding-log, limit: 1, window: 10d, state: shadow }
  - { id: api, match: { action: api }, per: [tenant], algorithm: gcra, rate: 100/h, burst: 20, message: Slow down. }
  - { id: must, match: { action: must }, per: [tenant], missing: deny, algorithm: gcra, rate: 1/s }
  - { id: open, match: { action: open }, algorithm: gcra, rate: unlimited }
  - { id: monthly, match: { action: chat }, per: [tenant], algorithm: quota, limit: 2, grace: 2, period: year }
";

async fn server(yaml: &str) -> (Grpc, Client) {
    let server = Grpc::start(yaml).await;
    let client = TollgateClient::new(server.channel().await);
    (server, client)
}

#[tokio::test]
async fn check_answers_what_http_answers() {
    let (_server, mut client) = server(RULES).await;
    let ann = || check([("action", "login"), ("user", "ann")]);
    let first = client.check(ann()).await.unwrap().into_inner();
    assert!(first.allowed && !first.shadow_denied && !first.degraded);
    assert_eq!(first.rule_id.as_deref(), Some("login"));
    assert_eq!(first.algorithm.as_deref(), Some("fixed-window"));
    assert_eq!(first.kind.as_deref(), Some("rate"));
    assert_eq!((first.limit, first.remaining), (Some(2), Some(1)));
    assert_eq!((first.granted, first.delay_millis), (1, 0));
    assert_eq!(first.subject.as_ref().unwrap().len(), 32);
    assert_eq!(first.guarantee, "atomic");
    assert!(first.reset_at_epoch_millis > Some(first.decided_at_epoch_micros / 1000));
    assert!(!first.config_version.is_empty());
    let none = (&first.code, &first.message, &first.reason, &first.fallback);
    assert_eq!(none, (&None, &None, &None, &None));
    assert_eq!(first.retry_after_millis, None);
    let rules: Vec<_> = first
        .rules
        .iter()
        .map(|it| (&*it.rule_id, it.shadow))
        .collect();
    assert_eq!(rules, [("login", false), ("watch", true)]);

    let second = client.check(ann()).await.unwrap().into_inner();
    assert!(second.allowed && second.shadow_denied);
    assert_eq!(second.rules[1].reason.as_deref(), Some("exceeded"));
    // A denial is an answer, not an error.
    let refused = client.check(ann()).await.unwrap().into_inner();
    assert!(!refused.allowed);
    assert_eq!(refused.code.as_deref(), Some("RATE_LIMIT"));
    assert_eq!(refused.reason.as_deref(), Some("exceeded"));
    assert!(refused.message.unwrap().starts_with("Too many requests."));
    assert!(refused.retry_after_millis.unwrap() > 0);
    assert_eq!(refused.granted, 0);

    let must = client.check(check([("action", "must")])).await.unwrap();
    assert_eq!(must.into_inner().code.as_deref(), Some("MISSING_ATTRIBUTE"));
    let open = client.check(check([("action", "open")])).await.unwrap();
    let open = open.into_inner();
    assert_eq!((open.rule_id.as_deref(), open.limit), (Some("open"), None));
    let none = client.check(check([])).await.unwrap().into_inner();
    assert!(none.allowed && none.rule_id.is_none() && none.rules.is_empty());
}

#[tokio::test]
async fn request_over_quota_within_grace_gets_a_warning() {
    let (_server, mut client) = server(RULES).await;
    let chat = || check([("action", "chat"), ("tenant", "acme")]);
    let warning = Some("over quota, within grace");
    // The remaining units, whether there is a warning, and the remaining units of the grace.
    for (remaining, warns, left) in [
        (1, None, None),
        (0, None, None),
        (0, warning, Some(1)),
        (0, warning, Some(0)),
    ] {
        let told = client.check(chat()).await.unwrap().into_inner();
        assert!(told.allowed);
        assert_eq!((told.limit, told.remaining), (Some(2), Some(remaining)));
        assert_eq!(told.warning.as_deref(), warns);
        let grace = left.map(|remaining| pb::Grace {
            limit: 2,
            remaining,
        });
        assert_eq!(told.rules[0].grace, grace);
    }
    let refused = client.check(chat()).await.unwrap().into_inner();
    assert_eq!((refused.allowed, refused.warning), (false, None));
    assert_eq!(refused.code.as_deref(), Some("QUOTA"));
    let reserve = pb::ReserveRequest {
        attributes: check([("action", "chat"), ("tenant", "zed")]).attributes,
        cost: Some(3),
        ..pb::ReserveRequest::default()
    };
    let reserved = client.reserve(reserve).await.unwrap().into_inner();
    assert_eq!(reserved.decision.unwrap().warning.as_deref(), warning);
}

#[tokio::test]
async fn peek_charges_nothing_and_refund_gives_back() {
    let (_server, mut client) = server(RULES).await;
    let eve = || check([("action", "login"), ("user", "eve")]);
    for _ in 0..3 {
        let peeked = client.peek(eve()).await.unwrap().into_inner();
        assert_eq!((peeked.allowed, peeked.remaining), (true, Some(2)));
    }
    let charged = client.check(eve()).await.unwrap().into_inner();
    let refund = pb::RefundRequest {
        attributes: eve().attributes,
        cost: None,
        charged_at_epoch_micros: Some(charged.decided_at_epoch_micros),
    };
    for _ in 0..2 {
        let refunded = client.refund(refund.clone()).await.unwrap().into_inner();
        assert_eq!(refunded.remaining, Some(2));
    }
    let look = pb::CheckRequest {
        cost: Some(0),
        ..eve()
    };
    let looked = client.check(look).await.unwrap().into_inner();
    assert_eq!((looked.remaining, looked.granted), (Some(2), 0));
    let all = pb::CheckRequest {
        cost: Some(50),
        up_to: true,
        ..check([("action", "api"), ("tenant", "acme")])
    };
    let granted = client.check(all.clone()).await.unwrap().into_inner();
    assert_eq!((granted.allowed, granted.granted), (true, 20));
    let refused = client.check(all).await.unwrap().into_inner();
    assert_eq!(refused.message.as_deref(), Some("Slow down."));
}

#[tokio::test]
async fn batch_decides_each_in_order_and_may_be_larger() {
    let (_server, mut client) = server(RULES).await;
    let joe = check([("action", "login"), ("user", "joe")]);
    let batch = pb::CheckBatchRequest {
        requests: vec![joe; 3],
    };
    let answer = client.check_batch(batch).await.unwrap().into_inner();
    let allowed: Vec<_> = answer.decisions.iter().map(|it| it.allowed).collect();
    assert_eq!(allowed, [true, true, false]);

    let long = "v".repeat(1024);
    let large = check([("a", &long), ("b", &long)]);
    let mut batch = pb::CheckBatchRequest {
        requests: vec![large; 256],
    };
    let answer = client.check_batch(batch.clone()).await.unwrap();
    assert_eq!(answer.into_inner().decisions.len(), 256);
    batch.requests.push(check([]));
    let refused = client.check_batch(batch).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert_eq!(refused.message(), "the batch has 257 requests; at most 256");
    let wrong = pb::CheckBatchRequest {
        requests: vec![check([]), check([("a b", "")])],
    };
    let refused = client.check_batch(wrong).await.unwrap_err();
    assert!(
        refused
            .message()
            .starts_with("request 1 of the batch: \"a b\" is not"),
        "{refused}"
    );
}

#[tokio::test]
async fn bad_messages_are_rejected_by_name() {
    let (server, mut client) = server(RULES).await;
    let long = "v".repeat(1025);
    let mut many = check([]);
    many.attributes = (0..33).map(|n| (format!("a{n}"), String::new())).collect();
    let large = pb::CheckRequest {
        cost: Some(1 << 52),
        ..check([])
    };
    for (request, says) in [
        (many, "more than 32 attributes"),
        (check([("", "x")]), "\"\" is not an attribute name"),
        (check([("a b", "x")]), "\"a b\" is not an attribute name"),
        (
            check([("a", &long)]),
            "the value of attribute a is 1025 bytes long; at most 1024",
        ),
        (large, "a cost of 4503599627370496 is above"),
    ] {
        let refund = pb::RefundRequest {
            attributes: request.attributes.clone(),
            cost: request.cost,
            charged_at_epoch_micros: None,
        };
        for refused in [
            client.check(request.clone()).await,
            client.peek(request).await,
            client.refund(refund).await,
        ] {
            let refused = refused.unwrap_err();
            assert_eq!(refused.code(), Code::InvalidArgument);
            assert!(refused.message().starts_with(says), "{refused}");
        }
    }
    // A message may have 64 KiB, except for batches.
    let mut huge = check([]);
    huge.attributes = attributes([("a", &"v".repeat(70_000))]);
    let refused = client.check(huge).await.unwrap_err();
    assert_eq!(refused.code(), Code::OutOfRange, "{refused}");
    let path = "/tollgate.v1.Tollgate/Other";
    let mut raw = tonic::client::Grpc::new(server.channel().await);
    raw.ready().await.unwrap();
    let codec = tonic_prost::ProstCodec::<pb::CheckRequest, pb::Decision>::default();
    let request = tonic::Request::new(check([]));
    let unknown = raw.unary(request, path.parse().unwrap(), codec).await;
    assert_eq!(unknown.unwrap_err().code(), Code::Unimplemented);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failing_store_is_reported() {
    let redis = Redis::start();
    let rules = format!(
        "version: 1\nsubjects: {{ hash_secret: 0123456789abcdef }}\n\
         store: {{ redis: {{ url: \"{}\", denial_cache: off, timeout: 1s, connect_timeout: 1s }} }}\n\
         rules:\n  - {{ id: plain, match: {{ kind: plain }}, algorithm: fixed-window, limit: 3, window: 10d }}\n\
         \x20 - {{ id: open, match: {{ kind: open }}, algorithm: fixed-window, limit: 3, window: 10d, on_store_failure: fail-open }}\n",
        redis.url()
    );
    let (_server, mut client) = server(&rules).await;
    let kind = |kind| check([("kind", kind)]);
    let answer = client.check(kind("plain")).await.unwrap().into_inner();
    assert_eq!(answer.remaining, Some(2));
    redis.kill();
    // Without the store, a rule without a failure policy denies, and a rule with `fail-open`
    // allows.
    let refused = client.check(kind("plain")).await.unwrap().into_inner();
    assert_eq!(refused.code.as_deref(), Some("STORE_UNAVAILABLE"));
    let open = client.check(kind("open")).await.unwrap().into_inner();
    let expected = (true, Some("fail-open"));
    assert_eq!((open.allowed, open.fallback.as_deref()), expected);
    let refund = pb::RefundRequest {
        attributes: kind("plain").attributes,
        ..pb::RefundRequest::default()
    };
    let failed = client.refund(refund).await.unwrap_err();
    assert_eq!(failed.code(), Code::Unavailable);
}
