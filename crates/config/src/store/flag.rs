//! The store in one word, for a command line: `memory`, or a URL that also names the mode.
//!
//! As in `url`, an error quotes only the scheme: the rest may be a password.

use tollgate_rules::document::BadValue;

use super::url::{PORT, Parts, SENTINEL_PORT, UrlError, address};
use super::{MAX_URLS, Mode, Redis, RedisUrl, Store, is_master};

const STANDALONE: &str = "redis://user:password@host:6379/0";
const SENTINEL: &str = "redis-sentinel://host1:26379,host2:26379/mymaster";
const CLUSTER: &str = "redis-cluster://host1:6379,host2:6379";

impl Store {
    /// Reads the store that a command line names. Settings that the flag does not have keep their
    /// defaults.
    ///
    /// | form | store |
    /// |---|---|
    /// | `memory` | the memory of this process |
    /// | `redis://user:password@host:6379/0` | one Redis |
    /// | `redis-sentinel://host1:26379,host2:26379/mymaster` | the master that these Sentinels name |
    /// | `redis-cluster://host1:6379,host2:6379` | a cluster that these nodes belong to |
    ///
    /// With `rediss` instead of `redis` the connections are encrypted. In each form a user and a
    /// password may come before the first host. They are for the servers that keep the data, not for
    /// the Sentinels.
    ///
    /// # Errors
    /// If the text has none of these forms. The error has the problem and the right form.
    ///
    /// ```
    /// use tollgate_config::{Mode, Store};
    ///
    /// let Store::Redis(redis) = Store::from_flag("rediss-cluster://a,b:7000")? else { panic!() };
    /// assert_eq!(redis.mode, Mode::Cluster);
    /// assert_eq!(redis.urls[1].to_string(), "rediss://b:7000/0");
    /// # Ok::<(), String>(())
    /// ```
    pub fn from_flag(text: &str) -> Result<Store, String> {
        if text == "memory" {
            return Ok(Store::Memory);
        }
        let forms = format!(
            "write memory, {STANDALONE}, {SENTINEL} or {CLUSTER}; with TLS, write rediss instead of redis"
        );
        let Some((scheme, _)) = text.split_once("://") else {
            return Err(format!("not a store: {forms}"));
        };
        let scheme = scheme.to_ascii_lowercase();
        let tls = scheme.starts_with("rediss");
        let (redis, form) = match scheme.as_str() {
            "redis" | "rediss" => (standalone(text), STANDALONE),
            "redis-sentinel" | "rediss-sentinel" => (sentinel(text, tls), SENTINEL),
            "redis-cluster" | "rediss-cluster" => (cluster(text, tls), CLUSTER),
            _ => {
                let parts = Parts::of(text).map(|parts| UrlError::Scheme(parts.scheme));
                return Err(format!("{}: {forms}", parts.unwrap_or(UrlError::NoScheme)));
            }
        };
        match redis {
            Ok(redis) => Ok(Store::Redis(Box::new(redis))),
            Err(bad) => Err(format!(
                "{}: {}; write it as in {form}",
                bad.message, bad.help
            )),
        }
    }
}

fn standalone(text: &str) -> Result<Redis, BadValue> {
    let url = RedisUrl::parse(text)?;
    Ok(Redis::new(Mode::Standalone, vec![url]))
}

fn sentinel(text: &str, tls: bool) -> Result<Redis, BadValue> {
    let parts = Parts::of(text)?;
    let master = parts.path.to_owned();
    if master.is_empty() {
        let help = "write its name after the hosts and `/`";
        return Err(BadValue::new("the URL does not name a master", help));
    }
    if !is_master(&master) {
        let message = "the path of the URL is not the name of a master";
        return Err(BadValue::new(message, super::MASTER_HELP));
    }
    let urls = urls(&parts, tls, SENTINEL_PORT)?;
    Ok(Redis::new(Mode::Sentinel { master }, urls))
}

fn cluster(text: &str, tls: bool) -> Result<Redis, BadValue> {
    let parts = Parts::of(text)?;
    if !matches!(parts.path, "" | "0") {
        let help = "end the URL after the hosts";
        return Err(BadValue::new("a cluster has only database 0", help));
    }
    Ok(Redis::new(Mode::Cluster, urls(&parts, tls, PORT)?))
}

/// Makes one URL for each of the hosts, all with the same login.
fn urls(parts: &Parts<'_>, tls: bool, default: u16) -> Result<Vec<RedisUrl>, BadValue> {
    let (username, password) = parts.login()?;
    let mut urls: Vec<RedisUrl> = Vec::new();
    for text in parts.hosts.split(',') {
        let (host, port) = address(text, default)?;
        let url = RedisUrl {
            host,
            port,
            tls,
            username: username.clone(),
            password: password.clone(),
            database: 0,
        };
        if urls.contains(&url) {
            let help = "name each host and port once";
            return Err(BadValue::new("the URL names a host twice", help));
        }
        urls.push(url);
    }
    if urls.len() > MAX_URLS {
        let message = format!("the URL names more than {MAX_URLS} hosts");
        let help = "name a few: the others are found through them";
        return Err(BadValue::new(message, help));
    }
    Ok(urls)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redis(flag: &str) -> Redis {
        match Store::from_flag(flag) {
            Ok(Store::Redis(redis)) => *redis,
            other => panic!("{flag}: {other:?}"),
        }
    }

    #[test]
    fn every_form_is_read() {
        assert_eq!(Store::from_flag("memory"), Ok(Store::Memory));
        let sentinel = |master: &str| Mode::Sentinel {
            master: master.to_owned(),
        };
        let (one, cluster) = (Mode::Standalone, Mode::Cluster);
        let (a, a_b) = ("redis://a:6379/0", "redis://a:6379/0 redis://b:7000/0");
        let sentinels = "redis://a:26379/0 redis://[::1]:7/0";
        for (flag, mode, urls) in [
            ("redis://h", &one, "redis://h:6379/0"),
            ("rediss://[::1]:7/3", &one, "rediss://[::1]:7/3"),
            ("redis-cluster://a,b:7000", &cluster, a_b),
            ("redis-cluster://a/", &cluster, a),
            ("redis-cluster://a/0", &cluster, a),
            ("REDISS-CLUSTER://a", &cluster, "rediss://a:6379/0"),
            (
                "redis-sentinel://a,[::1]:7/x.y",
                &sentinel("x.y"),
                sentinels,
            ),
            (
                "rediss-sentinel://a/m",
                &sentinel("m"),
                "rediss://a:26379/0",
            ),
        ] {
            let redis = redis(flag);
            assert_eq!(redis.mode, *mode, "{flag}");
            let found: Vec<String> = redis.urls.iter().map(ToString::to_string).collect();
            assert_eq!(found.join(" "), urls, "{flag}");
            let default = Redis::new(mode.clone(), redis.urls.clone());
            assert_eq!(redis.timeout, default.timeout);
        }
    }

    #[test]
    fn a_login_is_for_every_host() {
        for url in redis("redis-cluster://app:p%40ss@a,b").urls {
            assert_eq!(url.username.as_deref(), Some("app"));
            assert_eq!(url.password.unwrap().expose(), b"p@ss");
        }
    }

    #[test]
    fn errors_show_the_right_form() {
        let hosts: Vec<String> = (0..33).map(|n| format!("h{n}")).collect();
        let too_many = format!("redis-cluster://{}", hosts.join(","));
        let table = [
            ("", "not a store", "write memory, redis://"),
            ("redis", "not a store", "write memory, redis://"),
            ("app:hunter2@h", "not a store", "write memory"),
            (
                "http://app:hunter2@h",
                "`http` is not a scheme",
                "redis-cluster://",
            ),
            ("hunter2 x://h", "the URL has no scheme", "redis-cluster://"),
            ("redis://app:hunter2", "the port of the URL", STANDALONE),
            ("redis://h/zero", "the database of the URL", STANDALONE),
            ("redis://a,b", "several hosts", STANDALONE),
            ("redis-sentinel://a,b", "does not name a master", SENTINEL),
            (
                "redis-sentinel://a/m/0",
                "not the name of a master",
                SENTINEL,
            ),
            ("redis-sentinel:///m", "does not name a host", SENTINEL),
            ("redis-sentinel://a,,b/m", "does not name a host", SENTINEL),
            ("redis-cluster://a:1,b:x", "the port of the URL", CLUSTER),
            ("redis-cluster://a/1", "only database 0", CLUSTER),
            ("redis-cluster://a,a:6379", "names a host twice", CLUSTER),
            ("redis-cluster://a:hun/ter2@b", "is not escaped", CLUSTER),
            ("redis-cluster://a?x=1", "query", CLUSTER),
            (&too_many, "more than 32 hosts", CLUSTER),
        ];
        for (flag, what, form) in table {
            let error = Store::from_flag(flag).unwrap_err();
            let complete = error.contains(what) && error.contains(form);
            assert!(complete && !error.contains("ter2"), "{flag}: {error}");
        }
    }
}
