//! The body of an answer, on its way from an upstream to the client.
//!
//! Each part is passed on when it arrives. The body holds the connection to the server, the slots of the
//! request and its line of the access log. All end with the body, or when the client goes away.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::Body as OwnBody;
use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};

use super::access_log::Line;
use super::client_body::Progress;
use super::silence::Silence;
use super::slots::Slot;
use super::upstream::{Http1, OpenRequest};
use crate::http::activity::Active;
use crate::net::ConnectionError;
use crate::trace::RequestSpan;

/// The body of an answer of the gateway.
pub(crate) struct GatewayBody {
    source: Source,
    /// The line of the access log. It is written when the body is dropped.
    line: Option<Box<Line>>,
    /// The span of the request. It ends with the body.
    _span: Option<RequestSpan>,
    /// Counts as an open request of its connection.
    active: Option<Active>,
}

enum Source {
    /// An answer of the gateway itself.
    Own(OwnBody),
    Relayed(Box<Relay>),
}

/// A body that an upstream sends.
pub(super) struct Relay {
    body: Incoming,
    /// `None` once the body has ended.
    silence: Option<Silence>,
    /// The body of the request. The upstream may be silent while it arrives.
    progress: Option<Arc<Progress>>,
    /// `None` once the body has ended.
    open: Option<OpenRequest>,
    /// The connection; `None` over HTTP/2, and once the body has ended.
    http1: Option<Box<Http1>>,
    slot: Option<Slot>,
    /// Whether the size of the body is hidden from HTTP/2, which would count it as held memory.
    hides_size: bool,
    /// An error that the next poll returns, so that the parts before it are sent first.
    error: Option<ConnectionError>,
}

/// The upstream paused for too long within its answer.
#[derive(Debug, thiserror::Error)]
#[error("the upstream paused for too long within its answer")]
struct Silent;

impl GatewayBody {
    pub(super) fn own(body: OwnBody, line: Option<Box<Line>>) -> GatewayBody {
        GatewayBody {
            source: Source::Own(body),
            line,
            _span: None,
            active: None,
        }
    }

    pub(super) fn relayed(
        relay: Relay,
        line: Option<Box<Line>>,
        span: Option<RequestSpan>,
    ) -> GatewayBody {
        GatewayBody {
            source: Source::Relayed(Box::new(relay)),
            line,
            _span: span,
            active: None,
        }
    }

    /// Counts as an open request until the body is dropped.
    pub(super) fn while_active(mut self, active: Active) -> GatewayBody {
        self.active = Some(active);
        self
    }

    /// Returns whether an upstream sends this body.
    pub(super) fn is_relayed(&self) -> bool {
        matches!(self.source, Source::Relayed(_))
    }

    /// Hides the size of a body that is passed on.
    pub(super) fn without_size(mut self) -> GatewayBody {
        if let Source::Relayed(relay) = &mut self.source {
            relay.hides_size = true;
        }
        self
    }
}

impl Relay {
    pub(super) fn new(
        body: Incoming,
        (silence, progress): (Silence, Option<Arc<Progress>>),
        open: OpenRequest,
        http1: Option<Box<Http1>>,
        slot: Option<Slot>,
    ) -> Relay {
        Relay {
            body,
            silence: Some(silence),
            progress,
            open: Some(open),
            http1,
            slot,
            hides_size: false,
            error: None,
        }
    }

    fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ConnectionError>>> {
        if let Some(error) = self.error.take() {
            return Poll::Ready(Some(Err(error)));
        }
        let body = &mut self.body;
        let frame = match &mut self.http1 {
            Some(http1) => http1.poll_with(context, |it| Pin::new(&mut *body).poll_frame(it)),
            None => Pin::new(body).poll_frame(context),
        };
        let Poll::Ready(frame) = frame else {
            return match &mut self.silence {
                Some(silence) => {
                    if let Some(progress) = &self.progress {
                        progress.excuse(silence);
                    }
                    silence.poll(context).map(|()| Some(Err(Silent.into())))
                }
                None => Poll::Pending,
            };
        };
        if frame.is_none() || self.body.is_end_stream() {
            self.end(context);
        } else if let Some(silence) = &mut self.silence {
            silence.heard();
        }
        match frame {
            Some(Err(error)) => {
                self.error = Some(error.into());
                context.waker().wake_by_ref();
                Poll::Pending
            }
            Some(Ok(frame)) => Poll::Ready(Some(Ok(frame))),
            None => Poll::Ready(None),
        }
    }

    /// Gives the slots back, and keeps the connection for another request.
    pub(super) fn end(&mut self, context: &mut Context<'_>) {
        self.slot = None;
        let timer = self.silence.take().and_then(Silence::into_timer);
        match (self.open.take(), self.http1.take()) {
            (Some(open), Some(mut http1)) => {
                http1.timer = timer;
                open.end(http1, context);
            }
            ended => drop(ended),
        }
    }

    /// Returns whether some of the body was not passed on.
    fn is_cut_short(&self) -> bool {
        self.open.is_some() && self.body.size_hint().exact() != Some(0)
    }

    /// Returns whether there is nothing to pass on.
    pub(super) fn is_empty(&self) -> bool {
        self.body.is_end_stream()
    }
}

impl Drop for GatewayBody {
    fn drop(&mut self) {
        // The client went away.
        if let (Some(line), Source::Relayed(relay)) = (&mut self.line, &self.source)
            && relay.is_cut_short()
        {
            line.broken();
        }
    }
}

impl Body for GatewayBody {
    type Data = Bytes;
    type Error = ConnectionError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ConnectionError>>> {
        let this = self.get_mut();
        let frame = match &mut this.source {
            Source::Own(body) => {
                let frame = ready!(Pin::new(body).poll_frame(context));
                frame.map(|frame| frame.map_err(axum::Error::into_inner))
            }
            Source::Relayed(relay) => ready!(relay.poll_frame(context)),
        };
        if let Some(line) = &mut this.line {
            match &frame {
                Some(Ok(frame)) => line.sent(frame.data_ref().map_or(0, Bytes::len) as u64),
                Some(Err(_)) => line.broken(),
                None => {}
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            Source::Own(body) => body.is_end_stream(),
            Source::Relayed(relay) => relay.body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Own(body) => body.size_hint(),
            Source::Relayed(relay) if relay.hides_size => SizeHint::default(),
            Source::Relayed(relay) => relay.body.size_hint(),
        }
    }
}
