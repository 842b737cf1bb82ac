//! One gRPC connection: HTTP/2 within bounds, until the server stops.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use hyper::server::conn::http2;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::AsyncWriteExt;

use super::bounds::{
    CONNECTION_WINDOW, IDLE_TIMEOUT, KEEPALIVE_INTERVAL, KEEPALIVE_TIMEOUT, MAX_HEADER_BYTES,
    MAX_STREAMS, PREFACE_TIMEOUT, SEND_BUFFER, STREAM_WINDOW,
};
use super::service::{Connection, Services};
use super::streams::Streams;
use crate::net::{self, ConnectionError, Listener, Peer, Stopping, Stream};

/// The answer to a client that speaks HTTP/1.
const WRONG_PROTOCOL: &[u8] = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\n\
    Content-Length: 48\r\nConnection: close\r\n\r\nThis port speaks gRPC: HTTP/2 without upgrade.\r\n";

/// Serves `services` on `listener` until `stop` is ready, drains, and lets open requests finish.
pub(super) async fn serve(
    listener: Listener,
    services: Services,
    stop: impl Future<Output = Duration>,
) {
    let handle = move |stream, peer, stopping| {
        let services = services.clone();
        async move { connection(stream, peer, services, stopping).await }
    };
    net::serve(listener, handle, stop).await;
}

async fn connection(
    mut stream: Stream,
    peer: SocketAddr,
    services: Services,
    stopping: Stopping,
) -> Result<(), ConnectionError> {
    if !expect_preface(&mut stream, &stopping).await? {
        return Ok(());
    }
    let streams = Streams::default();
    let account = services.memory.account(peer.ip());
    let mut builder = http2::Builder::new(streams.clone());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEADER_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .initial_stream_window_size(STREAM_WINDOW)
        .max_send_buf_size(SEND_BUFFER)
        .keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT);
    let service = Connection {
        services,
        account: account.clone(),
        peer: Peer(peer),
    };
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let serving = async {
        tokio::select! {
            biased;
            ended = connection.as_mut() => return ended,
            () = stopping.wait() => {}
            () = streams.activity.idle_for(IDLE_TIMEOUT) => {}
        }
        connection.as_mut().graceful_shutdown();
        connection.await
    };
    tokio::select! {
        biased;
        ended = streams.drive(serving) => Ok(ended?),
        () = account.untaken() => Err(net::AnswerNotTaken.into()),
    }
}

/// Waits for the first bytes of HTTP/2. A client that sends anything else, or nothing, is cut off
/// before the connection costs any memory. Returns `false` if the server stops before the first byte.
async fn expect_preface(stream: &mut Stream, stopping: &Stopping) -> io::Result<bool> {
    let reading = stream.read_preface_before(stopping);
    let read = tokio::time::timeout(PREFACE_TIMEOUT, reading).await;
    match read.map_err(|_| io::ErrorKind::TimedOut)?? {
        None => return Ok(false),
        Some(true) => return Ok(true),
        Some(false) => {}
    }
    if stream.is_cut_short() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    stream.write_all(WRONG_PROTOCOL).await?;
    stream.shutdown().await?;
    Err(io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, SocketAddr};
    use std::sync::Arc;

    use tokio::io::AsyncReadExt;

    use super::*;
    use crate::access::{Access, DataDoor};
    use crate::grpc::service::Health;

    const PEER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1);

    #[test]
    fn content_length_of_the_http_1_answer_is_right() {
        let text = std::str::from_utf8(WRONG_PROTOCOL).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let length = format!("Content-Length: {}\r\n", body.len());
        assert!(head.contains(&length), "{text}");
    }

    async fn services() -> Services {
        let config = tollgate_config::parse("rules.yaml", "version: 1\nrules: []\n", &|_| None);
        let engine = tollgate::Engine::start(&config.unwrap()).await.unwrap();
        let (_, routes) = Health::new().await;
        let engine = Arc::new(engine);
        let access = Access::new(DataDoor::Grpc, Arc::clone(&engine), Arc::default());
        Services::new(engine, access, routes, &Arc::default())
    }

    #[tokio::test(start_paused = true)]
    async fn idle_connection_is_closed() {
        let (client, server) = tokio::io::duplex(64 * 1024);
        let (_stop, stopping) = Stopping::channel();
        let stream = Stream::new(server, None);
        let serving = connection(stream, PEER, services().await, stopping);
        // The client answers pings, and keeps its handle for requests.
        let (_requests, client) = h2::client::handshake(client).await.unwrap();
        let both = async { tokio::join!(serving, client) };
        let (served, client) = tokio::time::timeout(IDLE_TIMEOUT * 3, both).await.unwrap();
        // The client may leave first.
        drop(served);
        client.unwrap();
    }

    #[tokio::test]
    async fn request_of_a_web_page_is_refused() {
        let (client, server) = tokio::io::duplex(64 * 1024);
        let (_stop, stopping) = Stopping::channel();
        tokio::spawn(connection(
            Stream::new(server, None),
            PEER,
            services().await,
            stopping,
        ));
        let (requests, client) = h2::client::handshake(client).await.unwrap();
        tokio::spawn(client);
        let mut requests = requests.ready().await.unwrap();
        for (content_type, status) in [("text/plain", 415), ("application/grpc+proto", 200)] {
            let request = http::Request::post("http://localhost/tollgate.v1.Tollgate/Check")
                .header("content-type", content_type)
                .body(())
                .unwrap();
            let (response, _) = requests.send_request(request, true).unwrap();
            assert_eq!(response.await.unwrap().status(), status, "{content_type}");
        }
    }

    #[tokio::test]
    async fn http_1_client_is_answered_and_cut_off() {
        let (mut client, server) = tokio::io::duplex(1024);
        client.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        let mut server = Stream::new(server, None);
        let (_stop, stopping) = Stopping::channel();
        let greeted = expect_preface(&mut server, &stopping).await;
        let error = greeted.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    }
}
