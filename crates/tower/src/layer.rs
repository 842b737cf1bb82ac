//! The layer, and the service that it makes.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use futures_util::FutureExt;
use http::request::Parts;
use http::{Request, Response, StatusCode};
use http_body::Body;
use tokio::time::{Instant, sleep};
use tollgate::{
    Acquire, AcquireOutcome, ActiveConfig, Algorithm, Ask, Attributes, Decision, HasLimiter,
    HoldError, HoldName, LONGEST_MAX_WAIT, Span, Store,
};
use tollgate_respond::{ErrorBody, JSON, Responder, json};
use tower_layer::Layer;
use tower_service::Service;

use crate::attributes::RequestAttributes;
use crate::body::LimitedBody;
use crate::future::{Allowed, ResponseFuture};
use crate::lease::{AskingLease, Lease};

/// Limits the requests of services.
pub struct TollgateLayer<T, F> {
    shared: Arc<Shared<T, F>>,
}

/// A service whose requests are limited.
pub struct Tollgate<T, F, N> {
    inner: N,
    shared: Arc<Shared<T, F>>,
}

struct Shared<T, F> {
    limiter: Arc<T>,
    describe: F,
    per_rules: ArcSwapOption<PerRules>,
}

/// What the layer derives from the rules in force.
pub(crate) struct PerRules {
    generation: u64,
    pub(crate) responder: Responder,
    /// Whether a request may have to hold slots.
    has_slots: bool,
    /// Whether a request may wait for its turn.
    has_waits: bool,
}

impl<T: HasLimiter, F> TollgateLayer<T, F>
where
    F: for<'r> Fn(&mut RequestAttributes<'r>) + Send + Sync + 'static,
{
    /// Limits requests with `limiter`. `describe` sets the attributes of a request. It runs for every request,
    /// so it should be quick.
    pub fn new(limiter: Arc<T>, describe: F) -> TollgateLayer<T, F> {
        TollgateLayer {
            shared: Arc::new(Shared {
                limiter,
                describe,
                per_rules: ArcSwapOption::empty(),
            }),
        }
    }
}

impl<T, F> Clone for TollgateLayer<T, F> {
    fn clone(&self) -> Self {
        let shared = Arc::clone(&self.shared);
        TollgateLayer { shared }
    }
}

impl<T, F, N: Clone> Clone for Tollgate<T, F, N> {
    fn clone(&self) -> Self {
        let (inner, shared) = (self.inner.clone(), Arc::clone(&self.shared));
        Tollgate { inner, shared }
    }
}

impl<T, F> fmt::Debug for TollgateLayer<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TollgateLayer").finish_non_exhaustive()
    }
}

impl<T, F, N: fmt::Debug> fmt::Debug for Tollgate<T, F, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Tollgate");
        shown.field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<T, F, N> Layer<N> for TollgateLayer<T, F> {
    type Service = Tollgate<T, F, N>;

    fn layer(&self, inner: N) -> Tollgate<T, F, N> {
        let shared = Arc::clone(&self.shared);
        Tollgate { inner, shared }
    }
}

impl<T, F, N, A, B> Service<Request<A>> for Tollgate<T, F, N>
where
    T: HasLimiter,
    F: for<'r> Fn(&mut RequestAttributes<'r>) + Send + Sync + 'static,
    N: Service<Request<A>, Response = Response<B>> + Clone + Send + 'static,
    N::Future: Send,
    N::Error: Send,
    A: Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
{
    type Response = Response<LimitedBody<B>>;
    type Error = N::Error;
    type Future = ResponseFuture<N::Future, B, N::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), N::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let shared = &self.shared;
        let limiter = shared.limiter.limiter();
        let rules = shared.rules(&limiter.loaded());
        let (parts, body) = request.into_parts();
        // A decision in memory is made here, on the stack. So the request needs no future of its own.
        let mut decided = None;
        if limiter.store().is_local() && !rules.has_slots && !rules.has_waits {
            let described = shared.described(&parts);
            let attributes = described.attributes();
            decided = limiter.ask(&attributes, described.ask()).now_or_never();
        }
        if let Some(decision) = &decided
            && decision.delay() == Span::ZERO
            && decision.denial_delay() == Span::ZERO
        {
            if !decision.is_allowed() {
                return ResponseFuture::denied(rules.responder.deny(decision, &parts.headers));
            }
            let request = Request::from_parts(parts, body);
            let allowed = decided.map(|it| Allowed::new(it, rules, None));
            return ResponseFuture::running(self.inner.call(request), allowed);
        }
        // The service that was polled until it was ready is the one that is called.
        let next = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, next);
        let shared = Arc::clone(shared);
        ResponseFuture::waiting(async move {
            match shared.decide(rules, &parts, decided).await {
                Err(answer) => Ok(answer.map(LimitedBody::of_denial)),
                Ok(allowed) => {
                    let response = inner.call(Request::from_parts(parts, body)).await?;
                    Ok(allowed.complete(response))
                }
            }
        })
    }
}

impl<T: HasLimiter, F> Shared<T, F>
where
    F: for<'r> Fn(&mut RequestAttributes<'r>),
{
    fn described<'r>(&self, parts: &'r Parts) -> RequestAttributes<'r> {
        let mut described = RequestAttributes::new(parts);
        (self.describe)(&mut described);
        described
    }

    /// Returns what is derived from the rules in force.
    fn rules(&self, active: &ActiveConfig) -> Arc<PerRules> {
        match self.per_rules.load_full() {
            Some(known) if known.generation == active.generation() => known,
            _ => {
                let made = Arc::new(PerRules::new(active));
                self.per_rules.store(Some(Arc::clone(&made)));
                made
            }
        }
    }

    /// Decides a request, takes its slots, and waits as its rules say. Returns the denial as an error.
    async fn decide(
        &self,
        rules: Arc<PerRules>,
        parts: &Parts,
        decided: Option<Decision>,
    ) -> Result<Allowed, Response<Bytes>> {
        let (mut decision, lease) = match decided {
            Some(decision) => (decision, None),
            None => {
                let described = self.described(parts);
                let (attributes, units) = (described.attributes(), described.units());
                match rules.has_slots {
                    true => self.take_slots(&attributes, units).await.map_err(failed)?,
                    false => (self.ask(&attributes, units).await, None),
                }
            }
        };
        if decision.is_allowed() {
            let delay = decision.delay();
            if delay > Span::ZERO {
                sleep(delay.into()).await;
            }
            return Ok(Allowed::new(decision, rules, lease));
        }
        self.hold_back(&mut decision).await;
        Err(rules.responder.deny(&decision, &parts.headers))
    }

    /// Decides a request. Waits for its turn as long as its rules permit.
    async fn ask(&self, attributes: &Attributes<'_>, units: u64) -> Decision {
        let (ask, longest) = (Ask::Exactly(units), LONGEST_MAX_WAIT);
        self.limiter.ask_or_wait(attributes, ask, longest).await
    }

    /// Decides a request under rules of which some have slots. Not every request has such a rule.
    async fn take_slots(
        &self,
        attributes: &Attributes<'_>,
        units: u64,
    ) -> Result<(Decision, Option<Lease>), HoldError> {
        let limiter = self.limiter.limiter();
        let asking = AskingLease::new(&self.limiter);
        let acquire = Acquire {
            units: Some(units),
            asked: Some(asking.lease()),
            ..Acquire::default()
        };
        match limiter.try_acquire(attributes, &acquire, None).await {
            Err(HoldError::NothingToLease) => Ok((self.ask(attributes, units).await, None)),
            Err(error) => Err(error),
            Ok(AcquireOutcome::Denied(decision)) => Ok((decision, None)),
            Ok(AcquireOutcome::Granted {
                lease,
                token,
                decision,
            }) => {
                // A failure policy has admitted a request without an id. Such a request holds nothing.
                let held = matches!(lease.id, HoldName::Held(_));
                let held = held.then(|| asking.keep(&lease, token, decision.decided_at()));
                Ok((decision, held))
            }
        }
    }

    /// Holds a denial back, if its rule says so. The wait ends with this future if the client goes away.
    async fn hold_back(&self, decision: &mut Decision) {
        let delay = decision.denial_delay();
        if delay == Span::ZERO {
            return;
        }
        let Some(_held) = self.limiter.limiter().denial_delays().start() else {
            return;
        };
        let started = Instant::now();
        sleep(delay.into()).await;
        let passed = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
        decision.answer_later(Span::from_micros(passed));
    }
}

impl PerRules {
    fn new(active: &ActiveConfig) -> PerRules {
        let rules = active.rules();
        let mut all = rules.rules().iter();
        PerRules {
            generation: active.generation(),
            responder: Responder::new(&active.config().headers, rules),
            has_slots: all.any(|rule| rule.algorithm() == Algorithm::Concurrency),
            has_waits: active.has_waits(),
        }
    }
}

/// Makes the answer to a request whose slots could not be taken.
fn failed(error: HoldError) -> Response<Bytes> {
    let (status, code) = match error {
        HoldError::TooManyOpen { .. } => (StatusCode::TOO_MANY_REQUESTS, "TOO_MANY_HOLDS"),
        _ => (StatusCode::SERVICE_UNAVAILABLE, "STORE_UNAVAILABLE"),
    };
    let message = match error {
        // The details are not for clients.
        HoldError::Store(_) => "the store does not answer; try again later".to_owned(),
        error => error.to_string(),
    };
    json(status, JSON, &ErrorBody { code, message })
}
