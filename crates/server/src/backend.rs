//! Answers questions: the one way from every door to the engine.
//!
//! [`Backend::answer`] takes a [`Question`] and returns an [`Answer`] or an [`AskError`]. Both are
//! independent of protocols. `respond` turns them into what a door sends.

use std::pin::pin;
use std::sync::Arc;

use futures_util::future::{FutureExt, join_all};
use tokio::sync::Semaphore;
use tollgate::{
    Acquire, AcquireOutcome, ActiveConfig, BatchDecision, Decision, DemandError, Engine, Hold,
    HoldError, Holders, Reserve, ReserveOutcome, Snapshot, Span, Store, StoreError,
};

use crate::question::{Check, Question};
use crate::trace::Origin;
use crate::usage::{Usage, UsageError, UsageReader};

/// How many clients of a door may wait for a lease. Further clients get an answer at once, as if
/// they had not asked to wait.
const MAX_WAITING: usize = 1024;

/// The engine, with the bounds of one door on requests that may take long.
pub(crate) struct Backend {
    pub(crate) engine: Arc<Engine>,
    /// One permit for each client that may wait for a lease.
    lease_waits: Semaphore,
    usage: UsageReader,
}

/// The snapshot of a request that is being asked.
type AskedSnapshot<'s> = Snapshot<'s, Arc<dyn Store>, &'s ActiveConfig>;

/// The answer to a question.
pub(crate) enum Answer {
    /// A check: whether the request may proceed.
    Decision(Decision),
    /// The state of the limits, after a peek or a refund.
    Standing(Decision),
    /// One decision for each check of a batch, in its order.
    Batch(Vec<Decision>),
    /// Demands that were decided together.
    Demands(BatchDecision),
    Reserve(ReserveOutcome),
    Reservation(Hold),
    Acquire(AcquireOutcome),
    Lease(Hold),
    Holders(Vec<Holders>),
    Usage(Usage),
}

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AskError {
    // The details are only in the log, because clients do not need them.
    #[error("the store does not answer; try again later")]
    Store(#[source] StoreError),
    #[error("{}", hold_message(.error))]
    Hold { kind: HoldKind, error: HoldError },
    #[error(transparent)]
    Usage(#[from] UsageError),
    #[error(transparent)]
    Demand(DemandError),
}

/// Whether a question is about a reservation or a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HoldKind {
    Reservation,
    Lease,
}

fn hold_message(error: &HoldError) -> String {
    match error {
        HoldError::Store(_) => "the store does not answer; try again later".to_owned(),
        _ => error.to_string(),
    }
}

impl Backend {
    pub(crate) fn new(engine: Arc<Engine>) -> Backend {
        Backend {
            engine,
            lease_waits: Semaphore::new(MAX_WAITING),
            usage: UsageReader::default(),
        }
    }

    /// Answers `question` under the config of `snapshot`, within a span if `origin` is sampled.
    pub(crate) async fn answer(
        &self,
        snapshot: &Snapshot<'_>,
        question: &Question<'_>,
        origin: &Origin,
    ) -> Result<Answer, AskError> {
        match self.answer_now(snapshot, question, origin) {
            Some(answer) => answer,
            None => Box::pin(self.ask(snapshot, question, origin)).await,
        }
    }

    /// Like `answer`, but only if the state is in this process, and the question never waits. Then the
    /// whole decision is made on the stack, without a future. A future would have to be moved: several
    /// kilobytes for each request.
    pub(crate) fn answer_now(
        &self,
        snapshot: &Snapshot<'_>,
        question: &Question<'_>,
        origin: &Origin,
    ) -> Option<Result<Answer, AskError>> {
        let never_waits = matches!(
            question,
            Question::Check(_)
                | Question::Peek(_)
                | Question::Demands(_)
                | Question::Batch(_)
                | Question::Refund(_)
        );
        let is_ready = never_waits && self.engine.store().is_local();
        is_ready.then(|| self.ask(snapshot, question, origin).now_or_never())?
    }

    async fn ask(
        &self,
        snapshot: &Snapshot<'_>,
        question: &Question<'_>,
        origin: &Origin,
    ) -> Result<Answer, AskError> {
        let engine = &*self.engine;
        let snapshot = &snapshot.with_origin(origin.request());
        match question {
            Question::Check(it) => Ok(Answer::Decision(check(snapshot, it, origin).await)),
            Question::Peek(Check { attributes, ask }) => {
                let attributes = attributes.attributes();
                let asking = pin!(snapshot.peek(&attributes, *ask));
                let decision = origin.trace(snapshot, "peek", asking).await;
                Ok(Answer::Standing(decision))
            }
            Question::Demands(demands) => {
                let asking = pin!(snapshot.ask_all(demands));
                let decided = origin.trace(snapshot, "check", asking).await;
                Ok(Answer::Demands(decided.map_err(AskError::Demand)?))
            }
            Question::Batch(checks) => {
                // All checks start together, so that a shared store can send them in one batch.
                let asked = checks.iter().map(|it| check(snapshot, it, origin));
                Ok(Answer::Batch(join_all(asked).await))
            }
            Question::Refund(refund) => {
                let attributes = refund.attributes.attributes();
                let asking = pin!(snapshot.refund(&attributes, refund.units, refund.charged_at));
                let decision = origin.trace(snapshot, "refund", asking).await;
                decision.map(Answer::Standing).map_err(AskError::Store)
            }
            Question::Reserve {
                attributes,
                units,
                ttl,
                idempotency_key,
            } => {
                let attributes = attributes.attributes();
                let reserve = Reserve {
                    units: *units,
                    ttl: *ttl,
                    idempotency_key: idempotency_key.as_deref(),
                };
                let asking = Box::pin(snapshot.reserve(&attributes, &reserve));
                let outcome = origin.trace(snapshot, "reserve", asking).await;
                outcome.map(Answer::Reserve).map_err(of_reservation)
            }
            Question::GetReservation(id) => {
                let found = Box::pin(engine.find_hold(id)).await;
                found.map(Answer::Reservation).map_err(of_reservation)
            }
            Question::Commit { id, actual } => {
                let asking = Box::pin(engine.commit(id, *actual));
                let ended = origin.trace(snapshot, "commit", asking).await;
                ended.map(Answer::Reservation).map_err(of_reservation)
            }
            Question::Release(id) => {
                let asking = Box::pin(engine.release(id));
                let ended = origin.trace(snapshot, "release", asking).await;
                ended.map(Answer::Reservation).map_err(of_reservation)
            }
            Question::Extend { id, ttl } => {
                let asking = Box::pin(engine.extend(id, *ttl));
                let extended = origin.trace(snapshot, "extend", asking).await;
                extended.map(Answer::Reservation).map_err(of_reservation)
            }
            Question::AcquireLease {
                attributes,
                ttl,
                owner,
                wait,
            } => {
                let attributes = attributes.attributes();
                let permit = match *wait {
                    Span::ZERO => None,
                    _ => self.lease_waits.try_acquire().ok(),
                };
                let acquire = Acquire {
                    ttl: *ttl,
                    owner,
                    wait: permit.as_ref().map_or(Span::ZERO, |_| *wait),
                };
                let asking = Box::pin(snapshot.acquire(&attributes, &acquire));
                let outcome = origin.trace(snapshot, "acquire", asking).await;
                outcome.map(Answer::Acquire).map_err(of_lease)
            }
            Question::RenewLease { id, token, ttl } => {
                let asking = Box::pin(engine.renew(id, *token, *ttl));
                let renewed = origin.trace(snapshot, "renew", asking).await;
                renewed.map(Answer::Lease).map_err(of_lease)
            }
            Question::ReleaseLease { id, token } => {
                let asking = Box::pin(engine.free(id, *token));
                let freed = origin.trace(snapshot, "release_lease", asking).await;
                freed.map(Answer::Lease).map_err(of_lease)
            }
            Question::Holders(attributes) => {
                let attributes = attributes.attributes();
                let holders = Box::pin(engine.holders(&attributes)).await;
                holders.map(Answer::Holders).map_err(of_lease)
            }
            Question::Usage(wanted) => {
                let usage = Box::pin(self.usage.read(engine, wanted)).await?;
                Ok(Answer::Usage(usage))
            }
        }
    }
}

async fn check(snapshot: &AskedSnapshot<'_>, check: &Check<'_>, origin: &Origin) -> Decision {
    let attributes = check.attributes.attributes();
    // Pinned in its place: a move of the future would copy several kilobytes.
    let asking = pin!(snapshot.ask(&attributes, check.ask));
    origin.trace(snapshot, "check", asking).await
}

fn of_reservation(error: HoldError) -> AskError {
    let kind = HoldKind::Reservation;
    AskError::Hold { kind, error }
}

fn of_lease(error: HoldError) -> AskError {
    let kind = HoldKind::Lease;
    AskError::Hold { kind, error }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn client_without_a_permit_is_answered_at_once() {
        let rules =
            "version: 1\nrules: [{ id: slots, algorithm: concurrency, limit: 1, lease: 1h }]";
        let engine = Engine::from_yaml("rules.yaml", rules).unwrap();
        let backend = Backend::new(Arc::new(engine));
        let acquire = Question::AcquireLease {
            attributes: Default::default(),
            ttl: None,
            owner: "".into(),
            wait: Span::from_secs(30),
        };
        let (snapshot, origin) = (backend.engine.snapshot(), Origin::unknown("test"));
        // Whether a lease was granted, and after how many seconds.
        let acquire = async || {
            let started = Instant::now();
            let answer = backend.answer(&snapshot, &acquire, &origin).await.unwrap();
            let granted = matches!(answer, Answer::Acquire(AcquireOutcome::Granted { .. }));
            (granted, started.elapsed().as_secs())
        };
        assert_eq!(acquire().await, (true, 0));
        let permits = backend.lease_waits.try_acquire_many(1024).unwrap();
        assert_eq!(acquire().await, (false, 0));
        drop(permits);
        assert_eq!(acquire().await, (false, 30));
    }
}
