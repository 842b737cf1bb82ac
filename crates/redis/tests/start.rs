//! A store that cannot be used fails at the start. The error names the setting to check and the remedy, and
//! never shows the password.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::net::TcpListener;
use std::time::Duration;

use tollgate_redis::{Login, Options, RedisStore, Servers, StartError};
use tollgate_rig::{Redis, Sentinels};

use common::{address, block_on, fake_server, options, options_at};

const PASSWORD: &str = "hunter2";

/// How long the tests wait for a server that does not answer.
const SOON: Duration = Duration::from_millis(200);

/// Returns the start error, and checks that it does not show the password.
fn reason(options: Options) -> StartError {
    let shown = format!("{options:?}");
    let error = block_on(RedisStore::connect(options)).err().unwrap();
    for text in [format!("{error:?}"), error.to_string(), shown] {
        assert!(!text.contains(PASSWORD), "{text}");
    }
    assert!(error.to_string().starts_with(error.setting));
    assert!(error.to_string().ends_with(&error.help));
    error
}

/// Panics unless the error names `setting`, and its texts contain `what` and `help`.
#[track_caller]
fn wants(error: &StartError, setting: &str, what: &str, help: &str) {
    assert_eq!(error.setting, setting, "{error}");
    assert!(error.what.contains(what), "{error}");
    assert!(error.help.contains(help), "{error}");
}

/// Starts a server that answers `INFO` with `info`.
fn server_with_info(info: &str) -> String {
    let info = format!("${}\r\n{info}\r\n", info.len());
    fake_server(move |command| match command.starts_with("INFO") {
        true => Some(info.clone()),
        false => Some("+PONG\r\n".to_owned()),
    })
}

fn with_login(mut options: Options, username: Option<&str>) -> Options {
    options.login = Login {
        username: username.map(str::to_owned),
        password: Some(PASSWORD.to_owned()),
    };
    options
}

fn in_cluster(redis: &Redis) -> Options {
    let nodes = vec![address(redis)];
    common::patient(Options::new(Servers::Cluster(nodes)))
}

fn impatient(mut options: Options) -> Options {
    options.connect_timeout = SOON;
    options
}

#[test]
fn no_server_listens() {
    let redis = Redis::start();
    redis.kill();
    let error = reason(options(&redis));
    wants(&error, "store.redis.urls", "Connection refused", "port");
    assert!(error.what.contains(&redis.address()), "{error}");
    assert!(error.passing);
}

#[test]
fn the_host_name_is_wrong() {
    let error = reason(options_at("redis.invalid:6379"));
    wants(&error, "store.redis.urls", "redis.invalid:6379", "host");
    assert!(error.passing);
}

#[test]
fn the_server_does_not_answer() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let error = reason(impatient(options_at(&address)));
    wants(&error, "store.redis.urls", "in time", "network");
    assert!(error.passing);
}

#[test]
fn the_login_is_wrong() {
    let redis = Redis::with().acl("app", "right").start();
    for username in [Some("app"), Some("nobody"), None] {
        let error = reason(with_login(options(&redis), username));
        wants(&error, "store.redis.password", "login", "`password`");
        assert!(!error.passing);
    }
    wants(
        &reason(options(&redis)),
        "store.redis.password",
        "login",
        "`password`",
    );
    // A password for a server without one.
    let open = Redis::start();
    let error = reason(with_login(options(&open), Some("app")));
    wants(&error, "store.redis.password", "login", "`password`");
}

#[test]
fn debug_output_hides_the_password() {
    let redis = Redis::with().acl("app", PASSWORD).start();
    let store = common::connect(with_login(options(&redis), Some("app")));
    let shown = format!("{store:?} {:?}", store.options());
    assert!(
        shown.contains("app") && !shown.contains(PASSWORD),
        "{shown}"
    );
}

#[test]
fn the_user_lacks_rights() {
    let redis = Redis::start();
    let needed = "+@read +@write +@scripting +@connection +info +time";
    let may = |rights: &str| {
        let user = format!("ACL SETUSER app reset on >{PASSWORD} ~tg:* {rights}");
        redis.cli(&user.split(' ').collect::<Vec<_>>());
    };
    for right in needed.split(' ') {
        may(&needed.replace(right, ""));
        let error = reason(with_login(options(&redis), Some("app")));
        wants(&error, "store.redis.username", "lacks a right", needed);
    }
    may(needed);
    common::connect(with_login(options(&redis), Some("app")));
    let mut elsewhere = with_login(options(&redis), Some("app"));
    elsewhere.key_prefix = "other".to_owned();
    wants(
        &reason(elsewhere),
        "store.redis.username",
        "lacks a right",
        "`key_prefix`",
    );
}

#[test]
fn the_server_is_not_redis() {
    let page = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";
    let error = reason(options_at(&fake_server(|_| Some(page.to_owned()))));
    wants(&error, "store.redis.urls", "not Redis", "host and port");
    assert!(!error.passing);
    let error = reason(options_at(&server_with_info("something:else\r\n")));
    wants(&error, "store.redis.urls", "version", "neither Redis");
}

#[test]
fn the_server_is_too_old() {
    let error = reason(options_at(&server_with_info("redis_version:5.0.7\r\n")));
    wants(&error, "store.redis.urls", "Redis 5.0", "6.2");
    assert!(!error.passing);
    let error = reason(options_at(&server_with_info("redis_version:6.0.16\r\n")));
    wants(&error, "store.redis.urls", "Redis 6.0", "6.2");
}

#[test]
fn the_server_is_not_ready() {
    let loading = "-LOADING Redis is loading the dataset in memory\r\n";
    let full = "-ERR max number of clients reached\r\n";
    for answer in [loading, full] {
        for first in ["", "INFO", "SCRIPT"] {
            let ready = "redis_version:7.0.0\r\n";
            let address = fake_server(move |command| {
                Some(match command {
                    _ if command.starts_with(first) => answer.to_owned(),
                    _ if command.starts_with("INFO") => {
                        format!("${}\r\n{ready}\r\n", ready.len())
                    }
                    _ => "+PONG\r\n".to_owned(),
                })
            });
            let error = reason(options_at(&address));
            wants(&error, "store.redis.urls", &answer[10..20], "wait");
            assert!(error.passing, "{error}");
        }
    }
}

#[test]
fn the_server_stops_answering() {
    let address = fake_server(|command| match command.starts_with("INFO") {
        true => None,
        false => Some("+PONG\r\n".to_owned()),
    });
    let mut options = options_at(&address);
    options.timeout = SOON;
    let error = reason(options);
    wants(&error, "store.redis.urls", "timed out", "network");
    assert!(error.passing);
}

#[test]
fn the_server_is_a_replica() {
    let primary = Redis::start();
    let port = primary.port().to_string();
    let replica = Redis::with()
        .args(["--replicaof", "127.0.0.1", &port])
        .start();
    let error = reason(options(&replica));
    wants(&error, "store.redis.urls", "replica", "master");
    assert!(error.passing, "it may become the master");
}

#[test]
fn the_database_does_not_exist() {
    let redis = Redis::start();
    let mut beyond = options(&redis);
    beyond.database = 16;
    let error = reason(beyond);
    wants(&error, "store.redis.urls", "DB index", "database");
    assert!(!error.passing);
}

#[test]
fn a_single_server_and_a_cluster_are_not_confused() {
    let alone = Redis::start();
    let error = reason(in_cluster(&alone));
    wants(&error, "store.redis.mode", "not a node", "standalone");
    let node = Redis::with().args(["--cluster-enabled", "yes"]).start();
    let error = reason(options(&node));
    wants(&error, "store.redis.mode", "is a node", "cluster");
    let error = reason(in_cluster(&node));
    wants(&error, "store.redis.urls", "no slots", "runs");
    let mut second = in_cluster(&node);
    second.database = 1;
    wants(
        &reason(second),
        "store.redis.urls",
        "database",
        "only database 0",
    );
}

#[test]
fn sentinels_are_wrong() {
    let sentinels = Sentinels::start();
    let named = |servers: &[Redis], master: &str| {
        common::patient(Options::new(Servers::Sentinel {
            sentinels: common::addresses(servers),
            master: master.to_owned(),
            login: Login::default(),
        }))
    };
    let error = reason(named(sentinels.sentinels(), "nobody"));
    wants(
        &error,
        "store.redis.sentinel_master",
        "`nobody`",
        "sentinel monitor",
    );
    assert!(!error.passing);
    let redis = [Redis::start()];
    let error = reason(named(&redis, Sentinels::MASTER));
    wants(&error, "store.redis.mode", "not a Sentinel", "Sentinels");
    let error = reason(options(&sentinels.sentinels()[0]));
    wants(
        &error,
        "store.redis.mode",
        "is a Sentinel",
        "`mode: sentinel`",
    );
    redis[0].kill();
    let error = reason(named(&redis, Sentinels::MASTER));
    wants(&error, "store.redis.urls", "cannot be reached", "port");
}
