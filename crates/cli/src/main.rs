//! The `tollgate` command.
//!
//! Exit codes: 0 yes; 1 no (`check` and `explain`: refused; `validate`: a file is not right; `diff`:
//! the configs differ; `doctor`: something is bad; `reconcile`: counters differ from the ledger; `import`:
//! no limit could be carried over); 2 the question could not be answered (wrong usage, no usable config, no server).

#![allow(clippy::print_stdout, clippy::print_stderr)] // A command's business.

mod admin;
mod audit;
mod candidates;
mod check;
mod checklist;
mod config;
mod diff;
mod doctor;
mod explain;
mod export;
mod import;
mod ledger;
mod logs;
mod overriding;
mod reconcile;
mod reload;
mod request;
mod serve;
mod shown;
mod table;
mod usage;
mod validate;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Decides, before any expensive work, whether an operation may proceed.
#[derive(Parser)]
#[command(version, propagate_version = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the server. Without a config: starter rules, and lines to try them with.
    Serve(serve::Args),
    /// Ask for one decision, of a config or of a running server. Exits with 1 if refused.
    Check(check::Args),
    /// Show which rules of a config apply to a request, and why the others do not. Exits with 1 if the
    /// request would be refused.
    Explain(explain::Args),
    /// Check a config file. Exits with 1 if it has problems, and says where and what to do.
    Validate(validate::Args),
    /// Say what changes from one config to another, and for whom. Exits with 1 if anything does.
    Diff(diff::Args),
    /// Look at a config and its store: is everything there, safe and fast enough? Exits with 1 if
    /// something is bad.
    Doctor(doctor::Args),
    /// Have a running server read its config file again.
    Reload(reload::Args),
    /// Change limits of a running server for a tenant, a plan or everyone, for a while.
    Override(overriding::Args),
    /// Show what candidates of a running server would refuse, beside the rules in force.
    Candidates(candidates::Args),
    /// Show who changed what: the audit trail of a server.
    Audit(audit::Args),
    /// Show what a tenant has used, from the ledger of a running server.
    Usage(usage::Args),
    /// Print what was used in a period, for bills.
    Export(export::Args),
    /// Set right what a tenant has used in this period.
    Correct(ledger::CorrectArgs),
    /// Give a tenant more to use in this period.
    Grant(ledger::GrantArgs),
    /// Compare the counters of a running server with its ledger. Exits with 1 if they differ and are not
    /// repaired.
    Reconcile(reconcile::Args),
    /// Print the config of another rate limiter as one of Tollgate, and what is not the same. Exits with
    /// 1 if nothing could be carried over.
    Import(import::Args),
    /// Print the JSON schema of the config file, for editors.
    Schema,
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Serve(args) => serve::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Validate(args) => return validate::run(&args),
        Command::Diff(args) => diff::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Reload(args) => reload::run(&args),
        Command::Override(args) => overriding::run(&args),
        Command::Candidates(args) => candidates::run(&args),
        Command::Audit(args) => audit::run(&args),
        Command::Usage(args) => usage::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Correct(args) => ledger::correct(&args),
        Command::Grant(args) => ledger::grant(&args),
        Command::Reconcile(args) => reconcile::run(&args),
        Command::Import(args) => import::run(&args),
        Command::Schema => validate::schema(),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("{}", error.trim_end());
            ExitCode::from(2)
        }
    }
}

/// Yes, no, or why there is no answer, ready to print.
type Answer = Result<bool, String>;

/// Whether to colour what goes to a stream: only on a terminal, and not if asked not to.
fn colour(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|it| it.is_empty())
}
