//! The body of a response. It keeps the slots of its request until it has ended.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::lease::Lease;

pin_project! {
    /// The body of the service's response, or of a denial.
    #[derive(Debug)]
    pub struct LimitedBody<B> {
        #[pin]
        content: Content<B>,
        lease: Option<Lease>,
    }
}

pin_project! {
    #[derive(Debug)]
    #[project = ContentProject]
    enum Content<B> {
        Service { #[pin] body: B },
        Denial { body: Option<Bytes> },
    }
}

impl<B> LimitedBody<B> {
    pub(crate) fn of_service(body: B, lease: Option<Lease>) -> LimitedBody<B> {
        let content = Content::Service { body };
        LimitedBody { content, lease }
    }

    pub(crate) fn of_denial(body: Bytes) -> LimitedBody<B> {
        let body = Some(body).filter(|body| !body.is_empty());
        LimitedBody {
            content: Content::Denial { body },
            lease: None,
        }
    }
}

/// The body of a response without content.
impl<B> Default for LimitedBody<B> {
    fn default() -> LimitedBody<B> {
        LimitedBody::of_denial(Bytes::new())
    }
}

impl<B: Body<Data = Bytes>> Body for LimitedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.project();
        let frame = match this.content.project() {
            ContentProject::Service { body } => body.poll_frame(context),
            ContentProject::Denial { body } => {
                Poll::Ready(body.take().map(|it| Ok(Frame::data(it))))
            }
        };
        if let Poll::Ready(None | Some(Err(_))) = &frame {
            *this.lease = None;
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Service { body } => body.is_end_stream(),
            Content::Denial { body } => body.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Service { body } => body.size_hint(),
            Content::Denial { body } => {
                let length = body.as_ref().map_or(0, Bytes::len);
                SizeHint::with_exact(length as u64)
            }
        }
    }
}
