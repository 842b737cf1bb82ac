//! Starting, stopping and inspecting a Redis server.

#![allow(clippy::unwrap_used, reason = "a failed helper fails its test")]

use std::net::TcpStream;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;

use tollgate_rig::{Redis, Reply, Resp};

fn ok() -> Reply {
    Reply::Simple("OK".to_owned())
}

/// Returns the panic message of `action`.
fn panic_of(action: impl FnOnce()) -> String {
    let payload = panic::catch_unwind(AssertUnwindSafe(action)).unwrap_err();
    *payload.downcast::<String>().unwrap()
}

#[test]
fn keys_can_be_inspected() {
    let redis = Redis::start();
    let mut resp = Resp::connect(&redis.address()).unwrap();
    let key = b"\x00\xff\r\n";
    assert_eq!(resp.command(&["SET".as_bytes(), key, b"\x01"]), ok());
    assert_eq!(resp.command(&["SET", "short", "x", "PX", "60000"]), ok());

    assert_eq!(resp.keys(), [key.to_vec(), b"short".to_vec()]);
    assert_eq!(resp.get(key), Some(vec![1]));
    assert_eq!(resp.get("absent"), None);
    assert!(resp.dump(key).is_some());
    assert_eq!(resp.pttl(key), -1);
    assert_eq!(resp.pttl("absent"), -2);
    assert!((1..=60_000).contains(&resp.pttl("short")));
}

#[test]
fn many_keys_are_all_found() {
    let redis = Redis::start();
    let mut resp = redis.connect();
    for number in 0..2500 {
        resp.command(&["SET", &format!("key-{number}"), ""]);
    }
    assert_eq!(resp.keys().len(), 2500);
}

#[test]
fn every_kind_of_reply_is_parsed() {
    let redis = Redis::start();
    let mut resp = redis.connect();
    let list = resp.command(&["EVAL", "return {1, 'a', false, {}}", "0"]);
    assert_eq!(
        list,
        Reply::Array(vec![
            Reply::Int(1),
            Reply::Bulk(b"a".to_vec()),
            Reply::Null,
            Reply::Array(Vec::new()),
        ])
    );
    let error = resp.command(&["NONSENSE"]);
    assert!(matches!(error, Reply::Error(text) if text.starts_with("ERR unknown command")));
}

#[test]
fn cpu_and_memory_are_reported() {
    let redis = Redis::start();
    let (cpu, memory) = (redis.cpu_micros(), redis.used_memory());
    let mut resp = redis.connect();
    resp.command(&["SETRANGE", "big", "1000000", "x"]);
    resp.command(&["EVAL", "for i = 1, 1000000 do end", "0"]);
    assert!(redis.cpu_micros() > cpu);
    assert!(redis.used_memory() > memory + 1_000_000);
    assert_eq!(redis.info("server")["process_id"], redis.pid().to_string());
}

#[test]
fn killed_server_restarts_empty_on_its_port() {
    let redis = Redis::with().args(["--maxmemory", "50mb"]).start();
    let pid = redis.pid();
    assert_eq!(redis.cli(&["SET", "key", "value"]), "OK");
    redis.kill();
    assert!(!redis.is_running());
    assert!(TcpStream::connect(redis.address()).is_err());

    redis.restart();
    assert_ne!(redis.pid(), pid);
    assert_eq!(redis.connect().keys(), Vec::<Vec<u8>>::new());
    assert_eq!(redis.info("memory")["maxmemory_human"], "50.00M");
}

#[test]
fn paused_server_answers_when_resumed() {
    let redis = Redis::start();
    redis.pause();
    redis.pause();
    assert!(!redis.is_running());
    let state = std::fs::read_to_string(format!("/proc/{}/stat", redis.pid())).unwrap();
    assert!(state.contains(") T "), "{state}");
    // The operating system accepts the connection, but only the server can answer.
    let mut resp = Resp::connect(&redis.address()).unwrap();
    redis.resume();
    assert_eq!(resp.command(&["PING"]).text(), "PONG");
}

#[test]
fn paused_server_can_be_killed() {
    let redis = Redis::start();
    redis.pause();
    redis.kill();
    redis.restart();
    assert_eq!(redis.cli(&["PING"]), "PONG");
}

#[test]
fn dropping_a_server_ends_its_process_and_removes_its_directory() {
    let redis = Redis::start();
    let process = format!("/proc/{}", redis.pid());
    let directory = redis.cli(&["CONFIG", "GET", "dir"]);
    let directory = directory.lines().last().unwrap();
    assert!(Path::new(&process).exists() && Path::new(directory).exists());
    drop(redis);
    assert!(!Path::new(&process).exists() && !Path::new(directory).exists());
}

#[test]
fn port_can_be_chosen() {
    let port = Redis::start().port();
    assert_eq!(Redis::with().port(port).start().port(), port);
}

#[test]
fn tls_server_accepts_only_tls() {
    let redis = Redis::with().tls().start();
    assert_eq!(redis.url(), format!("rediss://127.0.0.1:{}", redis.port()));
    assert!(redis.ca_file().is_file());
    assert_eq!(redis.cli(&["SET", "key", "value"]), "OK");
    assert_eq!(redis.connect().get("key"), Some(b"value".to_vec()));
    let mut plain = Resp::connect(&redis.address()).unwrap();
    assert!(plain.try_command(&["PING"]).is_err());
}

#[test]
fn acl_admits_only_its_user() {
    let redis = Redis::with().acl("gate", "secret").start();
    let address = redis.address();
    assert_eq!(redis.url(), format!("redis://gate:secret@{address}"));
    assert_eq!(redis.cli(&["ACL", "WHOAMI"]), "gate");
    assert_eq!(redis.connect().command(&["FLUSHALL"]), ok());
    let mut stranger = Resp::connect(&address).unwrap();
    let refusal = stranger.command(&["GET", "key"]);
    assert!(matches!(refusal, Reply::Error(text) if text.starts_with("NOAUTH")));
}

#[test]
fn tls_and_acl_can_be_combined() {
    let redis = Redis::with().tls().acl("gate", "secret").start();
    let port = redis.port();
    assert_eq!(
        redis.url(),
        format!("rediss://gate:secret@127.0.0.1:{port}")
    );
    assert_eq!(redis.cli(&["ACL", "WHOAMI"]), "gate");
}

#[test]
fn failed_start_shows_the_log() {
    let message = panic_of(|| drop(Redis::with().arg("--nonsense").start()));
    assert!(message.contains("nonsense"), "{message}");
}

#[test]
fn missing_server_message_says_how_to_install_it() {
    let message = panic_of(|| drop(Redis::with().binary("no-such-server").start()));
    assert_eq!(
        message,
        "no-such-server is missing; \
         install: apt-get install -y redis-server redis-sentinel redis-tools"
    );
}
