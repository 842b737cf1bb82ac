//! `tollgate explain`: which rules apply to a request, and why the others do not.

use tollgate_config::Store;

use crate::Answer;
use crate::config::{self, ConfigArgs};
use crate::request::RequestArgs;

/// Explains a request.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    request: RequestArgs,

    #[command(flatten)]
    config: ConfigArgs,
}

pub(crate) fn run(args: &Args) -> Answer {
    config::block_on(explain(args))
}

async fn explain(args: &Args) -> Answer {
    let config = args.config.load()?;
    let limiter = config::start(&config).await?;
    let attributes = args.request.attributes();
    let rules = limiter.rules();
    println!("rules version {}", rules.version());
    for explanation in rules.explain(&attributes) {
        let rule = &rules.rules()[explanation.rule as usize];
        println!("{explanation}");
        if explanation.applies() {
            println!("    {}", rule.summary());
        }
    }
    let decision = limiter.peek(&attributes, args.request.ask()).await;
    let word = if decision.is_allowed() {
        "allowed"
    } else {
        "refused"
    };
    let used = match config.store {
        Store::Memory => "with nothing used yet",
        _ => "with what is used now",
    };
    println!("{used}, the request is {word}");
    Ok(decision.is_allowed())
}
