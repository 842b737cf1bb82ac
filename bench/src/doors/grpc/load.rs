//! The load generator: a number of requests in flight over a few connections, with random API keys.
//!
//! The generator uses HTTP/2 without a gRPC library, and only checks the status of an answer. So most of the
//! machine is left to the server.

use std::error::Error;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use clap::Args;
use h2::client::SendRequest;
use http::Request;
use prost::Message;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::task::{LocalSet, spawn_local};
use tollgate_bench::workload::api_keys;
use tollgate_rig::Stopwatch;
use tollgate_server::grpc::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tollgate_server::grpc::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use tollgate_server::grpc::proto::envoy::service::ratelimit::v3::RateLimitRequest;

pub(super) const CONNECTIONS: u32 = 4;
const KEYS: usize = 10_000;
const KEYS_PER_TENANT: usize = 100;
const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
/// How many bytes come before a message: a flag for compression, and the length.
const PREFIX: usize = 5;

/// The server and the load.
#[derive(Args)]
pub(crate) struct Options {
    #[arg(long)]
    grpc: SocketAddr,
    #[arg(long)]
    in_flight: u32,
    #[arg(long)]
    seconds: u64,
}

type Failure = Box<dyn Error>;

/// Sends requests, and prints a line for [`Round::read`](crate::round::Round::read).
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    LocalSet::new().block_on(&runtime()?, load(options))
}

fn runtime() -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
}

/// Sends one request, and returns the message of the answer.
pub(super) fn first_answer(address: SocketAddr) -> Result<Vec<u8>, Failure> {
    LocalSet::new().block_on(&runtime()?, async {
        let client = Client::connect(address).await?;
        let answer = client.ask(message(0, "0123456789abcdef")).await?;
        Ok(answer.get(PREFIX..).unwrap_or_default().to_vec())
    })
}

async fn load(options: &Options) -> Result<(), Failure> {
    let keys = api_keys(KEYS);
    let messages = keys.iter().enumerate();
    let messages = messages.map(|(number, key)| message(number, key));
    let messages: Rc<[Bytes]> = messages.collect();
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        let client = Client::connect(options.grpc).await?;
        clients.extend(vec![client; (options.in_flight / CONNECTIONS) as usize]);
    }
    let limit = Duration::from_secs(options.seconds);
    let stopwatch = Rc::new(Stopwatch::start());
    let asking = (0_u64..).zip(clients).map(|(seed, client)| {
        let random = fastrand::Rng::with_seed(seed);
        let (messages, stopwatch) = (Rc::clone(&messages), Rc::clone(&stopwatch));
        spawn_local(client.send_until(messages, random, stopwatch, limit))
    });
    let asking: Vec<_> = asking.collect();
    let (mut latencies, mut failed) = (Vec::new(), 0);
    for asked in asking {
        let (times, failures) = asked.await?;
        latencies.extend(times);
        failed += failures;
    }
    let micros = stopwatch.elapsed().as_micros();
    latencies.sort_unstable();
    let p99 = latencies.get(latencies.len() * 99 / 100);
    let (requests, p99) = (latencies.len(), p99.copied().unwrap_or_default());
    println!("result {requests} {micros} {} {failed}", p99.as_micros());
    Ok(())
}

#[derive(Clone)]
struct Client {
    sender: SendRequest<Bytes>,
    head: Request<()>,
}

impl Client {
    async fn connect(address: SocketAddr) -> Result<Client, Failure> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = h2::client::handshake(stream).await?;
        spawn_local(async move {
            if let Err(error) = connection.await {
                eprintln!("the connection broke: {error}");
            }
        });
        let head = Request::post(format!("http://{address}{METHOD}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())?;
        Ok(Client { sender, head })
    }

    /// Sends one request after the other until `limit`. Returns the latencies, and the number of failures.
    async fn send_until(
        self,
        messages: Rc<[Bytes]>,
        mut random: fastrand::Rng,
        stopwatch: Rc<Stopwatch>,
        limit: Duration,
    ) -> (Vec<Duration>, u64) {
        let (mut latencies, mut failed) = (Vec::new(), 0);
        let mut started = stopwatch.elapsed();
        while started < limit {
            let message = messages[random.usize(..messages.len())].clone();
            failed += u64::from(self.ask(message).await.is_err());
            let ended = stopwatch.elapsed();
            latencies.push(ended - started);
            started = ended;
        }
        (latencies, failed)
    }

    /// Sends a request, and returns the answer, whose status must be 0.
    async fn ask(&self, message: Bytes) -> Result<Bytes, Failure> {
        let mut sender = self.sender.clone().ready().await?;
        let (answer, mut stream) = sender.send_request(self.head.clone(), false)?;
        stream.send_data(message, true)?;
        let mut body = answer.await?.into_body();
        let data = body.data().await.ok_or("an answer without a message")??;
        body.flow_control().release_capacity(data.len())?;
        let trailers = body.trailers().await?;
        match trailers.as_ref().and_then(|it| it.get("grpc-status")) {
            Some(status) if status == "0" => Ok(data),
            status => Err(format!("the status is {status:?}").into()),
        }
    }
}

/// Returns a request with one descriptor, as bytes on the wire.
fn message(number: usize, api_key: &str) -> Bytes {
    let tenant = format!("tenant-{}", number / KEYS_PER_TENANT);
    let entries = [
        ("tenant", tenant.as_str()),
        ("api_key", api_key),
        ("action", "search"),
    ];
    let entries = entries.map(|(key, value)| Entry {
        key: key.to_owned(),
        value: value.to_owned(),
    });
    let descriptor = RateLimitDescriptor {
        entries: entries.to_vec(),
        ..RateLimitDescriptor::default()
    };
    let request = RateLimitRequest {
        domain: "bench".to_owned(),
        descriptors: vec![descriptor],
        hits_addend: 0,
    };
    let message = request.encode_to_vec();
    let mut framed = BytesMut::with_capacity(PREFIX + message.len());
    framed.put_u8(0);
    framed.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    framed.put_slice(&message);
    framed.freeze()
}
