//! Metrics in the Prometheus text format.
//!
//! Labels are names from the config file. No key or address is ever a label. A subject appears only
//! as the beginning of its hash, and only for the most active ones.

mod ledger;

use std::fmt::Write;

use tollgate::{ActiveConfig, Kind, Reason, Rule, RuleCounts, ThrottleCounts, Usage};
use tollgate_redis::{BreakerState, HistogramCounts, RedisStore};

use crate::control::ControlPlane;
use crate::events::Webhook;

/// How many subjects are shown.
const HOT_KEYS: usize = 10;
/// How many digits of a subject's hash: enough to find it in a log, too few to guess it.
const HOT_KEY_DIGITS: usize = 8;

/// Renders all metrics.
pub(crate) fn render(control: &ControlPlane) -> String {
    let engine = control.engine();
    // Rules and counts of one config, even if another is put in force meanwhile.
    let live = engine.active();
    let counts = live.metrics().counts();
    let rules = || live.rules().rules().iter().zip(&counts);
    let mut page = Page(String::with_capacity(4096));

    page.family(
        "rate_limit_checks_total",
        "counter",
        "Checks by rule and outcome.",
    );
    for (rule, counts) in rules() {
        for (outcome, count) in outcomes(counts) {
            let labels = [
                ("rule", rule.id()),
                ("algorithm", rule.algorithm().name()),
                ("outcome", outcome),
            ];
            page.sample("rate_limit_checks_total", &labels, count);
        }
    }
    page.family(
        "rate_limit_rejected_total",
        "counter",
        "Denied checks by rule, reason and kind of limit.",
    );
    for (rule, counts) in rules() {
        for (reason, count) in Reason::ALL.into_iter().zip(counts.denied) {
            let labels = [
                ("rule", rule.id()),
                ("subject_type", rule.subject_type()),
                ("reason", reason.name()),
                ("kind", Kind::of(rule).name()),
            ];
            page.sample("rate_limit_rejected_total", &labels, count);
        }
    }
    page.per_rule(
        "rate_limit_shadow_rejected_total",
        "Checks a shadow rule would have denied.",
        rules().map(|(rule, counts)| (rule, counts.shadow_denied)),
    );
    page.per_rule(
        "rate_limit_near_limit_total",
        "Allowed checks that left less than a fifth of the limit.",
        rules().map(|(rule, counts)| (rule, counts.near_limit)),
    );
    page.per_rule(
        "rate_limit_grace_total",
        "Allowed checks beyond the limit of a quota, within its grace.",
        rules().map(|(rule, counts)| (rule, counts.grace)),
    );
    page.events(&live);
    page.candidates(&live);
    page.remaining(&live);
    page.hot_keys(&live);
    page.throttles(live.metrics().throttles());
    if let Some(usage) = engine.memory_usage() {
        let config = live.config();
        page.memory(usage, config.subjects.max_keys, &config.namespace);
    }
    if let Some(redis) = engine.redis() {
        page.redis(redis, engine.known_denials());
    }
    // State in this process without a ledger cannot fail.
    if !engine.store().is_local() {
        page.fallbacks(engine.fallbacks());
    }
    if let Some(webhook) = control.webhook() {
        page.webhook(webhook);
    }
    page.ledger(engine, control.now());
    page.config(control);
    page.family(
        "tollgate_build_info",
        "gauge",
        "The running version and its rules.",
    );
    let build = [
        ("version", env!("CARGO_PKG_VERSION")),
        ("config_version", live.rules().version()),
    ];
    page.sample("tollgate_build_info", &build, 1);
    page.0
}

fn outcomes(counts: &RuleCounts) -> [(&'static str, u64); 3] {
    [
        ("allowed", counts.allowed),
        ("rejected", counts.denied.iter().sum()),
        ("shadow_rejected", counts.shadow_denied),
    ]
}

struct Page(String);

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// How often quotas came near their limits.
    fn events(&mut self, live: &ActiveConfig) {
        let counts = live.events().counts(live.rules());
        if counts.is_empty() {
            return;
        }
        let name = "rate_limit_near_limit_events_total";
        let help = "Subjects that reached a threshold of a quota, in percent of its limit.";
        self.family(name, "counter", help);
        for it in counts {
            let percent = it.threshold.map(|threshold| threshold.to_string());
            let labels = [
                ("rule", &*it.rule),
                ("threshold", percent.as_deref().unwrap_or("exhausted")),
            ];
            self.sample(name, &labels, it.events);
        }
    }

    /// The results of sending events.
    fn webhook(&mut self, webhook: &Webhook) {
        let name = "tollgate_webhook_deliveries_total";
        self.family(name, "counter", "Events by the result of sending them.");
        for (outcome, count) in webhook.deliveries() {
            self.sample(name, &[("outcome", outcome)], count);
        }
        let name = "tollgate_webhook_queue_length";
        self.family(name, "gauge", "Events that wait to be sent.");
        self.sample(name, &[], webhook.queue_length());
    }

    /// How candidates compare with the rules in force.
    fn candidates(&mut self, live: &ActiveConfig) {
        let comparisons = live.metrics().comparisons();
        if comparisons.is_empty() {
            return;
        }
        let name = "rate_limit_candidate_checks_total";
        let help = "Checks by the answer of a candidate, compared with the rule in force.";
        self.family(name, "counter", help);
        for it in comparisons {
            for (outcome, count) in [
                ("both_allow", it.both_allow),
                ("both_refuse", it.both_deny),
                ("refuses_more", it.denies_more),
                ("refuses_fewer", it.denies_fewer),
            ] {
                let labels = [
                    ("rule", &*it.candidate),
                    ("candidate_of", &*it.current),
                    ("plan", it.plan.as_deref().unwrap_or_default()),
                    ("outcome", outcome),
                ];
                self.sample(name, &labels, count);
            }
        }
    }

    /// How close rules came to their limits.
    fn remaining(&mut self, live: &ActiveConfig) {
        let name = "rate_limit_remaining";
        let help = "The lowest remainder of the limit after any decision since the last scrape.";
        self.family(name, "gauge", help);
        let least = live.metrics().take_least_remaining();
        for (rule, least) in live.rules().rules().iter().zip(least) {
            if let Some(least) = least {
                self.sample(name, &[("rule", rule.id())], least);
            }
        }
    }

    /// The most active subjects.
    fn hot_keys(&mut self, live: &ActiveConfig) {
        let name = "rate_limit_hot_keys";
        let help =
            "The approximate number of recent checks by a subject, for the most active subjects.";
        self.family(name, "gauge", help);
        let rules = live.rules();
        let mut shown: Vec<(&str, String)> = Vec::new();
        for hot in live.metrics().hot_keys(rules, HOT_KEYS) {
            let mut subject = hot.subject.to_string();
            subject.truncate(HOT_KEY_DIGITS);
            let hot_key = (rules.rules()[hot.rule].id(), subject);
            // Two hashes with the same beginning would make the same sample twice.
            if shown.contains(&hot_key) {
                continue;
            }
            let labels = [("rule", hot_key.0), ("subject", hot_key.1.as_str())];
            self.sample(name, &labels, hot.requests);
            shown.push(hot_key);
        }
    }

    /// Decisions by limits that came with a command.
    fn throttles(&mut self, counts: ThrottleCounts) {
        let name = "rate_limit_throttle_total";
        let help = "Checks of limits that came with the request, by outcome.";
        self.family(name, "counter", help);
        for (outcome, count) in [
            ("allowed", counts.allowed),
            ("limited", counts.limited),
            ("store_failed", counts.failed),
        ] {
            self.sample(name, &[("outcome", outcome)], count);
        }
    }

    /// Reloads of the config.
    fn config(&mut self, control: &ControlPlane) {
        let name = "rate_limit_config_reloads_total";
        self.family(name, "counter", "Readings of the config file, by outcome.");
        for (outcome, count) in control.reloads() {
            self.sample(name, &[("outcome", outcome)], count);
        }
        let name = "rate_limit_config_last_reload_success";
        let help = "1 if the config file is in force as it was last read, 0 if it was rejected.";
        self.family(name, "gauge", help);
        let in_force = control.status().refused.is_none();
        self.sample(name, &[], u8::from(in_force));
        let name = "rate_limit_audit_errors_total";
        let help = "Entries that are missing from the audit trail.";
        self.family(name, "counter", help);
        self.sample(name, &[], control.audit().errors());
    }

    /// State in this process.
    fn memory(&mut self, usage: Usage, max_keys: usize, namespace: &str) {
        let namespace = [("namespace", namespace)];
        self.family("rate_limit_keys", "gauge", "States kept.");
        self.sample("rate_limit_keys", &namespace, usage.keys);
        self.family("rate_limit_max_keys", "gauge", "States that may be kept.");
        self.sample("rate_limit_max_keys", &namespace, max_keys);
        self.family(
            "rate_limit_memory_bytes",
            "gauge",
            "Bytes the kept states occupy.",
        );
        self.sample("rate_limit_memory_bytes", &namespace, usage.bytes);
        self.family(
            "rate_limit_shared_decisions_total",
            "counter",
            "Checks of new subjects decided by a shared state because the key cap was reached.",
        );
        self.sample(
            "rate_limit_shared_decisions_total",
            &namespace,
            usage.shared,
        );
    }

    /// Decisions by failure policies.
    fn fallbacks(&mut self, fallbacks: impl Iterator<Item = (&'static str, u64)>) {
        self.family(
            "rate_limit_fallback_total",
            "counter",
            "Requests decided by a failure policy instead of the store.",
        );
        for (policy, count) in fallbacks {
            self.sample("rate_limit_fallback_total", &[("policy", policy)], count);
        }
    }

    /// The state of the store.
    fn redis(&mut self, store: &RedisStore, known_denials: u64) {
        let metrics = store.metrics();
        self.family(
            "rate_limit_redis_latency_ms",
            "histogram",
            "Milliseconds a call of a script took.",
        );
        for (script, answered, counts) in metrics.latency() {
            let outcome = if answered { "ok" } else { "error" };
            let labels = [("script", script), ("outcome", outcome)];
            self.histogram("rate_limit_redis_latency_ms", &labels, &counts, 1000);
        }
        self.family(
            "rate_limit_redis_batch_size",
            "histogram",
            "Requests that left in one call of a script.",
        );
        self.histogram("rate_limit_redis_batch_size", &[], &metrics.batches(), 1);
        self.family(
            "rate_limit_script_errors_total",
            "counter",
            "Requests that a script did not decide, by the kind of error.",
        );
        for (script, error, count) in metrics.errors() {
            let labels = [("script", script), ("error_type", error)];
            self.sample("rate_limit_script_errors_total", &labels, count);
        }
        self.family(
            "rate_limit_known_denials_total",
            "counter",
            "Requests denied without asking the store, because their denial was known.",
        );
        self.sample("rate_limit_known_denials_total", &[], known_denials);
        self.family(
            "rate_limit_store_in_flight",
            "gauge",
            "Requests that wait for the store.",
        );
        self.sample("rate_limit_store_in_flight", &[], store.in_flight() as u64);
        self.family(
            "rate_limit_breaker_state",
            "gauge",
            "1 for the state the circuit breaker of a server is in.",
        );
        let states = [
            BreakerState::Closed,
            BreakerState::Open,
            BreakerState::HalfOpen,
        ];
        for (server, current) in store.breakers() {
            for state in states {
                let labels = [("server", server.as_str()), ("state", state.name())];
                self.sample(
                    "rate_limit_breaker_state",
                    &labels,
                    u64::from(state == current),
                );
            }
        }
    }

    /// A histogram whose values are `per_unit` times the shown unit.
    fn histogram(
        &mut self,
        name: &str,
        labels: &[(&str, &str)],
        counts: &HistogramCounts,
        per_unit: u32,
    ) {
        // Bounds are small numbers, which a float shows exactly.
        #[allow(clippy::cast_precision_loss)]
        let shown = |value: u64| (value as f64 / f64::from(per_unit)).to_string();
        let bucket = format!("{name}_bucket");
        for (bound, count) in &counts.up_to {
            let bound = shown(*bound);
            let labels = [labels, &[("le", bound.as_str())]].concat();
            self.sample(&bucket, &labels, *count);
        }
        self.sample(&bucket, &[labels, &[("le", "+Inf")]].concat(), counts.count);
        self.sample(&format!("{name}_sum"), labels, shown(counts.sum));
        self.sample(&format!("{name}_count"), labels, counts.count);
    }

    fn per_rule<'a>(
        &mut self,
        name: &str,
        help: &str,
        counts: impl Iterator<Item = (&'a Rule, u64)>,
    ) {
        self.family(name, "counter", help);
        for (rule, count) in counts {
            self.sample(name, &[("rule", rule.id())], count);
        }
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        self.0.push_str(name);
        for (i, (label, text)) in labels.iter().enumerate() {
            self.0.push_str(if i == 0 { "{" } else { "," });
            let text = text
                .replace('\\', "\\\\")
                .replace('"', "\\\"")
                .replace('\n', "\\n");
            let _ = write!(self.0, "{label}=\"{text}\"");
        }
        let end = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.0, "{end} {value}");
    }
}
