//! Compares reserve and commit with one check through the HTTP door: two requests with one, over one
//! connection.

use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use tollgate_bench::table::{Bar, median};
use tollgate_rig::Stopwatch;

use super::{Effort, MOST_OF_RESERVATION, Pair};
use crate::server::{Scratch, Server};
use crate::tollgate::{self, Door};

const CONFIG: &str = "
version: 1
subjects: { hash_secret: a secret of a benchmark }
rules:
  - { id: monthly, per: [tenant], algorithm: quota, limit: 1000000000000, period: month }
";
const CHECK: &str = r#"{"attributes":{"tenant":"acme","action":"chat"}}"#;
const RESERVE: &str = r#"{"attributes":{"tenant":"acme","action":"chat"},"cost":10}"#;
/// Divides the number of requests over a network, because these are slower.
const FEWER: usize = 10;

pub(super) fn measure(effort: &Effort) -> Result<Pair, Box<dyn Error>> {
    let scratch = Scratch::new()?;
    let server = tollgate::start(&tollgate::beside()?, &scratch, CONFIG, Door::Http)?;
    let mut client = Client::connect(&server)?;
    let requests = effort.requests / FEWER;
    let (mut checks, mut reservations) = (Vec::new(), Vec::new());
    for round in 0..=effort.rounds {
        let checked = client.micros_of(requests, Client::check)?;
        let reserved = client.micros_of(requests, Client::reserve_and_commit)?;
        // The first round is a warm-up.
        if round > 0 {
            checks.push(checked);
            reservations.push(reserved);
        }
    }
    Ok(Pair {
        name: "memory, through HTTP",
        ours: median(reservations),
        theirs: median(checks),
        bar: Bar::AtMost(MOST_OF_RESERVATION),
    })
}

/// A connection that stays open.
struct Client {
    stream: BufReader<TcpStream>,
    line: String,
    body: Vec<u8>,
}

impl Client {
    fn connect(server: &Server) -> Result<Client, Box<dyn Error>> {
        let stream = TcpStream::connect(server.address())?;
        stream.set_nodelay(true)?;
        Ok(Client {
            stream: BufReader::new(stream),
            line: String::new(),
            body: Vec::new(),
        })
    }

    fn micros_of(
        &mut self,
        times: usize,
        each: impl Fn(&mut Client) -> Result<(), Box<dyn Error>>,
    ) -> Result<f64, Box<dyn Error>> {
        let stopwatch = Stopwatch::start();
        for _ in 0..times {
            each(self)?;
        }
        Ok(stopwatch.elapsed().as_secs_f64() * 1e6 / times as f64)
    }

    fn check(&mut self) -> Result<(), Box<dyn Error>> {
        self.post("/v1/check", CHECK, "200")
    }

    fn reserve_and_commit(&mut self) -> Result<(), Box<dyn Error>> {
        self.post("/v1/reservations", RESERVE, "201")?;
        let answer = std::str::from_utf8(&self.body)?;
        let id = answer.split(r#""id":""#).nth(1);
        let id = id.and_then(|rest| rest.split('"').next());
        let id = id.ok_or_else(|| format!("a reservation without an id: {answer}"))?;
        let path = format!("/v1/reservations/{id}/commit");
        self.post(&path, r#"{"actual":7}"#, "200")
    }

    /// Sends `body`, and reads the answer, which must have the status `status`.
    fn post(&mut self, path: &str, body: &str, status: &str) -> Result<(), Box<dyn Error>> {
        let length = body.len();
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        );
        self.stream.get_mut().write_all(request.as_bytes())?;
        self.read_line()?;
        if self.line.split(' ').nth(1) != Some(status) {
            return Err(format!("{path} answered {}", self.line.trim()).into());
        }
        let mut length = 0;
        loop {
            self.read_line()?;
            let line = self.line.trim();
            if line.is_empty() {
                break;
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse()?;
            }
        }
        self.body.resize(length, 0);
        self.stream.read_exact(&mut self.body)?;
        Ok(())
    }

    fn read_line(&mut self) -> Result<(), Box<dyn Error>> {
        self.line.clear();
        self.stream.read_line(&mut self.line)?;
        Ok(())
    }
}
