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

/// Who is told when a limit is near.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Events {
    /// At which percentages of a quota, ascending, from 1 to 100: 80, 90 and 100 unless given.
    pub near_limit: Vec<u8>,
    /// Where events are sent; `None` if they are not.
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
    /// What events are signed with: at least 16 bytes.
    pub secret: Secret,
    /// How long one attempt may take: 2 s unless given.
    pub timeout: Span,
    /// How often an event is sent at most: 8 unless given.
    pub attempts: u32,
}

/// The address that takes events. What follows the host is a secret: it often is all that opens the door.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WebhookUrl {
    /// Whether the connection is encrypted: `https`.
    pub tls: bool,
    /// A name or an address; an IPv6 address stands without its brackets.
    pub host: String,
    /// The port: 80 unless given, 443 with TLS.
    pub port: u16,
    /// The path and the query: starts with a slash.
    pub target: Secret,
}

/// Without what follows the host, to be logged.
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
    /// Who is told when a limit is near.
    pub(crate) struct RawEvents is "`events`" {
        /// At which percentages of a quota, ascending from 1 to 100, 8 at most: [80, 90, 100] unless given; [] for none.
        near_limit: List<Mark> = "near_limit",
        /// Where events are sent.
        webhook: RawWebhook = "webhook",
    }
}

section! {
    /// Where events are sent: as JSON, signed, and again until they are taken.
    pub(crate) struct RawWebhook is "`webhook`" {
        /// The address, such as https://billing.example.com/tollgate. `${VAR}` reads the environment.
        url (required): Text = "url",
        /// What events are signed with, at least 16 bytes. `${VAR}` reads the environment.
        secret (required): Text = "secret",
        /// How long one attempt may take, 100ms to 30s: 2s unless given.
        timeout: Duration = "timeout",
        /// How often an event is sent at most, 1 to 20: 8 unless given.
        attempts: Whole = "attempts",
    }
}

/// A percentage of a limit, without its sign.
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
        let message = bad("stands here without its sign");
        return Err(BadNumber::new(message, format!("write {bare}")));
    }
    let number = whole(text).map_err(|bad| BadNumber::new(bad.message, help))?;
    let mark = u8::try_from(number).ok();
    let mark = mark.filter(|mark| (1..=100).contains(mark));
    mark.ok_or_else(|| BadNumber::new(bad("is not between 1 and 100"), help))
}

/// A handful of warnings is read; more are noise.
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
        problems.report(at.place, message, "keep those that somebody acts on");
    }
    let mut all: Vec<u8> = Vec::new();
    for at in items.iter().take(MAX_THRESHOLDS) {
        let Mark(percent) = at.value;
        if let Some(last) = all.last()
            && *last >= percent
        {
            let message = format!("{percent} follows {last}");
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
            "add `secret: \"${HOOK_SECRET}\"`: whoever takes events can tell by it that they are yours",
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

/// Nothing of the URL is quoted: what follows the host is a secret.
fn url(text: &str) -> Result<WebhookUrl, (String, &'static str)> {
    let wrong = |error: UrlError| match error {
        UrlError::NoScheme => ("the URL has no scheme".to_owned(), URL_HELP),
        error => (error.to_string(), URL_HELP),
    };
    let (before, query) = text.split_at(text.find('?').unwrap_or(text.len()));
    let parts = match Parts::of(before) {
        Err(UrlError::Query) => {
            let message = "the URL has a fragment".to_owned();
            return Err((message, "leave out what follows the `#`: it is never sent"));
        }
        parts => parts.map_err(wrong)?,
    };
    let tls = match parts.scheme.as_str() {
        "http" => false,
        "https" => true,
        scheme => {
            let message = format!("`{scheme}` is not a scheme that events are sent by");
            return Err((
                message,
                "use https://, or http:// within a network of your own",
            ));
        }
    };
    if parts.has_login() {
        let message = "the URL has a user or a password".to_owned();
        return Err((message, "leave it out: events are signed with the `secret`"));
    }
    let (host, port) = address(parts.hosts, if tls { 443 } else { 80 }).map_err(wrong)?;
    let target = format!("/{}{query}", parts.path);
    if !target.bytes().all(|byte| byte.is_ascii_graphic()) || query.contains('#') {
        let message = "the path of the URL is not one".to_owned();
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
