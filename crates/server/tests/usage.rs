//! A tenant's usage from the ledger, at every door.

#![allow(clippy::unwrap_used, clippy::panic)] // Test helpers may panic.

mod common;
#[path = "common/own.rs"]
mod own;

use std::sync::Arc;
use std::time::Duration;

use own::{TollgateClient, pb};
use serde_json::json;
use tokio::sync::oneshot;
use tollgate::{Ask, Attributes, Engine, Reserve, ReserveOutcome};
use tollgate_rig::Resp;
use tollgate_server::{ControlPlane, Doors};
use tonic::Code;
use tonic::transport::Channel;

/// More users than an answer has rows.
const USERS: i64 = 300;

/// Makes checks and reservations as the tenant `acme`, and one check for each user of the tenant
/// `many`.
async fn used(engine: &Engine) {
    let chat = Attributes::from([("tenant", "acme"), ("action", "chat")]);
    let draw = Attributes::from([("tenant", "acme"), ("action", "draw")]);
    assert!(engine.ask(&chat, Ask::Exactly(30)).await.is_allowed());
    assert!(engine.ask(&draw, Ask::Exactly(5)).await.is_allowed());
    let reserve = |units| Reserve {
        units,
        ..Reserve::default()
    };
    let told = engine.reserve(&chat, &reserve(100)).await.unwrap();
    let ReserveOutcome::Held { hold, .. } = told else {
        panic!("{told:?}");
    };
    engine.commit(&hold.id, 12).await.unwrap();
    engine.reserve(&chat, &reserve(50)).await.unwrap();
    for user in 0..USERS {
        let user = user.to_string();
        let see = Attributes::from([("tenant", "many"), ("action", "see"), ("user", &user)]);
        assert!(engine.ask(&see, Ask::Exactly(2)).await.is_allowed());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_door_returns_usage_by_period() {
    let directory = tempfile::tempdir().unwrap();
    let yaml = format!(
        "version: 1\nledger: {{ sqlite: \"{}\" }}\nsubjects: {{ hash_secret: 0123456789abcdef }}\n\
         server: {{ http: \"127.0.0.1:0\", grpc: \"127.0.0.1:0\", resp: \"127.0.0.1:0\" }}\n\
         rules:\n  - {{ id: monthly, per: [tenant], algorithm: quota, limit: 1000, period: year }}\n\
         \x20 - {{ id: each, match: {{ action: see }}, per: [tenant, user], algorithm: quota, limit: 9, period: year }}\n",
        directory.path().join("books.db").display()
    );
    let config = tollgate_config::parse("rules.yaml", &yaml, &|_| None).unwrap();
    let engine = Arc::new(Engine::start(&config).await.unwrap());
    let doors = Doors::open(&config).await.unwrap();
    let addresses = doors.addresses().unwrap();
    let [http, grpc, resp] = [0, 1, 2].map(|door: usize| addresses[door].address);
    let (stop, stopped) = oneshot::channel::<()>();
    let control = Arc::new(ControlPlane::of(Arc::clone(&engine)));
    let serving = tokio::spawn(doors.serve(control, async {
        drop(stopped.await);
        Duration::ZERO
    }));
    used(&engine).await;

    let channel = Channel::from_shared(format!("http://{grpc}")).unwrap();
    let mut client = TollgateClient::new(channel.connect().await.unwrap());
    let of = |period: Option<&str>, action: Option<&str>| pb::GetUsageRequest {
        tenant: "acme".to_owned(),
        period: period.map(str::to_owned),
        action: action.map(str::to_owned),
        rule: Some("monthly".to_owned()),
    };
    let told = client.get_usage(of(None, None)).await.unwrap().into_inner();
    let rows: Vec<_> = told
        .usage
        .iter()
        .map(|it| (&*it.action, it.used, it.reserved))
        .collect();
    assert_eq!(rows, [("chat", 92, 50), ("draw", 5, 0)]);
    assert!(!told.truncated);
    let chat = client
        .get_usage(of(None, Some("chat")))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(chat.usage, told.usage[..1]);
    let before = client
        .get_usage(of(Some("2020-01"), None))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(before.usage, []);
    let july = client.get_usage(of(Some("July"), None)).await.unwrap_err();
    assert_eq!(july.code(), Code::InvalidArgument);
    let nul = client.get_usage(of(None, Some("\0"))).await.unwrap_err();
    assert_eq!(nul.code(), Code::InvalidArgument, "{nul}");

    let expected = told.usage[0].clone();
    let asking = tokio::task::spawn_blocking(move || {
        let get = |path: &str| common::get(&format!("http://{http}/v1/usage/{path}"), &[]);
        let answer = get("acme");
        assert_eq!(answer.status, 200, "{}", answer.text);
        let body = answer.json();
        assert_eq!(
            (&body["tenant"], &body["truncated"]),
            (&json!("acme"), &json!(false))
        );
        let row = json!({
            "ruleId": "monthly", "allowance": "monthly", "action": "chat",
            "startsAtEpochMillis": expected.starts_at_epoch_millis,
            "endsAtEpochMillis": expected.ends_at_epoch_millis,
            "used": 92, "reserved": 50, "granted": 0, "corrections": 0,
            "requests": expected.requests,
        });
        assert_eq!(body["usage"][0], row);
        assert_eq!(get("acme?action=draw").json()["usage"][0]["used"], 5);
        assert_eq!(get("nobody").json()["usage"], json!([]));
        assert_eq!(get("acme?period=2020").json()["usage"], json!([]));
        assert_eq!(get("acme?period=2020-13").status, 400);
        let many = get("many?rule=each").json();
        assert_eq!(many["truncated"], json!(false));
        let rows = many["usage"].as_array().unwrap();
        let told: Vec<_> = rows
            .iter()
            .map(|it| (&it["used"], &it["requests"]))
            .collect();
        assert_eq!(told, [(&json!(2 * USERS), &json!(USERS))]);
        for nul in ["a%00b", "acme?action=%00", "acme?rule=%00"] {
            let answer = get(nul);
            assert_eq!(answer.status, 400, "{nul}: {}", answer.text);
        }

        let mut resp = Resp::connect(&resp.to_string()).unwrap();
        let nul = format!("{:?}", resp.command(&["TG.USAGE", "a\0b"]));
        assert!(nul.contains("ERR the tenant has a NUL"), "{nul}");
        let answer = resp
            .command(&["TG.USAGE", "acme", "ACTION", "chat"])
            .items();
        let rows = answer[5].clone().items();
        assert_eq!(
            (answer[4].clone().text(), rows.len()),
            ("usage".to_owned(), 1)
        );
        let fields = rows[0].clone().items();
        let named = fields
            .chunks(2)
            .find(|pair| pair[0].clone().text() == "used");
        assert_eq!(named.unwrap()[1].clone().int(), 92);
    });
    asking.await.unwrap();
    drop((client, stop));
    serving.await.unwrap();
    engine.close().await;
}
