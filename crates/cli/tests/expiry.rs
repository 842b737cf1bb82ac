//! A running server ends reservations by itself: those whose time is over, and those that only the ledger
//! remembers.

#![allow(clippy::unwrap_used)] // Helpers of tests fail as tests do.

mod common;

use std::path::Path;
use std::time::Duration;

use common::Serving;
use serde_json::{Value, json};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection};
use tollgate_rig::wait;

/// How long a condition may take that has to come about.
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

/// Reserves 40; the id.
fn reserve(server: &Serving, ttl: &str) -> String {
    let wish = json!({ "attributes": { "tenant": "acme" }, "cost": 40, "ttl": ttl });
    let held = post(server, "/v1/reservations", &wish);
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

/// For the ledger: a reservation is ended by what it says when its time is over for a minute.
fn an_hour_passes(books: &Path) {
    let passing = async {
        let file = SqliteConnectOptions::new().filename(books);
        let mut books = file.connect().await.unwrap();
        let earlier = "UPDATE holds SET expires_at = expires_at - 3600000000";
        let held = sqlx::query(earlier).execute(&mut books).await.unwrap();
        assert_eq!(held.rows_affected(), 1);
        books.close().await.unwrap();
    };
    tokio::runtime::Runtime::new().unwrap().block_on(passing);
}

#[test]
fn what_nobody_ends_is_back_when_its_time_is_over() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(directory.path(), "");
    let id = reserve(&server, "100ms");
    wait::until("everything is back", LIMIT, || remaining(&server) == 100);
    assert_eq!(state(&server, &id), "EXPIRED");
}

#[test]
fn what_a_dead_server_held_is_back_from_the_ledger() {
    let directory = tempfile::tempdir().unwrap();
    let books = directory.path().join("books.db");
    let ledger = format!("ledger: {{ sqlite: {} }}\n", books.display());
    let mut server = start(directory.path(), &ledger);
    let id = reserve(&server, "60s");
    let usage = |server: &Serving| {
        let told = get(server, "/v1/usage/acme");
        let row = &told["usage"][0];
        (row["used"].as_i64(), row["reserved"].as_i64())
    };
    let held = (Some(40), Some(40));
    wait::until("it is in the ledger", LIMIT, || usage(&server) == held);
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    an_hour_passes(&books);

    // Nobody asks for the reservation by its name: that would bring it back, too.
    let server = start(directory.path(), &ledger);
    let nothing = (Some(0), Some(0));
    wait::until("the ledger has it ended", LIMIT, || {
        usage(&server) == nothing
    });
    assert_eq!(remaining(&server), 100);
    assert_eq!(state(&server, &id), "EXPIRED");
}
