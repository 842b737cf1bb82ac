//! Commands that wait for the store.

use std::net::IpAddr;

use tollgate::{Limit, Throttled};
use tollgate_config::ThrottleFailure;

use super::arguments;
use super::catalogue::Name;
use super::command_error::CommandError;
use super::door::{DOOR, Door};
use super::frame::{Args, Command};
use super::reply::Reply;
use super::throttle;
use crate::backend::{Answer, AskError};
use crate::door_metrics::Tally;
use crate::respond;
use crate::trace::Origin;

/// A command that has to wait. The command owns its data, because the input is overwritten
/// meanwhile.
pub(super) enum Pending {
    Throttle {
        key: Box<[u8]>,
        limit: Limit,
        quantity: u64,
    },
    /// A command that was read as a question once. The command is read again when the store is
    /// asked.
    Question {
        name: Name,
        bytes: Box<[u8]>,
        args: Args,
        may_take_long: bool,
    },
    /// A login with a wrong token or password, by the client at this address. Its answer waits for its
    /// turn.
    WrongLogin(IpAddr),
}

/// The answer of the store, and the decisions in it.
pub(super) enum Answered {
    /// `None` if the store failed.
    Throttled(Option<Throttled>),
    Question(Box<Result<Answer, AskError>>, Tally),
    WrongLogin,
    /// The arguments are not a question. They were checked before the command had to wait, so this
    /// does not happen.
    Nothing,
}

impl Answered {
    /// Returns the decisions.
    pub(super) fn tally(&self) -> Tally {
        let mut tally = Tally::default();
        match self {
            Answered::Throttled(throttled) => tally.throttled(throttled.as_ref()),
            Answered::Question(_, decisions) => tally = *decisions,
            Answered::WrongLogin | Answered::Nothing => {}
        }
        tally
    }
}

impl Pending {
    /// Returns whether the command may wait for other clients, not only for the store.
    pub(super) fn may_take_long(&self) -> bool {
        match self {
            Pending::Throttle { .. } => false,
            Pending::Question { may_take_long, .. } => *may_take_long,
            // The client may leave meanwhile.
            Pending::WrongLogin(_) => true,
        }
    }

    pub(super) async fn ask(&self, door: &Door) -> Answered {
        let origin = Origin::unknown(DOOR);
        let engine = &*door.backend.engine;
        match self {
            Pending::Throttle {
                key,
                limit,
                quantity,
            } => {
                let snapshot = engine.once_from(origin.request());
                let asking = snapshot.throttle(key, limit, *quantity);
                Answered::Throttled(origin.trace(engine, "throttle", asking).await.ok())
            }
            Pending::WrongLogin(peer) => {
                door.access.wrong(Some(*peer), "AUTH").await;
                Answered::WrongLogin
            }
            Pending::Question {
                name, bytes, args, ..
            } => {
                let Ok(question) = arguments::read(*name, &Command::new(bytes, args)) else {
                    return Answered::Nothing;
                };
                let snapshot = engine.snapshot();
                let answer = door.backend.answer(&snapshot, &question, &origin).await;
                let tally = Tally::of(&question, &answer);
                Answered::Question(Box::new(answer), tally)
            }
        }
    }

    /// Writes the answer to this command.
    pub(super) fn write(
        &self,
        answered: &Answered,
        policy: ThrottleFailure,
        reply: &mut Reply<'_>,
    ) {
        match (answered, self) {
            (Answered::Throttled(Some(throttled)), _) => throttle::write(reply, throttled),
            (Answered::Throttled(None), Pending::Throttle { limit, .. }) => {
                throttle::write_failed(reply, policy, limit);
            }
            (Answered::Question(answer, _), _) => respond::reply(answer, reply),
            (Answered::WrongLogin, _) => CommandError::WrongPassword.write(reply),
            (Answered::Throttled(None) | Answered::Nothing, _) => reply.null(),
        }
    }
}
