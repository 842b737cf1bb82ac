//! TLS and logins: untrusted servers get no data, and users without rights get no decisions.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::fs;

use tollgate_conformance::Kind;
use tollgate_redis::{Login, Options, RedisStore, StartError, Tls};
use tollgate_rig::{Redis, RedisBuilder, Version, versions};

use common::{LONG, block_on, left, options, options_at, take};

/// Returns a server with TLS. Only the Redis version of the distribution has TLS.
fn secure() -> RedisBuilder {
    Redis::with()
        .binary(versions::fetch(Version::Redis7_0))
        .tls()
}

fn trusting(mut options: Options, authority: &Redis) -> Options {
    let ca = Some(fs::read(authority.ca_file()).unwrap());
    options.tls = Some(Tls { ca });
    options
}

fn as_user(mut options: Options, username: &str, password: &str) -> Options {
    options.login = Login {
        username: Some(username.to_owned()),
        password: Some(password.to_owned()),
    };
    options
}

/// Panics unless a store with these options decides.
fn decides(options: Options) {
    let store = common::connect(options);
    let limit = Kind::Gcra.limit(2, LONG);
    let allowed = [(); 3].map(|()| block_on(take(&store, 1, &limit)).unwrap().allowed);
    assert_eq!(allowed, [true, true, false]);
    assert_eq!(block_on(left(&store, 1, &limit)), 0);
}

fn reason(options: Options) -> StartError {
    block_on(RedisStore::connect(options)).err().unwrap()
}

#[test]
fn a_certificate_of_a_trusted_authority_is_accepted() {
    let redis = secure().start();
    decides(trusting(options(&redis), &redis));
    // The certificate also has the name `localhost`.
    redis.connect().command(&["FLUSHALL"]);
    let by_name = options_at(&format!("localhost:{}", redis.port()));
    decides(trusting(by_name, &redis));
}

#[test]
fn a_certificate_of_another_authority_is_rejected() {
    let (redis, other) = (secure().start(), secure().start());
    let mut of_the_system = options(&redis);
    of_the_system.tls = Some(Tls::default());
    for options in [trusting(options(&redis), &other), of_the_system] {
        let error = reason(options);
        assert_eq!(error.setting, "store.redis.tls_ca", "{error}");
        assert!(!error.passing, "{error}");
    }
}

#[test]
fn an_invalid_authority_is_rejected() {
    let redis = secure().start();
    let mut options = options(&redis);
    options.tls = Some(Tls {
        ca: Some(b"not a certificate".to_vec()),
    });
    let error = reason(options);
    assert_eq!(error.setting, "store.redis.tls_ca", "{error}");
}

#[test]
fn plain_text_and_tls_do_not_mix() {
    let (plain, secure) = (Redis::start(), secure().start());
    for mut options in [options(&secure), trusting(options(&plain), &secure)] {
        options.connect_timeout = std::time::Duration::from_millis(500);
        let error = reason(options);
        assert_eq!(error.setting, "store.redis.urls", "{error}");
        assert!(error.help.contains("rediss://"), "{error}");
    }
}

#[test]
fn a_user_with_a_password_decides_over_tls() {
    let plain = Redis::with().acl("app", "right").start();
    decides(as_user(options(&plain), "app", "right"));
    let secure = secure().acl("app", "right").start();
    decides(as_user(trusting(options(&secure), &secure), "app", "right"));
    for (user, password) in [("app", "wrong"), ("other", "right")] {
        let options = as_user(trusting(options(&secure), &secure), user, password);
        let error = reason(options);
        assert_eq!(error.setting, "store.redis.password", "{error}");
        assert!(!error.passing, "{error}");
    }
}

#[test]
fn a_user_without_rights_gets_no_decision() {
    let redis = Redis::with().acl("app", "right").start();
    let store = common::connect(as_user(options(&redis), "app", "right"));
    let limit = Kind::Gcra.limit(10, LONG);
    assert!(block_on(take(&store, 1, &limit)).unwrap().allowed);
    for rights in [
        ["-@write", "+@all"],
        ["-time", "+@all"],
        ["resetkeys", "allkeys"],
    ] {
        redis
            .connect()
            .command(&["ACL", "SETUSER", "app", rights[0]]);
        let error = block_on(take(&store, 1, &limit)).unwrap_err();
        assert_eq!(error.kind(), "unavailable", "{error}");
        redis
            .connect()
            .command(&["ACL", "SETUSER", "app", rights[1]]);
        assert!(block_on(take(&store, 1, &limit)).unwrap().allowed);
    }
    assert_eq!(block_on(left(&store, 1, &limit)), 6);
}
