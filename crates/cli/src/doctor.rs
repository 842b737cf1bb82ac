//! `tollgate doctor`: checks a config and its store for common mistakes.

use std::io::Write;

use serde_json::{Value, json};
use tollgate::{Config, Engine, Finding, Level};

use crate::config::ConfigArgs;
use crate::connect::ConnectArgs;
use crate::mode_advice;
use crate::serve::DoorArgs;
use crate::terminal::has_colour;
use crate::{CommandResult, checklist, failed};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    config: ConfigArgs,

    #[command(flatten)]
    doors: DoorArgs,

    /// Compare the memory that this many subjects of each rule need with the `maxmemory` of Redis
    #[arg(long, value_name = "N")]
    subjects: Option<u64>,

    /// Also read the figures of the instance with this admin door twice, two seconds apart, and recommend modes and
    /// sharding for its busy subjects
    #[arg(long, value_name = "URL")]
    live: Option<String>,

    /// Print the findings as a JSON array of {level, check, found, help}
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connect: ConnectArgs,
}

pub(crate) async fn run(args: &Args) -> CommandResult {
    let config = args.doors.apply(args.config.load()?).map_err(failed)?;
    let mut findings = checklist::check(&config, &args.config);
    findings.extend(ledger(&config).await);
    findings.extend(Engine::inspect(&config).await.unwrap_or_else(|error| {
        let help = "check the path and its permissions";
        vec![Finding::bad("store", error.to_string(), help)]
    }));
    if let Some(subjects) = args.subjects {
        findings.extend(checklist::memory(&config, subjects, &findings));
    }
    if let Some(live) = &args.live {
        findings.extend(mode_advice::find(live, &args.connect, &config)?);
    }
    let text = match args.json {
        true => to_json(&findings)?,
        false => to_text(&findings, has_colour(&std::io::stdout())),
    };
    // A reader such as `head` may have closed the pipe. The exit code is still right.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(findings.iter().all(|finding| finding.level < Level::Bad))
}

async fn ledger(config: &Config) -> Option<Finding> {
    let found = match Engine::inspect_ledger(config).await {
        Ok(found) => found?,
        Err(error) => {
            let help = "repair the ledger: the server does not start without it";
            return Some(Finding::bad("ledger", error.to_string(), help));
        }
    };
    let found = match found {
        (place, Some(version)) => format!("{place}: tables of version {version}"),
        (place, None) => format!("{place}: new, created at the first start"),
    };
    Some(Finding::ok("ledger", found))
}

/// Writes a line for each finding, and a line for its remedy, if it has one.
fn to_text(findings: &[Finding], colour: bool) -> String {
    let widths = findings.iter().map(|finding| finding.check.len());
    let width = widths.max().unwrap_or_default();
    let mut text = String::new();
    for finding in findings {
        let on = match finding.level {
            Level::Ok => "\x1b[32m",
            Level::Warn => "\x1b[33m",
            Level::Bad => "\x1b[31m",
        };
        let (on, off) = if colour { (on, "\x1b[0m") } else { ("", "") };
        let (level, check) = (finding.level, finding.check);
        text += &format!("{on}{level:<4}{off}  {check:<width$}  {}\n", finding.found);
        if let Some(help) = &finding.help {
            text += &format!("      help: {help}\n");
        }
    }
    text
}

fn to_json(findings: &[Finding]) -> Result<String, String> {
    let findings = findings.iter().map(|finding| {
        json!({
            "level": finding.level.name(),
            "check": finding.check,
            "found": finding.found,
            "help": finding.help,
        })
    });
    let text = serde_json::to_string_pretty(&findings.collect::<Value>());
    Ok(text.map_err(failed)? + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remedy_is_printed_below_its_finding() {
        let findings = [
            Finding::ok("mode", "a single server"),
            Finding::bad("connection", "no answer", "start it"),
        ];
        assert_eq!(
            to_text(&findings, false),
            "ok    mode        a single server\n\
             bad   connection  no answer\n      help: start it\n"
        );
        assert!(to_text(&findings, true).starts_with("\x1b[32mok  \x1b[0m  mode"));
    }
}
