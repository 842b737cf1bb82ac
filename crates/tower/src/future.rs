//! The future of a response.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::Response;
use pin_project_lite::pin_project;
use tollgate::Decision;

use crate::body::LimitedBody;
use crate::layer::PerRules;
use crate::lease::Lease;

/// The response to a request, or the error of the service.
pub(crate) type Answer<B, E> = Result<Response<LimitedBody<B>>, E>;

pin_project! {
    /// The future of a response: that of the service, with the fields of the decision, or a denial.
    pub struct ResponseFuture<F, B, E> {
        #[pin]
        state: State<F, B, E>,
    }
}

pin_project! {
    #[project = StateProject]
    enum State<F, B, E> {
        Denied { answer: Option<Response<Bytes>> },
        Running { #[pin] service: F, allowed: Option<Allowed> },
        Waiting { waiting: Pin<Box<dyn Future<Output = Answer<B, E>> + Send>> },
    }
}

/// An allowed request.
pub(crate) struct Allowed {
    /// In a box, because a decision is large, and futures are moved.
    decision: Box<Decision>,
    rules: Arc<PerRules>,
    lease: Option<Lease>,
}

impl Allowed {
    pub(crate) fn new(decision: Decision, rules: Arc<PerRules>, lease: Option<Lease>) -> Allowed {
        Allowed {
            decision: Box::new(decision),
            rules,
            lease,
        }
    }

    /// Adds the fields of the decision to a response. The body of the response keeps the slots.
    pub(crate) fn complete<B>(self, mut response: Response<B>) -> Response<LimitedBody<B>> {
        let responder = &self.rules.responder;
        responder.write_fields(response.headers_mut(), &self.decision);
        response.map(|body| LimitedBody::of_service(body, self.lease))
    }
}

impl<F, B, E> ResponseFuture<F, B, E> {
    pub(crate) fn denied(answer: Response<Bytes>) -> Self {
        let answer = Some(answer);
        let state = State::Denied { answer };
        ResponseFuture { state }
    }

    pub(crate) fn running(service: F, allowed: Option<Allowed>) -> Self {
        let state = State::Running { service, allowed };
        ResponseFuture { state }
    }

    pub(crate) fn waiting(waiting: impl Future<Output = Answer<B, E>> + Send + 'static) -> Self {
        let waiting = Box::pin(waiting);
        let state = State::Waiting { waiting };
        ResponseFuture { state }
    }
}

impl<F, B, E> fmt::Debug for ResponseFuture<F, B, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}

impl<F, B, E> Future for ResponseFuture<F, B, E>
where
    F: Future<Output = Result<Response<B>, E>>,
{
    type Output = Answer<B, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answer<B, E>> {
        match self.project().state.project() {
            StateProject::Denied { answer } => {
                let answer = answer.take().unwrap_or_default();
                Poll::Ready(Ok(answer.map(LimitedBody::of_denial)))
            }
            StateProject::Running { service, allowed } => {
                let response = ready!(service.poll(context))?;
                Poll::Ready(Ok(match allowed.take() {
                    Some(allowed) => allowed.complete(response),
                    // A future that is polled again after its end.
                    None => response.map(|body| LimitedBody::of_service(body, None)),
                }))
            }
            StateProject::Waiting { waiting } => waiting.as_mut().poll(context),
        }
    }
}
