//! Requests per second of `/v1/check`, against a handler that only reads and answers.
//!
//! Both servers are separate processes with the same runtime, and answer the same load in alternating rounds.
//! The load generator shares the machine, so only the ratio is meaningful.

mod load;
pub(crate) mod noop;

use std::error::Error;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use tollgate_bench::table::{Bar, Table};

use crate::engine::FIVE_RULES;
use crate::round::{Round, Rounds, alternate};
use crate::server::{Scratch, Server};
use crate::tollgate::{self, Door};

use self::load::Load;

/// The least share of the no-op's requests per second.
pub(crate) const RATE: Bar = Bar::AtLeast(0.85);
pub(crate) const CONNECTIONS: u32 = 50;

/// Tollgate, the no-op server, and a load for both.
pub(crate) struct Pair {
    load: Load,
    pub(crate) tollgate: Server,
    pub(crate) noop: Server,
    /// The length of the body of an answer, in bytes.
    pub(crate) answer: usize,
}

impl Pair {
    /// Starts `tollgate` with this config, and the no-op server.
    pub(crate) fn start(
        tollgate: &Path,
        scratch: &Scratch,
        config: &str,
    ) -> Result<Pair, Box<dyn Error>> {
        let load = Load::new(scratch.file("check.lua", include_bytes!("check.lua"))?)?;
        let tollgate = tollgate::start(tollgate, scratch, config, Door::Http)?;
        // The no-op server sends an answer of Tollgate, so both write the same number of bytes.
        let answer = first_answer(&tollgate)?;
        let constant = scratch.file("answer.json", answer.as_bytes())?;
        let this = std::env::current_exe()?;
        let noop = Server::start("no-op", |address| {
            let mut command = Command::new(this);
            command.arg("noop-http").arg("--answer").arg(&constant);
            command.args(["--http", &address.to_string()]);
            command
        })?;
        first_answer(&noop)?;
        Ok(Pair {
            load,
            tollgate,
            noop,
            answer: answer.len(),
        })
    }

    pub(crate) fn measure(
        &self,
        server: &Server,
        connections: u32,
        seconds: u32,
    ) -> Result<Round, Box<dyn Error>> {
        self.load.run(server, connections, seconds)
    }
}

pub(crate) fn run(quick: bool, tollgate: Option<PathBuf>) -> Result<(), Box<dyn Error>> {
    let (rounds, seconds) = if quick { (2, 1) } else { (7, 3) };
    let tollgate = tollgate.map_or_else(tollgate::beside, Ok)?;
    let scratch = Scratch::new()?;
    let pair = Pair::start(&tollgate, &scratch, FIVE_RULES)?;
    println!(
        "POST /v1/check, five rules of which two match, {CONNECTIONS} connections, an answer of {} bytes;\n\
         medians of {rounds} alternating rounds of {seconds} s\n",
        pair.answer
    );
    let [ours, theirs] = alternate(rounds, [&pair.tollgate, &pair.noop], |server| {
        pair.measure(server, CONNECTIONS, seconds)
    })?;
    report(&ours, &theirs);
    Ok(())
}

fn report(ours: &Rounds, theirs: &Rounds) {
    let mut table = Table::new(["", "requests/s", "p99 ms", "server CPU us/request"]);
    for (name, rounds) in [("tollgate", ours), ("no-op", theirs)] {
        table.row([
            name.to_owned(),
            format!("{:.0}", rounds.per_second()),
            format!("{:.2}", rounds.p99_millis()),
            format!("{:.1}", rounds.cpu_micros()),
        ]);
    }
    println!("{table}");
    let ratio = ours.per_second() / theirs.per_second();
    println!("ratio {ratio:.2}, bar {RATE}: {}", RATE.verdict(ratio));
}

/// Sends one check, which must be allowed, and returns the body of the answer.
fn first_answer(server: &Server) -> Result<String, Box<dyn Error>> {
    let body = r#"{"attributes":{"tenant":"tenant-1","api_key":"0123456789abcdef","action":"search"},"cost":1}"#;
    let mut stream = TcpStream::connect(server.address())?;
    write!(
        stream,
        "POST /v1/check HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        server.address(),
        body.len(),
    )?;
    let mut response = String::new();
    stream.read_to_string(&mut response)?;
    match response.split_once("\r\n\r\n") {
        Some((head, body)) if head.starts_with("HTTP/1.1 200") => Ok(body.to_owned()),
        _ => Err(format!("{} answered a check with\n{response}", server.name()).into()),
    }
}
