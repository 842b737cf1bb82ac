//! `tollgate audit`: prints the audit trail of all instances, or the file of one instance.

use std::path::{Path, PathBuf};

use tollgate::{Clock, SystemClock};
use tollgate_server::audit::{self, Entry, Query, Trail};

use crate::admin::{AdminArgs, Call};
use crate::terminal::printable;
use crate::{CommandResult, failed};

#[derive(clap::Args)]
pub(crate) struct DataArgs {
    /// The directory for the audit trail and for overrides; the server creates it when needed
    #[arg(
        long,
        value_name = "DIR",
        env = "TOLLGATE_DATA",
        default_value = "tollgate-data"
    )]
    pub(crate) data: PathBuf,
}

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Read the file in the data directory of a server, instead of asking a running server. It has only the
    /// changes of that instance
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,

    #[command(flatten)]
    admin: AdminArgs,

    /// Print at most this many entries, the newest first
    #[arg(long, value_name = "N", default_value = "100")]
    limit: String,

    /// Print only changes of this kind: reset, refund, config.reload, or a prefix such as config
    #[arg(long, value_name = "WHAT")]
    what: Option<String>,

    /// Print only changes by this author: the name of a token, or file, signal, clock or anonymous
    #[arg(long, value_name = "NAME")]
    who: Option<String>,

    /// Print only changes since a time such as 2026-01-31T12:00:00Z, or since an age such as 1h
    #[arg(long, value_name = "TIME")]
    since: Option<String>,

    /// Print the entries as stored, one JSON object on each line
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> CommandResult {
    let mut query = Query::default();
    let now = SystemClock::new().now();
    for (name, text) in [
        ("limit", Some(&args.limit)),
        ("what", args.what.as_ref()),
        ("who", args.who.as_ref()),
        ("since", args.since.as_ref()),
    ] {
        if let Some(text) = text {
            let set = query.set(name, text, now);
            set.map_err(|error| format!("error: --{error}"))?;
        }
    }
    let trail = match &args.data {
        Some(directory) => read_file(directory, &query)?,
        None => ask(args)?,
    };
    if !args.json {
        print!("{}", table(&trail));
        return Ok(true);
    }
    for entry in &trail.entries {
        println!("{}", serde_json::to_string(entry).map_err(failed)?);
    }
    Ok(true)
}

/// Asks a running server for the trail of all instances.
fn ask(args: &Args) -> Result<Trail, String> {
    let mut query = vec![("limit", args.limit.as_str())];
    let given = [
        ("what", &args.what),
        ("who", &args.who),
        ("since", &args.since),
    ];
    let given = given
        .iter()
        .filter_map(|(name, text)| Some((*name, text.as_deref()?)));
    query.extend(given);
    let answer = args.admin.call("/v1/audit", &Call::Get(&query))?;
    serde_json::from_value(answer).map_err(failed)
}

fn read_file(directory: &Path, query: &Query) -> Result<Trail, String> {
    let path = directory.join(audit::FILE);
    if !path.exists() {
        return Err(format!(
            "error: there is no audit trail at {}\nhelp: give the data directory of the server with --data; \
             the server creates the trail with the first change",
            path.display()
        ));
    }
    audit::read(&path, query, u64::MAX)
        .map_err(|error| format!("error: cannot read {}: {error}", path.display()))
}

/// Writes a line for each entry, with the details of the change below it.
fn table(trail: &Trail) -> String {
    let width = |of: fn(&Entry) -> &str| {
        let texts = trail.entries.iter().map(|entry| printable(of(entry)));
        texts.map(|text| text.chars().count()).max().unwrap_or(0)
    };
    let (who, what) = (width(|it| &it.who), width(|it| &it.what));
    let mut text = String::new();
    for entry in &trail.entries {
        let why = entry.why.as_deref().unwrap_or_default();
        let line = format!(
            "{}  {:who$}  {:what$}  {}",
            printable(&entry.at),
            printable(&entry.who),
            printable(&entry.what),
            printable(why)
        );
        text += line.trim_end();
        text.push('\n');
        for detail in details(entry) {
            text += &format!("    {}\n", printable(&detail));
        }
    }
    if trail.is_cut {
        text += "More entries exist: use --limit and --since.\n";
    }
    text
}

fn details(entry: &Entry) -> Vec<String> {
    let value = |value: &serde_json::Value| match value {
        serde_json::Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let from = entry.from.iter().map(|it| format!("from {}", value(it)));
    let to = entry.to.iter().map(|it| format!("to   {}", value(it)));
    let rules = entry.rules.iter().map(|concerned| {
        let subject = concerned.subject.as_deref().unwrap_or("all");
        format!("rule {} of {subject}", concerned.rule)
    });
    from.chain(to).chain(rules).collect()
}
