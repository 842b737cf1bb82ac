//! The doors of a server: the address, the TLS and the credentials of each. A door is a protocol on an
//! address.
//!
//! The data is validated, so that code that listens need not check it again. Nothing here listens, and
//! no file is read.

mod gateway;
mod names;
mod raw;
mod tokens;
mod validate;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use crate::config::{Config, NO_UPSTREAM, NO_UPSTREAM_HELP};
use crate::store::Password;
use tollgate_core::Span;
use tollgate_rules::document::words;

pub use gateway::{AccessLog, AccessLogFormat, ExemptPaths, Gateway};
pub(crate) use raw::RawServer;
pub use tokens::{DataToken, Role, Token, TokenScope, TokenScopes};
pub(crate) use validate::server;

/// The default address of the HTTP door.
pub(crate) const HTTP: SocketAddr =
    SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 8080);

pub(crate) const OPEN_ADMIN: &str = "anyone could enter the admin door";
pub(crate) const OPEN_ADMIN_HELP: &str =
    "add `tokens`, or listen on a loopback address such as 127.0.0.1:8082";

/// The doors of a server: the protocols it serves.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Server {
    /// The HTTP API and forward-auth (default `127.0.0.1:8080`).
    pub http: Listen,
    /// Envoy's rate limit service; `None` if it is off.
    pub grpc: Option<Grpc>,
    /// The Redis protocol; `None` if it is off.
    pub resp: Option<Resp>,
    /// The admin API; `None` if it is off.
    pub admin: Option<Admin>,
    /// The gateway; `None` if it is off.
    pub gateway: Option<Gateway>,
    /// The tokens that open the data doors. If the list is empty, clients of data doors need no token.
    pub tokens: Vec<DataToken>,
    /// The default TLS files. They are already filled in for doors that have no `tls` field.
    pub tls: Option<TlsFiles>,
    /// The most open connections of one client address at a door (default
    /// [`MAX_CONNECTIONS_PER_CLIENT`]). An IPv6 network of 64 bits counts as one address.
    pub max_connections_per_client: usize,
    /// How long the server goes on after it was told to stop (default [`DRAIN`]). Meanwhile it reports
    /// that it is not ready.
    pub drain: Span,
}

/// The default of [`Server::drain`].
pub const DRAIN: Span = Span::from_secs(5);

/// The default of [`Server::max_connections_per_client`].
pub const MAX_CONNECTIONS_PER_CLIENT: usize = 2000;

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    /// Address and port; port 0 takes a free one.
    pub address: SocketAddr,
    /// How connections are encrypted; `None` if they are not.
    pub tls: Option<TlsFiles>,
    /// The names under which clients reach the door, in lower case, without ports. Loopback names and
    /// the address itself need not be listed. Only the admin door checks them.
    pub hosts: Vec<String>,
    /// The origins of web pages that may send requests, in lower case, such as
    /// `https://app.example.com`. Only the HTTP door and the admin door check them.
    pub origins: Vec<String>,
    /// Whether clients need one of the [tokens of the server](Server::tokens), if it has any (default
    /// true). Only data doors check it.
    pub needs_token: bool,
}

/// The files that TLS needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate chain, in PEM.
    pub cert: PathBuf,
    /// The private key of the certificate, in PEM.
    pub key: PathBuf,
    /// The certificate authority for clients, in PEM. If given, clients must present a certificate.
    pub client_ca: Option<PathBuf>,
}

/// The door for Envoy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grpc {
    /// Where the door listens.
    pub listen: Listen,
    /// The answer for a domain that no rule matches (default: allow).
    pub unknown_domain: UnknownDomain,
}

words! {
    /// The answer for a domain that no rule matches.
    pub enum UnknownDomain is "an answer to unknown domains" {
        /// Allow the request.
        Allow = "allow",
        /// Deny the request.
        Deny = "deny",
    }
}

/// The door for Redis clients.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Resp {
    /// Where the door listens.
    pub listen: Listen,
    /// The password that clients must give; `None` if they need none.
    pub password: Option<Password>,
    /// The answer of `CL.THROTTLE` when the store fails (default: an error).
    pub on_store_failure: ThrottleFailure,
}

words! {
    /// The answer of `CL.THROTTLE` when the store fails. This command belongs to no rule.
    pub enum ThrottleFailure is "an answer while the store is down" {
        /// An error: the client decides.
        Error = "error",
        /// Allowed, with the whole limit left.
        FailOpen = "fail-open",
        /// Denied, with a retry after 5 seconds.
        FailClosed = "fail-closed",
    }
}

/// The door for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Admin {
    /// Where the door listens.
    pub listen: Listen,
    /// The tokens that open the door. The list may be empty only on a loopback address. If it is empty,
    /// every local caller may do everything.
    pub tokens: Vec<Token>,
}

impl Listen {
    /// Makes an address to listen on, encrypted if `tls` is given.
    #[must_use]
    pub fn new(address: SocketAddr, tls: Option<TlsFiles>) -> Listen {
        Listen {
            address,
            tls,
            hosts: Vec::new(),
            origins: Vec::new(),
            needs_token: true,
        }
    }

    /// Whether only this machine can connect.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        self.address.ip().to_canonical().is_loopback()
    }
}

impl Grpc {
    /// Makes a door for Envoy, with defaults.
    #[must_use]
    pub fn new(listen: Listen) -> Grpc {
        Grpc {
            listen,
            unknown_domain: UnknownDomain::Allow,
        }
    }
}

impl Resp {
    /// Makes a door for Redis clients, without a password.
    #[must_use]
    pub fn new(listen: Listen) -> Resp {
        Resp {
            listen,
            password: None,
            on_store_failure: ThrottleFailure::Error,
        }
    }
}

impl Admin {
    /// Makes a door for operators, without tokens. Such a door is valid only on a loopback address.
    #[must_use]
    pub fn new(listen: Listen) -> Admin {
        Admin {
            listen,
            tokens: Vec::new(),
        }
    }

    /// Whether the door is open to other machines without a token.
    pub(crate) fn is_open(&self) -> bool {
        self.tokens.is_empty() && !self.listen.is_loopback()
    }
}

impl Server {
    /// Makes a server with only the HTTP door, with defaults.
    pub(crate) fn new() -> Server {
        Server {
            http: Listen::new(HTTP, None),
            grpc: None,
            resp: None,
            admin: None,
            gateway: None,
            tokens: Vec::new(),
            tls: None,
            max_connections_per_client: MAX_CONNECTIONS_PER_CLIENT,
            drain: DRAIN,
        }
    }

    /// Returns the doors that are on, by their names in the config.
    #[must_use]
    pub fn doors(&self) -> Vec<(&'static str, &Listen)> {
        let mut doors = vec![("http", &self.http)];
        doors.extend(self.grpc.iter().map(|door| ("grpc", &door.listen)));
        doors.extend(self.resp.iter().map(|door| ("resp", &door.listen)));
        doors.extend(self.admin.iter().map(|door| ("admin", &door.listen)));
        doors.extend(self.gateway.iter().map(|door| ("gateway", &door.listen)));
        doors
    }

    /// Returns the tokens that open a data door that listens as `listen` says. If there are none,
    /// clients need no token.
    #[must_use]
    pub fn tokens_of(&self, listen: &Listen) -> &[DataToken] {
        match listen.needs_token {
            true => &self.tokens,
            false => &[],
        }
    }

    /// Returns the data doors that every machine that reaches them may use, by their names in the
    /// config: they listen on an address that is not loopback, and ask for neither a token nor a password
    /// nor a client certificate. The gateway is not a data door: its clients are those of the upstreams.
    #[must_use]
    pub fn open_doors(&self) -> Vec<(&'static str, &Listen)> {
        let has_password = |door: &str| {
            let resp = self.resp.as_ref().filter(|_| door == "resp");
            resp.is_some_and(|resp| resp.password.is_some())
        };
        let is_open = |(door, listen): &(&str, &Listen)| {
            let client_ca = listen.tls.as_ref().and_then(|tls| tls.client_ca.as_ref());
            !matches!(*door, "admin" | "gateway")
                && !listen.is_loopback()
                && self.tokens_of(listen).is_empty()
                && client_ca.is_none()
                && !has_password(door)
        };
        self.doors().into_iter().filter(is_open).collect()
    }
}

impl Config {
    /// Checks that the doors fit together. A config that was read from a file is valid. Call this after
    /// you change the doors of a config.
    ///
    /// # Errors
    /// If two doors would listen on the same address, if the admin door is open to other machines
    /// without a token, or if the gateway has no upstream. The error has the problem and the remedy.
    ///
    /// ```
    /// # use tollgate_config::{Admin, Listen, parse};
    /// let mut config = parse("rules.yaml", "version: 1\nrules: []\n", &|_| None)?;
    /// assert!(config.check_doors().is_ok());
    /// let everywhere = Listen::new("0.0.0.0:8082".parse()?, None);
    /// config.server.admin = Some(Admin::new(everywhere));
    /// assert!(config.check_doors().unwrap_err().contains("tokens"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn check_doors(&self) -> Result<(), String> {
        let doors = self.server.doors();
        for (index, (name, listen)) in doors.iter().enumerate() {
            let taken = |(_, other): &&(&str, &Listen)| overlap(other.address, listen.address);
            if let Some((other, _)) = doors.iter().take(index).find(taken) {
                let address = listen.address;
                return Err(format!(
                    "`{name}` cannot listen on {address}: `{other}` listens there; choose another port"
                ));
            }
        }
        if self.server.gateway.is_some() && self.upstreams.is_empty() {
            return Err(format!("{NO_UPSTREAM}; {NO_UPSTREAM_HELP}"));
        }
        match &self.server.admin {
            Some(admin) if admin.is_open() => Err(format!("{OPEN_ADMIN}; {OPEN_ADMIN_HELP}")),
            _ => Ok(()),
        }
    }
}

/// Whether a connection to `a` could also be a connection to `b`. Port 0 takes a free port, so it never
/// overlaps.
fn overlap(a: SocketAddr, b: SocketAddr) -> bool {
    let covers = |wide: IpAddr, narrow: IpAddr| match wide {
        IpAddr::V4(wide) => wide.is_unspecified() && narrow.is_ipv4(),
        // Linux accepts IPv4 connections on `::` too, by default.
        IpAddr::V6(wide) => wide.is_unspecified(),
    };
    let (port, other) = (a.port(), b.port());
    let (a, b) = (a.ip().to_canonical(), b.ip().to_canonical());
    port != 0 && port == other && (a == b || covers(a, b) || covers(b, a))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_overlap_if_one_covers_the_other() {
        let table = [
            ("127.0.0.1:80", "127.0.0.1:80", true),
            ("127.0.0.1:80", "127.0.0.1:81", false),
            ("127.0.0.1:80", "127.0.0.2:80", false),
            ("127.0.0.1:0", "127.0.0.1:0", false),
            ("0.0.0.0:80", "127.0.0.1:80", true),
            ("0.0.0.0:80", "[::1]:80", false),
            ("[::]:80", "127.0.0.1:80", true),
            ("[::]:80", "[::1]:80", true),
            ("[::ffff:127.0.0.1]:80", "127.0.0.1:80", true),
        ];
        for (a, b, expected) in table {
            let (a, b) = (a.parse().unwrap(), b.parse().unwrap());
            assert_eq!(overlap(a, b), expected, "{a} {b}");
            assert_eq!(overlap(b, a), expected, "{b} {a}");
        }
    }
}
