//! `tollgate reconcile`: compares the counters of a running server with its ledger.

use clap::ValueEnum;
use serde_json::{Value, json};

use crate::CommandResult;
use crate::admin::{AdminArgs, Call, LONG, list};
use crate::terminal::{cell, table};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Compare only the counters of this tenant [default: all]
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,

    /// Repair the counters or the ledger where they differ [default: only report]
    #[arg(long, value_enum, value_name = "WHAT")]
    repair: Option<Repair>,

    /// The reason, for the audit trail
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,

    /// Print the server's answer as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    admin: AdminArgs,
}

#[derive(Clone, Copy, ValueEnum)]
enum Repair {
    /// Set the counters to the values of the ledger
    Counters,
    /// Write corrections to the ledger, so that it agrees with the counters
    Ledger,
}

pub(crate) fn run(args: &Args) -> CommandResult {
    let repair = match args.repair {
        None => "none",
        Some(Repair::Counters) => "counters",
        Some(Repair::Ledger) => "ledger",
    };
    let body = json!({ "repair": repair, "tenant": args.tenant, "reason": args.reason });
    let (path, call) = ("/v1/ledger/reconcile", Call::Post(&body));
    let answer = args.admin.call_within(LONG, path, &call)?;
    match args.json {
        true => println!("{answer}"),
        false => print!("{}", describe(&answer)),
    }
    let is_complete = answer["isCut"] != true;
    let mut drifts = list(&answer, "drifts").iter();
    Ok(is_complete && drifts.all(|it| it["repaired"] == true))
}

fn describe(answer: &Value) -> String {
    let columns = [
        ("tenant", false),
        ("rule", false),
        ("period from", false),
        ("what", false),
        ("ledger", true),
        ("counter", true),
        ("drift", true),
        ("", false),
    ];
    // Usage and grants are compared separately: each gets a line if it differs.
    let pairs = [
        ("used", "ledger", "store"),
        ("extra", "ledgerExtra", "storeExtra"),
    ];
    let drifts = list(answer, "drifts");
    let differing = drifts.iter().flat_map(|it| pairs.map(|pair| (it, pair)));
    let differing = differing.filter(|(it, (_, ledger, store))| it[*ledger] != it[*store]);
    let rows = differing.map(|(it, (what, ledger, store))| {
        let number = |name: &str| it[name].as_i64().unwrap_or(0);
        let (ledger, store) = (number(ledger), number(store));
        let repaired = match it["repaired"] == true {
            true => "repaired",
            false => "",
        };
        [
            cell(&it["tenant"]),
            cell(&it["rule"]),
            cell(&it["periodStart"]),
            what.to_owned(),
            ledger.to_string(),
            store.to_string(),
            format!("{:+}", i128::from(store) - i128::from(ledger)),
            repaired.to_owned(),
        ]
    });
    let rows: Vec<[String; 8]> = rows.collect();
    let mut text = match rows.is_empty() {
        true => String::new(),
        false => table(columns, &rows),
    };
    if answer["isCut"] == true {
        text += "The list is incomplete: run reconcile again, or use --tenant.\n";
    }
    let count = |name: &str| answer[name].as_u64().unwrap_or(0);
    text += &format!(
        "counters compared: {}, different: {}; ledger totals without a counter: {}, of removed rules: {}\n",
        count("compared"),
        drifts.len(),
        count("dormant"),
        count("orphaned"),
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drifts_are_listed_by_tenant() {
        let answer = json!({
            "compared": 3, "dormant": 1, "orphaned": 0, "isCut": false,
            "drifts": [{
                "tenant": "acme", "rule": "monthly", "counter": "00", "ledger": 12, "store": 7,
                "ledgerExtra": 50, "storeExtra": 50,
                "periodStart": "2026-07-01T00:00:00.000Z", "repaired": true,
            }, {
                "tenant": "zed", "rule": "monthly", "counter": "01", "ledger": 12, "store": 13,
                "ledgerExtra": 50, "storeExtra": 0,
                "periodStart": "2026-07-01T00:00:00.000Z", "repaired": true,
            }],
        });
        assert_eq!(
            describe(&answer),
            "tenant  rule     period from               what   ledger  counter  drift\n\
             acme    monthly  2026-07-01T00:00:00.000Z  used       12        7     -5  repaired\n\
             zed     monthly  2026-07-01T00:00:00.000Z  used       12       13     +1  repaired\n\
             zed     monthly  2026-07-01T00:00:00.000Z  extra      50        0    -50  repaired\n\
             counters compared: 3, different: 2; ledger totals without a counter: 1, of removed rules: 0\n"
        );
    }
}
