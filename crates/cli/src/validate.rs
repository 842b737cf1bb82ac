//! `tollgate validate` and `tollgate schema`: the config file, checked and described.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::Answer;

/// Checks config files.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The files to check
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    for file in &args.files {
        match tollgate_config::load(file) {
            Ok(config) => {
                let count = config.policy.rules.len();
                let rules = if count == 1 { "rule" } else { "rules" };
                println!(
                    "{}: ok, {count} {rules}, version {}",
                    file.display(),
                    config.policy.version
                );
            }
            Err(error) => {
                eprintln!("{}", crate::config::render(&error).trim_end());
                code = ExitCode::from(1);
            }
        }
    }
    code
}

pub(crate) fn schema() -> Answer {
    let schema = serde_json::to_string_pretty(&tollgate_config::json_schema());
    println!("{}", schema.map_err(|error| format!("error: {error}"))?);
    Ok(true)
}
