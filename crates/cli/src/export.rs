//! `tollgate export`: what was used in a period, for bills, from the ledger of a running server.

use std::io::{self, Write};

use clap::ValueEnum;

use crate::Answer;
use crate::admin::AdminArgs;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Periods that start then: a year, month, week or day, such as 2026-07 or 2026-W29; or current
    #[arg(long, value_name = "PERIOD")]
    period: String,

    /// Only of this tenant
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,

    /// What to print it in
    #[arg(long, value_enum, default_value = "csv")]
    format: Format,

    /// A row for each tenant, action, rule and period; this is so unless --entries is given
    #[arg(long, conflicts_with = "entries")]
    totals: bool,

    /// Every entry of the ledger instead of totals
    #[arg(long)]
    entries: bool,

    #[command(flatten)]
    admin: AdminArgs,
}

/// What an export is printed in.
#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// Comma-separated values, with a line of names
    Csv,
    /// A JSON object on each line
    Jsonl,
}

pub(crate) fn run(args: &Args) -> Answer {
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
        return Err("error: --period is empty\nhelp: write a month, such as 2026-07".to_owned());
    }
    let mut export = args.admin.read(path, &query)?;
    let mut stdout = io::stdout().lock();
    let copied = io::copy(&mut export, &mut stdout).and_then(|_| stdout.flush());
    copied.map_err(|error| {
        format!(
            "error: the export is not complete: {error}\nhelp: do not use what was printed; the log of the \
             server says more"
        )
    })?;
    Ok(true)
}
