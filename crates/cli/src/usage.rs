//! `tollgate usage`: prints the usage of a tenant from the ledger of a running server.

use serde_json::Value;

use crate::CommandResult;
use crate::admin::{AdminArgs, Call, LONG, list};
use crate::terminal::{cell, table};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The tenant
    #[arg(value_name = "TENANT")]
    tenant: String,

    /// The year, month, week or day in which periods start, such as 2026-07 or 2026-W29; or current
    #[arg(long, value_name = "PERIOD", default_value = "current")]
    period: String,

    /// Print only the usage of this action
    #[arg(long, value_name = "NAME")]
    action: Option<String>,

    /// Print only the usage under this rule
    #[arg(long, value_name = "ID")]
    rule: Option<String>,

    /// Print the server's answer as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    admin: AdminArgs,
}

pub(crate) fn run(args: &Args) -> CommandResult {
    if args.tenant.is_empty() {
        return Err("error: TENANT is empty\nhelp: `tollgate export` prints all tenants".into());
    }
    let mut query = vec![("tenant", &*args.tenant), ("period", &*args.period)];
    query.extend(args.action.as_deref().map(|action| ("action", action)));
    query.extend(args.rule.as_deref().map(|rule| ("rule", rule)));
    let call = Call::Get(&query);
    let answer = args.admin.call_within(LONG, "/v1/ledger/usage", &call)?;
    if args.json {
        println!("{answer}");
        return Ok(true);
    }
    let usage = list(&answer, "usage");
    if usage.is_empty() {
        println!("no usage");
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
        println!("More rows exist: use --action and --rule, or `tollgate export`.");
    }
    Ok(true)
}

fn row(it: &Value) -> [String; 8] {
    let number = |name: &str| it[name].as_i64().unwrap_or(0);
    let counters = it["counters"].as_u64().unwrap_or(1);
    let (limit, share) = match it["limit"].as_u64() {
        None => ("-".to_owned(), "-".to_owned()),
        // Each subject of the rule has its own limit. A share of one limit would mean nothing here.
        Some(limit) if counters > 1 => (format!("{counters} x {limit}"), "-".to_owned()),
        Some(limit) => {
            // Only the current period has a share. The limit and the extra units of earlier periods
            // are not known.
            let extra = it["extra"].as_u64();
            let share = extra.map(|extra| share(number("used"), limit.saturating_add(extra)));
            (limit.to_string(), share.unwrap_or_else(|| "-".to_owned()))
        }
    };
    [
        cell(&it["action"]),
        cell(&it["rule"]),
        cell(&it["period"]),
        number("used").to_string(),
        number("reserved").to_string(),
        number("granted").to_string(),
        limit,
        share,
    ]
}

/// Returns the share of an allowance in percent, rounded down.
fn share(used: i64, allowance: u64) -> String {
    match allowance {
        0 => "-".to_owned(),
        allowance => format!("{}%", i128::from(used) * 100 / i128::from(allowance)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_is_in_whole_percent() {
        assert_eq!(share(999, 1000), "99%");
        assert_eq!(share(1500, 1000), "150%");
        assert_eq!(share(-20, 1000), "-2%");
        assert_eq!(share(i64::MAX, 1), "922337203685477580700%");
        assert_eq!(share(1, 0), "-");
    }

    #[test]
    fn share_is_of_the_limit_and_the_units_beyond_it() {
        let mut it = serde_json::json!({
            "action": "", "rule": "monthly", "period": "2026-07", "used": 170, "reserved": 0,
            "granted": 0, "counters": 1, "limit": 100, "extra": 70,
        });
        assert_eq!(row(&it)[6..], ["100", "100%"]);
        // The extra units of an earlier period are not known.
        it["extra"] = Value::Null;
        assert_eq!(row(&it)[6..], ["100", "-"]);
    }

    #[test]
    fn limit_of_several_subjects_is_shown_per_subject() {
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
