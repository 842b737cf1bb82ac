//! `tollgate explain`: shows which rules apply to a request, and why the others do not.

use tollgate_config::Store;

use crate::CommandResult;
use crate::config::{self, ConfigArgs};
use crate::request::RequestArgs;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    request: RequestArgs,

    #[command(flatten)]
    config: ConfigArgs,
}

pub(crate) async fn run(args: &Args) -> CommandResult {
    let config = args.config.load()?;
    let limiter = config::start(&config).await?;
    let attributes = args.request.attributes();
    let rules = limiter.rules();
    println!("rules version {}", rules.version());
    for explanation in rules.explain(&attributes) {
        println!("{explanation}");
        if explanation.applies() {
            let rule = &rules.rules()[explanation.rule as usize];
            println!("    {}", rule.summary());
        }
    }
    let decision = limiter.peek(&attributes, args.request.ask()).await;
    let word = match decision.is_allowed() {
        true => "allowed",
        false => "denied",
    };
    let used = match config.store {
        Store::Memory => "with no usage so far",
        _ => "with the current usage",
    };
    println!("{used}, the request would be {word}");
    Ok(decision.is_allowed())
}
