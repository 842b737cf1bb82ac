//! `tollgate tail`: shows denials of a running server as they happen.

use std::io::Write;
use std::time::Duration;

use serde_json::Value;

use crate::CommandResult;
use crate::admin::{AdminArgs, list};
use crate::connect::Failure;
use crate::terminal::printable;
use crate::why::{FilterArgs, ask};

/// For how many seconds the server waits for the next denial before it answers.
const WAIT: u64 = 20;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    filter: FilterArgs,

    /// First show this many of the latest denials, up to 1000
    #[arg(long, value_name = "N", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u16).range(0..=1000))]
    lines: u16,

    /// Print the denials as the server sends them, one JSON object on each line
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    admin: AdminArgs,
}

pub(crate) fn run(args: &Args) -> CommandResult {
    let mut query = args.filter.query();
    let filters = query.len();
    query.push(("limit", args.lines.max(1).to_string()));
    let mut answer = ask(&args.admin, &query, None)?;
    let latest = list(&answer, "denials").iter();
    let latest = latest.take(usize::from(args.lines)).rev();
    if !show(latest, args.json) {
        return Ok(true);
    }
    loop {
        let next = answer["next"].as_u64().unwrap_or(0);
        query.truncate(filters);
        query.push(("limit", "1000".to_owned()));
        query.push(("after", next.to_string()));
        query.push(("wait", WAIT.to_string()));
        let timeout = Some(Duration::from_secs(WAIT + 20));
        answer = again(Duration::from_secs(1), || ask(&args.admin, &query, timeout))?;
        if let Some(missed) = answer["missed"].as_u64().filter(|missed| *missed > 0) {
            eprintln!("{missed} denials came faster than they were read, and are not shown");
        }
        if !show(list(&answer, "denials").iter(), args.json) {
            return Ok(true);
        }
    }
}

/// Asks until there is an answer, with `pause` between the calls: a server that restarts is followed further. Says
/// each new reason why there is none. An error is one that lasts, such as a token that is no longer right.
fn again(pause: Duration, ask: impl Fn() -> Result<Value, Failure>) -> Result<Value, String> {
    let mut told = String::new();
    loop {
        match ask() {
            Ok(answer) => {
                if !told.is_empty() {
                    eprintln!("the server answers again");
                }
                return Ok(answer);
            }
            Err(failure) if failure.is_lasting => return Err(failure.text),
            Err(Failure { text, .. }) if text != told => {
                eprintln!(
                    "{}\nnote: trying again until the server answers",
                    text.trim_end()
                );
                told = text;
            }
            Err(_) => {}
        }
        std::thread::sleep(pause);
    }
}

/// Prints denials, one on each line. Returns whether the output is still open.
fn show<'v>(denials: impl Iterator<Item = &'v Value>, json: bool) -> bool {
    let mut stdout = std::io::stdout().lock();
    for denial in denials {
        let line = match json {
            true => denial.to_string(),
            false => line(denial),
        };
        if writeln!(stdout, "{line}").is_err() {
            return false;
        }
    }
    stdout.flush().is_ok()
}

/// Describes a denial in one line.
fn line(denial: &Value) -> String {
    let text = |name: &str| denial[name].as_str();
    let number = |name: &str| denial[name].as_u64();
    let mut parts = Vec::new();
    for name in ["at", "door", "ruleId", "reason"] {
        parts.push(text(name).unwrap_or("-").to_owned());
    }
    for (name, label) in [("action", "action"), ("tenantId", "tenant")] {
        parts.extend(text(name).map(|value| format!("{label}={value}")));
    }
    if let (Some(kind), Some(hash)) = (text("subjectType"), text("subjectHash")) {
        parts.push(format!("{kind}={}", hash.get(..8).unwrap_or(hash)));
    }
    for (name, label) in [
        ("limit", "limit"),
        ("remaining", "left"),
        ("retryAfterMillis", "retry_ms"),
        ("suppressed", "not_recorded"),
    ] {
        parts.extend(number(name).map(|value| format!("{label}={value}")));
    }
    printable(&parts.join(" "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn denial_is_one_line() {
        let denial = json!({
            "at": "2026-11-18T14:03:12.123Z", "door": "http", "ruleId": "login", "reason": "exceeded",
            "tenantId": "ac\nme", "subjectType": "api_key", "subjectHash": "0af7651916cd43dd8448eb211c80319c",
            "limit": 5, "remaining": 0, "retryAfterMillis": 12_000,
        });
        assert_eq!(
            line(&denial),
            "2026-11-18T14:03:12.123Z http login exceeded tenant=ac me api_key=0af76519 limit=5 left=0 retry_ms=12000"
        );
    }
}
