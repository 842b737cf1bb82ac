//! `tollgate explain`: which rules apply to a request, and why the others do not.

use std::path::PathBuf;

use tollgate::Limiter;

use crate::Answer;
use crate::request::RequestArgs;

/// Explains a request.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    request: RequestArgs,

    /// The rules. Without it: the starter rules
    #[arg(long, short, value_name = "FILE", env = "TOLLGATE_CONFIG")]
    config: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Answer {
    let limiter = Limiter::new(&crate::config::load(args.config.as_deref())?);
    let attributes = args.request.attributes();
    println!("rules version {}", limiter.rules().version());
    for explanation in limiter.explain(&attributes) {
        let rule = &limiter.rules().rules()[explanation.rule as usize];
        println!("{explanation}");
        if explanation.applies() {
            let (limit, window) = (rule.limit().capacity(), rule.limit().window());
            let name = rule.algorithm().name();
            match limit {
                tollgate::Outcome::UNLIMITED => println!("    {name}: unlimited"),
                _ => println!("    {name}: {limit} at once, all back in {window}"),
            }
        }
    }
    let decision = limiter.peek(&attributes, args.request.ask());
    let word = if decision.is_allowed() {
        "allowed"
    } else {
        "refused"
    };
    println!("with nothing used yet, the request is {word}");
    Ok(decision.is_allowed())
}
