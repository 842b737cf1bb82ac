//! Knows whether a client has begun to send a request, and whether it takes its answer.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::activity::{Active, Activity};

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
pub(crate) struct Turns<S> {
    stream: S,
    turn: Turn,
    activity: Activity,
    /// While the client has not taken all of an answer, the connection is not idle.
    untaken: Option<Active>,
}

impl<S> Turns<S> {
    pub(crate) fn new(stream: S, activity: Activity) -> (Turns<S>, Turn) {
        let turn = Turn::default();
        let turns = Turns {
            stream,
            turn: turn.clone(),
            activity,
            untaken: None,
        };
        (turns, turn)
    }

    /// Notes whether the transport has taken all bytes for the client.
    fn note_taken(&mut self, taken: bool) {
        if taken {
            self.untaken = None;
        } else if self.untaken.is_none() {
            self.untaken = Some(self.activity.start());
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Turns<S> {
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

impl<S: AsyncWrite + Unpin> AsyncWrite for Turns<S> {
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
        this.note_taken(written.is_ready());
        written
    }

    // TLS takes some bytes in `poll_write` before the client can take them, and waits here.
    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = Pin::new(&mut this.stream).poll_flush(context);
        this.note_taken(flushed.is_ready());
        flushed
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, BufWriter, duplex};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn connection_is_not_idle_while_the_client_takes_an_answer_slowly() {
        let (client, server) = duplex(8);
        is_active_until_80_bytes_are_taken(client, server).await;
    }

    /// TLS has a buffer too.
    #[tokio::test(start_paused = true)]
    async fn connection_with_a_buffer_is_not_idle_while_the_client_takes_an_answer_slowly() {
        let (client, server) = duplex(8);
        is_active_until_80_bytes_are_taken(client, BufWriter::new(server)).await;
    }

    async fn is_active_until_80_bytes_are_taken(
        mut client: impl AsyncRead + Unpin,
        server: impl AsyncWrite + Unpin,
    ) {
        const TIME: Duration = Duration::from_secs(10);
        let activity = Activity::default();
        let (mut server, _) = Turns::new(server, activity.clone());
        let answering = async {
            server.write_all(&[0; 80]).await.unwrap();
            server.flush().await.unwrap();
            server
        };
        let taking = async {
            let mut taken = [0; 8];
            for _ in 0..10 {
                tokio::time::sleep(TIME / 2).await;
                client.read_exact(&mut taken).await.unwrap();
            }
        };
        tokio::select! {
            biased;
            _ = async { tokio::join!(answering, taking) } => {}
            () = activity.idle_for(TIME) => panic!("the answer was being taken"),
        }
        activity.idle_for(TIME).await;
    }
}
