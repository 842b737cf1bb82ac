//! Faults of one server, or of its data.

use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use tollgate::Span;
use tollgate_redis::{ClockSource, Options, Servers};
use tollgate_rig::{Redis, Reply, Resp, Stopwatch};

use super::{Stage, address};
use crate::clock::OffsetClock;

/// A server, and what happens to it.
struct SingleServer {
    redis: Redis,
    strike: fn(&Redis, Duration) -> u64,
}

impl Stage for SingleServer {
    fn options(&self) -> Options {
        standalone(&self.redis.address())
    }

    fn strike(&self, length: Duration) -> u64 {
        (self.strike)(&self.redis, length)
    }
}

pub(super) fn standalone(at: &str) -> Options {
    Options::new(Servers::Standalone(address(at)))
}

fn single_server(strike: fn(&Redis, Duration) -> u64) -> Box<dyn Stage> {
    let redis = Redis::start();
    Box::new(SingleServer { redis, strike })
}

/// Runs a command that has to succeed.
fn command(resp: &mut Resp, parts: &[&str]) {
    let reply = resp.command(parts);
    assert!(!matches!(reply, Reply::Error(_)), "{parts:?}: {reply:?}");
}

pub(super) fn killed(_: Duration) -> Box<dyn Stage> {
    single_server(|redis, length| {
        redis.kill();
        sleep(length);
        redis.restart();
        1
    })
}

pub(super) fn paused(_: Duration) -> Box<dyn Stage> {
    single_server(|redis, length| {
        redis.pause();
        sleep(length);
        redis.resume();
        0
    })
}

pub(super) fn script_flush(_: Duration) -> Box<dyn Stage> {
    single_server(|redis, length| {
        let mut resp = redis.connect();
        let clock = Stopwatch::start();
        while clock.elapsed() < length {
            command(&mut resp, &["SCRIPT", "FLUSH"]);
            sleep(Duration::from_millis(10));
        }
        0
    })
}

pub(super) fn flush_all(_: Duration) -> Box<dyn Stage> {
    single_server(|redis, length| {
        let mut resp = redis.connect();
        let clock = Stopwatch::start();
        let mut losses = 0;
        while clock.elapsed() < length {
            command(&mut resp, &["FLUSHALL"]);
            losses += 1;
            sleep(Duration::from_secs(1));
        }
        losses
    })
}

/// The least time that the server takes to load a key.
const LOAD_DELAY: Duration = Duration::from_micros(500);

pub(super) fn loading(length: Duration) -> Box<dyn Stage> {
    let redis = Redis::with()
        .args(["--key-load-delay", &LOAD_DELAY.as_micros().to_string()])
        // While loading, the server answers after this many bytes.
        .args(["--loading-process-events-interval-bytes", "1024"])
        .start();
    let keys = length.as_micros() / LOAD_DELAY.as_micros();
    let fill = "for i = 1, ARGV[1] do redis.call('SET', 'ballast:' .. i, i) end";
    command(
        &mut redis.connect(),
        &["EVAL", fill, "0", &keys.to_string()],
    );
    Box::new(SingleServer {
        redis,
        strike: |redis, _| {
            command(&mut redis.connect(), &["SAVE"]);
            redis.restart();
            1
        },
    })
}

/// The time until all instances have counted keys and memory again.
pub(super) const RECOUNT: Duration = Duration::from_millis(1500);

pub(super) fn out_of_memory(_: Duration) -> Box<dyn Stage> {
    single_server(|redis, length| {
        let mut resp = redis.connect();
        command(&mut resp, &["CONFIG", "SET", "maxmemory", "1"]);
        sleep(length);
        command(&mut resp, &["CONFIG", "SET", "maxmemory", "0"]);
        sleep(RECOUNT);
        0
    })
}

/// A server that becomes the replica of another.
struct Demoted {
    redis: Redis,
    other: Redis,
}

impl Stage for Demoted {
    fn options(&self) -> Options {
        standalone(&self.redis.address())
    }

    fn strike(&self, length: Duration) -> u64 {
        let mut resp = self.redis.connect();
        let port = self.other.port().to_string();
        command(&mut resp, &["REPLICAOF", "127.0.0.1", &port]);
        sleep(length);
        command(&mut resp, &["REPLICAOF", "NO", "ONE"]);
        1
    }
}

pub(super) fn read_only(_: Duration) -> Box<dyn Stage> {
    let other = Redis::with()
        .args(["--repl-diskless-sync-delay", "0"])
        .start();
    let redis = Redis::start();
    Box::new(Demoted { redis, other })
}

/// A server whose scripts use the clock of the caller.
struct WithClock {
    redis: Redis,
    clock: Arc<OffsetClock>,
}

impl Stage for WithClock {
    fn options(&self) -> Options {
        let mut options = standalone(&self.redis.address());
        let clock: Arc<OffsetClock> = Arc::clone(&self.clock);
        options.clock = ClockSource::Caller(clock);
        options
    }

    fn clock(&self) -> Arc<OffsetClock> {
        Arc::clone(&self.clock)
    }

    fn strike(&self, length: Duration) -> u64 {
        self.clock.set_back(Span::from_secs(10));
        sleep(length);
        0
    }
}

pub(super) fn clock_back(_: Duration) -> Box<dyn Stage> {
    Box::new(WithClock {
        redis: Redis::start(),
        clock: Arc::default(),
    })
}
