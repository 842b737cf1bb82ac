//! Whether what was read makes sense: fields to a [`Config`], with every problem reported.

mod rule;
mod store;

use std::net::SocketAddr;

use ipnet::IpNet;

use crate::config::{Config, Families, Headers, Secret, Server, Subjects};
use crate::error::{Place, Problems};
use crate::raw::{RawConfig, RawFamily, RawHeaders, RawServer, RawStore, RawSubjects};
use crate::read::{At, Field, Read};
use crate::store::{NO_SECRET, SECRET_HELP};
use crate::units::Short;
use crate::values::{Text, Whole};
use crate::yaml::Node;

/// What an attribute is called, as a regular expression for the schema.
pub(crate) const ATTRIBUTE_PATTERN: &str = "^[A-Za-z_][A-Za-z0-9_.-]{0,63}$";
const MIN_SECRET: usize = 16;

type Env<'e> = &'e dyn Fn(&str) -> Option<String>;

/// Whether `name` may be the name of an attribute.
#[must_use]
pub fn is_attribute_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    name.len() <= 64
        && bytes
            .next()
            .is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-'))
}

/// Whether `id` may be the id of a rule or a namespace.
fn is_id(id: &str) -> bool {
    let mut bytes = id.bytes();
    id.len() <= 64
        && bytes
            .next()
            .is_some_and(|first| first.is_ascii_alphanumeric())
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-'))
}

const ID_HELP: &str =
    "use letters, digits, `.`, `_` and `-`, start with a letter or digit, 64 characters at most";

/// The config at `root`. If problems were reported the result is of no use.
pub(crate) fn config(root: &Node, env: Env<'_>, problems: &mut Problems<'_>) -> Option<Config> {
    let raw = RawConfig::read(root, problems)?;
    let top = Place::new(root.place.start, root.place.start);
    check_version(&raw.version, top, problems);
    let namespace = namespace(&raw.namespace, env, problems);
    let server = server(raw.server.value(), env, problems);
    let store = store::store(raw.store.value(), env, problems);
    check_shared(&raw, problems);
    let subjects = subjects(raw.subjects.value(), env, problems);
    let headers = headers(raw.headers.value(), problems);
    if raw.rules.is_absent() {
        problems.report(
            top,
            "the config has no `rules`",
            "a config without rules would allow everything; write `rules: []` if that is meant",
        );
    }
    let rules = raw
        .rules
        .value()
        .map_or_else(Vec::new, |list| rule::rules(&list.0, problems));
    let hash = blake3::hash(problems.source().as_bytes()).to_hex();
    Some(Config {
        namespace,
        server,
        store,
        subjects,
        headers,
        rules,
        version: hash[..12].to_owned(),
    })
}

fn check_version(version: &Field<Whole>, top: Place, problems: &mut Problems<'_>) {
    let help = "this Tollgate reads version 1: write `version: 1`";
    match version {
        Field::Absent => problems.report(top, "the config does not say its `version`", help),
        Field::Given { at, .. } if at.value.0 != 1 => {
            problems.report(
                at.place,
                format!("there is no version {}", at.value.0),
                help,
            );
        }
        Field::Broken { .. } | Field::Given { .. } => {}
    }
}

/// Instances that share a store must hash subjects alike.
fn check_shared(raw: &RawConfig, problems: &mut Problems<'_>) {
    let absent = match &raw.subjects {
        Field::Absent => true,
        Field::Broken { .. } => false,
        Field::Given { at, .. } => at.value.hash_secret.is_absent(),
    };
    if let Some(RawStore::Redis { .. }) = raw.store.value()
        && let (true, Some(key)) = (absent, raw.store.key())
    {
        problems.report(key, NO_SECRET, SECRET_HELP);
    }
}

fn namespace(field: &Field<Text>, env: Env<'_>, problems: &mut Problems<'_>) -> String {
    let Some(at) = field.get() else {
        return "default".to_owned();
    };
    let namespace = expand(at, env, problems).unwrap_or_else(|| "default".to_owned());
    if !is_id(&namespace) {
        let message = format!("`{}` cannot be a namespace", Short(&namespace));
        problems.report(at.place, message, ID_HELP);
    }
    namespace
}

fn server(raw: Option<&RawServer>, env: Env<'_>, problems: &mut Problems<'_>) -> Server {
    let default = Server {
        http: SocketAddr::from(([127, 0, 0, 1], 8080)),
    };
    let Some(at) = raw.and_then(|raw| raw.http.get()) else {
        return default;
    };
    let Some(text) = expand(at, env, problems) else {
        return default;
    };
    match text.parse() {
        Ok(http) => Server { http },
        Err(_) => {
            problems.report(
                at.place,
                format!("`{}` is not an address to listen on", Short(&text)),
                "write an IP address and a port, such as 127.0.0.1:8080 or [::]:8080",
            );
            default
        }
    }
}

fn subjects(raw: Option<&RawSubjects>, env: Env<'_>, problems: &mut Problems<'_>) -> Subjects {
    let mut subjects = Subjects {
        hash_secret: None,
        trusted_proxies: Vec::new(),
        ipv6_prefix: 64,
        max_keys: 10_000_000,
    };
    let Some(raw) = raw else {
        return subjects;
    };
    if let Some(at) = raw.hash_secret.get() {
        subjects.hash_secret = expand(at, env, problems).map(Secret::new);
        if let Some(secret) = &subjects.hash_secret
            && secret.expose().len() < MIN_SECRET
        {
            problems.report(
                at.place,
                format!("the secret has only {} bytes", secret.expose().len()),
                format!(
                    "use at least {MIN_SECRET} random bytes, such as `openssl rand -hex 32` prints"
                ),
            );
        }
    }
    for at in raw.trusted_proxies.value().iter().flat_map(|list| &list.0) {
        subjects.trusted_proxies.extend(network(at, problems));
    }
    subjects.ipv6_prefix = ranged(&raw.ipv6_prefix, 64, 1..=128, problems);
    subjects.max_keys = ranged(&raw.max_keys, 10_000_000, 1_000..=1_000_000_000, problems);
    subjects
}

fn network(at: &At<Text>, problems: &mut Problems<'_>) -> Option<IpNet> {
    let text = at.value.0.as_str();
    let message = format!("`{}` is not a network", Short(text));
    match text.parse::<IpNet>() {
        Ok(network) if network.trunc() == network => return Some(network),
        Ok(network) => problems.report(
            at.place,
            format!("`{text}` is an address inside a network"),
            format!("write the network, {}", network.trunc()),
        ),
        Err(_) => match text.parse::<std::net::IpAddr>() {
            Ok(address) => {
                problems.report(at.place, message, format!("write {}", IpNet::from(address)));
            }
            Err(_) => problems.report(
                at.place,
                message,
                "write one such as 10.0.0.0/8 or fd00::/8",
            ),
        },
    }
    None
}

fn ranged<T>(
    field: &Field<Whole>,
    default: T,
    range: std::ops::RangeInclusive<u64>,
    problems: &mut Problems<'_>,
) -> T
where
    T: TryFrom<u64>,
{
    let Some(at) = field.get() else {
        return default;
    };
    let value = at.value.0;
    if range.contains(&value)
        && let Ok(value) = T::try_from(value)
    {
        return value;
    }
    let (from, to) = range.into_inner();
    problems.report(
        at.place,
        format!("{value} is not between {from} and {to}"),
        format!("write a number from {from} to {to}"),
    );
    default
}

fn headers(raw: Option<&RawHeaders>, problems: &mut Problems<'_>) -> Headers {
    let mut headers = Headers {
        families: Families {
            ietf: true,
            ratelimit: true,
            x_ratelimit: true,
        },
        problem_json: false,
    };
    let Some(raw) = raw else {
        return headers;
    };
    if let Some(given) = raw.families.value() {
        let mut families = Families {
            ietf: false,
            ratelimit: false,
            x_ratelimit: false,
        };
        for at in &given.0 {
            let family = match at.value {
                RawFamily::Ietf => &mut families.ietf,
                RawFamily::RateLimit => &mut families.ratelimit,
                RawFamily::XRateLimit => &mut families.x_ratelimit,
            };
            if std::mem::replace(family, true) {
                let message = format!("`{}` is listed twice", at.value.name());
                problems.report(at.place, message, "list each family once");
            }
        }
        headers.families = families;
    }
    headers.problem_json = raw.problem_json.value().is_some_and(|flag| flag.0);
    headers
}

/// Text with `${VAR}` replaced; `None` if a variable is not set, which was reported.
fn expand(at: &At<Text>, env: Env<'_>, problems: &mut Problems<'_>) -> Option<String> {
    let mut rest = at.value.0.as_str();
    let mut expanded = String::new();
    let mut complete = true;
    while let Some((before, after)) = rest.split_once("${") {
        expanded.push_str(before);
        let Some((name, after)) = after.split_once('}') else {
            problems.report(at.place, "a `${` is not closed", "write ${NAME}");
            return None;
        };
        let well_formed = !name.is_empty()
            && !name.starts_with(|c: char| c.is_ascii_digit())
            && name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        if !well_formed {
            // Not quoted: it may be a part of a secret.
            problems.report(
                at.place,
                "what stands in `${}` is not the name of a variable",
                "write ${NAME}, with letters, digits and `_`",
            );
            return None;
        }
        match env(name) {
            Some(value) => expanded.push_str(&value),
            None => {
                problems.report(
                    at.place,
                    format!("the environment variable {name} is not set"),
                    format!("set {name}, or write the value here"),
                );
                complete = false;
            }
        }
        rest = after;
    }
    expanded.push_str(rest);
    complete.then_some(expanded)
}
