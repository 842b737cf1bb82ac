//! Accepting connections and serving requests on them, within bounds, until told to stop.

use std::pin::pin;

use hyper::server::conn::http2;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;

use super::bounds::{
    CONNECTION_WINDOW, DRAIN_TIMEOUT, KEEPALIVE_INTERVAL, KEEPALIVE_TIMEOUT, MAX_HEADER_BYTES,
    MAX_STREAMS, STREAM_WINDOW,
};
use super::preface::greeted;
use super::service::Door;
use super::streams::Streams;
use crate::net::{Accepted, Listener};

/// Serves `door` on `listener` until `stop` is ready, then lets requests in flight finish.
pub(super) async fn serve(listener: Listener, door: Door, stop: impl Future<Output = ()>) {
    let graceful = GracefulShutdown::new();
    let mut stop = pin!(stop);
    loop {
        let accepted: Accepted = tokio::select! {
            () = &mut stop => break,
            accepted = listener.accept() => accepted,
        };
        let (door, watcher) = (door.clone(), graceful.watcher());
        tokio::spawn(async move {
            let connection = async {
                let (stream, place) = accepted.handshake().await?;
                let stream = TokioIo::new(greeted(stream).await?);
                let streams = Streams::default();
                let serving = builder(streams.clone()).serve_connection(stream, door);
                let served = streams.drive(watcher.watch(serving)).await;
                drop(place);
                served.map_err(std::io::Error::other)
            };
            // A client that breaks off or speaks something else is its own affair.
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection ended");
            }
        });
    }
    drop(listener);
    if tokio::time::timeout(DRAIN_TIMEOUT, graceful.shutdown())
        .await
        .is_err()
    {
        tracing::warn!("requests were still in flight after {DRAIN_TIMEOUT:?}");
    }
}

fn builder(streams: Streams) -> http2::Builder<Streams> {
    let mut builder = http2::Builder::new(streams);
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEADER_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .initial_stream_window_size(STREAM_WINDOW)
        .keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT);
    builder
}
