//! `tollgate validate` and `tollgate schema`: checks config files, and prints their schema.

use std::path::PathBuf;

use crate::CommandResult;
use crate::terminal::count_rules;

/// Checks config files.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The files to check
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
}

#[allow(clippy::unnecessary_wraps, reason = "as all commands")]
pub(crate) fn run(args: &Args) -> CommandResult {
    let mut all_valid = true;
    for file in &args.files {
        match tollgate_config::load(file) {
            Ok(config) => {
                let rules = count_rules(config.policy.rules.len());
                let version = &config.policy.version;
                println!("{}: ok, {rules}, version {version}", file.display());
                for warning in config.policy.warnings() {
                    eprintln!("{}: warning: {warning}", file.display());
                    eprintln!("  help: {}", warning.help);
                }
            }
            Err(error) => {
                eprintln!("{}", crate::config::render(&error).trim_end());
                all_valid = false;
            }
        }
    }
    Ok(all_valid)
}

pub(crate) fn schema() -> CommandResult {
    let schema = serde_json::to_string_pretty(&tollgate_config::json_schema());
    println!("{}", schema.map_err(crate::failed)?);
    Ok(true)
}
