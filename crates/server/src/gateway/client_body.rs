//! The body of a client's request, on its way to an upstream: within its bound, and without long pauses.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::bounds::BODY_TIMEOUT;
use super::silence::Silence;

/// The body of a request.
pub(super) enum ClientBody {
    Empty,
    /// A body that was read as a whole.
    Whole(Bytes),
    Streamed(Box<Streamed>),
}

/// A body that is passed on while it arrives.
pub(super) struct Streamed {
    body: Incoming,
    /// How many more bytes the body may have.
    left: u64,
    silence: Silence,
    progress: Arc<Progress>,
}

/// When the last part of a body arrived. The upstream need not answer earlier.
pub(super) struct Progress(Mutex<Instant>);

impl Progress {
    pub(super) fn last(&self) -> Instant {
        *self.0.lock()
    }
}

/// Why a body is not passed on to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BodyError {
    #[error("the body is larger than its bound")]
    TooLarge,
    #[error("the body took too long to arrive")]
    TooSlow,
    #[error("the body ended early")]
    CutShort,
}

impl ClientBody {
    /// Passes on `body`, of at most `most` bytes.
    pub(super) fn new(body: Incoming, most: u64) -> ClientBody {
        if body.is_end_stream() {
            return ClientBody::Empty;
        }
        ClientBody::Streamed(Box::new(Streamed {
            body,
            left: most,
            silence: Silence::new(BODY_TIMEOUT, None),
            progress: Arc::new(Progress(Mutex::new(Instant::now()))),
        }))
    }

    /// Returns a body that was read as a whole.
    pub(super) fn whole(bytes: Bytes) -> ClientBody {
        match bytes.is_empty() {
            true => ClientBody::Empty,
            false => ClientBody::Whole(bytes),
        }
    }

    /// Returns the same body again, if that is possible.
    pub(super) fn repeat(&self) -> Option<ClientBody> {
        match self {
            ClientBody::Empty => Some(ClientBody::Empty),
            ClientBody::Whole(bytes) => Some(ClientBody::Whole(bytes.clone())),
            ClientBody::Streamed(_) => None,
        }
    }

    /// Returns the progress of a body that still arrives.
    pub(super) fn progress(&self) -> Option<Arc<Progress>> {
        match self {
            ClientBody::Streamed(streamed) => Some(Arc::clone(&streamed.progress)),
            _ => None,
        }
    }
}

impl Streamed {
    fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) else {
            ready!(self.silence.poll(context));
            return Poll::Ready(Some(Err(BodyError::TooSlow)));
        };
        self.silence.heard();
        *self.progress.0.lock() = Instant::now();
        Poll::Ready(match frame {
            None => None,
            Some(Err(_)) => Some(Err(BodyError::CutShort)),
            Some(Ok(frame)) => {
                let bytes = frame.data_ref().map_or(0, Bytes::len);
                match self.left.checked_sub(bytes as u64) {
                    None => Some(Err(BodyError::TooLarge)),
                    Some(left) => {
                        self.left = left;
                        Some(Ok(frame))
                    }
                }
            }
        })
    }
}

impl Body for ClientBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.get_mut() {
            ClientBody::Empty => Poll::Ready(None),
            whole @ ClientBody::Whole(_) => match std::mem::replace(whole, ClientBody::Empty) {
                ClientBody::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
                _ => Poll::Ready(None),
            },
            ClientBody::Streamed(streamed) => streamed.poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            ClientBody::Empty => true,
            ClientBody::Whole(_) => false,
            ClientBody::Streamed(streamed) => streamed.body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            ClientBody::Empty => SizeHint::with_exact(0),
            ClientBody::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            ClientBody::Streamed(streamed) => streamed.body.size_hint(),
        }
    }
}
