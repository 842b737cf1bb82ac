//! `tollgate health`: asks a running server whether it takes requests. For health checks of containers, whose
//! image has no other program.

use std::time::Duration;

use crate::CommandResult;
use crate::connect::{Call, ConnectArgs};
use crate::terminal::printable;

/// The longest answer that is read. `/readyz` can contain the first problem of a config file.
const MAX_ANSWER: u64 = 64 * 1024;

const HELP: &str = "give the address of the server's HTTP door or admin door with --server";

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

    #[command(flatten)]
    connect: ConnectArgs,
}

/// A server that cannot be reached is a negative result here, and not a failure of the command: a health check
/// has only two results.
pub(crate) fn run(args: &Args) -> CommandResult {
    match ask(args) {
        Ok((is_healthy, answer)) => {
            println!("{answer}");
            Ok(is_healthy)
        }
        Err(error) => {
            eprintln!("{error}");
            Ok(false)
        }
    }
}

/// Returns whether the server is healthy, and its answer.
fn ask(args: &Args) -> Result<(bool, String), String> {
    let timeout = Duration::from_secs(args.timeout);
    let door = args.connect.door(&args.server, timeout, HELP)?;
    let path = if args.live { "/healthz" } else { "/readyz" };
    let mut response = door.send(path, &Call::Get(&[]))?;
    let status = response.status();
    let body = response.body_mut().with_config().limit(MAX_ANSWER);
    let body = body.read_to_string();
    let body = body.map_err(|error| format!("error: failed to read the answer: {error}"))?;
    let answer = format!("{} {}", status.as_u16(), printable(body.trim_end()));
    Ok((status.is_success(), answer))
}
