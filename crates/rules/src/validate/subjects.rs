//! Whether what a config says of who asks makes sense.

use ipnet::IpNet;

use super::{Env, MIN_SECRET, expand, ranged};
use crate::client::SubjectHeaders;
use crate::config::{Secret, Subjects};
use crate::error::{Place, Problems};
use crate::raw::{RawSubjectHeaders, RawSubjects};
use crate::read::{At, Field};
use crate::units::Short;
use crate::values::{List, Text, TextOrOff};

const MAX_HEADER: usize = 64;

/// Headers that mean something else, and so cannot say who asks.
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

pub(super) fn subjects(
    raw: Option<&RawSubjects>,
    env: Env<'_>,
    problems: &mut Problems<'_>,
) -> Subjects {
    let mut subjects = Subjects::default();
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
    subjects.trusted_proxies = networks(&raw.trusted_proxies, problems);
    subjects.client_header = raw.client_header.value().copied();
    subjects.internal = networks(&raw.internal, problems);
    let mut names = Names(Vec::new());
    if let Some(raw) = raw.headers.value() {
        names.headers(raw, &mut subjects.headers, problems);
    }
    names.check(&subjects.headers, problems);
    if let Some(at) = raw.test_header.get() {
        subjects.test_header = names.test(at, &subjects.headers, problems);
    }
    subjects.ipv6_prefix = ranged(&raw.ipv6_prefix, 64, 1..=128, problems);
    subjects.max_keys = ranged(&raw.max_keys, 10_000_000, 1_000..=1_000_000_000, problems);
    subjects
}

fn networks(field: &Field<List<Text>>, problems: &mut Problems<'_>) -> Vec<IpNet> {
    let list = field.value().map_or(&[][..], |list| &list.0);
    list.iter().filter_map(|at| network(at, problems)).collect()
}

fn network(at: &At<Text>, problems: &mut Problems<'_>) -> Option<IpNet> {
    let text = at.value.0.as_str();
    let message = format!("`{}` is not a network", Short(text));
    match text.parse::<IpNet>() {
        Ok(network) if network.trunc() != network => problems.report(
            at.place,
            format!("`{text}` is an address inside a network"),
            format!("write the network, {}", network.trunc()),
        ),
        Ok(network) => match as_ipv4(network) {
            None => return Some(network),
            Some(plain) => problems.report(
                at.place,
                format!("`{text}` is an IPv4 network in IPv6 notation"),
                format!("write {plain}: addresses are compared in their own notation"),
            ),
        },
        Err(_) => match text.parse::<std::net::IpAddr>() {
            Ok(address) => {
                let network = IpNet::from(address.to_canonical());
                problems.report(at.place, message, format!("write {network}"));
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

/// The IPv4 network that an IPv6 network is another notation of.
fn as_ipv4(network: IpNet) -> Option<IpNet> {
    let IpNet::V6(network) = network else {
        return None;
    };
    let address = network.addr().to_ipv4_mapped()?;
    let prefix = network.prefix_len().checked_sub(96)?;
    IpNet::new(address.into(), prefix).ok()
}

/// The headers that are read, and where that is written.
struct Names(Vec<(&'static str, Place)>);

impl Names {
    fn headers(
        &mut self,
        raw: &RawSubjectHeaders,
        headers: &mut SubjectHeaders,
        problems: &mut Problems<'_>,
    ) {
        let fields: [(&'static str, &Field<TextOrOff>, &mut Option<String>); 4] = [
            ("api_key", &raw.api_key, &mut headers.api_key),
            ("user", &raw.user, &mut headers.user),
            (
                "service_account",
                &raw.service_account,
                &mut headers.service_account,
            ),
            ("tenant", &raw.tenant, &mut headers.tenant),
        ];
        for (name, field, header) in fields {
            if let Some(at) = field.get() {
                let given = at.value.0.as_deref();
                *header = given.and_then(|given| header_name(given, at.place, problems));
                self.0.push((name, at.place));
            }
        }
    }

    /// Whether no two are read from the same header.
    fn check(&self, headers: &SubjectHeaders, problems: &mut Problems<'_>) {
        let all = named(headers);
        for (name, place) in &self.0 {
            let own = all.iter().find(|(it, _)| it == name);
            let Some((_, Some(header))) = own else {
                continue;
            };
            let place_of = |name| self.0.iter().find(|(it, _)| *it == name).map(|it| it.1);
            // Of two that are written, the later one is to blame.
            let clashes = all.iter().find(|(other, value)| {
                let earlier = place_of(*other).is_none_or(|at| at.start < place.start);
                other != name && *value == Some(header) && earlier
            });
            if let Some((other, _)) = clashes {
                problems.report(
                    *place,
                    format!("`{name}` and `{other}` would be read from the same header"),
                    format!("`{other}` is read from {header}: name another one, or write `off`"),
                );
            }
        }
    }

    fn test(
        &self,
        at: &At<Text>,
        headers: &SubjectHeaders,
        problems: &mut Problems<'_>,
    ) -> Option<String> {
        let header = header_name(&at.value.0, at.place, problems)?;
        if let Some((other, _)) = named(headers).iter().find(|(_, it)| *it == Some(&header)) {
            problems.report(
                at.place,
                format!("`{header}` marks test traffic and names the `{other}`"),
                "name another header",
            );
        }
        Some(header)
    }
}

fn named(headers: &SubjectHeaders) -> [(&'static str, Option<&String>); 4] {
    [
        ("api_key", headers.api_key.as_ref()),
        ("user", headers.user.as_ref()),
        ("service_account", headers.service_account.as_ref()),
        ("tenant", headers.tenant.as_ref()),
    ]
}

/// The name of a header, in small letters.
fn header_name(given: &str, place: Place, problems: &mut Problems<'_>) -> Option<String> {
    let name = given.to_ascii_lowercase();
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if name.is_empty() || name.len() > MAX_HEADER || !name.bytes().all(is_token) {
        problems.report(
            place,
            format!("`{}` cannot be the name of a header", Short(given)),
            format!("use letters, digits and `-`, {MAX_HEADER} characters at most"),
        );
        return None;
    }
    if name.ends_with("authorization") {
        problems.report(
            place,
            format!("`{given}` does not say who asks"),
            "the same credentials can be spelled in many ways there: let the proxy or the application put the key or the user into a header of its own",
        );
        return None;
    }
    if TAKEN.contains(&name.as_str()) {
        problems.report(
            place,
            format!("`{given}` means something else"),
            "name a header that means nothing else, such as x-api-key",
        );
        return None;
    }
    Some(name)
}
