//! The metrics of the store: states, memory, holds, and the calls of Redis.

use tollgate::{PrepaidUsage, ReportedUsage, Usage};
use tollgate_config::Config;
use tollgate_redis::{BreakerState, RedisStore};

use super::Page;

/// How many rules are shown with the count of their keys.
const COUNTED_RULES: usize = 100;

/// A store on Redis, as the metrics show it.
pub(super) struct RedisOf<'e> {
    /// The label of the store, if there are several.
    pub(super) name: Option<&'e str>,
    pub(super) store: &'e RedisStore,
    pub(super) known_denials: u64,
}

/// The states and holds of a store, as the metrics show them.
struct Kept<'l> {
    labels: Vec<(&'l str, &'l str)>,
    usage: Usage,
    /// How many are open, by kind.
    holds: Vec<(&'static str, u64)>,
}

impl RedisOf<'_> {
    /// Returns `labels`, and the name of the store if there are several.
    fn labels<'l>(&'l self, labels: &[(&'l str, &'l str)]) -> Vec<(&'l str, &'l str)> {
        let name = self.name.map(|name| ("store", name));
        labels.iter().copied().chain(name).collect()
    }
}

impl Page {
    /// Writes the size of the state of local rules, beside a store on Redis.
    pub(super) fn local(&mut self, usage: Usage, namespace: &str) {
        let labels = [("namespace", namespace)];
        let (name, help) = ("rate_limit_local_keys", "States of local rules kept.");
        self.single(name, "gauge", help, &labels, usage.keys);
        let name = "rate_limit_local_memory_bytes";
        let help = "Bytes the states of local rules occupy.";
        self.single(name, "gauge", help, &labels, usage.bytes);
    }

    /// Writes how many states and holds each store has. `memory` is the usage of the default store, if it is in this
    /// process.
    pub(super) fn states(
        &mut self,
        memory: Option<Usage>,
        stores: &[RedisOf<'_>],
        config: &Config,
    ) {
        let namespace = ("namespace", config.namespace.as_str());
        let mut kept = Vec::new();
        if let Some(usage) = memory {
            let name = (!config.stores.is_empty()).then_some(("store", "default"));
            kept.push(Kept {
                labels: std::iter::once(namespace).chain(name).collect(),
                usage,
                holds: vec![("reservation", usage.reservations), ("lease", usage.leases)],
            });
        }
        for it in stores {
            let census = it.store.census();
            kept.push(Kept {
                labels: it.labels(&[namespace]),
                usage: Usage {
                    keys: census.keys(),
                    bytes: census.bytes(),
                    shared: it.store.shared_decisions(),
                    ..Usage::default()
                },
                // Redis does not count the two kinds apart.
                holds: census
                    .open_holds
                    .map(|open| ("any", open))
                    .into_iter()
                    .collect(),
            });
        }
        self.family("rate_limit_keys", "gauge", "States kept.");
        for it in &kept {
            self.sample(&it.labels, it.usage.keys);
        }
        let help = "How many states may be kept.";
        self.family("rate_limit_max_keys", "gauge", help);
        for it in &kept {
            self.sample(&it.labels, config.subjects.max_keys);
        }
        let help =
            "Checks of new subjects decided by a shared state because the key cap was reached.";
        self.family("rate_limit_shared_decisions_total", "counter", help);
        for it in &kept {
            self.sample(&it.labels, it.usage.shared);
        }
        let help = "Reservations that are open, and leases that are held.";
        self.family("rate_limit_open_holds", "gauge", help);
        for it in &kept {
            for (kind, count) in &it.holds {
                self.sample(&[&*it.labels, &[("kind", kind)]].concat(), count);
            }
        }
        if let Some(usage) = memory {
            let (name, help) = ("rate_limit_memory_bytes", "Bytes the kept states occupy.");
            self.single(name, "gauge", help, &[namespace], usage.bytes);
        }
    }

    /// Writes the state of the stores on Redis.
    pub(super) fn redis(&mut self, stores: &[RedisOf<'_>]) {
        let help = "Milliseconds a call of a script took.";
        self.family("rate_limit_redis_latency_ms", "histogram", help);
        for it in stores {
            for (script, answered, counts) in it.store.metrics().latency() {
                let outcome = if answered { "ok" } else { "error" };
                let labels = it.labels(&[("script", script), ("outcome", outcome)]);
                self.histogram(&labels, &counts, 1000);
            }
        }
        let help = "Requests sent in one call of a script.";
        self.family("rate_limit_redis_batch_size", "histogram", help);
        for it in stores {
            self.histogram(&it.labels(&[]), &it.store.metrics().batches(), 1);
        }
        let help = "Requests that a script did not decide, by the kind of error.";
        self.family("rate_limit_script_errors_total", "counter", help);
        for it in stores {
            for (script, error, count) in it.store.metrics().errors() {
                let labels = it.labels(&[("script", script), ("error_type", error)]);
                self.sample(&labels, count);
            }
        }
        let help = "Requests denied without asking the store, because their denial was known.";
        self.family("rate_limit_known_denials_total", "counter", help);
        for it in stores {
            self.sample(&it.labels(&[]), it.known_denials);
        }
        let help = "Requests that wait for the store.";
        self.family("rate_limit_store_in_flight", "gauge", help);
        for it in stores {
            self.sample(&it.labels(&[]), it.store.in_flight());
        }
        let help = "1 for the state the circuit breaker of a server is in.";
        self.family("rate_limit_breaker_state", "gauge", help);
        for it in stores {
            for (server, current) in it.store.breakers() {
                for state in [
                    BreakerState::Closed,
                    BreakerState::Open,
                    BreakerState::HalfOpen,
                ] {
                    let labels = it.labels(&[("server", &server), ("state", state.name())]);
                    self.sample(&labels, u8::from(state == current));
                }
            }
        }
    }

    /// Writes what leased mode has done.
    pub(super) fn prepaid(&mut self, usage: PrepaidUsage) {
        let help = "Requests with leased rules, by what decided them.";
        self.family("rate_limit_prepaid_decisions_total", "counter", help);
        self.sample(&[("by", "slice")], usage.covered);
        self.sample(&[("by", "store")], usage.asked);
        let (name, help) = ("rate_limit_prepaid_draws_total", "Draws of leased rules.");
        self.single(name, "counter", help, &[], usage.draws);
        let help = "Units of leased rules: drawn, returned unused, or lost.";
        self.family("rate_limit_prepaid_units_total", "counter", help);
        self.sample(&[("what", "drawn")], usage.drawn_units);
        self.sample(&[("what", "returned")], usage.returned_units);
        self.sample(&[("what", "lost")], usage.lost_units);
        let (name, help) = ("rate_limit_prepaid_keys", "Keys with slices.");
        self.single(name, "gauge", help, &[], usage.keys);
        let name = "rate_limit_prepaid_usable_units";
        let help = "Units that can be used without a call.";
        self.single(name, "gauge", help, &[], usage.usable_units);
    }

    /// Writes what async mode has done.
    pub(super) fn reported(&mut self, usage: ReportedUsage) {
        let help = "Requests with async rules, by what decided them.";
        self.family("rate_limit_async_decisions_total", "counter", help);
        self.sample(&[("by", "instance")], usage.decided);
        self.sample(&[("by", "store")], usage.asked);
        let (name, help) = ("rate_limit_async_reports_total", "Reports of async rules.");
        self.single(name, "counter", help, &[], usage.reports);
        let help = "Units of async rules: reported, or in reports without an answer.";
        self.family("rate_limit_async_units_total", "counter", help);
        self.sample(&[("what", "reported")], usage.reported_units);
        self.sample(&[("what", "unconfirmed")], usage.unconfirmed_units);
        let name = "rate_limit_async_overdrawn_units_total";
        let help = "Reported units of which the store had nothing left when it counted them.";
        self.single(name, "counter", help, &[], usage.overdrawn_units);
        let (name, help) = ("rate_limit_async_keys", "Keys that this instance decides.");
        self.single(name, "gauge", help, &[], usage.keys);
        let name = "rate_limit_async_pending_units";
        let help = "Admitted units that are not reported yet.";
        self.single(name, "gauge", help, &[], usage.pending_units);
    }

    /// Writes the last count of the keys and the servers of each store.
    pub(super) fn census(&mut self, stores: &[RedisOf<'_>], config: &Config) {
        self.keys_in_redis(stores, config);
        self.servers(stores);
    }

    /// Writes the last count of the keys of each store on Redis.
    fn keys_in_redis(&mut self, stores: &[RedisOf<'_>], config: &Config) {
        let counted: Vec<_> = stores.iter().map(|it| (it, it.store.census())).collect();
        let namespace = ("namespace", config.namespace.as_str());
        let help = "About how many states anonymous subjects have.";
        self.family("rate_limit_anonymous_keys", "gauge", help);
        for (it, census) in &counted {
            self.sample(&it.labels(&[namespace]), census.anonymous_keys());
        }
        let help = "How many states anonymous subjects may have.";
        self.family("rate_limit_max_anonymous_keys", "gauge", help);
        for (it, _) in &counted {
            let most = config.subjects.max_anonymous_keys;
            self.sample(&it.labels(&[namespace]), most);
        }
        let mut rules: Vec<_> = Vec::new();
        for (it, census) in &counted {
            let mut most: Vec<_> = census.rules.iter().collect();
            most.sort_by_key(|(_, rule)| std::cmp::Reverse(rule.keys));
            let most = most.into_iter().take(COUNTED_RULES);
            rules.extend(most.map(|(rule, counted)| {
                let labels = it.labels(&[namespace, ("rule", rule)]);
                (labels, counted)
            }));
        }
        let help = "About how many keys a rule has, for the rules with the most keys.";
        self.family("rate_limit_rule_keys", "gauge", help);
        for (labels, counted) in &rules {
            self.sample(labels, counted.keys);
        }
        let help =
            "About how many bytes the keys of a rule occupy, for the rules with the most keys.";
        self.family("rate_limit_rule_memory_bytes", "gauge", help);
        for (labels, counted) in &rules {
            self.sample(labels, counted.bytes);
        }
    }

    /// Writes the servers as of the last count of the keys.
    fn servers(&mut self, stores: &[RedisOf<'_>]) {
        let counted: Vec<_> = stores.iter().map(|it| (it, it.store.census())).collect();
        let servers = counted
            .iter()
            .flat_map(|(it, census)| census.servers.iter().map(move |server| (it, server)));
        let help = "Bytes that a server uses.";
        self.family("rate_limit_redis_used_memory_bytes", "gauge", help);
        for (it, server) in servers.clone() {
            let labels = it.labels(&[("server", &server.server)]);
            self.sample(&labels, server.used_memory);
        }
        let help = "Bytes that a server may use; 0 if it has no bound.";
        self.family("rate_limit_redis_max_memory_bytes", "gauge", help);
        for (it, server) in servers.clone() {
            let labels = it.labels(&[("server", &server.server)]);
            self.sample(&labels, server.max_memory);
        }
        let help = "By how many seconds the clock of a server is ahead of the clock of this host.";
        self.family("rate_limit_store_clock_ahead_seconds", "gauge", help);
        for (it, server) in servers {
            let (sign, micros) = match server.clock_ahead {
                behind @ ..0 => ("-", behind.unsigned_abs()),
                ahead => ("", ahead.unsigned_abs()),
            };
            let seconds = format_args!("{sign}{}.{:06}", micros / 1_000_000, micros % 1_000_000);
            let labels = it.labels(&[("server", &server.server)]);
            self.sample(&labels, seconds);
        }
    }
}
