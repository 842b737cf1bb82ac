//! A layer that sheds requests to a service that is saturated.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::request::Parts;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body::Body;
use pin_project_lite::pin_project;
use tollgate::{AdaptiveNumbers, InFlight, ParamError, Saturated, Shedder};
use tollgate_respond::{ErrorBody, JSON, is_overload, json};
use tower_layer::Layer;
use tower_service::Service;

use crate::body::LimitedBody;

/// In the extensions of a request: the limit is nearly used. A service that finds this may give a
/// cheaper answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Degraded;

/// Sheds requests to a service that is saturated: the number of requests in flight follows the latency of the
/// service, and the least important requests are denied first.
///
/// A denied request gets 503 with `Retry-After` and the code `SERVICE_SATURATED`. A request that is admitted when
/// the limit is nearly used carries [`Degraded`] in its extensions.
///
/// ```
/// use axum::{Router, routing::get};
/// use tollgate::AdaptiveNumbers;
/// use tollgate_tower::ShedLayer;
///
/// // Three classes: 0 for requests of paying clients, 1 for others, 2 for crawlers.
/// let layer = ShedLayer::new(AdaptiveNumbers::default())?.classes(3, 30, |parts| {
///     match parts.headers.get("x-plan").map(|plan| plan.as_bytes()) {
///         Some(b"paid") => 0,
///         Some(b"crawler") => 2,
///         _ => 1,
///     }
/// })?;
/// let app: Router = Router::new().route("/", get(|| async { "hello" })).layer(layer);
/// # Ok::<(), tollgate::ParamError>(())
/// ```
#[derive(Clone)]
pub struct ShedLayer<F = fn(&Parts) -> usize> {
    shedder: Arc<Shedder>,
    numbers: AdaptiveNumbers,
    class: F,
}

/// A service whose requests may be shed.
#[derive(Clone)]
pub struct Shed<F, N> {
    inner: N,
    shedder: Arc<Shedder>,
    class: F,
}

/// The class of requests that are never shed and do not count, such as health checks.
pub const NEVER_SHED: usize = usize::MAX;

impl ShedLayer {
    /// Makes a layer for requests that are all equally important. Services that are made with one layer share its
    /// limit.
    ///
    /// # Errors
    /// If the numbers are out of range.
    pub fn new(numbers: AdaptiveNumbers) -> Result<ShedLayer, ParamError> {
        Ok(ShedLayer {
            shedder: Shedder::new(numbers, 1, 0)?,
            numbers,
            class: |_| 0,
        })
    }
}

impl<F> ShedLayer<F> {
    /// Divides requests into `count` classes, 0 the most important. The last class may not use `reserve` percent of
    /// the limit, at most 50. Requests of the class [`NEVER_SHED`] always pass.
    ///
    /// # Errors
    /// If the numbers of the limit or the reserve are out of range.
    pub fn classes<G>(
        self,
        count: usize,
        reserve: u64,
        class: G,
    ) -> Result<ShedLayer<G>, ParamError>
    where
        G: Fn(&Parts) -> usize + Clone,
    {
        Ok(ShedLayer {
            shedder: Shedder::new(self.numbers, count, reserve)?,
            numbers: self.numbers,
            class,
        })
    }

    /// Returns the limit and its counts, for metrics.
    #[must_use]
    pub fn shedder(&self) -> &Arc<Shedder> {
        &self.shedder
    }
}

impl<F> fmt::Debug for ShedLayer<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("ShedLayer");
        shown
            .field("shedder", &self.shedder)
            .finish_non_exhaustive()
    }
}

impl<F, N: fmt::Debug> fmt::Debug for Shed<F, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Shed");
        shown.field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<F: Clone, N> Layer<N> for ShedLayer<F> {
    type Service = Shed<F, N>;

    fn layer(&self, inner: N) -> Shed<F, N> {
        Shed {
            inner,
            shedder: Arc::clone(&self.shedder),
            class: self.class.clone(),
        }
    }
}

impl<F, N, A, B> Service<Request<A>> for Shed<F, N>
where
    F: Fn(&Parts) -> usize,
    N: Service<Request<A>, Response = Response<B>>,
    B: Body<Data = Bytes>,
{
    type Response = Response<LimitedBody<B>>;
    type Error = N::Error;
    type Future = ShedFuture<N::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), N::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<A>) -> ShedFuture<N::Future> {
        let (mut parts, body) = request.into_parts();
        let started = match (self.class)(&parts) {
            NEVER_SHED => Ok(None),
            class => self.shedder.try_start(class).map(Some),
        };
        let state = match started {
            Err(saturated) => State::Denied {
                saturated: Some(saturated),
            },
            Ok(in_flight) => {
                if in_flight.as_ref().is_some_and(InFlight::is_degraded) {
                    parts.extensions.insert(Degraded);
                }
                State::Running {
                    service: self.inner.call(Request::from_parts(parts, body)),
                    in_flight,
                }
            }
        };
        ShedFuture { state }
    }
}

pin_project! {
    /// The future of a response: that of the service, or a denial.
    pub struct ShedFuture<F> {
        #[pin]
        state: State<F>,
    }
}

pin_project! {
    #[project = StateProject]
    enum State<F> {
        Denied { saturated: Option<Saturated> },
        Running { #[pin] service: F, in_flight: Option<InFlight> },
    }
}

impl<F> fmt::Debug for ShedFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShedFuture").finish_non_exhaustive()
    }
}

impl<F, B, E> Future for ShedFuture<F>
where
    F: Future<Output = Result<Response<B>, E>>,
{
    type Output = Result<Response<LimitedBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            StateProject::Denied { saturated } => {
                let answer = saturated.take().map(denial).unwrap_or_default();
                Poll::Ready(Ok(answer.map(LimitedBody::of_denial)))
            }
            StateProject::Running { service, in_flight } => {
                let response = ready!(service.poll(context));
                if let Some(in_flight) = in_flight.take() {
                    in_flight.answered(match &response {
                        Ok(response) => is_overload(response.status()),
                        Err(_) => true,
                    });
                }
                Poll::Ready(response.map(|it| it.map(|body| LimitedBody::of_service(body, None))))
            }
        }
    }
}

fn denial(saturated: Saturated) -> Response<Bytes> {
    let body = ErrorBody {
        code: "SERVICE_SATURATED",
        message: saturated.to_string(),
    };
    let mut response = json(StatusCode::SERVICE_UNAVAILABLE, JSON, &body);
    let seconds = HeaderValue::from(saturated.retry_after.as_secs_ceil());
    response.headers_mut().insert(RETRY_AFTER, seconds);
    response
}
