//! The keys that verify tokens: fixed ones of the config, or those of a key server.
//!
//! The keys of a server are fetched when they are first needed, and again when they are older than
//! `refresh`. Until the new keys have arrived, the old ones stay in use: for ever, if the server is down. A
//! token with an unknown key waits for a fetch, and so does one with a wrong signature if the token or a key has
//! no id. But fetches are at least [`LEAST_PAUSE`] apart, so strangers cannot make this server ask the key server
//! more often.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Request, StatusCode};
use parking_lot::Mutex;
use tokio::time::Instant;
use tollgate::Span;
use tollgate_config::{HttpUrl, Jwk, JwkSet, JwtKeys};

use crate::outbound::{Peer, SendError};

/// The least time between two fetches.
pub(super) const LEAST_PAUSE: Duration = Duration::from_secs(10);
/// The least time between two fetches while no keys are known.
pub(super) const LEAST_PAUSE_WITHOUT_KEYS: Duration = Duration::from_secs(1);
/// How long a fetch may take.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Keys that are in use together.
#[derive(Debug)]
pub(super) struct Keys {
    keys: Vec<Jwk>,
    /// Grows with each change of the keys.
    pub(super) generation: u64,
}

impl Keys {
    /// Returns the keys that a token with this `kid` may mean. A key without an id fits every token.
    pub(super) fn named(&self, kid: Option<&str>) -> impl Iterator<Item = &Jwk> {
        self.keys.iter().filter(move |key| match (&key.id, kid) {
            (Some(id), Some(kid)) => id == kid,
            _ => true,
        })
    }

    pub(super) fn knows(&self, kid: Option<&str>) -> bool {
        self.named(kid).next().is_some()
    }

    /// Returns whether all keys that a token with this `kid` may mean are known by the same id.
    pub(super) fn knows_by_id(&self, kid: Option<&str>) -> bool {
        kid.is_some() && self.knows(kid) && self.named(kid).all(|key| key.id.is_some())
    }
}

/// Where keys come from.
pub(super) enum KeySource {
    Fixed(Arc<Keys>),
    Remote(Arc<RemoteKeys>),
}

impl KeySource {
    /// Makes the source that a config names. `remote` returns the keys of a server.
    pub(super) fn new(
        keys: &JwtKeys,
        remote: impl Fn(&HttpUrl, Span) -> Arc<RemoteKeys>,
    ) -> KeySource {
        let keys = match keys {
            JwtKeys::Url(url, refresh) => return KeySource::Remote(remote(url, *refresh)),
            JwtKeys::File(_, set) => set.as_ref().map_or_else(Vec::new, |set| set.keys.clone()),
            JwtKeys::Secret(secret) => vec![Jwk::of_secret(secret)],
            // A source that this version does not know verifies nothing.
            _ => Vec::new(),
        };
        let generation = 0;
        KeySource::Fixed(Arc::new(Keys { keys, generation }))
    }

    /// Returns the keys in use; `None` if they are not known.
    pub(super) async fn current(&self) -> Option<Arc<Keys>> {
        match self {
            KeySource::Fixed(keys) => Some(Arc::clone(keys)),
            KeySource::Remote(remote) => remote.current().await,
        }
    }

    /// Returns newer keys than those of this generation, if there are any.
    pub(super) async fn newer(&self, generation: u64) -> Option<Arc<Keys>> {
        match self {
            KeySource::Fixed(_) => None,
            KeySource::Remote(remote) => remote.newer(generation).await,
        }
    }
}

/// Fetches the text of a key set.
type Fetch = Box<dyn Fn() -> BoxFuture<'static, Result<String, SendError>> + Send + Sync>;

/// The keys of a key server.
pub(super) struct RemoteKeys {
    url: HttpUrl,
    refresh: Span,
    fetch: Fetch,
    current: ArcSwapOption<Keys>,
    tries: Mutex<Tries>,
    /// Held during a fetch.
    fetching: tokio::sync::Mutex<()>,
}

/// When the keys were fetched, and when that was last tried.
#[derive(Default)]
struct Tries {
    fetched: Option<Instant>,
    tried: Option<Instant>,
}

impl RemoteKeys {
    /// Keys of the server at `url`. Nothing is fetched yet.
    pub(super) fn new(url: &HttpUrl, refresh: Span) -> Arc<RemoteKeys> {
        let from = url.clone();
        RemoteKeys::with_fetch(url, refresh, move || Box::pin(fetch(from.clone())))
    }

    pub(super) fn with_fetch(
        url: &HttpUrl,
        refresh: Span,
        fetch: impl Fn() -> BoxFuture<'static, Result<String, SendError>> + Send + Sync + 'static,
    ) -> Arc<RemoteKeys> {
        Arc::new(RemoteKeys {
            url: url.clone(),
            refresh,
            fetch: Box::new(fetch),
            current: ArcSwapOption::empty(),
            tries: Mutex::default(),
            fetching: tokio::sync::Mutex::default(),
        })
    }

    /// Returns whether these are the keys of this server, with this refresh time.
    pub(super) fn is_of(&self, url: &HttpUrl, refresh: Span) -> bool {
        self.url == *url && self.refresh == refresh
    }

    async fn current(self: &Arc<Self>) -> Option<Arc<Keys>> {
        let Some(keys) = self.current.load_full() else {
            return self.fetched(None).await;
        };
        if self.is_old() && self.fetching.try_lock().is_ok() {
            let (remote, known) = (Arc::clone(self), keys.generation);
            // Requests go on with the old keys meanwhile.
            tokio::spawn(async move { remote.fetched(Some(known)).await });
        }
        Some(keys)
    }

    async fn newer(self: &Arc<Self>, generation: u64) -> Option<Arc<Keys>> {
        let keys = self.fetched(Some(generation)).await?;
        (keys.generation != generation).then_some(keys)
    }

    fn is_old(&self) -> bool {
        let tries = self.tries.lock();
        let is_past = |at: Instant, span: Duration| at.elapsed() >= span;
        tries
            .fetched
            .is_none_or(|at| is_past(at, self.refresh.into()))
            && tries.tried.is_none_or(|at| is_past(at, LEAST_PAUSE))
    }

    /// Returns the keys after a fetch, if a fetch is due and no other request has made it. The fetch continues if
    /// the caller goes away.
    async fn fetched(self: &Arc<Self>, known: Option<u64>) -> Option<Arc<Keys>> {
        let remote = Arc::clone(self);
        let task = tokio::spawn(async move { remote.fetch_if_due(known).await });
        task.await.ok();
        self.current.load_full()
    }

    async fn fetch_if_due(&self, known: Option<u64>) {
        let _fetching = self.fetching.lock().await;
        let current = self.current.load_full();
        let generation = current.as_ref().map(|keys| keys.generation);
        if generation != known {
            return;
        }
        let pause = match current {
            Some(_) => LEAST_PAUSE,
            None => LEAST_PAUSE_WITHOUT_KEYS,
        };
        {
            let mut tries = self.tries.lock();
            if tries.tried.is_some_and(|at| at.elapsed() < pause) {
                return;
            }
            tries.tried = Some(Instant::now());
        }
        let fetched = tokio::time::timeout(TIMEOUT, (self.fetch)()).await;
        let set = match fetched {
            Ok(Ok(text)) => JwkSet::of_server(&text),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("it does not answer".to_owned()),
        };
        match set {
            Ok((set, ignored)) => self.replace(set, ignored, current.as_deref()),
            Err(problem) => {
                let server = &self.url;
                tracing::warn!(%server, problem, "failed to fetch the keys of tokens; keys that are known stay in use");
            }
        }
    }

    fn replace(&self, set: JwkSet, ignored: Option<String>, current: Option<&Keys>) {
        self.tries.lock().fetched = Some(Instant::now());
        if let Some(problem) = ignored {
            let server = &self.url;
            tracing::warn!(%server, problem, "a key that should verify tokens cannot be used");
        }
        if current.is_some_and(|keys| keys.keys == set.keys) {
            return;
        }
        let generation = current.map_or(1, |keys| keys.generation + 1);
        tracing::info!(server = %self.url, keys = set.keys.len(), "the keys of tokens have changed");
        let keys = set.keys;
        self.current
            .store(Some(Arc::new(Keys { keys, generation })));
    }
}

/// Fetches a key set.
async fn fetch(url: HttpUrl) -> Result<String, SendError> {
    let peer = Peer::new(&url.host, url.port, url.tls)?;
    let target = std::str::from_utf8(url.target.expose())?;
    let request = Request::get(target)
        .header(
            http::header::ACCEPT,
            "application/jwk-set+json, application/json",
        )
        .body(Bytes::new())?;
    let answer = peer.send(request).await?;
    if answer.status() != StatusCode::OK {
        return Err(format!("it answers with the status {}", answer.status().as_u16()).into());
    }
    Ok(String::from_utf8(answer.into_body().to_vec())?)
}
