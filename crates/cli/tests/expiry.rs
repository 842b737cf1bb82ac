//! A running server ends expired reservations by itself, even if only the ledger still has them.

#![allow(clippy::unwrap_used, reason = "a failed helper fails its test")]

mod common;

use std::path::Path;
use std::time::Duration;

use common::Serving;
use serde_json::{Value, json};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection};
use tollgate_rig::wait;

/// The timeout of conditions that must become true.
const LIMIT: Duration = Duration::from_secs(60);

fn start(directory: &Path, ledger: &str) -> Serving {
    let file = directory.join("tollgate.yaml");
    let text = format!(
        "version: 1\n{ledger}subjects: {{ hash_secret: a secret of sixteen bytes }}\n\
         rules:\n- {{ id: tokens, per: [tenant], algorithm: quota, limit: 100, period: year }}\n"
    );
    std::fs::write(&file, text).unwrap();
    Serving::start(&["--config", file.to_str().unwrap()])
}

fn post(server: &Serving, path: &str, body: &Value) -> Value {
    let answer = ureq::post(format!("{}{path}", server.url)).send(body.to_string());
    let text = answer.unwrap().into_body().read_to_string().unwrap();
    serde_json::from_str(&text).unwrap()
}

fn get(server: &Serving, path: &str) -> Value {
    let answer = ureq::get(format!("{}{path}", server.url)).call();
    let text = answer.unwrap().into_body().read_to_string().unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Reserves 40 units, and returns the id.
fn reserve(server: &Serving, ttl: &str) -> String {
    let request = json!({ "attributes": { "tenant": "acme" }, "cost": 40, "ttl": ttl });
    let held = post(server, "/v1/reservations", &request);
    assert_eq!(held["state"], "RESERVED", "{held}");
    held["id"].as_str().unwrap().to_owned()
}

fn remaining(server: &Serving) -> u64 {
    let peek = json!({ "attributes": { "tenant": "acme" }, "cost": 0 });
    let peeked = post(server, "/v1/peek", &peek);
    peeked["remaining"].as_u64().unwrap()
}

fn state(server: &Serving, id: &str) -> String {
    let found = get(server, &format!("/v1/reservations/{id}"));
    found["state"].as_str().unwrap().to_owned()
}

/// Makes the reservation expire one hour earlier in the ledger. If only the ledger has a reservation, the
/// server ends it one minute after its expiry.
fn expire_in_ledger(file: &Path) {
    let passing = async {
        let options = SqliteConnectOptions::new().filename(file);
        let mut database = options.connect().await.unwrap();
        let earlier = "UPDATE holds SET expires_at = expires_at - 3600000000";
        let held = sqlx::query(earlier).execute(&mut database).await.unwrap();
        assert_eq!(held.rows_affected(), 1);
        database.close().await.unwrap();
    };
    tokio::runtime::Runtime::new().unwrap().block_on(passing);
}

#[test]
fn expired_reservation_returns_its_units() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(directory.path(), "");
    let id = reserve(&server, "100ms");
    wait::until("all units are back", LIMIT, || remaining(&server) == 100);
    assert_eq!(state(&server, &id), "EXPIRED");
}

#[test]
fn reservation_of_a_killed_server_is_ended_from_the_ledger() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("books.db");
    let ledger = format!("ledger: {{ sqlite: {} }}\n", file.display());
    let mut server = start(directory.path(), &ledger);
    let id = reserve(&server, "60s");
    let usage = |server: &Serving| {
        let answer = get(server, "/v1/usage/acme");
        let row = &answer["usage"][0];
        (row["used"].as_i64(), row["reserved"].as_i64())
    };
    let held = (Some(40), Some(40));
    wait::until("it is in the ledger", LIMIT, || usage(&server) == held);
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    expire_in_ledger(&file);

    // The test does not read the reservation by its id, because that would also end the reservation.
    let server = start(directory.path(), &ledger);
    let nothing = (Some(0), Some(0));
    wait::until("the ledger has ended it", LIMIT, || {
        usage(&server) == nothing
    });
    assert_eq!(remaining(&server), 100);
    assert_eq!(state(&server, &id), "EXPIRED");
}
