//! Forward-auth: a proxy asks whether a request may proceed, before it passes it on.
//!
//! What is asked about stands in headers, and headers can be sent by anybody; so only trusted
//! proxies are answered. From the headers come the attributes `method`, `path`, `host` and `scheme`,
//! those of the [client](crate::client), and the `action` that a route names. The answer is 200
//! without a body, or a refusal that the proxy can hand to the client.

mod original;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use http::HeaderName;
use http::request::Parts;
use tollgate::Ask;
use tollgate_config::{Routes, Subjects};

use self::original::Original;
use crate::client::{ClientError, Clients};
use crate::question::{AttributeMap, Check};

/// Where it is asked. Below it stands the path of the original request, where a proxy sends it so.
pub(crate) const PATH: &str = "/auth";

/// Reads what proxies ask.
pub(crate) struct ForwardAuth {
    clients: Clients,
    routes: Routes,
    /// Whether somebody who is not trusted has asked.
    warned: AtomicBool,
}

/// Why a proxy is not answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AuthError {
    #[error(
        "/auth answers proxies that subjects.trusted_proxies lists, and {peer} is not one of them; \
         if it is yours, add {network} to the list"
    )]
    Untrusted { peer: String, network: String },
    #[error("/auth answers proxies that it knows by their addresses, and this connection has none")]
    NoPeer,
    #[error(
        "no header says which request is meant: let the proxy set X-Forwarded-Method and \
         X-Forwarded-Uri, or X-Original-Method and X-Original-URI, or ask /auth/<path>"
    )]
    NotDescribed,
    #[error(
        "both X-Forwarded-Method or -Uri and X-Original-Method or -URI are there, and one of them is \
         not the proxy's"
    )]
    BothFamilies,
    #[error("the request lacks the header {0}, which the proxy has to set")]
    Missing(HeaderName),
    #[error("the header {0} is given more than once, or in two ways")]
    Repeated(HeaderName),
    #[error("the header {0} is not UTF-8 text")]
    NotText(HeaderName),
    #[error("what is given as the method is not one")]
    BadMethod,
    #[error("what is given as the host is not one")]
    BadHost,
    #[error("the path is longer than {limit} bytes")]
    PathTooLong { limit: usize },
    #[error(transparent)]
    Client(#[from] ClientError),
}

impl ForwardAuth {
    pub(crate) fn new(subjects: Subjects, routes: Routes) -> ForwardAuth {
        ForwardAuth {
            clients: Clients::new(subjects),
            routes,
            warned: AtomicBool::new(false),
        }
    }

    /// The check that `peer` asks for.
    pub(crate) fn check<'r>(
        &'r self,
        peer: Option<SocketAddr>,
        parts: &'r Parts,
    ) -> Result<Check<'r>, AuthError> {
        let peer = peer.ok_or(AuthError::NoPeer)?.ip().to_canonical();
        if !self.clients.is_trusted(peer) {
            return Err(self.untrusted(peer));
        }
        let original = Original::read(parts)?;
        let client = self.clients.find(peer, &parts.headers)?;
        let host = original.host.as_deref();
        let action = self.routes.action(original.method, host, &original.path);
        let mut attributes = AttributeMap::default();
        attributes.push("method", original.method);
        attributes.push("path", original.path);
        if let Some(host) = original.host {
            attributes.push("host", host);
        }
        if let Some(scheme) = original.scheme {
            attributes.push("scheme", scheme);
        }
        if let Some(action) = action {
            attributes.push("action", action);
        }
        for (name, value) in client.into_attributes() {
            attributes.push(name, value);
        }
        let ask = Ask::Exactly(1);
        Ok(Check { attributes, ask })
    }

    fn untrusted(&self, peer: std::net::IpAddr) -> AuthError {
        // Once is enough to find it, and strangers do not fill the log. Addresses stay out of it; the
        // answer has this one.
        if !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!("/auth was asked by a peer that subjects.trusted_proxies does not list");
        }
        let bits = if peer.is_ipv4() { 32 } else { 128 };
        AuthError::Untrusted {
            peer: peer.to_string(),
            network: format!("{peer}/{bits}"),
        }
    }
}
