//! `tollgate config` and `tollgate rollback`: versions of the config that were in force.

use clap::Subcommand;
use serde_json::{Value, json};

use crate::CommandResult;
use crate::admin::{AdminArgs, Call, list};
use crate::reload;
use crate::terminal::printable;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show the versions of the config that were in force, the last one first
    Versions(ListArgs),
    /// Print the text of a version. Secrets are masked
    Show(ShowArgs),
}

#[derive(clap::Args)]
struct ListArgs {
    /// Print the server's answer as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    admin: AdminArgs,
}

#[derive(clap::Args)]
struct ShowArgs {
    /// The version, as `tollgate config versions` shows it
    #[arg(id = "config_version", value_name = "VERSION")]
    version: String,

    #[command(flatten)]
    admin: AdminArgs,
}

#[derive(clap::Args)]
pub(crate) struct RollbackArgs {
    /// The version, as `tollgate config versions` shows it
    #[arg(id = "config_version", value_name = "VERSION")]
    version: String,

    /// The reason, for the audit trail
    #[arg(long, value_name = "TEXT")]
    reason: String,

    #[command(flatten)]
    admin: AdminArgs,
}

pub(crate) fn run(args: &Args) -> CommandResult {
    match &args.command {
        Command::Versions(args) => versions(args),
        Command::Show(args) => show(args),
    }
}

fn versions(args: &ListArgs) -> CommandResult {
    let answer = args.admin.call("/v1/config/versions", &Call::Get(&[]))?;
    if args.json {
        println!("{answer}");
        return Ok(true);
    }
    let text = |it: &Value, name: &str| printable(it[name].as_str().unwrap_or_default());
    let in_force = text(&answer, "inForce");
    for it in list(&answer, "versions") {
        let version = text(it, "version");
        let mut line = format!("{version}  {}  {}", text(it, "at"), text(it, "who"));
        if version == in_force {
            line += "  in force";
        }
        if answer["rolledBackFrom"] == it["version"] {
            line += "  in the config file";
        }
        if it["bytes"].is_null() {
            line += "  (text not kept)";
        }
        if let Some(why) = it["why"].as_str() {
            line += &format!("  {}", printable(why));
        }
        println!("{line}");
    }
    Ok(true)
}

fn show(args: &ShowArgs) -> CommandResult {
    let path = format!("/v1/config/versions/{}", args.version);
    let answer = args.admin.call(&path, &Call::Get(&[]))?;
    let text = answer["text"].as_str();
    let text = text.ok_or("error: the text of this version is too long and was not kept")?;
    // Line ends stay: the text is a file.
    let lines: Vec<String> = text.split('\n').map(printable).collect();
    print!("{}", lines.join("\n"));
    Ok(true)
}

pub(crate) fn rollback(args: &RollbackArgs) -> CommandResult {
    let body = json!({ "version": args.version, "reason": args.reason });
    let answer = args.admin.call("/v1/rollback", &Call::Post(&body))?;
    reload::describe(&answer);
    println!("this version stays in force until the config file changes or is reloaded");
    Ok(true)
}
