//! `tollgate reload`: a running server reads its config file again.

use serde_json::{Value, json};

use crate::Answer;
use crate::admin::{AdminArgs, Question};
use crate::shown::shown;

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
    println!("in force: {rules} {rules_word}, version {}", shown(version));
    let differences = answer["differences"].as_array();
    for difference in differences.into_iter().flatten() {
        println!("{}", shown(difference.as_str().unwrap_or_default()));
    }
    if let Some(sections) = listed(&answer["needsRestart"]) {
        println!("as before until a restart: {sections}");
    }
    Ok(true)
}

/// The texts of a list on a line; none if there are none.
fn listed(list: &Value) -> Option<String> {
    let texts = list.as_array()?.iter().filter_map(Value::as_str);
    let texts: Vec<String> = texts.map(shown).collect();
    (!texts.is_empty()).then(|| texts.join(", "))
}
