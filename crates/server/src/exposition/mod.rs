//! Metrics in the Prometheus text format.
//!
//! Labels are names from the config file. No key or address is ever a label. Only the most active
//! subjects appear, each as the beginning of its hash.
//!
//! * `store`: the store. `doors`: the doors, with their connections and certificates. `process`: this
//!   process.

mod doors;
mod process;
mod store;

use std::fmt::{Display, Write};
use std::sync::Arc;

use axum::body::Bytes;
use parking_lot::Mutex;
use tollgate::algorithms::fair::WHOLE;
use tollgate::{
    Accounts, ActiveConfig, Kind, Reason, RuleCounts, Span, Time, WAIT_BOUNDS, WaitOutcome,
};
use tollgate_config::Store;
use tollgate_redis::HistogramCounts;

use crate::control::ControlPlane;
use crate::events::Webhook;
use crate::journal::JournalCounts;
use crate::process::Process;

use self::store::RedisOf;

/// How many subjects are shown.
const HOT_KEYS: usize = 10;
/// How many digits of a subject's hash: enough to find it in a log, too few to guess it.
const HOT_KEY_DIGITS: usize = 8;

/// While this many pages of a door are still being sent, further requests share a page for
/// [`SHARED_FOR`].
const MAX_PAGES: usize = 8;
/// How old a shared page may be.
const SHARED_FOR: Span = Span::from_millis(1000);

/// The pages of a door that are being sent. If many clients do not take their pages, they share pages. Each page
/// counts as memory of the clients that have not taken it: see `net::answer`.
#[derive(Default)]
pub(crate) struct Pages {
    last: Mutex<Option<(Time, Bytes)>>,
    /// Each page has a clone until it is sent. So the clones count the pages that are being sent.
    unsent: Arc<()>,
}

/// A page that was rendered.
struct Rendered {
    text: String,
    _unsent: Arc<()>,
}

impl AsRef<[u8]> for Rendered {
    fn as_ref(&self) -> &[u8] {
        self.text.as_bytes()
    }
}

impl Pages {
    /// Returns all metrics. They are up to date, unless too many pages are being sent.
    pub(crate) fn render(&self, control: &ControlPlane) -> Bytes {
        let mut last = self.last.lock();
        let now = control.now();
        if Arc::strong_count(&self.unsent) > MAX_PAGES
            && let Some((made, page)) = &*last
            && now.since(*made) < SHARED_FOR
        {
            return page.clone();
        }
        *last = None;
        let page = Bytes::from_owner(Rendered {
            text: render(control),
            _unsent: Arc::clone(&self.unsent),
        });
        // Keep the page only if the next requests have to share it.
        if Arc::strong_count(&self.unsent) > MAX_PAGES {
            *last = Some((now, page.clone()));
        }
        page
    }
}
/// Renders all metrics.
fn render(control: &ControlPlane) -> String {
    let engine = control.engine();
    // All rules and counts come from one config, even if a reload puts another config in force now.
    let live = engine.active();
    let mut page = Page {
        text: String::with_capacity(4096),
        family: "",
    };
    page.rules(&live, engine.blocked());
    page.events(&live);
    page.candidates(&live);
    page.fair(&live, control.now());
    page.remaining(&live);
    let adapted = engine.adapted_limits();
    if !adapted.is_empty() {
        let help = "The lowest limit of a subject of a rule with adaptive, at this instance.";
        page.family("rate_limit_adaptive_limit", "gauge", help);
        for (rule, limit) in &adapted {
            page.sample(&[("rule", rule)], limit);
        }
    }
    page.hot_keys(&live);
    let throttles = live.metrics().throttles();
    let outcomes = [
        ("allowed", throttles.allowed),
        ("limited", throttles.limited),
        ("store_failed", throttles.failed),
    ];
    let help = "Checks of limits that came with the request, by outcome.";
    page.counts("rate_limit_throttle_total", help, "outcome", outcomes);
    let config = live.config();
    let has_names = !config.stores.is_empty();
    let stores = engine
        .redis_stores()
        .map(|(name, store, known_denials)| RedisOf {
            name: name.or(has_names.then_some("default")),
            store,
            known_denials,
        });
    let stores: Vec<RedisOf<'_>> = stores.collect();
    let (memory, local) = match &config.store {
        Store::Memory => (engine.memory_usage(), None),
        _ => (None, engine.memory_usage()),
    };
    page.states(memory, &stores, config);
    if let Some(usage) = local {
        page.local(usage, &config.namespace);
    }
    if !stores.is_empty() {
        page.redis(&stores);
        page.prepaid(engine.prepaid_usage());
        page.reported(engine.reported_usage());
        page.census(&stores, config);
    }
    // A store in this process without a ledger has no fingerprint.
    if !engine.store().is_local() {
        let name = "tollgate_fingerprint_mismatch";
        let help =
            "1 if the store or the ledger belongs to instances with another hash_secret, 0 if not.";
        page.family(name, "gauge", help);
        for (place, is_other) in engine.fingerprint_mismatches() {
            page.sample(&[("place", place)], u8::from(is_other));
        }
    }
    let (name, policies) = ("rate_limit_fallback_total", engine.fallbacks());
    let help = "Requests decided by a failure policy instead of the store.";
    page.counts(name, help, "policy", policies);
    let (name, rejected) = ("rate_limit_holds_rejected_total", engine.rejected_holds());
    let help = "Reservations and leases rejected because their subject had too many open, or because the store was full.";
    page.counts(name, help, "reason", rejected);
    let delays = engine.denial_delays();
    let name = "rate_limit_denials_held_back";
    let help = "Denials that are held back now (delay_denials).";
    page.single(name, "gauge", help, &[], delays.held());
    let outcomes = [("delayed", delays.delayed()), ("at_once", delays.at_once())];
    let help = "Denials of rules with delay_denials: held back, or answered at once because too many were held back.";
    page.counts(
        "rate_limit_delayed_denials_total",
        help,
        "outcome",
        outcomes,
    );
    if let Some(journal) = control.journal() {
        page.journal(&journal.counts());
    }
    if let Some(webhook) = control.webhook() {
        page.webhook(webhook);
    }
    if let Some(accounts) = engine.accounts() {
        page.ledger(&accounts, control.now());
    }
    page.config(control);
    page.doors(control.doors());
    page.process(&Process::read());
    let help = "The running version and its rules.";
    let build = [
        ("version", env!("CARGO_PKG_VERSION")),
        ("config_version", live.rules().version()),
    ];
    page.single("tollgate_build_info", "gauge", help, &build, 1);
    page.text
}

struct Page {
    text: String,
    /// The name of the metric that is being written.
    family: &'static str,
}

impl Page {
    /// Begins a metric.
    fn family(&mut self, name: &'static str, kind: &str, help: &str) {
        self.family = name;
        // Writing to a String cannot fail.
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// Writes a counter with one label.
    fn counts(
        &mut self,
        name: &'static str,
        help: &str,
        label: &str,
        counts: impl IntoIterator<Item = (&'static str, u64)>,
    ) {
        self.family(name, "counter", help);
        for (text, count) in counts {
            self.sample(&[(label, text)], count);
        }
    }

    /// Writes the metrics of the journal of denials.
    fn journal(&mut self, counts: &JournalCounts) {
        let (name, help) = (
            "rate_limit_journal_written_total",
            "Denials that were recorded in the journal.",
        );
        self.single(name, "counter", help, &[], counts.written);
        let lost = [
            ("queue_full", counts.queue_full),
            ("disk_failed", counts.disk_failed),
        ];
        let help = "Denials that are not in the journal or not in its files, by cause.";
        self.counts("rate_limit_journal_dropped_total", help, "cause", lost);
        if let Some(size) = counts.size {
            let (name, help) = (
                "rate_limit_journal_written_bytes_total",
                "Bytes that were written to the files of the journal.",
            );
            self.single(name, "counter", help, &[], counts.written_bytes);
            let (name, help) = (
                "rate_limit_journal_bytes",
                "The size of the files of the journal of denials.",
            );
            self.single(name, "gauge", help, &[], size);
        }
    }

    /// Writes a metric that has one sample.
    fn single(
        &mut self,
        name: &'static str,
        kind: &str,
        help: &str,
        labels: &[(&str, &str)],
        value: impl Display,
    ) {
        self.family(name, kind, help);
        self.sample(labels, value);
    }

    /// Writes the checks by rule, and those that `blocked` counts by the attribute of the subject.
    fn rules(&mut self, live: &ActiveConfig, blocked: impl Iterator<Item = (&'static str, u64)>) {
        let counts = live.metrics().counts();
        let rules = || live.rules().rules().iter().zip(&counts);
        let help = "Checks by rule and outcome.";
        self.family("rate_limit_checks_total", "counter", help);
        for (rule, counts) in rules() {
            for (outcome, count) in [
                ("allowed", counts.allowed),
                ("rejected", counts.denied.iter().sum()),
                ("shadow_rejected", counts.shadow_denied),
            ] {
                let labels = [
                    ("rule", rule.id()),
                    ("algorithm", rule.algorithm().name()),
                    ("outcome", outcome),
                ];
                self.sample(&labels, count);
            }
        }
        let help = "Denied checks by rule, reason and kind of limit. Blocked ones have no rule.";
        self.family("rate_limit_rejected_total", "counter", help);
        for (rule, counts) in rules() {
            let reasons = Reason::ALL.into_iter().zip(counts.denied);
            for (reason, count) in reasons.filter(|(it, _)| *it != Reason::Blocked) {
                let labels = [
                    ("rule", rule.id()),
                    ("subject_type", rule.subject_type()),
                    ("reason", reason.name()),
                    ("kind", Kind::of(rule).name()),
                ];
                self.sample(&labels, count);
            }
        }
        // Blocks deny before any rule.
        for (subject_type, count) in blocked {
            let labels = [
                ("rule", ""),
                ("subject_type", subject_type),
                ("reason", Reason::Blocked.name()),
                ("kind", ""),
            ];
            self.sample(&labels, count);
        }
        let mut per_rule = |name, help, count: fn(&RuleCounts) -> u64| {
            self.family(name, "counter", help);
            for (rule, counts) in rules() {
                self.sample(&[("rule", rule.id())], count(counts));
            }
        };
        let help = "Checks a shadow rule would have denied.";
        per_rule("rate_limit_shadow_rejected_total", help, |it| {
            it.shadow_denied
        });
        let help = "Allowed checks that left less than a fifth of the limit.";
        per_rule("rate_limit_near_limit_total", help, |it| it.near_limit);
        let help = "Allowed checks beyond the limit of a quota, within its grace.";
        per_rule("rate_limit_grace_total", help, |it| it.grace);
        self.waits(live);
    }

    /// Writes the requests that wait for their turn, by rule.
    fn waits(&mut self, live: &ActiveConfig) {
        let rules = live.rules().rules().iter().enumerate();
        let rules = rules.filter_map(|(place, rule)| Some((rule, live.metrics().waits(place)?)));
        let rules: Vec<_> = rules.collect();
        if rules.is_empty() {
            return;
        }
        let help = "Requests that wait for their turn now (max_wait).";
        self.family("rate_limit_waiting", "gauge", help);
        for (rule, waits) in &rules {
            self.sample(&[("rule", rule.id())], waits.waiting());
        }
        let help = "Seconds that requests waited for their turn, by how the wait ended.";
        self.family("rate_limit_wait_seconds", "histogram", help);
        for (rule, waits) in &rules {
            for outcome in WaitOutcome::ALL {
                let (ended, sum) = waits.ended(outcome);
                let mut count = 0;
                let up_to = WAIT_BOUNDS.iter().zip(ended).map(|(bound, ended)| {
                    count += ended;
                    (*bound, count)
                });
                let up_to = up_to.collect();
                let count = ended.iter().sum();
                let labels = [("rule", rule.id()), ("outcome", outcome.name())];
                self.histogram(&labels, &HistogramCounts { up_to, count, sum }, 1_000_000);
            }
        }
    }

    /// Writes how often quotas came near their limits.
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
            self.sample(&labels, it.events);
        }
    }

    /// Writes the results of sending events.
    fn webhook(&mut self, webhook: &Webhook) {
        let name = "tollgate_webhook_deliveries_total";
        let help = "Events by the result of sending them.";
        self.counts(name, help, "outcome", webhook.deliveries());
        let name = "tollgate_webhook_queue_length";
        let help = "Events that wait to be sent.";
        self.single(name, "gauge", help, &[], webhook.queue_length());
    }

    /// Writes how candidates compare with the rules in force.
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
                self.sample(&labels, count);
            }
        }
    }

    /// Writes what fair rules gave to their clients, by lane and weight.
    fn fair(&mut self, live: &ActiveConfig, now: Time) {
        let fair = live.metrics().fair(now);
        if fair.is_empty() {
            return;
        }
        let id = |rule: usize| live.rules().rules()[rule].id();
        let help = "Checks of fair rules by lane, weight of the client and outcome.";
        self.family("rate_limit_fair_checks_total", "counter", help);
        for it in &fair {
            for class in &it.classes {
                let weight = class.weight.to_string();
                for (outcome, count) in [("allowed", class.allowed), ("rejected", class.denied)] {
                    let labels = [
                        ("rule", id(it.rule)),
                        ("lane", &*class.lane),
                        ("weight", &*weight),
                        ("outcome", outcome),
                    ];
                    self.sample(&labels, count);
                }
            }
        }
        let help = "Units that clients took from fair rules, by lane and weight of the client.";
        self.family("rate_limit_fair_units_total", "counter", help);
        for it in &fair {
            for class in &it.classes {
                let weight = class.weight.to_string();
                let labels = [
                    ("rule", id(it.rule)),
                    ("lane", &*class.lane),
                    ("weight", &*weight),
                ];
                self.sample(&labels, class.units);
            }
        }
        let help = "The guaranteed part of a lane of a fair rule, from 0 to 1.";
        self.family("rate_limit_fair_lane_share", "gauge", help);
        for it in &fair {
            for (lane, share) in &it.lanes {
                let share = f64::from(*share) / f64::from(WHOLE);
                self.sample(&[("rule", id(it.rule)), ("lane", &**lane)], share);
            }
        }
        let help = "About how many clients of a fair rule asked this instance in the last 30 to 60 seconds.";
        self.family("rate_limit_fair_clients", "gauge", help);
        for it in &fair {
            for class in &it.classes {
                let weight = class.weight.to_string();
                let labels = [
                    ("rule", id(it.rule)),
                    ("lane", &*class.lane),
                    ("weight", &*weight),
                ];
                self.sample(&labels, class.clients);
            }
        }
    }

    /// Writes how close rules came to their limits.
    fn remaining(&mut self, live: &ActiveConfig) {
        let help = "The lowest remainder of the limit after any decision since the last scrape.";
        self.family("rate_limit_remaining", "gauge", help);
        let least = live.metrics().take_least_remaining();
        for (rule, least) in live.rules().rules().iter().zip(least) {
            if let Some(least) = least {
                self.sample(&[("rule", rule.id())], least);
            }
        }
    }

    /// Writes the most active subjects.
    fn hot_keys(&mut self, live: &ActiveConfig) {
        let help =
            "The approximate number of recent checks by a subject, for the most active subjects.";
        self.family("rate_limit_hot_keys", "gauge", help);
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
            self.sample(&labels, hot.requests);
            shown.push(hot_key);
        }
    }

    /// Writes the reloads of the config.
    fn config(&mut self, control: &ControlPlane) {
        let name = "rate_limit_config_reloads_total";
        let help = "Readings of the config file, by outcome.";
        self.counts(name, help, "outcome", control.reloads());
        let name = "rate_limit_config_last_reload_success";
        let help = "1 if the config file is in force as it was last read, 0 if it was rejected.";
        let in_force = u8::from(control.status().refused.is_none());
        self.single(name, "gauge", help, &[], in_force);
        let name = "rate_limit_audit_errors_total";
        let help = "Entries that are missing from the audit trail.";
        self.single(name, "counter", help, &[], control.audit().errors());
    }

    /// Writes how far the ledger is behind.
    fn ledger(&mut self, accounts: &Accounts<'_>, now: Time) {
        let status = accounts.ledger().status();
        let name = "tollgate_ledger_connected";
        let help = "1 if the last attempt to reach the ledger's database succeeded, 0 if not.";
        self.single(name, "gauge", help, &[], u8::from(status.is_connected));
        let name = "tollgate_ledger_lag_seconds";
        let help = "The age of the oldest entry that is not in the database; 0 if all are.";
        // Milliseconds are precise enough.
        let lag = status.lag(now).map_or(0, Span::as_micros) / 1000;
        let lag = format_args!("{}.{:03}", lag / 1000, lag % 1000);
        self.single(name, "gauge", help, &[], lag);
        let name = "tollgate_ledger_queued_entries";
        let help = "Entries that wait in memory to be written to the ledger.";
        self.single(name, "gauge", help, &[], status.queued);
        let name = "tollgate_ledger_spilled_entries";
        let help = "Entries that wait in spill files because the database did not accept them.";
        self.single(name, "gauge", help, &[], status.spilled);
        let name = "tollgate_ledger_written_total";
        let help = "Entries written to the database of the ledger.";
        self.single(name, "counter", help, &[], status.written);
        let name = "tollgate_ledger_failures_total";
        let help = "Transactions of the ledger that failed and were retried.";
        self.single(name, "counter", help, &[], status.failures);
    }

    /// Writes a histogram. Its values are `per_unit` times the shown unit.
    fn histogram(&mut self, labels: &[(&str, &str)], counts: &HistogramCounts, per_unit: u32) {
        // Bounds are small numbers, which a float shows exactly.
        #[allow(clippy::cast_precision_loss)]
        let shown = |value: u64| (value as f64 / f64::from(per_unit)).to_string();
        let buckets = counts.up_to.iter();
        let buckets = buckets.map(|(bound, count)| (shown(*bound), *count));
        for (bound, count) in buckets.chain([("+Inf".to_owned(), counts.count)]) {
            let labels = [labels, &[("le", bound.as_str())]].concat();
            self.line("_bucket", &labels, count);
        }
        self.line("_sum", labels, shown(counts.sum));
        self.line("_count", labels, counts.count);
    }

    /// Writes a sample of the metric.
    fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.line("", labels, value);
    }

    fn line(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl Display) {
        self.text.push_str(self.family);
        self.text.push_str(suffix);
        for (i, (label, text)) in labels.iter().enumerate() {
            self.text.push_str(if i == 0 { "{" } else { "," });
            let text = text
                .replace('\\', "\\\\")
                .replace('"', "\\\"")
                .replace('\n', "\\n");
            let _ = write!(self.text, "{label}=\"{text}\"");
        }
        let end = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.text, "{end} {value}");
    }
}
