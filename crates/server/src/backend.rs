//! Answers questions: the one way from every door to the engine.
//!
//! [`Backend::answer`] takes a [`Question`] and returns an [`Answer`] or an [`AskError`]. Both are
//! independent of protocols. `respond` turns them into what a door sends.

use std::pin::pin;
use std::sync::Arc;

use futures_util::future::{FutureExt, join_all};
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;
use tollgate::{
    Acquire, AcquireOutcome, ActiveConfig, BatchDecision, Decision, DemandError, Engine, Hold,
    HoldError, Holders, Reserve, ReserveOutcome, Snapshot, Span, Started, Store, StoreError,
};

use crate::door_metrics::{Actions, DoorMetrics, Tally};
use crate::per_config::PerConfig;
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
    pub(crate) metrics: Arc<DoorMetrics>,
    /// The actions under which the door counts requests that no rule applies to.
    actions: PerConfig<Actions>,
    /// Whether the door stops. Then no denial is held back.
    stops: Arc<watch::Sender<bool>>,
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

impl Answer {
    /// Returns how long the answer is held back, if it denies. A batch has a decision for each of its
    /// checks, and is not held back.
    fn denial_delay(&self) -> Span {
        match self {
            Answer::Decision(decision)
            | Answer::Reserve(ReserveOutcome::Denied(decision))
            | Answer::Acquire(AcquireOutcome::Denied(decision)) => decision.denial_delay(),
            Answer::Demands(demands) => demands.denial_delay(),
            _ => Span::ZERO,
        }
    }

    /// Returns how long a check waited for its turn.
    fn waited(&self) -> Span {
        match self {
            Answer::Decision(decision) => decision.waited(),
            _ => Span::ZERO,
        }
    }

    /// Makes a denial tell its waits for a time that is later by `by`.
    fn answer_later(&mut self, by: Span) {
        match self {
            Answer::Decision(decision)
            | Answer::Reserve(ReserveOutcome::Denied(decision))
            | Answer::Acquire(AcquireOutcome::Denied(decision)) => decision.answer_later(by),
            Answer::Demands(demands) => demands.answer_later(by),
            _ => {}
        }
    }
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
    /// Answers questions of a door that counts in `metrics`.
    pub(crate) fn new(engine: Arc<Engine>, metrics: Arc<DoorMetrics>) -> Backend {
        Backend::with_stops(engine, metrics, Arc::new(watch::Sender::new(false)))
    }

    /// Answers questions of a door that counts in `metrics`, and holds back no denial once `stops` is true.
    pub(crate) fn with_stops(
        engine: Arc<Engine>,
        metrics: Arc<DoorMetrics>,
        stops: Arc<watch::Sender<bool>>,
    ) -> Backend {
        let counting = Arc::clone(&metrics);
        Backend {
            actions: PerConfig::new(&engine, move |live| {
                counting.unmatched.actions(&live.config().routes)
            }),
            engine,
            lease_waits: Semaphore::new(MAX_WAITING),
            usage: UsageReader::default(),
            metrics,
            stops,
        }
    }

    /// Answers as [`answer`](Self::answer) does, counts the decision, and holds back a denial of a rule with
    /// `delay_denials`. The wait ends early if the door stops, and with this future if the client goes
    /// away. It is not part of the time of the decision.
    pub(crate) async fn answer_or_delay(
        &self,
        started: Started,
        snapshot: &Snapshot<'_>,
        question: &Question<'_>,
        origin: &Origin,
    ) -> Result<Answer, AskError> {
        let answer = self.answer(snapshot, question, origin).await;
        let waited = answer.as_ref().map_or(Span::ZERO, Answer::waited);
        let tally = Tally::of(question, &answer);
        self.metrics.decided_after(waited, started, tally);
        let mut answer = answer?;
        let delay = answer.denial_delay();
        if delay > Span::ZERO {
            // Rare, and boxed so that the future of a check stays small.
            Box::pin(self.hold_back(&mut answer, delay)).await;
        }
        Ok(answer)
    }

    /// Answers all denials that are held back, and holds back no more.
    pub(crate) fn end_delays(&self) {
        self.stops.send_replace(true);
    }

    async fn hold_back(&self, answer: &mut Answer, delay: Span) {
        let mut stops = self.stops.subscribe();
        if *stops.borrow() {
            return;
        }
        let Some(_held) = self.engine.denial_delays().start() else {
            return;
        };
        let started = Instant::now();
        tokio::select! {
            () = tokio::time::sleep(delay.into()) => {}
            // The sender is in `self`, so this is not an error.
            _ = stops.wait_for(|stops| *stops) => {}
        }
        let passed = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
        answer.answer_later(Span::from_micros(passed));
    }

    /// Answers `question` under the config of `snapshot`, within a span if `origin` is sampled.
    pub(crate) async fn answer(
        &self,
        snapshot: &Snapshot<'_>,
        question: &Question<'_>,
        origin: &Origin,
    ) -> Result<Answer, AskError> {
        if let Some(answer) = self.answer_now(snapshot, question, origin) {
            return answer;
        }
        let answer = Box::pin(self.ask(snapshot, question, origin)).await;
        self.count_unmatched(snapshot, question, &answer);
        answer
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
        let never_waits = match question {
            Question::Check(check) => !may_wait(snapshot, check),
            Question::Peek(_) | Question::Demands(_) | Question::Batch(_) | Question::Refund(_) => {
                true
            }
            _ => false,
        };
        let is_ready = never_waits && self.engine.store().is_local();
        let answer = is_ready.then(|| self.ask(snapshot, question, origin).now_or_never())??;
        self.count_unmatched(snapshot, question, &answer);
        Some(answer)
    }

    /// Counts a request that no rule applied to.
    #[inline]
    fn count_unmatched(
        &self,
        snapshot: &Snapshot<'_>,
        question: &Question<'_>,
        answer: &Result<Answer, AskError>,
    ) {
        if let Ok(answer) = answer
            && answer.has_unmatched()
        {
            self.count_by_action(snapshot, question, Some(answer));
        }
    }

    /// Counts a request that no rule applied to, by its action. In a batch, `answer` says which requests
    /// these are.
    #[cold]
    pub(crate) fn count_by_action(
        &self,
        snapshot: &Snapshot<'_>,
        question: &Question<'_>,
        answer: Option<&Answer>,
    ) {
        let actions = self.actions.of(snapshot.active());
        let count = |action| self.metrics.unmatched.count(&actions, action);
        match (question, answer) {
            (Question::Batch(checks), Some(Answer::Batch(decisions))) => {
                for (check, decision) in checks.iter().zip(decisions) {
                    if is_unmatched(decision) {
                        count(check.attributes.get(ACTION));
                    }
                }
            }
            (Question::Demands(demands), _) => {
                count(demands.first().and_then(|it| it.attributes.get(ACTION)));
            }
            _ => count(question.attributes().and_then(|it| it.get(ACTION))),
        }
    }

    async fn ask(
        &self,
        snapshot: &Snapshot<'_>,
        question: &Question<'_>,
        origin: &Origin,
    ) -> Result<Answer, AskError> {
        let engine = &*self.engine;
        if let Question::Check(it) = question
            && may_wait(snapshot, it)
        {
            let snapshot = snapshot.owned_with_origin(origin.request());
            let attributes = it.attributes.attributes();
            let asking = Box::pin(snapshot.ask_or_wait(&self.engine, &attributes, it.ask, it.wait));
            let decision = origin.trace(&snapshot, "check", asking).await;
            return Ok(Answer::Decision(decision));
        }
        let snapshot = &snapshot.with_origin(origin.request());
        match question {
            Question::Check(it) => Ok(Answer::Decision(check(snapshot, it, origin).await)),
            Question::Peek(Check {
                attributes, ask, ..
            }) => {
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
                asked,
            } => {
                let attributes = attributes.attributes();
                let permit = match *wait {
                    Span::ZERO => None,
                    _ => self.lease_waits.try_acquire().ok(),
                };
                let _waiter = permit.as_ref().map(|_| self.metrics.wait_for_lease());
                let acquire = Acquire {
                    ttl: *ttl,
                    owner,
                    wait: permit.as_ref().map_or(Span::ZERO, |_| *wait),
                    units: None,
                    asked: asked.as_deref(),
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
                let holders = Box::pin(snapshot.holders(&attributes)).await;
                holders.map(Answer::Holders).map_err(of_lease)
            }
            Question::Usage(wanted) => {
                let usage = Box::pin(self.usage.read(engine, wanted)).await?;
                Ok(Answer::Usage(usage))
            }
        }
    }
}

/// The attribute that says what a request does.
const ACTION: &str = "action";

impl Answer {
    /// Returns whether this decides a request that no rule applied to. The demands of a request count
    /// together.
    #[inline]
    pub(crate) fn has_unmatched(&self) -> bool {
        match self {
            Answer::Decision(decision)
            | Answer::Reserve(
                ReserveOutcome::Denied(decision)
                | ReserveOutcome::Held {
                    decision: Some(decision),
                    ..
                },
            ) => is_unmatched(decision),
            Answer::Batch(decisions) => decisions.iter().any(is_unmatched),
            Answer::Demands(demands) => demands.decisions().iter().all(is_unmatched),
            // A lease needs a rule, and the other answers decide nothing.
            _ => false,
        }
    }
}

fn is_unmatched(decision: &Decision) -> bool {
    decision.rules().len() == 0
}

/// Returns whether a check may wait for its turn.
fn may_wait(snapshot: &Snapshot<'_>, check: &Check<'_>) -> bool {
    check.wait > Span::ZERO && snapshot.active().has_waits()
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
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn client_without_a_permit_is_answered_at_once() {
        let rules =
            "version: 1\nrules: [{ id: slots, algorithm: concurrency, limit: 1, lease: 1h }]";
        let engine = Engine::from_yaml("rules.yaml", rules).unwrap();
        let backend = Backend::new(Arc::new(engine), Arc::default());
        let acquire = Question::AcquireLease {
            attributes: Default::default(),
            ttl: None,
            owner: "".into(),
            wait: Span::from_secs(30),
            asked: None,
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

    /// A rule whose second request is denied for days, and one that refills quickly.
    const DELAYED: &str = "
version: 1
rules:
  - { id: slow, match: { action: slow }, algorithm: fixed-window, limit: 1, window: 1000d, delay_denials: 2s }
  - { id: also, match: { action: slow }, algorithm: fixed-window, limit: 1, window: 1000d, delay_denials: 1s }
  - { id: quick, match: { action: quick }, algorithm: gcra, rate: 10/s, burst: 1, delay_denials: 500ms }
  - { id: shadow, match: { action: shadow }, algorithm: fixed-window, limit: 0, window: 1s, state: shadow, delay_denials: 1s }
";

    fn delayed() -> Backend {
        let engine = Engine::from_yaml("rules.yaml", DELAYED).unwrap();
        Backend::new(Arc::new(engine), Arc::default())
    }

    fn check(action: &str) -> Question<'_> {
        let mut attributes = crate::question::AttributeMap::default();
        attributes.push("action", action);
        Question::Check(Check::new(attributes, None, false).unwrap())
    }

    /// Returns whole milliseconds. Timers are exact to a millisecond.
    fn millis(span: Span) -> u64 {
        span.as_micros() / 1000
    }

    /// Asks, and returns the decision and how long it was held back.
    async fn ask(backend: &Backend, action: &str) -> (Decision, Span) {
        let (snapshot, origin) = (backend.engine.snapshot(), Origin::unknown("test"));
        let started = Instant::now();
        let question = check(action);
        let began = backend.metrics.start();
        let answer = backend.answer_or_delay(began, &snapshot, &question, &origin);
        let answer = answer.await;
        let Ok(Answer::Decision(decision)) = answer else {
            panic!("a check is answered by a decision");
        };
        let passed = u64::try_from(started.elapsed().as_micros()).unwrap();
        (decision, Span::from_micros(passed))
    }

    #[tokio::test(start_paused = true)]
    async fn denial_is_held_back_and_tells_its_wait_for_the_time_of_the_answer() {
        let backend = delayed();
        assert_eq!(ask(&backend, "slow").await.1, Span::ZERO);
        let (snapshot, origin) = (backend.engine.snapshot(), Origin::unknown("test"));
        let at_once = backend.answer(&snapshot, &check("slow"), &origin).await;
        let Ok(Answer::Decision(at_once)) = at_once else {
            panic!("a check is answered by a decision");
        };
        let (decision, passed) = ask(&backend, "slow").await;
        // The longest delay of the rules that deny.
        assert_eq!(millis(passed), 2000);
        let retry_at = |it: &Decision| it.decided_at() + it.retry_after().unwrap();
        assert_eq!(retry_at(&decision) + passed, retry_at(&at_once));
        let rule = decision.rule().unwrap();
        assert_eq!(rule.remaining(), Some(0));
        let reset_at = rule.reset_at().unwrap();
        let told = decision.decided_at() + passed + rule.reset_after().unwrap();
        assert_eq!(told, reset_at);
        let delays = backend.engine.denial_delays();
        assert_eq!(
            (delays.held(), delays.delayed(), delays.at_once()),
            (0, 1, 0)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn remaining_is_left_out_once_the_retry_time_has_passed() {
        let backend = delayed();
        ask(&backend, "quick").await;
        let (decision, passed) = ask(&backend, "quick").await;
        assert!(!decision.is_allowed());
        assert_eq!(millis(passed), 500);
        let rule = decision.rule().unwrap();
        assert_eq!(
            (rule.remaining(), rule.retry_after()),
            (None, Some(Span::ZERO))
        );
        assert_eq!(rule.limit(), Some(1));
    }

    #[tokio::test(start_paused = true)]
    async fn answers_that_do_not_deny_are_not_held_back() {
        let backend = delayed();
        for action in ["slow", "shadow", "other"] {
            assert_eq!(ask(&backend, action).await.1, Span::ZERO, "{action}");
        }
        let (snapshot, origin) = (backend.engine.snapshot(), Origin::unknown("test"));
        let started = Instant::now();
        let Question::Check(peeked) = check("slow") else {
            panic!("it is a check");
        };
        let Question::Check(batched) = check("slow") else {
            panic!("it is a check");
        };
        for question in [Question::Peek(peeked), Question::Batch(vec![batched])] {
            let began = backend.metrics.start();
            let answer = backend.answer_or_delay(began, &snapshot, &question, &origin);
            assert!(answer.await.is_ok());
        }
        assert_eq!(started.elapsed().as_micros(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn denial_beyond_the_bound_is_answered_at_once_and_counted() {
        let backend = delayed();
        ask(&backend, "slow").await;
        let delays = backend.engine.denial_delays();
        let held: Vec<_> = (0..tollgate::MAX_DELAYED)
            .map(|_| delays.start().unwrap())
            .collect();
        assert_eq!(ask(&backend, "slow").await.1, Span::ZERO);
        assert_eq!(delays.at_once(), 1);
        drop(held);
        assert_eq!(millis(ask(&backend, "slow").await.1), 2000);
    }

    #[tokio::test(start_paused = true)]
    async fn delay_ends_when_the_door_stops_or_the_client_goes_away() {
        let backend = delayed();
        ask(&backend, "slow").await;
        // The client goes away: its future is dropped.
        let second = std::time::Duration::from_secs(1);
        let gone = tokio::time::timeout(second, ask(&backend, "slow")).await;
        assert!(gone.is_err());
        assert_eq!(backend.engine.denial_delays().held(), 0);
        let stop = async {
            tokio::time::sleep(second).await;
            assert_eq!(backend.engine.denial_delays().held(), 1);
            backend.end_delays();
        };
        let ((decision, passed), ()) = tokio::join!(ask(&backend, "slow"), stop);
        assert!(!decision.is_allowed());
        assert_eq!(millis(passed), 1000);
        // While the door stops, further denials are answered at once.
        assert_eq!(ask(&backend, "slow").await.1, Span::ZERO);
    }
}
