//! Knows whether a client has begun to send a request.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::net::Stream;

/// Says whether the server owes an answer on an HTTP/1 connection: it does if it has read something since its
/// last answer.
#[derive(Clone, Default)]
pub(crate) struct Turn(Arc<AtomicBool>);

impl Turn {
    /// Returns whether a request has begun to arrive.
    pub(crate) fn is_of_server(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A connection that keeps its [`Turn`] up to date.
pub(crate) struct Turns {
    stream: Stream,
    turn: Turn,
}

impl Turns {
    pub(crate) fn new(stream: Stream) -> (Turns, Turn) {
        let turn = Turn::default();
        let turns = Turns {
            stream,
            turn: turn.clone(),
        };
        (turns, turn)
    }
}

impl AsyncRead for Turns {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            this.turn.0.store(true, Ordering::Relaxed);
        }
        read
    }
}

impl AsyncWrite for Turns {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(context, bytes);
        if written.is_ready() {
            this.turn.0.store(false, Ordering::Relaxed);
        }
        written
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}
