//! The gateway against nginx: requests per second, latency and CPU time of a proxied answer of 1 KB, without
//! rules, with two rules, and denied; the first byte of a stream; the memory of open streams.
//!
//! Both proxies keep connections open on both sides and use all cores. They share the machine with the load
//! generator and the upstream, so only ratios are meaningful.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tollgate_bench::process::cpu_micros;
use tollgate_bench::table::{Bar, Table, median};

use tollgate_rig::Stopwatch;

use crate::server::{Scratch, Server, free_addresses};
use crate::tollgate;

const RATE: Bar = Bar::AtLeast(0.7);
const P99: Bar = Bar::AtMost(1.5);
const WITH_RULES: Bar = Bar::AtLeast(0.9);
const DENIED_CPU: Bar = Bar::AtMost(0.5);
const FIRST_BYTE_MILLIS: Bar = Bar::AtMost(1.0);
const STREAM_BYTES: Bar = Bar::AtMost(40.0 * 1024.0);

const CONNECTIONS: u32 = 50;

const NO_RULES: &str = "rules: []\n";
const TWO_RULES: &str = "rules:\n\
    - { id: per-ip, per: [ip], algorithm: gcra, rate: 1000000/s, burst: 1000000 }\n\
    - { id: all, algorithm: fixed-window, limit: 1000000000, window: 1h }\n";
const DENIED: &str = "rules: [{ id: none, algorithm: fixed-window, limit: 0, window: 1h }]\n";

/// The figures of one round.
struct Round {
    per_second: f64,
    p99_millis: f64,
    cpu_micros: f64,
}

pub(crate) fn run(quick: bool) -> Result<(), Box<dyn Error>> {
    let (rounds, seconds, streams) = if quick { (1, 1, 100) } else { (5, 3, 2000) };
    let program = tollgate::beside()?;
    let scratch = Scratch::new()?;
    let script = scratch.file("gateway.lua", include_bytes!("gateway.lua"))?;
    let upstream = nginx(&scratch, "upstream", |address| {
        let kilobyte = "x".repeat(1024);
        format!("server {{ listen {address} reuseport; location / {{ return 200 {kilobyte}; }} }}")
    })?;
    let behind = upstream.address();
    let theirs = nginx(&scratch, "nginx", |address| {
        format!(
            "upstream app {{ server {behind}; keepalive 128; }}\n\
             server {{ listen {address} reuseport; location / {{ proxy_pass http://app; \
             proxy_http_version 1.1; proxy_set_header Connection \"\"; proxy_set_header Host $host; \
             proxy_set_header X-Forwarded-For $remote_addr; }} }}"
        )
    })?;
    let start = |name, rules| gateway(&program, &scratch, name, rules, behind);
    let plain = start("gateway", NO_RULES)?;
    let limited = start("gateway, two rules", TWO_RULES)?;
    let denying = start("gateway, denied", DENIED)?;
    let servers = [&theirs, &plain, &limited, &denying];
    println!(
        "GET of 1 KB, {CONNECTIONS} connections; medians of {rounds} alternating rounds of {seconds} s\n"
    );
    let mut all: [Vec<Round>; 4] = Default::default();
    for _ in 0..rounds {
        for (server, rounds) in servers.iter().zip(&mut all) {
            rounds.push(load(server, &script, seconds)?);
        }
    }
    let mut table = Table::new(["", "requests/s", "p99 ms", "CPU us/request"]);
    let middle =
        |rounds: &[Round], figure: fn(&Round) -> f64| median(rounds.iter().map(figure).collect());
    let rate = all
        .each_ref()
        .map(|it| middle(it, |round| round.per_second));
    let p99 = all
        .each_ref()
        .map(|it| middle(it, |round| round.p99_millis));
    let cpu = all
        .each_ref()
        .map(|it| middle(it, |round| round.cpu_micros));
    for (index, server) in servers.iter().enumerate() {
        table.row([
            server.name().to_owned(),
            format!("{:.0}", rate[index]),
            format!("{:.2}", p99[index]),
            format!("{:.1}", cpu[index]),
        ]);
    }
    println!("{table}");
    let tell = |what: &str, bar: Bar, value: f64| {
        println!("{what} {value:.2}, bar {bar}: {}", bar.verdict(value));
    };
    tell("requests/s against nginx", RATE, rate[1] / rate[0]);
    tell("p99 against nginx", P99, p99[1] / p99[0]);
    tell(
        "requests/s with two rules against none",
        WITH_RULES,
        rate[2] / rate[1],
    );
    tell(
        "CPU of a denied against a proxied request",
        DENIED_CPU,
        cpu[3] / cpu[1],
    );
    let requests = if quick { 100 } else { 2000 };
    let direct = first_byte_millis(behind, requests)?;
    let proxied = first_byte_millis(plain.address(), requests)?;
    tell(
        "ms that the first byte comes later at p99",
        FIRST_BYTE_MILLIS,
        proxied - direct,
    );
    let bytes = bytes_of_streams(&program, &scratch, streams)?;
    tell(
        &format!("bytes of each of {streams} open streams"),
        STREAM_BYTES,
        bytes,
    );
    Ok(())
}

/// Starts nginx with a worker for each core. `site` is the content of its `http` block.
fn nginx(
    scratch: &Scratch,
    name: &'static str,
    site: impl FnOnce(SocketAddr) -> String,
) -> Result<Server, Box<dyn Error>> {
    let [address] = free_addresses()?;
    let site = site(address);
    let pid = scratch.file(&format!("{name}.pid"), b"")?;
    let config = format!(
        "daemon off; worker_processes auto; pid {}; error_log /dev/null;\n\
         events {{ worker_connections 4096; }}\nhttp {{ access_log off; keepalive_requests 100000000;\n{site}\n}}\n",
        pid.display()
    );
    let file = scratch.file(&format!("{name}.conf"), config.as_bytes())?;
    let mut command = Command::new("nginx");
    command.arg("-c").arg(file).args(["-e", "/dev/null"]);
    Server::start_on(name, address, command).map_err(|error| {
        format!("{error}\n    install: sudo apt-get install -y --no-install-recommends nginx")
            .into()
    })
}

fn gateway(
    program: &Path,
    scratch: &Scratch,
    name: &'static str,
    rules: &str,
    upstream: SocketAddr,
) -> Result<Server, Box<dyn Error>> {
    let [http, address] = free_addresses()?;
    let config = format!(
        "version: 1\nserver: {{ http: \"{http}\", gateway: \"{address}\", max_connections_per_client: 10000 }}\n\
         upstreams: {{ app: {{ servers: [\"http://{upstream}\"], max_connections: 10000 }} }}\n{rules}"
    );
    let file = scratch.file(&format!("gateway-{}.yaml", http.port()), config.as_bytes())?;
    let mut command = Command::new(program);
    command
        .args(["serve", "--log", "error", "--config"])
        .arg(file);
    Server::start_on(name, address, command)
}

/// Returns the CPU time of a server and its children, in microseconds.
fn cpu_of_all(server: &Server) -> Result<f64, Box<dyn Error>> {
    let id = server.id();
    let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children"))?;
    let mut sum = cpu_micros(id)?;
    for child in children.split_whitespace() {
        sum += cpu_micros(child.parse()?)?;
    }
    Ok(sum)
}

fn load(server: &Server, script: &Path, seconds: u32) -> Result<Round, Box<dyn Error>> {
    let before = cpu_of_all(server)?;
    let output = Command::new("wrk")
        .args([
            "-t1",
            &format!("-c{CONNECTIONS}"),
            &format!("-d{seconds}s"),
            "-s",
        ])
        .arg(script)
        .arg(format!("http://{}/", server.address()))
        .output()?;
    let cpu = cpu_of_all(server)? - before;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find_map(|line| line.strip_prefix("result "));
    let figures = line.map(|line| line.split_whitespace().map(str::parse).collect());
    let Some(Ok::<Vec<f64>, _>(figures)) = figures else {
        return Err(format!("the load of {} gave no result\n{text}", server.name()).into());
    };
    match figures[..] {
        [requests, micros, p99, 0.0] if requests > 0.0 => Ok(Round {
            per_second: requests / micros * 1e6,
            p99_millis: p99 / 1000.0,
            cpu_micros: cpu / requests,
        }),
        _ => Err(format!("connections to {} broke\n{text}", server.name()).into()),
    }
}

/// Returns the 99th percentile of the time from a request to the first byte of its answer, in milliseconds, on
/// one connection.
fn first_byte_millis(address: SocketAddr, requests: usize) -> Result<f64, Box<dyn Error>> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let mut times = Vec::with_capacity(requests);
    let mut answer = Vec::new();
    let mut part = [0; 4096];
    for _ in 0..requests {
        answer.clear();
        let started = Stopwatch::start();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: bench\r\n\r\n")?;
        loop {
            let read = stream.read(&mut part)?;
            if read == 0 {
                return Err("the connection was closed".into());
            }
            if answer.is_empty() {
                times.push(started.elapsed().as_secs_f64() * 1e3);
            }
            answer.extend_from_slice(&part[..read]);
            let head = answer.windows(4).position(|it| it == b"\r\n\r\n");
            if head.is_some_and(|head| answer.len() >= head + 4 + 1024) {
                break;
            }
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(times[(times.len() * 99 / 100).min(times.len() - 1)])
}

/// Returns how much the memory of a gateway grows with each open stream, in bytes.
fn bytes_of_streams(
    program: &Path,
    scratch: &Scratch,
    streams: u32,
) -> Result<f64, Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let gateway = gateway(
        program,
        scratch,
        "gateway",
        NO_RULES,
        listener.local_addr()?,
    )?;
    // Answers begin and do not end.
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let _ = stream.read(&mut [0; 4096]);
            let head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n";
            let _ = stream.write_all(head);
            open.push(stream);
        }
    });
    let open = |count: u32| -> Result<Vec<TcpStream>, Box<dyn Error>> {
        let mut opened = Vec::new();
        for _ in 0..count {
            let mut stream = TcpStream::connect(gateway.address())?;
            stream.set_read_timeout(Some(Duration::from_secs(10)))?;
            stream.write_all(b"GET / HTTP/1.1\r\nHost: bench\r\n\r\n")?;
            stream.read_exact(&mut [0; 16])?;
            opened.push(stream);
        }
        Ok(opened)
    };
    let _first = open(10)?;
    let before = gateway.resident_bytes()?;
    let _opened = open(streams)?;
    Ok((gateway.resident_bytes()? - before) / f64::from(streams))
}
