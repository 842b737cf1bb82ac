//! A load of HTTP requests at a fixed rate: a request leaves when it is due, on a connection that has none in flight.
//! The latency is measured from the time at which the request should have been sent.
//!
//! One thread sends and receives, and never sleeps: waking a thread would take longer than most answers.

use std::cell::RefCell;
use std::error::Error;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

use clap::Args;
use tokio::net::TcpStream;
use tokio::task::{LocalSet, spawn_local, yield_now};
use tollgate_rig::Stopwatch;

const CONNECTIONS: u32 = 64;
/// How long to wait for the last answers.
const GRACE: Duration = Duration::from_secs(5);

/// The server and the load.
#[derive(Args)]
pub(crate) struct Options {
    #[arg(long)]
    http: SocketAddr,
    /// The file with the requests: a line of header fields, then a body on each line
    #[arg(long)]
    requests: PathBuf,
    #[arg(long)]
    path: String,
    #[arg(long)]
    per_second: f64,
    #[arg(long)]
    seconds: f64,
}

/// Returns the command that sends the requests of a file at this rate.
pub(super) fn command(
    server: SocketAddr,
    requests: &Path,
    path: &str,
    per_second: f64,
    seconds: u32,
) -> Result<Command, Box<dyn Error>> {
    let mut load = Command::new(std::env::current_exe()?);
    load.args(["load-http", "--http", &server.to_string()]);
    load.arg("--requests").arg(requests);
    load.args(["--path", path]);
    load.args(["--per-second", &per_second.to_string()]);
    load.args(["--seconds", &seconds.to_string()]);
    Ok(load)
}

/// What all connections have measured, and which have no request in flight.
#[derive(Default)]
struct Shared {
    idle: Vec<Rc<TcpStream>>,
    latencies: Vec<Duration>,
    failed: u64,
    problem: Option<String>,
}

/// Sends requests, and prints a line for [`Round::read`](crate::round::Round::read).
pub(crate) fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let text = std::fs::read_to_string(&options.requests)?;
    let mut lines = text.lines();
    let fields: String = match lines.next() {
        None | Some("") => String::new(),
        Some(fields) => fields
            .split("; ")
            .map(|field| format!("{field}\r\n"))
            .collect(),
    };
    let (path, http) = (&options.path, options.http);
    let request = |body: &str| {
        let length = body.len();
        format!(
            "POST {path} HTTP/1.1\r\nHost: {http}\r\nContent-Type: application/json\r\n{fields}Content-Length: {length}\r\n\r\n{body}"
        )
    };
    let requests: Vec<String> = lines.map(request).collect();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let clock = Stopwatch::start();
    let shared = LocalSet::new().block_on(&runtime, load(options, &requests, clock))?;
    let mut latencies = shared.latencies;
    latencies.sort_unstable();
    let at = |percent: usize| {
        let latency = latencies.get(latencies.len() * percent / 100);
        latency.map_or(0, Duration::as_micros)
    };
    println!(
        "result {} {} {} {} {}",
        latencies.len(),
        clock.elapsed().as_micros(),
        at(50),
        at(99),
        shared.failed
    );
    Ok(())
}

async fn load(
    options: &Options,
    requests: &[String],
    clock: Stopwatch,
) -> Result<Shared, Box<dyn Error>> {
    let shared = Rc::new(RefCell::new(Shared::default()));
    for _ in 0..CONNECTIONS {
        let stream = TcpStream::connect(options.http).await?;
        stream.set_nodelay(true)?;
        shared.borrow_mut().idle.push(Rc::new(stream));
    }
    let mut random = fastrand::Rng::with_seed(1);
    let start = clock.elapsed();
    let mut sent = 0_usize;
    loop {
        let since_start = sent as f64 / options.per_second;
        if since_start > options.seconds {
            break;
        }
        let due = start + Duration::from_secs_f64(since_start);
        let stream = loop {
            if clock.elapsed() >= due
                && let Some(stream) = shared.borrow_mut().idle.pop()
            {
                break stream;
            }
            if let Some(problem) = shared.borrow_mut().problem.take() {
                return Err(problem.into());
            }
            yield_now().await;
        };
        let request = requests[random.usize(..requests.len())].as_bytes();
        // The connection is idle, so its socket has room.
        if stream.try_write(request)? != request.len() {
            return Err("the server does not read its input".into());
        }
        spawn_local(receive(stream, due, clock, Rc::clone(&shared)));
        sent += 1;
    }
    let end = clock.elapsed() + GRACE;
    while shared.borrow().latencies.len() < sent {
        if clock.elapsed() > end {
            let missing = sent - shared.borrow().latencies.len();
            return Err(format!("{missing} of {sent} requests were not answered").into());
        }
        yield_now().await;
    }
    Ok(shared.take())
}

/// Reads one answer.
async fn receive(
    stream: Rc<TcpStream>,
    due: Duration,
    clock: Stopwatch,
    shared: Rc<RefCell<Shared>>,
) {
    let (mut answer, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let problem = match stream.try_read(&mut buffer) {
            Ok(0) => Some("the server has closed a connection".to_owned()),
            Ok(length) => {
                let now = clock.elapsed();
                answer.extend_from_slice(&buffer[..length]);
                if !is_complete(&answer) {
                    continue;
                }
                let mut shared = shared.borrow_mut();
                shared.latencies.push(now - due);
                shared.failed += u64::from(!answer.starts_with(b"HTTP/1.1 200 "));
                shared.idle.push(stream);
                return;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                stream.readable().await.err().map(|it| it.to_string())
            }
            Err(error) => Some(error.to_string()),
        };
        if problem.is_some() {
            shared.borrow_mut().problem = problem;
            return;
        }
    }
}

/// Returns whether an answer has all bytes that its header announces.
fn is_complete(answer: &[u8]) -> bool {
    let text = String::from_utf8_lossy(answer);
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return false;
    };
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        let is_length = name.eq_ignore_ascii_case("content-length");
        is_length.then(|| value.trim().parse::<usize>().ok())?
    });
    body.len() >= length.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_ends_with_its_body() {
        let head = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n";
        assert!(!is_complete(&head[..10]));
        assert!(!is_complete(head));
        assert!(!is_complete(&[head, &b"abc"[..]].concat()));
        assert!(is_complete(&[head, &b"abcd"[..]].concat()));
    }
}
