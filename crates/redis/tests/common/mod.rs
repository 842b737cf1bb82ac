//! Stores on separate servers, and helpers for tests.

#![allow(dead_code, reason = "each test file uses some of it")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use tokio::runtime::Runtime;
use tollgate_conformance::{self as conformance, Fixture};
use tollgate_core::{Charge, Limit, Span, Time};
use tollgate_redis::{Address, ClockSource, Options, RedisStore, Servers};
use tollgate_rig::{Cluster, Redis, wait};
use tollgate_store::{Applied, Ask, Clock, ManualClock, Store, StoreError};

/// How long to wait for a condition.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// A window that is longer than any test.
pub(crate) const LONG: Span = Span::from_secs(1_000 * 86_400);

/// The runtime of the workers of all stores.
pub(crate) static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
});

pub(crate) fn block_on<F: IntoFuture>(future: F) -> F::Output {
    RUNTIME.block_on(future.into_future())
}

pub(crate) fn address(redis: &Redis) -> Address {
    parse(&redis.address())
}

/// Parses a host and a port, such as `127.0.0.1:20001`.
pub(crate) fn parse(text: &str) -> Address {
    let (host, port) = text.rsplit_once(':').unwrap();
    Address {
        host: host.to_owned(),
        port: port.parse().unwrap(),
    }
}

/// Returns options for one server, with timeouts for a busy machine.
pub(crate) fn options(redis: &Redis) -> Options {
    options_at(&redis.address())
}

pub(crate) fn options_at(text: &str) -> Options {
    patient(Options::new(Servers::Standalone(parse(text))))
}

pub(crate) fn addresses(servers: &[Redis]) -> Vec<Address> {
    servers.iter().map(address).collect()
}

/// Starts three masters. The cluster does not treat a master as failed before it was silent for 30 seconds.
pub(crate) fn cluster_that_bears_pauses() -> Cluster {
    let cluster = Cluster::start(3, 0);
    for node in cluster.nodes() {
        node.cli(&["CONFIG", "SET", "cluster-node-timeout", "30000"]);
    }
    cluster
}

/// Returns options for a shared cluster.
pub(crate) fn cluster_options(cluster: &Cluster) -> Options {
    let nodes = addresses(cluster.nodes());
    let mut options = patient(Options::new(Servers::Cluster(nodes)));
    options.key_prefix = prefix();
    options
}

pub(crate) fn patient(mut options: Options) -> Options {
    options.timeout = Duration::from_secs(10);
    options.connect_timeout = Duration::from_secs(10);
    options
}

/// Returns a prefix that no other store of this run has.
pub(crate) fn prefix() -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    format!("test-{}", NUMBER.fetch_add(1, Ordering::Relaxed))
}

pub(crate) fn connect(options: Options) -> RedisStore {
    block_on(RedisStore::connect(options)).unwrap()
}

/// A store with a manual clock, on a separate server.
pub(crate) struct OnRedis {
    pub(crate) redis: Redis,
    store: RedisStore,
    clock: ManualClock,
}

impl OnRedis {
    pub(crate) fn start() -> OnRedis {
        let redis = Redis::start();
        let clock = ManualClock::default();
        let store = connect(by_clock(options(&redis), &clock));
        OnRedis {
            redis,
            store,
            clock,
        }
    }
}

/// Returns the options with a manual clock. Redis expires keys by its own clock, not by the manual one. So
/// states are kept for an hour after they expire, which the suite allows.
pub(crate) fn by_clock(mut options: Options, clock: &ManualClock) -> Options {
    options.clock = ClockSource::Caller(Arc::new(clock.clone()) as Arc<dyn Clock>);
    options.margin = Span::HOUR;
    options
}

impl Fixture for OnRedis {
    type Store = RedisStore;

    fn store(&self) -> &RedisStore {
        &self.store
    }

    fn set_time(&self, now: Time) {
        self.clock.set(now);
    }
}

impl Drop for OnRedis {
    /// Checks after each test that every key expires.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            every_key_expires(&self.redis);
        }
    }
}

/// Panics if a key of the server does not expire.
pub(crate) fn every_key_expires(redis: &Redis) {
    let mut resp = redis.connect();
    for key in resp.keys() {
        let ttl = resp.pttl(&key);
        assert_ne!(ttl, -1, "{} never expires", String::from_utf8_lossy(&key));
    }
}

/// Returns every key of the server and its value.
pub(crate) fn contents(redis: &Redis) -> BTreeMap<String, Vec<u8>> {
    let mut resp = redis.connect();
    let keys = resp.keys().into_iter();
    let dumps = keys.filter_map(|key| {
        let dump = resp.dump(&key)?;
        Some((String::from_utf8(key).unwrap(), dump))
    });
    dumps.collect()
}

/// Returns how many changes of keys and expiries the server has made so far.
pub(crate) fn changes(redis: &Redis) -> u64 {
    let info = redis.info("persistence");
    info["rdb_changes_since_last_save"].parse().unwrap()
}

/// Returns the number of steps of a random sequence: five times as many in a long run.
pub(crate) fn steps() -> usize {
    match std::env::var("TOLLGATE_PROOF_CASES") {
        Ok(_) => conformance::STEPS * 5,
        Err(_) => conformance::STEPS,
    }
}

/// Returns a charge of one unit on subject `number`.
pub(crate) fn charge(number: u64, limit: &Limit) -> Charge<'_> {
    Charge {
        overflow: conformance::key(u64::MAX),
        rule: "rule",
        ..Charge::new(conformance::key(number), limit)
    }
}

/// Charges one unit to subject `number`.
pub(crate) async fn take(
    store: &RedisStore,
    number: u64,
    limit: &Limit,
) -> Result<Applied, StoreError> {
    store.apply(&[charge(number, limit)], Ask::Exactly(1)).await
}

/// Returns what is left for subject `number`.
pub(crate) async fn left(store: &RedisStore, number: u64, limit: &Limit) -> u64 {
    let charges = [charge(number, limit)];
    let applied = store.peek(&charges, Ask::Exactly(0)).await.unwrap();
    applied.outcomes[0].remaining
}

/// Charges one unit to subject `number`. Each of `callers` callers does this `attempts` times. Returns how
/// many charges were allowed. Panics if an attempt fails.
pub(crate) async fn admitted(
    store: &RedisStore,
    number: u64,
    limit: &Limit,
    callers: usize,
    attempts: usize,
) -> u64 {
    let callers = (0..callers).map(|_| {
        let (store, limit) = (store.clone(), limit.clone());
        tokio::spawn(async move {
            let mut allowed = 0;
            for _ in 0..attempts {
                allowed += u64::from(take(&store, number, &limit).await.unwrap().allowed);
            }
            allowed
        })
    });
    let callers: Vec<_> = callers.collect();
    let mut sum = 0;
    for caller in callers {
        sum += caller.await.unwrap();
    }
    sum
}

/// Queues `requests` while the server is paused, so that they leave in one or two calls. Returns their
/// answers.
pub(crate) fn at_once<T: Send + 'static>(
    redis: &Redis,
    store: &RedisStore,
    requests: impl IntoIterator<Item: Future<Output = T> + Send + 'static>,
) -> Vec<T> {
    redis.pause();
    let requests = requests.into_iter();
    let tasks: Vec<_> = requests.map(|it| RUNTIME.spawn(it)).collect();
    wait::until("requests that wait", LIMIT, || {
        store.in_flight() == tasks.len()
    });
    redis.resume();
    let answers = tasks.into_iter().map(|task| block_on(task).unwrap());
    answers.collect()
}

/// Returns how many errors of a kind the store has counted.
pub(crate) fn errors(store: &RedisStore, kind: &str) -> u64 {
    let errors = store.metrics().errors();
    errors.filter(|it| it.1 == kind).map(|it| it.2).sum()
}

/// The variable with which a test passes arguments to a child process.
const ARGUMENT: &str = "TOLLGATE_TEST_TOLD";

/// Returns a command that runs the test `name` of this file with `argument`. Without an argument, that test does
/// nothing.
pub(crate) fn process(name: &str, argument: &str) -> Command {
    let mut process = Command::new(std::env::current_exe().unwrap());
    process.args(["--exact", name, "--nocapture"]);
    process.env(ARGUMENT, argument);
    process
}

/// Returns the argument of this process, if another test has started it.
pub(crate) fn argument() -> Option<String> {
    std::env::var(ARGUMENT).ok()
}

/// Starts a fake server on a thread, and returns its address. The server answers each command with `answer`;
/// if that is `None`, it does not answer.
pub(crate) fn fake_server(
    answer: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        std::thread::scope(|scope| {
            for stream in listener.incoming() {
                let (answer, mut stream) = (&answer, BufReader::new(stream.unwrap()));
                scope.spawn(move || {
                    while let Some(command) = read_command(&mut stream) {
                        if let Some(answer) = answer(&command) {
                            stream.get_mut().write_all(answer.as_bytes()).unwrap();
                        }
                    }
                });
            }
        });
    });
    address
}

/// Reads a command as words with blanks between; `None` if the client is gone.
fn read_command(stream: &mut BufReader<TcpStream>) -> Option<String> {
    let words = read_number(stream)?;
    let word = |_| {
        let mut bytes = vec![0; read_number(stream)? + 2];
        stream.read_exact(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim_end().to_owned())
    };
    let words: Vec<String> = (0..words).map(word).collect::<Option<_>>()?;
    Some(words.join(" "))
}

/// Reads a line with a sign and a number.
fn read_number(stream: &mut BufReader<TcpStream>) -> Option<usize> {
    let mut line = String::new();
    stream.read_line(&mut line).ok()?;
    line.trim_end().get(1..)?.parse().ok()
}
