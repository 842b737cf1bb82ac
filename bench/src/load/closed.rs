//! A closed loop: each connection keeps its share of the requests in flight, and sends the next request
//! when one is answered.

use std::error::Error;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::task::{LocalSet, spawn_local};
use tollgate_rig::Stopwatch;

use super::calls::Calls;
use super::frames::Connection;
use super::{CONNECTIONS, Tally};

pub(super) fn run(
    server: SocketAddr,
    calls: &Calls,
    in_flight: u32,
    limit: Duration,
) -> Result<Tally, Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let calls = Rc::new(calls.clone());
    LocalSet::new().block_on(&runtime, async {
        let clock = Stopwatch::start();
        let connections: Vec<_> = (0..u64::from(CONNECTIONS))
            .map(|seed| {
                let (calls, share) = (Rc::clone(&calls), in_flight / CONNECTIONS);
                spawn_local(async move {
                    let answered = connection(server, &calls, share, seed, clock, limit).await;
                    answered.map_err(|error| error.to_string())
                })
            })
            .collect();
        let mut all = Tally::default();
        for connection in connections {
            let tally = connection.await??;
            all.latencies.extend(tally.latencies);
            all.failed += tally.failed;
        }
        all.elapsed = clock.elapsed();
        Ok(all)
    })
}

async fn connection(
    server: SocketAddr,
    calls: &Calls,
    in_flight: u32,
    seed: u64,
    clock: Stopwatch,
    limit: Duration,
) -> Result<Tally, Box<dyn Error>> {
    let stream = TcpStream::connect(server).await?;
    stream.set_nodelay(true)?;
    let mut random = fastrand::Rng::with_seed(seed);
    let mut connection = Connection::new(calls, &server.to_string());
    let mut open = in_flight;
    for _ in 0..in_flight {
        connection.ask(random.usize(..calls.messages.len()), clock.elapsed())?;
    }
    let mut tally = Tally::default();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        send(&stream, connection.output()).await?;
        if open == 0 {
            return Ok(tally);
        }
        stream.readable().await?;
        let length = match stream.try_read(&mut buffer) {
            Ok(0) => return Err("the server has closed a connection".into()),
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error.into()),
        };
        // One look at the clock for all answers of a read.
        let now = clock.elapsed();
        let mut answered = 0;
        connection.receive(&buffer[..length], |answer| {
            tally.add(&answer, now);
            answered += 1;
        })?;
        if now >= limit {
            open -= answered;
            continue;
        }
        for _ in 0..answered {
            connection.ask(random.usize(..calls.messages.len()), now)?;
        }
    }
}

async fn send(stream: &TcpStream, output: &mut Vec<u8>) -> Result<(), Box<dyn Error>> {
    let mut sent = 0;
    while sent < output.len() {
        match stream.try_write(&output[sent..]) {
            Ok(length) => sent += length,
            Err(error) if error.kind() == ErrorKind::WouldBlock => stream.writable().await?,
            Err(error) => return Err(error.into()),
        }
    }
    output.clear();
    Ok(())
}
