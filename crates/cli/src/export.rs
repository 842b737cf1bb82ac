//! `tollgate export`: prints the usage of a period from the ledger of a running server, for billing.

use std::io::{self, Write};

use clap::ValueEnum;

use crate::CommandResult;
use crate::admin::AdminArgs;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The year, month, week or day in which periods start, such as 2026-07 or 2026-W29; or current
    #[arg(long, value_name = "PERIOD")]
    period: String,

    /// Print only the usage of this tenant
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,

    /// The format of the output
    #[arg(long, value_enum, default_value = "csv")]
    format: Format,

    /// Print a row for each tenant, action, rule and period; this is the default
    #[arg(long, conflicts_with = "entries")]
    totals: bool,

    /// Print every entry of the ledger instead of totals
    #[arg(long)]
    entries: bool,

    #[command(flatten)]
    admin: AdminArgs,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// Comma-separated values, with a header line
    Csv,
    /// A JSON object on each line
    Jsonl,
}

pub(crate) fn run(args: &Args) -> CommandResult {
    let format = match args.format {
        Format::Csv => "csv",
        Format::Jsonl => "jsonl",
    };
    let mut query = vec![("period", args.period.as_str()), ("format", format)];
    query.extend(args.tenant.as_deref().map(|tenant| ("tenant", tenant)));
    let path = match args.entries {
        true => "/v1/ledger/entries",
        false => "/v1/ledger/usage",
    };
    if args.period.is_empty() {
        return Err("error: --period is empty\nhelp: give a month, such as 2026-07".to_owned());
    }
    let mut export = args.admin.read(path, &query)?;
    let mut stdout = io::stdout().lock();
    let copied = io::copy(&mut export, &mut stdout).and_then(|_| stdout.flush());
    copied.map_err(|error| {
        format!(
            "error: the export is incomplete: {error}\nhelp: discard the output; the log of the server has the \
             cause"
        )
    })?;
    Ok(true)
}
