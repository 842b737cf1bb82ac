//! A rate limit service that does as little as possible: reads each request, and answers `OK` without
//! anything else.
//!
//! Like Tollgate, it reads all requests that have arrived, answers them, and sends the answers in one write.

use std::error::Error;
use std::future::poll_fn;
use std::hint::black_box;
use std::task::{Context, Poll};

use bytes::Bytes;
use h2::RecvStream;
use h2::server::{Connection, SendResponse};
use http::{HeaderMap, HeaderName, HeaderValue, Response};
use prost::Message;
use tokio::net::{TcpListener, TcpStream};
use tollgate_server::grpc::proto::envoy::service::ratelimit::v3::RateLimitRequest;

use super::Listen;

/// The prefix and the message of an answer: `overall_code: OK`.
const OK: &[u8] = &[0, 0, 0, 0, 2, 0x08, 1];
/// The length of the prefix of a message.
const PREFIX: usize = 5;
/// Streams that a client may have open.
const STREAMS: u32 = 1024;

type Request = (RecvStream, SendResponse<Bytes>);

pub(crate) fn run(listen: &Listen) -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(listen.grpc).await?;
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            tokio::spawn(serve(stream));
        }
    })
}

async fn serve(stream: TcpStream) -> Result<(), h2::Error> {
    let mut builder = h2::server::Builder::new();
    builder.max_concurrent_streams(STREAMS);
    let mut connection = builder.handshake(stream).await?;
    let (mut waiting, mut unread) = (Vec::new(), Vec::new());
    poll_fn(|context| drive(&mut connection, context, &mut waiting, &mut unread)).await
}

/// Accepts what has arrived, and answers it.
fn drive(
    connection: &mut Connection<TcpStream, Bytes>,
    context: &mut Context<'_>,
    waiting: &mut Vec<Request>,
    unread: &mut Vec<Request>,
) -> Poll<Result<(), h2::Error>> {
    loop {
        match connection.poll_accept(context) {
            Poll::Ready(Some(request)) => {
                let (request, answer) = request?;
                waiting.push((request.into_body(), answer));
            }
            Poll::Ready(None) => return Poll::Ready(Ok(())),
            Poll::Pending if waiting.is_empty() => return Poll::Pending,
            Poll::Pending => {
                let mut is_answered = false;
                for (mut body, answer) in waiting.drain(..) {
                    match body.poll_data(context) {
                        Poll::Ready(data) => {
                            respond(data.transpose()?, &mut body, answer)?;
                            is_answered = true;
                        }
                        Poll::Pending => unread.push((body, answer)),
                    }
                }
                std::mem::swap(waiting, unread);
                if !is_answered {
                    return Poll::Pending;
                }
            }
        }
    }
}

fn respond(
    data: Option<Bytes>,
    body: &mut RecvStream,
    mut answer: SendResponse<Bytes>,
) -> Result<(), h2::Error> {
    let data = data.unwrap_or_default();
    body.flow_control().release_capacity(data.len())?;
    black_box(RateLimitRequest::decode(data.get(PREFIX..).unwrap_or_default()).is_ok());
    let mut response = Response::new(());
    let content_type = HeaderValue::from_static("application/grpc");
    response.headers_mut().insert("content-type", content_type);
    let mut stream = answer.send_response(response, false)?;
    stream.send_data(Bytes::from_static(OK), false)?;
    let mut trailers = HeaderMap::new();
    let status = HeaderName::from_static("grpc-status");
    trailers.insert(status, HeaderValue::from_static("0"));
    stream.send_trailers(trailers)
}
