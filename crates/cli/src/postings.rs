//! `tollgate correct` and `tollgate grant`: entries that operators write to the ledger.

use serde_json::{Map, Value, json};

use crate::CommandResult;
use crate::admin::{AdminArgs, Call};
use crate::request::pair;
use crate::terminal::printable;

#[derive(clap::Args)]
pub(crate) struct CorrectArgs {
    /// How much to add to the usage of the tenant; negative to subtract
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    amount: i64,

    #[command(flatten)]
    posting: PostingArgs,
}

#[derive(clap::Args)]
pub(crate) struct GrantArgs {
    /// How much to add to the limit of this period
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..))]
    amount: i64,

    #[command(flatten)]
    posting: PostingArgs,
}

/// The arguments that both commands have.
#[derive(clap::Args)]
struct PostingArgs {
    /// The tenant
    #[arg(value_name = "TENANT")]
    tenant: String,

    /// The rule or budget that counts the usage
    #[arg(long, value_name = "ID")]
    rule: String,

    /// An attribute that the rule has in its `match` or `per`, such as action=search; may be given several
    /// times
    #[arg(long = "attr", value_name = "NAME=VALUE", value_parser = pair)]
    attributes: Vec<(String, String)>,

    /// The reason, for the ledger and the audit trail
    #[arg(long, value_name = "TEXT")]
    reason: String,

    /// Idempotency key: repeats are ignored, a different posting with the same key is rejected
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,

    #[command(flatten)]
    admin: AdminArgs,
}

pub(crate) fn correct(args: &CorrectArgs) -> CommandResult {
    post("/v1/ledger/corrections", args.amount, &args.posting)
}

pub(crate) fn grant(args: &GrantArgs) -> CommandResult {
    post("/v1/ledger/grants", args.amount, &args.posting)
}

fn post(path: &str, amount: i64, args: &PostingArgs) -> CommandResult {
    let mut attributes = Map::new();
    attributes.insert("tenant".to_owned(), json!(args.tenant));
    for (name, value) in &args.attributes {
        if attributes.insert(name.clone(), json!(value)).is_some() {
            return Err(format!(
                "error: the attribute `{name}` is given twice\nhelp: keep one; TENANT is the attribute `tenant`"
            ));
        }
    }
    let body = json!({
        "attributes": attributes, "rule": args.rule, "amount": amount, "reason": args.reason,
        "idempotencyKey": args.idempotency_key,
    });
    let balance = args.admin.call(path, &Call::Post(&body))?;
    println!("{}", describe(&args.tenant, &balance));
    Ok(true)
}

/// Writes the balance of the counter as a line.
fn describe(tenant: &str, it: &Value) -> String {
    let number = |name: &str| it[name].as_u64().unwrap_or(0);
    let text = |name: &str| printable(it[name].as_str().unwrap_or_default());
    let more = match number("extra") {
        0 => String::new(),
        extra => format!(" and {extra} more"),
    };
    let repeated = match it["repeated"] == true {
        true => "already recorded: ",
        false => "",
    };
    format!(
        "{repeated}{} of {}: {} used of {}{more}, until {}",
        text("rule"),
        printable(tenant),
        number("used"),
        number("limit"),
        text("periodEnd"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn balance_is_one_line() {
        let mut it = json!({
            "rule": "monthly", "used": 950, "extra": 0, "limit": 1000,
            "periodEnd": "2026-08-01T00:00:00.000Z", "repeated": false,
        });
        assert_eq!(
            describe("acme", &it),
            "monthly of acme: 950 used of 1000, until 2026-08-01T00:00:00.000Z"
        );
        it["extra"] = json!(500);
        it["repeated"] = json!(true);
        assert_eq!(
            describe("acme", &it),
            "already recorded: monthly of acme: 950 used of 1000 and 500 more, until 2026-08-01T00:00:00.000Z"
        );
    }
}
