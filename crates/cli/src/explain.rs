//! `tollgate explain`: shows which rules apply to a request and what they would decide, and why the
//! others do not apply.

use tollgate_config::Store;

use crate::CommandResult;
use crate::config::{self, TrialArgs};
use crate::request::RequestArgs;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    request: RequestArgs,

    #[command(flatten)]
    config: TrialArgs,
}

pub(crate) async fn run(args: &Args) -> CommandResult {
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
