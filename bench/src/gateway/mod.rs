//! The gateway against nginx: requests per second, latency and CPU time of a proxied answer of 1 KB, without
//! rules, with two rules in memory and leased on Redis, with a token, and denied. `streams`: the first byte, the
//! CPU time of long answers, and the memory of open streams.
//!
//! Both proxies keep connections open on both sides and use all cores. They share the machine with the load
//! generator and the upstream, so only ratios are meaningful.

mod streams;
mod token;

use std::error::Error;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use tollgate_bench::process::cpu_micros;
use tollgate_bench::report::Report;
use tollgate_bench::table::{Bar, Table, median};
use tollgate_rig::Redis;

use crate::length::Length;
use crate::server::{Scratch, Server, free_addresses};
use crate::tollgate;

pub(crate) use self::streams::{Copy, Hold};

const RATE: Bar = Bar::AtLeast(0.7);
const P99: Bar = Bar::AtMost(1.5);
const WITH_RULES: Bar = Bar::AtLeast(0.9);
const LEASED: Bar = Bar::AtLeast(0.8);
const TOKEN_CPU: Bar = Bar::AtMost(1.1);
const DENIED_CPU: Bar = Bar::AtMost(0.5);

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

/// The figures that have a bar.
struct Bars(Table);

impl Bars {
    fn add(&mut self, what: &str, bar: Bar, value: f64) {
        let cells = [format!("{value:.2}"), bar.to_string(), bar.verdict(value)];
        let [value, bar, verdict] = cells;
        self.0.row([what.to_owned(), value, bar, verdict]);
    }
}

/// Returns the bars that were missed.
pub(crate) fn run(length: Length, write: Option<&Path>) -> Result<Vec<String>, Box<dyn Error>> {
    let (rounds, seconds) = length.pick((1, 1), (6, 3), (12, 5));
    let program = tollgate::beside()?;
    let scratch = Scratch::new()?;
    let script = scratch.file("load.lua", include_bytes!("load.lua"))?;
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
    let redis = Redis::start();
    let token = token::Token::new().map_err(|_| "failed to sign a token")?;
    scratch.file("jwks.json", token.jwks.as_bytes())?;
    let leased = format!(
        "store: {{ redis: {{ url: \"{}\" }} }}\nsubjects: {{ hash_secret: the secret of a benchmark }}\n{}",
        redis.url(),
        TWO_RULES.replace(" }\n", ", mode: leased }\n")
    );
    let verified = format!(
        "authentication: {{ jwt: {{ jwks_file: jwks.json }}, required: true }}\n{NO_RULES}"
    );
    let start = |name, rules: &str| gateway(&program, &scratch, name, rules, behind);
    let servers = [
        theirs,
        start("gateway", NO_RULES)?,
        start("gateway, two rules", TWO_RULES)?,
        start("gateway, two rules leased on Redis", &leased)?,
        start("gateway, token (ES256)", &verified)?,
        start("gateway, denied", DENIED)?,
    ];
    let mut all: [Vec<Round>; 6] = Default::default();
    for round in 0..=rounds {
        // Each round begins with another server, so that none always follows the same neighbour.
        for place in 0..servers.len() {
            let place = (place + round) % servers.len();
            let figures = load(&servers[place], &script, &token.bearer, seconds)?;
            // The first round is a warm-up.
            if round > 0 {
                all[place].push(figures);
            }
        }
    }
    let mut table = Table::new([
        "",
        "requests/s",
        "least to most",
        "p99 ms",
        "CPU us/request",
    ]);
    let middles = |figure: fn(&Round) -> f64| {
        let middle = |rounds: &Vec<Round>| median(rounds.iter().map(figure).collect());
        all.each_ref().map(middle)
    };
    let rate = middles(|round| round.per_second);
    let p99 = middles(|round| round.p99_millis);
    let cpu = middles(|round| round.cpu_micros);
    for (index, server) in servers.iter().enumerate() {
        let rates = || all[index].iter().map(|round| round.per_second);
        table.row([
            server.name().to_owned(),
            format!("{:.0}", rate[index]),
            format!(
                "{:.0} to {:.0}",
                rates().fold(f64::INFINITY, f64::min),
                rates().fold(0.0, f64::max)
            ),
            format!("{:.2}", p99[index]),
            format!("{:.1}", cpu[index]),
        ]);
    }
    let mut report = Report::new("gateway");
    report.section(
        &format!(
            "GET of 1 KB from another nginx, {CONNECTIONS} connections of wrk; medians of {rounds} rounds of \
             {seconds} s, each in another\norder."
        ),
        &[table],
    );
    let mut bars = Bars(Table::new(["", "figure", "bar", ""]));
    bars.add("requests/s against nginx", RATE, rate[1] / rate[0]);
    bars.add("p99 against nginx", P99, p99[1] / p99[0]);
    bars.add(
        "requests/s with two rules against none",
        WITH_RULES,
        rate[2] / rate[1],
    );
    bars.add(
        "requests/s leased on Redis against none",
        LEASED,
        rate[3] / rate[1],
    );
    bars.add("CPU with a token against none", TOKEN_CPU, cpu[4] / cpu[1]);
    bars.add(
        "CPU of a denied against a proxied request",
        DENIED_CPU,
        cpu[5] / cpu[1],
    );
    let [_, plain, ..] = &servers;
    streams::first_byte(&mut bars, behind, plain.address(), length)?;
    drop(servers);
    streams::long_answers(&mut bars, &program, &scratch, length)?;
    streams::memory(&mut bars, &program, &scratch, length)?;
    report.section("The bars:", &[bars.0]);
    if let Some(file) = write {
        report.write(file)?;
    }
    Ok(report.missed().to_vec())
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
    let started = Server::start_on(name, address, command);
    started.map(Server::with_workers).map_err(|error| {
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

fn load(
    server: &Server,
    script: &Path,
    bearer: &str,
    seconds: u32,
) -> Result<Round, Box<dyn Error>> {
    let before = cpu_of_all(server)?;
    let output = Command::new("wrk")
        .args([
            "-t1",
            &format!("-c{CONNECTIONS}"),
            &format!("-d{seconds}s"),
            "-s",
        ])
        .arg(script)
        .args(["-H", &format!("Authorization: Bearer {bearer}")])
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
