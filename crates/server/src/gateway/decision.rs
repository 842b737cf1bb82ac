//! The decision about a request: the slots of concurrency rules, and the wait of shaping rules.

use tollgate::{AcquireOutcome, Ask, Decision, HoldError, LONGEST_MAX_WAIT, Snapshot, Span};

use super::slots::Slot;
use super::{DOOR, DoorConfig, Gateway};
use crate::backend::{Answer, AskError};
use crate::question::{AttributeMap, Check, Question, Refund};
use crate::respond::RequestError;
use crate::trace::Origin;

impl Gateway {
    /// Decides a request. Waits for its turn if its rules let it, and takes the slots of concurrency rules.
    pub(super) async fn decide(
        &self,
        snapshot: &Snapshot<'_>,
        door_config: &DoorConfig,
        attributes: AttributeMap<'_>,
        origin: &Origin,
    ) -> Result<(Decision, Option<Slot>), RequestError> {
        let backend = &self.backend;
        let started = backend.metrics.start();
        let asking = self.slots.asking();
        let mut attributes = attributes;
        let mut held = None;
        if door_config.has_slots {
            let question = Question::AcquireLease {
                attributes,
                ttl: None,
                owner: DOOR.into(),
                wait: Span::ZERO,
                asked: Some(asking.lease()),
            };
            let answer = backend
                .answer_or_delay(started, snapshot, &question, origin)
                .await;
            attributes = match question {
                Question::AcquireLease { attributes, .. } => attributes,
                _ => AttributeMap::default(),
            };
            match answer {
                Ok(Answer::Acquire(outcome)) => held = Some(outcome),
                Ok(_) => return Err(RequestError::Internal),
                // No concurrency rule applies to this request.
                Err(AskError::Hold {
                    error: HoldError::NothingToLease,
                    ..
                }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let (mut decision, slot, attributes) = match held {
            Some(AcquireOutcome::Denied(decision)) => return Ok((decision, None)),
            Some(AcquireOutcome::Granted {
                lease,
                token,
                decision,
            }) => {
                let slot = self
                    .slots
                    .hold(&asking, &lease, token, decision.decided_at());
                (decision, slot, attributes)
            }
            None => {
                let ask = Ask::Exactly(1);
                let question = Question::Check(Check {
                    attributes,
                    ask,
                    // As long as the rules permit.
                    wait: LONGEST_MAX_WAIT,
                });
                let answer = backend
                    .answer_or_delay(started, snapshot, &question, origin)
                    .await?;
                match (answer, question) {
                    (Answer::Decision(decision), Question::Check(check)) => {
                        (decision, None, check.attributes)
                    }
                    _ => return Err(RequestError::Internal),
                }
            }
        };
        let delay = decision.delay();
        if decision.is_allowed() && delay > Span::ZERO {
            let Ok(_place) = self.waiting.try_acquire() else {
                // A request that is turned away costs nothing.
                let refund = Refund {
                    attributes,
                    units: 1,
                    charged_at: decision.decided_at(),
                };
                let refund = Question::Refund(refund);
                let _ = backend.answer(snapshot, &refund, origin).await;
                return Err(RequestError::TooManyWaiting);
            };
            tokio::time::sleep(delay.into()).await;
            decision.answer_later(delay);
        }
        Ok((decision, slot))
    }
}
