//! A load of `CL.THROTTLE` at a fixed rate: 50 connections send at fixed intervals, independent of earlier
//! answers. The latency is measured from the time at which the command should have been sent.
//!
//! One thread sends and receives, and never sleeps: waking a thread would take longer than most answers.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::error::Error;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

use clap::Args;
use tokio::net::TcpStream;
use tokio::task::{LocalSet, spawn_local, yield_now};
use tollgate_rig::Stopwatch;

use super::client::{Dialect, encode};
use super::load::Limits;
use crate::server::Server;

pub(crate) const CONNECTIONS: u32 = 50;
const KEYS: u32 = 100_000;
/// An answer is an array of five numbers: six lines.
const LINES: usize = 6;
/// How long to wait for the last answers.
const GRACE: Duration = Duration::from_secs(2);

/// The server and the load.
#[derive(Args)]
pub(crate) struct Options {
    #[arg(long)]
    resp: SocketAddr,
    #[arg(long)]
    per_second: f64,
    #[arg(long)]
    seconds: f64,
}

/// Latencies of one round, in microseconds.
pub(crate) struct Latencies {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

/// Runs a round at this rate in another process.
pub(crate) fn measure(
    server: &Server,
    per_second: f64,
    seconds: f64,
) -> Result<Latencies, Box<dyn Error>> {
    let load = Command::new(std::env::current_exe()?)
        .args(["load-resp", "--resp", &server.address().to_string()])
        .args(["--per-second", &per_second.to_string()])
        .args(["--seconds", &seconds.to_string()])
        .output()?;
    let text = String::from_utf8_lossy(&load.stdout);
    let figures = text.lines().find_map(|line| line.strip_prefix("result "));
    let figures = figures.map(|line| line.split(' ').map(str::parse).collect());
    match figures {
        Some(Ok::<Vec<f64>, _>(figures)) if figures.len() == 2 => Ok(Latencies {
            p50: figures[0],
            p99: figures[1],
        }),
        _ => {
            let complaint = String::from_utf8_lossy(&load.stderr);
            Err(format!(
                "the load of {} gave no result\n{text}{complaint}",
                server.name()
            )
            .into())
        }
    }
}

/// Sends commands, and prints a line for [`measure`].
pub(crate) fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let mut latencies = LocalSet::new().block_on(&runtime, load(options))?;
    latencies.sort_unstable();
    let at = |percent: usize| {
        let latency = latencies.get(latencies.len() * percent / 100);
        latency.map_or(f64::NAN, |it| it.as_secs_f64() * 1e6)
    };
    println!("result {:.1} {:.1}", at(50), at(99));
    Ok(())
}

/// A connection, shared by the sender and the receiver.
struct Connection {
    stream: TcpStream,
    /// When each unanswered command should have been sent.
    waiting: RefCell<VecDeque<Duration>>,
}

async fn load(options: &Options) -> Result<Vec<Duration>, Box<dyn Error>> {
    let clock = Rc::new(Stopwatch::start());
    let latencies = Rc::new(RefCell::new(Vec::new()));
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        let stream = TcpStream::connect(options.resp).await?;
        stream.set_nodelay(true)?;
        let waiting = RefCell::default();
        let connection = Rc::new(Connection { stream, waiting });
        let (clock, latencies) = (Rc::clone(&clock), Rc::clone(&latencies));
        spawn_local(receive(Rc::clone(&connection), clock, latencies));
        connections.push(connection);
    }
    let mut random = fastrand::Rng::with_seed(1);
    let [burst, count, period] = &Limits::Wide.numbers().words(Dialect::Cell);
    let start = clock.elapsed();
    let mut sent = 0_u32;
    // The connections send in turn, evenly spread.
    for connection in connections.iter().cycle() {
        let since_start = f64::from(sent) / options.per_second;
        if since_start > options.seconds {
            break;
        }
        let due = start + Duration::from_secs_f64(since_start);
        let key = format!("key:{:012}", random.u32(..KEYS));
        let command = encode(&[Dialect::Cell.command(), &key, burst, count, period]);
        while clock.elapsed() < due {
            yield_now().await;
        }
        connection.waiting.borrow_mut().push_back(due);
        // A socket has room for thousands of commands; it is full only if the server does not read.
        if connection.stream.try_write(&command)? != command.len() {
            return Err("the server does not read its input".into());
        }
        sent += 1;
    }
    let end = clock.elapsed() + GRACE;
    while latencies.borrow().len() < sent as usize {
        if clock.elapsed() > end {
            let missing = sent as usize - latencies.borrow().len();
            return Err(format!("{missing} of {sent} commands were not answered").into());
        }
        yield_now().await;
    }
    Ok(latencies.take())
}

/// Records the latency of every answer until the connection ends.
async fn receive(
    connection: Rc<Connection>,
    clock: Rc<Stopwatch>,
    latencies: Rc<RefCell<Vec<Duration>>>,
) {
    let (mut lines, mut buffer) = (0, vec![0; 16 * 1024]);
    loop {
        match connection.stream.try_read(&mut buffer) {
            Ok(0) => return eprintln!("the server has closed a connection"),
            Ok(length) => {
                let now = clock.elapsed();
                let bytes = &buffer[..length];
                // An error reply begins with a minus.
                if lines == 0 && bytes.first() == Some(&b'-') {
                    return eprintln!("an error: {}", String::from_utf8_lossy(bytes));
                }
                lines += bytes.iter().filter(|&&byte| byte == b'\n').count();
                while lines >= LINES {
                    lines -= LINES;
                    let due = connection.waiting.borrow_mut().pop_front();
                    latencies.borrow_mut().extend(due.map(|due| now - due));
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if connection.stream.readable().await.is_err() {
                    return eprintln!("a connection broke");
                }
            }
            Err(error) => return eprintln!("a connection broke: {error}"),
        }
    }
}
