//! The load: wrk with a script that picks a random API key per request.

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
                Err(format!("wrk is needed and does not run: {error}\n    {install}").into())
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
        let text = String::from_utf8_lossy(&output.stdout);
        let Some([requests, micros, p99, failed]) = result(&text) else {
            let complaint = String::from_utf8_lossy(&output.stderr);
            return Err(format!("wrk gave no result\n{text}{complaint}").into());
        };
        if failed > 0.0 || requests == 0.0 {
            let name = server.name();
            return Err(format!("{failed} of {requests} requests to {name} failed\n{text}").into());
        }
        Ok(Round {
            per_second: requests / micros * 1e6,
            p99_millis: p99 / 1000.0,
            cpu_micros: cpu / requests,
        })
    }
}

/// The figures of the script's `result` line.
fn result(text: &str) -> Option<[f64; 4]> {
    let line = text.lines().find_map(|line| line.strip_prefix("result "))?;
    let figures: Result<Vec<f64>, _> = line.split_whitespace().map(str::parse).collect();
    figures.ok()?.try_into().ok()
}
