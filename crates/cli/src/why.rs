//! `tollgate why`: shows when and why a subject was denied, from the journals of running servers.

use serde_json::Value;
use tollgate::{Span, wait_in_words};

use crate::CommandResult;
use crate::admin::{AdminArgs, Call, list};
use crate::connect::Failure;
use crate::request::attribute;
use crate::terminal::printable;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    filter: FilterArgs,

    /// Show only denials since a time such as 2026-01-31T12:00:00Z, or since an age such as 1d
    #[arg(long, value_name = "TIME")]
    since: Option<String>,

    /// Show only denials until a time such as 2026-01-31T12:00:00Z, or until an age such as 1h
    #[arg(long, value_name = "TIME")]
    until: Option<String>,

    /// Show at most this many denials, the newest first
    #[arg(long, value_name = "N", default_value = "20")]
    limit: String,

    /// Print the denials as the server sends them, one JSON object on each line
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    admin: AdminArgs,

    /// Ask the admin door of this server too; repeat it for all instances of a fleet, since each has its own journal
    #[arg(long, value_name = "URL")]
    also: Vec<String>,
}

/// Which denials to show.
#[derive(clap::Args)]
pub(crate) struct FilterArgs {
    /// The subject by its attributes, such as api_key=k1, or tenant=acme user=ann. The server hashes them
    #[arg(value_name = "NAME=VALUE", value_parser = attribute)]
    subject: Vec<(String, String)>,

    /// The hash of the subject, as the log shows it. The first 8 digits are enough
    #[arg(long, value_name = "HASH")]
    hash: Option<String>,

    /// Show only denials of this rule
    #[arg(long, value_name = "RULE")]
    rule: Option<String>,

    /// Show only denials at this door: http, auth, grpc, resp or gateway
    #[arg(long, value_name = "DOOR")]
    door: Option<String>,

    /// Show only denials of this action
    #[arg(long, value_name = "ACTION")]
    action: Option<String>,
}

impl FilterArgs {
    /// Returns the parameters of a query.
    pub(crate) fn query(&self) -> Vec<(&'static str, String)> {
        let subject = self.subject.iter();
        let subject = subject.map(|(name, value)| ("subject", format!("{name}={value}")));
        let others = [
            ("hash", &self.hash),
            ("rule", &self.rule),
            ("door", &self.door),
            ("action", &self.action),
        ];
        let others = others.into_iter();
        let others = others.filter_map(|(name, text)| Some((name, text.clone()?)));
        subject.chain(others).collect()
    }
}

/// Asks a server for denials. Errors are ready to print.
pub(crate) fn ask(
    admin: &AdminArgs,
    query: &[(&'static str, String)],
    timeout: Option<std::time::Duration>,
) -> Result<Value, Failure> {
    let mut attributes = serde_json::Map::new();
    let mut rest = Vec::new();
    for (name, text) in query {
        match text.split_once('=').filter(|_| *name == "subject") {
            Some((attribute, value)) => {
                attributes.insert(attribute.to_owned(), value.into());
            }
            None => rest.push((*name, text.as_str())),
        }
    }
    let has_subject = !attributes.is_empty();
    let body = serde_json::json!({ "attributes": attributes });
    let call = match has_subject {
        true => Call::Search(&rest, &body),
        false => Call::Get(&rest),
    };
    match timeout {
        Some(timeout) => admin.call_within(timeout, "/v1/denials", &call),
        None => Ok(admin.call("/v1/denials", &call)?),
    }
}

pub(crate) fn run(args: &Args) -> CommandResult {
    let mut query = args.filter.query();
    if query.is_empty() {
        return Err(
            "error: name a subject, such as api_key=k1, or give --hash, --rule, --door or --action"
                .to_owned(),
        );
    }
    query.push(("limit", args.limit.clone()));
    query.extend(args.since.clone().map(|since| ("since", since)));
    query.extend(args.until.clone().map(|until| ("until", until)));
    let others = args.also.iter().map(|address| args.admin.at(address));
    let servers: Vec<AdminArgs> = [args.admin.clone()].into_iter().chain(others).collect();
    let (mut denials, mut errors, mut is_cut) = (Vec::new(), Vec::new(), false);
    for server in &servers {
        match ask(server, &query, None) {
            Ok(answer) => {
                is_cut |= answer["isCut"].as_bool().unwrap_or(false);
                let found = list(&answer, "denials").iter();
                denials.extend(found.map(|denial| (server.address(), denial.clone())));
            }
            Err(failure) => errors.push(failure.text),
        }
    }
    if errors.len() == servers.len() {
        return Err(errors.join("\n"));
    }
    // One instance that is down does not hide what the others know.
    for error in &errors {
        eprintln!("{}", error.trim_end());
    }
    // Times are in UTC and of one format, so their texts sort as the times do.
    denials.sort_by(|(_, a), (_, b)| b["at"].as_str().cmp(&a["at"].as_str()));
    for (server, denial) in &denials {
        if args.json {
            println!("{denial}");
        } else {
            let server = (servers.len() > 1).then_some(*server);
            print!("{}", describe(denial, server));
        }
    }
    if denials.is_empty() && !errors.is_empty() {
        return Err(format!(
            "error: no denial found, but {} of {} servers did not answer and may have some",
            errors.len(),
            servers.len()
        ));
    }
    if denials.is_empty() {
        eprintln!("no denial found");
    } else if is_cut && !args.json {
        println!("More denials exist: use --limit and --until.");
    }
    Ok(!denials.is_empty())
}

/// Describes a denial in words, over several lines.
fn describe(denial: &Value, server: Option<&str>) -> String {
    let text = |name: &str| denial[name].as_str();
    let number = |name: &str| denial[name].as_u64();
    let mut lines = Vec::new();
    let (at, rule) = (
        text("at").unwrap_or_default(),
        text("ruleId").unwrap_or_default(),
    );
    let reason = text("reason").unwrap_or_default();
    lines.push(format!("{at}  denied by {rule}: {}", in_words(reason)));
    let mut numbers = Vec::new();
    numbers.extend(number("limit").map(|limit| format!("limit {limit}")));
    numbers.extend(number("remaining").map(|left| format!("{left} left")));
    numbers.push(match number("retryAfterMillis") {
        Some(millis) => format!("retry after {}", wait_in_words(Span::from_millis(millis))),
        None => "waiting does not help".to_owned(),
    });
    lines.push(numbers.join(", "));
    lines.extend(text("numbersFrom").map(|from| format!("numbers: {from}")));
    lines.extend(text("override").map(|name| match reason {
        "blocked" => name.to_owned(),
        _ => format!("override: {name}"),
    }));
    lines.extend(text("blockReason").map(|why| match text("blockExpiresAt") {
        Some(end) => format!("reason: {why}, until {end}"),
        None => format!("reason: {why}, until unblocked"),
    }));
    lines.extend(text("policy").map(|policy| format!("decided by the failure policy {policy}")));
    let mut facts = Vec::new();
    facts.extend(text("algorithm").map(str::to_owned));
    facts.extend(text("door").map(|door| format!("door {door}")));
    facts.extend(text("action").map(|action| format!("action {action}")));
    facts.extend(text("tenantId").map(|tenant| format!("tenant {tenant}")));
    if let (Some(kind), Some(hash)) = (text("subjectType"), text("subjectHash")) {
        facts.push(format!("subject {kind} {hash}"));
    }
    facts.extend(text("traceId").map(|trace| format!("trace {trace}")));
    facts.extend(text("configVersion").map(|version| format!("config {version}")));
    facts.extend(server.map(|server| format!("server {server}")));
    lines.push(facts.join(", "));
    lines.extend(number("suppressed").map(|more| match more {
        1 => "1 denial of this rule just before it was not recorded".to_owned(),
        more => format!("{more} denials of this rule just before it were not recorded"),
    }));
    let lines: Vec<String> = lines.iter().map(|line| printable(line)).collect();
    lines.join("\n    ") + "\n"
}

/// Describes a reason in words. A reason that this version does not know stays as it is.
fn in_words(reason: &str) -> &str {
    match reason {
        "exceeded" => "the allowance was used up",
        "backed_off" => "earlier denials have led to a block",
        "blocked" => "an operator has blocked the subject",
        "queue_full" => "the queue was full",
        "never_fits" => "the cost is above the limit",
        "missing_attribute" => "the request lacked an attribute that the rule needs",
        "bad_expression" => "an expression of the rule failed",
        "store_failed" => "the store did not answer, and the failure policy denies",
        "store_unavailable" => "the store did not answer, and the rule has no failure policy",
        "too_many_holds" => "the subject has too many open reservations and leases",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn denial_is_described_with_its_numbers_and_their_source() {
        let denial = json!({
            "at": "2026-11-18T14:03:12.123Z", "ruleId": "login", "reason": "exceeded", "limit": 5,
            "remaining": 0, "retryAfterMillis": 12_000, "numbersFrom": "limit 5 (plan free)",
            "algorithm": "gcra", "door": "http", "action": "log\u{1b}in", "subjectType": "api_key",
            "subjectHash": "0af7", "configVersion": "v1", "suppressed": 3,
        });
        assert_eq!(
            describe(&denial, None),
            "2026-11-18T14:03:12.123Z  denied by login: the allowance was used up\n    \
             limit 5, 0 left, retry after 12 s\n    \
             numbers: limit 5 (plan free)\n    \
             gcra, door http, action log in, subject api_key 0af7, config v1\n    \
             3 denials of this rule just before it were not recorded\n"
        );
    }
}
