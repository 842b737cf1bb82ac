//! Forward-auth: a proxy asks whether a request may proceed, before it forwards the request.
//!
//! The request is described in headers, which any client can send. So only trusted proxies get an
//! answer. The headers give the attributes `method`, `path`, `host` and `scheme`, those of the
//! [client](crate::client), and the `action` of a route. The answer is 200 without a body, or a
//! denial that the proxy can pass on to its client.

mod original;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use http::HeaderName;
use http::request::Parts;
use tollgate::{Ask, Span};
use tollgate_config::{Routes, Subjects};

use self::original::Original;
use crate::client::{ClientError, Clients};
use crate::question::{AttributeMap, Check};

/// The path of forward-auth. Some proxies append the path of the original request.
pub(crate) const PATH: &str = "/auth";

/// Returns whether a request for `path` is one of forward-auth.
#[inline]
pub(crate) fn is_path(path: &str) -> bool {
    let rest = path.strip_prefix(PATH);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Turns requests of proxies into checks.
pub(crate) struct ForwardAuth {
    clients: Clients,
    routes: Routes,
    /// Whether an untrusted peer was logged.
    warned: AtomicBool,
}

/// Why a proxy gets no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AuthError {
    #[error(
        "/auth answers only proxies in subjects.trusted_proxies, and {peer} is not one of them; if it is your proxy, add {network} to the list"
    )]
    Untrusted { peer: String, network: String },
    #[error("/auth answers only proxies with a known address, and this connection has none")]
    NoPeer,
    #[error(
        "no header describes the request: let the proxy set X-Forwarded-Method and X-Forwarded-Uri, or X-Original-Method and X-Original-URI, or ask /auth/<path>"
    )]
    NotDescribed,
    #[error(
        "the request has headers of two kinds, X-Forwarded-Method or -Uri and X-Original-Method or -URI, and the client may have sent one of them: configure the proxy to set one kind, and to remove the other"
    )]
    BothFamilies,
    #[error("the request lacks the header {0}, which the proxy must set")]
    Missing(HeaderName),
    #[error("the header {0} is given more than once")]
    Repeated(HeaderName),
    #[error(
        "the request has both X-Original-URI and X-Original-URL; the client may have sent one of them: let the proxy remove the one that it does not set"
    )]
    UriAndUrl,
    #[error("the header {0} is not UTF-8 text")]
    NotText(HeaderName),
    #[error("the method is not valid")]
    BadMethod,
    #[error("the host is not valid")]
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

    /// Reads the check that `peer` asks for.
    pub(crate) fn check<'r>(
        &'r self,
        peer: Option<SocketAddr>,
        parts: &'r Parts,
    ) -> Result<Check<'r>, AuthError> {
        let peer = peer.ok_or(AuthError::NoPeer)?.ip().to_canonical();
        if !self.clients.is_trusted(peer) {
            // Logged once, so that strangers cannot fill the log. The log does not show addresses,
            // but the response does.
            if !self.warned.swap(true, Ordering::Relaxed) {
                tracing::warn!("a peer that is not in subjects.trusted_proxies asked /auth");
            }
            let bits = if peer.is_ipv4() { 32 } else { 128 };
            return Err(AuthError::Untrusted {
                peer: peer.to_string(),
                network: format!("{peer}/{bits}"),
            });
        }
        let original = Original::read(parts)?;
        let client = self.clients.find(peer, &parts.headers)?;
        let host = original.host.as_deref();
        let written = original.written.as_bytes();
        let action = self.routes.action(original.method, host, written);
        let described = [
            ("method", Some(original.method.into())),
            ("path", Some(original.path.into())),
            ("host", original.host),
            ("scheme", original.scheme.map(Into::into)),
            ("action", action.map(Into::into)),
        ];
        let described = described
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)));
        let mut attributes = AttributeMap::default();
        for (name, value) in described.chain(client.into_attributes()) {
            attributes.push(name, value);
        }
        let ask = Ask::Exactly(1);
        // A proxy answers its client late if it gets a late answer, and gives no turn back.
        let wait = Span::ZERO;
        Ok(Check {
            attributes,
            ask,
            wait,
        })
    }
}
