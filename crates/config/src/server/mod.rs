//! The doors of a server: where each listens, how it is encrypted, who may enter.
//!
//! Plain data, validated: whoever listens need not check it again. Nothing here listens, and no
//! file is read.

mod overlap;
mod raw;
mod validate;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use crate::config::Config;
use crate::store::Password;
use tollgate_rules::document::words;

use overlap::overlap;
pub(crate) use raw::RawServer;
pub(crate) use validate::server;

/// Where the HTTP door listens unless a config says.
pub(crate) const HTTP: SocketAddr =
    SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 8080);

pub(crate) const OPEN_ADMIN: &str = "the admin door would be open to everybody";
pub(crate) const OPEN_ADMIN_HELP: &str =
    "add `tokens`, or listen on a loopback address such as 127.0.0.1:8082";

/// The doors of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Server {
    /// The HTTP API and forward-auth: on `127.0.0.1:8080` unless given.
    pub http: Listen,
    /// Envoy's rate limit service; `None` if it is not listened to.
    pub grpc: Option<Grpc>,
    /// The Redis protocol; `None` if it is not listened to.
    pub resp: Option<Resp>,
    /// The admin API; `None` if it is not listened to.
    pub admin: Option<Admin>,
    /// The TLS of doors that say nothing of their own; those above have it already.
    pub tls: Option<TlsFiles>,
}

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    /// Address and port; port 0 takes a free one.
    pub address: SocketAddr,
    /// How connections are encrypted; `None` if they are not.
    pub tls: Option<TlsFiles>,
}

/// The files that TLS needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate, with those that lead from it to an authority, in PEM.
    pub cert: PathBuf,
    /// Its private key, in PEM.
    pub key: PathBuf,
    /// Who signs clients' certificates, in PEM. If given, clients must have one.
    pub client_ca: Option<PathBuf>,
}

/// The door for Envoy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grpc {
    /// Where it listens.
    pub listen: Listen,
    /// What becomes of a request whose domain no rule knows: allowed unless given.
    pub unknown_domain: UnknownDomain,
}

words! {
    /// What becomes of a request whose domain no rule knows.
    pub enum UnknownDomain is "an answer to unknown domains" {
        /// It is allowed.
        Allow = "allow",
        /// It is refused.
        Deny = "deny",
    }
}

/// The door for Redis clients.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Resp {
    /// Where it listens.
    pub listen: Listen,
    /// What clients must know to enter; `None` if everybody may.
    pub password: Option<Password>,
    /// What `CL.THROTTLE` answers when the store does not: an error unless given.
    pub on_store_failure: ThrottleFailure,
}

words! {
    /// What a limit that no rule knows is answered when the store does not answer.
    pub enum ThrottleFailure is "an answer without the store" {
        /// An error: the client has to decide.
        Error = "error",
        /// Allowed, with the whole limit left.
        FailOpen = "fail-open",
        /// Limited, to be tried again in 5 seconds.
        FailClosed = "fail-closed",
    }
}

/// The door for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Admin {
    /// Where it listens.
    pub listen: Listen,
    /// Who may enter. None only on a loopback address: then everybody there may, and do everything.
    pub tokens: Vec<Token>,
}

/// Somebody who may enter the admin door.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Token {
    /// Who it is, for the audit trail.
    pub name: String,
    /// What they may do.
    pub role: Role,
    /// The SHA-256 hash of what they say to enter.
    pub sha256: [u8; 32],
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let token = &mut f.debug_struct("Token");
        token.field("name", &self.name).field("role", &self.role);
        token.finish_non_exhaustive()
    }
}

words! {
    /// What somebody may do at the admin door. Each may do what those before it may.
    pub enum Role is "a role" {
        /// Look.
        Read = "read",
        /// Also act on what is running: reset, refund, override for a while.
        Operate = "operate",
        /// Also change rules and everything else.
        Admin = "admin",
    }
}

impl Role {
    /// Whether who has this role may do what `other` may.
    #[must_use]
    pub fn includes(self, other: Role) -> bool {
        self as u8 >= other as u8
    }
}

impl Listen {
    /// Listens on `address`, encrypted if there is `tls`.
    #[must_use]
    pub fn new(address: SocketAddr, tls: Option<TlsFiles>) -> Listen {
        Listen { address, tls }
    }

    /// Whether only this machine can connect.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        self.address.ip().to_canonical().is_loopback()
    }
}

impl Grpc {
    /// A door for Envoy, with defaults.
    #[must_use]
    pub fn new(listen: Listen) -> Grpc {
        Grpc {
            listen,
            unknown_domain: UnknownDomain::Allow,
        }
    }
}

impl Resp {
    /// A door for Redis clients that everybody may enter.
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
    /// A door for operators without tokens: right only on a loopback address.
    #[must_use]
    pub fn new(listen: Listen) -> Admin {
        Admin {
            listen,
            tokens: Vec::new(),
        }
    }

    /// Whether anybody could enter from elsewhere.
    pub(crate) fn is_open(&self) -> bool {
        self.tokens.is_empty() && !self.listen.is_loopback()
    }
}

impl Server {
    /// The HTTP door alone, with defaults.
    pub(crate) fn new() -> Server {
        Server {
            http: Listen::new(HTTP, None),
            grpc: None,
            resp: None,
            admin: None,
            tls: None,
        }
    }

    /// The doors that are listened to, by their names in the config.
    #[must_use]
    pub fn doors(&self) -> Vec<(&'static str, &Listen)> {
        let mut doors = vec![("http", &self.http)];
        doors.extend(self.grpc.iter().map(|door| ("grpc", &door.listen)));
        doors.extend(self.resp.iter().map(|door| ("resp", &door.listen)));
        doors.extend(self.admin.iter().map(|door| ("admin", &door.listen)));
        doors
    }
}

impl Config {
    /// Whether the doors fit together. A config that was read is right; this is for one whose doors
    /// were changed afterwards.
    ///
    /// # Errors
    /// If two doors would listen on the same address, or if everybody could enter the admin door:
    /// what is wrong, and what would be right.
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
                    "`{name}` cannot listen on {address}: `{other}` does; choose another port"
                ));
            }
        }
        match &self.server.admin {
            Some(admin) if admin.is_open() => Err(format!("{OPEN_ADMIN}; {OPEN_ADMIN_HELP}")),
            _ => Ok(()),
        }
    }
}
