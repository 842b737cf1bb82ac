//! The commands there are: their names, how many arguments they take, and what `COMMAND` tells about
//! them.

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

/// What there is to know about a command.
#[derive(Clone, Copy, Debug)]
pub(super) struct CommandInfo {
    pub(super) name: Name,
    /// As people read it.
    pub(super) text: &'static str,
    /// How many arguments, the name included; if negative, so many or more.
    arity: i64,
    /// Whether it may be used before a login.
    pub(super) open: bool,
    /// Whether its first argument is a key.
    keyed: bool,
    flags: &'static [&'static str],
    group: &'static str,
    summary: &'static str,
}

impl CommandInfo {
    /// Whether a command of `count` arguments, its name included, can be right.
    pub(super) fn takes(&self, count: usize) -> bool {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        if self.arity < 0 {
            count >= -self.arity
        } else {
            count == self.arity
        }
    }
}

const fn entry(name: Name, text: &'static str, arity: i64, summary: &'static str) -> CommandInfo {
    CommandInfo {
        name,
        text,
        arity,
        open: false,
        keyed: false,
        flags: &["fast"],
        group: "connection",
        summary,
    }
}

const fn open(entry: CommandInfo) -> CommandInfo {
    CommandInfo {
        open: true,
        flags: &["fast", "no_auth"],
        ..entry
    }
}

const fn deciding(entry: CommandInfo) -> CommandInfo {
    CommandInfo {
        flags: &["write", "fast"],
        group: "tollgate",
        ..entry
    }
}

/// A command that may have to wait for a ledger.
const fn holding(entry: CommandInfo) -> CommandInfo {
    CommandInfo {
        flags: &["write"],
        group: "tollgate",
        ..entry
    }
}

/// A command that may wait for others.
const fn blocking(entry: CommandInfo) -> CommandInfo {
    CommandInfo {
        flags: &["write", "blocking"],
        group: "tollgate",
        ..entry
    }
}

const fn server(entry: CommandInfo) -> CommandInfo {
    CommandInfo {
        group: "server",
        ..entry
    }
}

/// All commands, the most frequent first.
const ALL: [CommandInfo; 24] = [
    CommandInfo {
        keyed: true,
        ..deciding(entry(
            Name::Throttle,
            "cl.throttle",
            -5,
            "Takes from the allowance of a key, by numbers that come with the command",
        ))
    },
    deciding(entry(
        Name::Check,
        "tg.check",
        -1,
        "Decides by the rules, and takes if allowed",
    )),
    deciding(entry(
        Name::Peek,
        "tg.peek",
        -1,
        "Tells what TG.CHECK would decide, and takes nothing",
    )),
    deciding(entry(
        Name::Refund,
        "tg.refund",
        -1,
        "Gives back what TG.CHECK took",
    )),
    holding(entry(
        Name::Reserve,
        "tg.reserve",
        -1,
        "Takes an estimate by the rules, to be settled later",
    )),
    holding(entry(
        Name::Commit,
        "tg.commit",
        3,
        "Ends a reservation with what was really used",
    )),
    holding(entry(
        Name::Release,
        "tg.release",
        2,
        "Ends a reservation and gives all of it back",
    )),
    holding(entry(
        Name::Extend,
        "tg.extend",
        3,
        "Keeps a reservation for longer",
    )),
    blocking(entry(
        Name::Acquire,
        "tg.acquire",
        -1,
        "Takes a slot of every concurrency rule, and may wait for it",
    )),
    holding(entry(
        Name::Renew,
        "tg.renew",
        -3,
        "Keeps a lease for longer",
    )),
    holding(entry(Name::Free, "tg.free", 3, "Gives a lease back")),
    holding(entry(
        Name::Holders,
        "tg.holders",
        -1,
        "Tells who holds the slots that TG.ACQUIRE would need",
    )),
    holding(entry(
        Name::Usage,
        "tg.usage",
        -2,
        "Tells what a tenant has used",
    )),
    entry(Name::Ping, "ping", -1, "Answers PONG, or what it was sent"),
    entry(Name::Echo, "echo", 2, "Answers what it was sent"),
    open(entry(Name::Auth, "auth", -2, "Logs in")),
    open(entry(
        Name::Hello,
        "hello",
        -1,
        "Chooses a protocol, logs in, names the client",
    )),
    entry(Name::Select, "select", 2, "Takes 0, the only database"),
    entry(Name::Client, "client", -2, "Names the client, and the like"),
    server(entry(
        Name::Command,
        "command",
        -1,
        "Tells which commands there are",
    )),
    server(entry(Name::Config, "config", -2, "Tells a few settings")),
    server(entry(
        Name::Info,
        "info",
        -1,
        "Tells how the server is doing",
    )),
    open(entry(Name::Reset, "reset", 1, "Starts the connection over")),
    open(entry(Name::Quit, "quit", -1, "Ends the connection")),
];

/// The command of this name, in upper or lower case.
#[inline]
pub(super) fn find(name: &[u8]) -> Option<&'static CommandInfo> {
    ALL.iter()
        .find(|entry| entry.text.as_bytes().eq_ignore_ascii_case(name))
}

/// `COMMAND`, `COMMAND INFO`
pub(super) fn write_all(reply: &mut Reply<'_>) {
    reply.list(ALL.len());
    for entry in &ALL {
        write_entry(reply, entry);
    }
}

/// `COMMAND INFO name ...`
pub(super) fn write_named<'a>(reply: &mut Reply<'_>, names: impl Iterator<Item = &'a [u8]>) {
    let found: Vec<Option<&CommandInfo>> = names.map(find).collect();
    reply.list(found.len());
    for entry in found {
        reply.optional(entry, write_entry);
    }
}

/// `COMMAND DOCS [name ...]`: those that there are, or all.
pub(super) fn write_docs<'a>(
    reply: &mut Reply<'_>,
    names: impl ExactSizeIterator<Item = &'a [u8]>,
) {
    let wanted: Vec<&CommandInfo> = if names.len() == 0 {
        ALL.iter().collect()
    } else {
        names.filter_map(find).collect()
    };
    reply.map(wanted.len());
    for entry in wanted {
        reply.text(entry.text);
        reply.map(3);
        for (name, value) in [
            ("summary", entry.summary),
            ("since", env!("CARGO_PKG_VERSION")),
            ("group", entry.group),
        ] {
            reply.text(name);
            reply.text(value);
        }
    }
}

/// `COMMAND LIST`
pub(super) fn write_names(reply: &mut Reply<'_>) {
    reply.list(ALL.len());
    for entry in &ALL {
        reply.text(entry.text);
    }
}

/// `COMMAND COUNT`
pub(super) fn write_count(reply: &mut Reply<'_>) {
    reply.count(ALL.len() as u64);
}

/// Name, arity, flags, first key, last key, step, categories, tips, key specifications, subcommands.
fn write_entry(reply: &mut Reply<'_>, entry: &CommandInfo) {
    reply.list(10);
    reply.text(entry.text);
    reply.integer(entry.arity);
    reply.list(entry.flags.len());
    for flag in entry.flags {
        reply.status(flag);
    }
    for _ in ["first", "last", "step"] {
        reply.integer(entry.keyed.into());
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
