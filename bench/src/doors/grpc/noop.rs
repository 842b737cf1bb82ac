//! A no-op rate limit service with tonic: reads the request, and answers a constant.

use std::error::Error;
use std::hint::black_box;
use std::path::PathBuf;

use clap::Args;
use prost::Message;
use tollgate_server::grpc::proto::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use tollgate_server::grpc::proto::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse,
};
use tonic::{Request, Response, Status};

use super::Listen;

#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    listen: Listen,
    /// The file with the message of every answer
    #[arg(long)]
    answer: PathBuf,
}

struct Noop {
    answer: RateLimitResponse,
}

#[tonic::async_trait]
impl RateLimitService for Noop {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        black_box(request.into_inner());
        Ok(Response::new(self.answer.clone()))
    }
}

pub(crate) fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let answer = RateLimitResponse::decode(std::fs::read(&options.answer)?.as_slice())?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        tonic::transport::Server::builder()
            .add_service(RateLimitServiceServer::new(Noop { answer }))
            .serve(options.listen.grpc)
            .await?;
        Ok(())
    })
}
