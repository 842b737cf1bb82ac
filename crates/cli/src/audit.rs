//! `tollgate audit`: who changed what, from the trail that a server keeps.

use std::path::PathBuf;

use tollgate::{Clock, SystemClock};
use tollgate_server::audit::{self, Entry, Query, Trail};

use crate::Answer;
use crate::shown::shown;

/// Where a server keeps what is not state.
#[derive(clap::Args)]
pub(crate) struct DataArgs {
    /// The directory of what the server keeps besides state, as the audit trail; made when it is needed
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
    #[command(flatten)]
    data: DataArgs,

    /// How many entries at most, the newest first
    #[arg(long, value_name = "N", default_value = "100")]
    limit: String,

    /// Only what is about this: reset, refund, config.reload, or config for all that begins so
    #[arg(long, value_name = "WHAT")]
    what: Option<String>,

    /// Only what this one did: the name of a token, file, signal or anonymous
    #[arg(long, value_name = "NAME")]
    who: Option<String>,

    /// Only since then: a time such as 2026-01-31T12:00:00Z, or how long ago, such as 1h
    #[arg(long, value_name = "TIME")]
    since: Option<String>,

    /// Print the entries as they are kept, a JSON object on each line
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Answer {
    let query = query(args)?;
    let path = args.data.data.join(audit::FILE);
    if !path.exists() {
        return Err(format!(
            "error: there is no audit trail at {}\nhelp: name the directory of the server with --data; \
             the trail begins with the first change",
            path.display()
        ));
    }
    let trail = audit::read(&path, &query, u64::MAX)
        .map_err(|error| format!("error: cannot read {}: {error}", path.display()))?;
    let text = if args.json {
        lines(&trail)?
    } else {
        table(&trail)
    };
    print!("{text}");
    Ok(true)
}

fn query(args: &Args) -> Result<Query, String> {
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
    Ok(query)
}

fn lines(trail: &Trail) -> Result<String, String> {
    let mut text = String::new();
    for entry in &trail.entries {
        let line = serde_json::to_string(entry).map_err(|error| format!("error: {error}"))?;
        text += &line;
        text.push('\n');
    }
    Ok(text)
}

/// A line for each entry, in columns, and below it what is known of the change.
fn table(trail: &Trail) -> String {
    let width = |of: fn(&Entry) -> &str| {
        let widths = trail
            .entries
            .iter()
            .map(|entry| shown(of(entry)).chars().count());
        widths.max().unwrap_or(0)
    };
    let (who, what) = (width(|it| &it.who), width(|it| &it.what));
    let mut text = String::new();
    for entry in &trail.entries {
        let why = entry.why.as_deref().unwrap_or_default();
        let line = format!(
            "{}  {:who$}  {:what$}  {}",
            shown(&entry.at),
            shown(&entry.who),
            shown(&entry.what),
            shown(why)
        );
        text += line.trim_end();
        text.push('\n');
        for detail in details(entry) {
            text += &format!("    {}\n", shown(&detail));
        }
    }
    if trail.is_cut {
        text += "There are more: see --limit and --since.\n";
    }
    text
}

fn details(entry: &Entry) -> Vec<String> {
    let mut details = Vec::new();
    let value = |value: &serde_json::Value| match value {
        serde_json::Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    details.extend(entry.from.as_ref().map(|it| format!("from {}", value(it))));
    details.extend(entry.to.as_ref().map(|it| format!("to   {}", value(it))));
    for concerned in &entry.rules {
        let subject = concerned.subject.as_deref().unwrap_or("all");
        details.push(format!("rule {} of {subject}", concerned.rule));
    }
    details
}
