//! The faults of the proxy, as seen by a client.

#![allow(clippy::unwrap_used, reason = "a failed helper fails its test")]

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use tollgate_rig::{Fault, Proxy, Redis, Resp, Stopwatch, wait};

const PATIENCE: Duration = Duration::from_secs(5);

/// Starts an echo server, and returns its address.
fn echo() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            thread::spawn(move || io::copy(&mut &stream, &mut &stream));
        }
    });
    address
}

fn connect(proxy: &Proxy) -> TcpStream {
    let stream = TcpStream::connect(proxy.address()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn echoes(stream: &mut TcpStream) -> bool {
    let mut answer = [0; 4];
    stream.write_all(b"ping").is_ok()
        && stream.read_exact(&mut answer).is_ok()
        && &answer == b"ping"
}

/// Returns the kind of error at the end of the stream; `None` for a normal end.
fn ending(stream: &mut TcpStream) -> Option<ErrorKind> {
    let mut rest = Vec::new();
    stream
        .read_to_end(&mut rest)
        .err()
        .map(|error| error.kind())
}

/// Whether nothing can be read at this moment.
fn is_silent(stream: &mut TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let result = stream.read(&mut [0]);
    stream.set_nonblocking(false).unwrap();
    matches!(result, Err(error) if error.kind() == ErrorKind::WouldBlock)
}

#[test]
fn without_a_fault_everything_passes() {
    let redis = Redis::start();
    let proxy = Proxy::to(&redis.address());
    assert_eq!(proxy.connections(), 0);
    let mut resp = Resp::connect(&proxy.address()).unwrap();
    let big = vec![b'x'; 20_000_000];
    resp.command(&["SET".as_bytes(), b"big", &big]);
    assert_eq!(resp.get("big"), Some(big));
    assert_eq!(proxy.connections(), 1);
}

#[test]
fn half_closed_connection_still_gets_its_answer() {
    let proxy = Proxy::to(&echo());
    for fault in [Fault::None, Fault::Latency(Duration::from_millis(5))] {
        proxy.set(fault);
        let mut stream = connect(&proxy);
        stream.write_all(b"last words").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "last words");
    }
}

#[test]
fn latency_delays_both_directions_and_keeps_throughput() {
    const LATENCY: Duration = Duration::from_millis(50);
    const MESSAGES: u32 = 200;
    let proxy = Proxy::to(&echo());
    let mut stream = connect(&proxy);
    proxy.set(Fault::Latency(LATENCY));
    let stopwatch = Stopwatch::start();
    assert!(echoes(&mut stream));
    assert!(stopwatch.elapsed() >= 2 * LATENCY);

    // The messages are delayed at the same time, not one after the other.
    let mut reader = stream.try_clone().unwrap();
    let stopwatch = Stopwatch::start();
    let reading = thread::spawn(move || reader.read_exact(&mut [0; 4 * MESSAGES as usize]));
    for _ in 0..MESSAGES {
        stream.write_all(b"ping").unwrap();
        thread::yield_now();
    }
    reading.join().unwrap().unwrap();
    assert!(stopwatch.elapsed() < LATENCY * MESSAGES);
}

#[test]
fn delayed_bytes_stay_in_order_when_latency_ends() {
    let proxy = Proxy::to(&echo());
    let mut stream = connect(&proxy);
    proxy.set(Fault::Latency(Duration::from_millis(50)));
    stream.write_all(b"first ").unwrap();
    proxy.set(Fault::None);
    stream.write_all(b"second").unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"first second");
}

#[test]
fn black_hole_drops_bytes_and_resets_the_connection_afterwards() {
    let proxy = Proxy::to(&echo());
    let (mut idle, mut busy) = (connect(&proxy), connect(&proxy));
    assert!(echoes(&mut idle) && echoes(&mut busy));

    proxy.set(Fault::BlackHole);
    let mut late = connect(&proxy);
    let megabytes = vec![0; 16 << 20];
    busy.write_all(&megabytes).unwrap();
    late.write_all(&megabytes).unwrap();
    assert!(is_silent(&mut idle) && is_silent(&mut busy) && is_silent(&mut late));
    wait::until("the new connection", PATIENCE, || proxy.connections() == 3);

    proxy.set(Fault::None);
    assert_eq!(ending(&mut busy), Some(ErrorKind::ConnectionReset));
    assert_eq!(ending(&mut late), Some(ErrorKind::ConnectionReset));
    assert!(echoes(&mut idle));
    assert!(echoes(&mut connect(&proxy)));
}

#[test]
fn black_hole_drops_delayed_bytes() {
    let proxy = Proxy::to(&echo());
    let mut stream = connect(&proxy);
    assert!(echoes(&mut stream));
    proxy.set(Fault::Latency(PATIENCE));
    stream.write_all(b"ping").unwrap();
    proxy.set(Fault::BlackHole);
    proxy.set(Fault::None);
    assert_eq!(ending(&mut stream), Some(ErrorKind::ConnectionReset));
}

#[test]
fn reset_closes_open_and_new_connections() {
    let proxy = Proxy::to(&echo());
    let mut stream = connect(&proxy);
    assert!(echoes(&mut stream));
    proxy.set(Fault::Reset);
    assert_eq!(ending(&mut stream), Some(ErrorKind::ConnectionReset));
    assert_eq!(
        ending(&mut connect(&proxy)),
        Some(ErrorKind::ConnectionReset)
    );
    proxy.set(Fault::None);
    assert!(echoes(&mut connect(&proxy)));
}

#[test]
fn refuse_keeps_open_connections_and_refuses_new_ones() {
    let proxy = Proxy::to(&echo());
    let mut stream = connect(&proxy);
    proxy.set(Fault::Refuse);
    let refusal = TcpStream::connect(proxy.address()).unwrap_err();
    assert_eq!(refusal.kind(), ErrorKind::ConnectionRefused);
    assert!(echoes(&mut stream));
    proxy.set(Fault::None);
    assert!(echoes(&mut connect(&proxy)));
}

#[test]
fn killed_server_resets_its_clients() {
    let redis = Redis::start();
    let proxy = Proxy::to(&redis.address());
    let mut resp = Resp::connect(&proxy.address()).unwrap();
    assert_eq!(resp.command(&["PING"]).text(), "PONG");
    redis.kill();
    assert!(resp.try_command(&["PING"]).is_err());
    let ending = ending(&mut connect(&proxy));
    assert_eq!(ending, Some(ErrorKind::ConnectionReset));

    redis.restart();
    let mut resp = Resp::connect(&proxy.address()).unwrap();
    assert_eq!(resp.command(&["PING"]).text(), "PONG");
}
