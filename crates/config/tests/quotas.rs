//! Quotas, concurrency limits, the ledger and events in a config.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;
use std::sync::Arc;

use tollgate_config::{
    Config, Durability, LedgerDatabase, Override, PostgresUrl, RequestLimits, RuleSet, diff, parse,
};
use tollgate_core::{
    Algorithm, Anchor, Calendar, CarryOver, Keyring, Limit, MAX_AMOUNT, Outcome, Span, Unit, Zone,
};

const CONFIG: &str = "
version: 1
budgets:
  tokens: { per: [tenant], algorithm: quota, limit: 1000, period: week, anchor: sunday, overdraft: 10% }
plans:
  pro: { monthly: { limit: 500 }, zoned: { limit: 500 }, daily: { timezone: Asia/Tokyo } }
  year: { monthly: { period: year, anchor: 04-01, grace: 0, carry_over: 50 } }
tenants:
  acme: { plan: pro, timezone: Europe/Berlin }
  corp: { plan: pro, timezone: America/New_York, overrides: { zoned: { timezone: Asia/Tokyo }, daily: { timezone: tenant } } }
  solo: { timezone: Asia/Kathmandu, overrides: { monthly: { limit: unlimited } } }
  late: { plan: year }
rules:
  - { id: monthly, per: [tenant], algorithm: quota, limit: 100, period: month, anchor: 31, grace: 10%, carry_over: 25 }
  - { id: zoned, per: [tenant], algorithm: quota, limit: 100, period: 3 months, timezone: UTC }
  - { id: daily, per: [tenant, user], algorithm: quota, limit: 10, period: day, timezone: tenant }
  - { id: shared, algorithm: quota, limit: 10, period: hour }
  - { id: spend, match: { action: chat }, budget: tokens, cost: 'int(tokens)' }
  - { id: slots, per: [tenant], algorithm: concurrency, limit: 5 }
  - { id: long, match: { action: long }, per: [tenant], algorithm: concurrency, limit: unlimited, lease: 5m, limit_from: attributes.slots, ceiling: 50 }
  - { id: request_limits, match: { action: request_limits }, per: [tenant], algorithm: quota, limit: unlimited, period: 2 weeks, grace: 10%, limit_from: attributes.quota, ceiling: 1_000 }
";

fn config(text: &str) -> Config {
    parse("rules.yaml", text, &|_| None).unwrap_or_else(|error| panic!("{error}"))
}

fn compile(config: &Config, overrides: &[Override]) -> RuleSet {
    let overrides: Vec<_> = overrides.iter().cloned().map(Arc::new).collect();
    let keyring = Keyring::new(b"0123456789abcdef", "test");
    config.compile(keyring, &overrides)
}

/// Returns the limit of `rule` for a request, whether the usage goes to the ledger, and the overdraft.
fn charge(rules: &RuleSet, rule: &str, request: &[(&str, &str)]) -> (Limit, bool, u64) {
    let request_limits = RequestLimits::default();
    let resolution = rules.resolve(&request.iter().copied().collect(), &request_limits);
    let mut charges = resolution.charges.iter().zip(&resolution.rules);
    let found = charges.find(|(_, index)| rules.rules()[**index as usize].id() == rule);
    let (charge, _) = found.expect("the rule applies");
    (
        charge.limit.clone(),
        charge.recorded.is_some(),
        charge.overdraft,
    )
}

fn limit(rules: &RuleSet, rule: &str, tenant: &str) -> Limit {
    let request = [("tenant", tenant), ("user", "u"), ("action", rule)];
    charge(rules, rule, &request).0
}

fn zone(limit: &Limit) -> String {
    match limit {
        Limit::Quota(quota) => quota.calendar().zone().name().to_owned(),
        other => panic!("{other:?}"),
    }
}

fn calendar(count: u16, unit: Unit, anchor: Anchor, zone: &str) -> Calendar {
    Calendar::new(count, unit, anchor, Zone::named(zone).unwrap()).unwrap()
}

fn quota(numbers: [u64; 3], calendar: Calendar) -> Limit {
    let [limit, grace, rollover] = numbers;
    Limit::quota(limit, grace, rollover, calendar).unwrap()
}

fn explained(rules: &RuleSet, rule: &str, request: &[(&str, &str)]) -> String {
    let explained = rules.explain(&request.iter().copied().collect());
    let it = explained.iter().find(|it| &*it.id == rule).unwrap();
    it.to_string()
}

#[test]
fn numbers_of_quotas_are_read() {
    let config = config(CONFIG);
    let limit = |id: &str| {
        let rule = config
            .policy
            .rules
            .iter()
            .find(|rule| rule.id() == id)
            .unwrap();
        rule.limit().clone()
    };
    let months = calendar(1, Unit::Month, Anchor::Day(31), "UTC");
    assert_eq!(limit("monthly"), quota([100, 10, 25], months));
    let quarters = calendar(3, Unit::Month, Anchor::First, "UTC");
    assert_eq!(limit("zoned"), quota([100, 0, 0], quarters));
    let weeks = calendar(1, Unit::Week, Anchor::Weekday(7), "UTC");
    assert_eq!(limit("spend"), quota([1000, 0, 0], weeks));
    assert_eq!(
        limit("slots"),
        Limit::concurrency(5, Span::from_secs(30)).unwrap()
    );
    assert_eq!(limit("long"), Limit::unlimited(Algorithm::Concurrency));
    assert_eq!(limit("request_limits"), Limit::unlimited(Algorithm::Quota));
}

#[test]
fn a_zone_comes_from_override_rule_plan_tenant_or_utc() {
    let rules = compile(&config(CONFIG), &[]);
    let zone = |rule: &str, tenant: &str| zone(&limit(&rules, rule, tenant));
    // The rule names no zone, so the tenant's zone applies.
    assert_eq!(zone("monthly", "acme"), "Europe/Berlin");
    assert_eq!(zone("monthly", "corp"), "America/New_York");
    assert_eq!(zone("monthly", "late"), "UTC");
    assert_eq!(zone("monthly", "stranger"), "UTC");
    // The rule names a zone. It applies, unless the tenant's overrides name another zone.
    assert_eq!(zone("zoned", "acme"), "UTC");
    assert_eq!(zone("zoned", "corp"), "Asia/Tokyo");
    // The plan names a zone. It applies, unless the tenant's overrides say `tenant`.
    assert_eq!(zone("daily", "acme"), "Asia/Tokyo");
    assert_eq!(zone("daily", "corp"), "America/New_York");
    assert_eq!(zone("daily", "solo"), "Asia/Kathmandu");
    assert_eq!(zone("daily", "stranger"), "UTC");
    // A shared allowance does not follow the time zone of one tenant.
    assert_eq!(zone("shared", "acme"), "UTC");
}

#[test]
fn plans_and_tenants_change_numbers() {
    let rules = compile(&config(CONFIG), &[]);
    let berlin = calendar(1, Unit::Month, Anchor::Day(31), "Europe/Berlin");
    // A grace in percent is a share of the plan's limit.
    assert_eq!(
        limit(&rules, "monthly", "acme"),
        quota([500, 50, 25], berlin)
    );
    let years = calendar(1, Unit::Year, Anchor::MonthDay(4, 1), "UTC");
    assert_eq!(limit(&rules, "monthly", "late"), quota([100, 0, 50], years));
    assert_eq!(
        limit(&rules, "monthly", "solo").capacity(),
        Outcome::UNLIMITED
    );
}

#[test]
fn overrides_change_quotas_at_run_time() {
    let overriding = |text: &str| Override::parse(text, 1_000).unwrap();
    let half =
        overriding(r#"{ "tenant": "acme", "rule": "monthly", "scale": "50%", "reason": "x" }"#);
    let none =
        overriding(r#"{ "tenant": "corp", "rule": "monthly", "scale": "0%", "reason": "x" }"#);
    let all = r#"{ "rule": "zoned", "for": "1h", "reason": "x",
        "numbers": { "limit": 7, "timezone": "Europe/Paris", "carry_over": "10%", "grace": 1 } }"#;
    let all = overriding(all).by("ops");
    let kept = Override::parse(&all.to_json().to_string(), 1_000).unwrap();
    assert_eq!(kept.effect(), all.effect());
    assert_eq!(
        all.effect(),
        "limit 7, timezone Europe/Paris, grace 1, carry_over 10%"
    );
    let rules = compile(&config(CONFIG), &[half, none, all]);
    assert_eq!(rules.idle_overrides().count(), 0);
    let berlin = calendar(1, Unit::Month, Anchor::Day(31), "Europe/Berlin");
    assert_eq!(
        limit(&rules, "monthly", "acme"),
        quota([250, 25, 12], berlin)
    );
    // A scale of 0% also removes the grace.
    assert_eq!(limit(&rules, "monthly", "corp").capacity(), 0);
    assert_eq!(zone(&limit(&rules, "monthly", "corp")), "America/New_York");
    let paris = calendar(3, Unit::Month, Anchor::First, "Europe/Paris");
    assert_eq!(limit(&rules, "zoned", "corp"), quota([7, 1, 0], paris));
}

#[test]
fn overrides_that_do_not_fit_have_no_effect() {
    let config = config(CONFIG);
    for (text, why) in [
        (
            r#"{ "rule": "shared", "numbers": { "timezone": "tenant" }, "for": "1h", "reason": "x" }"#,
            "it has one time zone",
        ),
        (
            r#"{ "rule": "shared", "numbers": { "anchor": 15 }, "for": "1h", "reason": "x" }"#,
            "`anchor`: an `anchor` has no effect on hours; remove `anchor`",
        ),
        (
            r#"{ "rule": "slots", "numbers": { "period": "month" }, "for": "1h", "reason": "x" }"#,
            "`period` is not a field of concurrency",
        ),
    ] {
        let misfit = Override::parse(text, 0).unwrap().misfit(&config.policy);
        assert!(misfit.is_some_and(|it| it.contains(why)), "{text}");
    }
    let word =
        r#"{ "rule": "shared", "numbers": { "carry_over": "reset" }, "for": "1h", "reason": "x" }"#;
    assert!(Override::parse(word, 0).is_err());
}

#[test]
fn a_scale_of_zero_closes_an_unlimited_quota() {
    let off = r#"{ "rule": "request_limits", "scale": "0%", "for": "1h", "reason": "x" }"#;
    let rules = compile(&config(CONFIG), &[Override::parse(off, 0).unwrap()]);
    let closed = limit(&rules, "request_limits", "acme");
    assert_eq!(
        (closed.algorithm(), closed.capacity()),
        (Algorithm::Quota, 0)
    );
    assert_eq!(zone(&closed), "Europe/Berlin");
}

#[test]
fn requests_may_bring_amounts() {
    let rules = compile(&config(CONFIG), &[]);
    let request_limits = |value: &str| {
        let request = [
            ("tenant", "acme"),
            ("action", "request_limits"),
            ("quota", value),
        ];
        charge(&rules, "request_limits", &request).0
    };
    let weeks = || calendar(2, Unit::Week, Anchor::First, "Europe/Berlin");
    assert_eq!(request_limits("50"), quota([50, 5, 0], weeks()));
    assert_eq!(request_limits("5000"), quota([1000, 100, 0], weeks()));
    assert_eq!(request_limits("5/s"), Limit::unlimited(Algorithm::Quota));
    let slots = |value: &str| {
        let request = [("tenant", "acme"), ("action", "long"), ("slots", value)];
        charge(&rules, "long", &request).0
    };
    let minutes = Span::from_secs(300);
    assert_eq!(slots("3"), Limit::concurrency(3, minutes).unwrap());
    assert_eq!(slots("300"), Limit::concurrency(50, minutes).unwrap());
}

const LEDGER: &str =
    "ledger: { sqlite: ./tollgate.db }\nsubjects: { hash_secret: 0123456789abcdef }\n";

#[test]
fn durability_is_async_where_there_is_a_ledger() {
    let without = config(CONFIG);
    assert!(without.ledger.is_none());
    assert!(
        without
            .policy
            .rules
            .iter()
            .all(|rule| rule.durability() == Durability::None)
    );
    let with = config(&format!("{CONFIG}{LEDGER}"));
    for rule in &with.policy.rules {
        let expected = match rule.algorithm() {
            Algorithm::Quota => Durability::Async,
            _ => Durability::None,
        };
        assert_eq!(rule.durability(), expected, "{}", rule.id());
    }
    let ledgered = |config: &Config, rule: &str| {
        let rules = compile(config, &[]);
        let request = [("tenant", "acme"), ("action", "chat"), ("tokens", "5")];
        charge(&rules, rule, &request).1
    };
    assert!(ledgered(&with, "monthly"));
    assert!(ledgered(&with, "spend"), "the budget's");
    assert!(!ledgered(&with, "slots"));
    assert!(!ledgered(&without, "monthly"));
    // A reload can neither open a ledger nor close one.
    let mut not_open = with.clone();
    not_open.keep_in(None);
    assert!(!ledgered(&not_open, "monthly"));
    let mut still_open = without.clone();
    still_open.keep_in(with.ledger.clone());
    for (kept, rule) in with.policy.rules.iter().zip(&still_open.policy.rules) {
        assert_eq!(rule.durability(), kept.durability(), "{}", rule.id());
    }
    assert!(ledgered(&still_open, "monthly") && ledgered(&still_open, "spend"));
    assert!(!ledgered(&still_open, "slots"));
}

#[test]
fn durability_comes_from_the_rule_or_its_budget() {
    let config = config(
        "
version: 1
ledger: { sqlite: ./tollgate.db }
subjects: { hash_secret: 0123456789abcdef }
budgets: { tokens: { algorithm: quota, limit: 10, period: day, durability: strict } }
rules:
  - { id: none, algorithm: quota, limit: 10, period: day, durability: none }
  - { id: strict, algorithm: quota, limit: 10, period: day, durability: strict }
  - { id: drawing, budget: tokens }
  - { id: shadow, algorithm: quota, limit: 10, period: day, state: shadow }
  - { id: next, candidate_of: none, algorithm: quota, limit: 20, period: day }
  - { id: billed, candidate_of: none, algorithm: quota, limit: 20, period: day, durability: async }
  - { id: watching, candidate_of: none, budget: tokens }
",
    );
    let said: Vec<_> = config
        .policy
        .rules
        .iter()
        .map(|rule| rule.durability().name())
        .collect();
    assert_eq!(
        said,
        ["none", "strict", "strict", "async", "none", "async", "none"]
    );
}

#[test]
fn a_back_off_of_a_quota_is_not_recorded() {
    let config = config(
        "
version: 1
ledger: { sqlite: ./tollgate.db }
subjects: { hash_secret: 0123456789abcdef }
rules: [{ id: r, algorithm: quota, limit: 10, period: day, overdraft: 5, backoff: { base: 1s } }]
",
    );
    let rules = compile(&config, &[]);
    let request_limits = RequestLimits::default();
    let charges = rules.resolve(&Default::default(), &request_limits).charges;
    let said: Vec<_> = charges
        .iter()
        .map(|it| (it.recorded.is_some(), it.overdraft))
        .collect();
    assert_eq!(said, [(true, 5), (false, 0)]);
}

#[test]
fn overdrafts_are_unlimited_for_quotas_and_nothing_for_rates() {
    let config = config(
        "
version: 1
plans: { pro: { share: { limit: 2000 } } }
tenants: { acme: { plan: pro } }
rules:
  - { id: quota, algorithm: quota, limit: 10, period: day }
  - { id: rate, algorithm: gcra, rate: 10/s }
  - { id: strict, algorithm: quota, limit: 10, period: day, overdraft: 0 }
  - { id: share, per: [tenant], algorithm: quota, limit: 100, grace: 100, period: day, overdraft: 2.5% }
  - { id: tokens, algorithm: token-bucket, capacity: 50, refill: 1/s, overdraft: 200% }
  - { id: open, algorithm: gcra, rate: 10/s, overdraft: unlimited }
",
    );
    let rules = compile(&config, &[]);
    let overdraft = |rule: &str, tenant: &str| charge(&rules, rule, &[("tenant", tenant)]).2;
    assert_eq!(overdraft("quota", "x"), MAX_AMOUNT);
    assert_eq!(overdraft("rate", "x"), 0);
    assert_eq!(overdraft("strict", "x"), 0);
    // A share refers to the tenant's own limit, without the grace.
    assert_eq!(overdraft("share", "x"), 2);
    assert_eq!(overdraft("share", "acme"), 50);
    assert_eq!(overdraft("tokens", "x"), 100);
    assert_eq!(overdraft("open", "x"), MAX_AMOUNT);
    let budget = compile(&self::config(CONFIG), &[]);
    let request = [("tenant", "acme"), ("action", "chat"), ("tokens", "5")];
    assert_eq!(charge(&budget, "spend", &request).2, 100);
}

#[test]
fn carry_over_is_a_word_or_an_amount() {
    let config = config(
        "
version: 1
rules:
  - { id: word, algorithm: quota, limit: 100, period: day, carry_over: proportional }
  - { id: amount, algorithm: quota, limit: 100, period: day, carry_over: 10% }
  - { id: neither, algorithm: quota, limit: 100, period: day }
  - { id: slots, algorithm: concurrency, limit: 5, carry_over: keep, cost: 1, on_store_failure: degraded }
",
    );
    let said = config.policy.rules.iter().map(|rule| match rule.limit() {
        Limit::Quota(quota) => (rule.carry_over(), quota.rollover()),
        _ => (rule.carry_over(), 0),
    });
    let said: Vec<_> = said.collect();
    assert_eq!(
        said,
        [
            (CarryOver::Proportional, 0),
            (CarryOver::Keep, 10),
            (CarryOver::Keep, 0),
            (CarryOver::Keep, 0)
        ]
    );
}

#[test]
fn explanations_name_the_numbers_and_the_zone() {
    let rules = compile(&config(CONFIG), &[]);
    assert_eq!(
        explained(&rules, "monthly", &[("tenant", "acme")]),
        "monthly: applies, cost 1, per tenant: limit 500 (plan pro), period month (rule), anchor 31 (rule), \
         grace 10% (rule), carry_over 25 (rule), timezone Europe/Berlin (tenant acme)"
    );
    assert_eq!(
        explained(&rules, "zoned", &[("tenant", "corp")]),
        "zoned: applies, cost 1, per tenant: limit 500 (plan pro), period 3 months (rule), \
         timezone Asia/Tokyo (tenant corp)"
    );
    let daily = |tenant: &str| explained(&rules, "daily", &[("tenant", tenant), ("user", "u")]);
    assert!(daily("stranger").ends_with("timezone UTC (default: tenant stranger has no timezone)"));
    assert!(daily("corp").ends_with("timezone America/New_York (tenant corp)"));
    assert!(
        explained(&rules, "shared", &[]).ends_with("period hour (rule), timezone UTC (default)")
    );
    let request = [("tenant", "late"), ("action", "chat"), ("tokens", "5")];
    assert!(explained(&rules, "spend", &request).ends_with(
        "period week (budget tokens), anchor sunday (budget tokens), timezone UTC (default), \
         overdraft 10% (budget tokens)"
    ));
    assert_eq!(
        explained(&rules, "slots", &[("tenant", "acme")]),
        "slots: applies, cost 1, per tenant: limit 5 (rule)"
    );
}

#[test]
fn differences_are_described() {
    let differences = |old: &str, new: &str| -> Vec<String> {
        let changed = config(&CONFIG.replace(old, new));
        let all = diff(&config(CONFIG), &changed);
        all.iter().map(ToString::to_string).collect()
    };
    assert_eq!(
        differences(
            "limit: 10, period: hour",
            "limit: 10, period: hour, timezone: Asia/Kathmandu"
        ),
        [
            "rule shared: timezone unset becomes Asia/Kathmandu: as much, in periods that begin at other times \
             for tenants without a plan, and on the plans pro, year"
        ]
    );
    assert_eq!(
        differences("carry_over: 25", "carry_over: 50%"),
        [
            "rule monthly: carry_over 25 becomes 50%: more is carried over for tenants without a plan, \
             and on the plan pro"
        ]
    );
    assert_eq!(
        differences("timezone: Europe/Berlin", "timezone: Europe/Paris"),
        ["tenant acme: timezone Europe/Berlin becomes Europe/Paris: \
             the periods of quotas may begin at other times"]
    );
    assert_eq!(
        differences(
            "zoned: { timezone: Asia/Tokyo }",
            "zoned: { timezone: Asia/Seoul, limit: 9, grace: 1 }"
        ),
        [
            "tenant corp: zoned: 500 in each 3 months of Asia/Tokyo becomes \
             9 and 1 of grace in each 3 months of Asia/Seoul: less"
        ]
    );
    assert_eq!(
        differences(
            "algorithm: concurrency, limit: 5 }",
            "algorithm: concurrency, limit: 5, lease: 1m }"
        ),
        [
            "rule slots: lease unset becomes 1m: as many, and slots of a crashed client become free later \
             for tenants without a plan, and on the plans pro, year"
        ]
    );
    assert_eq!(
        differences("overdraft: 10%", "overdraft: 20%"),
        ["rule spend: overdraft 10% becomes 20%"]
    );
    assert_eq!(
        differences(
            "version: 1",
            "version: 1\nledger: { sqlite: a.db }\nevents: { near_limit: [] }\n\
             subjects: { hash_secret: 0123456789abcdef }"
        ),
        [
            "subjects.hash_secret: changed: after a restart, the old counts are not used; the server does not start if Redis or the ledger was used with another secret",
            "ledger: changed: takes effect after a restart",
            "events: changed: takes effect after a restart",
            "rule monthly: durability none becomes async",
            "rule zoned: durability none becomes async",
            "rule daily: durability none becomes async",
            "rule shared: durability none becomes async",
            "rule spend: durability none becomes async",
            "rule request_limits: durability none becomes async"
        ]
    );
}

fn with(section: &str) -> Config {
    let env = |name: &str| (name == "SECRET").then(|| "0123456789hunter2".to_owned());
    let text = format!(
        "version: 1\nnamespace: prod\nsubjects: {{ hash_secret: 0123456789abcdef }}\n{section}\nrules: []\n"
    );
    parse("rules.yaml", &text, &env).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn a_ledger_is_a_file_or_a_server() {
    let ledger = with("ledger: { sqlite: ./data/tollgate.db }")
        .ledger
        .unwrap();
    assert_eq!(
        ledger.database,
        LedgerDatabase::Sqlite("./data/tollgate.db".into())
    );
    assert_eq!(ledger.flush_interval, Span::from_millis(200));
    assert_eq!(ledger.max_queued, 100_000);
    assert_eq!(ledger.max_spill, 1_000_000_000);
    assert_eq!(ledger.strict_wait, Span::from_secs(10));
    assert_eq!(ledger.spill, Path::new("./data/tollgate.spill"));
    let spill = |section: &str| with(section).ledger.unwrap().spill;
    assert_eq!(
        spill("ledger: { sqlite: a.spill }"),
        Path::new("a.spill.spill")
    );
    let all = "ledger: { postgres: \"postgres://app:${SECRET}@db/t?sslmode=require\", flush_interval: 1s, \
               max_queued: 5_000, spill: /var/spill, max_spill: 64MiB, strict_wait: 250ms }";
    let config = with(all);
    assert!(!format!("{config:?}").contains("hunter2"));
    let ledger = config.ledger.unwrap();
    let LedgerDatabase::Postgres(url) = &ledger.database else {
        panic!("{ledger:?}");
    };
    assert_eq!(url.to_string(), "postgres://db:5432/t");
    let read = url.read().unwrap();
    assert_eq!(
        read.expose(),
        b"postgres://app:0123456789hunter2@db/t?sslmode=require"
    );
    assert_eq!(ledger.max_spill, 64 << 20);
    assert_eq!(ledger.strict_wait, Span::from_millis(250));
    assert_eq!(ledger.spill, Path::new("/var/spill"));
    let file = with("ledger: { postgres_url_file: /run/secrets/ledger }")
        .ledger
        .unwrap();
    let expected = PostgresUrl::File("/run/secrets/ledger".into());
    assert_eq!(file.database, LedgerDatabase::Postgres(expected));
    assert_eq!(file.spill, Path::new("./tollgate-prod.spill"));
}

#[test]
fn events_have_defaults() {
    let events = with("").events;
    assert_eq!(events.near_limit, [80, 90, 100]);
    assert!(events.webhook.is_none());
    assert!(
        with("events: { near_limit: [] }")
            .events
            .near_limit
            .is_empty()
    );
    let config = with(
        "events: { near_limit: [50], webhook: { url: \"https://[::1]:8443/a/hunter2?x=1\", secret: \"${SECRET}\" } }",
    );
    assert!(!format!("{config:?}").contains("hunter2"));
    assert_eq!(config.events.near_limit, [50]);
    let webhook = config.events.webhook.unwrap();
    assert_eq!(webhook.url.to_string(), "https://[::1]:8443");
    assert_eq!(webhook.url.target.expose(), b"/a/hunter2?x=1");
    assert_eq!(webhook.secret.expose(), b"0123456789hunter2");
    assert_eq!((webhook.timeout, webhook.attempts), (Span::from_secs(2), 8));
    let plain = with(
        "events: { webhook: { url: \"http://hooks\", secret: \"${SECRET}\", timeout: 1s, attempts: 3 } }",
    );
    let webhook = plain.events.webhook.unwrap();
    assert_eq!(
        (webhook.url.port, webhook.url.target.expose()),
        (80, &b"/"[..])
    );
    assert_eq!((webhook.timeout, webhook.attempts), (Span::SECOND, 3));
}

#[test]
#[cfg(feature = "schema")]
fn the_schema_has_the_fields_of_quotas() {
    let schema = tollgate_config::json_schema();
    let has = |section: &str, fields: &[&str]| {
        let properties = &schema["$defs"][section]["properties"];
        for field in fields {
            let field = &properties[*field];
            assert!(field["description"].is_string(), "{section}: {field:?}");
        }
    };
    let numbers = [
        "period",
        "timezone",
        "anchor",
        "grace",
        "carry_over",
        "lease",
    ];
    for section in ["Rule", "Budget", "Numbers"] {
        has(section, &numbers);
    }
    for section in ["Rule", "Budget"] {
        has(section, &["durability", "overdraft"]);
    }
    has("Tenant", &["timezone"]);
    has(
        "Ledger",
        &[
            "sqlite",
            "postgres",
            "postgres_url_file",
            "flush_interval",
            "max_queued",
            "spill",
            "max_spill",
            "strict_wait",
        ],
    );
    has("Events", &["near_limit", "webhook"]);
    has("Webhook", &["url", "secret", "timeout", "attempts"]);
}

#[test]
fn rules_are_summarised_in_words() {
    let config = config(CONFIG);
    let summary = |id: &str| {
        let rule = config
            .policy
            .rules
            .iter()
            .find(|rule| rule.id() == id)
            .unwrap();
        tollgate_rules::summary(rule.limit())
    };
    assert_eq!(
        summary("monthly"),
        "quota: 100 in each month, and 10 more with a warning"
    );
    assert_eq!(summary("zoned"), "quota: 100 in each 3 months");
    assert_eq!(
        summary("slots"),
        "concurrency: 5 at once, each held for 30s unless renewed"
    );
    assert_eq!(summary("long"), "concurrency: unlimited");
}
