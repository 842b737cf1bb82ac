//! Connections that left HTTP, such as WebSockets: bytes are copied both ways until one side ends.

use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf, copy_bidirectional_with_sizes};

use super::access_log::Line;
use super::bounds::TUNNEL_IDLE_TIMEOUT;
use super::slots::Slot;
use super::upstream::{Http1, OpenRequest};
use crate::net::Transport;

/// The bytes of each direction that are copied at a time.
const BUFFER: usize = 8 * 1024;

/// Copies bytes between a client and a server after their connections have left HTTP. The task of the client's
/// connection runs the tunnel after the answer, so that the connection counts as open until the tunnel ends.
pub(super) struct Tunnel {
    pub(super) client: OnUpgrade,
    pub(super) server: Box<Http1>,
    pub(super) open: OpenRequest,
    pub(super) slot: Option<Slot>,
    pub(super) line: Option<Box<Line>>,
}

/// The place where a request puts its tunnel, so that the connection can run it.
pub(super) type TunnelPlace = Mutex<Option<Tunnel>>;

impl Tunnel {
    /// Copies until both sides have ended, one of them fails, or both are silent for too long.
    pub(super) async fn run(self) {
        let Tunnel {
            client,
            server,
            open,
            slot,
            mut line,
        } = self;
        let counts = Counts::default();
        let copied = async {
            let client = client.await.map_err(io::Error::other)?;
            let (server, first) = server.into_upgraded().await.map_err(io::Error::other)?;
            copy(TokioIo::new(client), server, first, &counts).await
        };
        let copied = copied.await;
        if let Some(line) = &mut line {
            line.sent(counts.from_server.load(Ordering::Relaxed));
            if copied.is_err() {
                line.broken();
            }
        }
        if let Err(error) = copied {
            tracing::debug!(%error, "an upgraded connection ended");
        }
        drop((open, slot, line));
    }
}

/// The bytes that were read from each side.
#[derive(Default)]
struct Counts {
    from_client: AtomicU64,
    from_server: AtomicU64,
}

impl Counts {
    fn total(&self) -> u64 {
        self.from_client.load(Ordering::Relaxed) + self.from_server.load(Ordering::Relaxed)
    }
}

async fn copy(
    client: impl AsyncRead + AsyncWrite + Unpin,
    server: Box<dyn Transport>,
    first: Bytes,
    counts: &Counts,
) -> io::Result<()> {
    let mut client = Counted {
        inner: client,
        bytes: &counts.from_client,
    };
    let mut server = Counted {
        inner: server,
        bytes: &counts.from_server,
    };
    client.write_all(&first).await?;
    let first = first.len() as u64;
    counts.from_server.fetch_add(first, Ordering::Relaxed);
    let copying = copy_bidirectional_with_sizes(&mut client, &mut server, BUFFER, BUFFER);
    tokio::select! {
        copied = copying => copied.map(drop),
        () = idle(counts) => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// Returns once no byte was read for [`TUNNEL_IDLE_TIMEOUT`], or for up to a quarter more.
async fn idle(counts: &Counts) {
    const STEPS: u32 = 4;
    let step: Duration = TUNNEL_IDLE_TIMEOUT / STEPS;
    let (mut before, mut silent) = (counts.total(), 0);
    while silent <= STEPS {
        tokio::time::sleep(step).await;
        let now = counts.total();
        silent = if now == before { silent + 1 } else { 0 };
        before = now;
    }
}

/// A connection whose bytes are counted when they are read.
struct Counted<'c, T> {
    inner: T,
    bytes: &'c AtomicU64,
}

impl<T: AsyncRead + Unpin> AsyncRead for Counted<'_, T> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        let read = pin!(&mut this.inner).poll_read(context, buffer);
        let more = buffer.filled().len() - before;
        if more > 0 {
            this.bytes.fetch_add(more as u64, Ordering::Relaxed);
        }
        read
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Counted<'_, T> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(context)
    }
}
