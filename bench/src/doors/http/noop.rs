//! `/v1/check` with as little work as possible: reads and parses each request, and answers `allowed`
//! without anything else.

use std::collections::HashMap;
use std::convert::Infallible;
use std::error::Error;
use std::hint::black_box;
use std::net::SocketAddr;

use bytes::Bytes;
use clap::Args;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Collected, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::net::TcpListener;

const ALLOWED: &[u8] = br#"{"allowed":true}"#;

#[derive(Args)]
pub(crate) struct Options {
    #[arg(long)]
    http: SocketAddr,
}

pub(crate) fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(options.http).await?;
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            tokio::spawn(async move {
                let serving = http1::Builder::new();
                let connection = serving.serve_connection(TokioIo::new(stream), service_fn(check));
                // A client that leaves ends its connection.
                let _ = connection.await;
            });
        }
    })
}

/// The body of a request. It borrows from the input, as in the server.
#[derive(Deserialize)]
struct CheckBody<'a> {
    #[serde(borrow)]
    attributes: HashMap<&'a str, &'a str>,
    cost: Option<u64>,
}

async fn check(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let body = request.into_body().collect().await;
    let body = body.map(Collected::to_bytes).unwrap_or_default();
    let mut response = match serde_json::from_slice::<CheckBody<'_>>(&body) {
        Ok(body) => {
            black_box((&body.attributes, body.cost));
            Response::new(Full::new(Bytes::from_static(ALLOWED)))
        }
        Err(error) => {
            let mut response = Response::new(Full::new(Bytes::from(error.to_string())));
            *response.status_mut() = StatusCode::BAD_REQUEST;
            response
        }
    };
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    Ok(response)
}
