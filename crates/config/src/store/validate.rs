//! Checks the store: each field of a Redis, its addresses and its logins.

use std::path::PathBuf;

use tollgate_core::{Span, StoreId};

use super::raw::{RawRedis, RawRedisMode, RawSharedStore, RawStore};
use super::{
    Login, MASTER_HELP, MAX_STORES, MAX_URLS, Mode, NamedStore, PORT, Redis, RedisUrl,
    SENTINEL_PORT, Store, USER_ALONE, USER_ALONE_HELP, is_master,
};
use crate::fields::{Env, duration_in, expand, number_in, password, text};
use tollgate_rules::document::{At, Field, Named, Place, Problems, Short, Text};
use tollgate_rules::{DEFAULT_STORE, ID_HELP, LOCAL_STORE, is_id};

const MAX_PREFIX: usize = 32;
const MAX_DENIAL_CACHE: Span = Span::MINUTE;

pub(crate) fn store(raw: Option<&RawStore>, env: Env<'_>, problems: &mut Problems<'_>) -> Store {
    match raw {
        None | Some(RawStore::Memory) => Store::Memory,
        Some(RawStore::Redis { key, redis }) => {
            let reader = Reader { raw: redis, env };
            Store::Redis(Box::new(reader.redis(*key, problems)))
        }
    }
}

/// Returns the stores beside `default`. Reports names that cannot be used, and stores that would keep their
/// keys in the same place.
pub(crate) fn named_stores(
    raw: Option<&Named<RawSharedStore>>,
    default: &Store,
    env: Env<'_>,
    problems: &mut Problems<'_>,
) -> Vec<NamedStore> {
    let given = raw.map_or(&[][..], |named| &named.0);
    if let Some((name, _)) = given.get(MAX_STORES) {
        let message = format!("there are more than {MAX_STORES} stores");
        problems.report(name.place, message, "keep more rules in one store");
    }
    let mut stores: Vec<NamedStore> = Vec::with_capacity(given.len());
    for (name, at) in given.iter().take(MAX_STORES) {
        let (place, name) = (name.place, name.value.as_str());
        if !is_id(name) {
            let message = format!("`{}` cannot be the name of a store", Short(name));
            problems.report(place, message, ID_HELP);
        } else if matches!(name, LOCAL_STORE | DEFAULT_STORE) {
            let message = format!("`{name}` is not free as the name of a store");
            let help = "choose another name: `local` is the memory of each instance, and `default` is the `store` section";
            problems.report(place, message, help);
        } else if let Some(same) = stores
            .iter()
            .find(|it| StoreId::named(&it.name) == StoreId::named(name))
        {
            let message = match *same.name == *name {
                true => format!("the store `{name}` is given twice"),
                false => format!("`{name}` cannot be told from the store `{}`", same.name),
            };
            problems.report(place, message, "choose another name");
            continue;
        }
        let Field::Given { key, at } = &at.value.redis else {
            if at.value.redis.is_absent() {
                let help = "write `{ redis: { url: redis://localhost:6379 } }`";
                problems.report(place, format!("the store `{}` is empty", Short(name)), help);
            }
            continue;
        };
        let raw = &at.value;
        let redis = Reader { raw, env }.redis(*key, problems);
        let others = stores.iter().map(|it| (&*it.name, &*it.redis));
        let default = match default {
            Store::Redis(redis) => Some((DEFAULT_STORE, &**redis)),
            Store::Memory => None,
        };
        let mut others = default.into_iter().chain(others);
        if let Some((other, _)) = others.find(|(_, it)| it.shares_keys_with(&redis)) {
            let message =
                format!("`{name}` has the same address and prefix as the store `{other}`");
            let help = "give it another Redis, database or `key_prefix`, or remove it";
            problems.report(place, message, help);
        }
        stores.push(NamedStore {
            name: name.into(),
            redis: Box::new(redis),
        });
    }
    stores
}

/// Reads one Redis.
struct Reader<'r> {
    raw: &'r RawRedis,
    env: Env<'r>,
}

impl Reader<'_> {
    /// `key` is the position of the name `redis`.
    fn redis(&self, key: Place, problems: &mut Problems<'_>) -> Redis {
        let raw = self.raw;
        let mode = match &raw.mode {
            Field::Absent => Some(RawRedisMode::Standalone),
            Field::Broken { .. } => None,
            Field::Given { at, .. } => Some(at.value),
        };
        let master = self.master(mode, problems);
        let urls = self.urls(mode, key, problems);
        let fields = [&raw.username, &raw.password, &raw.password_file];
        let login = self.login("", fields, problems);
        let (user, given) = (&raw.sentinel_username, &raw.sentinel_password);
        let fields = [user, given, &raw.sentinel_password_file];
        let sentinel_login = self.login("sentinel_", fields, problems);
        self.check_users(&urls, problems);
        let tls_ca = text("tls_ca", &raw.tls_ca, self.env, problems).map(PathBuf::from);
        if let (Some(key), Some((_, url))) = (raw.tls_ca.key(), urls.first())
            && !url.tls
        {
            let help = "write rediss:// in the URL, or remove `tls_ca`";
            problems.report(key, "`tls_ca` has no effect without TLS", help);
        }
        let mode = match (mode, master) {
            (Some(RawRedisMode::Cluster), _) => Mode::Cluster,
            (Some(RawRedisMode::Sentinel), Some(master)) => Mode::Sentinel { master },
            _ => Mode::Standalone,
        };
        let mut redis = Redis::new(mode, urls.into_iter().map(|(_, url)| url).collect());
        (redis.login, redis.sentinel_login, redis.tls_ca) = (login, sentinel_login, tls_ca);
        for (field, value, millis) in [
            (&raw.timeout, &mut redis.timeout, 1..=10_000),
            (&raw.connect_timeout, &mut redis.connect_timeout, 1..=30_000),
            (
                &raw.connect_patience,
                &mut redis.connect_patience,
                1..=600_000,
            ),
            (&raw.idle_timeout, &mut redis.idle_timeout, 1000..=3_600_000),
        ] {
            duration_in(field, value, millis, problems);
        }
        for (field, value, range) in [
            (&raw.max_connections, &mut redis.max_connections, 1..=1024),
            (&raw.max_in_flight, &mut redis.max_in_flight, 1..=1_000_000),
            (&raw.batch, &mut redis.batch, 1..=256),
        ] {
            number_in(field, value, range, problems);
        }
        number_in(&raw.replicas, &mut redis.replicas, 1..=10_000, problems);
        if let Some(raw) = raw.circuit_breaker.value() {
            let breaker = &mut redis.circuit_breaker;
            let failures = &mut breaker.consecutive_failures;
            number_in(&raw.consecutive_failures, failures, 1..=1000, problems);
            let probes = &mut breaker.half_open_max_requests;
            number_in(&raw.half_open_max_requests, probes, 1..=100, problems);
            let pause = &mut breaker.timeout_duration;
            duration_in(&raw.timeout_duration, pause, 1..=3_600_000, problems);
        }
        if let Some(clock) = raw.clock.value() {
            redis.clock = *clock;
        }
        if let Some(prefix) = self.key_prefix(problems) {
            redis.key_prefix = prefix;
        }
        if let Some(at) = raw.fallback_factor.get() {
            redis.fallback_factor = at.value.0;
            if at.value.0 == 0 {
                let message = "a `fallback_factor` of 0% would deny every request";
                let help = "write `on_store_failure: fail-closed` in the rules to deny, or a factor above 0%";
                problems.report(at.place, message, help);
            }
        }
        if let Some(at) = raw.denial_cache.get() {
            redis.denial_cache = at.value.0;
            if let Some(longest) = at.value.0.filter(|it| *it > MAX_DENIAL_CACHE) {
                let message = format!("{longest} is longer than {MAX_DENIAL_CACHE}");
                let help = format!("write a duration up to {MAX_DENIAL_CACHE}, or `off`");
                problems.report(at.place, message, help);
            }
        }
        if let Some(flag) = raw.prefilter.value() {
            redis.prefilter = flag.0;
            if let (true, None, Some(key)) = (flag.0, redis.denial_cache, raw.prefilter.key()) {
                let message = "`prefilter` has no effect without a `denial_cache`";
                problems.report(key, message, "remove `denial_cache: off`, or `prefilter`");
            }
        }
        redis
    }

    /// Returns the name of the master at the Sentinels. Reports Sentinel fields in other modes.
    fn master(&self, mode: Option<RawRedisMode>, problems: &mut Problems<'_>) -> Option<String> {
        let raw = self.raw;
        if !matches!(mode, Some(RawRedisMode::Sentinel) | None) {
            for (name, field) in [
                ("sentinel_master", &raw.sentinel_master),
                ("sentinel_username", &raw.sentinel_username),
                ("sentinel_password", &raw.sentinel_password),
                ("sentinel_password_file", &raw.sentinel_password_file),
            ] {
                if let Some(key) = field.key() {
                    let message = format!("`{name}` is only for `mode: sentinel`");
                    let help = format!("write `mode: sentinel`, or remove `{name}`");
                    problems.report(key, message, help);
                }
            }
            return None;
        }
        if let (Some(at), true) = (raw.mode.get(), raw.sentinel_master.is_absent()) {
            let message = "`mode: sentinel` needs a `sentinel_master`";
            let help = "add the name by which the Sentinels know the Redis, such as `sentinel_master: mymaster`";
            problems.report(at.place, message, help);
        }
        let at = raw.sentinel_master.get()?;
        let master = expand(at, self.env, problems)?;
        if !is_master(&master) {
            let message = format!("`{}` cannot be the name of a master", Short(&master));
            problems.report(at.place, message, MASTER_HELP);
        }
        Some(master)
    }

    /// Returns the addresses, as text and parsed.
    fn urls<'t>(
        &'t self,
        mode: Option<RawRedisMode>,
        key: Place,
        problems: &mut Problems<'_>,
    ) -> Vec<(&'t At<Text>, RedisUrl)> {
        let raw = self.raw;
        let given: Vec<&At<Text>> = match (raw.url.get(), raw.urls.get()) {
            (None, Some(list)) if raw.url.is_absent() => {
                if list.value.0.is_empty() {
                    let help = "list at least one, such as [redis://localhost:6379]";
                    problems.report(list.place, "`urls` is empty", help);
                }
                list.value.0.iter().collect()
            }
            (Some(url), None) if raw.urls.is_absent() => vec![url],
            _ => {
                match (raw.url.key(), raw.urls.key()) {
                    (Some(url), Some(_)) => {
                        let help = "keep `url` for one address, or `urls` for several";
                        problems.report(url, "`url` and `urls` cannot be used together", help);
                    }
                    (None, None) => {
                        let help = "add its address, such as `url: redis://localhost:6379`, or several as `urls`";
                        problems.report(key, "this Redis has no `url`", help);
                    }
                    _ => {}
                }
                return Vec::new();
            }
        };
        if let Some(at) = given.get(MAX_URLS) {
            let message = format!("there are more than {MAX_URLS} URLs");
            let help = "list a few: the other nodes are found through them";
            problems.report(at.place, message, help);
        } else if let (Some(at), Some(RawRedisMode::Standalone)) = (given.get(1), mode) {
            let help = "keep one, or write `mode: cluster` or `mode: sentinel`";
            problems.report(at.place, "a standalone Redis has one URL", help);
        }
        let mut urls: Vec<(&At<Text>, RedisUrl)> = Vec::with_capacity(given.len());
        for at in given.into_iter().take(MAX_URLS) {
            if let Some(url) = self.url(at, mode, problems) {
                check_alike(&urls, at.place, &url, problems);
                urls.push((at, url));
            }
        }
        urls
    }

    fn url(
        &self,
        at: &At<Text>,
        mode: Option<RawRedisMode>,
        problems: &mut Problems<'_>,
    ) -> Option<RedisUrl> {
        let text = expand(at, self.env, problems)?;
        let port = match mode {
            Some(RawRedisMode::Sentinel) => SENTINEL_PORT,
            _ => PORT,
        };
        let url = problems.accept(at.place, RedisUrl::parse_or(&text, port))?;
        if mode == Some(RawRedisMode::Cluster) && url.database != 0 {
            let message = format!("a cluster has no database {}", url.database);
            let help = "leave the database out: a cluster has only 0";
            problems.report(at.place, message, help);
        }
        Some(url)
    }

    /// Returns the login from the fields with this prefix: user, password, password file.
    fn login(
        &self,
        prefix: &str,
        [user, given, file]: [&Field<Text>; 3],
        problems: &mut Problems<'_>,
    ) -> Login {
        let names = ["username", "password", "password_file"];
        let [name, given_name, file_name] = names.map(|name| format!("{prefix}{name}"));
        let (given, file) = ((given_name.as_str(), given), (file_name.as_str(), file));
        Login {
            password: password(given, file, self.env, problems),
            username: text(&name, user, self.env, problems),
        }
    }

    /// Reports a user without a password.
    fn check_users(&self, urls: &[(&At<Text>, RedisUrl)], problems: &mut Problems<'_>) {
        let raw = self.raw;
        if let Some(at) = raw.sentinel_username.get()
            && raw.sentinel_password.is_absent()
            && raw.sentinel_password_file.is_absent()
        {
            let help = "add `sentinel_password` or `sentinel_password_file`";
            problems.report(at.place, USER_ALONE, help);
        }
        let in_urls = urls.iter().all(|(_, url)| url.password.is_some());
        if in_urls || !raw.password.is_absent() || !raw.password_file.is_absent() {
            return;
        }
        let alone = |(_, url): &&(_, RedisUrl)| url.username.is_some() && url.password.is_none();
        let in_url = urls.iter().find(alone).map(|(at, _)| *at);
        if let Some(at) = raw.username.get().or(in_url) {
            problems.report(at.place, USER_ALONE, USER_ALONE_HELP);
        }
    }

    fn key_prefix(&self, problems: &mut Problems<'_>) -> Option<String> {
        let at = self.raw.key_prefix.get()?;
        let prefix = expand(at, self.env, problems)?;
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
        if !(1..=MAX_PREFIX).contains(&prefix.len()) || !prefix.bytes().all(allowed) {
            let message = format!("`{}` cannot be the prefix of keys", Short(&prefix));
            let help = format!(
                "use letters, digits, `.`, `_` and `-`, {MAX_PREFIX} characters at most; a `:` is added after it"
            );
            problems.report(at.place, message, help);
        }
        Some(prefix)
    }
}

/// Reports a URL that does not fit the URLs before it.
fn check_alike(
    before: &[(&At<Text>, RedisUrl)],
    place: Place,
    url: &RedisUrl,
    problems: &mut Problems<'_>,
) {
    let Some((_, first)) = before.first() else {
        return;
    };
    if first.tls != url.tls {
        let help = "write redis:// in all of them, or rediss:// in all of them";
        problems.report(place, "some URLs use TLS and some do not", help);
    } else if first.database != url.database {
        let help = "name the same database in all URLs";
        problems.report(place, "the URLs name different databases", help);
    }
    let same =
        |(_, other): &&(&At<Text>, RedisUrl)| (&other.host, other.port) == (&url.host, url.port);
    if let Some((at, _)) = before.iter().find(same) {
        let line = problems.line_of(at.place);
        let message = format!("{}:{} is listed twice", url.host, url.port);
        let help = format!("the first one is on line {line}: list it once");
        problems.report(place, message, help);
    }
}
