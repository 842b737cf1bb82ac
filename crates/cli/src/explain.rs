//! `tollgate explain`: shows which rules apply to a request and what they would decide, and why the
//! others do not apply.

use serde_json::{Map, Value, json};
use tollgate_config::Store;

use crate::CommandResult;
use crate::admin::{AdminArgs, Call, list};
use crate::config::{self, TrialArgs};
use crate::request::RequestArgs;
use crate::terminal::printable;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    request: RequestArgs,

    #[command(flatten)]
    config: TrialArgs,

    /// Ask a running server: its rules, overrides, blocks and usage
    #[arg(long, conflicts_with_all = ["live", "store"])]
    running: bool,

    #[command(flatten)]
    admin: AdminArgs,
}

/// Asks a running server.
fn ask(args: &Args) -> CommandResult {
    let attributes: Map<String, Value> = args
        .request
        .pairs()
        .map(|(name, value)| (name.to_owned(), json!(value)))
        .collect();
    let body = json!({
        "attributes": attributes, "cost": args.request.cost, "upTo": args.request.up_to,
    });
    let answer = args.admin.call("/v1/explain", &Call::Post(&body))?;
    let version = answer["configVersion"].as_str().unwrap_or("?");
    println!("rules version {}", printable(version));
    if let Some(block) = answer["block"].as_str() {
        println!("{}", printable(block));
    }
    for rule in list(&answer, "rules").iter().filter_map(Value::as_str) {
        println!("{}", printable(rule));
    }
    let is_allowed = answer["decision"]["allowed"] == true;
    let word = if is_allowed { "allowed" } else { "denied" };
    println!("with the current usage, the request would be {word}");
    Ok(is_allowed)
}

pub(crate) async fn run(args: &Args) -> CommandResult {
    if args.running {
        return ask(args);
    }
    let config = args.config.load()?;
    let limiter = config::start(&config).await?;
    let attributes = args.request.attributes();
    let decision = limiter.peek(&attributes, args.request.ask()).await;
    println!("rules version {}", decision.config_version());
    for explanation in decision.rule_set().explain(&attributes) {
        println!("{explanation}");
        if let Some(rule) = decision.applied(&explanation) {
            println!("    {}", rule.limit);
            // Without a secret, each process hashes subjects differently, so the server's log has
            // another hash.
            if config.subjects.hash_secret.is_some() {
                println!("    subject {} in the log", rule.subject);
            }
            println!("    now: {}", rule.now);
        }
    }
    let word = match decision.is_allowed() {
        true => "allowed",
        false => "denied",
    };
    let used = match (&config.store, &config.ledger) {
        (Store::Memory, None) => "with no usage so far",
        _ => "with the current usage",
    };
    println!("{used}, the request would be {word}");
    limiter.close().await;
    Ok(decision.is_allowed())
}
