//! Checks the addresses of a Redis, each and together.

use super::raw::RawRedisMode;
use super::validate::Reader;
use super::{MAX_URLS, PORT, RedisUrl, SENTINEL_PORT};
use crate::fields::expand;
use tollgate_rules::document::{At, Place, Problems, Text};

impl Reader<'_> {
    /// The addresses, as text and parsed.
    pub(super) fn urls<'t>(
        &'t self,
        mode: Option<RawRedisMode>,
        key: Place,
        problems: &mut Problems<'_>,
    ) -> Vec<(&'t At<Text>, RedisUrl)> {
        let raw = self.raw;
        let given: Vec<&At<Text>> = match (raw.url.get(), raw.urls.get()) {
            (None, Some(list)) if raw.url.is_absent() => {
                if list.value.0.is_empty() {
                    problems.report(
                        list.place,
                        "`urls` is empty",
                        "list at least one, such as [redis://localhost:6379]",
                    );
                }
                list.value.0.iter().collect()
            }
            (Some(url), None) if raw.urls.is_absent() => vec![url],
            _ => {
                self.check_url_fields(key, problems);
                return Vec::new();
            }
        };
        if let Some(at) = given.get(MAX_URLS) {
            problems.report(
                at.place,
                format!("there are more than {MAX_URLS} URLs"),
                "list a few: the other nodes are found through them",
            );
        } else if let (Some(at), Some(RawRedisMode::Standalone)) = (given.get(1), mode) {
            problems.report(
                at.place,
                "a standalone Redis has one URL",
                "keep one, or write `mode: cluster` or `mode: sentinel`",
            );
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

    /// Reports that there is not exactly one of `url` and `urls`.
    fn check_url_fields(&self, key: Place, problems: &mut Problems<'_>) {
        let raw = self.raw;
        match (raw.url.key(), raw.urls.key()) {
            (Some(url), Some(_)) => problems.report(
                url,
                "`url` and `urls` cannot be used together",
                "keep `url` for one address, or `urls` for several",
            ),
            (None, None) => problems.report(
                key,
                "this Redis has no `url`",
                "add its address, such as `url: redis://localhost:6379`, or several as `urls`",
            ),
            _ => {}
        }
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
        match RedisUrl::parse_or(&text, port) {
            Ok(url) => {
                if mode == Some(RawRedisMode::Cluster) && url.database != 0 {
                    problems.report(
                        at.place,
                        format!("a cluster has no database {}", url.database),
                        "leave the database out: a cluster has only 0",
                    );
                }
                Some(url)
            }
            Err(error) => {
                problems.report(at.place, error.to_string(), error.help());
                None
            }
        }
    }
}

/// Reports a URL that does not fit those before it.
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
        problems.report(
            place,
            "some URLs use TLS and some do not",
            "write redis:// in all of them, or rediss:// in all of them",
        );
    } else if first.database != url.database {
        problems.report(
            place,
            "the URLs name different databases",
            "name the same database in all URLs",
        );
    }
    let same =
        |(_, other): &&(&At<Text>, RedisUrl)| (&other.host, other.port) == (&url.host, url.port);
    if let Some((at, _)) = before.iter().find(same) {
        let line = problems.line_of(at.place);
        problems.report(
            place,
            format!("{}:{} is listed twice", url.host, url.port),
            format!("the first one is on line {line}: list it once"),
        );
    }
}
