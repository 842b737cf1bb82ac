//! Tollgate's own service, `tollgate.v1.Tollgate`: the methods of the HTTP API as messages. `respond`
//! turns decisions and errors into messages and statuses.

mod request;

use std::sync::Arc;
use std::time::Duration;

use tollgate::Engine;
use tonic::{Request, Response, Status};

use self::pb::tollgate_server::{Tollgate, TollgateServer};
use super::bounds::{MAX_BATCH_MESSAGE, MAX_MESSAGE, MAX_WAIT, REQUEST_TIMEOUT};
use super::pb;
use crate::backend::Backend;
use crate::question::{BadQuestion, Question};
use crate::respond::FromAnswer;
use crate::trace::Origin;

/// The method whose messages may have up to `MAX_BATCH_MESSAGE` bytes.
const BATCH: &str = "/CheckBatch";

/// The method that may wait for a free slot.
const WAITING: &str = "/AcquireLease";

const DOOR: &str = "grpc";

/// The service with two bounds on the size of a message: one for batches, one for everything else.
#[derive(Clone)]
pub(super) struct Own {
    single: TollgateServer<Service>,
    batch: TollgateServer<Service>,
}

impl Own {
    pub(super) fn new(engine: Arc<Engine>) -> Own {
        let service = Arc::new(Service(Backend::new(engine)));
        let of =
            |size| TollgateServer::from_arc(Arc::clone(&service)).max_decoding_message_size(size);
        Own {
            single: of(MAX_MESSAGE),
            batch: of(MAX_BATCH_MESSAGE),
        }
    }

    /// Returns whether `method`, with its slash, takes a batch.
    pub(super) fn is_batch(method: &str) -> bool {
        method == BATCH
    }

    /// Returns how long `method`, with its slash, may take.
    pub(super) fn timeout(method: &str) -> Duration {
        match method == WAITING {
            true => REQUEST_TIMEOUT + MAX_WAIT,
            false => REQUEST_TIMEOUT,
        }
    }

    /// Returns the service with the right bound for `method`.
    pub(super) fn serving(&self, method: &str) -> TollgateServer<Service> {
        match Own::is_batch(method) {
            true => self.batch.clone(),
            false => self.single.clone(),
        }
    }
}

/// The methods of the service. Each translates its message to a question, and the answer back.
pub(super) struct Service(Backend);

type Reply<T> = Result<Response<T>, Status>;

impl Service {
    /// Answers the question that `read` finds in the message.
    async fn answer<M, T, R>(&self, request: Request<M>, read: R) -> Reply<T>
    where
        R: for<'m> FnOnce(&'m M) -> Result<Question<'m>, BadQuestion>,
        T: FromAnswer,
    {
        let origin = Origin::new(DOOR, request.metadata().as_ref());
        let message = request.into_inner();
        let question = read(&message)?;
        let snapshot = self.0.engine.snapshot();
        let answer = self.0.answer(&snapshot, &question, &origin).await?;
        let message = T::from_answer(&answer);
        let message = message.ok_or_else(|| Status::internal("unexpected answer"))?;
        Ok(Response::new(message))
    }
}

#[tonic::async_trait]
impl Tollgate for Service {
    async fn check(&self, request: Request<pb::CheckRequest>) -> Reply<pb::Decision> {
        self.answer(request, pb::CheckRequest::question).await
    }

    async fn check_batch(
        &self,
        request: Request<pb::CheckBatchRequest>,
    ) -> Reply<pb::CheckBatchResponse> {
        self.answer(request, pb::CheckBatchRequest::question).await
    }

    async fn peek(&self, request: Request<pb::CheckRequest>) -> Reply<pb::Decision> {
        self.answer(request, pb::CheckRequest::peek).await
    }

    async fn refund(&self, request: Request<pb::RefundRequest>) -> Reply<pb::Decision> {
        self.answer(request, pb::RefundRequest::question).await
    }

    async fn reserve(&self, request: Request<pb::ReserveRequest>) -> Reply<pb::ReserveResponse> {
        self.answer(request, pb::ReserveRequest::question).await
    }

    async fn commit(&self, request: Request<pb::CommitRequest>) -> Reply<pb::Reservation> {
        self.answer(request, pb::CommitRequest::question).await
    }

    async fn release(&self, request: Request<pb::ReleaseRequest>) -> Reply<pb::Reservation> {
        self.answer(request, pb::ReleaseRequest::question).await
    }

    async fn extend(&self, request: Request<pb::ExtendRequest>) -> Reply<pb::Reservation> {
        self.answer(request, pb::ExtendRequest::question).await
    }

    async fn get_reservation(
        &self,
        request: Request<pb::GetReservationRequest>,
    ) -> Reply<pb::Reservation> {
        self.answer(request, pb::GetReservationRequest::question)
            .await
    }

    async fn acquire_lease(
        &self,
        request: Request<pb::AcquireLeaseRequest>,
    ) -> Reply<pb::AcquireLeaseResponse> {
        self.answer(request, pb::AcquireLeaseRequest::question)
            .await
    }

    async fn renew_lease(&self, request: Request<pb::RenewLeaseRequest>) -> Reply<pb::Lease> {
        self.answer(request, pb::RenewLeaseRequest::question).await
    }

    async fn release_lease(&self, request: Request<pb::ReleaseLeaseRequest>) -> Reply<pb::Lease> {
        self.answer(request, pb::ReleaseLeaseRequest::question)
            .await
    }

    async fn list_holders(
        &self,
        request: Request<pb::ListHoldersRequest>,
    ) -> Reply<pb::ListHoldersResponse> {
        self.answer(request, pb::ListHoldersRequest::question).await
    }

    async fn get_usage(
        &self,
        request: Request<pb::GetUsageRequest>,
    ) -> Reply<pb::GetUsageResponse> {
        self.answer(request, pb::GetUsageRequest::question).await
    }
}
