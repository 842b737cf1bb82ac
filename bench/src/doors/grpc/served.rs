//! The gRPC door with state in memory, as a process of its own.

use std::error::Error;
use std::sync::Arc;

use tollgate::{Engine, Limiter};
use tollgate_server::grpc;
use tollgate_server::net::Listener;

use super::Listen;
use crate::engine::FIVE_RULES;

pub(crate) fn run(listen: &Listen) -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let limiter = Limiter::from_yaml("five-rules.yaml", FIVE_RULES)?;
        let engine = Arc::new(Engine::from(limiter));
        let listener = Listener::bind(listen.grpc, None).await?;
        let options = grpc::Options::default();
        grpc::serve(listener, engine, options, std::future::pending()).await;
        Ok(())
    })
}
