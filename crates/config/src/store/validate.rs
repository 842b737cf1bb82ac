//! Checks the store.

use std::path::PathBuf;

use tollgate_core::Span;

use super::login::{LOGIN, SENTINEL_LOGIN};
use super::raw::{RawRedis, RawRedisMode, RawStore};
use super::{CircuitBreaker, MASTER_HELP, Mode, Redis, Store, is_master};
use crate::fields::{Env, duration_in, expand, number_in};
use tollgate_rules::document::{At, DurationOrOff, Field, Place, Problems, Short, Text};

const MILLISECOND: Span = Span::from_millis(1);
const MAX_PREFIX: usize = 32;
const MAX_DENIAL_CACHE: Span = Span::MINUTE;

pub(crate) fn store(raw: Option<&RawStore>, env: Env<'_>, problems: &mut Problems<'_>) -> Store {
    match raw {
        None | Some(RawStore::Memory) => Store::Memory,
        Some(RawStore::Redis { key, redis }) => {
            let redis = Reader { raw: redis, env }.redis(*key, problems);
            Store::Redis(Box::new(redis))
        }
    }
}

/// Reads one Redis.
pub(super) struct Reader<'r> {
    pub(super) raw: &'r RawRedis,
    pub(super) env: Env<'r>,
}

impl Reader<'_> {
    /// `key` is where the name `redis` stands.
    fn redis(&self, key: Place, problems: &mut Problems<'_>) -> Redis {
        let raw = self.raw;
        let mode = match &raw.mode {
            Field::Absent => Some(RawRedisMode::Standalone),
            Field::Broken { .. } => None,
            Field::Given { at, .. } => Some(at.value),
        };
        let master = self.master(mode, problems);
        let urls = self.urls(mode, key, problems);
        let login = self.login(&LOGIN, problems);
        let sentinel_login = self.login(&SENTINEL_LOGIN, problems);
        self.check_users(&urls, problems);
        let tls_ca = self.path("tls_ca", &raw.tls_ca, problems);
        if let (Some(key), Some((_, url))) = (raw.tls_ca.key(), urls.first())
            && !url.tls
        {
            problems.report(
                key,
                "`tls_ca` has no effect without TLS",
                "write rediss:// in the URL, or remove `tls_ca`",
            );
        }
        let mode = match (mode, master) {
            (Some(RawRedisMode::Cluster), _) => Mode::Cluster,
            (Some(RawRedisMode::Sentinel), Some(master)) => Mode::Sentinel { master },
            _ => Mode::Standalone,
        };
        let default = Redis::new(mode, urls.into_iter().map(|(_, url)| url).collect());
        let second = Span::SECOND;
        Redis {
            login,
            sentinel_login,
            tls_ca,
            timeout: duration_in(
                &raw.timeout,
                default.timeout,
                MILLISECOND..=Span::from_secs(10),
                problems,
            ),
            connect_timeout: duration_in(
                &raw.connect_timeout,
                default.connect_timeout,
                MILLISECOND..=Span::from_secs(30),
                problems,
            ),
            idle_timeout: duration_in(
                &raw.idle_timeout,
                default.idle_timeout,
                second..=Span::HOUR,
                problems,
            ),
            max_connections: number_in(
                &raw.max_connections,
                default.max_connections,
                1..=64,
                problems,
            ),
            max_in_flight: number_in(
                &raw.max_in_flight,
                default.max_in_flight,
                1..=1_000_000,
                problems,
            ),
            batch: number_in(&raw.batch, default.batch, 1..=256, problems),
            clock: raw.clock.value().copied().unwrap_or(default.clock),
            key_prefix: self.key_prefix(problems).unwrap_or(default.key_prefix),
            circuit_breaker: self.breaker(default.circuit_breaker, problems),
            replicas: number_in(&raw.replicas, default.replicas, 1..=10_000, problems),
            fallback_factor: self.factor(problems).unwrap_or(default.fallback_factor),
            denial_cache: match raw.denial_cache.get() {
                None => default.denial_cache,
                Some(at) => denial_cache(at, problems),
            },
            ..default
        }
    }

    /// The master of the Sentinels. Reports fields of Sentinels in other modes.
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
                    problems.report(
                        key,
                        format!("`{name}` is only for `mode: sentinel`"),
                        format!("write `mode: sentinel`, or remove `{name}`"),
                    );
                }
            }
            return None;
        }
        if let (Some(at), true) = (raw.mode.get(), raw.sentinel_master.is_absent()) {
            problems.report(
                at.place,
                "`mode: sentinel` needs a `sentinel_master`",
                "add the name by which the Sentinels know the Redis, such as `sentinel_master: mymaster`",
            );
        }
        let at = raw.sentinel_master.get()?;
        let master = expand(at, self.env, problems)?;
        if !is_master(&master) {
            let message = format!("`{}` cannot be the name of a master", Short(&master));
            problems.report(at.place, message, MASTER_HELP);
        }
        Some(master)
    }

    pub(super) fn text(
        &self,
        name: &str,
        field: &Field<Text>,
        problems: &mut Problems<'_>,
    ) -> Option<String> {
        crate::fields::text(name, field, self.env, problems)
    }

    pub(super) fn path(
        &self,
        name: &str,
        field: &Field<Text>,
        problems: &mut Problems<'_>,
    ) -> Option<PathBuf> {
        self.text(name, field, problems).map(PathBuf::from)
    }

    fn key_prefix(&self, problems: &mut Problems<'_>) -> Option<String> {
        let at = self.raw.key_prefix.get()?;
        let prefix = expand(at, self.env, problems)?;
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
        if !(1..=MAX_PREFIX).contains(&prefix.len()) || !prefix.bytes().all(allowed) {
            problems.report(
                at.place,
                format!("`{}` cannot be the prefix of keys", Short(&prefix)),
                format!(
                    "use letters, digits, `.`, `_` and `-`, {MAX_PREFIX} characters at most; a `:` is added after it"
                ),
            );
        }
        Some(prefix)
    }

    fn breaker(&self, default: CircuitBreaker, problems: &mut Problems<'_>) -> CircuitBreaker {
        let Some(raw) = self.raw.circuit_breaker.value() else {
            return default;
        };
        CircuitBreaker {
            consecutive_failures: number_in(
                &raw.consecutive_failures,
                default.consecutive_failures,
                1..=1000,
                problems,
            ),
            timeout_duration: duration_in(
                &raw.timeout_duration,
                default.timeout_duration,
                MILLISECOND..=Span::HOUR,
                problems,
            ),
            half_open_max_requests: number_in(
                &raw.half_open_max_requests,
                default.half_open_max_requests,
                1..=100,
                problems,
            ),
        }
    }

    fn factor(&self, problems: &mut Problems<'_>) -> Option<u32> {
        let at = self.raw.fallback_factor.get()?;
        if at.value.0 == 0 {
            problems.report(
                at.place,
                "a `fallback_factor` of 0% would deny every request",
                "write `on_store_failure: fail-closed` in the rules to deny, or a factor above 0%",
            );
        }
        Some(at.value.0)
    }
}

fn denial_cache(at: &At<DurationOrOff>, problems: &mut Problems<'_>) -> Option<Span> {
    let longest = at.value.0?;
    if longest > MAX_DENIAL_CACHE {
        problems.report(
            at.place,
            format!("{longest} is longer than {MAX_DENIAL_CACHE}"),
            format!("write a duration up to {MAX_DENIAL_CACHE}, or `off`"),
        );
    }
    Some(longest)
}
