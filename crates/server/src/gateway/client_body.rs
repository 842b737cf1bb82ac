//! The body of a client's request, on its way to an upstream: within its bound, and without long pauses.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::bounds::BODY_TIMEOUT;
use super::headers::Callers;
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
    callers: Callers,
    /// Whether the client is a trusted proxy.
    is_trusted: bool,
}

/// How far a body has arrived. The upstream need not answer before its last part.
pub(super) struct Progress {
    last: Mutex<Instant>,
    /// Whether the upstream could take more, and the client has not sent it.
    is_awaited: AtomicBool,
    error: Mutex<Option<BodyError>>,
}

impl Progress {
    fn new() -> Arc<Progress> {
        Arc::new(Progress {
            last: Mutex::new(Instant::now()),
            is_awaited: AtomicBool::new(false),
            error: Mutex::default(),
        })
    }

    /// Returns when the last part of the body arrived.
    pub(super) fn last(&self) -> Instant {
        *self.last.lock()
    }

    /// Returns whether the next part of the body is the client's to send.
    pub(super) fn is_awaited(&self) -> bool {
        self.is_awaited.load(Ordering::Relaxed)
    }

    /// Returns why the body is not passed on to its end, if it is not.
    pub(super) fn error(&self) -> Option<BodyError> {
        *self.error.lock()
    }

    /// Ends the silence of an upstream that need not answer yet.
    pub(super) fn excuse(&self, silence: &mut Silence) {
        match self.is_awaited() {
            true => silence.heard(),
            false => silence.heard_at(self.last()),
        }
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
    /// Passes on `body`, of at most `most` bytes. Trailers are removed where headers would be.
    pub(super) fn new(
        body: Incoming,
        most: u64,
        callers: &Callers,
        is_trusted: bool,
    ) -> ClientBody {
        if body.is_end_stream() {
            return ClientBody::Empty;
        }
        ClientBody::Streamed(Box::new(Streamed {
            body,
            left: most,
            silence: Silence::new(BODY_TIMEOUT, None),
            progress: Progress::new(),
            callers: callers.clone(),
            is_trusted,
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
            self.progress.is_awaited.store(true, Ordering::Relaxed);
            ready!(self.silence.poll(context));
            return Poll::Ready(Some(Err(self.fail(BodyError::TooSlow))));
        };
        self.silence.heard();
        *self.progress.last.lock() = Instant::now();
        self.progress.is_awaited.store(false, Ordering::Relaxed);
        let mut frame = match frame {
            None => return Poll::Ready(None),
            Some(Err(_)) => return Poll::Ready(Some(Err(self.fail(BodyError::CutShort)))),
            Some(Ok(frame)) => frame,
        };
        if let Some(trailers) = frame.trailers_mut() {
            self.callers.remove_trailers(trailers, self.is_trusted);
            // Nothing comes after the trailers.
            return Poll::Ready((!trailers.is_empty()).then_some(Ok(frame)));
        }
        let bytes = frame.data_ref().map_or(0, Bytes::len);
        match self.left.checked_sub(bytes as u64) {
            None => Poll::Ready(Some(Err(self.fail(BodyError::TooLarge)))),
            Some(left) => {
                self.left = left;
                Poll::Ready(Some(Ok(frame)))
            }
        }
    }

    /// Notes why the body is not passed on to its end.
    fn fail(&self, error: BodyError) -> BodyError {
        *self.progress.error.lock() = Some(error);
        error
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
