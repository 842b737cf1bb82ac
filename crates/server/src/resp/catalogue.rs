//! The list of commands: their names, the number of their arguments, and the answers of `COMMAND`.

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
    /// How many arguments, the name included. A negative number means: at least so many.
    arity: i64,
    /// Whether the command is allowed before the login.
    pub(super) open: bool,
    /// Whether its first argument is a key.
    keyed: bool,
    flags: &'static [&'static str],
    group: &'static str,
    summary: &'static str,
}

impl CommandInfo {
    /// Whether a command may have `count` arguments, its name included.
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

/// A command that may wait for a ledger.
const fn holding(entry: CommandInfo) -> CommandInfo {
    CommandInfo {
        flags: &["write"],
        group: "tollgate",
        ..entry
    }
}

/// A command that may wait for other clients.
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
            "Charges a key, with a limit that comes with the command",
        ))
    },
    deciding(entry(
        Name::Check,
        "tg.check",
        -1,
        "Decides by the rules, and charges if allowed",
    )),
    deciding(entry(
        Name::Peek,
        "tg.peek",
        -1,
        "Returns what TG.CHECK would decide, and charges nothing",
    )),
    deciding(entry(
        Name::Refund,
        "tg.refund",
        -1,
        "Gives back what TG.CHECK charged",
    )),
    holding(entry(
        Name::Reserve,
        "tg.reserve",
        -1,
        "Charges an estimate by the rules, to be settled later",
    )),
    holding(entry(
        Name::Commit,
        "tg.commit",
        3,
        "Ends a reservation with the units that were used",
    )),
    holding(entry(
        Name::Release,
        "tg.release",
        2,
        "Ends a reservation and gives all of it back",
    )),
    holding(entry(Name::Extend, "tg.extend", 3, "Extends a reservation")),
    blocking(entry(
        Name::Acquire,
        "tg.acquire",
        -1,
        "Takes a slot of every concurrency rule, and may wait for it",
    )),
    holding(entry(Name::Renew, "tg.renew", -3, "Renews a lease")),
    holding(entry(Name::Free, "tg.free", 3, "Releases a lease")),
    holding(entry(
        Name::Holders,
        "tg.holders",
        -1,
        "Lists the holders of the slots that TG.ACQUIRE would need",
    )),
    holding(entry(
        Name::Usage,
        "tg.usage",
        -2,
        "Returns what a tenant has used",
    )),
    entry(Name::Ping, "ping", -1, "Returns PONG, or its argument"),
    entry(Name::Echo, "echo", 2, "Returns its argument"),
    open(entry(Name::Auth, "auth", -2, "Logs in")),
    open(entry(
        Name::Hello,
        "hello",
        -1,
        "Selects the protocol, logs in, sets the client name",
    )),
    entry(Name::Select, "select", 2, "Accepts 0, the only database"),
    entry(
        Name::Client,
        "client",
        -2,
        "Sets and returns properties of the client",
    ),
    server(entry(Name::Command, "command", -1, "Lists the commands")),
    server(entry(Name::Config, "config", -2, "Returns a few settings")),
    server(entry(
        Name::Info,
        "info",
        -1,
        "Returns the state of the server",
    )),
    open(entry(Name::Reset, "reset", 1, "Resets the connection")),
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

/// `COMMAND DOCS [name ...]`: the named ones that exist, or all.
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
