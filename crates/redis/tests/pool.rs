//! A pool of 1,024 connections, the most that a config may ask for.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#![allow(clippy::print_stdout, reason = "the figures are in docs/redis.md")]

mod common;

use futures_util::future::join_all;
use tollgate_core::{Limit, Span};
use tollgate_rig::{Redis, wait};

use common::{LIMIT, block_on, take};

const CONNECTIONS: usize = 1024;

fn connected(redis: &Redis) -> usize {
    redis.info("clients")["connected_clients"].parse().unwrap()
}

/// Returns the memory of this process, in bytes.
fn memory() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let resident: u64 = pages.split(' ').nth(1).unwrap().parse().unwrap();
    resident * 4096
}

#[test]
fn each_of_1024_connections_carries_a_slow_request() {
    let redis = Redis::start();
    let mut options = common::options(&redis);
    options.max_connections = CONNECTIONS;
    // One request in each call: otherwise waiting requests would share calls.
    options.batch = 1;
    options.timeout = 3 * LIMIT;
    options.connect_timeout = 3 * LIMIT;
    let store = common::connect(options);
    let limit = Limit::fixed_window(1, Span::HOUR).unwrap();
    let before = (memory(), connected(&redis));
    // Slow answers: the server answers no script until it is told to. Every connection has one request
    // in flight, so each request needs its own.
    redis.cli(&["CLIENT", "PAUSE", "60000", "WRITE"]);
    let (asking, of) = (store.clone(), limit.clone());
    let requests = common::RUNTIME.spawn(async move {
        let all = (0..CONNECTIONS as u64).map(|number| take(&asking, number, &of));
        join_all(all).await
    });
    wait::until("1,024 connections", LIMIT, || {
        connected(&redis) >= CONNECTIONS
    });
    let there = connected(&redis);
    assert!(there <= before.1 + CONNECTIONS, "{there} connections");
    let here = memory().saturating_sub(before.0) / CONNECTIONS as u64;
    let clients = redis.cli(&["INFO", "memory"]);
    println!("memory per connection here: {here} bytes");
    println!(
        "{}",
        clients
            .lines()
            .filter(|it| it.contains("mem_clients"))
            .collect::<Vec<_>>()
            .join("\n")
    );
    redis.cli(&["CLIENT", "UNPAUSE"]);
    let answers = block_on(requests).unwrap();
    for answer in answers {
        assert!(answer.unwrap().allowed);
    }
    // Each subject was charged once, and the pool still works.
    let again = block_on(join_all(
        (0..100).map(|number| take(&store, number, &limit)),
    ));
    assert!(again.into_iter().all(|answer| !answer.unwrap().allowed));
}
