//! The `tollgate` command.
//!
//! Exit codes:
//!
//! * 0: success.
//! * 1: a negative result. `check`, `explain`: denied. `validate`: a file has problems. `diff`: the configs
//!   differ. `doctor`: a finding is bad. `health`: the server is not ready, or does not answer. `why`: no denial
//!   was found. `test`: a test failed. `simulate`: more is denied than `--max-denied`. `reconcile`:
//!   counters differ from the ledger. `import`: nothing could be converted. `serve`: a second signal ended the
//!   server before it had answered all requests.
//! * 2: a failure, such as wrong usage, no usable config, or no server.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command reports on the terminal"
)]

mod admin;
mod adopt;
mod advise;
mod audit;
mod blocks;
mod candidates;
mod check;
mod checklist;
mod completions;
mod config;
mod connect;
mod diff;
mod doctor;
mod explain;
mod export;
mod health;
mod import;
mod live_demand;
mod logs;
mod mode_advice;
mod overrides;
mod plan;
mod postings;
mod reconcile;
mod reload;
mod request;
mod serve;
mod simulate;
mod tail;
mod terminal;
mod testing;
mod tls;
mod top;
mod usage;
mod validate;
mod versions;
mod why;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use config::block_on;

/// Each answer allocates and frees about a dozen small blocks. docs/decisions/0013-one-limiter.md has the
/// figures of both allocators.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Decides, before any expensive work, whether an operation may proceed.
#[derive(Parser)]
#[command(
    name = "tollgate",
    version,
    propagate_version = true,
    max_term_width = 100
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the server. Without a config it uses starter rules, and prints requests to try.
    Serve(serve::Args),
    /// Make one decision, from a config or by a running server. Exits with 1 if the request is denied.
    Check(check::Args),
    /// Show which rules of a config apply to a request, and why the others do not. Exits with 1 if the
    /// request would be denied.
    Explain(explain::Args),
    /// Check config files. Shows each problem with its place and a remedy, and exits with 1 if there is any.
    Validate(validate::Args),
    /// Run tests of rules on a virtual clock, without a store and without secrets. Exits with 1 if a test
    /// fails.
    Test(testing::Args),
    /// Send an access log or described traffic through rules on a virtual clock, and show what they would
    /// allow and deny.
    Simulate(simulate::Args),
    /// Find a rule: answer ten questions, and get a rule with its reasons, its cost and its promise. A log gives
    /// the numbers.
    Advise(advise::Args),
    /// Size a deployment: from the capacity of a service to limits, tiers, connections, memory of Redis and
    /// instances, and a config to start from.
    Plan(plan::Args),
    /// Show what changes from one config to another, and who is affected. Exits with 1 if they differ.
    Diff(diff::Args),
    /// Check a config and its store for common mistakes. Exits with 1 if a finding is bad.
    Doctor(doctor::Args),
    /// Ask a running server whether it takes requests, as a health check does. Exits with 1 if it does not, or
    /// does not answer.
    Health(health::Args),
    /// Make the store and the ledger belong to a config with another hash_secret or clock. State under secrets
    /// that the config does not list is forgotten. Stop all servers first.
    Adopt(adopt::Args),
    /// Make a running server read its config file again.
    Reload(reload::Args),
    /// Change limits of a running server, for a subject, a tenant, a plan or everyone.
    Override(overrides::Args),
    /// Deny one subject, such as an API key or a network, before any rule. All instances follow within a second.
    Block(blocks::BlockArgs),
    /// End the block of a subject.
    Unblock(blocks::UnblockArgs),
    /// Show the blocked subjects of a running server.
    Blocks(blocks::ListArgs),
    /// Show the versions of the config that were in force.
    Config(versions::Args),
    /// Put an older version of the config in force, until the config file changes.
    Rollback(versions::RollbackArgs),
    /// Compare the candidate rules of a running server with the rules in force.
    Candidates(candidates::Args),
    /// Show the audit trail of all instances: who changed what, and when.
    Audit(audit::Args),
    /// Show when and why a subject was denied, from the journal of a running server. Exits with 1 if no denial is
    /// found.
    Why(why::Args),
    /// Show denials of a running server as they happen.
    Tail(tail::Args),
    /// Show what one or more running servers do now: rates by rule, instances, busy subjects.
    Top(top::Args),
    /// Show the usage of a tenant, from the ledger of a running server.
    Usage(usage::Args),
    /// Print the usage of a period, for billing.
    Export(export::Args),
    /// Correct the recorded usage of a tenant in the current period.
    Correct(postings::CorrectArgs),
    /// Raise the limit of a tenant for the current period.
    Grant(postings::GrantArgs),
    /// Compare the counters of a running server with its ledger. Exits with 1 if any difference remains.
    Reconcile(reconcile::Args),
    /// Convert the config of another rate limiter, and list what differs. Exits with 1 if no limit could be
    /// converted.
    Import(import::Args),
    /// Print the JSON schema of the config file or of test files, for editors.
    Schema(validate::SchemaArgs),
    /// Print the completions of a shell: bash, elvish, fish, powershell or zsh.
    Completions(completions::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Serve(args) => block_on(serve::run(&args)),
        Command::Check(args) => check::run(&args),
        Command::Explain(args) => block_on(explain::run(&args)),
        Command::Validate(args) => validate::run(&args),
        Command::Test(args) => testing::run(&args),
        Command::Simulate(args) => simulate::run(&args),
        Command::Advise(args) => advise::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Diff(args) => diff::run(&args),
        Command::Doctor(args) => block_on(doctor::run(&args)),
        Command::Health(args) => health::run(&args),
        Command::Adopt(args) => block_on(adopt::run(&args)),
        Command::Reload(args) => reload::run(&args),
        Command::Override(args) => overrides::run(&args),
        Command::Block(args) => blocks::block(&args),
        Command::Unblock(args) => blocks::unblock(&args),
        Command::Blocks(args) => blocks::show(&args),
        Command::Config(args) => versions::run(&args),
        Command::Rollback(args) => versions::rollback(&args),
        Command::Candidates(args) => candidates::run(&args),
        Command::Audit(args) => audit::run(&args),
        Command::Why(args) => why::run(&args),
        Command::Tail(args) => tail::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Usage(args) => usage::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Correct(args) => postings::correct(&args),
        Command::Grant(args) => postings::grant(&args),
        Command::Reconcile(args) => reconcile::run(&args),
        Command::Import(args) => import::run(&args),
        Command::Schema(args) => validate::schema(&args),
        Command::Completions(args) => completions::run(&args),
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

/// `true` for a positive result (exit code 0), `false` for a negative one (1). An error is ready to
/// print (2).
type CommandResult = Result<bool, String>;

/// Writes an error, ready to print.
fn failed(error: impl std::fmt::Display) -> String {
    format!("error: {error}")
}
