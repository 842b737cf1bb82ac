//! `tollgate block`, `unblock` and `blocks`: subjects that a running server denies before any rule.

use clap::ArgGroup;
use serde_json::{Value, json};

use crate::CommandResult;
use crate::admin::{AdminArgs, Call, list};
use crate::terminal::printable;

#[derive(clap::Args)]
#[command(group(ArgGroup::new("end").required(true).args(["lasts", "forever"])))]
pub(crate) struct BlockArgs {
    /// The subject to deny, such as api_key=k1, user=ann, ip=192.0.2.1 or ip=10.0.0.0/8
    #[arg(value_name = "NAME=VALUE")]
    subject: String,

    /// How long the block lasts, such as 1h
    #[arg(long = "for", value_name = "TIME")]
    lasts: Option<String>,

    /// Block until `tollgate unblock`
    #[arg(long)]
    forever: bool,

    /// The reason, for operators: in the list of blocks and in the audit trail. Clients are not told
    #[arg(long, value_name = "TEXT")]
    reason: String,

    #[command(flatten)]
    admin: AdminArgs,
}

#[derive(clap::Args)]
pub(crate) struct UnblockArgs {
    /// The blocked subject, such as api_key=k1; or the name of a block, as `tollgate blocks` shows it
    #[arg(value_name = "NAME=VALUE")]
    subject: String,

    /// The reason, for the audit trail
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,

    #[command(flatten)]
    admin: AdminArgs,
}

#[derive(clap::Args)]
pub(crate) struct ListArgs {
    /// Print the server's answer as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    admin: AdminArgs,
}

pub(crate) fn block(args: &BlockArgs) -> CommandResult {
    let mut body = json!({ "subject": args.subject, "reason": args.reason });
    match &args.lasts {
        Some(lasts) => body["for"] = json!(lasts),
        None => body["forever"] = json!(args.forever),
    }
    let set = args.admin.call("/v1/blocks", &Call::Post(&body))?;
    println!("{}", describe(&set));
    Ok(true)
}

pub(crate) fn unblock(args: &UnblockArgs) -> CommandResult {
    let name = match args.subject.starts_with("block:") {
        true => "name",
        false => "subject",
    };
    // In the body, because proxies log addresses, and the subject may be a secret.
    let body = json!({ name: args.subject, "reason": args.reason });
    let path = "/v1/blocks/remove";
    let removed = args.admin.call(path, &Call::Post(&body))?;
    println!("unblocked {}", describe(&removed));
    Ok(true)
}

pub(crate) fn show(args: &ListArgs) -> CommandResult {
    let answer = args.admin.call("/v1/blocks", &Call::Get(&[]))?;
    if args.json {
        println!("{answer}");
        return Ok(true);
    }
    let blocks = list(&answer, "blocks");
    for it in blocks {
        println!("{}", describe(it));
    }
    if blocks.is_empty() {
        println!("no blocks");
    }
    Ok(true)
}

/// Writes a block as a line.
fn describe(it: &Value) -> String {
    let text = |name: &str| printable(it[name].as_str().unwrap_or_default());
    let until = match it["expiresAtEpochMillis"].as_u64() {
        Some(millis) => {
            let time = tollgate::Time::from_micros(millis.saturating_mul(1000));
            format!("until {}", tollgate_server::audit::instant(time))
        }
        None => "until unblocked".to_owned(),
    };
    let mut line = format!(
        "{}: {until}, by {}: {}",
        text("name"),
        text("author"),
        text("reason")
    );
    if let Some(why) = it["idle"].as_str() {
        line += &format!(" (has no effect: {})", printable(why));
    }
    line
}
