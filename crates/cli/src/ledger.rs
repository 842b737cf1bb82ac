//! `tollgate correct` and `tollgate grant`: what is written into the ledger by hand.

use serde_json::{Map, Value, json};

use crate::Answer;
use crate::admin::{AdminArgs, Question};
use crate::shown::shown;

#[derive(clap::Args)]
pub(crate) struct CorrectArgs {
    /// How much more the tenant has used; less if it is negative
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    amount: i64,

    #[command(flatten)]
    posting: PostingArgs,
}

#[derive(clap::Args)]
pub(crate) struct GrantArgs {
    /// How much more there is to use
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..))]
    amount: i64,

    #[command(flatten)]
    posting: PostingArgs,
}

/// What is said of either.
#[derive(clap::Args)]
struct PostingArgs {
    /// The tenant
    #[arg(value_name = "TENANT")]
    tenant: String,

    /// The rule or budget whose counter it is
    #[arg(long, value_name = "ID")]
    rule: String,

    /// Another attribute of the requests that are counted there, such as action=search: what the rule
    /// matches and its `per`; may be given several times
    #[arg(long = "attr", value_name = "NAME=VALUE", value_parser = attribute)]
    attributes: Vec<(String, String)>,

    /// Why, for the ledger and the audit trail
    #[arg(long, value_name = "TEXT")]
    reason: String,

    /// What is posted twice under one key is posted once; something else under it is refused
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,

    #[command(flatten)]
    admin: AdminArgs,
}

fn attribute(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => Err("write NAME=VALUE, such as action=search".to_owned()),
    }
}

pub(crate) fn correct(args: &CorrectArgs) -> Answer {
    post("/v1/ledger/corrections", args.amount, &args.posting)
}

pub(crate) fn grant(args: &GrantArgs) -> Answer {
    post("/v1/ledger/grants", args.amount, &args.posting)
}

fn post(path: &str, amount: i64, args: &PostingArgs) -> Answer {
    let mut attributes = Map::new();
    attributes.insert("tenant".to_owned(), json!(args.tenant));
    for (name, value) in &args.attributes {
        if attributes.insert(name.clone(), json!(value)).is_some() {
            return Err(format!(
                "error: the attribute `{name}` is given twice\nhelp: keep one; TENANT is the attribute `tenant`"
            ));
        }
    }
    let mut body = json!({
        "attributes": attributes, "rule": args.rule, "amount": amount, "reason": args.reason,
    });
    if let Some(key) = &args.idempotency_key {
        body["idempotencyKey"] = json!(key);
    }
    let standing = args.admin.ask(path, &Question::Post(&body))?;
    println!("{}", described(&args.tenant, &standing));
    Ok(true)
}

/// How the counter stands, on a line.
fn described(tenant: &str, it: &Value) -> String {
    let number = |name: &str| it[name].as_u64().unwrap_or(0);
    let text = |name: &str| shown(it[name].as_str().unwrap_or_default());
    let more = match number("extra") {
        0 => String::new(),
        extra => format!(" and {extra} more"),
    };
    let before = match it["repeated"] == true {
        true => "done before: ",
        false => "",
    };
    format!(
        "{before}{} of {}: {} used of {}{more}, until {}",
        text("rule"),
        shown(tenant),
        number("used"),
        number("limit"),
        text("periodEnd"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_standing_is_a_line() {
        let mut it = json!({
            "rule": "monthly", "used": 950, "extra": 0, "limit": 1000,
            "periodEnd": "2026-08-01T00:00:00.000Z", "repeated": false,
        });
        assert_eq!(
            described("acme", &it),
            "monthly of acme: 950 used of 1000, until 2026-08-01T00:00:00.000Z"
        );
        it["extra"] = json!(500);
        it["repeated"] = json!(true);
        assert_eq!(
            described("acme", &it),
            "done before: monthly of acme: 950 used of 1000 and 500 more, until 2026-08-01T00:00:00.000Z"
        );
    }
}
