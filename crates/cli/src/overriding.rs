//! `tollgate override`: limits changed at run time, for a tenant, a plan or everyone.

use clap::{ArgGroup, Subcommand};
use serde_json::{Map, Value, json};

use crate::Answer;
use crate::admin::{AdminArgs, Question};
use crate::shown::shown;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Change limits for a tenant, a plan or everyone. Every instance acts within a second
    Set(Box<SetArgs>),
    /// Show the overrides in force
    List(ListArgs),
    /// End an override
    Clear(ClearArgs),
}

#[derive(clap::Args)]
#[command(
    group(ArgGroup::new("whom").required(true).args(["tenant", "plan", "everyone"])),
    group(ArgGroup::new("change").required(true).args(["numbers", "scale", "state"])),
)]
struct SetArgs {
    /// For this tenant
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,

    /// For the tenants of this plan
    #[arg(long, value_name = "NAME")]
    plan: Option<String>,

    /// For everyone: an emergency. Needs an end
    #[arg(long)]
    everyone: bool,

    /// Under this rule or budget [default: all]
    #[arg(long, value_name = "ID")]
    rule: Option<String>,

    /// A number of the rule, such as rate=100/s; may be given several times
    #[arg(long = "number", value_name = "NAME=VALUE", value_parser = number)]
    numbers: Vec<(String, String)>,

    /// How much of the limit is left, such as 50%, or 200% for twice as much
    #[arg(long, value_name = "PERCENT")]
    scale: Option<String>,

    /// enforce, shadow or disabled; for everyone only
    #[arg(long, value_name = "STATE")]
    state: Option<String>,

    /// How long, such as 1h [default: until it is cleared]
    #[arg(long = "for", value_name = "TIME")]
    lasts: Option<String>,

    /// Why, for those who come after
    #[arg(long, value_name = "TEXT")]
    reason: String,

    #[command(flatten)]
    admin: AdminArgs,
}

#[derive(clap::Args)]
struct ListArgs {
    /// Print the answer of the server as it is
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    admin: AdminArgs,
}

#[derive(clap::Args)]
struct ClearArgs {
    /// Its name, as `tollgate override list` shows it
    #[arg(value_name = "NAME")]
    name: String,

    /// Why, for the audit trail
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,

    #[command(flatten)]
    admin: AdminArgs,
}

fn number(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => Err("write NAME=VALUE, such as rate=100/s".to_owned()),
    }
}

pub(crate) fn run(args: &Args) -> Answer {
    match &args.command {
        Command::Set(args) => set(args),
        Command::List(args) => list(args),
        Command::Clear(args) => clear(args),
    }
}

fn set(args: &SetArgs) -> Answer {
    let mut body = Map::new();
    let texts = [
        ("tenant", &args.tenant),
        ("plan", &args.plan),
        ("rule", &args.rule),
        ("scale", &args.scale),
        ("state", &args.state),
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
                "error: --number gives `{name}` twice\nhelp: keep one of the two"
            ));
        }
    }
    if !numbers.is_empty() {
        body.insert("numbers".to_owned(), Value::Object(numbers));
    }
    body.insert("reason".to_owned(), json!(args.reason));
    let question = Value::Object(body);
    let set = args
        .admin
        .ask("/v1/overrides", &Question::Post(&question))?;
    println!("{}", described(&set));
    Ok(true)
}

fn list(args: &ListArgs) -> Answer {
    let answer = args.admin.ask("/v1/overrides", &Question::Get)?;
    if args.json {
        println!("{answer}");
        return Ok(true);
    }
    let overrides = answer["overrides"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    for it in overrides {
        println!("{}", described(it));
    }
    if overrides.is_empty() {
        println!("no overrides");
    }
    Ok(true)
}

fn clear(args: &ClearArgs) -> Answer {
    let mut query = vec![("name", args.name.as_str())];
    query.extend(args.reason.as_deref().map(|reason| ("reason", reason)));
    let cleared = args.admin.ask("/v1/overrides", &Question::Delete(&query))?;
    println!("cleared {}", described(&cleared));
    Ok(true)
}

/// An override on a line.
fn described(it: &Value) -> String {
    let text = |name: &str| shown(it[name].as_str().unwrap_or_default());
    let until = match it["expiresAtEpochMillis"].as_u64() {
        Some(at) => format!("until {}", instant(at)),
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
        line += &format!(" (has no effect: {})", shown(why));
    }
    line
}

fn instant(millis: u64) -> String {
    let time = tollgate::Time::from_micros(millis.saturating_mul(1000));
    tollgate_server::audit::instant(time)
}
