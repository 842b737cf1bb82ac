//! `tollgate reload`: a running server reads its config file again.

use serde_json::{Value, json};

use crate::Answer;
use crate::admin::{AdminArgs, Question};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Why, for the audit trail
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,

    #[command(flatten)]
    admin: AdminArgs,
}

pub(crate) fn run(args: &Args) -> Answer {
    let body = match &args.reason {
        Some(reason) => json!({ "reason": reason }),
        None => json!({}),
    };
    let answer = args.admin.ask("/v1/reload", &Question::Post(&body))?;
    let rules = answer["rules"].as_u64().unwrap_or(0);
    let rules_word = if rules == 1 { "rule" } else { "rules" };
    let version = answer["configVersion"].as_str().unwrap_or("?");
    println!("in force: {rules} {rules_word}, version {version}");
    let changes = &answer["changes"];
    for what in ["added", "removed", "changed"] {
        let ids = changes[what]["ids"].as_array();
        let ids: Vec<&str> = ids
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        if !ids.is_empty() {
            println!("{what}: {}", ids.join(", "));
        }
    }
    let restart = answer["needsRestart"].as_array();
    let restart: Vec<&str> = restart
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    if !restart.is_empty() {
        println!("as before until a restart: {}", restart.join(", "));
    }
    Ok(true)
}
