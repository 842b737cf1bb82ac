//! Whether events can be sent where the config says.

use tollgate_core::Span;

use super::store::lasting;
use super::{Env, MIN_SECRET, expand, ranged, text};
use crate::config::Secret;
use crate::error::{Place, Problems};
use crate::events::{Events, Webhook, WebhookUrl};
use crate::raw::{Mark, RawEvents, RawWebhook};
use crate::read::{At, Field};
use crate::store::{Parts, UrlError, address};
use crate::values::List;

/// A handful of warnings is read; more are noise.
const MAX_THRESHOLDS: usize = 8;
const URL_HELP: &str = "write an address such as https://billing.example.com/tollgate";

pub(super) fn events(raw: Option<&RawEvents>, env: Env<'_>, problems: &mut Problems<'_>) -> Events {
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
    let timeout = lasting(
        &raw.timeout,
        Span::from_secs(2),
        Span::from_millis(100)..=Span::from_secs(30),
        problems,
    );
    let attempts = ranged(&raw.attempts, 8, 1..=20, problems);
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
