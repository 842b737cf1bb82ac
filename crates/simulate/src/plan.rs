//! Sizes a deployment: from the capacity of a service to limits, tiers, bursts, connections, memory and
//! instances, and a config to start from, which is checked by simulation.

use std::fmt::Write as _;

use serde::Serialize;
use tollgate::{ConfigError, Time};
use tollgate_config::parse;

use crate::number::floor;
use crate::traffic::{Stream, Traffic};
use crate::{Simulation, redis_bytes};

/// CPU of an instance for a check by HTTP with Redis, and of Redis for a check under two GCRA rules and a token
/// bucket, in microseconds: docs/performance.md.
const SERVER_MICROS: f64 = 22.5;
const REDIS_MICROS: f64 = 3.0 * 5.32;
/// The share of its cores that an instance should use at most.
const BUSY: f64 = 0.6;
/// How long the check runs, in seconds of virtual time.
const CHECKED_SECONDS: u64 = 60;
/// The most requests of the check.
const CHECKED_REQUESTS: f64 = 100_000.0;

/// What is known about a deployment.
#[derive(Clone, Debug)]
pub struct PlanInput {
    /// The requests per second that the protected service can bear.
    pub capacity: f64,
    /// The share of it that clients may use, in percent.
    pub share: f64,
    /// The tiers: names, and numbers of tenants. Each tier gets four times the rate of the one before.
    pub tiers: Vec<(String, u64)>,
    /// The share of tenants that are busy at the same time, in percent.
    pub busy: f64,
    /// The burst of a tenant, in seconds of its rate: 1 to 5.
    pub burst: f64,
    /// The distinct users in an hour, all tenants together.
    pub users: u64,
    /// The p99 of a call to Redis, in milliseconds.
    pub p99_millis: f64,
    /// The cores of an instance.
    pub cores: u64,
}

/// The sizes of a deployment.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Plan {
    /// The limit for all clients together, per second.
    pub global_rate: u64,
    /// The limits of each tier.
    pub tiers: Vec<TierPlan>,
    /// The connections that a pool without batching needs, and two and three times as many, for bursts.
    pub pool: PoolPlan,
    /// The memory of Redis.
    pub redis: RedisPlan,
    /// The instances of the server.
    pub instances: InstancePlan,
    /// A config to start from.
    pub config: String,
    /// What a simulation of the config shows.
    pub check: PlanCheck,
}

/// The limits of a tier.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TierPlan {
    /// The name.
    pub name: String,
    /// The number of tenants.
    pub tenants: u64,
    /// The requests of one tenant in a minute.
    pub rate_per_minute: u64,
    /// The burst of one tenant.
    pub burst: u64,
}

/// The connections to Redis.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolPlan {
    /// ceil(requests per second x p99 in seconds x 1.25)
    pub steady: u64,
    /// Twice as many.
    pub from: u64,
    /// Three times as many.
    pub to: u64,
}

/// The memory and the CPU of Redis.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RedisPlan {
    /// The bytes of all states.
    pub state_bytes: u64,
    /// Twice as many, for snapshots, buffers and growth.
    pub maxmemory_bytes: u64,
    /// The share of one core, in percent.
    pub cpu_percent: f64,
}

/// The instances of the server.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct InstancePlan {
    /// How many; two at least, so that one can fail.
    pub count: u64,
    /// The cores that checks need, all instances together.
    pub cores: f64,
}

/// What a simulation of the config shows.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanCheck {
    /// At 80% of the expected load: requests, and how many were denied.
    pub usual_requests: u64,
    /// Of these, denied.
    pub usual_denied: u64,
    /// At three times the expected load: requests.
    pub surge_requests: u64,
    /// The most that were allowed in a second. The service must bear it.
    pub surge_allowed_per_second: u64,
    /// The load of the check against the expected load. It is below 1 for large deployments, whose limits are then
    /// scaled in the same way.
    pub scale: f64,
}

/// Rounds down to two leading digits, so that limits are easy to remember; at least 1.
fn rounded(number: f64) -> u64 {
    let whole = floor(number).max(1);
    let power = 10_u64.pow(whole.ilog10().saturating_sub(1));
    whole / power * power
}

/// Makes a plan.
///
/// # Errors
/// If the numbers do not make a valid config.
pub fn plan(input: &PlanInput) -> Result<Plan, ConfigError> {
    let global = input.capacity * input.share / 100.0;
    let global_rate = rounded(global);
    let tiers = tiers(input, global);
    let cores = global * SERVER_MICROS / 1e6;
    let count = floor((cores / (input.cores as f64 * BUSY)).ceil()).max(2);
    let config = config(global_rate, &tiers, &store(count));
    let parsed = parse(
        "plan",
        &config.replace("${TOLLGATE_SECRET}", "a secret of a plan"),
        &|_| None,
    )?;
    let tenants: u64 = tiers.iter().map(|tier| tier.tenants).sum();
    let bytes = parsed.policy.rules.iter().map(|rule| {
        let subjects = match rule.per() {
            [] => 1,
            [one] if one == "tenant" => tenants,
            _ => input.users,
        };
        redis_bytes(rule, 1).saturating_mul(subjects)
    });
    let state_bytes = bytes.fold(0, u64::saturating_add);
    let steady = floor((global * input.p99_millis / 1000.0 * 1.25).ceil()).max(1);
    Ok(Plan {
        global_rate,
        pool: PoolPlan {
            steady,
            from: steady * 2,
            to: steady * 3,
        },
        redis: RedisPlan {
            state_bytes,
            maxmemory_bytes: state_bytes.saturating_mul(2).max(64 << 20),
            cpu_percent: (global * REDIS_MICROS / 1e4 * 10.0).round() / 10.0,
        },
        instances: InstancePlan {
            count,
            cores: (cores * 100.0).ceil() / 100.0,
        },
        check: check(input, global)?,
        tiers,
        config,
    })
}

/// Divides the global rate: each tier has four times the weight of the one before.
fn tiers(input: &PlanInput, global: f64) -> Vec<TierPlan> {
    let weight = |place: i32| 4_f64.powi(place);
    let busy = input.busy / 100.0;
    let weights = (0..).zip(&input.tiers);
    let all: f64 = weights
        .clone()
        .map(|(place, (_, tenants))| weight(place) * (*tenants as f64 * busy).max(1.0))
        .sum();
    let tiers = weights.map(|(place, (name, tenants))| {
        let rate = (global / all * weight(place)).min(global);
        TierPlan {
            name: name.clone(),
            tenants: *tenants,
            rate_per_minute: rounded(rate * 60.0),
            burst: rounded((rate * input.burst).max(1.0)),
        }
    });
    tiers.collect()
}

/// Writes the store that so many instances share. While Redis is down, each instance allows its part of the limits.
fn store(instances: u64) -> String {
    format!("store: {{ redis: {{ url: \"redis://127.0.0.1:6379\", replicas: {instances} }} }}\n")
}

fn config(global_rate: u64, tiers: &[TierPlan], store: &str) -> String {
    let mut text =
        format!("version: 1\nsubjects: {{ hash_secret: \"${{TOLLGATE_SECRET}}\" }}\n{store}");
    if let Some(first) = tiers.first() {
        let _ = writeln!(text, "default_plan: {}\nplans:", first.name);
    }
    for tier in tiers {
        let (name, rate, burst) = (&tier.name, tier.rate_per_minute, tier.burst);
        // One user of a tenant gets at most half of what the tenant has.
        let (user, user_burst) = ((rate / 2).max(1), (burst / 2).max(1));
        let _ = writeln!(
            text,
            "  {name}: {{ tenant: {{ rate: {rate}/m, burst: {burst} }}, user: {{ rate: {user}/m, burst: {user_burst} }} }}"
        );
    }
    // With 75% of the capacity and a quarter of a second at once, no second exceeds the capacity.
    let global_burst = rounded(global_rate as f64 / 4.0);
    let (rate, burst) = tiers
        .first()
        .map_or((60, 1), |tier| (tier.rate_per_minute, tier.burst));
    let (user, user_burst) = ((rate / 2).max(1), (burst / 2).max(1));
    let _ = write!(
        text,
        "rules:\n  \
         - {{ id: user, per: [tenant, user], algorithm: gcra, rate: {user}/m, burst: {user_burst}, on_store_failure: local-fallback }}\n  \
         - {{ id: tenant, per: [tenant], algorithm: gcra, rate: {rate}/m, burst: {burst}, on_store_failure: local-fallback }}\n  \
         - {{ id: global, algorithm: token-bucket, capacity: {global_burst}, refill: {global_rate}/s, on_store_failure: local-fallback }}\n"
    );
    text
}

/// Sends the expected load, and three times as much, through the config.
fn check(input: &PlanInput, global: f64) -> Result<PlanCheck, ConfigError> {
    let scale = (CHECKED_REQUESTS / (global * 4.0 * CHECKED_SECONDS as f64)).min(1.0);
    let input = PlanInput {
        capacity: input.capacity * scale,
        tiers: input
            .tiers
            .iter()
            .map(|(name, tenants)| (name.clone(), floor(*tenants as f64 * scale).max(1)))
            .collect(),
        ..input.clone()
    };
    let global = input.capacity * input.share / 100.0;
    let tiers = tiers(&input, global);
    let mut text = config(rounded(global), &tiers, "");
    text = text.replace("${TOLLGATE_SECRET}", "a secret of a plan");
    text += "tenants:\n";
    let mut busy = Vec::new();
    for tier in &tiers {
        let count = floor(tier.tenants as f64 * input.busy / 100.0).max(1);
        for number in 1..=count {
            let _ = writeln!(text, "  {}{number}: {{ plan: {} }}", tier.name, tier.name);
        }
        busy.push(count);
    }
    let config = parse("plan", &text, &|_| None)?;
    let run = |load: f64| {
        let streams = tiers.iter().zip(&busy).filter_map(|(tier, count)| {
            let rate = rounded(tier.rate_per_minute as f64 * *count as f64 * load);
            let text = format!(
                "poisson rate={rate}/m subjects={count} per=tenant name={} duration={CHECKED_SECONDS}s",
                tier.name
            );
            text.parse::<Stream>().ok()
        });
        let start = Time::from_micros(1_767_225_600_000_000);
        let mut simulation = Simulation::new(&config, None, false);
        Traffic::new(streams.collect(), start, 1).run(&mut |time, attributes, units| {
            simulation.decide(time, attributes, units);
        });
        simulation.finish()
    };
    let (usual, surge) = (run(0.8), run(3.0));
    // The first seconds have the bursts of all tenants. The service has to bear them too.
    let most = surge.new.series.iter().map(|bucket| bucket.allowed).max();
    Ok(PlanCheck {
        usual_requests: usual.requests,
        usual_denied: usual.new.denied,
        surge_requests: surge.requests,
        surge_allowed_per_second: most.unwrap_or(0),
        scale: (scale * 1000.0).round() / 1000.0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(capacity: f64) -> PlanInput {
        PlanInput {
            capacity,
            share: 75.0,
            tiers: vec![("free".to_owned(), 900), ("pro".to_owned(), 100)],
            busy: 10.0,
            burst: 2.0,
            users: 100_000,
            p99_millis: 2.0,
            cores: 2,
        }
    }

    #[test]
    fn plan_follows_the_formulas() {
        let plan = plan(&input(2_000.0)).unwrap();
        assert_eq!(plan.global_rate, 1_500);
        // 90 busy tenants of weight 1 and 10 of weight 4 share 1,500 a second.
        let rates: Vec<u64> = plan.tiers.iter().map(|tier| tier.rate_per_minute).collect();
        assert_eq!(rates, [690, 2_700]);
        // ceil(1,500 x 0.002 x 1.25), then two to three times.
        assert_eq!([plan.pool.steady, plan.pool.from, plan.pool.to], [4, 8, 12]);
        // 100,000 users, 1,000 tenants and one state for all, of 181 bytes each.
        assert_eq!(plan.redis.state_bytes, 101_001 * 181);
        assert_eq!(plan.instances.count, 2);
        // Rules with a local fallback need to know among how many instances a limit is divided.
        assert!(plan.config.contains("replicas: 2"), "{}", plan.config);
    }

    #[test]
    fn service_bears_what_the_limits_admit() {
        let plan = plan(&input(2_000.0)).unwrap();
        let check = plan.check;
        assert!(check.usual_denied * 50 < check.usual_requests, "{check:?}");
        assert!(check.surge_requests > 2 * check.usual_requests, "{check:?}");
        let most = 2_000.0 * check.scale;
        assert!(check.surge_allowed_per_second as f64 <= most, "{check:?}");
    }

    #[test]
    fn numbers_are_rounded_down_to_two_digits() {
        assert_eq!(
            [0.0, 7.9, 42.0, 1_234.0, 99_999.0].map(rounded),
            [1, 7, 42, 1_200, 99_000]
        );
    }
}
