//! Who is told when a limit is near: plain data, validated. Nothing here sends anything.

use std::fmt;

use tollgate_core::Span;

use crate::config::Secret;

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
