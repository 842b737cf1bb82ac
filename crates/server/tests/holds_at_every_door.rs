//! One engine, many doors: the same reservations and leases get the same answers at every door. The
//! doors are HTTP, gRPC, RESP and the library, with state in memory and in Redis.

#![allow(clippy::unwrap_used, clippy::panic)] // Test helpers may panic.

#[path = "common/doors.rs"]
mod doors;
#[path = "common/own.rs"]
mod own;

use std::net::SocketAddr;

use doors::Server;
use own::{TollgateClient, attributes, pb};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};
use tollgate::{
    Acquire, AcquireOutcome, Attributes, Engine, HoldError, HoldState, Reserve, ReserveOutcome,
};
use tollgate_rig::{Redis, Reply, Resp};
use tonic::Code;
use tonic::transport::Channel;

/// Windows so long that nothing refills while the test runs. All rules count whole units: a slow
/// step could lose a fraction of a unit.
const RULES: &str = "
rules:
  - { id: tokens, match: { action: llm }, per: [tenant], algorithm: fixed-window, limit: 60, window: 365d }
  - { id: log, match: { action: llm }, per: [tenant], algorithm: sliding-log, limit: 50, window: 365d }
  - { id: slots, match: { action: job }, per: [tenant], algorithm: concurrency, limit: 3, lease: 1h }
";

/// A step. A step that ends a hold refers to an earlier step, counted from the last.
#[derive(Clone, Copy, Debug)]
enum Step {
    Reserve {
        tenant: u8,
        cost: u64,
        key: Option<u8>,
    },
    Commit {
        which: usize,
        actual: u64,
    },
    Release {
        which: usize,
    },
    Acquire {
        tenant: u8,
    },
    Free {
        which: usize,
        mine: bool,
    },
}

/// The answer of every door to a step.
#[derive(Clone, Debug, PartialEq)]
enum Outcome {
    Held {
        repeated: bool,
    },
    Denied {
        rule: String,
    },
    Ended {
        state: String,
        actual: Option<u64>,
    },
    Error(Wrong),
    /// The step refers to an earlier step that does not exist.
    Nothing,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Wrong {
    Conflict,
    Ended,
    NotYours,
}

/// The result of a step, and the id and token of the hold.
type Done = (Outcome, Option<(String, String)>);

fn steps(count: usize) -> Vec<Step> {
    let step = prop_oneof![
        3 => (0_u8..3, 1_u64..12, prop::option::weighted(0.3, 0_u8..9))
            .prop_map(|(tenant, cost, key)| {
                // Most requests with the same key have the same cost.
                let cost = key.map_or(cost, |key| if cost > 9 { cost } else { 1 + u64::from(key) });
                Step::Reserve { tenant, cost, key }
            }),
        1 => (0_usize..4, 0_u64..12).prop_map(|(which, actual)| Step::Commit { which, actual }),
        1 => (0_usize..4).prop_map(|which| Step::Release { which }),
        2 => (0_u8..2).prop_map(|tenant| Step::Acquire { tenant }),
        1 => (0_usize..4, prop::bool::weighted(0.8))
            .prop_map(|(which, mine)| Step::Free { which, mine }),
    ];
    let mut runner = TestRunner::deterministic();
    let many = prop::collection::vec(step, count);
    many.new_tree(&mut runner).unwrap().current()
}

/// A step with all its arguments.
enum Call {
    Reserve(String, u64, Option<String>),
    Commit(String, u64),
    Release(String),
    Acquire(String),
    Free(String, String),
}

/// The results so far.
#[derive(Default)]
struct Past {
    reserved: Vec<String>,
    leased: Vec<(String, String)>,
    told: Vec<Outcome>,
}

impl Past {
    /// Returns the arguments of a step; `None` if the step refers to an earlier step that does not
    /// exist.
    fn call(&self, step: Step) -> Option<Call> {
        let reserved = |which| self.reserved.iter().nth_back(which).cloned();
        Some(match step {
            Step::Reserve { tenant, cost, key } => {
                let key = key.map(|key| format!("key {key}"));
                Call::Reserve(format!("t{tenant}"), cost, key)
            }
            Step::Commit { which, actual } => Call::Commit(reserved(which)?, actual),
            Step::Release { which } => Call::Release(reserved(which)?),
            Step::Acquire { tenant } => Call::Acquire(format!("t{tenant}")),
            Step::Free { which, mine } => {
                let (id, token) = self.leased.iter().nth_back(which)?.clone();
                Call::Free(id, if mine { token } else { "0".repeat(32) })
            }
        })
    }

    fn note(&mut self, done: Option<Done>) {
        let (told, held) = done.unwrap_or((Outcome::Nothing, None));
        match held {
            Some((id, token)) if token.is_empty() => self.reserved.push(id),
            held => self.leased.extend(held),
        }
        self.told.push(told);
    }
}

async fn by_library(engine: &Engine, call: Call) -> Done {
    let wrong = |error: HoldError| match error {
        HoldError::Conflict => Wrong::Conflict,
        HoldError::Ended(_) => Wrong::Ended,
        HoldError::NotYours => Wrong::NotYours,
        other => panic!("{other}"),
    };
    let rule = |decision: &tollgate::Decision| decision.rule().unwrap().rule().id().to_owned();
    let told = match &call {
        Call::Reserve(tenant, cost, key) => {
            let attributes = Attributes::from([("action", "llm"), ("tenant", tenant)]);
            let wish = Reserve {
                units: *cost,
                ttl: None,
                idempotency_key: key.as_deref(),
            };
            match engine.reserve(&attributes, &wish).await.map_err(wrong) {
                Ok(ReserveOutcome::Held { hold, decision }) => {
                    let repeated = decision.is_none();
                    let held = (!repeated).then(|| (hold.id.to_string(), String::new()));
                    return (Outcome::Held { repeated }, held);
                }
                Ok(ReserveOutcome::Denied(decision)) => {
                    let rule = rule(&decision);
                    return (Outcome::Denied { rule }, None);
                }
                Err(error) => return (Outcome::Error(error), None),
            }
        }
        Call::Acquire(tenant) => {
            let attributes = Attributes::from([("action", "job"), ("tenant", tenant)]);
            let wish = Acquire::default();
            match engine.acquire(&attributes, &wish).await.map_err(wrong) {
                Ok(AcquireOutcome::Granted { lease, token, .. }) => {
                    let held = (lease.id.to_string(), token.to_string());
                    return (Outcome::Held { repeated: false }, Some(held));
                }
                Ok(AcquireOutcome::Denied(decision)) => {
                    let rule = rule(&decision);
                    return (Outcome::Denied { rule }, None);
                }
                Err(error) => return (Outcome::Error(error), None),
            }
        }
        Call::Commit(id, actual) => engine.commit(&id.parse().unwrap(), *actual).await,
        Call::Release(id) => engine.release(&id.parse().unwrap()).await,
        Call::Free(id, token) => {
            let token = token.parse().unwrap();
            engine.free(&id.parse().unwrap(), token).await
        }
    };
    let ended = |hold: tollgate::Hold| Outcome::Ended {
        state: match hold.state {
            HoldState::Consumed => "CONSUMED".to_owned(),
            _ => "RELEASED".to_owned(),
        },
        actual: hold.actual,
    };
    (
        told.map_or_else(|error| Outcome::Error(wrong(error)), ended),
        None,
    )
}

fn by_http(server: SocketAddr, call: Call) -> Done {
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .build()
        .into();
    let post = |path: String, body: Value| {
        let asked = agent.post(format!("http://{server}/v1/{path}"));
        asked.send_json(body).unwrap()
    };
    let reserves = matches!(call, Call::Reserve(..));
    let mut answer = match call {
        Call::Reserve(tenant, cost, key) => post(
            "reservations".to_owned(),
            json!({ "attributes": { "action": "llm", "tenant": tenant }, "cost": cost, "idempotencyKey": key }),
        ),
        Call::Commit(id, actual) => post(
            format!("reservations/{id}/commit"),
            json!({ "actual": actual }),
        ),
        Call::Release(id) => post(format!("reservations/{id}/release"), json!({})),
        Call::Acquire(tenant) => post(
            "leases".to_owned(),
            json!({ "attributes": { "action": "job", "tenant": tenant } }),
        ),
        Call::Free(id, token) => {
            let asked = agent.delete(format!("http://{server}/v1/leases/{id}"));
            asked.header("lease-token", token).call().unwrap()
        }
    };
    let status = answer.status().as_u16();
    let body: Value = answer.body_mut().read_json().unwrap();
    let text = |name: &str| body[name].as_str().unwrap_or_default().to_owned();
    match (status, body["code"].as_str()) {
        (201, _) => (
            Outcome::Held { repeated: false },
            Some((text("id"), text("token"))),
        ),
        (200, _) if reserves => (Outcome::Held { repeated: true }, None),
        (200, _) => {
            let (state, actual) = (text("state"), body["actual"].as_u64());
            (Outcome::Ended { state, actual }, None)
        }
        (429, _) => (
            Outcome::Denied {
                rule: text("ruleId"),
            },
            None,
        ),
        (409, Some("RESERVATION_CONFLICT")) => (Outcome::Error(Wrong::Conflict), None),
        (409, Some("RESERVATION_ENDED")) => (Outcome::Error(Wrong::Ended), None),
        (403, Some("LEASE_NOT_YOURS")) => (Outcome::Error(Wrong::NotYours), None),
        _ => panic!("{status} {body}"),
    }
}

async fn by_grpc(client: &mut own::Client, call: Call) -> Done {
    let wrong = |status: tonic::Status| match status.code() {
        Code::AlreadyExists => Outcome::Error(Wrong::Conflict),
        Code::FailedPrecondition => Outcome::Error(Wrong::Ended),
        Code::PermissionDenied => Outcome::Error(Wrong::NotYours),
        _ => panic!("{status}"),
    };
    let rule = |decision: Option<pb::Decision>| decision.unwrap().rule_id.unwrap();
    let told = match call {
        Call::Reserve(tenant, cost, idempotency_key) => {
            let request = pb::ReserveRequest {
                attributes: attributes([("action", "llm"), ("tenant", &tenant)]),
                cost: Some(cost),
                ttl_millis: None,
                idempotency_key,
            };
            return match client
                .reserve(request)
                .await
                .map(tonic::Response::into_inner)
            {
                Ok(answer) if answer.allowed => {
                    let repeated = answer.repeated;
                    let held = answer.reservation.filter(|_| !repeated);
                    let held = held.map(|held| (held.id, String::new()));
                    (Outcome::Held { repeated }, held)
                }
                Ok(answer) => {
                    let rule = rule(answer.decision);
                    (Outcome::Denied { rule }, None)
                }
                Err(status) => (wrong(status), None),
            };
        }
        Call::Acquire(tenant) => {
            let request = pb::AcquireLeaseRequest {
                attributes: attributes([("action", "job"), ("tenant", &tenant)]),
                ..pb::AcquireLeaseRequest::default()
            };
            let answer = client.acquire_lease(request).await.unwrap().into_inner();
            return match answer.lease {
                Some(lease) => (
                    Outcome::Held { repeated: false },
                    Some((lease.id, answer.token.unwrap())),
                ),
                None => {
                    let rule = rule(answer.decision);
                    (Outcome::Denied { rule }, None)
                }
            };
        }
        Call::Commit(id, actual) => {
            let actual = Some(actual);
            let request = pb::CommitRequest { id, actual };
            let ended = client.commit(request).await;
            ended.map(|it| (it.get_ref().state.clone(), it.get_ref().actual))
        }
        Call::Release(id) => {
            let ended = client.release(pb::ReleaseRequest { id }).await;
            ended.map(|it| (it.get_ref().state.clone(), it.get_ref().actual))
        }
        Call::Free(id, token) => {
            let freed = client.release_lease(pb::ReleaseLeaseRequest { id, token });
            freed.await.map(|it| (it.get_ref().state.clone(), None))
        }
    };
    let ended = |(state, actual)| Outcome::Ended { state, actual };
    (told.map_or_else(wrong, ended), None)
}

fn by_resp(client: &mut Resp, call: Call) -> Done {
    let words = match call {
        Call::Reserve(tenant, cost, key) => {
            let cost = cost.to_string();
            let mut words = [
                "TG.RESERVE",
                "action",
                "llm",
                "tenant",
                &tenant,
                "COST",
                &cost,
            ]
            .map(str::to_owned)
            .to_vec();
            words.extend(key.into_iter().flat_map(|key| ["KEY".to_owned(), key]));
            words
        }
        Call::Commit(id, actual) => vec!["TG.COMMIT".to_owned(), id, actual.to_string()],
        Call::Release(id) => vec!["TG.RELEASE".to_owned(), id],
        Call::Acquire(tenant) => ["TG.ACQUIRE", "action", "job", "tenant", &tenant]
            .map(str::to_owned)
            .to_vec(),
        Call::Free(id, token) => vec!["TG.FREE".to_owned(), id, token],
    };
    let fields = match client.command(&words) {
        Reply::Error(error) => {
            let wrong = match error.split(' ').next() {
                Some("TGCONFLICT") => Wrong::Conflict,
                Some("TGENDED") => Wrong::Ended,
                Some("TGNOTYOURS") => Wrong::NotYours,
                _ => panic!("{error}"),
            };
            return (Outcome::Error(wrong), None);
        }
        answer => answer.items(),
    };
    let field = |name: &str| {
        let named = |pair: &&[Reply]| pair[0].clone().text() == name;
        fields.chunks(2).find(named).map(|pair| pair[1].clone())
    };
    let text = |name| field(name).map(Reply::text).unwrap_or_default();
    match (field("allowed"), field("repeated")) {
        (None, _) => {
            let actual = match field("actual") {
                Some(Reply::Int(actual)) => Some(actual.unsigned_abs()),
                _ => None,
            };
            let state = text("state");
            (Outcome::Ended { state, actual }, None)
        }
        (Some(Reply::Int(0)), _) => (
            Outcome::Denied {
                rule: text("ruleId"),
            },
            None,
        ),
        (_, Some(Reply::Int(1))) => (Outcome::Held { repeated: true }, None),
        _ => (
            Outcome::Held { repeated: false },
            Some((text("id"), text("token"))),
        ),
    }
}

async fn all_doors_agree_on(store: &str) {
    let steps = steps(600);
    let library = Server::start(RULES, store, "library").await;
    let mut expected = Past::default();
    for step in &steps {
        let done = match expected.call(*step) {
            Some(call) => Some(by_library(&library.engine, call).await),
            None => None,
        };
        expected.note(done);
    }
    // Every kind of answer has occurred.
    let said =
        |wanted: &dyn Fn(&Outcome) -> bool| expected.told.iter().filter(|it| wanted(it)).count();
    assert!(said(&|it| matches!(it, Outcome::Denied { rule } if rule == "slots")) > 10);
    assert!(said(&|it| matches!(it, Outcome::Denied { rule } if rule == "log")) > 10);
    assert!(said(&|it| matches!(it, Outcome::Held { repeated: true })) > 10);
    for wrong in [Wrong::Conflict, Wrong::Ended, Wrong::NotYours] {
        assert!(said(&|it| *it == Outcome::Error(wrong)) > 5, "{wrong:?}");
    }

    let server = Server::start(RULES, store, "grpc").await;
    let channel = Channel::from_shared(format!("http://{}", server.grpc)).unwrap();
    let mut client = TollgateClient::new(channel.connect().await.unwrap());
    let mut past = Past::default();
    for (step, expected) in steps.iter().zip(&expected.told) {
        let done = match past.call(*step) {
            Some(call) => Some(by_grpc(&mut client, call).await),
            None => None,
        };
        past.note(done);
        assert_eq!(past.told.last(), Some(expected), "gRPC: {step:?}");
    }
    let http = Server::start(RULES, store, "http").await;
    let resp = Server::start(RULES, store, "resp").await;
    let asking = tokio::task::spawn_blocking(move || {
        let mut client = Resp::connect(&resp.resp.to_string()).unwrap();
        let (mut by_the_one, mut by_the_other) = (Past::default(), Past::default());
        for (step, expected) in steps.iter().zip(&expected.told) {
            let call = by_the_one.call(*step);
            by_the_one.note(call.map(|call| by_http(http.http, call)));
            assert_eq!(by_the_one.told.last(), Some(expected), "HTTP: {step:?}");
            let call = by_the_other.call(*step);
            by_the_other.note(call.map(|call| by_resp(&mut client, call)));
            assert_eq!(by_the_other.told.last(), Some(expected), "RESP: {step:?}");
        }
    });
    asking.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn six_hundred_steps_get_the_same_answers_in_memory() {
    all_doors_agree_on("memory").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn six_hundred_steps_get_the_same_answers_on_redis() {
    let redis = Redis::start();
    let store = format!(
        "{{ redis: {{ urls: [\"redis://{}\"], timeout: 2s }} }}",
        redis.address()
    );
    all_doors_agree_on(&store).await;
}
