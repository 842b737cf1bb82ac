//! `tollgate check`: one decision, from a config or by a running server.

use std::time::Duration;

use serde_json::{Value, json};
use tollgate::{Decision, RuleDecision, Span, wait_in_words};

use crate::CommandResult;
use crate::config::{self, TrialArgs};
use crate::connect::{Call, ConnectArgs, describe_error};
use crate::request::RequestArgs;
use crate::terminal::printable;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    request: RequestArgs,

    #[command(flatten)]
    config: TrialArgs,

    /// Let a running server decide, such as http://127.0.0.1:8080
    #[arg(long, short, value_name = "URL", conflicts_with_all = ["live", "store"])]
    server: Option<String>,

    /// Send the request this many times; the exit code is that of the last decision
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,

    /// Print the server's answer as JSON
    #[arg(long, requires = "server")]
    json: bool,

    #[command(flatten)]
    connect: ConnectArgs,
}

pub(crate) fn run(args: &Args) -> CommandResult {
    match &args.server {
        Some(server) => ask_server(args, server),
        None => config::block_on(ask_rules(args)),
    }
}

async fn ask_rules(args: &Args) -> CommandResult {
    let limiter = config::start(&args.config.load()?).await?;
    let mut allowed = true;
    for _ in 0..args.repeat {
        let decision = limiter
            .ask(&args.request.attributes(), args.request.ask())
            .await;
        println!("{}", describe(&decision, args.request.up_to));
        allowed = decision.is_allowed();
    }
    limiter.close().await;
    Ok(allowed)
}

fn describe(decision: &Decision, up_to: bool) -> String {
    let word = match (decision.is_allowed(), up_to) {
        (false, _) => "denied".to_owned(),
        (true, false) => "allowed".to_owned(),
        (true, true) => format!("allowed {} units", decision.granted()),
    };
    let rules = decision
        .rules()
        .map(|rule| format!("\n  {}", describe_rule(&rule)));
    let rules: String = rules.collect();
    match rules.is_empty() {
        true => format!("{word}: no rule applies"),
        false => format!("{word}{rules}"),
    }
}

fn describe_rule(rule: &RuleDecision<'_>) -> String {
    let (id, algorithm) = (rule.rule().id(), rule.rule().algorithm().name());
    format!("{id} ({algorithm}) {rule}")
}

fn ask_server(args: &Args, server: &str) -> CommandResult {
    let attributes: Value = args.request.pairs().collect();
    let body = json!({
        "attributes": attributes,
        "cost": args.request.cost,
        "upTo": args.request.up_to,
    });
    let help = "give the address of the server's HTTP door with --server";
    let door = args.connect.door(server, Duration::from_secs(5), help)?;
    let path = "/v1/check";
    let mut allowed = true;
    for _ in 0..args.repeat {
        let response = door.send(path, &Call::Post(&body))?;
        let status = response.status();
        let text = door.text(path, response)?;
        // The `denial_body` of the server's config may be any text.
        let answer: Value =
            serde_json::from_str(&text).unwrap_or_else(|_| Value::String(text.clone()));
        allowed = match answer["allowed"].as_bool() {
            Some(allowed) => allowed,
            None if status.as_u16() == 429 => {
                allowed = false;
                match args.json {
                    true => println!("{answer}"),
                    false => println!("denied: {}", printable(text.trim_end())),
                }
                continue;
            }
            None => return Err(describe_error(status.as_u16(), &answer)),
        };
        match args.json {
            true => println!("{answer}"),
            false => println!("{}", describe_answer(&answer)),
        }
    }
    Ok(allowed)
}

fn describe_answer(answer: &Value) -> String {
    let allowed = answer["allowed"] == true;
    let mut text = if allowed { "allowed" } else { "denied" }.to_owned();
    let is_blocked = answer["reason"] == "blocked";
    match answer["ruleId"].as_str() {
        Some(rule) => {
            let algorithm = answer["algorithm"].as_str().unwrap_or("?");
            text += &format!(" by {rule} ({algorithm})");
        }
        None if is_blocked => {}
        None => return text + ": no rule applies",
    }
    match (answer["remaining"].as_u64(), answer["limit"].as_u64()) {
        (Some(remaining), Some(limit)) => text += &format!(", {remaining} of {limit} left"),
        (_, None) if allowed => text += ", unlimited",
        // The store did not decide.
        _ => {}
    }
    let reason = answer["reason"].as_str().filter(|it| *it != "exceeded");
    if let Some(reason) = reason {
        text += &format!(" ({})", reason.replace('_', " "));
    }
    let wait = |name: &str| answer[name].as_u64().map(Span::from_millis);
    if let Some(wait) = wait("retryAfterMillis") {
        text += &format!(", retry in {}", wait_in_words(wait));
    }
    if let Some(delay) = wait("delayMillis").filter(|it| *it > Span::ZERO) {
        text += &format!(", wait {} first", wait_in_words(delay));
    }
    if let Some(policy) = answer["fallback"].as_str() {
        text += &format!(", decided by its failure policy {policy}");
    }
    text
}
