//! Tollgate's own service, `tollgate.v1.Tollgate`: the verbs of the HTTP API as messages. What becomes
//! of decisions and errors is written in `respond`.

mod holds;
mod request;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tollgate::Engine;
use tonic::{Request, Response, Status};

use self::pb::tollgate_server::{Tollgate, TollgateServer};
pub(crate) use self::request::BadMessage;
use super::bounds::{MAX_BATCH_MESSAGE, MAX_MESSAGE, MAX_WAIT, REQUEST_TIMEOUT};
use super::pb;
use crate::respond::message;
use crate::trace::Origin;
use crate::usage::Books;
use crate::waiting::Waiting;

/// The method whose messages may be larger than those of others.
const BATCH: &str = "/CheckBatch";

/// The method that may wait for others.
const WAITING: &str = "/AcquireLease";

const DOOR: &str = "grpc";

/// The service, twice: for messages of ordinary size, and for batches.
#[derive(Clone)]
pub(super) struct Own {
    single: TollgateServer<Verbs>,
    batch: TollgateServer<Verbs>,
}

impl Own {
    pub(super) fn new(engine: Arc<Engine>) -> Own {
        let waiting = Waiting::new();
        let books = Books::default();
        let verbs = Arc::new(Verbs {
            engine,
            waiting,
            books,
        });
        let of =
            |size| TollgateServer::from_arc(Arc::clone(&verbs)).max_decoding_message_size(size);
        Own {
            single: of(MAX_MESSAGE),
            batch: of(MAX_BATCH_MESSAGE),
        }
    }

    /// Whether a method, with its slash, takes batches.
    pub(super) fn is_batch(method: &str) -> bool {
        method == BATCH
    }

    /// How long a method, with its slash, may take.
    pub(super) fn timeout(method: &str) -> Duration {
        match method == WAITING {
            true => REQUEST_TIMEOUT + MAX_WAIT,
            false => REQUEST_TIMEOUT,
        }
    }

    /// The service for a method.
    pub(super) fn serving(&self, method: &str) -> TollgateServer<Verbs> {
        match Own::is_batch(method) {
            true => self.batch.clone(),
            false => self.single.clone(),
        }
    }
}

/// What the service does.
pub(super) struct Verbs {
    engine: Arc<Engine>,
    waiting: Waiting,
    books: Books,
}

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl Tollgate for Verbs {
    async fn check(&self, request: Request<pb::CheckRequest>) -> Answer<pb::Decision> {
        let (origin, request) = opened(request);
        let (attributes, ask) = request.read()?;
        let engine = &*self.engine;
        let asking = engine.ask(&attributes, ask);
        let decision = origin.trace(engine, "check", asking).await;
        Ok(Response::new(message::decision(&decision)))
    }

    async fn check_batch(
        &self,
        request: Request<pb::CheckBatchRequest>,
    ) -> Answer<pb::CheckBatchResponse> {
        let (origin, request) = opened(request);
        let checks = request.read()?;
        let pinned = &self.engine.snapshot();
        // All at once, so that those of a shared store travel together.
        let asked = checks.iter().map(|(attributes, ask)| {
            let asking = pinned.ask(attributes, *ask);
            origin.trace(pinned, "check", asking)
        });
        let decisions = join_all(asked).await;
        let decisions = decisions.iter().map(message::decision).collect();
        Ok(Response::new(pb::CheckBatchResponse { decisions }))
    }

    async fn peek(&self, request: Request<pb::CheckRequest>) -> Answer<pb::Decision> {
        let (origin, request) = opened(request);
        let (attributes, ask) = request.read()?;
        let engine = &*self.engine;
        let asking = engine.peek(&attributes, ask);
        let decision = origin.trace(engine, "peek", asking).await;
        Ok(Response::new(message::decision(&decision)))
    }

    async fn refund(&self, request: Request<pb::RefundRequest>) -> Answer<pb::Decision> {
        let (origin, request) = opened(request);
        let (attributes, units, charged_at) = request.read()?;
        let engine = &*self.engine;
        let asking = engine.refund(&attributes, units, charged_at);
        let decision = origin.trace(engine, "refund", asking).await;
        let decision = decision.map_err(|error| message::unavailable(&error))?;
        Ok(Response::new(message::decision(&decision)))
    }

    async fn reserve(&self, request: Request<pb::ReserveRequest>) -> Answer<pb::ReserveResponse> {
        holds::reserve(self, request).await
    }

    async fn commit(&self, request: Request<pb::CommitRequest>) -> Answer<pb::Reservation> {
        holds::commit(self, request).await
    }

    async fn release(&self, request: Request<pb::ReleaseRequest>) -> Answer<pb::Reservation> {
        holds::release(self, request).await
    }

    async fn extend(&self, request: Request<pb::ExtendRequest>) -> Answer<pb::Reservation> {
        holds::extend(self, request).await
    }

    async fn get_reservation(
        &self,
        request: Request<pb::GetReservationRequest>,
    ) -> Answer<pb::Reservation> {
        holds::get_reservation(self, request).await
    }

    async fn acquire_lease(
        &self,
        request: Request<pb::AcquireLeaseRequest>,
    ) -> Answer<pb::AcquireLeaseResponse> {
        holds::acquire_lease(self, request).await
    }

    async fn renew_lease(&self, request: Request<pb::RenewLeaseRequest>) -> Answer<pb::Lease> {
        holds::renew_lease(self, request).await
    }

    async fn release_lease(&self, request: Request<pb::ReleaseLeaseRequest>) -> Answer<pb::Lease> {
        holds::release_lease(self, request).await
    }

    async fn list_holders(
        &self,
        request: Request<pb::ListHoldersRequest>,
    ) -> Answer<pb::ListHoldersResponse> {
        holds::list_holders(self, request).await
    }

    async fn get_usage(
        &self,
        request: Request<pb::GetUsageRequest>,
    ) -> Answer<pb::GetUsageResponse> {
        holds::get_usage(self, request).await
    }
}

/// A request, and which trace it is part of.
fn opened<T>(request: Request<T>) -> (Origin, T) {
    let origin = Origin::new(DOOR, request.metadata().as_ref());
    (origin, request.into_inner())
}
