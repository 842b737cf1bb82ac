//! Three processes in leased mode on one Redis, and on a cluster. They are killed and stopped while they work, and a
//! master is replaced: behind Sentinels, and in a cluster. All together never admit more than the limit, in any span of
//! time.
//!
//! Each process is this test program again, with the variable `WORKER` set. It writes the instant of each admitted
//! request to a file, before it makes the next request.

#![allow(clippy::unwrap_used, reason = "a test")]
#![allow(
    clippy::disallowed_methods,
    reason = "processes compare their wall clocks with that of Redis"
)]

#[path = "fleet/judge.rs"]
mod judge;

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tollgate::{Attributes, Engine, Limit, Rate, Span, Time};
use tollgate_rig::{Cluster, Redis, Reply, Sentinels, wait};

/// How long to wait for a condition.
const LIMIT: Duration = Duration::from_secs(60);
const WORKER: &str = "TOLLGATE_TEST_WORKER";
/// A request that took longer was stopped in between, so the instant of its admission is not known.
const STOPPED: u64 = 20_000;

/// What the judge needs to know about a run.
mod world {
    use tollgate::Time;

    pub(crate) struct Outcomes {
        pub(crate) uses: Vec<Time>,
        pub(crate) forgotten: Vec<(Time, u64)>,
    }
}

fn micros() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(since.as_micros()).unwrap()
}

/// The work of one process: requests without a pause, until it is killed.
#[test]
fn worker() {
    let Ok(given) = std::env::var(WORKER) else {
        return;
    };
    let (config, uses) = given.split_once('|').unwrap();
    let config = std::fs::read_to_string(config).unwrap();
    let config = tollgate::parse("rules.yaml", &config, &|_| None).unwrap();
    let mut uses = OpenOptions::new()
        .append(true)
        .create(true)
        .open(uses)
        .unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(async {
        let engine = Engine::start(&config).await.unwrap();
        let attributes = Attributes::from([("tenant", "acme")]);
        for request in 0_u64.. {
            let (before, covered) = (micros(), engine.prepaid_usage().covered);
            let decision = engine.check(&attributes).await;
            let is_covered = engine.prepaid_usage().covered > covered;
            let after = micros();
            if decision.is_allowed() {
                let at = match is_covered {
                    _ if after - before > STOPPED && is_covered => 0,
                    true => after,
                    // The time at which Redis decided.
                    false => decision.decided_at().as_micros(),
                };
                let _ = uses.write_all(&at.to_le_bytes());
                let _ = uses.write_all(&u64::from(is_covered).to_le_bytes());
            } else {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            if request.is_multiple_of(8) {
                // Background calls and sweeps get their turn, as in a server.
                engine.sweep();
                tokio::time::sleep(Duration::from_micros(500)).await;
            }
        }
    });
}

struct Fleet {
    config: PathBuf,
    uses: PathBuf,
    workers: Vec<Child>,
}

impl Fleet {
    fn new(folder: &Path, store: &str, rule: &str) -> Fleet {
        let config = folder.join("rules.yaml");
        // After a failover the breaker may open more than once. By default it stays open for 30 s each time.
        let breaker = "circuit_breaker: { timeout_duration: 1s }";
        let text = format!(
            "version: 1\nsubjects: {{ hash_secret: a secret of 16 bytes }}\n\
             store: {{ redis: {{ {store}, timeout: 1s, replicas: 3, {breaker} }} }}\n\
             rules: [{{ id: api, per: [tenant], mode: leased, on_store_failure: fail-closed, {rule} }}]\n"
        );
        std::fs::write(&config, text).unwrap();
        Fleet {
            config,
            uses: folder.join("uses"),
            workers: Vec::new(),
        }
    }

    fn start_worker(&mut self) {
        let given = format!("{}|{}", self.config.display(), self.uses.display());
        let worker = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "worker", "--nocapture"])
            .env(WORKER, given)
            .stdout(std::process::Stdio::null())
            .spawn();
        self.workers.push(worker.unwrap());
    }

    fn signal(&self, worker: usize, signal: &str) {
        let id = self.workers[worker].id().to_string();
        let sent = Command::new("kill").args([signal, &id]).status().unwrap();
        assert!(sent.success());
    }

    /// Starts three processes, and waits until they use slices.
    fn start(&mut self) {
        for _ in 0..3 {
            self.start_worker();
        }
        wait::until("the processes use slices", LIMIT, || self.uses().1 > 100);
    }

    /// Kills all processes, and judges what they have admitted.
    fn judge(mut self, limit: &Limit) {
        for worker in &mut self.workers {
            worker.kill().unwrap();
            worker.wait().unwrap();
        }
        let (uses, covered) = self.uses();
        assert!(covered > 100, "{covered} of {}", uses.len());
        let forgotten = Vec::new();
        judge::check(limit, &world::Outcomes { uses, forgotten }).unwrap();
    }

    /// Returns the instants of all admitted requests, and how many came from slices.
    fn uses(&self) -> (Vec<Time>, usize) {
        let bytes = std::fs::read(&self.uses).unwrap_or_default();
        let mut covered = 0;
        let uses = bytes.chunks_exact(16).filter_map(|it| {
            let at = u64::from_le_bytes(it[..8].try_into().unwrap());
            covered += usize::from(it[8] == 1);
            (at > 0).then(|| Time::from_micros(at))
        });
        let uses: Vec<Time> = uses.collect();
        (uses, covered)
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for worker in &mut self.workers {
            let _ = worker.kill();
            let _ = worker.wait();
        }
    }
}

/// Kills and stops processes while they work, and judges what they have admitted.
fn hammer(store: &str, rule: &str, limit: &Limit) {
    let folder = tempfile::tempdir().unwrap();
    let mut fleet = Fleet::new(folder.path(), store, rule);
    fleet.start();
    for round in 0..6 {
        std::thread::sleep(Duration::from_millis(120));
        match round % 2 {
            // A stopped process holds slices that end before it goes on.
            0 => {
                fleet.signal(1, "-STOP");
                std::thread::sleep(Duration::from_millis(180));
                fleet.signal(1, "-CONT");
            }
            _ => {
                let mut worker = fleet.workers.remove(0);
                worker.kill().unwrap();
                worker.wait().unwrap();
                fleet.start_worker();
            }
        }
    }
    std::thread::sleep(Duration::from_millis(300));
    fleet.judge(limit);
}

/// Replaces the master while processes work, and judges what they have admitted.
fn hammer_through_failover(store: &str, replace_master: impl FnOnce()) {
    let (limit, rule) = rate();
    let folder = tempfile::tempdir().unwrap();
    let mut fleet = Fleet::new(folder.path(), store, rule);
    fleet.start();
    replace_master();
    let before = fleet.uses().1;
    wait::until("slices of the new master", LIMIT, || {
        fleet.uses().1 > before + 500
    });
    fleet.judge(&limit);
}

/// Kills a master that has acknowledged no write which its replica lacks. So the failover forgets nothing, and the
/// limit has to hold to the last unit.
fn kill_without_loss(master: &Redis, replica: &Redis) {
    let paused = master
        .connect()
        .command(&["CLIENT", "PAUSE", "60000", "WRITE"]);
    assert_eq!(paused, Reply::Simple("OK".into()));
    wait::until("a replica with all writes", LIMIT, || {
        let (ours, theirs) = (master.info("replication"), replica.info("replication"));
        ours["master_repl_offset"] == theirs["slave_repl_offset"]
    });
    master.kill();
}

fn rate() -> (Limit, &'static str) {
    let rate = Rate::new(1000, Span::SECOND).unwrap();
    (
        Limit::gcra(rate, 400).unwrap(),
        "algorithm: gcra, rate: 1000/s, burst: 400",
    )
}

#[test]
fn processes_on_one_redis_never_exceed_a_limit() {
    let redis = Redis::start();
    let store = format!("url: \"redis://{}\"", redis.address());
    let (limit, rule) = rate();
    hammer(&store, rule, &limit);
    let window = Limit::fixed_window(700, Span::SECOND).unwrap();
    hammer(
        &store,
        "algorithm: fixed-window, limit: 700, window: 1s",
        &window,
    );
}

#[test]
fn processes_on_a_cluster_never_exceed_a_limit() {
    let cluster = Cluster::start(3, 0);
    let urls = cluster.urls().join("\", \"");
    let (limit, rule) = rate();
    hammer(&format!("mode: cluster, urls: [\"{urls}\"]"), rule, &limit);
}

#[test]
fn processes_behind_sentinels_never_exceed_a_limit_through_a_failover() {
    let sentinels = Sentinels::start();
    let (urls, master) = (sentinels.urls().join("\", \""), Sentinels::MASTER);
    let store = format!("mode: sentinel, urls: [\"{urls}\"], sentinel_master: {master}");
    hammer_through_failover(&store, || {
        kill_without_loss(sentinels.primary(), sentinels.replica());
        sentinels.wait_for_failover();
    });
}

#[test]
fn processes_on_a_cluster_never_exceed_a_limit_through_a_failover() {
    let cluster = Cluster::start(3, 1);
    let urls = cluster.urls().join("\", \"");
    hammer_through_failover(&format!("mode: cluster, urls: [\"{urls}\"]"), || {
        let nodes = cluster.nodes();
        let with_rule = |node: &usize| {
            let keys = nodes[*node].connect().keys();
            let keys = keys
                .iter()
                .map(|it| String::from_utf8_lossy(it).into_owned());
            let mut keys = keys.filter(|it| it.contains("api"));
            keys.next().map(|key| (*node, key))
        };
        let (old, key) = cluster.masters().iter().find_map(with_rule).unwrap();
        kill_without_loss(&nodes[old], &nodes[cluster.replicas_of(old)[0]]);
        cluster.wait_for_failover(cluster.slot_of(&key), old);
    });
}
