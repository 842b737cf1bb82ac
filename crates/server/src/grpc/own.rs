//! Tollgate's own service, `tollgate.v1.Tollgate`: the methods of the HTTP API as messages. `respond`
//! turns decisions and errors into messages and statuses.

use std::collections::BTreeMap;

use tonic::{Request, Response, Status};

use super::pb::{self, tollgate_server::Tollgate};
use crate::backend::Backend;
use crate::ingress_time::IngressTime;
use crate::per_config::PerConfig;
use crate::question::{
    self, AttributeMap, BadQuestion, Check, Question, Refund, UsageQuestion, millis, token, units,
};
use crate::respond::FromAnswer;
use crate::trace::Origin;

/// Each method turns its message into a question, and the answer into a message.
pub(super) struct Own {
    pub(super) backend: Backend,
    pub(super) per_config: PerConfig<IngressTime>,
}

type Reply<T> = Result<Response<T>, Status>;

impl Own {
    /// Answers the question that `read` finds in the message.
    async fn answer<M, T, R>(&self, request: Request<M>, read: R) -> Reply<T>
    where
        R: for<'m> FnOnce(&'m M) -> Result<Question<'m>, BadQuestion>,
        T: FromAnswer,
    {
        let origin = Origin::new("grpc", request.metadata().as_ref());
        let started = self.backend.metrics.start();
        let (metadata, extensions, message) = request.into_parts();
        let question = read(&message)?;
        let backend = &self.backend;
        let snapshot = backend.engine.snapshot();
        let ingress_time = self.per_config.of(snapshot.active());
        let snapshot = ingress_time.apply(snapshot, &extensions, metadata.as_ref());
        let answer = backend
            .answer_or_delay(started, &snapshot, &question, &origin)
            .await?;
        let message = T::from_answer(&answer);
        let message = message.ok_or_else(|| Status::internal("unexpected answer"))?;
        Ok(Response::new(message))
    }
}

fn attributes(map: &BTreeMap<String, String>) -> Result<AttributeMap<'_>, BadQuestion> {
    let mut attributes = AttributeMap::default();
    for (name, value) in map {
        attributes.add(name.as_str(), value.as_str())?;
    }
    Ok(attributes)
}

fn check(it: &pb::CheckRequest) -> Result<Check<'_>, BadQuestion> {
    Check::new(attributes(&it.attributes)?, it.cost, it.up_to)
}

#[tonic::async_trait]
impl Tollgate for Own {
    async fn check(&self, request: Request<pb::CheckRequest>) -> Reply<pb::Decision> {
        self.answer(request, |it| check(it).map(Question::Check))
            .await
    }

    async fn check_batch(
        &self,
        request: Request<pb::CheckBatchRequest>,
    ) -> Reply<pb::CheckBatchResponse> {
        self.answer(request, |it| question::batch(it.requests.iter(), check))
            .await
    }

    async fn peek(&self, request: Request<pb::CheckRequest>) -> Reply<pb::Decision> {
        self.answer(request, |it| check(it).map(Question::Peek))
            .await
    }

    async fn refund(&self, request: Request<pb::RefundRequest>) -> Reply<pb::Decision> {
        self.answer(request, |it| {
            let attributes = attributes(&it.attributes)?;
            let refund = Refund::new(attributes, it.cost, it.charged_at_epoch_micros)?;
            Ok(Question::Refund(refund))
        })
        .await
    }

    async fn reserve(&self, request: Request<pb::ReserveRequest>) -> Reply<pb::ReserveResponse> {
        self.answer(request, |it| {
            Ok(Question::Reserve {
                attributes: attributes(&it.attributes)?,
                units: units(it.cost)?,
                ttl: it.ttl_millis.map(millis),
                idempotency_key: it.idempotency_key.as_deref().map(Into::into),
            })
        })
        .await
    }

    async fn commit(&self, request: Request<pb::CommitRequest>) -> Reply<pb::Reservation> {
        self.answer(request, |it| {
            let actual = it.actual.ok_or(BadQuestion::NoActual)?;
            Ok(Question::Commit {
                id: it.id.parse()?,
                actual: units(Some(actual))?,
            })
        })
        .await
    }

    async fn release(&self, request: Request<pb::ReleaseRequest>) -> Reply<pb::Reservation> {
        self.answer(request, |it| Ok(Question::Release(it.id.parse()?)))
            .await
    }

    async fn extend(&self, request: Request<pb::ExtendRequest>) -> Reply<pb::Reservation> {
        self.answer(request, |it| {
            let (id, ttl) = (it.id.parse()?, millis(it.ttl_millis));
            Ok(Question::Extend { id, ttl })
        })
        .await
    }

    async fn get_reservation(
        &self,
        request: Request<pb::GetReservationRequest>,
    ) -> Reply<pb::Reservation> {
        self.answer(request, |it| Ok(Question::GetReservation(it.id.parse()?)))
            .await
    }

    async fn acquire_lease(
        &self,
        request: Request<pb::AcquireLeaseRequest>,
    ) -> Reply<pb::AcquireLeaseResponse> {
        self.answer(request, |it| {
            Ok(Question::AcquireLease {
                attributes: attributes(&it.attributes)?,
                ttl: it.ttl_millis.map(millis),
                owner: it.owner.as_str().into(),
                wait: millis(it.wait_millis),
                asked: None,
            })
        })
        .await
    }

    async fn renew_lease(&self, request: Request<pb::RenewLeaseRequest>) -> Reply<pb::Lease> {
        self.answer(request, |it| {
            Ok(Question::RenewLease {
                id: it.id.parse()?,
                token: token(it.token.as_bytes())?,
                ttl: it.ttl_millis.map(millis),
            })
        })
        .await
    }

    async fn release_lease(&self, request: Request<pb::ReleaseLeaseRequest>) -> Reply<pb::Lease> {
        self.answer(request, |it| {
            let (id, token) = (it.id.parse()?, token(it.token.as_bytes())?);
            Ok(Question::ReleaseLease { id, token })
        })
        .await
    }

    async fn list_holders(
        &self,
        request: Request<pb::ListHoldersRequest>,
    ) -> Reply<pb::ListHoldersResponse> {
        self.answer(request, |it| {
            attributes(&it.attributes).map(Question::Holders)
        })
        .await
    }

    async fn get_usage(
        &self,
        request: Request<pb::GetUsageRequest>,
    ) -> Reply<pb::GetUsageResponse> {
        self.answer(request, |it| {
            let wanted = UsageQuestion {
                tenant: it.tenant.as_str().into(),
                period: it.period.as_deref().map(Into::into),
                action: it.action.as_deref().map(Into::into),
                rule: it.rule.as_deref().map(Into::into),
            };
            wanted.within_bounds().map(Question::Usage)
        })
        .await
    }
}
