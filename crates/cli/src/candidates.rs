//! `tollgate candidates`: how candidate rules would decide, compared with the rules in force.

use serde_json::Value;

use crate::CommandResult;
use crate::admin::{AdminArgs, Call, list};
use crate::terminal::printable;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print the server's answer as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    admin: AdminArgs,
}

pub(crate) fn run(args: &Args) -> CommandResult {
    let answer = args.admin.call("/v1/candidates", &Call::Get(&[]))?;
    if args.json {
        println!("{answer}");
        return Ok(true);
    }
    let candidates = list(&answer, "candidates");
    for line in candidates.iter().filter_map(describe) {
        println!("{line}");
    }
    if candidates.is_empty() {
        println!("no candidates");
    }
    Ok(true)
}

/// Writes one comparison as a line; `None` for a plan without requests.
fn describe(it: &Value) -> Option<String> {
    let count = |name: &str| it[name].as_u64().unwrap_or(0);
    let (more, fewer) = (count("refusesMore"), count("refusesFewer"));
    let both = count("bothAllow") + count("bothRefuse");
    let requests = both + more + fewer;
    if requests == 0 && it["plan"].is_string() {
        return None;
    }
    let plan = match it["plan"].as_str() {
        Some(plan) => format!("plan {}", printable(plan)),
        None => "without a plan".to_owned(),
    };
    let text = |name: &str| printable(it[name].as_str().unwrap_or("?"));
    Some(format!(
        "{} beside {}, {plan}: {requests} requests, denies {more} more and {fewer} fewer, agrees on {both}",
        text("candidate"),
        text("current"),
    ))
}
