//! The checks of a config that `tollgate doctor` makes without asking the store.

use tollgate::{Algorithm, Config, FailurePolicy, Finding, Limit, Rule, Span};
use tollgate_config::{Mode, Placement, Redis, RuleState, Store};

use crate::config::{ConfigArgs, STARTER_SECRET};
use crate::serve::describe_store;

/// With a longer timeout, callers notice when the store hangs.
const LONG_TIMEOUT: Span = Span::from_millis(200);

/// Returns the findings about a config.
pub(crate) fn check(config: &Config, args: &ConfigArgs) -> Vec<Finding> {
    let mut findings = vec![source(config, args)];
    findings.extend(unenforced(&config.policy.rules));
    findings.push(secret(config));
    findings.extend(ledger(config));
    let Store::Redis(redis) = &config.store else {
        let found = "memory: each process counts alone, and its counts are lost when it stops";
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
        let found = "off: every denial costs a call to the store";
        findings.push(Finding::ok("denial_cache", found));
    }
    findings
}

/// Whether a rule uses the store.
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

/// Rules that are not enforced for all subjects.
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
        "set `subjects.hash_secret` to the output of `openssl rand -hex 32`, and keep it secret";
    match &config.subjects.hash_secret {
        None => Finding::warn(
            "hash_secret",
            "none: each restart hashes subjects differently, and a `rollout` picks another subset",
            help,
        ),
        Some(secret) if secret.expose() == STARTER_SECRET.as_bytes() => Finding::warn(
            "hash_secret",
            "the secret of the starter rules: it is public, so hashed subjects can be guessed",
            help,
        ),
        Some(_) => Finding::ok("hash_secret", "set"),
    }
}

/// Warns about quotas without a ledger. A ledger itself is checked by the engine, which can open it.
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
        Store::Memory => "a restart resets the quotas",
        _ => "losing the store resets the quotas",
    };
    Some(Finding::warn(
        "ledger",
        format!("none: {without} is counted only in the store; {lost}"),
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
        format!("missing: {without}. While the store is down, requests under these rules get 503"),
        "choose one for each rule: fail-open, fail-closed, local-fallback, degraded, cached, emergency-limit",
    )
}

/// Checks `replicas`, which matters only for rules with a local fallback.
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

/// Finds rules that put all their keys on one server.
fn hot_keys(rules: &[&Rule], redis: &Redis) -> Finding {
    let global = rules.iter().filter(|rule| rule.per().is_empty());
    let global = names(global.copied());
    if !global.is_empty() {
        return Finding::warn(
            "hot-key",
            format!("{global} has no `per`: all requests write one key, on one server"),
            "add a `per`, or make sure that one server can serve all requests of the rule",
        );
    }
    let together = rules
        .iter()
        .filter(|rule| rule.placement() == Placement::Rule && redis.mode == Mode::Cluster);
    let together = names(together.copied());
    if !together.is_empty() {
        return Finding::warn(
            "hot-key",
            format!("{together} has `placement: rule`: one node of the cluster holds all its keys"),
            "use `placement: sharded(16)`, or `subject`",
        );
    }
    Finding::ok("hot-key", "no rule puts all its keys on one server")
}

fn timeout(redis: &Redis) -> Finding {
    let timeout = redis.timeout;
    if timeout <= LONG_TIMEOUT {
        return Finding::ok("timeout", timeout.to_string());
    }
    Finding::warn(
        "timeout",
        format!("{timeout}: when the store hangs, every request waits that long"),
        format!("use {LONG_TIMEOUT} or less; after it, failure policies decide"),
    )
}

/// The names of the first few rules, and how many more there are.
fn names<'r>(rules: impl Iterator<Item = &'r Rule>) -> String {
    const SHOWN: usize = 5;
    let names: Vec<&str> = rules.map(Rule::id).collect();
    let shown = names[..names.len().min(SHOWN)].join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
