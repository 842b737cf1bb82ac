//! Whether what was read makes sense: fields to a [`Config`], with every problem reported.

mod allowance;
mod events;
mod formula;
mod ledger;
mod route;
mod rule;
mod server;
mod store;
mod subjects;
mod telemetry;
mod terms;
pub(crate) mod tiers;

use std::collections::HashMap;
use std::sync::Arc;

use crate::config::{Config, Families, Headers};
use crate::error::{Place, Problems};
use crate::expr::Declared;
use crate::raw::{AttributeType, Named, RawConfig, RawFamily, RawHeaders, RawStore};
use crate::read::{At, Field, Read};
use crate::store::{NO_SECRET, NO_SECRET_OF_BOOKS, SECRET_HELP};
use crate::tiers::Tiers;
use crate::units::Short;
use crate::validate::tiers::Allowances;
use crate::values::{List, Text, Whole};
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
///
/// `files` says whether other files can be read.
pub(crate) fn config(
    root: &Node,
    env: Env<'_>,
    files: bool,
    problems: &mut Problems<'_>,
) -> Option<Config> {
    let raw = RawConfig::read(root, problems)?;
    let top = Place::new(root.place.start, root.place.start);
    check_version(&raw.version, top, problems);
    let namespace = namespace(&raw.namespace, env, problems);
    let server = server::server(raw.server.value(), env, problems);
    let store = store::store(raw.store.value(), env, problems);
    check_shared(&raw, problems);
    let subjects = subjects::subjects(raw.subjects.value(), env, problems);
    let headers = headers(raw.headers.value(), problems);
    let routes = route::routes(raw.routes.value(), problems);
    let telemetry = telemetry::telemetry(raw.telemetry.value(), env, problems);
    let ledger = ledger::ledger(&raw.ledger, &namespace, env, problems);
    let events = events::events(raw.events.value(), env, problems);
    if raw.rules.is_absent() {
        problems.report(
            top,
            "the config has no `rules`",
            "a config without rules would allow everything; write `rules: []` if that is meant",
        );
    }
    let declared = declared(raw.attributes.value(), problems);
    // One that is broken was meant.
    let has_ledger = !raw.ledger.is_absent();
    let budgets = tiers::budgets(raw.budgets.value(), has_ledger, problems);
    let scope = rule::Scope {
        budgets: &budgets,
        declared: &declared,
        ledger: has_ledger,
    };
    let rules = raw
        .rules
        .value()
        .map_or_else(Vec::new, |list| rule::rules(&list.0, &scope, problems));
    let allowances = Allowances::new(&rules, &budgets);
    // A rule that is broken would be reported as missing wherever it is named.
    let sound = problems.is_empty();
    let mut tiers = Tiers::default();
    if sound {
        tiers = tiers::plans(&raw.plans, &raw.default_plan, &allowances, problems);
        if let Some(named) = raw.tenants.value() {
            let mut tenants = HashMap::new();
            tiers::tenants(named, &tiers, &allowances, &mut tenants, problems);
            tiers.tenants = Arc::new(tenants);
        }
    }
    let tenant_files = tenant_files(&raw.tenant_files, files, env, problems);
    let hash = blake3::hash(problems.source().as_bytes()).to_hex();
    Some(Config {
        namespace,
        server,
        store,
        subjects,
        headers,
        routes,
        telemetry,
        ledger,
        events,
        rules,
        budgets,
        tiers,
        tenant_files,
        files: Vec::new(),
        watched: Vec::new(),
        version: hash[..12].to_owned(),
    })
}

/// What attributes are that are not text.
fn declared(raw: Option<&Named<AttributeType>>, problems: &mut Problems<'_>) -> Declared {
    let mut declared = Declared::new();
    for (name, at) in raw.map_or(&[][..], |named| &named.0) {
        rule::check_attribute(&name.value, name.place, problems);
        if declared.insert(name.value.clone(), at.value).is_some() {
            let message = format!("`{}` is declared twice", Short(&name.value));
            problems.report(name.place, message, "keep one of the two");
        }
    }
    declared
}

/// Where more tenants are, as written, in a config that may be wrong otherwise.
pub(crate) fn tenant_files_of(
    root: &Node,
    env: Env<'_>,
    problems: &mut Problems<'_>,
) -> Vec<String> {
    let raw = RawConfig::read(root, problems);
    raw.map_or_else(Vec::new, |raw| {
        tenant_files(&raw.tenant_files, true, env, problems)
    })
}

/// The paths of files with more tenants.
fn tenant_files(
    field: &Field<List<Text>>,
    files: bool,
    env: Env<'_>,
    problems: &mut Problems<'_>,
) -> Vec<String> {
    let given = field.value().map_or(&[][..], |list| &list.0);
    if let (Some(key), false, false) = (field.key(), files, given.is_empty()) {
        let help = "write the tenants under `tenants`";
        problems.report(key, "a config that is not a file has no other files", help);
        return Vec::new();
    }
    given
        .iter()
        .filter_map(|at| expand(at, env, problems))
        .collect()
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

/// Instances that share a store must hash subjects alike, and so must those that keep the same books, one
/// after the other.
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
    } else if let (true, Some(key)) = (absent, raw.ledger.key()) {
        problems.report(key, NO_SECRET_OF_BOOKS, SECRET_HELP);
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

/// The text of a field, which is not empty.
fn text(
    name: &str,
    field: &Field<Text>,
    env: Env<'_>,
    problems: &mut Problems<'_>,
) -> Option<String> {
    let at = field.get()?;
    let text = expand(at, env, problems)?;
    if text.is_empty() {
        problems.report(
            at.place,
            format!("`{name}` is empty"),
            format!("write it, or leave `{name}` out"),
        );
    }
    Some(text)
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
