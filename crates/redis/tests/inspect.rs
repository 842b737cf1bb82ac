//! The findings on real servers, with and without problems.

#![allow(clippy::panic, clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{address, block_on, options, patient};
use tollgate_core::Time;
use tollgate_redis::{Address, ClockSource, Finding, Level, Login, Options, Servers, Tls, inspect};
use tollgate_rig::{Cluster, Fault, Proxy, Redis, RedisBuilder, Sentinels, Version, versions};
use tollgate_store::ManualClock;

/// Returns a server without problems. Tests add arguments that cause problems.
fn good_server() -> RedisBuilder {
    Redis::with().args(["--maxmemory", "100mb"])
}

fn findings_of(options: Options) -> Vec<Finding> {
    block_on(inspect(options))
}

fn servers(servers: Servers) -> Options {
    patient(Options::new(servers))
}

/// Returns the only finding of `check`.
fn found<'f>(findings: &'f [Finding], check: &str) -> &'f Finding {
    let mut its = findings.iter().filter(|finding| finding.check == check);
    match (its.next(), its.next()) {
        (Some(finding), None) => finding,
        other => panic!("{check}: {other:?} in {findings:#?}"),
    }
}

/// Panics unless exactly these checks found a problem, each with its level.
#[track_caller]
fn assert_only(findings: &[Finding], expected: &[(&str, Level)]) {
    let amiss = findings.iter().filter(|it| it.level > Level::Ok);
    let amiss: Vec<(&str, Level)> = amiss.map(|it| (it.check, it.level)).collect();
    assert_eq!(amiss, expected, "{findings:#?}");
    for finding in findings {
        assert_eq!(
            finding.help.is_some(),
            finding.level > Level::Ok,
            "{finding:?}"
        );
    }
}

/// Writes `count` keys with names like Tollgate's, all with one tag.
fn write_states(redis: &Redis, tag: u32, count: usize) {
    let mut resp = redis.connect();
    for number in 0..count {
        let key = format!("tg:v1:{{{tag:08x}}}:api:{number:032x}:f");
        let reply = resp.command(&["SET", &key, "state", "PX", "600000"]);
        assert_eq!(reply.text(), "OK");
    }
}

#[test]
fn a_good_server_has_no_problems() {
    let redis = good_server().acl("app", "secret").start();
    write_states(&redis, 1, 3);
    let mut options = options(&redis);
    options.login = Login {
        username: Some("app".to_owned()),
        password: Some("secret".to_owned()),
    };
    let findings = findings_of(options);
    assert_only(&findings, &[]);
    let checks: Vec<&str> = findings.iter().map(|finding| finding.check).collect();
    let expected = [
        "connection",
        "tls",
        "login",
        "version",
        "mode",
        "role",
        "memory",
        "eviction",
        "persistence",
        "scripts",
        "commands",
        "clock",
        "ping",
        "decision",
        "keys",
        "expiry",
        "type",
        "placement",
    ];
    assert_eq!(checks, expected);
    for finding in &findings {
        assert!(finding.found.starts_with(&redis.address()), "{finding:?}");
    }
    let login = &found(&findings, "login").found;
    assert!(login.ends_with("logged in as `app`"), "{login}");
    let keys = &found(&findings, "keys").found;
    assert!(
        keys.ends_with("3 under the prefix: api 3; the server has 3 keys"),
        "{keys}"
    );
}

#[test]
fn inspecting_changes_no_data() {
    let redis = good_server().start();
    write_states(&redis, 1, 3);
    redis.cli(&["HSET", "tg:users", "ann", "1"]);
    let mut resp = redis.connect();
    let before: Vec<_> = resp
        .keys()
        .into_iter()
        .map(|it| (resp.dump(&it), it))
        .collect();
    findings_of(options(&redis));
    let after: Vec<_> = resp
        .keys()
        .into_iter()
        .map(|it| (resp.dump(&it), it))
        .collect();
    assert_eq!(before, after);
}

#[test]
fn every_version_is_inspected_alike() {
    for version in Version::ALL {
        let redis = good_server().binary(versions::fetch(version)).start();
        let findings = findings_of(options(&redis));
        assert_only(&findings, &[]);
        let product = if version == Version::Valkey9 {
            "Valkey 9."
        } else {
            "Redis "
        };
        let version = &found(&findings, "version").found;
        assert!(version.contains(product), "{version}");
    }
}

#[test]
fn encryption_is_reported() {
    // Of the tested versions, only this one is built with TLS.
    let program = versions::fetch(Version::Redis7_0);
    let redis = good_server().binary(program).tls().start();
    let mut options = options(&redis);
    options.tls = Some(Tls {
        ca: Some(std::fs::read(redis.ca_file()).unwrap()),
    });
    let findings = findings_of(options);
    assert_only(&findings, &[]);
    let tls = &found(&findings, "tls").found;
    assert!(tls.ends_with("connections are encrypted"), "{tls}");
}

#[test]
fn an_absent_server_is_a_finding() {
    let redis = Redis::start();
    redis.kill();
    let findings = findings_of(options(&redis));
    assert_only(&findings, &[("connection", Level::Bad)]);
    let found = &findings[0];
    let expected = format!("store.redis.urls: {} cannot be reached", redis.address());
    assert!(found.found.starts_with(&expected), "{found:?}");
    assert!(found.help.as_ref().unwrap().contains("server runs"));
}

#[test]
fn a_rejected_login_names_the_setting() {
    let redis = Redis::with().acl("app", "secret").start();
    let findings = findings_of(options(&redis));
    assert_only(&findings, &[("connection", Level::Bad)]);
    assert!(
        findings[0].found.starts_with("store.redis.password: "),
        "{findings:?}"
    );
}

#[test]
fn policies_that_evict_active_limits_are_warnings() {
    for policy in ["allkeys-lru", "volatile-lru"] {
        let redis = good_server().args(["--maxmemory-policy", policy]).start();
        assert_only(&findings_of(options(&redis)), &[("eviction", Level::Warn)]);
    }
}

#[test]
fn unlimited_or_nearly_full_memory_is_a_warning() {
    let redis = Redis::start();
    assert_only(&findings_of(options(&redis)), &[("memory", Level::Warn)]);
    redis.cli(&["SET", "others", &"x".repeat(100_000)]);
    let most = redis.used_memory() * 110 / 100;
    redis.cli(&["CONFIG", "SET", "maxmemory", &most.to_string()]);
    assert_only(&findings_of(options(&redis)), &[("memory", Level::Warn)]);
}

#[test]
fn a_full_server_cannot_write() {
    let redis = good_server().start();
    redis.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let findings = findings_of(options(&redis));
    assert_only(
        &findings,
        &[("memory", Level::Warn), ("commands", Level::Bad)],
    );
    let commands = found(&findings, "commands");
    assert!(
        commands.found.contains("rejects SET, SETRANGE: ") && commands.found.contains("OOM"),
        "{commands:?}"
    );
}

#[test]
fn a_wrong_mode_is_reported() {
    let node = Redis::with().args(["--cluster-enabled", "yes"]).start();
    let findings = findings_of(options(&node));
    let mode = found(&findings, "mode");
    assert_eq!(mode.level, Level::Bad);
    assert!(
        mode.help.as_ref().unwrap().contains("mode: cluster"),
        "{mode:?}"
    );

    let single = good_server().start();
    let findings = findings_of(servers(Servers::Cluster(vec![address(&single)])));
    assert_only(&findings, &[("nodes", Level::Bad)]);
    assert!(
        findings[0].found.contains("store.redis.mode: "),
        "{findings:?}"
    );
}

#[test]
fn a_replica_is_reported() {
    let master = Redis::with()
        .args(["--repl-diskless-sync-delay", "0"])
        .start();
    let replica = good_server()
        .args(["--replicaof", "127.0.0.1", &master.port().to_string()])
        .start();
    let findings = findings_of(options(&replica));
    assert_only(&findings, &[("role", Level::Bad)]);
    let role = &found(&findings, "role").found;
    assert!(role.contains(&master.address()), "{role}");
}

#[test]
fn unexpected_keys_are_found() {
    let redis = good_server().start();
    write_states(&redis, 1, 3);
    // A key of another program, without the prefix.
    redis.cli(&["SET", "tgx:other", "1"]);
    // Overrides do not expire.
    let shelf = common::connect(options(&redis)).shared_values("prod");
    assert!(common::block_on(shelf.put("everyone/*", "{}", 9)).unwrap());
    let findings = findings_of(options(&redis));
    assert_only(&findings, &[]);
    let keys = &found(&findings, "keys").found;
    assert!(
        keys.contains("4 under the prefix: api 3, (overrides) 1;"),
        "{keys}"
    );
    let overrides = redis.cli(&["KEYS", "*:overrides:*"]);
    redis.cli(&["SET", overrides.trim(), "something else"]);
    assert_only(&findings_of(options(&redis)), &[("type", Level::Bad)]);
    redis.cli(&["DEL", overrides.trim()]);

    let eternal = format!("tg:v1:{{00000001}}:api:{:032x}:f", 0);
    redis.cli(&["PERSIST", &eternal]);
    let findings = findings_of(options(&redis));
    assert_only(&findings, &[("expiry", Level::Bad)]);
    let expiry = &found(&findings, "expiry").found;
    assert!(
        expiry.ends_with(&format!("1 of 3 keys never expire, such as {eternal}")),
        "{expiry}"
    );

    redis.cli(&["DEL", &eternal]);
    redis.cli(&["HSET", &eternal, "field", "value"]);
    redis.cli(&["PEXPIRE", &eternal, "600000"]);
    let findings = findings_of(options(&redis));
    assert_only(&findings, &[("type", Level::Bad)]);

    redis.cli(&["DEL", &eternal]);
    redis.cli(&["SET", "tg:users", "1", "PX", "600000"]);
    assert_only(&findings_of(options(&redis)), &[("prefix", Level::Warn)]);
}

#[test]
fn a_sample_is_bounded() {
    let redis = good_server().start();
    write_states(&redis, 1, 12_000);
    let findings = findings_of(options(&redis));
    assert_only(&findings, &[("placement", Level::Warn)]);
    let keys = &found(&findings, "keys").found;
    // The sample has 10,000 keys, or fewer on a slow machine.
    assert!(
        keys.contains("under the prefix sampled, of about "),
        "{keys}"
    );
}

#[test]
fn latency_close_to_the_timeout_is_a_warning() {
    let redis = good_server().start();
    let proxy = Proxy::to(&redis.address());
    proxy.set(Fault::Latency(Duration::from_millis(3)));
    let mut options = options(&redis);
    let port = proxy.address().rsplit_once(':').unwrap().1.parse().unwrap();
    options.servers = Servers::Standalone(Address {
        host: "127.0.0.1".to_owned(),
        port,
    });
    // The round trip takes at least 6 ms.
    options.timeout = Duration::from_millis(5);
    let findings = findings_of(options);
    let amiss = [("ping", Level::Bad), ("decision", Level::Bad)];
    assert_only(&findings, &amiss);
    let ping = found(&findings, "ping");
    assert!(ping.found.ends_with("`timeout` is 5 ms"), "{ping:?}");
}

#[test]
fn a_deciding_clock_must_not_differ() {
    let redis = good_server().start();
    let mut options = options(&redis);
    let clock = ManualClock::at(Time::from_micros(1_000_000));
    options.clock = ClockSource::Caller(Arc::new(clock));
    let findings = findings_of(options);
    assert_only(&findings, &[("clock", Level::Bad)]);
    let clock = found(&findings, "clock");
    assert!(
        clock.found.contains(" ahead of this host's clock"),
        "{clock:?}"
    );
}

/// The rights that the documentation asks for.
const RIGHTS: &str = "~tg:* +@read +@write +@scripting +@connection +info +time";

fn as_user(redis: &Redis, rights: &str) -> Options {
    let line = ["ACL SETUSER limited on >secret", rights].join(" ");
    let words: Vec<&str> = line.split(' ').collect();
    assert_eq!(redis.cli(&words), "OK");
    let mut options = options(redis);
    options.login = Login {
        username: Some("limited".to_owned()),
        password: Some("secret".to_owned()),
    };
    options
}

#[test]
fn the_documented_rights_are_enough() {
    for version in Version::ALL {
        let redis = good_server().binary(versions::fetch(version)).start();
        let findings = findings_of(as_user(&redis, RIGHTS));
        assert_only(&findings, &[]);
        let persistence = &found(&findings, "persistence").found;
        assert!(
            persistence.contains("does not report its snapshots"),
            "{persistence}"
        );
    }
}

#[test]
fn missing_rights_are_named() {
    let redis = good_server().start();
    let findings = findings_of(as_user(&redis, &format!("{RIGHTS} -set -time")));
    let commands = found(&findings, "commands");
    assert_eq!(commands.level, Level::Bad);
    assert!(
        commands.found.contains("rejects TIME, SET: "),
        "{commands:?}"
    );
    assert!(
        commands.help.as_ref().unwrap().contains("+@write"),
        "{commands:?}"
    );
    assert_eq!(found(&findings, "clock").level, Level::Bad);

    let findings = findings_of(as_user(&redis, "resetkeys ~other:* +set +time"));
    assert_eq!(found(&findings, "commands").level, Level::Bad);
    assert_eq!(found(&findings, "decision").level, Level::Bad);

    let findings = findings_of(as_user(&redis, "resetkeys ~tg:* -scan"));
    assert_only(&findings, &[("keys", Level::Warn)]);

    let findings = findings_of(as_user(&redis, "-info"));
    assert_only(&findings, &[("info", Level::Bad)]);

    let findings = findings_of(as_user(&redis, "+info -script"));
    let scripts = found(&findings, "scripts");
    assert!(
        scripts.found.contains("store.redis.username"),
        "{scripts:?}"
    );
}

fn by_sentinels(sentinels: &Sentinels) -> Options {
    servers(Servers::Sentinel {
        sentinels: sentinels.sentinels().iter().map(address).collect(),
        master: Sentinels::MASTER.to_owned(),
        login: Login::default(),
    })
}

#[test]
fn all_sentinels_and_the_master_are_inspected() {
    let watched = Sentinels::start();
    watched
        .primary()
        .cli(&["CONFIG", "SET", "maxmemory", "100mb"]);
    let findings = findings_of(by_sentinels(&watched));
    assert_only(&findings, &[]);
    let asked = findings.iter().filter(|it| it.check == "sentinel");
    assert_eq!(asked.count(), 3);
    let role = &found(&findings, "role").found;
    let expected = format!(
        "{}: a master with 1 replica, 1 online",
        watched.primary().address()
    );
    assert_eq!(*role, expected);

    // A Sentinel is not the master that it watches.
    let findings = findings_of(servers(Servers::Standalone(address(
        &watched.sentinels()[0],
    ))));
    let mode = found(&findings, "mode");
    assert!(
        mode.help.as_ref().unwrap().contains("mode: sentinel"),
        "{mode:?}"
    );

    // A Sentinel that is down is a warning.
    watched.sentinels()[2].kill();
    let findings = findings_of(by_sentinels(&watched));
    assert_only(&findings, &[("sentinel", Level::Warn)]);

    // A Sentinel that names another master is a problem.
    let other = Redis::start();
    let odd = &watched.sentinels()[0];
    odd.cli(&["SENTINEL", "REMOVE", Sentinels::MASTER]);
    let port = other.port().to_string();
    odd.cli(&[
        "SENTINEL",
        "MONITOR",
        Sentinels::MASTER,
        "127.0.0.1",
        &port,
        "2",
    ]);
    watched.sentinels()[2].restart();
    let findings = findings_of(by_sentinels(&watched));
    assert_only(&findings, &[("sentinel", Level::Bad)]);
    assert!(
        findings[0].found.starts_with(&odd.address()),
        "{findings:?}"
    );

    for sentinel in watched.sentinels() {
        sentinel.kill();
    }
    let none = [("sentinel", Level::Bad); 3];
    assert_only(&findings_of(by_sentinels(&watched)), &none);
}

#[test]
fn sentinels_have_their_own_password() {
    let sentinel = Redis::with().acl("app", "secret").start();
    let findings = findings_of(servers(Servers::Sentinel {
        sentinels: vec![address(&sentinel)],
        master: "any".to_owned(),
        login: Login::default(),
    }));
    assert_only(&findings, &[("sentinel", Level::Bad)]);
    let setting = "store.redis.sentinel_password: ";
    assert!(findings[0].found.starts_with(setting), "{findings:?}");
}

#[test]
fn every_master_of_a_cluster_is_inspected() {
    let cluster = Cluster::start(3, 0);
    for node in cluster.nodes() {
        node.cli(&["CONFIG", "SET", "maxmemory", "100mb"]);
    }
    let seeds = |nodes: &[Redis]| servers(Servers::Cluster(nodes.iter().map(address).collect()));
    let options = seeds(&cluster.nodes()[..1]);
    let findings = findings_of(options.clone());
    assert_only(&findings, &[]);
    let slots = &found(&findings, "slots").found;
    assert_eq!(slots, "3 masters have all 16384 slots");
    for check in ["connection", "cluster", "commands", "decision", "keys"] {
        let its = findings.iter().filter(|finding| finding.check == check);
        assert_eq!(its.count(), 3, "{check}: {findings:#?}");
    }

    // All keys with one tag are on one server.
    let holder = cluster.master_of_slot(cluster.slot_of("{00000007}"));
    write_states(&cluster.nodes()[holder], 7, 1200);
    let findings = findings_of(options.clone());
    assert_only(
        &findings,
        &[("placement", Level::Warn), ("balance", Level::Warn)],
    );
    let balance = &found(&findings, "balance").found;
    let expected = format!(
        "{} has the most: 100% of about ",
        cluster.nodes()[holder].address()
    );
    assert!(balance.starts_with(&expected), "{balance}");
    cluster.nodes()[holder].cli(&["FLUSHALL"]);

    // A slot without a server.
    for node in cluster.nodes() {
        node.cli(&["CLUSTER", "DELSLOTS", "5"]);
    }
    let findings = findings_of(options);
    let slots = found(&findings, "slots");
    assert_eq!(slots.level, Level::Bad);
    assert_eq!(slots.found, "1 of 16384 slots belong to no server: 5");
    let states = findings.iter().filter(|it| it.check == "cluster");
    assert!(states.clone().count() == 3 && states.clone().any(|it| it.level == Level::Bad));

    // A node that is down; other nodes answer for the cluster.
    cluster.nodes()[1].kill();
    let findings = findings_of(seeds(cluster.nodes()));
    let level = |check| {
        let its = findings.iter().filter(|finding| finding.check == check);
        its.map(|finding| finding.level).max()
    };
    assert_eq!(level("nodes"), Some(Level::Warn));
    assert_eq!(level("connection"), Some(Level::Bad));
}
