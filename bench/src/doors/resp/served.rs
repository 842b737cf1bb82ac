//! The RESP door with state in memory, as a process of its own.

use std::error::Error;
use std::sync::Arc;

use tollgate::{Engine, Limiter};
use tollgate_server::net::Listener;
use tollgate_server::resp;

use super::Listen;

const RULES: &str =
    "version: 1\nrules: [{ id: none, algorithm: gcra, rate: unlimited, match: { a: b } }]";

pub(crate) fn run(listen: &Listen) -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let engine = Arc::new(Engine::from(Limiter::from_yaml("bench.yaml", RULES)?));
        let listener = Listener::bind(listen.resp, None).await?;
        let options = resp::Options::default();
        resp::serve(listener, engine, options, std::future::pending()).await;
        Ok(())
    })
}
