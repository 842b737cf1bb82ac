//! The concurrency slots of requests at the gateway.
//!
//! A request that a concurrency rule limits holds a lease for as long as it lasts. The lease is renewed
//! meanwhile, and released when the answer has ended or the client has gone away. If the server dies, its
//! leases expire.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::{FutureExt, join_all};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};
use tollgate::{AskedLease, Engine, Hold, HoldError, HoldName, LeaseToken, Time};

use crate::outbound::Seldom;

/// How many leases are renewed at a time.
const BATCH: usize = 64;
/// How long to sleep if there is no lease.
const LONG: Duration = Duration::from_secs(3600);
/// How often the release of a lease is tried if the store does not answer, or does not know the lease.
const RELEASES: u32 = 3;
/// The longest pause between these tries.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The open leases of the gateway.
pub(crate) struct Slots {
    engine: Arc<Engine>,
    open: Mutex<Open>,
    /// Tells the keeper that a lease is due earlier than it knew.
    changed: Notify,
    /// Leases that ended before their requests.
    lost: AtomicU64,
    lost_log: Seldom,
}

#[derive(Default)]
struct Open {
    leases: HashMap<u64, Lease>,
    /// When each lease is renewed next.
    due: BTreeSet<(Instant, u64)>,
    next: u64,
}

struct Lease {
    name: HoldName,
    token: LeaseToken,
    every: Duration,
    due: Instant,
}

/// The slots of one request. They are released when this is dropped.
pub(crate) struct Slot {
    slots: Arc<Slots>,
    number: u64,
}

impl Slots {
    pub(crate) fn new(engine: &Arc<Engine>) -> Arc<Slots> {
        Arc::new(Slots {
            engine: Arc::clone(engine),
            open: Mutex::default(),
            changed: Notify::new(),
            lost: AtomicU64::new(0),
            lost_log: Seldom::default(),
        })
    }

    /// Prepares to ask for a lease.
    pub(super) fn asking(&self) -> Asking<'_> {
        Asking {
            engine: &self.engine,
            lease: Arc::default(),
        }
    }

    /// Keeps a lease that was granted at `granted_at`; `None` if it holds nothing.
    pub(super) fn hold(
        self: &Arc<Slots>,
        asking: &Asking<'_>,
        lease: &Hold,
        token: LeaseToken,
        granted_at: Time,
    ) -> Option<Slot> {
        if !matches!(lease.id, HoldName::Held(_)) {
            return None;
        }
        asking.lease.take();
        let every = Duration::from(lease.expires_at.since(granted_at)) / 3;
        let due = Instant::now() + every;
        let mut open = self.open.lock();
        let number = open.next;
        open.next += 1;
        let is_first = open.due.first().is_none_or(|(first, _)| due < *first);
        open.due.insert((due, number));
        open.leases.insert(
            number,
            Lease {
                name: lease.id,
                token,
                every,
                due,
            },
        );
        drop(open);
        if is_first {
            self.changed.notify_one();
        }
        Some(Slot {
            slots: Arc::clone(self),
            number,
        })
    }

    /// Returns how many requests hold slots.
    pub(crate) fn open(&self) -> usize {
        self.open.lock().leases.len()
    }

    /// Returns how many leases ended before their requests.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Runs for ever: renews leases when they are due.
    pub(crate) async fn renew(&self) {
        loop {
            let first = self.open.lock().due.first().map(|(due, _)| *due);
            tokio::select! {
                () = sleep_until(first.unwrap_or_else(|| Instant::now() + LONG)) => {}
                () = self.changed.notified() => continue,
            }
            let due = self.take_due();
            let renewing = due.into_iter().map(|(number, name, token)| async move {
                match self.engine.renew(&name, token, None).await {
                    Ok(_) => {}
                    // The next round tries again, before the lease expires.
                    Err(HoldError::Store(error)) => {
                        tracing::debug!(%error, "a lease of the gateway could not be renewed");
                    }
                    Err(error) => self.lose(number, &error),
                }
            });
            join_all(renewing).await;
        }
    }

    /// Returns some of the leases that are due, and sets their next time.
    fn take_due(&self) -> Vec<(u64, HoldName, LeaseToken)> {
        let (now, mut open) = (Instant::now(), self.open.lock());
        let open = &mut *open;
        let mut taken = Vec::new();
        while taken.len() < BATCH
            && let Some((due, number)) = open.due.first().copied()
            && due <= now
        {
            open.due.remove(&(due, number));
            if let Some(lease) = open.leases.get_mut(&number) {
                lease.due = now + lease.every;
                open.due.insert((lease.due, number));
                taken.push((number, lease.name, lease.token));
            }
        }
        taken
    }

    /// Forgets a lease that has ended, unless its request ended first.
    fn lose(&self, number: u64, error: &HoldError) {
        if self.remove(number).is_none() {
            return;
        }
        self.lost.fetch_add(1, Ordering::Relaxed);
        if let Some(unlogged) = self.lost_log.due() {
            tracing::warn!(%error, unlogged, "a request at the gateway lost its concurrency slot, and continues without it");
        }
    }

    fn remove(&self, number: u64) -> Option<Lease> {
        let mut open = self.open.lock();
        let lease = open.leases.remove(&number)?;
        open.due.remove(&(lease.due, number));
        Some(lease)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let Some(lease) = self.slots.remove(self.number) else {
            return;
        };
        give_back(&self.slots.engine, lease.name, lease.token, lease.every);
    }
}

/// A lease that is asked for. If the client goes away before the answer, or the answer never comes, the store may have
/// granted the lease all the same: then it is released when this is dropped.
pub(super) struct Asking<'s> {
    engine: &'s Arc<Engine>,
    lease: Arc<AskedLease>,
}

impl Asking<'_> {
    /// Returns where to note the lease.
    pub(super) fn lease(&self) -> Arc<AskedLease> {
        Arc::clone(&self.lease)
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if let Some((name, token)) = self.lease.take() {
            give_back(self.engine, name, token, LONGEST_PAUSE);
        }
    }
}

/// Releases a lease that is renewed `every` so often.
fn give_back(engine: &Arc<Engine>, name: HoldName, token: LeaseToken, every: Duration) {
    if engine.store().is_local() {
        // The store answers at once.
        let _ = engine.free(&name, token).now_or_never();
        return;
    }
    // Without a runtime the process ends, and the lease expires.
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        let pause = every.min(LONGEST_PAUSE);
        runtime.spawn(release(Arc::clone(engine), name, token, pause));
    }
}

/// Releases a lease of a shared store. The store may get to know the lease after this, on another connection: an
/// unknown lease is tried again.
async fn release(engine: Arc<Engine>, name: HoldName, token: LeaseToken, pause: Duration) {
    for attempt in 1..=RELEASES {
        match engine.free(&name, token).await {
            Err(error @ (HoldError::Store(_) | HoldError::Unknown)) => {
                tracing::debug!(%error, attempt, "a lease of the gateway could not be released");
                sleep(pause).await;
            }
            _ => return,
        }
    }
}
