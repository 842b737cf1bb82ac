//! The checks of a config that `tollgate doctor` makes without asking the store.

use tollgate::{Algorithm, Config, FailurePolicy, Finding, Limit, Rule, RuleStore, Span};
use tollgate_config::{Listen, Mode, Placement, Redis, RuleState, Server, Store};
use tollgate_simulate::redis_bytes;

use crate::config::{ConfigArgs, STARTER_SECRET};
use crate::serve::describe_redis;

/// The longest timeout without a warning. With a longer one, callers notice when the store hangs.
const LONG_TIMEOUT: Span = Span::from_millis(200);

/// Returns the findings about a config.
pub(crate) fn check(config: &Config, args: &ConfigArgs) -> Vec<Finding> {
    let mut findings = vec![source(config, args)];
    findings.extend(unenforced(&config.policy.rules));
    let warnings = config.policy.warnings().into_iter();
    findings.extend(warnings.map(|it| Finding::warn("rules", it.to_string(), it.help)));
    let practices = config.policy.practices().into_iter();
    findings.extend(practices.map(|it| Finding::warn("practice", it.to_string(), it.help)));
    findings.push(secret(config));
    findings.push(open_doors(&config.server));
    findings.extend(plain_text(&config.server));
    findings.extend(ledger(config));
    findings.extend(stores(config));
    match &config.store {
        Store::Redis(redis) => findings.extend(on_redis(config, None, redis)),
        _ => {
            let found = "memory: each process counts alone, and its counts are lost when it stops";
            findings.push(Finding::ok("store", found));
        }
    }
    for store in &config.stores {
        findings.extend(on_redis(config, Some(&store.name), &store.redis));
    }
    findings
}

/// Says which rules are in which store, if there are several.
fn stores(config: &Config) -> Option<Finding> {
    let by_store = config.rules_by_store();
    let rules = by_store.iter();
    let rules = rules.map(|(store, rules)| format!("{store} ({})", rules.join(", ")));
    let rules: Vec<String> = rules.collect();
    (!rules.is_empty()).then(|| {
        let found = format!(
            "{}: each is atomic, and a request under rules of several stores is compensated",
            rules.join(", ")
        );
        Finding::ok("stores", found)
    })
}

/// Returns the findings about the rules of one store on Redis. The default store has no name.
fn on_redis(config: &Config, name: Option<&str>, redis: &Redis) -> Vec<Finding> {
    let is_there = |rule: &&Rule| match (rule.store(), name) {
        (RuleStore::Default, None) => true,
        (RuleStore::Named(of_rule), Some(name)) => **of_rule == *name,
        _ => false,
    };
    let rules = config.policy.rules.iter().filter(is_there);
    let rules: Vec<Rule> = rules.cloned().collect();
    let found = describe_redis(redis);
    let mut findings = vec![match name {
        None => Finding::ok("store", found),
        Some(name) => Finding::ok("store", format!("{name}: {found}")),
    }];
    findings.push(failure_policies(&rules));
    findings.extend(fallback(&rules, redis));
    findings.push(hot_keys(&rules, redis));
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
    let version = &config.policy.version;
    let found = match &args.config {
        Some(file) if count == 1 => format!("{}: 1 rule, version {version}", file.display()),
        Some(file) => format!("{}: {count} rules, version {version}", file.display()),
        None => format!("{count} starter rules"),
    };
    Finding::ok("config", found)
}

/// Lists the rules that are not enforced for all subjects.
fn unenforced(rules: &[Rule]) -> Option<Finding> {
    let in_state = |state| names(rules, |rule| rule.state() == state);
    let partly = |rule: &Rule| rule.state() == RuleState::Enforce && rule.rollout() < 10_000;
    let groups = [
        ("in shadow", in_state(RuleState::Shadow)),
        ("disabled", in_state(RuleState::Disabled)),
        ("for some subjects only", names(rules, partly)),
    ];
    let groups = groups.iter().filter_map(|(state, names)| {
        let names = names.as_ref()?;
        Some(format!("{state}: {names}"))
    });
    let groups: Vec<String> = groups.collect();
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

/// Warns about data doors that every machine may use.
fn open_doors(server: &Server) -> Finding {
    let open = server.open_doors();
    if !open.is_empty() {
        let doors: Vec<String> = open.iter().map(at).collect();
        return Finding::warn(
            "doors",
            format!(
                "open: {}. Every machine that reaches them may charge and refund for any tenant",
                doors.join(", ")
            ),
            "add `server.tokens` with scopes, or `client_ca` to `tls`, or listen on a loopback address",
        );
    }
    let doors = server.doors();
    let mut data = doors.iter().filter(|(door, _)| *door != "admin");
    Finding::ok(
        "doors",
        match data.all(|(_, listen)| listen.is_loopback()) {
            true => "data doors listen on loopback addresses only",
            false => {
                "data doors on other addresses need a token, a password or a client certificate"
            }
        },
    )
}

/// Warns about tokens and passwords that cross the network in plain text.
fn plain_text(server: &Server) -> Option<Finding> {
    let has_secret = |door: &str, listen: &Listen| match door {
        "admin" => server
            .admin
            .as_ref()
            .is_some_and(|it| !it.tokens.is_empty()),
        "resp" if server.resp.as_ref().is_some_and(|it| it.password.is_some()) => true,
        _ => !server.tokens_of(listen).is_empty(),
    };
    let is_plain = |(door, listen): &(&str, &Listen)| {
        !listen.is_loopback() && listen.tls.is_none() && has_secret(door, listen)
    };
    let doors: Vec<_> = server.doors().into_iter().filter(is_plain).collect();
    if doors.is_empty() {
        return None;
    }
    let doors: Vec<String> = doors.iter().map(at).collect();
    Some(Finding::warn(
        "plain-text",
        format!(
            "{}: clients send tokens or passwords without encryption",
            doors.join(", ")
        ),
        "add `server.tls`, or let a proxy on the same machine end TLS",
    ))
}

/// Writes a door and its address.
fn at((door, listen): &(&'static str, &Listen)) -> String {
    format!("{door} on {}", listen.address)
}

/// Warns about quotas without a ledger. The engine checks the ledger itself, because the engine can
/// open it.
fn ledger(config: &Config) -> Option<Finding> {
    if config.ledger.is_some() {
        return None;
    }
    let quotas = |rule: &Rule| is_counted(rule) && rule.algorithm() == Algorithm::Quota;
    let without = names(&config.policy.rules, quotas)?;
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

fn failure_policies(rules: &[Rule]) -> Finding {
    let without = |rule: &Rule| is_counted(rule) && rule.on_store_failure().is_none();
    let Some(without) = names(rules, without) else {
        return Finding::ok("on_store_failure", "every rule has a policy");
    };
    Finding::warn(
        "on_store_failure",
        format!("missing: {without}. While the store is down, requests under these rules get 503"),
        "choose one for each rule: fail-open, fail-closed, local-fallback, degraded, cached, emergency-limit",
    )
}

/// Checks `replicas`, which affects only rules with a local fallback.
fn fallback(rules: &[Rule], redis: &Redis) -> Option<Finding> {
    let policy = Some(FailurePolicy::LocalFallback);
    let local = names(rules, |rule| {
        is_counted(rule) && rule.on_store_failure() == policy
    })?;
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
fn hot_keys(rules: &[Rule], redis: &Redis) -> Finding {
    let is_split = |rule: &Rule| matches!(rule.placement(), Placement::Sharded(_));
    let global = |rule: &Rule| is_counted(rule) && rule.per().is_empty() && !is_split(rule);
    if let Some(global) = names(rules, global) {
        return Finding::warn(
            "hot-key",
            format!("{global} has no `per`: all requests write one key, on one server"),
            "write `placement: sharded(16)`, which splits the allowance over 16 keys, or add a `per`",
        );
    }
    let together = |rule: &Rule| is_counted(rule) && rule.placement() == Placement::Rule;
    match names(rules, together).filter(|_| redis.mode == Mode::Cluster) {
        Some(together) => Finding::warn(
            "hot-key",
            format!("{together} has `placement: rule`: one node of the cluster holds all its keys"),
            "use `placement: subject`",
        ),
        None => Finding::ok("hot-key", "no rule puts all its keys on one server"),
    }
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

/// Compares two amounts: the memory that the rules need if each has `subjects` subjects, and the `maxmemory` of the
/// store's servers.
pub(crate) fn memory(config: &Config, subjects: u64, found: &[Finding]) -> Option<Finding> {
    if config.store == Store::Memory && config.stores.is_empty() {
        return None;
    }
    let is_on_redis = |rule: &&Rule| match rule.store() {
        RuleStore::Default => config.store != Store::Memory,
        RuleStore::Local => false,
        _ => true,
    };
    let rules = config.policy.rules.iter().filter(is_on_redis);
    let counted = rules.filter(|rule| is_counted(rule));
    let bytes = counted.map(|rule| {
        let subjects = if rule.per().is_empty() { 1 } else { subjects };
        // A subject at its limit has the longest log.
        redis_bytes(rule, u64::MAX).saturating_mul(subjects)
    });
    let needed = bytes.fold(0, u64::saturating_add);
    let mebibytes = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    let needs = format!(
        "{subjects} subjects at their limits need about {}",
        mebibytes(needed)
    );
    let limits: Vec<u64> = found.iter().filter_map(|it| it.max_bytes).collect();
    if limits.is_empty() {
        let found = format!("{needs}; no `maxmemory` to compare with");
        return Some(Finding::ok("memory-estimate", found));
    }
    let most = limits.into_iter().fold(0, u64::saturating_add);
    let found = format!("{needs}; `maxmemory` is {}", mebibytes(most));
    // Redis needs room for the copy of a snapshot, for buffers of clients and for growth.
    match needed.saturating_mul(2) > most {
        false => Some(Finding::ok("memory-estimate", found)),
        true => Some(Finding::warn(
            "memory-estimate",
            found,
            "set `maxmemory` to twice the estimate, lower `subjects.max_keys`, or use an algorithm with a smaller state",
        )),
    }
}

/// Lists the first few rules for which `is_one` holds, and how many more there are; `None` if there are
/// none.
fn names(rules: &[Rule], is_one: impl Fn(&Rule) -> bool) -> Option<String> {
    const SHOWN: usize = 5;
    let names = rules.iter().filter(|rule| is_one(rule)).map(Rule::id);
    let names: Vec<&str> = names.collect();
    let shown = names[..names.len().min(SHOWN)].join(", ");
    match names.len() {
        0 => None,
        1..=SHOWN => Some(shown),
        all => Some(format!("{shown} and {} more", all - SHOWN)),
    }
}
