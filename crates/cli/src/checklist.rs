//! What a config says that an operator should have thought about before it meets traffic.

use tollgate::{Algorithm, Config, FailurePolicy, Finding, Limit, Rule, Span};
use tollgate_config::{Mode, Placement, Redis, RuleState, Store};

use crate::config::{ConfigArgs, STARTER_SECRET};
use crate::serve::describe_store;

/// A decision that waits longer for a store is felt by whoever asked.
const LONG: Span = Span::from_millis(200);

/// Looks at a config.
pub(crate) fn look(config: &Config, args: &ConfigArgs) -> Vec<Finding> {
    let mut findings = vec![source(config, args)];
    findings.extend(unenforced(&config.policy.rules));
    findings.push(secret(config));
    findings.extend(ledger(config));
    let Store::Redis(redis) = &config.store else {
        let found = "memory: counts are of one process, and end with it";
        findings.push(Finding::ok("store", found));
        return findings;
    };
    let found = describe_store(&config.store).unwrap_or_default();
    findings.push(Finding::ok("store", found));
    let counted = config.policy.rules.iter().filter(|rule| is_counted(rule));
    let counted: Vec<&Rule> = counted.collect();
    findings.push(failure_policies(&counted));
    findings.extend(fallback(&counted, redis));
    findings.push(hot_keys(&counted, redis));
    findings.push(timeout(redis));
    if redis.denial_cache.is_none() {
        let found = "off: every refusal asks the store";
        findings.push(Finding::ok("denial_cache", found));
    }
    findings
}

/// Whether a rule asks the store at all.
fn is_counted(rule: &Rule) -> bool {
    rule.state() != RuleState::Disabled && !matches!(rule.limit(), Limit::Unlimited(_))
}

fn source(config: &Config, args: &ConfigArgs) -> Finding {
    let count = config.policy.rules.len();
    let found = match &args.config {
        Some(file) => format!(
            "{}: {count} rules, version {}",
            file.display(),
            config.policy.version
        ),
        None => format!("{count} starter rules"),
    };
    Finding::ok("config", found)
}

/// Rules that do not refuse everybody they could.
fn unenforced(rules: &[Rule]) -> Option<Finding> {
    let in_state = |state| names(rules.iter().filter(|rule| rule.state() == state));
    let partly = rules
        .iter()
        .filter(|rule| rule.state() == RuleState::Enforce && rule.rollout() < 10_000);
    let groups = [
        ("in shadow", in_state(RuleState::Shadow)),
        ("disabled", in_state(RuleState::Disabled)),
        ("for some subjects only", names(partly)),
    ];
    let groups = groups.iter().filter(|(_, names)| !names.is_empty());
    let groups: Vec<String> = groups
        .map(|(state, names)| format!("{state}: {names}"))
        .collect();
    (!groups.is_empty()).then(|| Finding::ok("state", groups.join("; ")))
}

fn secret(config: &Config) -> Finding {
    let help =
        "set `subjects.hash_secret` to what `openssl rand -hex 32` prints, and keep it secret";
    match &config.subjects.hash_secret {
        None => Finding::warn(
            "hash_secret",
            "none: subjects are hashed anew at every start, and a `rollout` draws others",
            help,
        ),
        Some(secret) if secret.expose() == STARTER_SECRET.as_bytes() => Finding::warn(
            "hash_secret",
            "that of the starter rules: everybody knows it, and can tell who is who",
            help,
        ),
        Some(_) => Finding::ok("hash_secret", "of your own"),
    }
}

/// Whether quotas are kept for good. Nothing to say if there are none; a ledger itself is looked at by who
/// can reach it.
fn ledger(config: &Config) -> Option<Finding> {
    if config.ledger.is_some() {
        return None;
    }
    let quotas = config.policy.rules.iter();
    let quotas = quotas.filter(|rule| is_counted(rule) && rule.algorithm() == Algorithm::Quota);
    let without = names(quotas);
    if without.is_empty() {
        return None;
    }
    let lost = match config.store {
        Store::Memory => "a restart gives everybody a new period",
        _ => "a store that is lost gives everybody a new period",
    };
    Some(Finding::warn(
        "ledger",
        format!("none: {without} is counted in the store alone, and {lost}"),
        "add `ledger: { sqlite: ./tollgate.db }`, or `postgres` for several instances, and a `hash_secret`",
    ))
}

fn failure_policies(rules: &[&Rule]) -> Finding {
    let without = rules
        .iter()
        .filter(|rule| rule.on_store_failure().is_none());
    let without = names(without.copied());
    if without.is_empty() {
        return Finding::ok("on_store_failure", "every rule has a policy");
    }
    Finding::warn(
        "on_store_failure",
        format!("none: {without}. While the store is down, these answer 503"),
        "choose for each: fail-open, fail-closed, local-fallback, degraded, cached, emergency-limit",
    )
}

/// What instances allow by themselves. Nothing to say if none does.
fn fallback(rules: &[&Rule], redis: &Redis) -> Option<Finding> {
    let policy = Some(FailurePolicy::LocalFallback);
    let local = rules
        .iter()
        .filter(|rule| rule.on_store_failure() == policy);
    let local = names(local.copied());
    if local.is_empty() {
        return None;
    }
    let replicas = redis.replicas;
    if replicas > 1 {
        let found = format!("{replicas}, for the local-fallback of {local}");
        return Some(Finding::ok("replicas", found));
    }
    Some(Finding::warn(
        "replicas",
        format!("1: while the store is down, every instance allows the whole limit of {local}"),
        "set `replicas` to the number of instances that share the store",
    ))
}

/// Rules whose keys cannot be spread.
fn hot_keys(rules: &[&Rule], redis: &Redis) -> Finding {
    let global = rules.iter().filter(|rule| rule.per().is_empty());
    let global = names(global.copied());
    if !global.is_empty() {
        return Finding::warn(
            "hot-key",
            format!("{global} has no `per`: every request writes one key, on one server"),
            "give it a `per`, or be sure that one server is enough for all its requests",
        );
    }
    let together = rules
        .iter()
        .filter(|rule| rule.placement() == Placement::Rule && redis.mode == Mode::Cluster);
    let together = names(together.copied());
    if !together.is_empty() {
        return Finding::warn(
            "hot-key",
            format!("{together} has `placement: rule`: one node of the cluster keeps all its keys"),
            "use `placement: sharded(16)`, or `subject`",
        );
    }
    Finding::ok("hot-key", "no rule counts everything in one place")
}

fn timeout(redis: &Redis) -> Finding {
    let timeout = redis.timeout;
    if timeout <= LONG {
        return Finding::ok("timeout", timeout.to_string());
    }
    Finding::warn(
        "timeout",
        format!("{timeout}: when the store hangs, every caller waits so long for an answer"),
        format!("use {LONG} or less, and let failure policies decide"),
    )
}

/// The names of rules, as many as fit a line.
fn names<'r>(rules: impl Iterator<Item = &'r Rule>) -> String {
    const SHOWN: usize = 5;
    let names: Vec<&str> = rules.map(Rule::id).collect();
    let shown = names[..names.len().min(SHOWN)].join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
