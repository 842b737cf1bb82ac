//! `tollgate adopt`: makes a store and a ledger belong to a config.

use tollgate::Engine;

use crate::config::ConfigArgs;
use crate::{CommandResult, failed};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    config: ConfigArgs,
}

pub(crate) async fn run(args: &Args) -> CommandResult {
    let config = args.config.load()?;
    let adopted = Engine::adopt(&config).await.map_err(failed)?;
    if adopted.is_empty() {
        return Err(
            "error: this config keeps its state in memory, so there is nothing to adopt\n\
             help: give the config of the instances with --config"
                .to_owned(),
        );
    }
    for location in adopted {
        println!("{location} belongs to this config now");
    }
    Ok(true)
}
