//! Subjects: how they are hashed, and which headers and networks identify them.

use std::net::IpAddr;

use ipnet::IpNet;
use tollgate_core::Span;
use tollgate_rules::document::{
    At, BadValue, Duration, Field, List, Problems, Short, Text, TextOrOff, Whole, section, words,
};

use crate::fields::{Env, MIN_SECRET, duration_in, expand, number_in, secret_help};
use crate::priorities::{Priorities, priorities};
use crate::secrets::Secret;

words! {
    /// A header in which proxies name the client's address.
    pub enum ClientHeader is "a header of the client's address" {
        /// A list of addresses, the nearest last.
        XForwardedFor = "x-forwarded-for",
        /// The same list in the standard form (RFC 7239).
        Forwarded = "forwarded",
        /// One address.
        XRealIp = "x-real-ip",
    }
}

/// How subjects are hashed, and where doors find them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Subjects {
    /// The secret that subjects are hashed with.
    pub hash_secret: Option<Secret>,
    /// Earlier secrets, the latest first. Counts that were stored under them continue.
    pub previous_hash_secrets: Vec<Secret>,
    /// Networks of proxies that are trusted to name clients: see [`Subjects::is_trusted`].
    pub trusted_proxies: Vec<IpNet>,
    /// The header in which proxies name the client's address. `None` means the first of the three
    /// headers that a request has.
    pub client_header: Option<ClientHeader>,
    /// The headers that name the caller of a request.
    pub headers: SubjectHeaders,
    /// The classes of requests by priority.
    pub priorities: Priorities,
    /// Networks of internal clients: see [`Subjects::is_internal`].
    pub internal: Vec<IpNet>,
    /// The header that marks test traffic, accepted from trusted proxies, in lower case.
    pub test_header: Option<String>,
    /// The header with the time of a request, accepted from trusted proxies, in lower case.
    pub time_header: Option<String>,
    /// By how much that time may differ from the clock of this host (default 5 seconds).
    pub max_time_skew: Span,
    /// How many leading bits of an IPv6 address make one subject (default 64).
    pub ipv6_prefix: u8,
    /// The most subjects to keep (default 10,000,000).
    pub max_keys: usize,
    /// The most open reservations and leases of one subject (default 10,000, or a tenth of `max_keys` if
    /// that is less).
    pub max_open_holds: u64,
    /// The most anonymous subjects to keep on Redis (default half of `max_keys`).
    pub max_anonymous_keys: usize,
}

/// The headers that name the caller, in lower case; `None` if a header is not read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SubjectHeaders {
    /// The API key (default `x-api-key`).
    pub api_key: Option<String>,
    /// The user, accepted from trusted proxies (default `x-user-id`).
    pub user: Option<String>,
    /// The service account, accepted from trusted proxies (default `x-service-account`).
    pub service_account: Option<String>,
    /// The tenant, accepted from trusted proxies (default `x-tenant-id`).
    pub tenant: Option<String>,
    /// The priority, accepted from trusted proxies (default `x-gateway-inference-objective`).
    pub priority: Option<String>,
    /// The client that fair shares go by, accepted from trusted proxies (default
    /// `x-gateway-inference-fairness-id`).
    pub fairness_id: Option<String>,
}

impl Default for SubjectHeaders {
    fn default() -> SubjectHeaders {
        let named = |name: &str| Some(name.to_owned());
        SubjectHeaders {
            api_key: named("x-api-key"),
            user: named("x-user-id"),
            service_account: named("x-service-account"),
            tenant: named("x-tenant-id"),
            priority: named("x-gateway-inference-objective"),
            fairness_id: named("x-gateway-inference-fairness-id"),
        }
    }
}

impl Default for Subjects {
    fn default() -> Subjects {
        Subjects {
            hash_secret: None,
            previous_hash_secrets: Vec::new(),
            trusted_proxies: Vec::new(),
            client_header: None,
            headers: SubjectHeaders::default(),
            priorities: Priorities::default(),
            internal: Vec::new(),
            test_header: None,
            time_header: None,
            max_time_skew: Span::from_secs(5),
            ipv6_prefix: 64,
            max_keys: 10_000_000,
            max_open_holds: MAX_OPEN_HOLDS,
            max_anonymous_keys: 5_000_000,
        }
    }
}

impl Subjects {
    /// Whether `address` belongs to a proxy that is trusted to name clients.
    #[must_use]
    pub fn is_trusted(&self, address: IpAddr) -> bool {
        is_in(&self.trusted_proxies, address)
    }

    /// Whether `address` belongs to an internal client.
    #[must_use]
    pub fn is_internal(&self, address: IpAddr) -> bool {
        is_in(&self.internal, address)
    }

    /// Returns the subject of a client at `address`: its IPv4 address, or the prefix of its IPv6 address.
    ///
    /// ```
    /// let subjects = tollgate_config::Subjects::default();
    /// assert_eq!(subjects.network_of("2001:db8::7".parse()?), "2001:db8::/64");
    /// assert_eq!(subjects.network_of("::ffff:192.0.2.1".parse()?), "192.0.2.1");
    /// # Ok::<(), std::net::AddrParseError>(())
    /// ```
    #[must_use]
    pub fn network_of(&self, address: IpAddr) -> String {
        tollgate_rules::network(address, self.ipv6_prefix)
    }
}

fn is_in(networks: &[IpNet], address: IpAddr) -> bool {
    let address = address.to_canonical();
    networks.iter().any(|network| network.contains(&address))
}

section! {
    /// How subjects are hashed, and where doors find them.
    pub(crate) struct RawSubjects is "`subjects`" {
        /// The secret that subjects are hashed with, at least 16 bytes. `${VAR}` reads the environment.
        hash_secret: Text = "hash_secret",
        /// Earlier values of hash_secret, the latest first, at most 8. Counts that were stored under them continue. `${VAR}` reads the environment.
        previous_hash_secrets: List<Text> = "previous_hash_secrets",
        /// Networks of proxies that are trusted to name clients: forwarded addresses and authenticated callers.
        trusted_proxies: List<Text> = "trusted_proxies",
        /// The header in which trusted proxies name the client's address. Default: the first of the three headers that a request has.
        client_header: ClientHeader = "client_header",
        /// The headers that name the caller of a request.
        headers: RawSubjectHeaders = "headers",
        /// The classes of requests by their attribute priority, the most important first (default [high, normal, low]). Requests without one are in the middle class.
        priorities: List<Text> = "priorities",
        /// Networks whose clients carry the attribute traffic = internal.
        internal: List<Text> = "internal",
        /// A request with this header, from a trusted proxy, carries the attribute traffic = test.
        test_header: Text = "test_header",
        /// The header in which a trusted proxy brings the time of a request, in seconds, milliseconds or microseconds since the epoch. Needs clock caller in the store.
        time_header: Text = "time_header",
        /// By how much the time of a request may differ from the clock of this host, 1ms to 1m (default 5s). Otherwise the clock of this host counts.
        max_time_skew: Duration = "max_time_skew",
        /// How many leading bits of an IPv6 address make one subject (default 64).
        ipv6_prefix: Whole = "ipv6_prefix",
        /// The most subjects to keep (default 10000000).
        max_keys: Whole = "max_keys",
        /// The most open reservations and leases of one tenant, or of another subject if a request names no tenant (default 10000, or a tenth of max_keys if that is less).
        max_open_holds: Whole = "max_open_holds",
        /// The most anonymous subjects to keep on Redis: those that only have an address (default: half of max_keys).
        max_anonymous_keys: Whole = "max_anonymous_keys",
    }
}

section! {
    /// The headers that name the caller, each a name or off.
    pub(crate) struct RawSubjectHeaders is "`headers`" {
        /// The API key (default x-api-key).
        api_key: TextOrOff = "api_key",
        /// The user, accepted from trusted proxies (default x-user-id).
        user: TextOrOff = "user",
        /// The service account, accepted from trusted proxies (default x-service-account).
        service_account: TextOrOff = "service_account",
        /// The tenant, accepted from trusted proxies (default x-tenant-id).
        tenant: TextOrOff = "tenant",
        /// The priority, accepted from trusted proxies: the name of a class, or an urgency as in RFC 9218, such as u=1 (default x-gateway-inference-objective).
        priority: TextOrOff = "priority",
        /// The attribute fairness_id, accepted from trusted proxies (default x-gateway-inference-fairness-id).
        fairness_id: TextOrOff = "fairness_id",
    }
}

const MAX_HEADER: usize = 64;
/// The default of `max_open_holds`.
const MAX_OPEN_HOLDS: u64 = 10_000;

/// How many earlier secrets there may be.
const MAX_PREVIOUS: usize = 8;

/// Headers that have another meaning, so they cannot name the caller.
const TAKEN: [&str; 21] = [
    "connection",
    "content-length",
    "cookie",
    "forwarded",
    "host",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-method",
    "x-forwarded-proto",
    "x-forwarded-uri",
    "x-original-host",
    "x-original-method",
    "x-original-proto",
    "x-original-uri",
    "x-original-url",
    "x-real-ip",
];

pub(crate) fn subjects(
    raw: Option<&RawSubjects>,
    env: Env<'_>,
    problems: &mut Problems<'_>,
) -> Subjects {
    let mut subjects = Subjects::default();
    let Some(raw) = raw else {
        return subjects;
    };
    if let Some(at) = raw.hash_secret.get() {
        subjects.hash_secret = secret(at, env, problems);
    }
    subjects.previous_hash_secrets = previous_secrets(raw, &subjects, env, problems);
    subjects.trusted_proxies = networks(&raw.trusted_proxies, problems);
    subjects.client_header = raw.client_header.value().copied();
    subjects.priorities = priorities(&raw.priorities, problems);
    subjects.internal = networks(&raw.internal, problems);
    if let Some(raw) = raw.headers.value() {
        read_headers(raw, &mut subjects.headers, problems);
    }
    if let Some(at) = raw.test_header.get()
        && let Some(header) = problems.accept(at.place, header_name(&at.value.0))
    {
        let named = named(&subjects.headers);
        if let Some((other, _)) = named.iter().find(|(_, it)| *it == Some(&header)) {
            let message = format!(
                "`{header}` cannot mark test traffic: the `{other}` is read from this header"
            );
            problems.report(at.place, message, "name another header");
        }
        subjects.test_header = Some(header);
    }
    read_time(raw, &mut subjects, problems);
    let prefix = &mut subjects.ipv6_prefix;
    number_in(&raw.ipv6_prefix, prefix, 1..=128, problems);
    let most = 1_000..=1_000_000_000;
    number_in(&raw.max_keys, &mut subjects.max_keys, most, problems);
    // One subject must not fill the store by default.
    subjects.max_open_holds = MAX_OPEN_HOLDS.min(subjects.max_keys as u64 / 10);
    let open = &mut subjects.max_open_holds;
    number_in(&raw.max_open_holds, open, 1..=1_000_000, problems);
    subjects.max_anonymous_keys = subjects.max_keys / 2;
    let (most, anonymous) = (
        1..=subjects.max_keys as u64,
        &mut subjects.max_anonymous_keys,
    );
    number_in(&raw.max_anonymous_keys, anonymous, most, problems);
    subjects
}

/// Reads the header with the time of a request.
fn read_time(raw: &RawSubjects, subjects: &mut Subjects, problems: &mut Problems<'_>) {
    let skew = &mut subjects.max_time_skew;
    duration_in(&raw.max_time_skew, skew, 1..=60_000, problems);
    let Some(at) = raw.time_header.get() else {
        if let Some(key) = raw.max_time_skew.key() {
            let message = "`max_time_skew` has no effect without `time_header`";
            problems.report(key, message, "add `time_header`, or remove `max_time_skew`");
        }
        return;
    };
    let Some(header) = problems.accept(at.place, header_name(&at.value.0)) else {
        return;
    };
    let others = named(&subjects.headers).into_iter();
    let mut others = others.chain([("test_header", subjects.test_header.as_ref())]);
    if let Some((other, _)) = others.find(|(_, it)| *it == Some(&header)) {
        let message = format!("`{header}` cannot be both the time and the `{other}`");
        problems.report(at.place, message, "name another header");
    }
    if raw.trusted_proxies.is_absent() {
        let message = "`time_header` has no effect without `trusted_proxies`";
        let help = "add the networks of your proxies as `trusted_proxies`, or remove `time_header`";
        problems.report(at.place, message, help);
    }
    subjects.time_header = Some(header);
}

/// Reads a secret, and reports one that is too short.
fn secret(at: &At<Text>, env: Env<'_>, problems: &mut Problems<'_>) -> Option<Secret> {
    let secret = expand(at, env, problems).map(Secret::new)?;
    let bytes = secret.expose().len();
    if bytes < MIN_SECRET {
        let message = format!("the secret has only {bytes} bytes");
        problems.report(at.place, message, secret_help());
    }
    Some(secret)
}

/// Reads the earlier secrets, and reports a secret that is listed twice.
fn previous_secrets(
    raw: &RawSubjects,
    subjects: &Subjects,
    env: Env<'_>,
    problems: &mut Problems<'_>,
) -> Vec<Secret> {
    let Some(list) = raw.previous_hash_secrets.get() else {
        return Vec::new();
    };
    if raw.hash_secret.is_absent() && !list.value.0.is_empty() {
        let message = "`previous_hash_secrets` is set, but `hash_secret` is not";
        problems.report(
            list.place,
            message,
            "set `hash_secret` to the secret in use",
        );
    }
    if list.value.0.len() > MAX_PREVIOUS {
        let message = format!("{} previous secrets are too many", list.value.0.len());
        let help = format!("list the latest ones, {MAX_PREVIOUS} at most");
        problems.report(list.place, message, help);
    }
    let mut previous: Vec<Secret> = Vec::new();
    for at in &list.value.0 {
        let Some(secret) = secret(at, env, problems) else {
            continue;
        };
        if subjects.hash_secret.as_ref() == Some(&secret) || previous.contains(&secret) {
            let message = "this secret is listed twice";
            let help = "list each earlier secret once, and not the one in `hash_secret`";
            problems.report(at.place, message, help);
        }
        previous.push(secret);
    }
    previous
}

fn networks(field: &Field<List<Text>>, problems: &mut Problems<'_>) -> Vec<IpNet> {
    let list = field.value().map_or(&[][..], |list| &list.0);
    let networks = list
        .iter()
        .map(|at| (at.place, tollgate_rules::parse_network(&at.value.0)));
    networks
        .filter_map(|(place, it)| problems.accept(place, it))
        .collect()
}

/// Reads the headers that the config names, and reports two fields with the same header.
fn read_headers(
    raw: &RawSubjectHeaders,
    headers: &mut SubjectHeaders,
    problems: &mut Problems<'_>,
) {
    let account = &mut headers.service_account;
    let fields = [
        &raw.api_key,
        &raw.user,
        &raw.service_account,
        &raw.tenant,
        &raw.priority,
        &raw.fairness_id,
    ];
    let read = [
        &mut headers.api_key,
        &mut headers.user,
        account,
        &mut headers.tenant,
        &mut headers.priority,
        &mut headers.fairness_id,
    ];
    for (field, header) in fields.iter().zip(read) {
        if let Some(at) = field.get() {
            let given = at.value.0.as_deref().map(header_name);
            *header = given.and_then(|name| problems.accept(at.place, name));
        }
    }
    let all = named(headers);
    for (field, (name, header)) in fields.iter().zip(all) {
        let (Some(at), Some(header)) = (field.get(), header) else {
            continue;
        };
        // If two fields name the same header, the later field in the file is reported.
        let mut others = fields.iter().zip(all);
        let clash = others.find(|(field, (other, value))| {
            let earlier = field.get().is_none_or(|it| it.place.start < at.place.start);
            *other != name && *value == Some(header) && earlier
        });
        if let Some((_, (other, _))) = clash {
            let message = format!("`{name}` and `{other}` would be read from the same header");
            let help = format!("`{other}` is read from {header}: name another one, or write `off`");
            problems.report(at.place, message, help);
        }
    }
}

fn named(headers: &SubjectHeaders) -> [(&'static str, Option<&String>); 6] {
    [
        ("api_key", headers.api_key.as_ref()),
        ("user", headers.user.as_ref()),
        ("service_account", headers.service_account.as_ref()),
        ("tenant", headers.tenant.as_ref()),
        ("priority", headers.priority.as_ref()),
        ("fairness_id", headers.fairness_id.as_ref()),
    ]
}

/// Reads the name of a header that carries a credential, in lower case.
pub(crate) fn credential_header(given: &str) -> Result<String, BadValue> {
    match given.eq_ignore_ascii_case("authorization") {
        true => Ok("authorization".to_owned()),
        false => header_name(given),
    }
}

/// Reads the name of a header, in lower case.
fn header_name(given: &str) -> Result<String, BadValue> {
    let name = given.to_ascii_lowercase();
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if name.is_empty() || name.len() > MAX_HEADER || !name.bytes().all(is_token) {
        let message = format!("`{}` cannot be the name of a header", Short(given));
        let help = format!("use letters, digits and `-`, {MAX_HEADER} characters at most");
        return Err(BadValue::new(message, help));
    }
    if name.ends_with("authorization") {
        let help = "clients can write one credential in several ways in this header: let the proxy or the application put the key or the user into another header";
        return Err(BadValue::new(
            format!("`{given}` cannot identify the caller"),
            help,
        ));
    }
    if TAKEN.contains(&name.as_str()) {
        let help = "name a header without another meaning, such as x-api-key";
        return Err(BadValue::new(
            format!("`{given}` has another meaning"),
            help,
        ));
    }
    Ok(name)
}
