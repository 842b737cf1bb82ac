//! The body of a request. A body that does not arrive at once counts as held memory.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use hyper::body::{Body, Frame, Incoming, SizeHint};

use super::ConnectionError;
use super::memory::{Account, Charge};

/// A body of at most this many bytes is not counted, if all of it arrives at once.
const SMALL: usize = 4096;
/// How many bytes a request counts as while its body arrives, in addition to the body: for its head
/// and its task.
const OVERHEAD: usize = 2048;
/// How many bytes each header of such a request counts as.
const HEADER: usize = 128;

/// The connection, or the door, holds too many bytes for its clients.
#[derive(Debug, thiserror::Error)]
#[error(
    "this connection, or all connections together, have too many unfinished requests and unread answers"
)]
pub(crate) struct NoRoom;

/// The body of a request. It counts until it is dropped: keep it until the request is decided.
pub(crate) struct Received {
    body: Incoming,
    charge: Charge,
    /// How many bytes the request counts as while its body arrives, in addition to the body.
    overhead: usize,
}

impl Received {
    pub(crate) fn new(body: Incoming, headers: &HeaderMap, account: &Account) -> Received {
        Received {
            body,
            charge: account.charge(0),
            overhead: OVERHEAD + HEADER * headers.len(),
        }
    }

    /// Counts `bytes` more. Returns an error if there is no room for them.
    fn hold(&mut self, bytes: usize) -> Result<(), ConnectionError> {
        if self.charge.bytes() == 0 {
            self.charge.set(self.overhead);
        }
        self.charge.set(self.charge.bytes() + bytes);
        match self.charge.account().has_room_for(1) {
            true => Ok(()),
            false => Err(NoRoom.into()),
        }
    }
}

impl Body for Received {
    type Data = Bytes;
    type Error = ConnectionError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ConnectionError>>> {
        let this = self.get_mut();
        let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(context) else {
            if this.charge.bytes() == 0
                && let Err(error) = this.hold(0)
            {
                return Poll::Ready(Some(Err(error)));
            }
            return Poll::Pending;
        };
        let frame = match frame {
            Some(Ok(frame)) => frame,
            Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
            None => return Poll::Ready(None),
        };
        let bytes = frame.data_ref().map_or(0, Bytes::len);
        let is_small = bytes <= SMALL && this.charge.bytes() == 0 && this.body.is_end_stream();
        // Checks for room even at the end of a body that arrived slowly: the answers to other
        // requests may have taken the room meanwhile.
        if !is_small && let Err(error) = this.hold(bytes) {
            return Poll::Ready(Some(Err(error)));
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Why a body cannot be read.
pub(crate) enum ReadError<E> {
    /// The body is larger than the limit.
    TooLarge,
    /// The body ended with an error: the client is gone, or there is no room for more.
    Body(E),
}

/// Reads a body to its end.
pub(crate) async fn read_whole<B>(body: &mut B, limit: usize) -> Result<Bytes, ReadError<B::Error>>
where
    B: Body<Data = Bytes> + Unpin,
{
    // Most bodies are one part, which need not be copied.
    let mut first = Bytes::new();
    let mut all = Vec::new();
    poll_fn(|context| {
        loop {
            let frame = Pin::new(&mut *body).poll_frame(context);
            if frame.is_pending() {
                // A part may keep a larger buffer of the connection in memory, so a part that has to
                // wait for others is copied.
                all.extend_from_slice(&std::mem::take(&mut first));
            }
            let data = match ready!(frame) {
                Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
                Some(Err(error)) => return Poll::Ready(Err(ReadError::Body(error))),
                None => return Poll::Ready(Ok(())),
            };
            if first.len() + all.len() + data.len() > limit {
                return Poll::Ready(Err(ReadError::TooLarge));
            }
            if first.is_empty() && all.is_empty() {
                first = data;
            } else {
                all.extend_from_slice(&std::mem::take(&mut first));
                all.extend_from_slice(&data);
            }
            if body.is_end_stream() {
                return Poll::Ready(Ok(()));
            }
        }
    })
    .await?;
    match all.is_empty() {
        true => Ok(first),
        false => Ok(all.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::{StreamExt, stream};
    use http_body_util::{Full, StreamBody};

    use super::*;

    #[tokio::test]
    async fn parts_are_put_together_within_the_limit() {
        let body = || {
            let parts = ["ab", "", "c", "defg"].map(|part| Frame::data(Bytes::from(part)));
            // Each part arrives in a separate poll.
            StreamBody::new(Box::pin(stream::iter(parts).then(|part| async {
                tokio::task::yield_now().await;
                Ok::<_, Infallible>(part)
            })))
        };
        let read = read_whole(&mut body(), 7).await;
        assert!(matches!(read, Ok(bytes) if bytes == "abcdefg"));
        let read = read_whole(&mut body(), 6).await;
        assert!(matches!(read, Err(ReadError::TooLarge)));
        let one = Bytes::from("abc");
        let read = read_whole(&mut Full::new(one.clone()), 3).await;
        assert!(matches!(read, Ok(bytes) if bytes.as_ptr() == one.as_ptr()));
        assert!(matches!(
            read_whole(&mut Full::new(one), 2).await,
            Err(ReadError::TooLarge)
        ));
    }
}
