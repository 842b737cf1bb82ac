//! What a door counts: requests by status, bad requests by reason, decisions by outcome and time, and
//! requests that no rule applied to.
//!
//! Counting a good request costs no lock, no allocation and no text comparison: each count is at a fixed place
//! of a striped counter. Only the page of metrics turns places into labels.
//!
//! * `status`: the statuses of each protocol. `fault`: why a request is bad.
//! * `tally`: the outcomes of a question. `unmatched`: requests that no rule applied to.

mod fault;
mod status;
mod tally;
mod unmatched;

use std::net::IpAddr;
use std::ops::AddAssign;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tollgate::{Span, Started, Stopwatch, Striped};
use tollgate_redis::HistogramCounts;

pub(crate) use self::fault::Fault;
pub(crate) use self::status::{
    GRPC, HTTP, RESP, RESP_OK, Statuses, grpc as grpc_code, http as http_status,
    resp as resp_status,
};
pub(crate) use self::tally::Tally;
pub(crate) use self::unmatched::{Actions, Unmatched};
use crate::gateway::Gateway;
use crate::net::Connections;
use crate::outbound::Seldom;

/// The upper bounds of the buckets for decisions, in nanoseconds: from a decision in memory to one that
/// waited for a store. 3 ms is one of them, because it is a usual promise for denials.
const BOUNDS: [u64; 16] = [
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_000_000,
    3_000_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    1_000_000_000,
];

/// The places of one outcome: its buckets, one bucket beyond them, and the sum.
const PLACES: usize = BOUNDS.len() + 2;

/// The names of the outcomes, in the order of [`Tally`].
pub(crate) const OUTCOMES: [&str; 3] = ["allowed", "rejected", "store_failed"];

/// Requests by what was decided. A request is counted once, however many rules apply to it. Each check of a batch is
/// a request. Clients that wait for a lease are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestCounts {
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    /// The store failed: a failure policy decided, or nothing did.
    pub(crate) store_failed: u64,
}

impl AddAssign for RequestCounts {
    fn add_assign(&mut self, other: RequestCounts) {
        self.allowed += other.allowed;
        self.denied += other.denied;
        self.store_failed += other.store_failed;
    }
}

/// The counts of one door.
#[derive(Debug, Default)]
pub(crate) struct DoorMetrics {
    stopwatch: Stopwatch,
    statuses: Striped<{ status::MAX }>,
    faults: Striped<{ Fault::ALL.len() }>,
    decisions: Striped<{ PLACES * OUTCOMES.len() }>,
    pub(crate) unmatched: Unmatched,
    /// Requests with a domain that no rule knows, allowed and denied. Only the gRPC door has domains.
    unknown_domains: [AtomicU64; 2],
    /// Clients that wait for a lease.
    lease_waiters: AtomicUsize,
    open_connections: AtomicUsize,
    /// Connections that were cut because their client did not take an answer.
    cut: AtomicU64,
    cut_log: Seldom,
    room_log: Seldom,
    domain_log: Seldom,
}

impl DoorMetrics {
    /// Starts to measure a decision.
    #[inline]
    pub(crate) fn start(&self) -> Started {
        self.stopwatch.start()
    }

    /// Counts decisions that began at `started` and are answered now.
    #[inline]
    pub(crate) fn decided(&self, started: Started, tally: Tally) {
        self.decided_after(Span::ZERO, started, tally);
    }

    /// Like [`decided`](Self::decided), for a request that waited for its turn. The wait is not part of the time
    /// of the decision.
    #[inline]
    pub(crate) fn decided_after(&self, waited: Span, started: Started, tally: Tally) {
        if tally.is_empty() {
            return;
        }
        let nanos = self.stopwatch.nanos_since(started);
        let nanos = nanos.saturating_sub(waited.as_micros().saturating_mul(1000));
        let bucket = BOUNDS.partition_point(|bound| *bound < nanos);
        for (outcome, count) in tally.counts().into_iter().enumerate() {
            if count > 0 {
                let first = outcome * PLACES;
                self.decisions.add(first + bucket, count);
                let sum = nanos.saturating_mul(count);
                self.decisions.add(first + PLACES - 1, sum);
            }
        }
    }

    /// Counts answers with the status at this place of the door's [`Statuses`].
    #[inline]
    pub(crate) fn answered(&self, status: usize, count: u64) {
        self.statuses.add(status, count);
    }

    /// Counts a bad request. A request that was refused for lack of room is logged, at most once a second.
    #[cold]
    pub(crate) fn bad_request(&self, fault: Fault) {
        self.faults.add(fault as usize, 1);
        if fault == Fault::NoRoom
            && let Some(unlogged) = self.room_log.due()
        {
            tracing::warn!(
                unlogged,
                "refused a request for lack of room: clients leave too many requests unfinished and answers unread"
            );
        }
    }

    /// Counts a connection that was cut because its client did not take an answer. Logged at most once a
    /// second.
    #[cold]
    pub(crate) fn cut(&self, client: IpAddr) {
        self.cut.fetch_add(1, Ordering::Relaxed);
        if let Some(unlogged) = self.cut_log.due() {
            tracing::warn!(%client, unlogged, "cut a connection: the client did not read its answers");
        }
    }

    /// Counts a request with a domain that no rule knows. Logged at most once a second.
    #[cold]
    pub(crate) fn unknown_domain(&self, domain: &str, allowed: bool) {
        self.unknown_domains[usize::from(!allowed)].fetch_add(1, Ordering::Relaxed);
        if let Some(unlogged) = self.domain_log.due() {
            let domain: String = domain.chars().take(80).collect();
            tracing::warn!(
                domain,
                allowed,
                unlogged,
                "no rule applies to this Envoy domain; see server.grpc.unknown_domain"
            );
        }
    }

    /// Counts a client that waits for a lease, until the value is dropped.
    pub(crate) fn wait_for_lease(&self) -> LeaseWaiter<'_> {
        self.lease_waiters.fetch_add(1, Ordering::Relaxed);
        LeaseWaiter(&self.lease_waiters)
    }

    /// Returns the answers by status. Statuses that did not occur are left out.
    pub(crate) fn statuses(&self, names: Statuses) -> impl Iterator<Item = (&'static str, u64)> {
        let counted = names.iter().copied().zip(self.statuses.sums());
        counted.filter(|(_, count)| *count > 0)
    }

    /// Returns the bad requests by reason.
    pub(crate) fn bad_requests(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Fault::ALL
            .into_iter()
            .map(Fault::name)
            .zip(self.faults.sums())
    }

    /// Returns the times of decisions in nanoseconds, by outcome.
    pub(crate) fn decisions(&self) -> impl Iterator<Item = (&'static str, HistogramCounts)> {
        let sums = self.decisions.sums();
        let outcomes = OUTCOMES.into_iter().enumerate();
        outcomes.map(move |(outcome, name)| {
            let places = &sums[outcome * PLACES..(outcome + 1) * PLACES];
            let mut count = 0;
            let up_to = BOUNDS.iter().zip(places).map(|(bound, places)| {
                count += places;
                (*bound, count)
            });
            let up_to = up_to.collect();
            let counts = HistogramCounts {
                up_to,
                count: count + places[BOUNDS.len()],
                sum: places[PLACES - 1],
            };
            (name, counts)
        })
    }

    /// Returns the requests by what was decided.
    pub(crate) fn requests(&self) -> RequestCounts {
        let sums = self.decisions.sums();
        // The last place of an outcome is a sum of times.
        let count = |outcome: usize| sums[outcome * PLACES..][..PLACES - 1].iter().sum();
        RequestCounts {
            allowed: count(0),
            denied: count(1),
            store_failed: count(2),
        }
    }

    /// Returns the requests with unknown domains by outcome.
    pub(crate) fn unknown_domains(&self) -> [(&'static str, u64); 2] {
        let count = |place: usize| self.unknown_domains[place].load(Ordering::Relaxed);
        [("allowed", count(0)), ("rejected", count(1))]
    }

    /// Returns how many clients wait for a lease.
    pub(crate) fn lease_waiters(&self) -> usize {
        self.lease_waiters.load(Ordering::Relaxed)
    }

    /// Returns how many connections are open.
    pub(crate) fn open_connections(&self) -> usize {
        self.open_connections.load(Ordering::Relaxed)
    }

    /// Returns how many connections were cut because their client did not take an answer.
    pub(crate) fn cut_connections(&self) -> u64 {
        self.cut.load(Ordering::Relaxed)
    }
}

/// A door as the page of metrics shows it.
pub(crate) struct ShownDoor {
    pub(crate) name: &'static str,
    pub(crate) statuses: Statuses,
    pub(crate) metrics: Arc<DoorMetrics>,
    /// `None` if the door shares the listener of another door.
    pub(crate) connections: Option<Connections>,
    /// `None` for other doors.
    pub(crate) gateway: Option<Arc<Gateway>>,
}

/// Counts as an open connection until it is dropped.
pub(crate) struct OpenConnection(Arc<DoorMetrics>);

impl OpenConnection {
    pub(crate) fn new(metrics: &Arc<DoorMetrics>) -> OpenConnection {
        metrics.open_connections.fetch_add(1, Ordering::Relaxed);
        OpenConnection(Arc::clone(metrics))
    }

    pub(crate) fn metrics(&self) -> &DoorMetrics {
        &self.0
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.open_connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Counts as a waiting client until it is dropped.
pub(crate) struct LeaseWaiter<'m>(&'m AtomicUsize);

impl Drop for LeaseWaiter<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The counts of a listener that serves HTTP. Forward-auth has its own.
#[derive(Clone)]
pub(crate) struct HttpMetrics {
    pub(crate) door: Arc<DoorMetrics>,
    /// `None` if the door has no forward-auth.
    pub(crate) auth: Option<Arc<DoorMetrics>>,
}

impl HttpMetrics {
    /// Returns the counts that a request for `path` belongs to.
    #[inline]
    pub(crate) fn of(&self, path: &str) -> &Arc<DoorMetrics> {
        match &self.auth {
            Some(auth) if crate::forward_auth::is_path(path) => auth,
            _ => &self.door,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decisions_are_counted_by_outcome() {
        let metrics = DoorMetrics::default();
        let mut tally = Tally::default();
        tally.allowed(3);
        tally.rejected(1);
        metrics.decided(metrics.start(), tally);
        metrics.decided(metrics.start(), Tally::default());
        let counted: Vec<_> = metrics.decisions().collect();
        let counts: Vec<_> = counted.iter().map(|(name, it)| (*name, it.count)).collect();
        let expected = [("allowed", 3), ("rejected", 1), ("store_failed", 0)];
        assert_eq!(counts, expected);
        let requests = metrics.requests();
        assert_eq!((requests.allowed, requests.denied), (3, 1));
        assert_eq!(requests.store_failed, 0);
        for (_, counts) in counted {
            let last = counts.up_to.last().map(|(_, count)| *count);
            assert!(last.is_some_and(|last| last <= counts.count));
        }
    }

    #[test]
    fn bucket_includes_its_bound() {
        let bucket = |nanos| BOUNDS.partition_point(|bound| *bound < nanos);
        let three_ms = BOUNDS.iter().position(|bound| *bound == 3_000_000);
        assert_eq!(Some(bucket(3_000_000)), three_ms);
        assert_eq!(Some(bucket(3_000_001)), three_ms.map(|it| it + 1));
        assert_eq!(bucket(u64::MAX), BOUNDS.len());
    }

    #[test]
    fn waiting_client_counts_until_it_is_dropped() {
        let metrics = DoorMetrics::default();
        let waiters = [metrics.wait_for_lease(), metrics.wait_for_lease()];
        assert_eq!(metrics.lease_waiters(), 2);
        drop(waiters);
        assert_eq!(metrics.lease_waiters(), 0);
    }
}
