//! Tollgate's own service, `tollgate.v1.Tollgate`: the verbs of the HTTP API as messages. What becomes
//! of decisions and errors is written in `respond`.

mod request;

use std::sync::Arc;

use futures_util::future::join_all;
use tollgate::Engine;
use tonic::{Request, Response, Status};

use self::pb::tollgate_server::{Tollgate, TollgateServer};
pub(crate) use self::request::BadMessage;
use super::bounds::{MAX_BATCH_MESSAGE, MAX_MESSAGE};
use crate::respond::message;
use crate::trace::Origin;

/// The messages and the service, made by `build.rs`.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::pedantic,
    reason = "written by a program"
)]
pub(crate) mod pb {
    tonic::include_proto!("tollgate.v1");
}

/// The file that describes the service, for reflection.
pub(super) const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/tollgate.bin"));

/// The method whose messages may be larger than those of others.
const BATCH: &str = "/CheckBatch";

const DOOR: &str = "grpc";

/// The service, twice: for messages of ordinary size, and for batches.
#[derive(Clone)]
pub(super) struct Own {
    single: TollgateServer<Verbs>,
    batch: TollgateServer<Verbs>,
}

impl Own {
    pub(super) fn new(engine: Arc<Engine>) -> Own {
        let verbs = Arc::new(Verbs { engine });
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
        let pinned = &self.engine.pinned();
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
}

/// A request, and which trace it is part of.
fn opened<T>(request: Request<T>) -> (Origin, T) {
    let origin = Origin::new(DOOR, request.metadata().as_ref());
    (origin, request.into_inner())
}
