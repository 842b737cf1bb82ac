//! `tollgate diff`: shows what changes from one config to another.

use std::path::PathBuf;

use crate::CommandResult;

/// Compares two config files.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The config in force
    #[arg(value_name = "OLD")]
    old: PathBuf,

    /// The config to compare with it
    #[arg(value_name = "NEW")]
    new: PathBuf,
}

pub(crate) fn run(args: &Args) -> CommandResult {
    let load = |file| tollgate_config::load(file).map_err(|error| crate::config::render(&error));
    let (old, new) = (load(&args.old)?, load(&args.new)?);
    let differences = tollgate_config::diff(&old, &new);
    for difference in &differences {
        println!("{difference}");
    }
    if differences.is_empty() {
        println!("no differences");
    }
    Ok(differences.is_empty())
}
