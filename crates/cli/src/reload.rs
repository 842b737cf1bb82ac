//! `tollgate reload`: tells a running server to read its config file again.

use serde_json::{Value, json};

use crate::CommandResult;
use crate::admin::{AdminArgs, Call, list};
use crate::terminal::{count_rules, printable};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The reason, for the audit trail
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,

    #[command(flatten)]
    admin: AdminArgs,
}

pub(crate) fn run(args: &Args) -> CommandResult {
    let body = json!({ "reason": args.reason });
    let answer = args.admin.call("/v1/reload", &Call::Post(&body))?;
    describe(&answer);
    Ok(true)
}

/// Prints what a change of the config has changed.
pub(crate) fn describe(answer: &Value) {
    let rules = answer["rules"].as_u64().unwrap_or(0);
    let rules = count_rules(usize::try_from(rules).unwrap_or(usize::MAX));
    let version = answer["configVersion"].as_str().unwrap_or("?");
    println!("in force: {rules}, version {}", printable(version));
    let texts = |name| {
        let texts = list(answer, name).iter().filter_map(|it| it.as_str());
        texts.map(printable).collect::<Vec<String>>()
    };
    for difference in texts("differences") {
        println!("{difference}");
    }
    let sections = texts("needsRestart");
    if !sections.is_empty() {
        println!("unchanged until a restart: {}", sections.join(", "));
    }
}
