//! The commands of one client and their answers, without the connection: bytes in, bytes out.

use std::net::IpAddr;
use std::sync::Arc;

use futures_util::future::join_all;
use tollgate::Started;

use super::bounds::{MAX_CONCURRENT, MAX_OUTPUT};
use super::catalogue::{self, CommandInfo, Name};
use super::door::Door;
use super::frame::{self, Args, Command, ProtocolError};
use super::input::Input;
use super::pending::Pending;
use super::reply::Reply;
use super::session::{Run, Session};
use crate::door_metrics::{Fault, RESP_OK, resp_status};

/// The next task of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Read more: all complete commands are answered.
    Read,
    /// Write the answers before there are more.
    Write,
    /// Ask the store: see [`Conversation::ask`].
    Ask,
    /// Write the answers, and close the connection.
    Close,
    /// Write the answers, close our side, and read on for a while: the client may still be sending.
    Cut,
}

/// The conversation with one client.
pub struct Conversation {
    session: Session,
    args: Args,
    /// The result of parsing the next command. Kept if the command had to wait, so that the command is
    /// not parsed twice.
    held: Option<Result<usize, ProtocolError>>,
    /// Commands that wait for a store, in order.
    waiting: Vec<Waiting>,
    /// Commands that are not counted yet.
    uncounted: u64,
    /// Answers that are not counted yet, except errors.
    uncounted_answers: u64,
    /// When the commands that are being answered were read.
    started: Option<Started>,
}

impl std::fmt::Debug for Conversation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Conversation").finish_non_exhaustive()
    }
}

/// A command that waits.
enum Waiting {
    Asks(Pending),
    /// An answer that is known already, and waits for its turn.
    Answered(Vec<u8>),
}

/// Kinds of commands. Commands of one kind may wait together. A command of another kind, or of none,
/// waits until the commands before it are answered, so that it sees their effects.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Take,
    Look,
    GiveBack,
    Reserve,
}

impl Kind {
    fn of(entry: Option<&CommandInfo>) -> Option<Kind> {
        match entry?.name {
            Name::Throttle | Name::Check => Some(Kind::Take),
            Name::Peek => Some(Kind::Look),
            Name::Refund => Some(Kind::GiveBack),
            Name::Reserve => Some(Kind::Reserve),
            _ => None,
        }
    }
}

impl Conversation {
    pub(super) fn new(door: Arc<Door>, peer: Option<IpAddr>) -> Conversation {
        Conversation {
            session: Session::new(door, peer),
            args: Args::default(),
            held: None,
            waiting: Vec::new(),
            uncounted: 0,
            uncounted_answers: 0,
            started: None,
        }
    }

    /// Returns whether the client may use all commands.
    #[must_use]
    pub fn is_logged_in(&self) -> bool {
        self.session.logged_in
    }

    /// Answers the complete commands at the start of `input`.
    pub fn answer(&mut self, input: &mut Input, out: &mut Vec<u8>) -> Step {
        self.session.follow_config();
        // One reading of the clock for all commands that were read together: their answers leave together.
        self.started = Some(self.session.door.backend.metrics.start());
        let step = self.answer_all(input, out);
        if self.uncounted > 0 {
            self.session.door.counts.commands(self.uncounted);
            self.uncounted = 0;
        }
        self.count_answers();
        step
    }

    /// Counts the answers and decisions so far.
    fn count_answers(&mut self) {
        let metrics = &self.session.door.backend.metrics;
        if self.uncounted_answers > 0 {
            metrics.answered(RESP_OK, self.uncounted_answers);
            self.uncounted_answers = 0;
        }
        if let Some(started) = self.started {
            metrics.decided(started, std::mem::take(&mut self.session.tally));
        }
    }

    /// Counts an answer. Most answers are not errors, and are counted together.
    #[inline]
    fn note_answer(&mut self, answer: &[u8]) {
        match resp_status(answer) {
            RESP_OK => self.uncounted_answers += 1,
            status => self.session.door.backend.metrics.answered(status, 1),
        }
    }

    fn answer_all(&mut self, input: &mut Input, out: &mut Vec<u8>) -> Step {
        // The kind of the commands that wait.
        let mut together = None;
        while out.len() < MAX_OUTPUT {
            if self.session.is_expelled() && self.waiting.is_empty() {
                return match self.session.logged_in {
                    true => Step::Close,
                    false => Step::Cut,
                };
            }
            let read = match self.held.take() {
                Some(held) => Ok(Some(held)),
                None => frame::parse(input.unread_mut(), &mut self.args).map(|it| it.map(Ok)),
            };
            let read = match read {
                Ok(None) if self.waiting.is_empty() => return Step::Read,
                Ok(None) => return Step::Ask,
                Ok(Some(read)) => read,
                Err(error) => Err(error),
            };
            let length = match read {
                Ok(length) => length,
                Err(error) if self.waiting.is_empty() => {
                    let metrics = &self.session.door.backend.metrics;
                    metrics.bad_request(Fault::Protocol);
                    let words = format!("Protocol error: {error}");
                    Reply::new(out, self.session.protocol).error("ERR", &words);
                    return Step::Cut;
                }
                Err(_) => {
                    self.held = Some(read);
                    return Step::Ask;
                }
            };
            let command = Command::new(input.unread(), &self.args);
            let Some(name) = command.name() else {
                input.consume(length);
                continue;
            };
            let entry = catalogue::find(name);
            let run = if self.waiting.is_empty() {
                let before = out.len();
                let run = self.session.run(entry, &command, out);
                if !matches!(run, Run::Ask(_)) {
                    self.note_answer(&out[before..]);
                }
                run
            } else {
                let is_full = self.waiting.len() == MAX_CONCURRENT;
                let kind = Kind::of(entry);
                if kind.is_none() || kind != together || is_full {
                    self.held = Some(read);
                    return Step::Ask;
                }
                let mut answer = Vec::new();
                let run = self.session.run(entry, &command, &mut answer);
                if !answer.is_empty() {
                    self.note_answer(&answer);
                    self.waiting.push(Waiting::Answered(answer));
                }
                run
            };
            self.uncounted += 1;
            input.consume(length);
            match run {
                Run::Done => {}
                Run::Close if !self.session.logged_in => return Step::Cut,
                Run::Close => return Step::Close,
                Run::Ask(pending) => {
                    together = Kind::of(entry);
                    self.waiting.push(Waiting::Asks(pending));
                }
            }
        }
        Step::Write
    }

    /// Returns whether a waiting command may wait for other clients, not only for the store.
    #[must_use]
    pub fn may_take_long(&self) -> bool {
        let mut waiting = self.waiting.iter();
        waiting.any(|it| matches!(it, Waiting::Asks(pending) if pending.may_take_long()))
    }

    /// Asks the store for all waiting commands at once, and answers them in order.
    pub async fn ask(&mut self, out: &mut Vec<u8>) {
        let waiting = std::mem::take(&mut self.waiting);
        let door = &self.session.door;
        let asked = waiting.iter().filter_map(|it| match it {
            Waiting::Asks(pending) => Some(pending.ask(door)),
            Waiting::Answered(_) => None,
        });
        let mut answers = join_all(asked).await.into_iter();
        let policy = door.on_store_failure;
        for one in &waiting {
            match one {
                Waiting::Answered(answer) => out.extend_from_slice(answer),
                Waiting::Asks(pending) => {
                    if let Some(answer) = answers.next() {
                        let before = out.len();
                        let mut reply = Reply::new(out, self.session.protocol);
                        pending.write(&answer, policy, &mut reply);
                        self.note_answer(&out[before..]);
                        self.session.tally += answer.tally();
                    }
                }
            }
        }
        self.count_answers();
    }
}
