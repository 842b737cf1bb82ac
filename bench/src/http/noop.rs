//! A no-op server of `/v1/check`: reads the same body, and answers a constant.

use std::collections::HashMap;
use std::error::Error;
use std::hint::black_box;
use std::net::SocketAddr;
use std::path::PathBuf;

use axum::Router;
use axum::body::Bytes;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::serve::ListenerExt;
use clap::Args;
use serde::Deserialize;

#[derive(Args)]
pub(crate) struct Options {
    #[arg(long)]
    http: SocketAddr,
    /// The file with the body of every answer
    #[arg(long)]
    answer: PathBuf,
}

pub(crate) fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let answer = Bytes::from(std::fs::read(&options.answer)?);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let check = move |body: Bytes| std::future::ready(check(&body, answer.clone()));
        let app = Router::new().route("/v1/check", post(check));
        let listener = tokio::net::TcpListener::bind(options.http).await?;
        let listener = listener.tap_io(|stream| {
            // If this fails, answers are only slower.
            let _ = stream.set_nodelay(true);
        });
        axum::serve(listener, app).await?;
        Ok(())
    })
}

/// The body of a request. It borrows from the input, as in the server.
#[derive(Deserialize)]
struct CheckBody<'a> {
    #[serde(borrow)]
    attributes: HashMap<&'a str, &'a str>,
    cost: Option<u64>,
}

fn check(body: &[u8], answer: Bytes) -> Response {
    match serde_json::from_slice::<CheckBody<'_>>(body) {
        Ok(body) => {
            black_box((&body.attributes, body.cost));
            ([(header::CONTENT_TYPE, "application/json")], answer).into_response()
        }
        Err(error) => (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
    }
}
