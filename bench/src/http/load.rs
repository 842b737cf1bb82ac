//! The load generator: wrk with a script that picks a random API key for each request.

use std::error::Error;
use std::path::PathBuf;
use std::process::Command;

use crate::round::Round;
use crate::server::Server;

pub(crate) struct Load {
    script: PathBuf,
}

impl Load {
    pub(crate) fn new(script: PathBuf) -> Result<Load, Box<dyn Error>> {
        match Command::new("wrk").arg("--version").output() {
            Ok(_) => Ok(Load { script }),
            Err(error) => {
                let install = "install: sudo apt-get install -y wrk";
                Err(format!("wrk does not run: {error}\n    {install}").into())
            }
        }
    }

    pub(crate) fn run(
        &self,
        server: &Server,
        connections: u32,
        seconds: u32,
    ) -> Result<Round, Box<dyn Error>> {
        let cpu_before = server.cpu_micros()?;
        let output = Command::new("wrk")
            .args(["-t1", &format!("-c{connections}"), &format!("-d{seconds}s")])
            .arg("-s")
            .arg(&self.script)
            .arg(format!("http://{}", server.address()))
            .output()?;
        let cpu = server.cpu_micros()? - cpu_before;
        Round::read(server, &output, cpu)
    }
}
