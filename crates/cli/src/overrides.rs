//! `tollgate override`: limits changed at run time, for a subject, a tenant, a plan or everyone.

use clap::{ArgGroup, Subcommand};
use serde_json::{Map, Value, json};

use crate::CommandResult;
use crate::admin::{AdminArgs, Call, list};
use crate::request::pair;
use crate::terminal::printable;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Change limits for a subject, a tenant, a plan or everyone. All instances follow within a second
    Set(Box<SetArgs>),
    /// Show the overrides in force
    List(ListArgs),
    /// End an override
    Clear(ClearArgs),
}

#[derive(clap::Args)]
#[command(
    group(ArgGroup::new("scope").required(true).args(["subject", "tenant", "plan", "everyone"])),
    group(ArgGroup::new("change").required(true).args(["numbers", "scale", "state", "rollout", "mode"])),
)]
struct SetArgs {
    /// Change the limits of this subject, such as user=ann or ip=10.0.0.0/8. Needs --for or --forever
    #[arg(long, value_name = "NAME=VALUE")]
    subject: Option<String>,

    /// Change the limits of this tenant
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,

    /// Change the limits of all tenants with this plan
    #[arg(long, value_name = "NAME")]
    plan: Option<String>,

    /// Change the limits of everyone, for emergencies. Needs --for
    #[arg(long)]
    everyone: bool,

    /// Change only this rule or budget [default: all]
    #[arg(long, value_name = "ID")]
    rule: Option<String>,

    /// Set a number of the rule, such as rate=100/s; may be given several times
    #[arg(long = "number", value_name = "NAME=VALUE", value_parser = pair)]
    numbers: Vec<(String, String)>,

    /// Multiply the limit, such as 50% for half of it, or 200% for twice as much
    #[arg(long, value_name = "PERCENT")]
    scale: Option<String>,

    /// Set the state of the rule: enforce, shadow or disabled; only with --everyone
    #[arg(long, value_name = "STATE")]
    state: Option<String>,

    /// Apply the rule to this share of its subjects, such as 25%; only with --everyone and --rule
    #[arg(long, value_name = "PERCENT")]
    rollout: Option<String>,

    /// Set where the rule's requests are decided: exact, leased or async
    #[arg(long, value_name = "MODE")]
    mode: Option<String>,

    /// How long the override lasts, such as 1h [default: until it is cleared]
    #[arg(long = "for", value_name = "TIME")]
    lasts: Option<String>,

    /// The override of a subject lasts until it is cleared
    #[arg(long, conflicts_with = "lasts")]
    forever: bool,

    /// The reason, shown in the list of overrides and in the audit trail
    #[arg(long, value_name = "TEXT")]
    reason: String,

    #[command(flatten)]
    admin: AdminArgs,
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
struct ClearArgs {
    /// The name of the override, as `tollgate override list` shows it
    #[arg(value_name = "NAME")]
    name: String,

    /// The reason, for the audit trail
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,

    #[command(flatten)]
    admin: AdminArgs,
}

pub(crate) fn run(args: &Args) -> CommandResult {
    match &args.command {
        Command::Set(args) => set(args),
        Command::List(args) => show(args),
        Command::Clear(args) => clear(args),
    }
}

fn set(args: &SetArgs) -> CommandResult {
    let mut body = Map::new();
    let texts = [
        ("subject", &args.subject),
        ("tenant", &args.tenant),
        ("plan", &args.plan),
        ("rule", &args.rule),
        ("scale", &args.scale),
        ("state", &args.state),
        ("rollout", &args.rollout),
        ("mode", &args.mode),
        ("for", &args.lasts),
    ];
    for (name, text) in texts {
        if let Some(text) = text {
            body.insert(name.to_owned(), json!(text));
        }
    }
    let mut numbers = Map::new();
    for (name, value) in &args.numbers {
        if numbers.insert(name.clone(), json!(value)).is_some() {
            return Err(format!(
                "error: --number sets `{name}` twice\nhelp: keep one of the two"
            ));
        }
    }
    if !numbers.is_empty() {
        body.insert("numbers".to_owned(), Value::Object(numbers));
    }
    if args.forever {
        body.insert("forever".to_owned(), json!(true));
    }
    body.insert("reason".to_owned(), json!(args.reason));
    let body = Value::Object(body);
    let set = args.admin.call("/v1/overrides", &Call::Post(&body))?;
    println!("{}", describe(&set));
    Ok(true)
}

fn show(args: &ListArgs) -> CommandResult {
    let answer = args.admin.call("/v1/overrides", &Call::Get(&[]))?;
    if args.json {
        println!("{answer}");
        return Ok(true);
    }
    let overrides = list(&answer, "overrides");
    for it in overrides {
        println!("{}", describe(it));
    }
    if overrides.is_empty() {
        println!("no overrides");
    }
    Ok(true)
}

fn clear(args: &ClearArgs) -> CommandResult {
    let mut query = vec![("name", args.name.as_str())];
    query.extend(args.reason.as_deref().map(|reason| ("reason", reason)));
    let cleared = args.admin.call("/v1/overrides", &Call::Delete(&query))?;
    println!("cleared {}", describe(&cleared));
    Ok(true)
}

/// Writes an override as a line.
fn describe(it: &Value) -> String {
    let text = |name: &str| printable(it[name].as_str().unwrap_or_default());
    let until = match it["expiresAtEpochMillis"].as_u64() {
        Some(millis) => {
            let time = tollgate::Time::from_micros(millis.saturating_mul(1000));
            format!("until {}", tollgate_server::audit::instant(time))
        }
        None => "until cleared".to_owned(),
    };
    let mut line = format!(
        "{}: {}, {until}, by {}: {}",
        text("name"),
        text("effect"),
        text("author"),
        text("reason"),
    );
    if let Some(why) = it["idle"].as_str() {
        line += &format!(" (has no effect: {})", printable(why));
    }
    line
}
