//! The RESP door in front of a Redis that comes and goes.

#![allow(clippy::unwrap_used)] // Test helpers may panic.

mod resp_door;

use std::io::{Read, Write};

use resp_door::{Door, command};
use tollgate_rig::{Redis, Reply};
use tollgate_server::resp::{Options, ThrottleFailure};

fn config(redis: &Redis) -> String {
    format!(
        "version: 1\nsubjects: {{ hash_secret: 0123456789abcdef }}\n\
         store: {{ redis: {{ url: \"{}\", denial_cache: off, timeout: 1s, connect_timeout: 1s, \
         circuit_breaker: {{ timeout_duration: 1ms }} }} }}\nrules:\n\
         - {{ id: login, per: [user], algorithm: fixed-window, limit: 2, window: 1d, \
         on_store_failure: fail-open }}\n",
        redis.url()
    )
}

fn door(redis: &Redis, on_store_failure: ThrottleFailure) -> Door {
    let options = Options {
        on_store_failure,
        ..Options::default()
    };
    Door::with(&config(redis), options, None)
}

/// Sends everything at once, and reads as many bytes as are expected.
fn pipelined(door: &Door, commands: &str, expected: &str) -> String {
    let mut stream = door.connect();
    stream.write_all(commands.as_bytes()).unwrap();
    let mut answer = vec![0; expected.len()];
    stream.read_exact(&mut answer).unwrap();
    String::from_utf8(answer).unwrap()
}

#[test]
fn pipeline_travels_together_and_is_answered_in_order() {
    let redis = Redis::start();
    let door = door(&redis, ThrottleFailure::Error);
    // A warm-up: it loads the script, and opens the connection.
    door.lines("CL.THROTTLE warm 1 1 1");
    let batches = |door: &Door| door.engine.redis().unwrap().metrics().batches().count;
    let before = batches(&door);
    let throttle = |key: &str| command(&["CL.THROTTLE", key, "9", "1", "3600"]);
    let mut commands = String::new();
    let mut expected = String::new();
    for i in 0..10 {
        commands += &throttle("a");
        let remaining = 9 - i;
        let reset = 3600 * (i + 1);
        expected += &format!("*5\r\n:0\r\n:10\r\n:{remaining}\r\n:-1\r\n:{reset}\r\n");
        commands += &command(&["CL.THROTTLE", "b", "9", "0", "1"]);
        expected += "-ERR count must be above 0: a rate of zero is not supported\r\n";
    }
    commands += "PING\r\n";
    expected += "+PONG\r\n";
    assert_eq!(pipelined(&door, &commands, &expected), expected);
    let calls = batches(&door) - before;
    assert!(calls <= 3, "{calls} calls for ten commands");
}

#[test]
fn peeks_and_refunds_wait_for_charges() {
    let redis = Redis::start();
    let door = door(&redis, ThrottleFailure::Error);
    let ann = ["user", "ann"];
    let ask = |name: &str, more: &[&str]| command(&[&[name], &ann[..], more].concat());
    let mut commands = ask("TG.CHECK", &["COST", "2"]);
    commands += &ask("TG.PEEK", &["COST", "0"]);
    commands += &ask("TG.REFUND", &["COST", "1"]);
    commands += &ask("TG.PEEK", &["COST", "0"]);
    commands += &ask("TG.CHECK", &[]);
    commands += &ask("TG.CHECK", &[]);
    commands += "QUIT\r\n";
    let answer = door.raw(&commands);
    let remaining: Vec<&str> = answer
        .split("$9\r\nremaining\r\n:")
        .skip(1)
        .map(|rest| rest.split("\r\n").next().unwrap())
        .collect();
    assert_eq!(remaining, ["0", "0", "1", "1", "0", "0"]);
    let allowed: Vec<bool> = answer
        .split("$7\r\nallowed\r\n:")
        .skip(1)
        .map(|rest| rest.starts_with('1'))
        .collect();
    assert_eq!(allowed, [true, true, true, true, true, false]);
}

#[test]
fn ad_hoc_keys_are_hashed_and_separate_from_rules() {
    let redis = Redis::start();
    let door = door(&redis, ThrottleFailure::Error);
    door.lines("CL.THROTTLE ann@example.com 1 1 60\r\nTG.CHECK user ann@example.com");
    let keys = redis.connect().keys();
    let keys: Vec<String> = keys
        .into_iter()
        .map(|key| String::from_utf8(key).unwrap())
        .filter(|key| !key.contains(":deployment:"))
        .collect();
    assert_eq!(keys.len(), 2, "{keys:?}");
    assert!(keys.iter().all(|key| !key.contains("ann")), "{keys:?}");
    assert_eq!(
        keys.iter()
            .filter(|key| key.contains("}:@throttle:"))
            .count(),
        1
    );
}

#[test]
fn failing_store_is_an_error_or_follows_the_options() {
    let redis = Redis::start();
    let doors = [
        (
            ThrottleFailure::Error,
            "-TRYAGAIN the store does not answer\r\n",
        ),
        (
            ThrottleFailure::FailOpen,
            "*5\r\n:0\r\n:6\r\n:6\r\n:-1\r\n:0\r\n",
        ),
        (
            ThrottleFailure::FailClosed,
            "*5\r\n:1\r\n:6\r\n:0\r\n:5\r\n:5\r\n",
        ),
    ];
    let doors = doors.map(|(policy, answer)| (door(&redis, policy), answer));
    redis.kill();
    for (door, answer) in &doors {
        assert_eq!(door.lines("CL.THROTTLE k 5 1 1"), *answer);
        assert_eq!(door.engine.metrics().throttles().failed, 1);
    }
    let (door, _) = &doors[0];
    let mut client = door.client();
    let told = client.command(&["TG.CHECK", "user", "ann"]).items();
    assert_eq!(told[1], Reply::Int(1));
    let fallback = told
        .iter()
        .position(|it| *it == Reply::Bulk(b"fallback".into()));
    assert_eq!(
        told[fallback.unwrap() + 1],
        Reply::Bulk(b"fail-open".into())
    );
    let refund = client.command(&["TG.REFUND", "user", "ann"]);
    assert_eq!(
        refund,
        Reply::Error("TRYAGAIN the store does not answer; try again later".to_owned())
    );
}
