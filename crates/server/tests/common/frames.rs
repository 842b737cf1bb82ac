//! A client that speaks HTTP/2 in raw frames, and takes no answers unless told to. It answers pings,
//! so that the server sees a living client.

#![allow(dead_code)] // Each test file uses only a part.
#![allow(clippy::unwrap_used)] // Test helpers may panic.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Mutex, watch};
use tokio::task::JoinHandle;

pub(crate) const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
pub(crate) const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

/// What the server has sent so far.
#[derive(Clone, Copy, Default)]
pub(crate) struct Seen {
    /// Answers that began.
    pub(crate) answers: usize,
    /// Streams that the server reset.
    pub(crate) resets: usize,
    /// Bytes of bodies.
    pub(crate) bytes: usize,
    /// Answers that ended.
    pub(crate) ended: usize,
    /// Frames that tell the client to open no more streams.
    pub(crate) goaways: usize,
    /// Answers to pings of the client.
    pub(crate) pongs: usize,
    pub(crate) is_closed: bool,
}

pub(crate) struct RawClient {
    writing: Arc<Mutex<OwnedWriteHalf>>,
    seen: watch::Receiver<Seen>,
    windows: Arc<Windows>,
    next_stream: u32,
    reading: JoinHandle<()>,
}

impl RawClient {
    /// Connects with a window of `window` bytes for each stream. The client is at another address than other
    /// clients of the tests.
    pub(crate) async fn connect(address: SocketAddr, window: u32) -> RawClient {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
        let (read, mut write) = socket.connect(address).await.unwrap().into_split();
        write
            .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            .await
            .unwrap();
        let mut setting = vec![0, 4];
        setting.extend(window.to_be_bytes());
        write
            .write_all(&frame(SETTINGS, 0, 0, &setting))
            .await
            .unwrap();
        let writing = Arc::new(Mutex::new(write));
        let (see, seen) = watch::channel(Seen::default());
        let windows = Arc::new(Windows::default());
        let reading = read_frames(read, Arc::clone(&writing), see, Arc::clone(&windows));
        RawClient {
            reading: tokio::spawn(reading),
            windows,
            writing,
            seen,
            next_stream: 1,
        }
    }

    /// Opens `count` streams, with `body` or without an end.
    pub(crate) async fn open(&mut self, count: usize, head: &[(&str, &str)], body: Body<'_>) {
        for _ in 0..count {
            let (stream, block) = (self.next_stream, head_block(head));
            self.next_stream += 2;
            let end = if matches!(body, Body::None) {
                END_STREAM
            } else {
                0
            };
            let headers = frame(HEADERS, END_HEADERS | end, stream, &block);
            self.send(&headers).await;
            match body {
                Body::None | Body::Half(b"") => {}
                Body::Half(body) => self.send_data(stream, body, 0).await,
                Body::Whole(body) => self.send_data(stream, body, END_STREAM).await,
            }
        }
    }

    /// Sends a part of a body, as soon as the server lets the client send it.
    pub(crate) async fn send_data(&mut self, stream: u32, data: &[u8], flags: u8) {
        while !self.windows.take(stream, data.len()) {
            let seen = *self.seen.borrow();
            if seen.is_closed || self.seen.changed().await.is_err() {
                return;
            }
        }
        self.send(&frame(DATA, flags, stream, data)).await;
    }

    /// Lets the server send `bytes` more on each of the streams, and on the connection.
    pub(crate) async fn widen(&mut self, bytes: u32) {
        let streams = (1..self.next_stream).step_by(2);
        let mut frames = frame(WINDOW_UPDATE, 0, 0, &bytes.to_be_bytes());
        for stream in streams {
            frames.extend(frame(WINDOW_UPDATE, 0, stream, &bytes.to_be_bytes()));
        }
        self.send(&frames).await;
    }

    /// Sends frames. A server that has closed the connection is not an error.
    pub(crate) async fn send(&self, frames: &[u8]) {
        let _ = self.writing.lock().await.write_all(frames).await;
    }

    /// Waits until `is_done`, or until the server closes the connection.
    pub(crate) async fn wait(&mut self, is_done: impl Fn(Seen) -> bool) -> Seen {
        let done = |seen: &Seen| seen.is_closed || is_done(*seen);
        *self.seen.wait_for(done).await.unwrap()
    }
}

impl Drop for RawClient {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

/// How many bytes the server lets the client send: on the connection (stream 0) and on streams.
#[derive(Default)]
struct Windows(std::sync::Mutex<HashMap<u32, usize>>);

impl Windows {
    const START: usize = 65_535;

    fn add(&self, stream: u32, increment: &[u8]) {
        let increment = u32::from_be_bytes(increment.try_into().unwrap());
        let mut windows = self.0.lock().unwrap();
        *windows.entry(stream).or_insert(Self::START) += usize::try_from(increment).unwrap();
    }

    /// Takes `bytes` from both windows, if both have them.
    fn take(&self, stream: u32, bytes: usize) -> bool {
        let mut windows = self.0.lock().unwrap();
        let left = |stream| windows.get(&stream).copied().unwrap_or(Self::START);
        let rest = [0, stream].map(|stream| (stream, left(stream).checked_sub(bytes)));
        let [(_, Some(_)), (_, Some(_))] = rest else {
            return false;
        };
        windows.extend(rest.map(|(stream, rest)| (stream, rest.unwrap())));
        true
    }
}

/// The body of a request.
#[derive(Clone, Copy)]
pub(crate) enum Body<'a> {
    None,
    Half(&'a [u8]),
    Whole(&'a [u8]),
}

async fn read_frames(
    mut read: OwnedReadHalf,
    writing: Arc<Mutex<OwnedWriteHalf>>,
    see: watch::Sender<Seen>,
    windows: Arc<Windows>,
) {
    let mut head = [0; 9];
    while read.read_exact(&mut head).await.is_ok() {
        let [a, b, c, kind, flags, stream @ ..] = head;
        let length = u32::from_be_bytes([0, a, b, c]);
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        if read.read_exact(&mut payload).await.is_err() {
            break;
        }
        match kind {
            PING if flags & ACK == 0 => {
                let pong = frame(PING, ACK, 0, &payload);
                let _ = writing.lock().await.write_all(&pong).await;
            }
            HEADERS => see.send_modify(|seen| seen.answers += 1),
            PING => see.send_modify(|seen| seen.pongs += 1),
            GOAWAY => see.send_modify(|seen| seen.goaways += 1),
            RST_STREAM => see.send_modify(|seen| seen.resets += 1),
            DATA => see.send_modify(|seen| {
                seen.bytes += payload.len();
                seen.ended += usize::from(flags & END_STREAM);
            }),
            WINDOW_UPDATE => {
                windows.add(u32::from_be_bytes(stream), &payload);
                see.send_modify(|_| {});
            }
            _ => {}
        }
    }
    see.send_modify(|seen| seen.is_closed = true);
}

/// Makes a frame.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Encodes header fields as literals (HPACK).
fn head_block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).unwrap());
            block.extend(text.as_bytes());
        }
    }
    block
}

/// The head of a request.
pub(crate) fn head<'a>(method: &'a str, path: &'a str) -> Vec<(&'a str, &'a str)> {
    vec![
        (":method", method),
        (":scheme", "http"),
        (":path", path),
        (":authority", "127.0.0.1"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ]
}

/// Frames a gRPC message.
pub(crate) fn message(message: &impl prost::Message) -> Vec<u8> {
    let mut framed = vec![0];
    let length = u32::try_from(message.encoded_len()).unwrap();
    framed.extend(length.to_be_bytes());
    framed.extend(message.encode_to_vec());
    framed
}
