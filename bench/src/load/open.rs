//! An open loop: requests leave at random instants at a fixed rate, whether earlier ones are answered or not.
//! A latency starts at the instant at which the request was due.
//!
//! The sender sleeps until shortly before the next instant and then polls the clock, so it takes little of
//! the machine. Each connection has a thread that reads.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use tollgate_rig::Stopwatch;

use super::calls::Calls;
use super::frames::Connection;
use super::{CONNECTIONS, Tally};

/// A sleep may end this much late.
const EARLY: Duration = Duration::from_micros(100);
/// How long to wait for the last answers.
const GRACE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(1);

/// A connection, shared by the sender and its reader.
struct Shared<'a> {
    stream: TcpStream,
    state: Mutex<State<'a>>,
}

struct State<'a> {
    connection: Connection<'a>,
    tally: Tally,
}

pub(super) fn run(
    server: SocketAddr,
    calls: &Calls,
    per_second: f64,
    limit: Duration,
) -> Result<Tally, Box<dyn Error>> {
    let clock = Stopwatch::start();
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        let stream = TcpStream::connect(server)?;
        stream.set_nodelay(true)?;
        let state = State {
            connection: Connection::new(calls, &server.to_string()),
            tally: Tally::default(),
        };
        connections.push(Shared {
            stream,
            state: Mutex::new(state),
        });
    }
    let sent = thread::scope(|scope| {
        for shared in &connections {
            scope.spawn(move || {
                // If reading ends early, answers are missing at the end.
                if let Err(error) = shared.read(clock) {
                    eprintln!("a connection broke: {error}");
                }
            });
        }
        let sent = send(&connections, calls, per_second, limit, clock);
        let answered = |count: usize| {
            let all = connections.iter().map(Shared::answered);
            all.sum::<usize>() >= count
        };
        let end = clock.elapsed() + GRACE;
        if let Ok(sent) = &sent {
            while !answered(*sent) && clock.elapsed() < end {
                thread::sleep(PAUSE);
            }
        }
        for shared in &connections {
            // Ends the reader. It may have ended by itself.
            let _ = shared.stream.shutdown(Shutdown::Both);
        }
        sent.map_err(|error| error.to_string())
    })?;
    let mut all = Tally::default();
    for shared in connections {
        let state = shared.state.into_inner();
        let tally = state.unwrap_or_else(PoisonError::into_inner).tally;
        all.latencies.extend(tally.latencies);
        all.failed += tally.failed;
        all.elapsed = all.elapsed.max(tally.elapsed);
    }
    match sent - all.latencies.len() {
        0 => Ok(all),
        missing => Err(format!("{missing} of {sent} requests were not answered").into()),
    }
}

/// Sends until `limit`. Returns the number of requests.
fn send(
    connections: &[Shared<'_>],
    calls: &Calls,
    per_second: f64,
    limit: Duration,
    clock: Stopwatch,
) -> Result<usize, Box<dyn Error>> {
    let mut random = fastrand::Rng::with_seed(1);
    let (mut due, mut sent) = (clock.elapsed(), 0);
    let end = due + limit;
    for shared in connections.iter().cycle() {
        let gap = -random.f64().max(f64::MIN_POSITIVE).ln() / per_second;
        due += Duration::from_secs_f64(gap);
        if due > end {
            break;
        }
        if let Some(pause) = due.checked_sub(clock.elapsed() + EARLY) {
            thread::sleep(pause);
        }
        while clock.elapsed() < due {
            thread::yield_now();
        }
        shared.ask(random.usize(..calls.messages.len()), due)?;
        sent += 1;
    }
    Ok(sent)
}

impl Shared<'_> {
    fn ask(&self, message: usize, due: Duration) -> Result<(), Box<dyn Error>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.connection.ask(message, due)?;
        self.flush(&mut state)
    }

    fn flush(&self, state: &mut State<'_>) -> Result<(), Box<dyn Error>> {
        let output = state.connection.output();
        (&self.stream).write_all(output)?;
        output.clear();
        Ok(())
    }

    fn answered(&self) -> usize {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.tally.latencies.len()
    }

    /// Reads answers until the connection ends.
    fn read(&self, clock: Stopwatch) -> Result<(), Box<dyn Error>> {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let length = (&self.stream).read(&mut buffer)?;
            let now = clock.elapsed();
            if length == 0 {
                return Ok(());
            }
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let State { connection, tally } = &mut *state;
            connection.receive(&buffer[..length], |answer| tally.add(&answer, now))?;
            tally.elapsed = now;
            self.flush(&mut state)?;
        }
    }
}
