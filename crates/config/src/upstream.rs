//! Upstreams: the servers that the gateway passes requests to. Plain data, validated. Nothing here
//! connects.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use tollgate_core::Span;
use tollgate_rules::document::{
    At, BadValue, Duration, DurationOrOff, Field, List, Named, Place, Problems, Short, Text, Whole,
    section, words,
};
use tollgate_rules::{ID_HELP, is_id};

use crate::fields::{Env, duration_in, expand, number_in, text};
use crate::shedding::{Adaptive, GivenAdaptive};
use crate::store::{Parts, UrlError, address, host_port};

/// The upstreams of a config, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Upstreams(Vec<(Arc<str>, Arc<Upstream>)>);

/// Servers that do the same work. The gateway chooses one of them for each request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Upstream {
    /// The servers; at least one.
    pub servers: Vec<UpstreamServer>,
    /// The protocol to speak with them.
    pub protocol: UpstreamProtocol,
    /// The `Host` that the servers see.
    pub host: UpstreamHost,
    /// The certificate authority of the servers, in PEM; `None` for those of the system.
    pub ca: Option<PathBuf>,
    /// The name that the servers' certificates must have; `None` for the host of the URL.
    pub server_name: Option<String>,
    /// How long a connection may take to open, TLS included (default 1 s).
    pub connect_timeout: Span,
    /// The longest silence of a server: until its answer begins, and between two parts of it (default 30 s).
    pub read_timeout: Span,
    /// How long a request may take in all; `None` if there is no such limit.
    pub timeout: Option<Span>,
    /// How many more servers are tried where that is safe (default 1).
    pub retries: u32,
    /// The most connections to one server (default 1000).
    pub max_connections: usize,
    /// How servers are asked whether they work; `None` if they are not asked.
    pub health: Option<HealthCheck>,
    /// The limit on requests in flight that follows the latency; `None` if there is no such limit.
    pub adaptive: Option<Adaptive>,
}

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct UpstreamServer {
    /// Whether the connection is encrypted: `https`.
    pub tls: bool,
    /// A name or an address. An IPv6 address has no brackets here.
    pub host: String,
    /// The port (default 80, or 443 with TLS).
    pub port: u16,
}

/// Shows the address as a URL.
impl fmt::Display for UpstreamServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}", host_port(&self.host, self.port))
    }
}

words! {
    /// The protocol to speak with an upstream.
    pub enum UpstreamProtocol is "a protocol of an upstream" {
        /// HTTP/2 if TLS agrees on it, else HTTP/1.1.
        Auto = "auto",
        /// HTTP/1.1.
        Http1 = "http1",
        /// HTTP/2, also without TLS.
        Http2 = "http2",
    }
}

words! {
    /// The `Host` that an upstream sees.
    pub enum UpstreamHost is "a host that the upstream sees" {
        /// The host that the client asked for.
        Client = "client",
        /// The host of the server's URL.
        Server = "server",
    }
}

/// How servers are asked whether they work.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HealthCheck {
    /// The path to ask for. A server works if it answers with a status of 2xx or 3xx.
    pub path: String,
    /// The time between two checks of a server (default 5 s).
    pub every: Span,
    /// How long a check may take (default 1 s).
    pub timeout: Span,
}

impl Upstream {
    /// Makes an upstream of one server, with defaults.
    ///
    /// # Errors
    /// If `url` is not the URL of a server. The error has the problem and the remedy.
    ///
    /// ```
    /// let upstream = tollgate_config::Upstream::of_url("http://127.0.0.1:9000").unwrap();
    /// assert_eq!(upstream.servers[0].port, 9000);
    /// let wrong = tollgate_config::Upstream::of_url("127.0.0.1:9000").unwrap_err();
    /// assert!(wrong.contains("http://"), "{wrong}");
    /// ```
    pub fn of_url(url: &str) -> Result<Upstream, String> {
        match server(url) {
            Ok(server) => Ok(Upstream::of_servers(vec![server])),
            Err(bad) => Err(format!("{}; {}", bad.message, bad.help)),
        }
    }

    fn of_servers(servers: Vec<UpstreamServer>) -> Upstream {
        Upstream {
            servers,
            protocol: UpstreamProtocol::Auto,
            host: UpstreamHost::Client,
            ca: None,
            server_name: None,
            connect_timeout: Span::SECOND,
            read_timeout: Span::from_secs(30),
            timeout: None,
            retries: 1,
            max_connections: 1000,
            health: None,
            adaptive: None,
        }
    }
}

impl Upstreams {
    /// Makes one upstream with this name.
    #[must_use]
    pub fn one(name: &str, upstream: Upstream) -> Upstreams {
        Upstreams(vec![(Arc::from(name), Arc::new(upstream))])
    }

    /// Returns the upstream with this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<Upstream>> {
        let mut all = self.0.iter();
        all.find_map(|(known, upstream)| (**known == *name).then_some(upstream))
    }

    /// Returns all upstreams, in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<Upstream>)> {
        self.0.iter().map(|(name, upstream)| (name, upstream))
    }

    /// Whether there are no upstreams.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of upstreams.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

section! {
    /// Servers that do the same work. The gateway passes each request to the server with the fewest open requests.
    pub(crate) struct RawUpstream is "an upstream" {
        /// The URLs of the servers, without paths, such as http://127.0.0.1:9000. `${VAR}` reads the environment.
        servers (required): List<Text> = "servers",
        /// The protocol: auto (default: HTTP/2 if TLS agrees on it, else HTTP/1.1), http1, or http2 (also without TLS).
        protocol: UpstreamProtocol = "protocol",
        /// The Host that the servers see: that of the client (default), or that of the server's URL.
        host: UpstreamHost = "host",
        /// The certificate authority of the servers, a PEM file (default: those of the system).
        ca: Text = "ca",
        /// The name that the servers' certificates must have (default: the host of the URL).
        server_name: Text = "server_name",
        /// How long a connection may take to open, TLS included, 10ms to 1m (default 1s).
        connect_timeout: Duration = "connect_timeout",
        /// The longest silence of a server, until its answer begins and between two parts of it, 10ms to 1h (default 30s).
        read_timeout: Duration = "read_timeout",
        /// How long a request may take in all, 10ms to 24h, or off (default off). Upgraded connections have no such limit.
        timeout: DurationOrOff = "timeout",
        /// How many more servers are tried where that is safe, 0 to 5 (default 1).
        retries: Whole = "retries",
        /// The most connections to one server, 1 to 10000 (default 1000). Over HTTP/2: the most open requests.
        max_connections: Whole = "max_connections",
        /// How servers are asked whether they work (default: they are not asked).
        health: RawHealth = "health",
        /// A limit on requests in flight that follows the latency: true, or its fields (default false).
        adaptive: GivenAdaptive = "adaptive",
    }
}

section! {
    /// How servers are asked whether they work. A server is out after three failed checks, and back after two good ones.
    pub(crate) struct RawHealth is "`health`" {
        /// The path to ask for, such as /healthz. A server works if it answers with a status of 2xx or 3xx.
        path (required): Text = "path",
        /// The time between two checks of a server, 100ms to 1h (default 5s).
        every: Duration = "every",
        /// How long a check may take, 10ms to 1m (default 1s).
        timeout: Duration = "timeout",
    }
}

const MAX_UPSTREAMS: usize = 100;
const MAX_SERVERS: usize = 100;
const URL_HELP: &str = "write the URL of a server, such as http://127.0.0.1:9000";

pub(crate) fn upstreams(
    field: &Field<Named<RawUpstream>>,
    env: Env<'_>,
    problems: &mut Problems<'_>,
) -> Upstreams {
    let given = field.value().map_or(&[][..], |named| &named.0);
    if let Some((name, _)) = given.get(MAX_UPSTREAMS) {
        let message = format!("there are more than {MAX_UPSTREAMS} upstreams");
        problems.report(name.place, message, "list fewer");
    }
    let mut upstreams = Vec::new();
    for (name, at) in given.iter().take(MAX_UPSTREAMS) {
        if !is_id(&name.value) {
            let message = format!("`{}` cannot be the name of an upstream", Short(&name.value));
            problems.report(name.place, message, ID_HELP);
        }
        let upstream = upstream(name, &at.value, env, problems);
        upstreams.push((Arc::from(name.value.as_str()), Arc::new(upstream)));
    }
    Upstreams(upstreams)
}

fn upstream(
    name: &At<String>,
    raw: &RawUpstream,
    env: Env<'_>,
    problems: &mut Problems<'_>,
) -> Upstream {
    let servers = servers(name.place, &raw.servers, env, problems);
    let mut upstream = Upstream::of_servers(servers);
    if let Some(protocol) = raw.protocol.value() {
        upstream.protocol = *protocol;
    }
    if let Some(host) = raw.host.value() {
        upstream.host = *host;
    }
    upstream.ca = text("ca", &raw.ca, env, problems).map(PathBuf::from);
    upstream.server_name = text("server_name", &raw.server_name, env, problems);
    if !upstream.servers.is_empty() && !upstream.servers.iter().any(|server| server.tls) {
        for (name, key) in [("ca", raw.ca.key()), ("server_name", raw.server_name.key())] {
            if let Some(key) = key {
                let message = format!("`{name}` has no effect without TLS");
                problems.report(key, message, "write https:// URLs, or remove this");
            }
        }
    }
    let (connect, read) = (&mut upstream.connect_timeout, &mut upstream.read_timeout);
    duration_in(&raw.connect_timeout, connect, 10..=60_000, problems);
    duration_in(&raw.read_timeout, read, 10..=3_600_000, problems);
    if let Some(at) = raw.timeout.get() {
        upstream.timeout = at.value.0;
        let (least, most) = (Span::from_millis(10), Span::DAY);
        if at.value.0.is_some_and(|it| !(least..=most).contains(&it)) {
            let message = format!("`timeout` is not between {least} and {most}");
            problems.report(at.place, message, "write a duration such as 30s, or `off`");
        }
    }
    number_in(&raw.retries, &mut upstream.retries, 0..=5, problems);
    let most = &mut upstream.max_connections;
    number_in(&raw.max_connections, most, 1..=10_000, problems);
    upstream.health = health(&raw.health, problems);
    upstream.adaptive = raw.adaptive.value().and_then(|it| it.0);
    upstream
}

fn servers(
    name: Place,
    field: &Field<List<Text>>,
    env: Env<'_>,
    problems: &mut Problems<'_>,
) -> Vec<UpstreamServer> {
    if field.is_absent() {
        problems.report(name, "this upstream has no `servers`", URL_HELP);
    }
    let Some(given) = field.get() else {
        return Vec::new();
    };
    if given.value.0.is_empty() {
        problems.report(given.place, "this upstream has no servers", URL_HELP);
    }
    if let Some(at) = given.value.0.get(MAX_SERVERS) {
        let message = format!("there are more than {MAX_SERVERS} servers");
        problems.report(at.place, message, "list fewer");
    }
    let mut servers: Vec<UpstreamServer> = Vec::new();
    for at in given.value.0.iter().take(MAX_SERVERS) {
        let Some(text) = expand(at, env, problems) else {
            continue;
        };
        if let Some(server) = problems.accept(at.place, server(&text)) {
            if servers.contains(&server) {
                problems.report(at.place, "this server is listed twice", "list it once");
            }
            servers.push(server);
        }
    }
    servers
}

/// Parses the URL of a server. Errors never quote the URL, because it may hold a password.
fn server(text: &str) -> Result<UpstreamServer, BadValue> {
    let wrong = |error: UrlError| BadValue::new(error.to_string(), URL_HELP);
    let parts = Parts::of(text).map_err(wrong)?;
    let tls = match parts.scheme.as_str() {
        "http" => false,
        "https" => true,
        scheme => {
            let message = format!("the gateway does not speak `{scheme}`");
            return Err(BadValue::new(message, "use http://, or https:// for TLS"));
        }
    };
    if parts.has_login() {
        let message = "the URL has a user or a password";
        return Err(BadValue::new(message, "write only the host after `//`"));
    }
    if !parts.path.is_empty() {
        let help = "end the URL after the port: the path of each request is passed on as it is";
        return Err(BadValue::new("the URL of a server has a path", help));
    }
    let (host, port) = address(parts.hosts, if tls { 443 } else { 80 }).map_err(wrong)?;
    Ok(UpstreamServer { tls, host, port })
}

fn health(field: &Field<RawHealth>, problems: &mut Problems<'_>) -> Option<HealthCheck> {
    let Field::Given { key, at } = field else {
        return None;
    };
    let raw = &at.value;
    if raw.path.is_absent() {
        let help = "add the path to ask for, such as `path: /healthz`";
        problems.report(*key, "this `health` has no `path`", help);
    }
    let (mut every, mut timeout) = (Span::from_secs(5), Span::SECOND);
    duration_in(&raw.every, &mut every, 100..=3_600_000, problems);
    duration_in(&raw.timeout, &mut timeout, 10..=60_000, problems);
    let at = raw.path.get()?;
    let path = at.value.0.clone();
    if !path.starts_with('/') || path.contains('#') || !path.bytes().all(|it| it.is_ascii_graphic())
    {
        let message = format!("`{}` is not a path", Short(&path));
        problems.report(at.place, message, "write a path such as /healthz, in ASCII");
    }
    Some(HealthCheck {
        path,
        every,
        timeout,
    })
}
