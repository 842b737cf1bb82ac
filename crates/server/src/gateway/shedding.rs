//! Sheds requests to upstreams that are saturated.
//!
//! `adaptive` limits how many requests wait for the head of an upstream's answer at the same time. The limit follows
//! the latency of the upstream. If there are more requests, the least important ones get 503 first. Requests of exempt
//! paths always pass. A request counts until the head of its answer arrives, even if the body is streamed for longer:
//! otherwise a few long streams could stop all other requests.

use std::sync::Arc;

use http::StatusCode;
use tokio::time::Instant;
use tollgate::{Decision, InFlight, Saturated, Shedder, Snapshot, Span};
use tollgate_config::{Adaptive, Priorities, Route};
use tollgate_respond::is_overload;

use super::client_body::{ClientBody, Progress};
use super::upstream::UpstreamError;
use super::{DoorConfig, Gateway};
use crate::outbound::Seldom;
use crate::question::{AttributeMap, Question, Refund};
use crate::respond::RequestError;
use crate::trace::Origin;

/// The shedder of an upstream, and the names of its classes.
pub(crate) struct Shedding {
    shedder: Arc<Shedder>,
    priorities: Priorities,
    log: Seldom,
}

/// A request that may be shed.
pub(super) struct Sheddable<'s, 'a> {
    shedding: &'s Shedding,
    class: usize,
    attributes: AttributeMap<'a>,
}

/// A request to an upstream that sheds. If it is dropped, the client has given up.
pub(super) struct Passing {
    /// `None` after the end.
    in_flight: Option<InFlight>,
    progress: Option<Arc<Progress>>,
}

impl DoorConfig {
    /// Returns what sheds requests of a route.
    pub(super) fn shedding_of(&self, route: Option<&Route>) -> Option<&Shedding> {
        let upstream = self.upstreams.find(route.and_then(Route::upstream))?;
        upstream.shedding()
    }
}

impl Gateway {
    /// Counts an allowed request as in flight, if it may be shed. If its upstream is saturated, gives back what the request was
    /// charged: a request that is denied costs nothing.
    pub(super) async fn start(
        &self,
        shed: Option<Sheddable<'_, '_>>,
        decision: &Decision,
        body: &ClientBody,
        snapshot: &Snapshot<'_>,
        origin: &Origin,
    ) -> Result<Option<Passing>, RequestError> {
        let Some(shed) = shed else {
            return Ok(None);
        };
        match shed.shedding.start(shed.class) {
            Ok(in_flight) => Ok(Some(Passing {
                in_flight: Some(in_flight),
                progress: body.progress(),
            })),
            Err(saturated) => {
                let refund = Question::Refund(Refund {
                    attributes: shed.attributes,
                    units: 1,
                    charged_at: decision.decided_at(),
                });
                let _ = self.backend.answer(snapshot, &refund, origin).await;
                Err(RequestError::Saturated(saturated))
            }
        }
    }
}

impl Shedding {
    pub(super) fn new(config: &Adaptive, priorities: &Priorities) -> Option<Shedding> {
        let classes = priorities.names().len();
        // The config has checked the numbers.
        let shedder = Shedder::new(config.numbers, classes, config.reserve).ok()?;
        Some(Shedding {
            shedder,
            priorities: priorities.clone(),
            log: Seldom::default(),
        })
    }

    /// Denies a request if its upstream is saturated, before its rules are asked.
    pub(super) fn ask<'a>(
        &self,
        attributes: &AttributeMap<'a>,
    ) -> Result<Sheddable<'_, 'a>, RequestError> {
        let class = self.priorities.class_of(attributes.get("priority"));
        if !self.shedder.has_room(class) {
            // Counts and logs the denial. If there is room meanwhile, the rules are asked first.
            drop(self.start(class).map_err(RequestError::Saturated)?);
        }
        Ok(Sheddable {
            shedding: self,
            class,
            attributes: attributes.clone(),
        })
    }

    fn start(&self, class: usize) -> Result<InFlight, Saturated> {
        self.shedder.try_start(class).inspect_err(|_| {
            if let Some(unlogged) = self.log.due() {
                let (limit, in_flight) = (self.shedder.limit(), self.shedder.in_flight());
                tracing::warn!(
                    limit,
                    in_flight,
                    unlogged,
                    "an upstream is saturated, and requests to it are shed"
                );
            }
        })
    }

    pub(crate) fn shedder(&self) -> &Shedder {
        &self.shedder
    }

    /// Returns how many requests were denied, by the name of their class.
    pub(crate) fn denied(&self) -> impl Iterator<Item = (&str, u64)> {
        let names = self.priorities.names().iter().map(String::as_str);
        names.zip(self.shedder.denied())
    }
}

impl Passing {
    /// Returns whether the upstream should be told to give a cheaper answer.
    pub(super) fn is_degraded(&self) -> bool {
        self.in_flight.as_ref().is_some_and(InFlight::is_degraded)
    }

    /// Ends the request with the status of its answer, or with the error of the upstream.
    pub(super) fn end(mut self, answer: Result<StatusCode, UpstreamError>) {
        let Some(in_flight) = self.in_flight.take() else {
            return;
        };
        let failed = match answer {
            Ok(status) => is_overload(status),
            // The client is at fault, or the request was never sent.
            Err(UpstreamError::Body(_) | UpstreamError::ClientBusy) => return in_flight.cancel(),
            Err(_) => true,
        };
        match self.waited() {
            None => in_flight.answered(failed),
            Some(waited) => in_flight.answered_after(waited, failed),
        }
    }

    /// Returns for how long the upstream has had the whole body, or the part that the client has sent; `None` without a
    /// body.
    fn waited(&self) -> Option<Span> {
        let last = self.progress.as_ref()?.last();
        let waited = Instant::now().saturating_duration_since(last).as_micros();
        Some(Span::from_micros(u64::try_from(waited).unwrap_or(u64::MAX)))
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        if let Some(in_flight) = self.in_flight.take()
            && let Some(waited) = self.waited()
        {
            in_flight.given_up_after(waited);
        }
    }
}
