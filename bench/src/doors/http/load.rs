//! The load generator: wrk with a script that picks a random request for each round trip.

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use super::paced;
use crate::round::Round;
use crate::server::{Scratch, Server};

/// The requests of one server.
pub(crate) struct Requests {
    path: &'static str,
    script: PathBuf,
    bodies: PathBuf,
    first: String,
    headers: &'static str,
}

impl Requests {
    /// Makes `POST` requests of `path` with these header fields (`Name: value; Name: value`) and bodies.
    pub(crate) fn new(
        scratch: &Scratch,
        name: &str,
        path: &'static str,
        headers: &'static str,
        bodies: &[String],
    ) -> Result<Requests, Box<dyn Error>> {
        let file = format!("{headers}\n{}\n", bodies.join("\n"));
        Ok(Requests {
            path,
            script: scratch.file("load.lua", include_bytes!("load.lua"))?,
            bodies: scratch.file(&format!("{name}.requests"), file.as_bytes())?,
            first: bodies.first().cloned().unwrap_or_default(),
            headers,
        })
    }

    pub(super) fn path(&self) -> &'static str {
        self.path
    }

    /// The first body.
    pub(super) fn first(&self) -> &str {
        &self.first
    }

    /// The header fields, each on a line of its own.
    pub(super) fn header_lines(&self) -> String {
        let fields = self.headers.split("; ").filter(|field| !field.is_empty());
        fields.map(|field| format!("{field}\r\n")).collect()
    }

    /// Returns the command that sends the requests to `server`.
    pub(crate) fn command(&self, server: SocketAddr, connections: u32, seconds: u32) -> Command {
        let mut command = Command::new("wrk");
        command.args(["-t1", &format!("-c{connections}"), &format!("-d{seconds}s")]);
        command.arg("-s").arg(&self.script);
        command.arg(format!("http://{server}"));
        command.arg("--").arg(&self.bodies).arg(self.path);
        command
    }

    /// Sends the requests at a fixed rate, whether earlier ones are answered or not.
    pub(crate) fn run_paced(
        &self,
        server: &Server,
        per_second: f64,
        seconds: u32,
    ) -> Result<Round, Box<dyn Error>> {
        let cpu_before = server.cpu_micros()?;
        let (address, bodies) = (server.address(), &self.bodies);
        let output = paced::command(address, bodies, self.path, per_second, seconds)?.output()?;
        let cpu = server.cpu_micros()? - cpu_before;
        Round::read(server.name(), &output, cpu)
    }

    pub(crate) fn run(
        &self,
        server: &Server,
        connections: u32,
        seconds: u32,
    ) -> Result<Round, Box<dyn Error>> {
        let cpu_before = server.cpu_micros()?;
        let output = self
            .command(server.address(), connections, seconds)
            .output();
        let output = output.map_err(|error| cannot_run(&error))?;
        let cpu = server.cpu_micros()? - cpu_before;
        Round::read(server.name(), &output, cpu)
    }
}

fn cannot_run(error: &io::Error) -> String {
    format!("wrk does not run: {error}\n    install: sudo apt-get install -y wrk")
}
