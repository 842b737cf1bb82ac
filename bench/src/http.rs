//! Requests per second of `/v1/check`, against a handler that only reads and answers.
//!
//! Both servers are processes of their own with the same runtime, and answer the same load in
//! alternating rounds. The load generator shares the machine, so only the ratio means something.

mod load;

use std::error::Error;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;

use tollgate_bench::table::{Bar, Table, median};

use self::load::{Load, Round};
use crate::engine::FIVE_RULES;
use crate::server::{Scratch, Server};

/// The least share of the no-op's requests per second.
const BAR: Bar = Bar::AtLeast(0.85);

pub(crate) fn run(quick: bool, tollgate: Option<PathBuf>) -> Result<(), Box<dyn Error>> {
    let (rounds, seconds) = if quick { (2, 1) } else { (7, 3) };
    let this = std::env::current_exe()?;
    let tollgate = tollgate.unwrap_or_else(|| this.with_file_name("tollgate"));
    if !tollgate.is_file() {
        let path = tollgate.display();
        let build = "build it: cargo build --release --locked -p tollgate-cli";
        return Err(format!("there is no server at {path}\n    {build}").into());
    }

    let scratch = Scratch::new()?;
    let load = Load::new(scratch.file("check.lua", include_bytes!("check.lua"))?)?;
    let rules = scratch.file("five-rules.yaml", FIVE_RULES.as_bytes())?;
    let tollgate = Server::start("tollgate", |address| {
        let mut command = Command::new(&tollgate);
        command.arg("serve").arg("--config").arg(&rules);
        command.args(["--http", &address.to_string()]);
        command
    })?;
    // The no-op answers what Tollgate answers, so both write as much.
    let answer = first_answer(&tollgate)?;
    let constant = scratch.file("answer.json", answer.as_bytes())?;
    let noop = Server::start("no-op", |address| {
        let mut command = Command::new(&this);
        command.arg("noop-http").arg("--answer").arg(&constant);
        command.args(["--http", &address.to_string()]);
        command
    })?;
    first_answer(&noop)?;

    println!(
        "POST /v1/check, five rules of which two match, 50 connections, an answer of {} bytes;\n\
         medians of {rounds} alternating rounds of {seconds} s\n",
        answer.len()
    );
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..=rounds {
        let pair = [load.run(&tollgate, seconds)?, load.run(&noop, seconds)?];
        // The first round only warms up.
        if round > 0 {
            let [our, their] = pair;
            ours.push(our);
            theirs.push(their);
        }
    }
    report(&ours, &theirs);
    Ok(())
}

fn report(ours: &[Round], theirs: &[Round]) {
    let mut table = Table::new(["", "requests/s", "p99 ms", "server CPU us/request"]);
    for (name, rounds) in [("tollgate", ours), ("no-op", theirs)] {
        table.row([
            name.to_owned(),
            format!("{:.0}", middle(rounds, |round| round.per_second)),
            format!("{:.2}", middle(rounds, |round| round.p99_millis)),
            format!("{:.1}", middle(rounds, |round| round.cpu_micros)),
        ]);
    }
    println!("{table}");
    let per_second = |rounds| middle(rounds, |round: &Round| round.per_second);
    let ratio = per_second(ours) / per_second(theirs);
    println!("ratio {ratio:.2}, bar {BAR}: {}", BAR.verdict(ratio));
}

fn middle(rounds: &[Round], figure: impl Fn(&Round) -> f64) -> f64 {
    median(rounds.iter().map(figure).collect())
}

/// The body of the answer to one check, which must be allowed.
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
        _ => Err(format!("{} answers a check with\n{response}", server.name()).into()),
    }
}
