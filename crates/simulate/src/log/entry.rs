//! A line of a log as a request: its time, and the attributes that forward-auth would give it.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};

use smallvec::SmallVec;
use tollgate::Attributes;
use tollgate_config::{Config, normal_path};

use super::json::{self, JsonFields};
use super::time::{self, Stamp};
use super::tokens::{self, Tokens};

/// The formats of access logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The combined format of nginx and Apache, and the common format. Fields may follow.
    Combined,
    /// A JSON object on each line.
    Json,
    /// Envoy's default format.
    Envoy,
    /// The logs of an AWS application load balancer.
    Alb,
}

impl Format {
    /// All formats.
    pub const ALL: [Format; 4] = [Format::Combined, Format::Json, Format::Envoy, Format::Alb];

    /// The format's name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Format::Combined => "combined",
            Format::Json => "json",
            Format::Envoy => "envoy",
            Format::Alb => "alb",
        }
    }

    /// Returns the format with a name.
    #[must_use]
    pub fn named(name: &str) -> Option<Format> {
        Format::ALL.into_iter().find(|it| it.name() == name)
    }

    /// Guesses the format from the first lines: the format of most lines that have a time in it, or else the one that the
    /// first line looks like.
    pub(super) fn of_lines(lines: &[&str]) -> Format {
        let none = Fields {
            format: None,
            mapped: Vec::new(),
            fixed: Vec::new(),
        };
        let reads = |format: Format| {
            let reader = LineReader::new(format, &none).ok();
            let is_good = |line: &&&str| {
                let read = reader.as_ref().and_then(|reader| reader.read(line).ok());
                read.is_some_and(|entry| entry.stamp.is_some()) && Format::of(line) == format
            };
            lines.iter().filter(is_good).count()
        };
        let best = Format::ALL.into_iter().map(|it| (reads(it), it));
        match best.max_by_key(|(count, _)| *count) {
            Some((1.., format)) => format,
            _ => lines.first().map_or(Format::Combined, |it| Format::of(it)),
        }
    }

    /// Guesses the format from a line.
    #[must_use]
    pub fn of(line: &str) -> Format {
        let is_alb = || {
            let mut words = line.split(' ');
            let kinds = ["http", "https", "h2", "grpcs", "ws", "wss"];
            let is_kind = words.next().is_some_and(|kind| kinds.contains(&kind));
            is_kind && words.next().is_some_and(|time| time.contains('T'))
        };
        match line.trim_start().as_bytes().first() {
            Some(b'{') => Format::Json,
            Some(b'[') => Format::Envoy,
            _ if is_alb() => Format::Alb,
            _ => Format::Combined,
        }
    }

    /// The names of the fields, in their order. JSON has names of its own.
    #[must_use]
    pub const fn fields(self) -> &'static [&'static str] {
        match self {
            Format::Combined => &[
                "ip",
                "ident",
                "user",
                "time",
                "request",
                "status",
                "bytes",
                "referer",
                "user_agent",
                "field10",
                "field11",
                "field12",
                "field13",
                "field14",
                "field15",
                "field16",
            ],
            Format::Json => &[],
            Format::Envoy => &[
                "time",
                "request",
                "status",
                "flags",
                "bytes_received",
                "bytes_sent",
                "duration",
                "upstream_time",
                "forwarded_for",
                "user_agent",
                "request_id",
                "authority",
                "upstream_host",
                "field14",
                "field15",
                "field16",
            ],
            Format::Alb => &[
                "type",
                "time",
                "elb",
                "client",
                "target",
                "request_processing_time",
                "target_processing_time",
                "response_processing_time",
                "status",
                "target_status",
                "received_bytes",
                "sent_bytes",
                "request",
                "user_agent",
                "ssl_cipher",
                "ssl_protocol",
                "target_group",
                "trace_id",
                "domain_name",
                "certificate",
                "rule_priority",
                "request_creation_time",
                "actions",
            ],
        }
    }

    /// Returns the place of the field `name`.
    fn place(self, name: &str) -> Option<usize> {
        self.fields().iter().position(|field| *field == name)
    }
}

/// How the fields of a line become attributes.
#[derive(Clone, Debug)]
pub struct Fields {
    /// The format; guessed from the first lines if it is not given.
    pub format: Option<Format>,
    /// Attributes, and the fields that they come from.
    pub mapped: Vec<(String, String)>,
    /// Attributes that all requests have.
    pub fixed: Vec<(String, String)>,
}

/// Reads the lines of one format.
#[derive(Debug)]
pub(super) struct LineReader {
    format: Format,
    /// Attributes, and the places of their fields.
    mapped: Vec<(String, usize)>,
    fixed: Vec<(String, String)>,
    json: JsonFields,
}

/// A line that was read. Absent texts are empty.
#[derive(Debug, Default)]
pub(super) struct Entry<'l> {
    pub(super) stamp: Option<Stamp>,
    ip: Cow<'l, str>,
    user: Cow<'l, str>,
    method: Cow<'l, str>,
    target: Cow<'l, str>,
    host: Cow<'l, str>,
    scheme: Cow<'l, str>,
    tenant: Cow<'l, str>,
    plan: Cow<'l, str>,
    mapped: SmallVec<[Cow<'l, str>; 4]>,
}

impl LineReader {
    /// Prepares to read lines of `format`.
    ///
    /// # Errors
    /// If the format has no field of a name.
    pub(super) fn new(format: Format, fields: &Fields) -> Result<LineReader, String> {
        let names: Vec<&str> = fields
            .mapped
            .iter()
            .map(|(_, field)| field.as_str())
            .collect();
        let mut mapped = Vec::new();
        for (place, (attribute, field)) in fields.mapped.iter().enumerate() {
            let place = match format {
                Format::Json => place,
                _ => format.place(field).ok_or_else(|| {
                    format!(
                        "the {} format has no field {field:?}: its fields are {}",
                        format.name(),
                        format.fields().join(", ")
                    )
                })?,
            };
            mapped.push((attribute.clone(), place));
        }
        Ok(LineReader {
            format,
            mapped,
            fixed: fields.fixed.clone(),
            json: JsonFields::new(&names),
        })
    }

    pub(super) fn format(&self) -> Format {
        self.format
    }

    /// Reads the time of a line, and nothing else if that is possible.
    pub(super) fn stamp(&self, line: &str) -> Result<Stamp, &'static str> {
        let text = match self.format {
            Format::Combined => line
                .split_once('[')
                .and_then(|(_, rest)| rest.split_once(']')),
            Format::Envoy => line.strip_prefix('[').and_then(|rest| rest.split_once(']')),
            Format::Alb | Format::Json => {
                return self.read(line)?.stamp.ok_or("the line has no time");
            }
        };
        let (text, _) = text.ok_or("the line has no time in brackets")?;
        time::any(text).ok_or("the time cannot be read")
    }

    /// Reads a line.
    pub(super) fn read<'l>(&self, line: &'l str) -> Result<Entry<'l>, &'static str> {
        if self.format == Format::Json {
            return self.json.read(line).map(|values| self.of_json(values));
        }
        let tokens = tokens::split(line).ok_or("a quote or a bracket is not closed")?;
        let mut entry = match self.format {
            Format::Combined => combined(&tokens),
            Format::Envoy => envoy(&tokens),
            Format::Alb | Format::Json => alb(&tokens),
        }?;
        let mapped = self.mapped.iter();
        let mapped = mapped.map(|(_, place)| present(tokens.get(*place)).into());
        entry.mapped = mapped.collect();
        Ok(entry)
    }

    fn of_json<'l>(&self, values: json::Values<'l>) -> Entry<'l> {
        let json::Values {
            stamp,
            usual,
            mapped,
        } = values;
        let [
            _,
            ip,
            user,
            method,
            target,
            host,
            scheme,
            request,
            tenant,
            plan,
        ] = usual;
        let (method, target) = match request.is_empty() {
            true => (method, target),
            false => {
                let (method, target) = request_line(&request);
                (method.to_owned().into(), target.to_owned().into())
            }
        };
        Entry {
            stamp,
            ip: address(ip),
            user,
            method,
            target,
            host,
            scheme,
            tenant,
            plan,
            mapped,
        }
    }

    /// Calls `each` with the attributes of an entry: those that forward-auth would find, then the mapped ones
    /// and the fixed ones.
    pub(super) fn with_attributes<T>(
        &self,
        entry: &Entry<'_>,
        config: &Config,
        each: impl FnOnce(&Attributes<'_>) -> T,
    ) -> T {
        let target = entry.target.split(['?', '#']).next().unwrap_or_default();
        let (scheme, rest) = match target.split_once("://") {
            Some((scheme, rest)) if !target.starts_with('/') => (Some(scheme), rest),
            _ => (None, target),
        };
        let (authority, path) = match scheme {
            Some(_) => rest.split_at(rest.find('/').unwrap_or(rest.len())),
            None => ("", rest),
        };
        let host = if authority.is_empty() {
            &entry.host
        } else {
            authority
        };
        let host = host.rsplit_once(':').map_or(host, |(name, port)| {
            let is_port = port.bytes().all(|byte| byte.is_ascii_digit());
            if is_port { name } else { host }
        });
        let host: Cow<'_, str> = match host.bytes().any(|byte| byte.is_ascii_uppercase()) {
            true => host.to_ascii_lowercase().into(),
            false => host.into(),
        };
        let host = Some(&*host).filter(|host| !host.is_empty());
        let method = &*entry.method;
        let normal = match method.is_empty() {
            true => None,
            false => normal_path(path.as_bytes()),
        };
        let action = match config.routes.is_empty() || method.is_empty() {
            true => None,
            false => config.routes.action(method, host, path.as_bytes()),
        };
        let scheme = scheme.or(Some(&*entry.scheme)).filter(|it| !it.is_empty());
        let mut attributes = Attributes::new();
        let described = [
            ("method", Some(method).filter(|it| !it.is_empty())),
            ("path", normal.as_deref()),
            ("host", host),
            ("scheme", scheme),
            ("action", action),
            ("ip", Some(&*entry.ip).filter(|it| !it.is_empty())),
            ("user", Some(&*entry.user).filter(|it| !it.is_empty())),
            ("tenant", Some(&*entry.tenant).filter(|it| !it.is_empty())),
            ("plan", Some(&*entry.plan).filter(|it| !it.is_empty())),
        ];
        for (name, value) in described {
            if let Some(value) = value {
                attributes.push(name, value);
            }
        }
        for ((name, _), value) in self.mapped.iter().zip(&entry.mapped) {
            if !value.is_empty() {
                attributes.push(name, value);
            }
        }
        for (name, value) in &self.fixed {
            attributes.push(name, value);
        }
        let subject = subject(&attributes, config);
        let mut attributes = attributes;
        if let Some((kind, subject)) = &subject {
            attributes.push("subject_type", kind);
            attributes.push("subject", subject);
        }
        let internal = attributes.get("ip").and_then(|ip| ip.parse().ok());
        if internal.is_some_and(|ip: IpAddr| config.subjects.is_internal(ip)) {
            attributes.push("traffic", "internal");
        }
        each(&attributes)
    }
}

/// Returns the default subject of a request, as forward-auth makes it: the API key, the user, the service
/// account, or the network of the address.
fn subject(attributes: &Attributes<'_>, config: &Config) -> Option<(&'static str, String)> {
    for kind in ["api_key", "user", "service_account"] {
        if let Some(value) = attributes.get(kind) {
            return Some((kind, format!("{kind}:{value}")));
        }
    }
    let ip = attributes.get("ip")?;
    match ip.parse() {
        Ok(IpAddr::V6(ip)) => Some((
            "ip",
            format!("ip:{}", config.subjects.network_of(ip.into())),
        )),
        _ => Some(("ip", format!("ip:{ip}"))),
    }
}

/// Returns the address of the client: the last one of a list, because each proxy adds the address of its client at the
/// end, and without its port.
fn address(text: Cow<'_, str>) -> Cow<'_, str> {
    if !text.contains([',', ':']) {
        return text;
    }
    let last = text.rsplit(',').next().unwrap_or_default().trim();
    match last.parse::<SocketAddr>() {
        Ok(address) => address.ip().to_string().into(),
        Err(_) if last.len() < text.len() => last.to_owned().into(),
        Err(_) => text,
    }
}

/// Returns a field, empty if it is absent.
fn present<'l>(token: Option<&&'l str>) -> &'l str {
    token
        .copied()
        .filter(|text| *text != "-")
        .unwrap_or_default()
}

fn combined<'l>(tokens: &Tokens<'l>) -> Result<Entry<'l>, &'static str> {
    let [ip, _, user, time, request, ..] = tokens.as_slice() else {
        return Err("the line has fewer than 5 fields");
    };
    let (method, target) = request_line(request);
    Ok(Entry {
        stamp: Some(time::any(time).ok_or("the time cannot be read")?),
        ip: present(Some(ip)).into(),
        user: present(Some(user)).into(),
        method: method.into(),
        target: target.into(),
        ..Entry::default()
    })
}

fn envoy<'l>(tokens: &Tokens<'l>) -> Result<Entry<'l>, &'static str> {
    let [time, request, rest @ ..] = tokens.as_slice() else {
        return Err("the line has fewer than 2 fields");
    };
    let (method, target) = request_line(request);
    // Each proxy adds the address of its client at the end, so the last one is Envoy's own client.
    let forwarded = present(rest.get(6));
    let ip = forwarded.rsplit(',').next().unwrap_or_default().trim();
    Ok(Entry {
        stamp: Some(time::any(time).ok_or("the time cannot be read")?),
        ip: ip.into(),
        method: method.into(),
        target: target.into(),
        host: present(rest.get(9)).into(),
        ..Entry::default()
    })
}

fn alb<'l>(tokens: &Tokens<'l>) -> Result<Entry<'l>, &'static str> {
    let (Some(time), Some(client), Some(request)) = (tokens.get(1), tokens.get(3), tokens.get(12))
    else {
        return Err("the line has fewer than 13 fields");
    };
    // The time is that of the response. The request began earlier.
    let created = tokens.get(21).and_then(|text| time::any(text));
    let stamp = created.or_else(|| time::any(time));
    let (method, target) = request_line(request);
    let ip = client.rsplit_once(':').map_or(*client, |(ip, _)| ip);
    Ok(Entry {
        stamp: Some(stamp.ok_or("the time cannot be read")?),
        ip: ip.trim_matches(['[', ']']).into(),
        method: method.into(),
        target: target.into(),
        ..Entry::default()
    })
}

/// Splits `GET /path HTTP/1.1`. Returns empty texts for a request that is not one.
fn request_line(text: &str) -> (&str, &str) {
    let Some((method, rest)) = text.split_once(' ') else {
        return ("", "");
    };
    let is_method = |byte: u8| byte.is_ascii_uppercase() || byte == b'-' || byte == b'_';
    if method.is_empty() || method.len() > 32 || !method.bytes().all(is_method) {
        return ("", "");
    }
    let target = rest
        .rsplit_once(" HTTP/")
        .map_or(rest, |(target, _)| target);
    (method, target)
}
