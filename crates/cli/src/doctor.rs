//! `tollgate doctor`: checks a config and its store for common mistakes.

use std::io::Write;

use serde_json::{Value, json};
use tollgate::{Config, Engine, Finding, Level};

use crate::CommandResult;
use crate::checklist;
use crate::config::{self, ConfigArgs};
use crate::terminal::has_colour;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    config: ConfigArgs,

    /// Print the findings as a JSON array of {level, check, found, help}
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> CommandResult {
    config::block_on(examine(args))
}

async fn examine(args: &Args) -> CommandResult {
    let config = args.config.load()?;
    let mut findings = checklist::check(&config, &args.config);
    findings.extend(ledger(&config).await);
    findings.extend(store(&config).await);
    let text = match args.json {
        true => to_json(&findings)?,
        false => to_text(&findings, has_colour(&std::io::stdout())),
    };
    // A reader such as `head` may have closed the pipe; the exit code still counts.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(findings.iter().all(|finding| finding.level < Level::Bad))
}

async fn ledger(config: &Config) -> Option<Finding> {
    Some(match Engine::inspect_ledger(config).await {
        Ok(found) => match found? {
            (place, Some(version)) => {
                Finding::ok("ledger", format!("{place}: tables of version {version}"))
            }
            (place, None) => Finding::ok(
                "ledger",
                format!("{place}: new, created at the first start"),
            ),
        },
        Err(error) => Finding::bad(
            "ledger",
            error.to_string(),
            "repair it before a start: the server does not start without its ledger",
        ),
    })
}

async fn store(config: &Config) -> Vec<Finding> {
    match Engine::inspect(config).await {
        Ok(findings) => findings,
        Err(error) => {
            let help = "check the path and its permissions";
            vec![Finding::bad("store", error.to_string(), help)]
        }
    }
}

/// A line for each finding, and one for its remedy, if it has one.
fn to_text(findings: &[Finding], colour: bool) -> String {
    let widths = findings.iter().map(|finding| finding.check.len());
    let width = widths.max().unwrap_or_default();
    let mut text = String::new();
    for finding in findings {
        let (on, off) = match (colour, finding.level) {
            (false, _) => ("", ""),
            (true, Level::Ok) => ("\x1b[32m", "\x1b[0m"),
            (true, Level::Warn) => ("\x1b[33m", "\x1b[0m"),
            (true, Level::Bad) => ("\x1b[31m", "\x1b[0m"),
        };
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
    let text = text.map_err(|error| format!("error: {error}"))?;
    Ok(text + "\n")
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
