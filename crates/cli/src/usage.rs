//! `tollgate usage`: what a tenant has used, from the ledger of a running server.

use serde_json::Value;

use crate::Answer;
use crate::admin::{AdminArgs, LATER, Question};
use crate::table::table;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The tenant
    #[arg(value_name = "TENANT")]
    tenant: String,

    /// Periods that start then: a year, month, week or day, such as 2026-07 or 2026-W29
    #[arg(long, value_name = "PERIOD", default_value = "current")]
    period: String,

    /// Only by this action
    #[arg(long, value_name = "NAME")]
    action: Option<String>,

    /// Only under this rule
    #[arg(long, value_name = "ID")]
    rule: Option<String>,

    /// Print the answer of the server as it is
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    admin: AdminArgs,
}

pub(crate) fn run(args: &Args) -> Answer {
    if args.tenant.is_empty() {
        return Err(
            "error: the tenant has no name\nhelp: `tollgate export` has all of them".into(),
        );
    }
    let mut query = vec![
        ("tenant", args.tenant.as_str()),
        ("period", args.period.as_str()),
    ];
    query.extend(args.action.as_deref().map(|action| ("action", action)));
    query.extend(args.rule.as_deref().map(|rule| ("rule", rule)));
    let question = Question::Find(&query);
    let answer = args
        .admin
        .ask_within(LATER, "/v1/ledger/usage", &question)?;
    if args.json {
        println!("{answer}");
        return Ok(true);
    }
    let usage = answer["usage"].as_array().map_or(&[][..], Vec::as_slice);
    if usage.is_empty() {
        println!("nothing");
        return Ok(true);
    }
    let columns = [
        ("action", false),
        ("rule", false),
        ("period", false),
        ("used", true),
        ("reserved", true),
        ("granted", true),
        ("limit", true),
        ("share", true),
    ];
    let rows: Vec<[String; 8]> = usage.iter().map(row).collect();
    print!("{}", table(columns, &rows));
    if answer["isCut"] == true {
        println!("There are more: see --action and --rule, or tollgate export.");
    }
    Ok(true)
}

fn row(it: &Value) -> [String; 8] {
    let text = |name: &str| match it[name].as_str().unwrap_or_default() {
        "" => "-".to_owned(),
        text => text.to_owned(),
    };
    let number = |name: &str| it[name].as_i64().unwrap_or(0);
    let limit = it["limit"].as_u64();
    let counters = it["counters"].as_u64().unwrap_or(1);
    let (limit, share) = match limit {
        None => ("-".to_owned(), "-".to_owned()),
        // Each subject of the rule has its own.
        Some(limit) if counters > 1 => (format!("{counters} x {limit}"), "-".to_owned()),
        Some(limit) => (limit.to_string(), share(number("used"), limit)),
    };
    [
        text("action"),
        text("rule"),
        text("period"),
        number("used").to_string(),
        number("reserved").to_string(),
        number("granted").to_string(),
        limit,
        share,
    ]
}

/// How much of the limit it is, in percent, rounded down.
fn share(used: i64, limit: u64) -> String {
    match limit {
        0 => "-".to_owned(),
        limit => format!("{}%", i128::from(used) * 100 / i128::from(limit)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_whole_percents() {
        assert_eq!(share(999, 1000), "99%");
        assert_eq!(share(1500, 1000), "150%");
        assert_eq!(share(-20, 1000), "-2%");
        assert_eq!(share(i64::MAX, 1), "922337203685477580700%");
        assert_eq!(share(1, 0), "-");
    }

    #[test]
    fn counters_of_several_subjects_have_a_limit_each() {
        let it = serde_json::json!({
            "action": "", "rule": "daily", "period": "2026-07-15", "used": 7, "reserved": 1,
            "granted": 0, "counters": 3, "limit": 5,
        });
        assert_eq!(
            row(&it),
            ["-", "daily", "2026-07-15", "7", "1", "0", "3 x 5", "-"]
        );
    }
}
