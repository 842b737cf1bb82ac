//! `tollgate explain`: shows which rules apply to a request and what they would decide, and why the
//! others do not apply.

use serde_json::{Map, Value, json};
use tollgate::{Attributes, Charge, Config, RuleSet, StoreId};
use tollgate_config::{RequestLimits, Store};

use crate::CommandResult;
use crate::admin::{AdminArgs, Call, list};
use crate::config::{self, TrialArgs};
use crate::request::RequestArgs;
use crate::terminal::printable;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    request: RequestArgs,

    #[command(flatten)]
    config: TrialArgs,

    /// Show the key of each rule in its store on Redis. Needs `subjects.hash_secret`
    #[arg(long, conflicts_with = "running")]
    keys: bool,

    /// Ask a running server: its rules, overrides, blocks and usage
    #[arg(long, conflicts_with_all = ["live", "store"])]
    running: bool,

    #[command(flatten)]
    admin: AdminArgs,
}

/// Prints in which stores the rules of a request are, if there are several. Prints the keys, if `keys` asks
/// for them.
fn print_stores(keys: bool, config: &Config, rules: &RuleSet, attributes: &Attributes<'_>) {
    let limits = RequestLimits::default();
    let charges = rules.resolve(attributes, &limits).charges;
    let mut stores: Vec<(&str, Vec<&str>)> = Vec::new();
    for charge in &charges {
        let (name, prefix) = store_of(charge, config);
        match stores.iter_mut().find(|(it, _)| *it == name) {
            Some((_, rules)) if !rules.contains(&charge.rule) => rules.push(charge.rule),
            Some(_) => {}
            None => stores.push((name, vec![charge.rule])),
        }
        if let (true, Some(prefix)) = (keys, prefix)
            && let Some(key) = tollgate::state_key(prefix, charge)
        {
            println!("{}: key {key} in the store {name}", charge.rule);
        }
    }
    if stores.len() > 1 {
        for (store, rules) in &stores {
            println!("store {store} decides in one step: {}", rules.join(", "));
        }
        println!(
            "together they are compensated: if a store denies, the others give back what they took"
        );
    }
}

/// Returns the name of the store of a charge, and the prefix of its keys if it is on Redis.
fn store_of<'c>(charge: &Charge<'_>, config: &'c Config) -> (&'c str, Option<&'c str>) {
    for (name, redis) in config.redis_stores() {
        let id = name.map_or(StoreId::DEFAULT, |name| StoreId::named(name));
        if id == charge.store {
            return (name.map_or("default", |name| name), Some(&redis.key_prefix));
        }
    }
    match charge.store {
        StoreId::LOCAL => ("local", None),
        _ => ("default", None),
    }
}

/// Asks a running server.
fn ask(args: &Args) -> CommandResult {
    let attributes: Map<String, Value> = args
        .request
        .pairs()
        .map(|(name, value)| (name.to_owned(), json!(value)))
        .collect();
    let body = json!({
        "attributes": attributes, "cost": args.request.cost, "upTo": args.request.up_to,
    });
    let answer = args.admin.call("/v1/explain", &Call::Post(&body))?;
    let version = answer["configVersion"].as_str().unwrap_or("?");
    println!("rules version {}", printable(version));
    if let Some(block) = answer["block"].as_str() {
        println!("{}", printable(block));
    }
    for rule in list(&answer, "rules").iter().filter_map(Value::as_str) {
        println!("{}", printable(rule));
    }
    let is_allowed = answer["decision"]["allowed"] == true;
    let word = if is_allowed { "allowed" } else { "denied" };
    println!("with the current usage, the request would be {word}");
    Ok(is_allowed)
}

pub(crate) async fn run(args: &Args) -> CommandResult {
    if args.running {
        return ask(args);
    }
    let (config, stores) = args.config.load_with_stores()?;
    let limiter = config::start(&config).await?;
    let attributes = args.request.attributes();
    let decision = limiter.peek(&attributes, args.request.ask()).await;
    println!("rules version {}", decision.config_version());
    for explanation in decision.rule_set().explain(&attributes) {
        println!("{explanation}");
        if let Some(rule) = decision.applied(&explanation) {
            println!("    {}", rule.limit);
            // Without a secret, each process hashes subjects differently, so the server's log has
            // another hash.
            if config.subjects.hash_secret.is_some() {
                println!("    subject {} in the log", rule.subject);
            }
            println!("    now: {}", rule.now);
        }
    }
    let rules = stores.compile(decision.rule_set().keyring().clone(), &[]);
    print_stores(args.keys, &stores, &rules, &attributes);
    let word = match decision.is_allowed() {
        true => "allowed",
        false => "denied",
    };
    let used = match (&config.store, &config.ledger) {
        (Store::Memory, None) => "with no usage so far",
        _ => "with the current usage",
    };
    println!("{used}, the request would be {word}");
    limiter.close().await;
    Ok(decision.is_allowed())
}
