//! `tollgate validate` and `tollgate schema`: checks config files, and prints their schema.

use std::path::PathBuf;

use crate::CommandResult;
use crate::terminal::count_rules;

/// Checks config files. A `${VAR}` that is not set is a warning: so the check works without the secrets.
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
        match tollgate_config::check(file) {
            Ok(checked) => {
                let name = file.display();
                for problem in &checked.unset {
                    let (line, column) = problem.position().unwrap_or((1, 1));
                    let message = problem.message();
                    eprintln!(
                        "{name}:{line}:{column}: warning: {message}: its value was not checked"
                    );
                }
                let (rules, version) = (count_rules(checked.rules), &checked.version);
                println!("{name}: ok, {rules}, version {version}");
                print_stores(&checked.by_store);
                for warning in &checked.warnings {
                    eprintln!("{name}: warning: {warning}");
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

/// Prints the rules of each store, if there are several.
fn print_stores(by_store: &[(String, Vec<String>)]) {
    for (store, rules) in by_store {
        println!("  store {store}: {}", rules.join(", "));
    }
    if !by_store.is_empty() {
        println!(
            "  rules of one store are atomic; a request under rules of several stores is compensated"
        );
    }
}

#[derive(clap::Args)]
pub(crate) struct SchemaArgs {
    /// Print the schema of the files that `tollgate test` reads
    #[arg(long)]
    tests: bool,
}

pub(crate) fn schema(args: &SchemaArgs) -> CommandResult {
    let schema = match args.tests {
        true => tollgate_simulate::rule_tests::json_schema(),
        false => tollgate_config::json_schema(),
    };
    let schema = serde_json::to_string_pretty(&schema);
    println!("{}", schema.map_err(crate::failed)?);
    Ok(true)
}
