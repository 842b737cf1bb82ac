//! `tollgate completions`: prints the completions of a shell.

use std::io::Write as _;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::{Cli, CommandResult};

/// Prints a script that completes commands and options of tollgate.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

#[allow(clippy::unnecessary_wraps, reason = "as all commands")]
pub(crate) fn run(args: &Args) -> CommandResult {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "tollgate", &mut script);
    match std::io::stdout().write_all(&script) {
        // A reader such as `head` may have closed the pipe.
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(crate::failed(error)),
        _ => Ok(true),
    }
}
