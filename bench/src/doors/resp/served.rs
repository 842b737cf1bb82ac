//! The RESP door, as a process of its own.

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use tollgate::Engine;
use tollgate_server::net::Listener;
use tollgate_server::resp;

use super::Listen;

/// Where to listen, and the rules.
#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    listen: Listen,
    #[arg(long)]
    config: PathBuf,
}

pub(crate) fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let config = tollgate_rules::load(&options.config)?;
        let engine = Arc::new(Engine::start(&config).await?);
        let listener = Listener::bind(options.listen.resp, None).await?;
        let options = resp::Options::default();
        resp::serve(listener, engine, options, std::future::pending()).await;
        Ok(())
    })
}
