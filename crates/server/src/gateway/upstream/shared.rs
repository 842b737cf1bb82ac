//! The HTTP/2 connections to a server, which requests share.
//!
//! A connection takes as many requests as its server allows, at most [`MAX_SHARED`]. When all are full, another
//! one is opened. Requests fill the oldest connections first, so that the others become idle and end. There are
//! never more connections than open requests, which `max_connections` bounds.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hyper::client::conn::http2;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::TakeError;
use super::connect::Http2;
use crate::gateway::bounds::{IDLE_TIMEOUT, MAX_SHARED};
use crate::gateway::client_body::ClientBody;

/// The connections to a server.
#[derive(Default)]
pub(super) struct SharedConnections {
    connections: Mutex<Vec<Shared>>,
    /// Locked while a connection is opened, so that requests do not open one each.
    pub(super) opening: tokio::sync::Mutex<Option<Failure>>,
}

/// The last connection that could not be opened.
pub(super) struct Failure {
    pub(super) at: Instant,
    pub(super) error: TakeError,
}

struct Shared {
    http2: Http2,
    open: Arc<AtomicUsize>,
    used_at: Instant,
}

/// Counts as a request on its connection until it is dropped.
pub(super) struct StreamPlace(Arc<AtomicUsize>);

impl Drop for StreamPlace {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl SharedConnections {
    /// Returns a connection with room for a request, if there is one.
    pub(super) fn take(&self) -> Option<(http2::SendRequest<ClientBody>, StreamPlace)> {
        let mut connections = self.connections.lock();
        connections.retain(|it| !it.http2.sender.is_closed());
        let has_room = |it: &&mut Shared| {
            let most = it.http2.most().clamp(1, MAX_SHARED);
            it.open.load(Ordering::Relaxed) < most
        };
        connections.iter_mut().find(has_room).map(Shared::start)
    }

    /// Returns how many requests a new connection may take before its server has told its bound: as many as the other
    /// connections, or one if there is no other.
    pub(super) fn most(&self) -> usize {
        let connections = self.connections.lock();
        connections
            .iter()
            .map(|it| it.http2.most())
            .max()
            .unwrap_or(1)
    }

    /// Adds a new connection, and takes it for a request.
    pub(super) fn add(&self, http2: Http2) -> (http2::SendRequest<ClientBody>, StreamPlace) {
        let mut shared = Shared {
            http2,
            open: Arc::default(),
            used_at: Instant::now(),
        };
        let started = shared.start();
        self.connections.lock().push(shared);
        started
    }

    /// Closes the connections that were idle for too long.
    pub(super) fn close_idle(&self) {
        self.connections.lock().retain(|it| {
            it.open.load(Ordering::Relaxed) > 0 || it.used_at.elapsed() < IDLE_TIMEOUT
        });
    }
}

impl Shared {
    fn start(&mut self) -> (http2::SendRequest<ClientBody>, StreamPlace) {
        self.open.fetch_add(1, Ordering::Relaxed);
        self.used_at = Instant::now();
        let place = StreamPlace(Arc::clone(&self.open));
        (self.http2.sender.clone(), place)
    }
}
