//! One engine, many doors: the same requests get the same answers through HTTP, gRPC, RESP and the
//! library, with state in memory and in Redis.

#![allow(clippy::unwrap_used, clippy::panic)] // Test helpers may panic.

#[path = "common/doors.rs"]
mod doors;

use std::net::SocketAddr;

use doors::Server;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};
use tollgate::{Ask, Attributes, Decision, Engine};
use tollgate_rig::{Redis, Reply, Resp};
use tollgate_server::grpc::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tollgate_server::grpc::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use tollgate_server::grpc::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use tollgate_server::grpc::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use tollgate_server::grpc::proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tonic::transport::Channel;

/// Every algorithm, on windows so long that nothing refills while the test runs.
const RULES: &str = "
rules:
  - { id: gcra, match: { action: [search, buy] }, per: [user], algorithm: gcra, rate: 1/365d, burst: 9 }
  - { id: window, match: { action: [search, login] }, per: [tenant], algorithm: fixed-window, limit: 40, window: 365d }
  - { id: log, match: { action: login }, per: [user], algorithm: sliding-log, limit: 7, window: 365d }
  - { id: counter, match: { action: buy }, per: [tenant], algorithm: sliding-counter, limit: 23, window: 365d }
  - { id: bucket, match: { action: mail }, per: [user], algorithm: token-bucket, capacity: 11, refill: 1/365d, cost: 2 }
  - { id: queue, match: { action: mail }, per: [tenant], algorithm: leaky-bucket, rate: 1/365d, queue: 30, shape: false }
  - { id: shadow, match: { action: buy }, per: [user], algorithm: fixed-window, limit: 2, window: 365d, state: shadow }
  - { id: known, match: { action: pay }, per: [user], missing: deny, algorithm: gcra, rate: 1/365d, burst: 5 }
";

#[derive(Clone, Debug)]
struct Question {
    attributes: Vec<(&'static str, String)>,
    /// 0 charges nothing, and tells whether 1 would be allowed.
    cost: u64,
}

/// The answer of every door.
#[derive(Clone, Debug, PartialEq)]
struct Answer {
    allowed: bool,
    rule: Option<String>,
    limit: Option<u64>,
    remaining: Option<u64>,
}

fn questions(count: usize) -> Vec<Question> {
    let action = prop::sample::select(vec!["search", "buy", "login", "mail", "pay", "other"]);
    let user = prop::option::weighted(0.9, 0_u8..12);
    let question = (action, user, 0_u8..3, 0_u64..4).prop_map(|(action, user, tenant, cost)| {
        let mut attributes = vec![("action", action.to_owned())];
        attributes.push(("tenant", format!("tenant {tenant}")));
        attributes.extend(user.map(|user| ("user", format!("user-{user}"))));
        Question { attributes, cost }
    });
    let mut runner = TestRunner::deterministic();
    let many = prop::collection::vec(question, count);
    many.new_tree(&mut runner).unwrap().current()
}

async fn ask_library(engine: &Engine, question: &Question) -> Answer {
    let mut attributes = Attributes::new();
    for (name, value) in &question.attributes {
        attributes.push(name, value.as_str());
    }
    let decision = match question.cost {
        0 => engine.peek(&attributes, Ask::Exactly(1)).await,
        cost => engine.ask(&attributes, Ask::Exactly(cost)).await,
    };
    of_decision(&decision)
}

async fn ask_grpc(client: &mut RateLimitServiceClient<Channel>, question: &Question) -> Answer {
    let entries = question.attributes.iter().map(|(key, value)| Entry {
        key: (*key).to_owned(),
        value: value.clone(),
    });
    let descriptor = RateLimitDescriptor {
        entries: entries.collect(),
        hits_addend: Some(question.cost),
        ..RateLimitDescriptor::default()
    };
    let request = RateLimitRequest {
        domain: "any".to_owned(),
        descriptors: vec![descriptor],
        hits_addend: 0,
    };
    let answer = client.should_rate_limit(request).await.unwrap();
    let answer = answer.into_inner();
    let status = &answer.statuses[0];
    assert_eq!(status.code, answer.overall_code);
    let limit = status.current_limit.as_ref();
    Answer {
        allowed: status.code == Code::Ok as i32,
        rule: limit.map(|limit| limit.name.clone()),
        limit: limit.map(|limit| u64::from(limit.requests_per_unit)),
        remaining: limit.map(|_| u64::from(status.limit_remaining)),
    }
}

fn of_decision(decision: &Decision) -> Answer {
    let rule = decision.rule();
    let rule = rule.as_ref();
    Answer {
        allowed: decision.is_allowed(),
        rule: rule.map(|rule| rule.rule().id().to_owned()),
        limit: rule.and_then(tollgate::RuleDecision::limit),
        remaining: rule.and_then(tollgate::RuleDecision::remaining),
    }
}

fn ask_http(server: SocketAddr, question: &Question) -> Answer {
    let (path, cost) = match question.cost {
        0 => ("peek", 1),
        cost => ("check", cost),
    };
    let attributes: serde_json::Map<String, Value> = question
        .attributes
        .iter()
        .map(|(name, value)| ((*name).to_owned(), json!(value)))
        .collect();
    let body = json!({ "attributes": attributes, "cost": cost });
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .build()
        .into();
    let asked = agent.post(format!("http://{server}/v1/{path}"));
    let answer: Value = asked
        .send_json(body)
        .unwrap()
        .body_mut()
        .read_json()
        .unwrap();
    Answer {
        allowed: answer["allowed"].as_bool().unwrap(),
        rule: answer["ruleId"].as_str().map(str::to_owned),
        limit: answer["limit"].as_u64(),
        remaining: answer["remaining"].as_u64(),
    }
}

fn ask_resp(client: &mut Resp, question: &Question) -> Answer {
    let mut command = vec![match question.cost {
        0 => "TG.PEEK".to_owned(),
        _ => "TG.CHECK".to_owned(),
    }];
    for (name, value) in &question.attributes {
        command.extend([(*name).to_owned(), value.clone()]);
    }
    command.extend(["COST".to_owned(), question.cost.max(1).to_string()]);
    let fields = client.command(&command).items();
    let field = |name: &str| {
        let named = |pair: &&[Reply]| pair[0].clone().text() == name;
        let pair = fields.chunks(2).find(named);
        pair.unwrap_or_else(|| panic!("no {name}"))[1].clone()
    };
    let number = |name| match field(name) {
        Reply::Int(number) => Some(number.unsigned_abs()),
        _ => None,
    };
    Answer {
        allowed: number("allowed") == Some(1),
        rule: field("ruleId")
            .bytes()
            .map(|it| String::from_utf8(it).unwrap()),
        limit: number("limit"),
        remaining: number("remaining"),
    }
}

async fn all_doors_agree_on(store: &str) {
    let questions = questions(500);
    let library = Server::start(RULES, store, "library").await;
    let mut expected = Vec::new();
    for question in &questions {
        expected.push(ask_library(&library.engine, question).await);
    }
    let refused = expected.iter().filter(|answer| !answer.allowed).count();
    assert!((100..400).contains(&refused), "{refused} of 500 denied");

    let http = Server::start(RULES, store, "http").await;
    let resp = Server::start(RULES, store, "resp").await;
    let grpc = Server::start(RULES, store, "grpc").await;
    let channel = Channel::from_shared(format!("http://{}", grpc.grpc)).unwrap();
    let mut client = RateLimitServiceClient::new(channel.connect().await.unwrap());
    for (question, expected) in questions.iter().zip(&expected) {
        let mut expected = expected.clone();
        if expected.remaining.is_none() {
            // Envoy gets no figures if one of them is not known.
            (expected.rule, expected.limit) = (None, None);
        }
        assert_eq!(
            ask_grpc(&mut client, question).await,
            expected,
            "gRPC: {question:?}"
        );
    }
    let (http, resp) = (http.http, resp.resp);
    let asking = tokio::task::spawn_blocking(move || {
        let mut client = Resp::connect(&resp.to_string()).unwrap();
        for (question, expected) in questions.iter().zip(&expected) {
            assert_eq!(&ask_http(http, question), expected, "HTTP: {question:?}");
            assert_eq!(
                &ask_resp(&mut client, question),
                expected,
                "RESP: {question:?}"
            );
        }
    });
    asking.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn five_hundred_requests_get_the_same_answers_in_memory() {
    all_doors_agree_on("memory").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn five_hundred_requests_get_the_same_answers_on_redis() {
    let redis = Redis::start();
    let store = format!(
        "{{ redis: {{ urls: [\"redis://{}\"], timeout: 2s, denial_cache: 1m }} }}",
        redis.address()
    );
    all_doors_agree_on(&store).await;
}
