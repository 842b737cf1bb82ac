//! The state of one client, and the answer to its next command.

use std::net::IpAddr;
use std::sync::Arc;

use tollgate::Span;
use tollgate_config::TokenScopes;

use super::arguments;
use super::bounds::{MAX_NAME, MAX_WRONG_PASSWORDS};
use super::catalogue::{self, CommandInfo, Name};
use super::command_error::{CommandError, shown};
use super::door::{DOOR, Door, Login, ORIGIN};
use super::frame::Command;
use super::info;
use super::pending::Pending;
use super::reply::{Protocol, Reply};
use super::throttle::{self, Limits, ThrottleArgs};
use crate::door_metrics::Tally;
use crate::question::Question;
use crate::trace::Origin;
use crate::{respond, trace};

/// The result of a command.
pub(super) enum Run {
    /// The command is answered.
    Done,
    /// The command is answered, and the connection ends.
    Close,
    /// The store must be asked first.
    Ask(Pending),
}

/// The session of one client.
pub(super) struct Session {
    pub(super) door: Arc<Door>,
    pub(super) protocol: Protocol,
    id: u64,
    /// The client's address, if it is known.
    peer: Option<IpAddr>,
    login: Login,
    /// Whether the client may use any command. Follows from the login, as do the scopes.
    pub(super) logged_in: bool,
    scopes: TokenScopes,
    /// Whether the client may not use all commands.
    is_restricted: bool,
    /// The config that the login was last compared with.
    generation: Option<u64>,
    wrong_passwords: u32,
    name: Vec<u8>,
    limits: Limits,
    /// The decisions that are not counted yet.
    pub(super) tally: Tally,
}

type Done = Result<Run, CommandError>;

impl Session {
    pub(super) fn new(door: Arc<Door>, peer: Option<IpAddr>) -> Session {
        let mut session = Session {
            protocol: Protocol::default(),
            id: door.next_id(),
            peer,
            login: Login::None,
            logged_in: false,
            scopes: TokenScopes::NONE,
            is_restricted: true,
            generation: None,
            wrong_passwords: 0,
            name: Vec::new(),
            limits: Limits::default(),
            tally: Tally::default(),
            door,
        };
        session.follow_config();
        session
    }

    /// Compares the login with the tokens of the config in force, if another config was put in force.
    #[inline]
    pub(super) fn follow_config(&mut self) {
        let generation = self.door.backend.engine.loaded().generation();
        if self.generation != Some(generation) {
            self.apply_login();
        }
    }

    /// Sets what the client may do, by its login and the config in force.
    #[cold]
    fn apply_login(&mut self) {
        let active = self.door.backend.engine.active();
        let tokens = self.door.access.tokens(&active);
        self.generation = Some(active.generation());
        let granted = match self.login {
            _ if !self.door.wants_login(&tokens) => Some(TokenScopes::ALL),
            Login::None => None,
            Login::Password => Some(TokenScopes::ALL),
            Login::Token(hash) => tokens.by_hash(&hash).map(|client| client.scopes),
        };
        self.logged_in = granted.is_some();
        self.scopes = granted.unwrap_or(TokenScopes::NONE);
        self.is_restricted = self.scopes != TokenScopes::ALL;
    }

    /// Returns whether the client has sent too many wrong passwords.
    pub(super) fn is_expelled(&self) -> bool {
        self.wrong_passwords >= MAX_WRONG_PASSWORDS
    }

    /// Runs a command. `entry` is its entry in the list of commands, if it has one.
    #[inline]
    pub(super) fn run(
        &mut self,
        entry: Option<&'static CommandInfo>,
        command: &Command<'_>,
        out: &mut Vec<u8>,
    ) -> Run {
        match self.try_run(entry, command, out) {
            Ok(run) => run,
            Err(error) => self.write_error(&error, out),
        }
    }

    #[cold]
    fn write_error(&mut self, error: &CommandError, out: &mut Vec<u8>) -> Run {
        if let Some(fault) = error.fault() {
            self.door.backend.metrics.bad_request(fault);
        }
        if *error != CommandError::WrongPassword {
            error.write(&mut Reply::new(out, self.protocol));
            return Run::Done;
        }
        self.wrong_passwords += 1;
        if self.is_expelled() {
            tracing::warn!(client = self.id, "too many wrong passwords");
        }
        match self.peer {
            Some(peer) => Run::Ask(Pending::WrongLogin(peer)),
            None => {
                error.write(&mut Reply::new(out, self.protocol));
                Run::Done
            }
        }
    }

    #[inline]
    fn try_run(
        &mut self,
        entry: Option<&'static CommandInfo>,
        command: &Command<'_>,
        out: &mut Vec<u8>,
    ) -> Done {
        if self.is_restricted {
            self.authorize(entry)?;
        }
        let Some(entry) = entry else {
            let name = shown(command.name().unwrap_or_default());
            return Err(CommandError::Unknown(name));
        };
        if !entry.takes(command.len()) {
            return Err(CommandError::Arguments(entry.text));
        }
        if entry.name == Name::Throttle {
            return self.throttle(command, out);
        }
        self.run_other(entry.name, command, out)
    }

    /// Returns an error if the client may not use this command.
    #[inline(never)]
    fn authorize(&self, entry: Option<&CommandInfo>) -> Result<(), CommandError> {
        if !self.logged_in && !entry.is_some_and(CommandInfo::is_open) {
            return Err(CommandError::NoLogin);
        }
        match entry.and_then(CommandInfo::scope) {
            Some(scope) if !self.scopes.includes(scope) => Err(CommandError::NotPermitted(scope)),
            _ => Ok(()),
        }
    }

    #[inline(never)]
    fn run_other(&mut self, name: Name, command: &Command<'_>, out: &mut Vec<u8>) -> Done {
        let reply = &mut Reply::new(out, self.protocol);
        match name {
            Name::Ping => match (command.len(), command.arg(1)) {
                (1, _) => reply.status("PONG"),
                (2, Some(message)) => reply.bulk(message),
                _ => return Err(CommandError::Arguments("ping")),
            },
            Name::Echo => reply.bulk(command.arg(1).unwrap_or_default()),
            Name::Auth => {
                self.auth(command)?;
                reply.status("OK");
            }
            Name::Hello => self.hello(command, out)?,
            Name::Select => match command.arg(1) {
                Some(b"0") => reply.status("OK"),
                _ => return Err(CommandError::Database),
            },
            Name::Client => self.client(command, out)?,
            Name::Command if catalogue::write(reply, command) => {}
            Name::Command => return Err(unknown_subcommand("command", command)),
            Name::Config if !is_subcommand(command, "GET") => {
                return Err(unknown_subcommand("config", command));
            }
            Name::Config if command.len() < 3 => return Err(CommandError::Arguments("config")),
            Name::Config => {
                let wanted: Vec<&[u8]> = command.args_from(2).collect();
                info::write_settings(reply, &self.door, &wanted);
            }
            Name::Info => {
                let wanted: Vec<&[u8]> = command.args_from(1).collect();
                reply.page(&info::page(&self.door, &wanted));
            }
            Name::Reset => {
                self.protocol = Protocol::default();
                self.login = Login::None;
                self.apply_login();
                self.name.clear();
                Reply::new(out, self.protocol).status("RESET");
            }
            Name::Quit => {
                reply.status("OK");
                return Ok(Run::Close);
            }
            _ => return self.ask(name, command, reply),
        }
        Ok(Run::Done)
    }

    #[inline]
    fn throttle(&mut self, command: &Command<'_>, out: &mut Vec<u8>) -> Done {
        let args = ThrottleArgs::read(command)?;
        let (key, quantity) = (args.key, args.quantity);
        let limit = self.limits.get(args.numbers)?;
        let engine = &self.door.backend.engine;
        let ask = || engine.once_from(ORIGIN).try_throttle(key, limit, quantity);
        match trace::now(DOOR, engine, "throttle", ask) {
            Some(throttled) => {
                self.tally.throttled(Some(&throttled));
                throttle::write(&mut Reply::new(out, self.protocol), &throttled);
                Ok(Run::Done)
            }
            None => Ok(Run::Ask(Pending::Throttle {
                key: key.into(),
                limit: limit.clone(),
                quantity,
            })),
        }
    }

    /// Answers a question at once if the engine can. Otherwise the question is answered later, in its
    /// turn.
    fn ask(&mut self, name: Name, command: &Command<'_>, reply: &mut Reply<'_>) -> Done {
        let question = arguments::read(name, command)?;
        let backend = &self.door.backend;
        let (snapshot, origin) = (backend.engine.snapshot(), Origin::unknown(DOOR));
        if let Some(answer) = backend.answer_now(&snapshot, &question, &origin) {
            self.tally.add(&question, &answer);
            respond::reply(&answer, reply);
            return Ok(Run::Done);
        }
        let may_take_long =
            matches!(question, Question::AcquireLease { wait, .. } if wait != Span::ZERO);
        let (bytes, args) = command.detach();
        Ok(Run::Ask(Pending::Question {
            name,
            bytes,
            args,
            may_take_long,
        }))
    }

    /// Runs `AUTH [user] password`.
    fn auth(&mut self, command: &Command<'_>) -> Result<(), CommandError> {
        match (command.len(), command.arg(1), command.arg(2)) {
            (2, Some(_), None) if !self.wants_login() => Err(CommandError::NoPassword),
            (2, Some(password), None) => self.log_in(b"default", password),
            (3, Some(user), Some(password)) => self.log_in(user, password),
            _ => Err(CommandError::Syntax),
        }
    }

    fn wants_login(&self) -> bool {
        let active = self.door.backend.engine.active();
        self.door.wants_login(&self.door.access.tokens(&active))
    }

    fn log_in(&mut self, user: &[u8], password: &[u8]) -> Result<(), CommandError> {
        let active = self.door.backend.engine.active();
        let tokens = self.door.access.tokens(&active);
        if self.door.wants_login(&tokens) {
            let tried = self.door.access.may_try(self.peer);
            tried.map_err(|_| CommandError::TooManyWrong)?;
        }
        let login = self.door.log_in(&tokens, user, password);
        self.login = login.ok_or(CommandError::WrongPassword)?;
        self.apply_login();
        Ok(())
    }

    /// Runs `HELLO [2|3 [AUTH user password] [SETNAME name]]`.
    fn hello(&mut self, command: &Command<'_>, out: &mut Vec<u8>) -> Result<(), CommandError> {
        let mut protocol = self.protocol;
        let mut name = None;
        let mut args = command.args_from(1);
        if let Some(version) = args.next() {
            protocol = match version {
                b"2" => Protocol::Resp2,
                b"3" => Protocol::Resp3,
                _ if version.iter().all(u8::is_ascii_digit) => {
                    return Err(CommandError::NoProtocol);
                }
                _ => return Err(CommandError::ProtocolNumber),
            };
        }
        let mut login = None;
        while let Some(option) = args.next() {
            if option.eq_ignore_ascii_case(b"AUTH") {
                login = args.next().zip(args.next());
                login.ok_or(CommandError::Syntax)?;
            } else if option.eq_ignore_ascii_case(b"SETNAME") {
                name = Some(client_name(args.next().ok_or(CommandError::Syntax)?)?);
            } else {
                return Err(CommandError::Syntax);
            }
        }
        if let Some((user, password)) = login {
            self.log_in(user, password)?;
        }
        if !self.logged_in {
            return Err(CommandError::NoLoginHello);
        }
        self.protocol = protocol;
        if let Some(name) = name {
            self.name = name.to_vec();
        }
        info::write_hello(&mut Reply::new(out, protocol), self.id, protocol);
        Ok(())
    }

    /// Runs `CLIENT ...`, with the subcommands that libraries send when they connect.
    fn client(&mut self, command: &Command<'_>, out: &mut Vec<u8>) -> Result<(), CommandError> {
        let reply = &mut Reply::new(out, self.protocol);
        let is = |name| is_subcommand(command, name);
        match (command.arg(2), command.len()) {
            (Some(name), 3) if is("SETNAME") => {
                self.name = client_name(name)?.to_vec();
                reply.status("OK");
            }
            (Some(_), 4) if is("SETINFO") => reply.status("OK"),
            (Some(_), 3) if is("NO-EVICT") || is("NO-TOUCH") => reply.status("OK"),
            (None, 2) if is("GETNAME") => match self.name.is_empty() {
                true => reply.null(),
                false => reply.bulk(&self.name),
            },
            (None, 2) if is("ID") => reply.count(self.id),
            _ if CLIENT.into_iter().any(is) => return Err(CommandError::Arguments("client")),
            _ => return Err(unknown_subcommand("client", command)),
        }
        Ok(())
    }
}

/// The subcommands of `CLIENT`.
const CLIENT: [&str; 6] = [
    "SETNAME", "SETINFO", "NO-EVICT", "NO-TOUCH", "GETNAME", "ID",
];

fn is_subcommand(command: &Command<'_>, name: &str) -> bool {
    let subcommand = command.arg(1).unwrap_or_default();
    subcommand.eq_ignore_ascii_case(name.as_bytes())
}

fn unknown_subcommand(name: &'static str, command: &Command<'_>) -> CommandError {
    CommandError::Subcommand(name, shown(command.arg(1).unwrap_or_default()))
}

fn client_name(name: &[u8]) -> Result<&[u8], CommandError> {
    if name.len() > MAX_NAME || !name.iter().all(u8::is_ascii_graphic) {
        return Err(CommandError::ClientName);
    }
    Ok(name)
}
