//! `tollgate health`: asks a running server whether it takes requests. For health checks of containers, whose
//! image has no other program.

use std::time::Duration;

use ureq::Agent;
use ureq::http::StatusCode;

use crate::CommandResult;
use crate::admin::{agent, url};
use crate::terminal::printable;

/// The longest answer that is read. `/readyz` can contain the first problem of a config file.
const MAX_ANSWER: u64 = 64 * 1024;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The server's HTTP door or admin door
    #[arg(long, short, value_name = "URL", env = "TOLLGATE_HEALTH_URL")]
    #[arg(default_value = "http://127.0.0.1:8080")]
    server: String,

    /// Ask only whether the server answers (/healthz), also while it shuts down
    #[arg(long)]
    live: bool,

    /// How long to wait for the answer, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 2)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=60))]
    timeout: u64,
}

/// A server that cannot be reached is a negative result here, and not a failure of the command: a health check
/// has only two results.
pub(crate) fn run(args: &Args) -> CommandResult {
    let path = if args.live { "/healthz" } else { "/readyz" };
    let url = url(&args.server, path);
    let agent = agent(Duration::from_secs(args.timeout));
    match ask(&agent, &url) {
        Ok((status, body)) => {
            println!("{} {}", status.as_u16(), printable(body.trim_end()));
            Ok(status.is_success())
        }
        Err(error) => {
            eprintln!("error: request to {url} failed: {error}");
            Ok(false)
        }
    }
}

fn ask(agent: &Agent, url: &str) -> Result<(StatusCode, String), ureq::Error> {
    let mut response = agent.get(url).call()?;
    let body = response.body_mut().with_config().limit(MAX_ANSWER);
    let body = body.read_to_string()?;
    Ok((response.status(), body))
}
