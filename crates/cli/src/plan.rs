//! `tollgate plan`: from the capacity of a service to limits, tiers, connections, memory and instances.

use tollgate_rules::document::{percent, rate};
use tollgate_rules::is_id;
use tollgate_simulate::plan::{Plan, PlanInput, plan};

use crate::terminal::table;
use crate::{CommandResult, config};

/// Sizes a deployment, and prints a config to start from. The config is checked by simulation.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// What the protected service can bear, such as 2000/s
    #[arg(long, value_name = "RATE", value_parser = per_second)]
    capacity: f64,

    /// The share of the capacity that clients may use; 70% to 80% is usual
    #[arg(long, value_name = "PERCENT", default_value = "75%", value_parser = share)]
    share: f64,

    /// A tier and its number of tenants, the smallest tier first. Each tier gets four times the rate of the one
    /// before
    #[arg(long = "tier", value_name = "NAME=TENANTS", value_parser = tier, default_values = ["free=900", "pro=90", "enterprise=10"])]
    tiers: Vec<(String, u64)>,

    /// The share of tenants that are busy at the same time
    #[arg(long, value_name = "PERCENT", default_value = "10%", value_parser = share)]
    busy: f64,

    /// The burst of a tenant, in seconds of its rate: 1 to 5
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=5))]
    burst: u8,

    /// The distinct users in an hour, all tenants together
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    users: u64,

    /// The p99 of a call to Redis, in milliseconds
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 2.0, value_parser = positive)]
    p99: f64,

    /// The cores of an instance
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=1024))]
    cores: u64,

    /// Print the plan as JSON
    #[arg(long)]
    json: bool,
}

fn per_second(text: &str) -> Result<f64, String> {
    let rate = rate(text).map_err(|bad| format!("{}: {}", bad.message, bad.help))?;
    let per_second = rate.amount() as f64 * 1e6 / rate.period().as_micros() as f64;
    match (1.0..=1e7).contains(&per_second) {
        true => Ok(per_second),
        false => Err("write a rate from 1/s to 10000000/s".to_owned()),
    }
}

fn share(text: &str) -> Result<f64, String> {
    let hundredths = percent(text, 100).map_err(|bad| format!("{}: {}", bad.message, bad.help))?;
    match hundredths {
        0 => Err("write a percentage above 0%".to_owned()),
        hundredths => Ok(f64::from(hundredths) / 100.0),
    }
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number > 0.0 && number <= 10_000.0 => Ok(number),
        _ => Err("write a number of milliseconds such as 2 or 0.5".to_owned()),
    }
}

fn tier(text: &str) -> Result<(String, u64), String> {
    let parsed = text.split_once('=').and_then(|(name, tenants)| {
        let tenants = tenants
            .parse()
            .ok()
            .filter(|it| (1..=10_000_000).contains(it))?;
        is_id(name).then(|| (name.to_owned(), tenants))
    });
    parsed.ok_or_else(|| "write a name and a number of tenants, such as free=900".to_owned())
}

pub(crate) fn run(args: &Args) -> CommandResult {
    let mut names: Vec<&str> = args.tiers.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(format!("error: the tier {} is given twice", twice[0]));
    }
    if args.tiers.len() > 8 {
        return Err("error: at most 8 tiers".to_owned());
    }
    let made = plan(&PlanInput {
        capacity: args.capacity,
        share: args.share,
        tiers: args.tiers.clone(),
        busy: args.busy,
        burst: f64::from(args.burst),
        users: args.users,
        p99_millis: args.p99,
        cores: args.cores,
    });
    let made = made.map_err(|error| config::render(&error))?;
    match args.json {
        true => println!(
            "{}",
            serde_json::to_string_pretty(&made).map_err(crate::failed)?
        ),
        false => print!("{}", text(&made, args)),
    }
    Ok(true)
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

fn text(plan: &Plan, args: &Args) -> String {
    let rows = plan.tiers.iter().map(|tier| {
        [
            tier.name.clone(),
            tier.tenants.to_string(),
            format!("{}/m", tier.rate_per_minute),
            tier.burst.to_string(),
        ]
    });
    let rows: Vec<[String; 4]> = rows.collect();
    let tiers = table(
        [
            ("tier", false),
            ("tenants", true),
            ("rate of a tenant", true),
            ("burst", true),
        ],
        &rows,
    );
    let (pool, redis, check) = (plan.pool, plan.redis, plan.check);
    let lines = [
        (
            "global limit",
            format!("{}/s: {}% of the capacity", plan.global_rate, args.share),
        ),
        (
            "connections",
            format!(
                "{} to {} to Redis, all instances together, without batching: ceil(rate x p99 x 1.25) = {}, then 2 to 3 times",
                pool.from, pool.to, pool.steady
            ),
        ),
        (
            "Redis memory",
            format!(
                "{} of states; maxmemory {}",
                mebibytes(redis.state_bytes),
                mebibytes(redis.maxmemory_bytes)
            ),
        ),
        ("Redis CPU", format!("{}% of a core", redis.cpu_percent)),
        (
            "instances",
            format!(
                "{} of {} cores: checks need {} cores",
                plan.instances.count, args.cores, plan.instances.cores
            ),
        ),
        (
            "at 80% load",
            format!(
                "{} of {} requests denied, by simulation",
                check.usual_denied, check.usual_requests
            ),
        ),
        (
            "at 300% load",
            format!(
                "at most {} requests allowed in a second{}",
                check.surge_allowed_per_second,
                match check.scale < 1.0 {
                    true => format!(", simulated at {} of the size", check.scale),
                    false => String::new(),
                }
            ),
        ),
    ];
    let lines = lines
        .map(|(name, value)| format!("{name:<13} {value}\n"))
        .concat();
    format!("{lines}\n{tiers}\n{}", plan.config)
}
