//! `tollgate candidates`: what candidates would refuse, beside the rules in force.

use serde_json::Value;

use crate::Answer;
use crate::admin::{AdminArgs, Question};
use crate::shown::shown;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print the answer of the server as it is
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    admin: AdminArgs,
}

pub(crate) fn run(args: &Args) -> Answer {
    let answer = args.admin.ask("/v1/candidates", &Question::Get)?;
    if args.json {
        println!("{answer}");
        return Ok(true);
    }
    let all = answer["candidates"].as_array();
    let all = all.map_or(&[][..], Vec::as_slice);
    for it in all {
        if let Some(line) = described(it) {
            println!("{line}");
        }
    }
    if all.is_empty() {
        println!("no candidates");
    }
    Ok(true)
}

/// A comparison on a line; none if nobody of the plan has asked.
fn described(it: &Value) -> Option<String> {
    let count = |name: &str| it[name].as_u64().unwrap_or(0);
    let (more, fewer) = (count("refusesMore"), count("refusesFewer"));
    let both = count("bothAllow") + count("bothRefuse");
    let requests = both + more + fewer;
    if requests == 0 && it["plan"].is_string() {
        return None;
    }
    let whom = match it["plan"].as_str() {
        Some(plan) => format!("plan {}", shown(plan)),
        None => "without a plan".to_owned(),
    };
    let text = |name: &str| shown(it[name].as_str().unwrap_or("?"));
    Some(format!(
        "{} beside {}, {whom}: {requests} requests, refuses {more} more and {fewer} fewer, agrees on {both}",
        text("candidate"),
        text("current"),
    ))
}
