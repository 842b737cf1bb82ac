//! Starting, stopping and killing PostgreSQL.

#![allow(clippy::unwrap_used, reason = "a failed helper fails its test")]

use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use tollgate_rig::{Postgres, wait};

#[test]
fn committed_data_survives_a_stop_and_a_crash() {
    let postgres = Postgres::start();
    postgres.sql("CREATE TABLE kept (number int)");
    postgres.sql("INSERT INTO kept VALUES (1)");
    let pid = postgres.pid();
    postgres.stop();
    assert!(!postgres.is_running());
    assert!(TcpStream::connect(("127.0.0.1", postgres.port())).is_err());

    postgres.start_again();
    assert_ne!(postgres.pid(), pid);
    postgres.sql("INSERT INTO kept VALUES (2)");
    postgres.kill();
    assert!(TcpStream::connect(("127.0.0.1", postgres.port())).is_err());
    postgres.start_again();
    assert_eq!(
        postgres.sql("SELECT sum(number), count(*) FROM kept"),
        "3|2"
    );
}

#[test]
fn databases_are_separate() {
    let postgres = Postgres::start();
    let url = postgres.database("other");
    let port = postgres.port();
    assert_eq!(
        url,
        format!("postgres://postgres@127.0.0.1:{port}/other?sslmode=disable")
    );
    postgres.sql_in("other", "CREATE TABLE here (number int)");
    let look = "SELECT to_regclass('here') IS NULL";
    assert_eq!(postgres.sql(look), "t");
    assert_eq!(postgres.sql_in("other", look), "f");
}

#[test]
fn paused_server_can_be_resumed_and_stopped() {
    let postgres = Postgres::start();
    postgres.pause();
    // The signal takes effect only when the process is scheduled next.
    let stat = format!("/proc/{}/stat", postgres.pid());
    let is_stopped = || std::fs::read_to_string(&stat).is_ok_and(|it| it.contains(") T "));
    wait::until("it has stopped", Duration::from_secs(10), is_stopped);
    postgres.resume();
    assert_eq!(postgres.sql("SELECT 1"), "1");
    postgres.pause();
    postgres.kill();
    postgres.start_again();
    assert_eq!(postgres.sql("SELECT 1"), "1");
}

#[test]
fn dropping_a_server_removes_its_data() {
    let postgres = Postgres::start();
    let process = format!("/proc/{}", postgres.pid());
    let data = postgres.sql("SHOW data_directory");
    assert!(Path::new(&process).exists() && Path::new(&data).exists());
    drop(postgres);
    assert!(!Path::new(&process).exists() && !Path::new(&data).exists());
}
