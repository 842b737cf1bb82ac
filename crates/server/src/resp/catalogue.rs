//! The list of commands: their names, the number of their arguments, and the answers of `COMMAND`.

use tollgate_config::TokenScope;

use super::frame::Command;
use super::reply::Reply;

/// A command, by what it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Name {
    Throttle,
    Check,
    Peek,
    Refund,
    Reserve,
    Commit,
    Release,
    Extend,
    Acquire,
    Renew,
    Free,
    Holders,
    Usage,
    Ping,
    Echo,
    Auth,
    Hello,
    Select,
    Client,
    Command,
    Config,
    Info,
    Reset,
    Quit,
}

/// A command of the list.
#[derive(Clone, Copy, Debug)]
pub(super) struct CommandInfo {
    pub(super) name: Name,
    /// The command's name as it is written.
    pub(super) text: &'static str,
    /// How many arguments, the name included. A negative number is a minimum: -5 means at least 5.
    arity: i64,
    flags: &'static [&'static str],
}

impl CommandInfo {
    /// Returns whether a command may have `count` arguments, its name included.
    pub(super) fn takes(&self, count: usize) -> bool {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        if self.arity < 0 {
            count >= -self.arity
        } else {
            count == self.arity
        }
    }

    /// Returns whether the command is allowed before the login.
    pub(super) fn is_open(&self) -> bool {
        self.flags == OPEN
    }

    /// Returns the scope that the command needs; `None` if it decides nothing.
    pub(super) fn scope(&self) -> Option<TokenScope> {
        Some(match self.name {
            Name::Throttle | Name::Check | Name::Peek => TokenScope::Check,
            Name::Refund => TokenScope::Refund,
            Name::Reserve
            | Name::Commit
            | Name::Release
            | Name::Extend
            | Name::Acquire
            | Name::Renew
            | Name::Free
            | Name::Holders => TokenScope::Reserve,
            Name::Usage => TokenScope::Usage,
            Name::Ping
            | Name::Echo
            | Name::Auth
            | Name::Hello
            | Name::Select
            | Name::Client
            | Name::Command
            | Name::Config
            | Name::Info
            | Name::Reset
            | Name::Quit => return None,
        })
    }

    fn group(&self) -> &'static str {
        match self.name {
            Name::Command | Name::Config | Name::Info => "server",
            _ if self.flags.contains(&"write") => "tollgate",
            _ => "connection",
        }
    }

    fn summary(&self) -> &'static str {
        match self.name {
            Name::Throttle => "Charges a key, with a limit that comes with the command",
            Name::Check => "Decides by the rules, and charges if allowed",
            Name::Peek => "Returns what TG.CHECK would decide, and charges nothing",
            Name::Refund => "Gives back what TG.CHECK charged",
            Name::Reserve => "Charges an estimate by the rules, to be settled later",
            Name::Commit => "Ends a reservation with the units that were used",
            Name::Release => "Ends a reservation and gives all of it back",
            Name::Extend => "Extends a reservation",
            Name::Acquire => "Takes a slot of every concurrency rule, and may wait for it",
            Name::Renew => "Renews a lease",
            Name::Free => "Releases a lease",
            Name::Holders => "Lists the holders of the slots that TG.ACQUIRE would need",
            Name::Usage => "Returns what a tenant has used",
            Name::Ping => "Returns PONG, or its argument",
            Name::Echo => "Returns its argument",
            Name::Auth => "Logs in",
            Name::Hello => "Selects the protocol, logs in, sets the client name",
            Name::Select => "Accepts 0, the only database",
            Name::Client => "Sets and returns properties of the client",
            Name::Command => "Lists the commands",
            Name::Config => "Returns a few settings",
            Name::Info => "Returns the state of the server",
            Name::Reset => "Resets the connection",
            Name::Quit => "Ends the connection",
        }
    }
}

const PLAIN: &[&str] = &["fast"];
/// The flags of commands that are allowed before the login.
const OPEN: &[&str] = &["fast", "no_auth"];
const DECIDING: &[&str] = &["write", "fast"];
/// The flags of commands that may wait for a ledger.
const HOLDING: &[&str] = &["write"];
/// The flags of commands that may wait for other clients.
const BLOCKING: &[&str] = &["write", "blocking"];

const fn entry(
    name: Name,
    text: &'static str,
    arity: i64,
    flags: &'static [&'static str],
) -> CommandInfo {
    CommandInfo {
        name,
        text,
        arity,
        flags,
    }
}

/// All commands, the most frequent first.
const ALL: [CommandInfo; 24] = [
    entry(Name::Throttle, "cl.throttle", -5, DECIDING),
    entry(Name::Check, "tg.check", -1, DECIDING),
    entry(Name::Peek, "tg.peek", -1, DECIDING),
    entry(Name::Refund, "tg.refund", -1, DECIDING),
    entry(Name::Reserve, "tg.reserve", -1, HOLDING),
    entry(Name::Commit, "tg.commit", 3, HOLDING),
    entry(Name::Release, "tg.release", 2, HOLDING),
    entry(Name::Extend, "tg.extend", 3, HOLDING),
    entry(Name::Acquire, "tg.acquire", -1, BLOCKING),
    entry(Name::Renew, "tg.renew", -3, HOLDING),
    entry(Name::Free, "tg.free", 3, HOLDING),
    entry(Name::Holders, "tg.holders", -1, HOLDING),
    entry(Name::Usage, "tg.usage", -2, HOLDING),
    entry(Name::Ping, "ping", -1, PLAIN),
    entry(Name::Echo, "echo", 2, PLAIN),
    entry(Name::Auth, "auth", -2, OPEN),
    entry(Name::Hello, "hello", -1, OPEN),
    entry(Name::Select, "select", 2, PLAIN),
    entry(Name::Client, "client", -2, PLAIN),
    entry(Name::Command, "command", -1, PLAIN),
    entry(Name::Config, "config", -2, PLAIN),
    entry(Name::Info, "info", -1, PLAIN),
    entry(Name::Reset, "reset", 1, OPEN),
    entry(Name::Quit, "quit", -1, OPEN),
];

/// Finds the command of this name, in upper or lower case.
#[inline]
pub(super) fn find(name: &[u8]) -> Option<&'static CommandInfo> {
    ALL.iter()
        .find(|entry| entry.text.as_bytes().eq_ignore_ascii_case(name))
}

/// Answers `COMMAND [COUNT | LIST | INFO name ... | DOCS name ...]`. Returns whether there is such a
/// subcommand.
pub(super) fn write(reply: &mut Reply<'_>, command: &Command<'_>) -> bool {
    let subcommand = command.arg(1).unwrap_or(b"INFO");
    let is = |name: &str| subcommand.eq_ignore_ascii_case(name.as_bytes());
    let named: Vec<Option<&CommandInfo>> = command.args_from(2).map(find).collect();
    let all = || ALL.iter().map(Some).collect();
    if is("COUNT") && named.is_empty() {
        reply.count(ALL.len() as u64);
    } else if is("LIST") && named.is_empty() {
        reply.list(ALL.len());
        for entry in &ALL {
            reply.text(entry.text);
        }
    } else if is("INFO") {
        let wanted = if named.is_empty() { all() } else { named };
        reply.list(wanted.len());
        for entry in wanted {
            reply.optional(entry, write_entry);
        }
    } else if is("DOCS") {
        let wanted = if named.is_empty() { all() } else { named };
        reply.map(wanted.iter().flatten().count());
        for entry in wanted.into_iter().flatten() {
            reply.text(entry.text);
            reply.map(3);
            reply.entry("summary", entry.summary());
            reply.entry("since", env!("CARGO_PKG_VERSION"));
            reply.entry("group", entry.group());
        }
    } else {
        return false;
    }
    true
}

/// Writes an entry: name, arity, flags, first key, last key, step, categories, tips, key
/// specifications, subcommands.
fn write_entry(reply: &mut Reply<'_>, entry: &CommandInfo) {
    reply.list(10);
    reply.text(entry.text);
    reply.integer(entry.arity);
    reply.list(entry.flags.len());
    for flag in entry.flags {
        reply.status(flag);
    }
    // Only CL.THROTTLE has a key, its first argument.
    for _ in ["first", "last", "step"] {
        reply.integer((entry.name == Name::Throttle).into());
    }
    for _ in ["categories", "tips", "key specifications", "subcommands"] {
        reply.list(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_any_case() {
        assert_eq!(find(b"cl.Throttle").unwrap().name, Name::Throttle);
        assert_eq!(find(b"PING").unwrap().name, Name::Ping);
        assert!(find(b"PIN").is_none());
        assert!(find(b"").is_none());
    }

    #[test]
    fn arity_counts_the_name() {
        let throttle = find(b"CL.THROTTLE").unwrap();
        assert_eq!([4, 5, 6].map(|n| throttle.takes(n)), [false, true, true]);
        let echo = find(b"ECHO").unwrap();
        assert_eq!([1, 2, 3].map(|n| echo.takes(n)), [false, true, false]);
    }
}
