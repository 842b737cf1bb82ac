//! Commands that a shared store has to answer, and the answers it gives.

use tollgate::{Ask, Attributes, Decision, Limit, Throttled, Time};
use tollgate_config::ThrottleFailure;

use super::door::{DOOR, Door};
use super::error::CommandError;
use super::holding::{Holding, Told};
use super::reply::Reply;
use super::throttle;
use crate::respond;
use crate::trace::Origin;

/// A command that has to wait, with all it needs: what it was read from is overwritten by then.
pub(super) enum Question {
    Throttle {
        key: Box<[u8]>,
        limit: Limit,
        quantity: u64,
    },
    Check {
        attributes: Pairs,
        ask: Ask,
        peeks: bool,
    },
    Refund {
        attributes: Pairs,
        units: u64,
        charged_at: Time,
    },
    Hold(Holding),
}

/// What was answered; nothing if the store does not answer.
pub(super) enum Answer {
    Throttled(Option<Throttled>),
    Decided(Option<Box<Decision>>),
    Held(Box<Told>),
}

impl Question {
    pub(super) fn throttle(key: &[u8], limit: &Limit, quantity: u64) -> Question {
        Question::Throttle {
            key: key.into(),
            limit: limit.clone(),
            quantity,
        }
    }

    pub(super) fn check(attributes: &Attributes<'_>, ask: Ask, peeks: bool) -> Question {
        Question::Check {
            attributes: Pairs::of(attributes),
            ask,
            peeks,
        }
    }

    pub(super) fn refund(attributes: &Attributes<'_>, units: u64, charged_at: Time) -> Question {
        Question::Refund {
            attributes: Pairs::of(attributes),
            units,
            charged_at,
        }
    }

    /// Whether others may have to be waited for.
    pub(super) fn may_take_long(&self) -> bool {
        matches!(self, Question::Hold(holding) if holding.waits())
    }

    pub(super) async fn ask(&self, door: &Door) -> Answer {
        let engine = &*door.engine;
        let origin = Origin::unknown(DOOR);
        match self {
            Question::Throttle {
                key,
                limit,
                quantity,
            } => {
                let asking = engine.throttle(key, limit, *quantity);
                Answer::Throttled(origin.trace(engine, "throttle", asking).await.ok())
            }
            Question::Check {
                attributes,
                ask,
                peeks,
            } => {
                let attributes = attributes.attributes();
                let decision = if *peeks {
                    let asking = engine.peek(&attributes, *ask);
                    origin.trace(engine, "peek", asking).await
                } else {
                    let asking = engine.ask(&attributes, *ask);
                    origin.trace(engine, "check", asking).await
                };
                Answer::Decided(Some(Box::new(decision)))
            }
            Question::Refund {
                attributes,
                units,
                charged_at,
            } => {
                let attributes = attributes.attributes();
                let asking = engine.refund(&attributes, *units, *charged_at);
                let refunded = origin.trace(engine, "refund", asking).await;
                Answer::Decided(refunded.ok().map(Box::new))
            }
            Question::Hold(holding) => Answer::Held(Box::new(holding.ask(door, &origin).await)),
        }
    }

    /// Writes the answer to this question.
    pub(super) fn write(&self, answer: &Answer, policy: ThrottleFailure, reply: &mut Reply<'_>) {
        match (answer, self) {
            (Answer::Throttled(Some(told)), _) => throttle::write(reply, told),
            (Answer::Decided(Some(decision)), _) => respond::reply(decision, reply),
            (Answer::Held(told), _) => told.write(reply),
            (Answer::Throttled(None), Question::Throttle { limit, .. }) => {
                throttle::write_failed(reply, policy, limit);
            }
            (Answer::Throttled(None) | Answer::Decided(None), _) => {
                CommandError::Store.write(reply);
            }
        }
    }
}

/// Attributes in one piece of memory: each name and each value ends where the next starts.
pub(super) struct Pairs {
    text: String,
    ends: Box<[(usize, usize)]>,
}

impl Pairs {
    pub(super) fn of(attributes: &Attributes<'_>) -> Pairs {
        let mut text = String::new();
        let ends = attributes.iter().map(|(name, value)| {
            text.push_str(name);
            let end = text.len();
            text.push_str(value);
            (end, text.len())
        });
        Pairs {
            ends: ends.collect(),
            text,
        }
    }

    pub(super) fn attributes(&self) -> Attributes<'_> {
        let mut start = 0;
        let pairs = self.ends.iter().map(|(middle, end)| {
            let pair = (&self.text[start..*middle], &self.text[*middle..*end]);
            start = *end;
            pair
        });
        pairs.collect()
    }
}
