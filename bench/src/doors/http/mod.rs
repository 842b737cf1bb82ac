//! Requests per second of `POST /v1/check` with state in memory, against a server with a constant answer, and
//! against peers.
//!
//! All servers are separate processes, and answer the same load in alternating rounds. The load generator shares the
//! machine, so only the ratios are meaningful.

pub(crate) mod load;
pub(crate) mod noop;
pub(crate) mod paced;

use std::error::Error;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use tollgate_bench::report::Report;
use tollgate_bench::table::{Bar, Table};
use tollgate_bench::workload::api_keys;

use self::load::Requests;
use super::versus::{self, Keys, Measured};
use super::{Setting, comparison};
use crate::engine::FIVE_RULES;
use crate::peers::{self, Peer, Work};
use crate::round::{Round, alternate};
use crate::server::{Scratch, Server};
use crate::tollgate::{self, Door};

pub(super) const CONNECTIONS: u32 = 50;
const KEYS: usize = 10_000;
const KEYS_PER_TENANT: usize = 100;
const CHECK: &str = "/v1/check";
/// Asks for a short answer.
const LEAN: &str = "Prefer: return=minimal";
const PEERS: [Peer; 3] = [Peer::Throttlecrab, Peer::Gubernator, Peer::Limitador];
/// The CPU time of a lean answer, relative to the peer's.
const TO_THROTTLECRAB: Bar = Bar::Below(1.0);

/// Tollgate and the no-op server, under five rules of which two match.
pub(super) struct Pair {
    requests: Requests,
    pub(super) tollgate: Server,
    pub(super) noop: Server,
    /// The length of an answer of Tollgate, in bytes.
    answer: usize,
}

impl Pair {
    /// Starts Tollgate with this config, and the no-op server.
    pub(super) fn start(setting: &Setting, config: &str) -> Result<Pair, Box<dyn Error>> {
        let scratch = &setting.scratch;
        let requests = five_rules(scratch)?;
        let tollgate = tollgate::start(&setting.tollgate, scratch, config, Door::Http)?;
        let this = std::env::current_exe()?;
        let noop = Server::start("no-op", |address| {
            let mut command = Command::new(this);
            command.args(["noop-http", "--http", &address.to_string()]);
            command
        })?;
        first_answer(&noop, &requests)?;
        Ok(Pair {
            answer: first_answer(&tollgate, &requests)?,
            requests,
            tollgate,
            noop,
        })
    }

    pub(super) fn measure(
        &self,
        server: &Server,
        connections: u32,
        seconds: u32,
    ) -> Result<Round, Box<dyn Error>> {
        self.requests.run(server, connections, seconds)
    }
}

/// Returns the requests of the comparison with the no-op server.
pub(super) fn five_rules(scratch: &Scratch) -> Result<Requests, Box<dyn Error>> {
    let keys = api_keys(KEYS);
    let bodies = keys.iter().enumerate().map(|(number, key)| {
        let tenant = number / KEYS_PER_TENANT;
        format!(
            r#"{{"attributes":{{"tenant":"tenant-{tenant}","api_key":"{key}","action":"search"}},"cost":1}}"#
        )
    });
    let bodies: Vec<String> = bodies.collect();
    Requests::new(scratch, "five-rules", CHECK, "", &bodies)
}

pub(super) fn run(setting: &Setting, report: &mut Report) -> Result<(), Box<dyn Error>> {
    let (rounds, seconds) = setting.length.rounds();
    {
        let pair = Pair::start(setting, FIVE_RULES)?;
        let mut sides = [&pair.tollgate, &pair.noop];
        let measured = alternate(rounds, &mut sides, |server| {
            pair.measure(server, CONNECTIONS, seconds)
        })?;
        let mut table = comparison::table("connections");
        let bars = (comparison::RATE, comparison::CPU);
        comparison::row(&mut table, &CONNECTIONS.to_string(), &measured, bars);
        report.section(
            &format!(
                "`POST {CHECK}` by wrk, five rules of which two match, state in memory, answers of {} bytes \
                 with their\nheads; medians of {rounds} alternating rounds of {seconds} s.",
                pair.answer
            ),
            &[table],
        );
    }
    peers(setting, report)
}

/// A server, and its requests.
struct Side {
    peer: Option<Peer>,
    /// Whether Tollgate is asked for lean answers.
    is_lean: bool,
    server: Server,
    requests: Requests,
    answer: usize,
}

impl Side {
    fn name(&self) -> &'static str {
        match (self.peer, self.is_lean) {
            (Some(peer), _) => peer.name(),
            (None, true) => "tollgate, lean",
            (None, false) => "tollgate",
        }
    }
}

fn peers(setting: &Setting, report: &mut Report) -> Result<(), Box<dyn Error>> {
    let (rounds, seconds) = setting.length.rounds();
    let (mut sides, absent) = start(setting)?;
    let measured = alternate(rounds, &mut sides, |side| {
        side.requests.run(&side.server, CONNECTIONS, seconds)
    })?;
    let mut table = versus::table("HTTP in memory");
    let mut answers = Table::new(["bytes of an answer with its head", "bytes"]);
    for side in &sides {
        answers.row([side.name().to_owned(), side.answer.to_string()]);
    }
    let mut bars = versus::bars();
    for (place, what) in [(0, "lean answers"), (1, "default answers")] {
        let ours = (None, measured[place].clone());
        let theirs = sides.iter().map(|side| side.peer).zip(measured.clone());
        let all = Measured {
            sides: [ours].into_iter().chain(theirs.skip(2)).collect(),
            absent: absent.clone(),
        };
        let case = format!("HTTP in memory, {CONNECTIONS} connections, {what}");
        all.add(setting, &case, &mut table, report);
        let ratio = all.ours().cpu_micros() / all.theirs(Peer::Throttlecrab).cpu_micros();
        let bar = if place == 0 {
            TO_THROTTLECRAB
        } else {
            Bar::None
        };
        let name = format!("CPU of {what}, to {}'s", Peer::Throttlecrab.name());
        versus::bar(&mut bars, &name, ratio, bar);
    }
    report.section(
        &format!(
            "Against peers, each through its own HTTP API: {}.\nOne limit, state in memory, {}, {CONNECTIONS} \
             connections; medians of {rounds} alternating rounds of\n{seconds} s. Lean answers are those to \
             `{LEAN}`.",
            setting.peers.describe(&PEERS),
            Keys::Many.name(),
        ),
        &[table, answers, bars],
    );
    Ok(())
}

type Absent = Vec<(Peer, String)>;

/// Starts Tollgate twice, once for lean answers, and the peers.
fn start(setting: &Setting) -> Result<(Vec<Side>, Absent), Box<dyn Error>> {
    let scratch = &setting.scratch;
    let keys = Keys::Many.values();
    let body = |key: &String| format!(r#"{{"attributes":{{"api_key":"{key}"}},"cost":1}}"#);
    let bodies: Vec<String> = keys.iter().map(body).collect();
    let config = versus::config(Work::One, None);
    let mut sides = Vec::new();
    for (is_lean, name, headers) in [(true, "lean", LEAN), (false, "default", "")] {
        sides.push(Side {
            peer: None,
            is_lean,
            server: tollgate::start(&setting.tollgate, scratch, &config, Door::Http)?,
            requests: Requests::new(scratch, name, CHECK, headers, &bodies)?,
            answer: 0,
        });
    }
    let mut absent = Vec::new();
    for peer in PEERS {
        let program = match setting.peers.get(peer) {
            Ok(program) => program,
            Err(reason) => {
                absent.push((peer, reason.to_owned()));
                continue;
            }
        };
        let (path, _) = peers::http_request(peer, "");
        let bodies = keys.iter().map(|key| peers::http_request(peer, key).1);
        let bodies: Vec<String> = bodies.collect();
        sides.push(Side {
            peer: Some(peer),
            is_lean: false,
            server: peers::start_http(peer, program, scratch)?,
            requests: Requests::new(scratch, peer.name(), path, "", &bodies)?,
            answer: 0,
        });
    }
    for side in &mut sides {
        side.answer = first_answer(&side.server, &side.requests)?;
    }
    Ok((sides, absent))
}

/// Sends one request, which must be allowed, and returns the length of the answer.
fn first_answer(server: &Server, requests: &Requests) -> Result<usize, Box<dyn Error>> {
    let (path, body) = (requests.path(), requests.first());
    let mut stream = TcpStream::connect(server.address())?;
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n{}\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        server.address(),
        requests.header_lines(),
        body.len(),
    )?;
    let mut response = String::new();
    stream.read_to_string(&mut response)?;
    match response.starts_with("HTTP/1.1 20") {
        true => Ok(response.len()),
        false => Err(format!("{} answered a check with\n{response}", server.name()).into()),
    }
}
