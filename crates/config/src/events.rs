//! Events about limits that are almost used up, and the webhook that receives them: plain data,
//! validated. Nothing here sends anything.

use std::fmt;

use tollgate_core::Span;
use tollgate_rules::document::{
    At, BadValue, Duration, Field, List, Node, Problems, Read, Short, Text, Whole, number, schema,
    section, whole,
};

use crate::fields::{Env, MIN_SECRET, duration_in, expand, number_in, secret_help, text};
use crate::secrets::Secret;
use crate::store::{Parts, UrlError, address, host_port};

/// Warnings that a limit is near.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Events {
    /// The percentages of a quota that send an event, ascending, from 1 to 100 (default 80, 90 and 100).
    pub near_limit: Vec<u8>,
    /// Where events are sent; `None` if there is no webhook.
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
    pub url: HttpUrl,
    /// The secret that signs events: at least 16 bytes.
    pub secret: Secret,
    /// How long one attempt may take (default 2 s).
    pub timeout: Span,
    /// How many times an event is sent at most (default 8).
    pub attempts: u32,
}

/// The address of something on another server. The part after the host is a secret, because it is often the
/// only credential.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HttpUrl {
    /// Whether the connection is encrypted: `https`.
    pub tls: bool,
    /// A name or an address. An IPv6 address has no brackets here.
    pub host: String,
    /// The port (default 80, or 443 with TLS).
    pub port: u16,
    /// The path and the query: starts with a slash.
    pub target: Secret,
}

/// Shows the address without the part after the host, for logs.
impl fmt::Display for HttpUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}", host_port(&self.host, self.port))
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
        let parse = |text: &str| {
            let bad = |what: &str| format!("`{}` {what}", Short(text));
            if let Some(bare) = text.strip_suffix('%')
                && whole(bare).is_ok()
            {
                let message = bad("is written with a percent sign");
                return Err(BadValue::new(message, format!("write {bare}")));
            }
            let number = whole(text).map_err(|bad| BadValue::new(bad.message, help))?;
            let mark = u8::try_from(number)
                .ok()
                .filter(|it| (1..=100).contains(it));
            mark.ok_or_else(|| BadValue::new(bad("is not between 1 and 100"), help))
        };
        number(node, "a percentage", help, parse, problems).map(Mark)
    }
}
schema!(Mark, "Mark", _generator => { "type": "integer", "minimum": 1, "maximum": 100 });

/// The most thresholds. More warnings than this are noise.
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
    if raw.url.is_absent() {
        problems.report(*key, "this `webhook` has no `url`", URL_HELP);
    }
    if raw.secret.is_absent() {
        let help = "add `secret: \"${HOOK_SECRET}\"`: the receiver verifies events with it";
        problems.report(*key, "this `webhook` has no `secret`", help);
    }
    let (mut timeout, mut attempts) = (Span::from_secs(2), 8);
    duration_in(&raw.timeout, &mut timeout, 100..=30_000, problems);
    number_in(&raw.attempts, &mut attempts, 1..=20, problems);
    let given = text("secret", &raw.secret, env, problems);
    if let (Some(at), Some(1..MIN_SECRET)) = (raw.secret.get(), given.as_ref().map(String::len)) {
        problems.report(at.place, "the `secret` is too short", secret_help());
    }
    let url = raw.url.get().and_then(|at| {
        let text = expand(at, env, problems)?;
        let not_by = "events cannot be sent";
        problems.accept(at.place, url(&text, not_by, URL_HELP))
    });
    Some(Webhook {
        url: url?,
        secret: Secret::new(given?),
        timeout,
        attempts,
    })
}

/// Parses a URL of HTTP. Errors never quote the URL, because the part after the host may be a secret.
/// `not_by` says what another scheme cannot do, and `help` is the remedy.
pub(crate) fn url(text: &str, not_by: &str, help: &str) -> Result<HttpUrl, BadValue> {
    let wrong = |error: UrlError| BadValue::new(error.to_string(), help);
    let (before, query) = text.split_at(text.find('?').unwrap_or(text.len()));
    let parts = match Parts::of(before) {
        Err(UrlError::Query) => {
            let help = "remove the `#` and the text after it: a fragment is never sent";
            return Err(BadValue::new("the URL has a fragment", help));
        }
        parts => parts.map_err(wrong)?,
    };
    let tls = match parts.scheme.as_str() {
        "http" => false,
        "https" => true,
        scheme => {
            let message = format!("{not_by} by `{scheme}`");
            let help = "use https://, or http:// within your own network";
            return Err(BadValue::new(message, help));
        }
    };
    if parts.has_login() {
        let help = "remove it: such a login is not sent";
        return Err(BadValue::new("the URL has a user or a password", help));
    }
    let (host, port) = address(parts.hosts, if tls { 443 } else { 80 }).map_err(wrong)?;
    let target = format!("/{}{query}", parts.path);
    if !target.bytes().all(|byte| byte.is_ascii_graphic()) || query.contains('#') {
        let help = "write it without spaces and fragments, and in ASCII";
        return Err(BadValue::new("the path of the URL is malformed", help));
    }
    Ok(HttpUrl {
        tls,
        host,
        port,
        target: Secret::new(target),
    })
}
