//! A store that cannot be used says at the start which setting to look at and what to do, and never
//! what the password is.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::net::TcpListener;
use std::time::Duration;

use tollgate_redis::{Login, Options, RedisStore, Servers, StartError};
use tollgate_rig::{Redis, Sentinels};

use common::{address, block_on, options, options_at, pretender};

const PASSWORD: &str = "hunter2";

/// How long the tests wait for somebody who does not answer.
const SOON: Duration = Duration::from_millis(200);

/// Why there is no store. Whatever the reason, the password is not told.
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

/// Fails unless the reason names `setting`, says `what`, and helps with `help`.
#[track_caller]
fn wants(error: &StartError, setting: &str, what: &str, help: &str) {
    assert_eq!(error.setting, setting, "{error}");
    assert!(error.what.contains(what), "{error}");
    assert!(error.help.contains(help), "{error}");
}

/// A server that says `info` of itself.
fn server_that_says(info: &str) -> String {
    let info = format!("${}\r\n{info}\r\n", info.len());
    pretender(move |command| match command.starts_with("INFO") {
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
fn nobody_is_there() {
    let redis = Redis::start();
    redis.kill();
    let error = reason(options(&redis));
    wants(&error, "store.redis.urls", "Connection refused", "the port");
    assert!(error.what.contains(&redis.address()), "{error}");
    assert!(error.passing);
}

#[test]
fn the_name_of_the_host_is_wrong() {
    let error = reason(options_at("redis.invalid:6379"));
    wants(&error, "store.redis.urls", "redis.invalid:6379", "the host");
    assert!(error.passing);
}

#[test]
fn nobody_answers() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let error = reason(impatient(options_at(&address)));
    wants(&error, "store.redis.urls", "in time", "the network");
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
    // A password where none is wanted.
    let open = Redis::start();
    let error = reason(with_login(options(&open), Some("app")));
    wants(&error, "store.redis.password", "login", "`password`");
}

#[test]
fn a_password_is_not_shown_by_what_has_it() {
    let redis = Redis::with().acl("app", PASSWORD).start();
    let store = common::connect(with_login(options(&redis), Some("app")));
    let shown = format!("{store:?} {:?}", store.options());
    assert!(
        shown.contains("app") && !shown.contains(PASSWORD),
        "{shown}"
    );
}

#[test]
fn the_user_may_not_do_what_is_needed() {
    let redis = Redis::start();
    let needed = "+@read +@write +@scripting +@connection +info +time";
    let may = |rights: &str| {
        let user = format!("ACL SETUSER app reset on >{PASSWORD} ~tg:* {rights}");
        redis.cli(&user.split(' ').collect::<Vec<_>>());
    };
    for right in needed.split(' ') {
        may(&needed.replace(right, ""));
        let error = reason(with_login(options(&redis), Some("app")));
        wants(&error, "store.redis.username", "may not", needed);
    }
    may(needed);
    common::connect(with_login(options(&redis), Some("app")));
    let mut elsewhere = with_login(options(&redis), Some("app"));
    elsewhere.key_prefix = "other".to_owned();
    wants(
        &reason(elsewhere),
        "store.redis.username",
        "may not",
        "`key_prefix`",
    );
}

#[test]
fn what_answers_is_not_redis() {
    let page = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";
    let error = reason(options_at(&pretender(|_| Some(page.to_owned()))));
    wants(&error, "store.redis.urls", "not Redis", "host and port");
    assert!(!error.passing);
    let error = reason(options_at(&server_that_says("something:else\r\n")));
    wants(&error, "store.redis.urls", "version", "no Redis");
}

#[test]
fn the_server_is_too_old() {
    let error = reason(options_at(&server_that_says("redis_version:5.0.7\r\n")));
    wants(&error, "store.redis.urls", "Redis 5.0", "6.2");
    assert!(!error.passing);
    let error = reason(options_at(&server_that_says("redis_version:6.0.16\r\n")));
    wants(&error, "store.redis.urls", "Redis 6.0", "6.2");
}

#[test]
fn the_server_is_not_ready() {
    let loading = "-LOADING Redis is loading the dataset in memory\r\n";
    let full = "-ERR max number of clients reached\r\n";
    for answer in [loading, full] {
        for first in ["", "INFO", "SCRIPT"] {
            let ready = "redis_version:7.0.0\r\n";
            let address = pretender(move |command| {
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
fn the_server_falls_silent() {
    let address = pretender(|command| match command.starts_with("INFO") {
        true => None,
        false => Some("+PONG\r\n".to_owned()),
    });
    let mut options = options_at(&address);
    options.timeout = SOON;
    let error = reason(options);
    wants(&error, "store.redis.urls", "timed out", "the network");
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
    wants(&error, "store.redis.urls", "replica", "primary");
    assert!(error.passing, "it may become the primary");
}

#[test]
fn the_database_is_not_there() {
    let redis = Redis::start();
    let mut beyond = options(&redis);
    beyond.database = 16;
    let error = reason(beyond);
    wants(&error, "store.redis.urls", "DB index", "database");
    assert!(!error.passing);
}

#[test]
fn one_server_is_not_a_cluster_and_a_cluster_is_not_one_server() {
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
    wants(&reason(second), "store.redis.urls", "database", "only 0");
}

#[test]
fn sentinels_do_not_know_the_master_or_are_none() {
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
    wants(&error, "store.redis.urls", "cannot be reached", "the port");
}
