//! The outcomes of a question, or of several questions that are answered together.

use std::ops::AddAssign;

use tollgate::{AcquireOutcome, Decision, DemandError, HoldError, ReserveOutcome, Span, Throttled};

use crate::backend::{Answer, AskError};
use crate::question::Question;

/// How many decisions had each outcome. A peek and a refund decide nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally([u64; 3]);

impl Tally {
    #[inline]
    pub(crate) fn allowed(&mut self, count: u64) {
        self.0[0] += count;
    }

    #[inline]
    pub(crate) fn rejected(&mut self, count: u64) {
        self.0[1] += count;
    }

    /// Returns the tally of a request that the door itself denied.
    pub(crate) fn one_rejected() -> Tally {
        Tally([0, 1, 0])
    }

    /// The store failed: a failure policy decided, or nothing did.
    #[inline]
    pub(crate) fn store_failed(&mut self, count: u64) {
        self.0[2] += count;
    }

    /// Counts a decision of `CL.THROTTLE`; `None` if the store failed.
    #[inline]
    pub(crate) fn throttled(&mut self, throttled: Option<&Throttled>) {
        match throttled {
            Some(throttled) if throttled.is_allowed() => self.allowed(1),
            Some(_) => self.rejected(1),
            None => self.store_failed(1),
        }
    }

    fn decision(&mut self, decision: &Decision) {
        if decision.store_failed() {
            self.store_failed(1);
        } else if decision.is_allowed() {
            self.allowed(1);
        } else {
            self.rejected(1);
        }
    }

    /// Returns the decisions in `answer`. A client that waited for a lease is left out: its time is not
    /// the time of a decision.
    #[inline]
    pub(crate) fn of(question: &Question<'_>, answer: &Result<Answer, AskError>) -> Tally {
        let mut tally = Tally::default();
        tally.add(question, answer);
        tally
    }

    /// Adds the decisions in `answer`.
    pub(crate) fn add(&mut self, question: &Question<'_>, answer: &Result<Answer, AskError>) {
        if matches!(question, Question::AcquireLease { wait, .. } if *wait != Span::ZERO) {
            return;
        }
        match answer {
            Ok(
                Answer::Decision(decision)
                | Answer::Reserve(
                    ReserveOutcome::Denied(decision)
                    | ReserveOutcome::Held {
                        decision: Some(decision),
                        ..
                    },
                )
                | Answer::Acquire(
                    AcquireOutcome::Denied(decision) | AcquireOutcome::Granted { decision, .. },
                ),
            ) => self.decision(decision),
            Ok(Answer::Batch(decisions)) => decisions.iter().for_each(|it| self.decision(it)),
            // The demands of a request are one decision.
            Ok(Answer::Demands(demands)) => {
                if demands.decisions().iter().any(Decision::store_failed) {
                    self.store_failed(1);
                } else if demands.is_allowed() {
                    self.allowed(1);
                } else {
                    self.rejected(1);
                }
            }
            Ok(
                Answer::Standing(_)
                | Answer::Reserve(ReserveOutcome::Held { decision: None, .. })
                | Answer::Reservation(_)
                | Answer::Lease(_)
                | Answer::Holders(_)
                | Answer::Usage(_),
            ) => {}
            Err(error) if is_store_failure(question, error) => self.store_failed(1),
            Err(_) => {}
        }
    }

    #[inline]
    pub(crate) fn is_empty(self) -> bool {
        self == Tally::default()
    }

    /// Returns how many decisions had each outcome.
    #[inline]
    pub(super) fn counts(self) -> [u64; 3] {
        self.0
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, more: Tally) {
        for (sum, count) in self.0.iter_mut().zip(more.0) {
            *sum += count;
        }
    }
}

/// Returns whether the store failed to decide.
fn is_store_failure(question: &Question<'_>, error: &AskError) -> bool {
    match error {
        AskError::Demand(error) => matches!(error, DemandError::Store(_)),
        AskError::Hold { error, .. } => {
            let decides = matches!(
                question,
                Question::Reserve { .. } | Question::AcquireLease { .. }
            );
            decides && matches!(error, HoldError::Store(_))
        }
        // Only a refund fails in this way.
        AskError::Store(_) | AskError::Usage(_) => false,
    }
}
