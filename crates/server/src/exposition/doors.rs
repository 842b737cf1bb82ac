//! The metrics of the doors.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Page;
use crate::door_metrics::ShownDoor;
use crate::gateway::{Gateway, Upstream};
use crate::net::MAX_CONNECTIONS;

/// Decisions are measured in nanoseconds, and shown in seconds.
const PER_SECOND: u32 = 1_000_000_000;

impl Page {
    /// Writes what the doors have counted. Without doors, there is nothing to show.
    pub(super) fn doors(&mut self, doors: &[ShownDoor]) {
        if doors.is_empty() {
            return;
        }
        let help = "Answered requests by door and status.";
        self.family("rate_limit_requests_total", "counter", help);
        for door in doors {
            for (status, count) in door.metrics.statuses(door.statuses) {
                self.sample(&[("door", door.name), ("status", status)], count);
            }
        }
        let help = "Requests that could not be read or were rejected, by door and reason.";
        self.family("rate_limit_bad_requests_total", "counter", help);
        for door in doors {
            for (reason, count) in door.metrics.bad_requests() {
                self.sample(&[("door", door.name), ("reason", reason)], count);
            }
        }
        self.decisions(doors);
        let help = "Clients of this instance that wait for a lease.";
        self.family("rate_limit_lease_waiters", "gauge", help);
        for door in deciding(doors) {
            self.sample(&[("door", door.name)], door.metrics.lease_waiters());
        }
        self.connections(doors);
        self.certificates(doors);
        for gateway in doors.iter().filter_map(|door| door.gateway.as_ref()) {
            self.gateway(gateway);
        }
    }

    /// Writes what the gateway knows of its upstreams and its requests.
    fn gateway(&mut self, gateway: &Gateway) {
        let upstreams = gateway.upstreams();
        let help = "Requests that the gateway passed on, by upstream and outcome.";
        self.family("tollgate_upstream_requests_total", "counter", help);
        for upstream in &upstreams {
            let counts = &upstream.counts;
            for (outcome, count) in [
                ("answered", &counts.answered),
                ("failed", &counts.failed),
                ("timed_out", &counts.timed_out),
                ("repeated", &counts.repeated),
            ] {
                let labels = [("upstream", &**upstream.name()), ("outcome", outcome)];
                self.sample(&labels, count.load(Ordering::Relaxed));
            }
        }
        let help = "Open requests to each server of an upstream.";
        self.family("tollgate_upstream_open_requests", "gauge", help);
        for upstream in &upstreams {
            for (server, _, open) in upstream.states() {
                let labels = [("upstream", &**upstream.name()), ("server", &server)];
                self.sample(&labels, open);
            }
        }
        let help = "1 if a server of an upstream gets requests, 0 if it is out.";
        self.family("tollgate_upstream_up", "gauge", help);
        for upstream in &upstreams {
            for (server, is_up, _) in upstream.states() {
                let labels = [("upstream", &**upstream.name()), ("server", &server)];
                self.sample(&labels, u8::from(is_up));
            }
        }
        self.shedding(&upstreams);
        let (open, lost) = gateway.slots();
        let help = "Requests at the gateway that hold concurrency slots.";
        self.single("tollgate_gateway_slots", "gauge", help, &[], open);
        let help = "Requests at the gateway that lost their concurrency slots before they ended.";
        self.single(
            "tollgate_gateway_lost_slots_total",
            "counter",
            help,
            &[],
            lost,
        );
        let help = "Requests at the gateway that wait for their turn under a shaping rule.";
        self.single(
            "tollgate_gateway_waiting",
            "gauge",
            help,
            &[],
            gateway.waiting(),
        );
        if let Some(dropped) = gateway.dropped_lines() {
            let help = "Lines of the access log that were dropped.";
            let name = "tollgate_access_log_dropped_total";
            self.single(name, "counter", help, &[], dropped);
        }
    }

    /// Writes the adaptive limits of upstreams.
    fn shedding(&mut self, upstreams: &[Arc<Upstream>]) {
        let shedding = upstreams.iter();
        let shedding = shedding.filter_map(|it| Some((&**it.name(), it.shedding()?)));
        let shedding: Vec<_> = shedding.collect();
        if shedding.is_empty() {
            return;
        }
        let help = "The adaptive limit on requests in flight to an upstream.";
        self.family("tollgate_upstream_concurrency_limit", "gauge", help);
        for (name, shedding) in &shedding {
            self.sample(&[("upstream", name)], shedding.shedder().limit());
        }
        let help = "Requests in flight to an upstream with an adaptive limit, until the head of the answer.";
        self.family("tollgate_upstream_in_flight", "gauge", help);
        for (name, shedding) in &shedding {
            self.sample(&[("upstream", name)], shedding.shedder().in_flight());
        }
        let help = "Requests that were denied because their upstream is saturated, by priority.";
        self.family("tollgate_upstream_shed_total", "counter", help);
        for (name, shedding) in &shedding {
            for (priority, count) in shedding.denied() {
                self.sample(&[("upstream", name), ("priority", priority)], count);
            }
        }
        let help = "Requests whose upstream was told that it is nearly saturated.";
        self.family("tollgate_upstream_degraded_total", "counter", help);
        for (name, shedding) in &shedding {
            self.sample(&[("upstream", name)], shedding.shedder().degraded());
        }
        let help = "The mean latency of an upstream that moves its adaptive limit, and the latency without load.";
        self.family("tollgate_upstream_latency_seconds", "gauge", help);
        for (name, shedding) in &shedding {
            let (latency, unloaded) = shedding.shedder().latencies();
            for (kind, span) in [("recent", latency), ("unloaded", unloaded)] {
                if let Some(span) = span {
                    let labels = [("upstream", *name), ("kind", kind)];
                    self.sample(&labels, Duration::from(span).as_secs_f64());
                }
            }
        }
    }

    /// Writes what the doors have decided.
    fn decisions(&mut self, doors: &[ShownDoor]) {
        let help = "Seconds from a complete request to its answer, by outcome.";
        self.family("rate_limit_decision_seconds", "histogram", help);
        for door in deciding(doors) {
            for (outcome, counts) in door.metrics.decisions() {
                if counts.count > 0 {
                    let labels = [("door", door.name), ("outcome", outcome)];
                    self.histogram(&labels, &counts, PER_SECOND);
                }
            }
        }
        let help = "Requests that no rule applied to, by door and action.";
        self.family("rate_limit_unmatched_total", "counter", help);
        for door in deciding(doors) {
            for (action, count) in door.metrics.unmatched.counts() {
                self.sample(&[("door", door.name), ("action", &action)], count);
            }
        }
        if let Some(grpc) = doors.iter().find(|door| door.name == "grpc") {
            let name = "rate_limit_unknown_domains_total";
            let help = "Requests of Envoy with a domain that no rule knows, by outcome.";
            self.counts(name, help, "outcome", grpc.metrics.unknown_domains());
        }
    }

    /// Writes the connections of the doors.
    fn connections(&mut self, doors: &[ShownDoor]) {
        let listeners = || {
            let all = doors.iter();
            all.filter_map(|door| Some((door.name, &*door.metrics, door.connections.as_ref()?)))
        };
        let help = "Open connections by door.";
        self.family("tollgate_connections", "gauge", help);
        for (door, metrics, _) in listeners() {
            self.sample(&[("door", door)], metrics.open_connections());
        }
        let help = "How many connections each door may have. Further ones wait to be accepted.";
        self.single(
            "tollgate_max_connections",
            "gauge",
            help,
            &[],
            MAX_CONNECTIONS,
        );
        let help = "Connections closed at once because their client had too many, by door.";
        self.family("tollgate_refused_connections_total", "counter", help);
        for (door, _, connections) in listeners() {
            self.sample(&[("door", door)], connections.peers.refused());
        }
        let help = "Wrong tokens and passwords, by door.";
        self.family("tollgate_wrong_tokens_total", "counter", help);
        for (door, _, connections) in listeners() {
            self.sample(&[("door", door)], connections.attempts.count());
        }
        let help = "Connections cut because their client did not read its answers, by door.";
        self.family("tollgate_cut_connections_total", "counter", help);
        for (door, metrics, _) in listeners() {
            self.sample(&[("door", door)], metrics.cut_connections());
        }
    }

    /// Writes the certificates of the doors with TLS.
    fn certificates(&mut self, doors: &[ShownDoor]) {
        let tls = |door: &ShownDoor| door.connections.as_ref()?.tls.clone();
        let tls = doors
            .iter()
            .filter_map(|door| Some((door.name, tls(door)?)));
        let tls: Vec<_> = tls.collect();
        if tls.is_empty() {
            return;
        }
        let name = "tollgate_tls_certificate_expiry_timestamp_seconds";
        let help = "When the first certificate of the chain in use expires, by door.";
        self.family(name, "gauge", help);
        for (door, tls) in &tls {
            if let Some(at) = tls.expires_at() {
                self.sample(&[("door", door)], at);
            }
        }
        let name = "tollgate_tls_reload_failures_total";
        let help = "Changes of the TLS files that could not be used, by door.";
        let failures = tls.iter().map(|(door, tls)| (*door, tls.failures()));
        self.counts(name, help, "door", failures);
        let name = "tollgate_tls_last_reload_success";
        let help = "1 if the server uses the TLS files as they are now, 0 if they cannot be used.";
        self.family(name, "gauge", help);
        for (door, tls) in &tls {
            self.sample(&[("door", door)], u8::from(tls.is_current()));
        }
    }
}

/// Returns the doors that decide requests.
fn deciding(doors: &[ShownDoor]) -> impl Iterator<Item = &ShownDoor> {
    doors.iter().filter(|door| door.name != "admin")
}
