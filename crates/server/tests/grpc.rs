//! The behaviour that clients of the gRPC door rely on.

#[path = "common/grpc.rs"]
mod common;

use std::time::Duration;

use common::{Client, Grpc, With, descriptor, header, request};
use tollgate_rig::Redis;
use tollgate_server::grpc::UnknownDomain;
use tollgate_server::grpc::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use tollgate_server::grpc::proto::envoy::r#type::v3::RateLimitUnit;

const RULES: &str = r"
version: 1
rules:
  - { id: key, match: { domain: shop }, per: [api_key], algorithm: sliding-log, limit: 10, window: 1h }
  - { id: route, match: { domain: shop, route: '*' }, per: [route], algorithm: gcra, rate: 20/m }
  - { id: burst, match: { domain: shop, kind: burst }, algorithm: gcra, rate: 100/m, burst: 20 }
  - { id: log, match: { domain: shop, kind: log }, algorithm: sliding-log, limit: 3, window: 7d }
  - { id: counter, match: { domain: shop, kind: counter }, algorithm: sliding-counter, limit: 3, window: 1d }
  - { id: bucket, match: { domain: shop, kind: bucket }, algorithm: token-bucket, capacity: 3, refill: 3/s }
  - { id: leaky, match: { domain: shop, kind: leaky }, algorithm: leaky-bucket, rate: 1/s, queue: 2 }
  - { id: watch, match: { domain: shop, kind: watch }, algorithm: fixed-window, limit: 1, window: 1h, state: shadow }
  - { id: open, match: { domain: shop, kind: open }, algorithm: gcra, rate: unlimited }
  - { id: user, match: { domain: shop, kind: user }, per: [user], missing: deny, algorithm: fixed-window, limit: 1, window: 1h }
  - { id: tokens, match: { domain: shop, kind: tokens }, algorithm: token-bucket, capacity: 100, refill: 100/d, charge_denied: true }
";

async fn client(yaml: &str) -> (Grpc, Client) {
    let server = Grpc::start(yaml).await;
    let client = server.client().await;
    (server, client)
}

#[tokio::test]
async fn each_descriptor_has_its_status() {
    let (_server, mut client) = client(RULES).await;
    let kind = |kind| descriptor([("kind", kind)]);
    for (descriptors, expected) in [
        (
            vec![descriptor([("api_key", "k1")])],
            "OK: OK key 10/HOUR left 9",
        ),
        (
            vec![descriptor([("route", "/a")])],
            "OK: OK route 20/MINUTE left 19",
        ),
        // 20 at once come back in 12 seconds. No unit has that length.
        (vec![kind("burst")], "OK: OK burst 20/UNKNOWN left 19"),
        (vec![kind("log")], "OK: OK log 3/WEEK left 2"),
        (vec![kind("counter")], "OK: OK counter 3/DAY left 2"),
        (vec![kind("bucket")], "OK: OK bucket 3/SECOND left 2"),
        (vec![kind("leaky")], "OK: OK leaky 3/UNKNOWN left 2"),
        // A shadow rule, a rule without a bound, and no rule at all.
        (
            vec![kind("watch"), kind("watch"), kind("open"), kind("none")],
            "OK: OK, OK, OK, OK",
        ),
        // The descriptor lacks an attribute: how much is left is not known.
        (vec![kind("user")], "OVER_LIMIT: OVER_LIMIT"),
        // Two rules apply, and the one with the least left is reported.
        (
            vec![
                descriptor([("api_key", "k1"), ("route", "/a")]),
                descriptor([("api_key", "k2")]),
            ],
            "OK: OK key 10/HOUR left 8, OK key 10/HOUR left 9",
        ),
        (
            vec![kind("user"), descriptor([("api_key", "k1")])],
            "OVER_LIMIT: OVER_LIMIT, OK key 10/HOUR left 8",
        ),
    ] {
        let mut request = request([]);
        request.descriptors = descriptors;
        assert_eq!(client.words(request.clone()).await, expected, "{request:?}");
    }
}

#[tokio::test]
async fn all_descriptors_are_charged_or_none() {
    let (_server, mut client) = client(RULES).await;
    let (key, log) = (
        descriptor([("api_key", "k")]),
        descriptor([("kind", "log")]),
    );
    for left in [2, 1, 0] {
        let expected = format!(
            "OK: OK log 3/WEEK left {left}, OK key 10/HOUR left {}",
            left + 7
        );
        assert_eq!(
            client.words(request([log.clone(), key.clone()])).await,
            expected
        );
    }
    for _ in 0..3 {
        assert_eq!(
            client.words(request([log.clone(), key.clone()])).await,
            "OVER_LIMIT: OVER_LIMIT log 3/WEEK left 0, OK key 10/HOUR left 7"
        );
    }
    // The same subject twice: both count.
    assert_eq!(
        client
            .words(request([key.clone().hits(4), key.clone().hits(4)]))
            .await,
        "OVER_LIMIT: OK key 10/HOUR left 7, OVER_LIMIT key 10/HOUR left 7"
    );
    assert_eq!(
        client
            .words(request([key.clone().hits(4), key.hits(3)]))
            .await,
        "OK: OK key 10/HOUR left 3, OK key 10/HOUR left 0"
    );
}

#[tokio::test]
async fn hits_of_the_request_apply_unless_the_descriptor_has_its_own() {
    let (_server, mut client) = client(RULES).await;
    let (k1, k2) = (
        descriptor([("api_key", "k1")]),
        descriptor([("api_key", "k2")]),
    );
    let mut two = request([k1.clone().hits(5), k2.clone()]);
    two.hits_addend = 3;
    assert_eq!(
        client.words(two).await,
        "OK: OK key 10/HOUR left 5, OK key 10/HOUR left 7"
    );
    // 0 hits of a descriptor charge nothing.
    let look = || request([k1.clone().hits(0)]);
    assert_eq!(client.words(look()).await, "OK: OK key 10/HOUR left 5");
    assert_eq!(
        client.words(request([k1.clone().hits(5)])).await,
        "OK: OK key 10/HOUR left 0"
    );
    assert_eq!(
        client.words(look()).await,
        "OVER_LIMIT: OVER_LIMIT key 10/HOUR left 0"
    );
    // Negative hits give back, capped at what was charged.
    let back = |hits| request([k1.clone().hits(hits).negative()]);
    assert_eq!(client.words(back(4)).await, "OK: OK key 10/HOUR left 4");
    assert_eq!(client.words(back(400)).await, "OK: OK key 10/HOUR left 10");
    // More than the limit ever allows.
    let answer = client.ask(request([k2.hits(11)])).await.unwrap();
    assert_eq!(answer.overall_code(), Code::OverLimit);
    assert_eq!(header(&answer, "retry-after"), None);
}

#[tokio::test]
async fn hits_reported_later_use_up_a_rule_that_charges_denials() {
    let (_server, mut client) = client(RULES).await;
    let tokens = || descriptor([("kind", "tokens")]);
    let left = async |client: &mut Client| client.words(request([tokens().hits(0)])).await;
    client.ask(request([tokens().hits(90)])).await.unwrap();
    assert_eq!(left(&mut client).await, "OK: OK tokens 100/DAY left 10");
    client.ask(request([tokens().hits(500)])).await.unwrap();
    assert_eq!(
        left(&mut client).await,
        "OVER_LIMIT: OVER_LIMIT tokens 100/DAY left 0"
    );
}

#[tokio::test]
async fn limit_of_a_descriptor_replaces_the_numbers_of_the_rule() {
    let (_server, mut client) = client(RULES).await;
    let kind = |kind| descriptor([("kind", kind)]);
    let hour = RateLimitUnit::Hour;
    for (descriptor, expected) in [
        (
            kind("log").limit(5, RateLimitUnit::Second),
            "OK log 5/SECOND left 4",
        ),
        (
            kind("counter").limit(5, RateLimitUnit::Minute),
            "OK counter 5/MINUTE left 4",
        ),
        (kind("bucket").limit(5, hour), "OK bucket 5/HOUR left 4"),
        (
            kind("burst").limit(5, RateLimitUnit::Day),
            "OK burst 5/DAY left 4",
        ),
        (
            kind("open").limit(5, RateLimitUnit::Month),
            "OK open 5/MONTH left 4",
        ),
        (
            descriptor([("api_key", "k")]).limit(5, RateLimitUnit::Year),
            "OK key 5/YEAR left 4",
        ),
        // A leaky bucket keeps its queue.
        (
            kind("leaky").limit(60, RateLimitUnit::Minute),
            "OK leaky 3/UNKNOWN left 2",
        ),
        // Without a rule there is no limit.
        (kind("none").limit(5, hour), "OK"),
    ] {
        let answer = client.words(request([descriptor.clone()])).await;
        assert_eq!(answer, format!("OK: {expected}"), "{descriptor:?}");
    }
    // A rate without a burst has no window that could end.
    let known = [
        ("log", " log 0/HOUR left 0"),
        ("counter", " counter 0/HOUR left 0"),
    ];
    for (name, figures) in known
        .into_iter()
        .chain([("burst", ""), ("leaky", ""), ("open", "")])
    {
        let answer = client.words(request([kind(name).limit(0, hour)])).await;
        assert_eq!(answer, format!("OVER_LIMIT: OVER_LIMIT{figures}"));
    }
    // If a request brings its own limit, the units used so far still count.
    let k = || descriptor([("api_key", "k")]);
    assert_eq!(
        client.words(request([k()])).await,
        "OK: OK key 10/HOUR left 8"
    );
    let more = k().limit(1000, hour).hits(500);
    assert_eq!(
        client.words(request([more])).await,
        "OK: OK key 1000/HOUR left 498"
    );
    assert_eq!(
        client.words(request([k()])).await,
        "OVER_LIMIT: OVER_LIMIT key 10/HOUR left 0"
    );
}

#[tokio::test]
async fn headers_are_those_of_the_deciding_rule() {
    let families = "headers: { families: [ietf, ratelimit, x-ratelimit] }\n";
    let (_server, mut client) = client(&format!("{RULES}{families}")).await;
    let (key, log) = (
        descriptor([("api_key", "k")]),
        descriptor([("kind", "log")]),
    );
    let answer = client
        .ask(request([key.clone(), log.clone()]))
        .await
        .unwrap();
    assert_eq!(
        header(&answer, "ratelimit-policy").unwrap(),
        "\"log\";q=3;w=604800"
    );
    assert_eq!(
        header(&answer, "ratelimit").unwrap(),
        "\"log\";r=2;t=604800"
    );
    assert_eq!(header(&answer, "ratelimit-limit").unwrap(), "3");
    assert_eq!(header(&answer, "ratelimit-remaining").unwrap(), "2");
    assert_eq!(header(&answer, "ratelimit-reset").unwrap(), "604800");
    assert_eq!(header(&answer, "x-ratelimit-limit").unwrap(), "3");
    assert_eq!(header(&answer, "x-ratelimit-remaining").unwrap(), "2");
    assert!(header(&answer, "x-ratelimit-reset").is_some());
    assert_eq!(header(&answer, "retry-after"), None);
    let reset = answer.statuses[1].duration_until_reset.unwrap();
    assert_eq!((reset.seconds, reset.nanos), (604_800, 0));

    let refused = client
        .ask(request([key.clone().hits(20), log.hits(2)]))
        .await
        .unwrap();
    assert_eq!(refused.overall_code(), Code::OverLimit);
    // 20 never fit into 10, so no wait helps.
    assert_eq!(header(&refused, "ratelimit-limit").unwrap(), "10");
    assert_eq!(header(&refused, "retry-after"), None);
    client.ask(request([key.clone().hits(9)])).await.unwrap();
    let refused = client.ask(request([key.clone()])).await.unwrap();
    let wait: u64 = header(&refused, "retry-after").unwrap().parse().unwrap();
    assert!((1..=3600).contains(&wait), "{wait}");

    let many = client
        .ask(request([key.limit(50, RateLimitUnit::Minute)]))
        .await
        .unwrap();
    assert_eq!(
        header(&many, "ratelimit-policy").unwrap(),
        "\"key\";q=50;w=60"
    );
    let none = client
        .ask(request([descriptor([("kind", "none")])]))
        .await
        .unwrap();
    assert_eq!(none.response_headers_to_add, []);
}

#[tokio::test]
async fn header_families_are_selectable() {
    for (families, prefix) in [
        ("", "ratelimit"),
        ("headers: { families: [x-ratelimit] }\n", "x-ratelimit"),
    ] {
        let server = Grpc::start(&format!("{RULES}{families}")).await;
        let key = request([descriptor([("api_key", "k")])]);
        let answer = server.client().await.ask(key).await.unwrap();
        let names: Vec<&str> = answer
            .response_headers_to_add
            .iter()
            .map(|it| it.key.as_str())
            .collect();
        let expected = ["limit", "remaining", "reset"].map(|field| format!("{prefix}-{field}"));
        assert_eq!(names, expected);
    }
}

#[tokio::test]
async fn unknown_domain_is_allowed_or_denied() {
    let rules = RULES.replace("domain: shop", "domain: [shop, 'eu-*']");
    let general = "  - { id: all, per: [ip], algorithm: fixed-window, limit: 1, window: 1h";
    // A rule without a domain applies to all of them; a disabled rule applies to none.
    let with_general = format!("{rules}{general} }}\n");
    let with_disabled = format!("{rules}{general}, state: disabled }}\n");
    let (allowed, denied) = ("OK: OK, OK", "OVER_LIMIT: OVER_LIMIT, OVER_LIMIT");
    for (rules, unknown_domain, domain, expected) in [
        (&rules, UnknownDomain::Allow, "bank", allowed),
        (&rules, UnknownDomain::Deny, "bank", denied),
        (&rules, UnknownDomain::Deny, "shop", allowed),
        (&rules, UnknownDomain::Deny, "eu-west", allowed),
        (&with_general, UnknownDomain::Deny, "bank", allowed),
        (&with_disabled, UnknownDomain::Deny, "bank", denied),
    ] {
        let unknown = unknown_domain.name();
        let door = format!("{{ address: \"127.0.0.1:0\", unknown_domain: {unknown} }}");
        let rules = format!("{rules}server: {{ grpc: {door} }}\n");
        let server = Grpc::start(&rules).await;
        let mut request = request([descriptor([("kind", "x")]), descriptor([("kind", "y")])]);
        request.domain = domain.to_owned();
        let words = server.client().await.words(request).await;
        assert_eq!(words, expected, "{unknown_domain:?} {domain}");
    }
}

#[tokio::test]
async fn bad_requests_are_rejected_by_name_and_charge_nothing() {
    let (_server, mut client) = client(RULES).await;
    let key = || descriptor([("api_key", "k")]);
    let mut nameless = request([key()]);
    nameless.domain.clear();
    let mut long = request([key()]);
    long.domain = "d".repeat(1025);
    let mut many = request([]);
    many.descriptors = vec![key(); 65];
    let mut wide = descriptor([]);
    wide.entries = (0..33)
        .map(|n| {
            descriptor([(format!("k{n}").as_str(), "")])
                .entries
                .remove(0)
        })
        .collect();
    let mut unknown = key().limit(1, RateLimitUnit::Second);
    unknown.limit.as_mut().unwrap().unit = 99;
    let long_value = "v".repeat(1025);
    for (request, says) in [
        (nameless, "has no domain"),
        (long, "the domain has 1025 bytes; at most 1024 are allowed"),
        (request([]), "no descriptors"),
        (many, "65 descriptors; at most 64"),
        (
            request([key(), descriptor([])]),
            "descriptor 1 has no entries",
        ),
        (request([wide]), "descriptor 0 has 33 entries; at most 32"),
        (request([descriptor([("", "x")])]), "not an attribute name"),
        (
            request([descriptor([("a b", "x")])]),
            "has the key \"a b\", which is not an attribute name",
        ),
        (
            request([descriptor([("domain", "bank")])]),
            "is reserved for the domain",
        ),
        (
            request([descriptor([("a", "1"), ("a", "2")])]),
            "the key a twice",
        ),
        (
            request([descriptor([("a", &long_value)])]),
            "a value of 1025 bytes for a; at most 1024",
        ),
        (
            request([key().hits(1 << 52)]),
            "hits_addend 4503599627370496; at most",
        ),
        (
            request([key().limit(1, RateLimitUnit::Unknown)]),
            "an unknown unit",
        ),
        (request([unknown]), "an unknown unit"),
        (
            request([
                key(),
                descriptor([("route", "r")]).limit(999_999_937, RateLimitUnit::Day),
            ]),
            "descriptor 1 has a limit that cannot be applied",
        ),
    ] {
        let words = client.words(request).await;
        assert!(
            words.starts_with("InvalidArgument: ") && words.contains(says),
            "{says}: {words}"
        );
    }
    assert_eq!(
        client.words(request([key()])).await,
        "OK: OK key 10/HOUR left 9"
    );
}

#[tokio::test]
async fn too_many_charges_in_one_request_are_rejected() {
    let rule = |n| format!("  - {{ id: r{n}, algorithm: fixed-window, limit: 100, window: 1h }}\n");
    let rules: String = (0..4).map(rule).collect();
    let (_server, mut client) = client(&format!("version: 1\nrules:\n{rules}")).await;
    let mut many = request([]);
    many.descriptors = vec![descriptor([("a", "b")]); 63];
    assert!(client.words(many.clone()).await.starts_with("OK: "));
    many.descriptors.push(descriptor([("a", "b")]));
    let words = client.words(many).await;
    assert!(words.starts_with("InvalidArgument: "), "{words}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_clients_get_exactly_the_limit() {
    let rules = "version: 1\nrules:\n  - { id: all, algorithm: fixed-window, limit: 1000, window: 10d }\n\
                 \x20 - { id: other, match: { a: b }, algorithm: sliding-log, limit: 1500, window: 10d }\n";
    let (server, client) = client(rules).await;
    let clients = (0..64).map(|_| {
        let mut client = client.clone();
        tokio::spawn(async move {
            let mut admitted = 0;
            for _ in 0..40 {
                let both = request([descriptor([("a", "c")]), descriptor([("c", "d")])]);
                admitted += u32::from(client.ask(both).await.unwrap().overall_code() == Code::Ok);
            }
            admitted
        })
    });
    let mut admitted = 0;
    for client in clients.collect::<Vec<_>>() {
        admitted += client.await.unwrap();
    }
    assert_eq!(admitted, 500, "two of a thousand each");
    assert_eq!(server.engine.metrics().counts()[0].allowed, 1000);
}

/// Rules of every failure policy, and one without a policy.
fn rules_on(redis: &Redis) -> String {
    let rule = |id: &str, more: &str| {
        format!(
            "  - {{ id: {id}, match: {{ kind: {id} }}, per: [user], \
             algorithm: sliding-log, limit: 3, window: 10m{more} }}\n"
        )
    };
    format!(
        "version: 1\nsubjects: {{ hash_secret: 0123456789abcdef }}\n\
         store: {{ redis: {{ url: \"{}\", denial_cache: off, timeout: 1s, connect_timeout: 1s, \
         circuit_breaker: {{ timeout_duration: 1ms }} }} }}\nrules:\n{}{}{}{}",
        redis.url(),
        rule("open", ", on_store_failure: fail-open"),
        rule("closed", ", on_store_failure: fail-closed"),
        rule("local", ", on_store_failure: local-fallback"),
        rule("none", "")
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_decides_all_descriptors_in_one_step_and_policies_decide_without_it() {
    let redis = Redis::start();
    let (_server, mut client) = client(&rules_on(&redis)).await;
    let kind = |kind| descriptor([("kind", kind), ("user", "ann")]);
    let both = || request([kind("none").hits(2), kind("local").hits(1)]);
    assert_eq!(
        client.words(both()).await,
        "OK: OK none 3/UNKNOWN left 1, OK local 3/UNKNOWN left 2"
    );
    assert_eq!(
        client.words(both()).await,
        "OVER_LIMIT: OVER_LIMIT none 3/UNKNOWN left 1, OK local 3/UNKNOWN left 2"
    );
    let more = kind("none").hits(2).limit(10, RateLimitUnit::Hour);
    assert_eq!(
        client.words(request([more])).await,
        "OK: OK none 10/HOUR left 6"
    );
    assert_eq!(
        client.words(request([kind("none").hits(0)])).await,
        "OVER_LIMIT: OVER_LIMIT none 3/UNKNOWN left 0"
    );
    let back = kind("none").hits(3).negative();
    assert_eq!(
        client.words(request([back])).await,
        "OK: OK none 3/UNKNOWN left 2"
    );

    redis.kill();
    let unavailable = "Unavailable: limits cannot be checked at the moment";
    assert_eq!(client.words(request([kind("none")])).await, unavailable);
    assert_eq!(
        client.words(request([kind("open"), kind("none")])).await,
        unavailable
    );
    assert_eq!(
        client.words(request([kind("none").hits(0)])).await,
        unavailable
    );
    assert_eq!(
        client.words(request([kind("open").hits(9)])).await,
        "OK: OK"
    );
    // A policy that denies has decided, so Envoy's own policy does not apply.
    let closed = client
        .ask(request([kind("closed"), kind("none")]))
        .await
        .unwrap();
    assert_eq!(closed.overall_code(), Code::OverLimit);
    assert_eq!(header(&closed, "retry-after").unwrap(), "5");
    let local = client.words(request([kind("local").hits(3)])).await;
    assert_eq!(local, "OK: OK local 3/UNKNOWN left 0");
    let back = client
        .words(request([kind("none").hits(1).negative()]))
        .await;
    assert_eq!(back, "Unavailable: hits cannot be given back at the moment");

    redis.restart();
    for _ in 0..1000 {
        if client.words(request([kind("none")])).await != unavailable {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("Redis does not decide again");
}
