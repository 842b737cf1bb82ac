//! Events that warn that a limit is near, and the webhook they are sent to: plain data, validated.
//! Nothing here sends anything.

use std::fmt;

use tollgate_core::Span;
use tollgate_rules::document::{
    At, BadNumber, Duration, Field, List, Node, Place, Problems, Read, Short, Text, Whole, number,
    schema, section, whole,
};

use crate::fields::{Env, MIN_SECRET, duration_in, expand, number_in, text};
use crate::secrets::Secret;
use crate::store::{Parts, UrlError, address};

/// Warnings that a limit is near.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Events {
    /// The percentages of a quota that send an event, ascending, from 1 to 100 (default 80, 90 and 100).
    pub near_limit: Vec<u8>,
    /// Where events are sent; `None` if nowhere.
    pub webhook: Option<Webhook>,
}

impl Default for Events {
    fn default() -> Events {
        Events {
            near_limit: vec![80, 90, 100],
            webhook: None,
        }
    }
}

/// Where events are sent.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Webhook {
    /// The address.
    pub url: WebhookUrl,
    /// The secret that signs events: at least 16 bytes.
    pub secret: Secret,
    /// How long one attempt may take (default 2 s).
    pub timeout: Span,
    /// How many times an event is sent at most (default 8).
    pub attempts: u32,
}

/// The address that receives events. The part after the host is a secret: often it is the only
/// credential.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WebhookUrl {
    /// Whether the connection is encrypted: `https`.
    pub tls: bool,
    /// A name or an address; an IPv6 address stands without its brackets.
    pub host: String,
    /// The port (default 80), 443 with TLS.
    pub port: u16,
    /// The path and the query: starts with a slash.
    pub target: Secret,
}

/// Shows the address without the part after the host, for logs.
impl fmt::Display for WebhookUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        let (host, port) = (&self.host, self.port);
        if host.contains(':') {
            write!(f, "{scheme}://[{host}]:{port}")
        } else {
            write!(f, "{scheme}://{host}:{port}")
        }
    }
}

section! {
    /// Warnings that a limit is near.
    pub(crate) struct RawEvents is "`events`" {
        /// The percentages of a quota that send an event, ascending from 1 to 100, 8 at most (default [80, 90, 100]); [] for none.
        near_limit: List<Mark> = "near_limit",
        /// Where events are sent.
        webhook: RawWebhook = "webhook",
    }
}

section! {
    /// Where events are sent: as signed JSON, repeated until the receiver accepts them.
    pub(crate) struct RawWebhook is "`webhook`" {
        /// The address, such as https://billing.example.com/tollgate. `${VAR}` reads the environment.
        url (required): Text = "url",
        /// The secret that signs events, at least 16 bytes. `${VAR}` reads the environment.
        secret (required): Text = "secret",
        /// How long one attempt may take, 100ms to 30s (default 2s).
        timeout: Duration = "timeout",
        /// How many times an event is sent at most, 1 to 20 (default 8).
        attempts: Whole = "attempts",
    }
}

/// A percentage of a limit, without the percent sign.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark(pub(crate) u8);

impl Read for Mark {
    fn read(node: &Node, problems: &mut Problems<'_>) -> Option<Mark> {
        let help = "write percentages of the limit, such as [80, 90, 100]";
        number(
            node,
            "a percentage",
            help,
            |text| mark(text, help),
            problems,
        )
        .map(Mark)
    }
}
schema!(Mark, "Mark", _generator => { "type": "integer", "minimum": 1, "maximum": 100 });

fn mark(text: &str, help: &str) -> Result<u8, BadNumber> {
    let bad = |what: &str| format!("`{}` {what}", Short(text));
    if let Some(bare) = text.strip_suffix('%')
        && whole(bare).is_ok()
    {
        let message = bad("is written with a percent sign");
        return Err(BadNumber::new(message, format!("write {bare}")));
    }
    let number = whole(text).map_err(|bad| BadNumber::new(bad.message, help))?;
    let mark = u8::try_from(number).ok();
    let mark = mark.filter(|mark| (1..=100).contains(mark));
    mark.ok_or_else(|| BadNumber::new(bad("is not between 1 and 100"), help))
}

/// More warnings than a few are noise.
const MAX_THRESHOLDS: usize = 8;
const URL_HELP: &str = "write an address such as https://billing.example.com/tollgate";

pub(crate) fn events(raw: Option<&RawEvents>, env: Env<'_>, problems: &mut Problems<'_>) -> Events {
    let default = Events::default();
    let Some(raw) = raw else {
        return default;
    };
    Events {
        near_limit: match raw.near_limit.get() {
            Some(at) => near_limit(at, problems),
            None => default.near_limit,
        },
        webhook: webhook(&raw.webhook, env, problems),
    }
}

fn near_limit(given: &At<List<Mark>>, problems: &mut Problems<'_>) -> Vec<u8> {
    let List(items) = &given.value;
    if let Some(at) = items.get(MAX_THRESHOLDS) {
        let message = format!("there are more than {MAX_THRESHOLDS} percentages");
        problems.report(
            at.place,
            message,
            "keep the percentages that someone acts on",
        );
    }
    let mut all: Vec<u8> = Vec::new();
    for at in items.iter().take(MAX_THRESHOLDS) {
        let Mark(percent) = at.value;
        if let Some(last) = all.last()
            && *last >= percent
        {
            let message = format!("{percent} comes after {last}");
            problems.report(at.place, message, "list each once, the smallest first");
            continue;
        }
        all.push(percent);
    }
    all
}

fn webhook(
    field: &Field<RawWebhook>,
    env: Env<'_>,
    problems: &mut Problems<'_>,
) -> Option<Webhook> {
    let Field::Given { key, at } = field else {
        return None;
    };
    let raw = &at.value;
    for (name, absent, help) in [
        ("url", raw.url.is_absent(), URL_HELP),
        (
            "secret",
            raw.secret.is_absent(),
            "add `secret: \"${HOOK_SECRET}\"`: the receiver verifies events with it",
        ),
    ] {
        if absent {
            problems.report(*key, format!("this `webhook` has no `{name}`"), help);
        }
    }
    let timeout = duration_in(
        &raw.timeout,
        Span::from_secs(2),
        Span::from_millis(100)..=Span::from_secs(30),
        problems,
    );
    let attempts = number_in(&raw.attempts, 8, 1..=20, problems);
    let secret = secret(raw, env, problems);
    let url = raw.url.get().and_then(|at| {
        let text = expand(at, env, problems)?;
        url(&text)
            .map_err(|(message, help)| problems.report(at.place, message, help))
            .ok()
    });
    Some(Webhook {
        url: url?,
        secret: secret?,
        timeout,
        attempts,
    })
}

fn secret(raw: &RawWebhook, env: Env<'_>, problems: &mut Problems<'_>) -> Option<Secret> {
    let secret = Secret::new(text("secret", &raw.secret, env, problems)?);
    let place = raw.secret.get().map_or_else(Place::default, |at| at.place);
    let length = secret.expose().len();
    if (1..MIN_SECRET).contains(&length) {
        problems.report(
            place,
            "the `secret` is too short",
            format!(
                "use at least {MIN_SECRET} random bytes, such as `openssl rand -hex 32` prints"
            ),
        );
    }
    Some(secret)
}

/// Errors never quote the URL: the part after the host is a secret.
fn url(text: &str) -> Result<WebhookUrl, (String, &'static str)> {
    let wrong = |error: UrlError| match error {
        UrlError::NoScheme => ("the URL has no scheme".to_owned(), URL_HELP),
        error => (error.to_string(), URL_HELP),
    };
    let (before, query) = text.split_at(text.find('?').unwrap_or(text.len()));
    let parts = match Parts::of(before) {
        Err(UrlError::Query) => {
            let message = "the URL has a fragment".to_owned();
            return Err((
                message,
                "remove the `#` and the text after it: a fragment is never sent",
            ));
        }
        parts => parts.map_err(wrong)?,
    };
    let tls = match parts.scheme.as_str() {
        "http" => false,
        "https" => true,
        scheme => {
            let message = format!("events cannot be sent by `{scheme}`");
            return Err((message, "use https://, or http:// within your own network"));
        }
    };
    if parts.has_login() {
        let message = "the URL has a user or a password".to_owned();
        return Err((message, "remove it: events are signed with the `secret`"));
    }
    let (host, port) = address(parts.hosts, if tls { 443 } else { 80 }).map_err(wrong)?;
    let target = format!("/{}{query}", parts.path);
    if !target.bytes().all(|byte| byte.is_ascii_graphic()) || query.contains('#') {
        let message = "the path of the URL is malformed".to_owned();
        return Err((
            message,
            "write it without spaces and fragments, and in ASCII",
        ));
    }
    Ok(WebhookUrl {
        tls,
        host,
        port,
        target: Secret::new(target),
    })
}
