//! Tokens: who may use a door, and how wrong tokens are answered.
//!
//! * `token`: recognises tokens by their hashes, in constant time.
//! * `attempts`: counts, logs, slows down and bounds wrong tokens.
//! * [`Access`]: lets requests into a data door, by the scopes of their tokens. The admin door has roles
//!   instead.
//!
//! A data door without tokens costs a look at the config for each request, and no more.

pub(crate) mod attempts;
pub(crate) mod token;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tollgate::{ActiveConfig, Engine};
use tollgate_config::{Listen, Server, TokenScope, TokenScopes};

use self::attempts::{Attempts, TooManyWrong};
use self::token::{Shown, Tokens};
use crate::outbound::Seldom;
use crate::per_config::{Made, PerConfig};

/// A data door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DataDoor {
    Http,
    Grpc,
    Resp,
}

impl DataDoor {
    /// Returns the door's name in the config.
    fn name(self) -> &'static str {
        match self {
            DataDoor::Http => "http",
            DataDoor::Grpc => "grpc",
            DataDoor::Resp => "resp",
        }
    }
}

/// The owner of a token, and what the token allows.
pub(crate) struct Client {
    pub(crate) name: Box<str>,
    pub(crate) scopes: TokenScopes,
}

/// Why a request is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AccessError {
    #[error("this needs a token: send `Authorization: Bearer …`")]
    NoToken,
    #[error("this token lacks the `{}` scope", .0.name())]
    NotPermitted(TokenScope),
    #[error(
        "too many wrong tokens came from this address: this one was not compared; try again in {} s",
        .0.as_secs().max(1)
    )]
    TooManyWrong(Duration),
}

impl From<TooManyWrong> for AccessError {
    fn from(full: TooManyWrong) -> AccessError {
        AccessError::TooManyWrong(full.retry_after)
    }
}

/// Lets requests into a data door.
pub(crate) struct Access {
    door: DataDoor,
    engine: Arc<Engine>,
    tokens: PerConfig<Tokens<Client>>,
    attempts: Arc<Attempts>,
    /// Bounds the log of requests that lack a scope.
    log: Seldom,
}

impl Access {
    /// Guards `door` with the tokens of the config in force.
    pub(crate) fn new(door: DataDoor, engine: Arc<Engine>, attempts: Arc<Attempts>) -> Access {
        let make: fn(&ActiveConfig) -> Tokens<Client> = match door {
            DataDoor::Http => |active| tokens_of(active, |server| Some(&server.http)),
            DataDoor::Grpc => {
                |active| tokens_of(active, |server| Some(&server.grpc.as_ref()?.listen))
            }
            DataDoor::Resp => {
                |active| tokens_of(active, |server| Some(&server.resp.as_ref()?.listen))
            }
        };
        Access {
            door,
            tokens: PerConfig::new(&engine, make),
            engine,
            attempts,
            log: Seldom::default(),
        }
    }

    /// Returns whether the config has no tokens, so that every request is let in.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.engine.loaded().config().server.tokens.is_empty()
    }

    /// Returns the tokens of this door in `active`. If there are none, clients need no token.
    pub(crate) fn tokens(&self, active: &ActiveConfig) -> Arc<Made<Tokens<Client>>> {
        self.tokens.of(active)
    }

    /// Lets a request in if the door needs no token, or the request shows one with the scope. Returns all
    /// scopes of the request. The answer to a wrong token waits for its turn.
    pub(crate) async fn enter(
        &self,
        scope: TokenScope,
        shown: Shown<'_>,
        peer: Option<IpAddr>,
        path: &str,
    ) -> Result<TokenScopes, AccessError> {
        let tokens = self.tokens(&self.engine.active());
        if tokens.is_empty() {
            return Ok(TokenScopes::ALL);
        }
        if shown == Shown::Nothing {
            return Err(AccessError::NoToken);
        }
        self.may_try(peer)?;
        let found = match shown {
            Shown::Nothing | Shown::Other => None,
            Shown::Token(token) => tokens.find(token),
        };
        let Some((_, client)) = found else {
            self.wrong(peer, path).await;
            return Err(AccessError::NoToken);
        };
        if !client.scopes.includes(scope) {
            self.log_missing(scope, client, path);
            return Err(AccessError::NotPermitted(scope));
        }
        Ok(client.scopes)
    }

    /// Call this before a token or a password of the client at `peer` is compared.
    pub(crate) fn may_try(&self, peer: Option<IpAddr>) -> Result<(), TooManyWrong> {
        self.attempts.may_try(peer)
    }

    /// Waits until the client at `peer` may learn that its token or password is wrong.
    pub(crate) async fn wrong(&self, peer: Option<IpAddr>, path: &str) {
        self.attempts.wrong(self.door.name(), peer, path).await;
    }

    fn log_missing(&self, scope: TokenScope, client: &Client, path: &str) {
        if let Some(unlogged) = self.log.due() {
            let (door, scope) = (self.door.name(), scope.name());
            let who = &*client.name;
            tracing::warn!(target: "tollgate::access", door, who, scope, path, unlogged, "not permitted");
        }
    }
}

/// Returns the tokens of a door. A door that is not in the config needs a token too.
fn tokens_of(active: &ActiveConfig, listen: fn(&Server) -> Option<&Listen>) -> Tokens<Client> {
    let server = &active.config().server;
    let tokens = match listen(server) {
        Some(listen) => server.tokens_of(listen),
        None => &server.tokens,
    };
    let clients = tokens.iter().map(|token| {
        let client = Client {
            name: token.name.as_str().into(),
            scopes: token.scopes,
        };
        (token.sha256, client)
    });
    clients.collect()
}
