//! The queues of a limiter: requests take a seat, wait for their turn, and leave.
//!
//! A [`Seat`] is a place in a queue. However its request ends, and also if its future is dropped, the seat is
//! given up and the turn passes on. `queue.rs` has the order.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};
use tollgate_config::Waiting;
use tollgate_core::{Charge, Key, Limit, Limiting, Span};
use tollgate_store::Ask;

use super::counts::{WaitCounts, WaitOutcome};
use super::queue::{Queue, Turn, Waiter};

/// The most requests that wait in all queues of a limiter together.
pub const MAX_SEATS: usize = 16_384;

/// All queues of a limiter.
#[derive(Debug, Default)]
pub struct WaitingRoom {
    queues: Mutex<HashMap<QueueId, Queue<Arc<Notify>>>>,
    /// How many requests wait. Kept apart from the queues, so that a request need not lock them when nobody
    /// waits.
    waiting: AtomicUsize,
    arrivals: AtomicU64,
}

/// A queue: a bucket, and a lane of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct QueueId {
    key: Key,
    lane: u8,
}

/// Where a request waits: the queue of a charge, and its client there.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitPlace {
    queue: QueueId,
    client: u64,
    weight: u32,
    units: u64,
    /// The rule, as an index of the config's rules.
    pub(super) rule: u32,
    pub(super) waiting: Waiting,
    refill: Refill,
}

/// How fast a limit refills.
#[derive(Clone, Copy, Debug)]
struct Refill {
    units: u64,
    window: Span,
    kind: RefillKind,
}

#[derive(Clone, Copy, Debug)]
enum RefillKind {
    /// Units return one by one.
    Steady,
    /// In any window, as many units return as the limit has.
    ByWindow,
    /// Units may return at any time.
    Unknown,
}

impl Refill {
    fn of(limit: &Limit) -> Refill {
        let (units, kind) = match limit {
            // Lanes borrow, so a lane may refill as fast as the whole bucket.
            Limit::Fair(fair) => (fair.meter().capacity(), RefillKind::Steady),
            Limit::Gcra(_) | Limit::TokenBucket(_) => (limit.capacity(), RefillKind::Steady),
            Limit::FixedWindow(_) | Limit::SlidingLog(_) => {
                (limit.capacity(), RefillKind::ByWindow)
            }
            _ => (limit.capacity(), RefillKind::Unknown),
        };
        Refill {
            units: units.max(1),
            window: limit.window(),
            kind,
        }
    }

    /// Returns the least time in which `units` return.
    fn time_of(self, units: u64) -> Duration {
        let window = self.window.as_micros();
        let micros = match self.kind {
            RefillKind::Steady => u128::from(units) * u128::from(window) / u128::from(self.units),
            RefillKind::ByWindow => u128::from(units / self.units) * u128::from(window),
            RefillKind::Unknown => 0,
        };
        Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX).min(MOST_MICROS))
    }
}

/// The least time after which a denied request may try again.
const SOON: Duration = Duration::from_millis(1);
/// Longer than any wait, and short enough to be added to an instant.
const MOST_MICROS: u64 = 86_400_000_000;

impl WaitPlace {
    /// Returns the place of a request that asks for `ask` under a charge of the rule at `rule`.
    pub(super) fn new(charge: &Charge<'_>, rule: u32, waiting: Waiting, ask: Ask) -> WaitPlace {
        let units = match ask {
            Ask::Exactly(units) => units,
            Ask::UpTo(_) => 1,
        };
        let (client, lane, weight) = match charge.limit {
            Limit::Fair(fair) => {
                let client = fair.client();
                (client.id, client.lane, client.weight)
            }
            _ => (0, 0, 1),
        };
        WaitPlace {
            queue: QueueId {
                key: charge.key,
                lane,
            },
            client,
            weight,
            units: units.saturating_mul(charge.cost),
            rule,
            waiting,
            refill: Refill::of(charge.limit),
        }
    }
}

impl WaitPlace {
    /// Returns whether requests of both places wait in the same queue.
    pub(super) fn is_in_queue_of(&self, other: &WaitPlace) -> bool {
        (self.queue, self.client) == (other.queue, other.client)
    }
}

/// When a request came.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    /// Later requests have higher numbers.
    number: u64,
    pub(super) at: Instant,
}

/// Why a request cannot join a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoSeat {
    /// Nobody of the request's client waits there: the request asks the store first.
    Empty,
    /// The queue is full. A place may be free at this instant.
    Full(Instant),
    /// The request would get its turn at this instant, after its deadline.
    TooLate(Instant),
}

impl WaitingRoom {
    /// Returns how many requests wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Returns how many queues there are: buckets, or lanes of buckets, that requests wait for.
    #[must_use]
    pub fn queues(&self) -> usize {
        self.queues.lock().len()
    }

    /// Notes that a request arrives now.
    pub(super) fn arrive(&self) -> Arrival {
        Arrival {
            number: self.arrivals.fetch_add(1, Ordering::Relaxed),
            at: Instant::now(),
        }
    }

    /// Takes a seat behind other requests of the same client. The store is not asked: they would be overtaken.
    pub(super) fn join_behind(
        &self,
        place: WaitPlace,
        arrival: Arrival,
        (now, deadline): (Instant, Instant),
        counts: &Arc<WaitCounts>,
    ) -> Result<Seat<'_>, NoSeat> {
        let mut queues = self.queues.lock();
        let queue = queues.get_mut(&place.queue);
        let ahead = queue.as_ref().and_then(|it| it.ahead(place.client));
        let (Some(queue), Some((next, units))) = (queue, ahead) else {
            return Err(NoSeat::Empty);
        };
        // The first request is admitted at `next` at the earliest. After it, all units ahead have to refill.
        let units = units.saturating_add(place.units);
        let turn = next.max(now) + place.refill.time_of(units);
        if turn > deadline {
            return Err(NoSeat::TooLate(turn));
        }
        self.sit(queue, (place, arrival), next, now, counts)
    }

    /// Takes a seat for a request that the store has denied, and that the store expects to admit at `next`.
    pub(super) fn join(
        &self,
        place: WaitPlace,
        arrival: Arrival,
        (now, next): (Instant, Instant),
        deadline: Instant,
        counts: &Arc<WaitCounts>,
    ) -> Result<Seat<'_>, NoSeat> {
        let mut queues = self.queues.lock();
        let queue = queues.entry(place.queue).or_default();
        let waiter = Waiter {
            client: place.client,
            arrival: arrival.number,
        };
        // Other requests of its client may have taken seats while the store was asked.
        if let Some((first, units)) = queue.ahead_of(waiter) {
            let units = units.saturating_add(place.units);
            let turn = first.max(now) + place.refill.time_of(units);
            if turn > deadline {
                return Err(NoSeat::TooLate(turn));
            }
        }
        let seat = self.sit(queue, (place, arrival), next, now, counts);
        if seat.is_err() && queue.is_empty() {
            queues.remove(&place.queue);
        }
        seat
    }

    fn sit(
        &self,
        queue: &mut Queue<Arc<Notify>>,
        (place, arrival): (WaitPlace, Arrival),
        next: Instant,
        now: Instant,
        counts: &Arc<WaitCounts>,
    ) -> Result<Seat<'_>, NoSeat> {
        let has_seat = |seats: usize| (seats < MAX_SEATS).then_some(seats + 1);
        let order = Ordering::Relaxed;
        if queue.len() >= place.waiting.max_waiting as usize
            || self.waiting.fetch_update(order, order, has_seat).is_err()
        {
            counts.count(WaitOutcome::Full, Duration::ZERO);
            // A request of this queue leaves then. If only other queues have requests, the store may admit this one at
            // `next`.
            let at = queue.next(now).unwrap_or(next);
            return Err(NoSeat::Full(at.max(now + SOON)));
        }
        counts.enter();
        let waiter = Waiter {
            client: place.client,
            arrival: arrival.number,
        };
        let turn = Arc::new(Notify::new());
        let share = (place.units, place.weight);
        let woken = queue.join(waiter, share, next, Arc::clone(&turn), now);
        wake(woken);
        Ok(Seat {
            room: self,
            place,
            waiter,
            turn,
            counts: Arc::clone(counts),
            since: arrival.at,
            is_taken: true,
        })
    }
}

/// Why a wait has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitEnd {
    /// The request may ask the store.
    Turn,
    /// The request has waited as long as it may. It would have been the next to ask.
    ExpiredNext,
    /// The request has waited as long as it may, and others are before it. Its turn would come at this instant.
    ExpiredBehind(Instant),
}

/// A place in a queue, until it is dropped.
#[derive(Debug)]
pub(super) struct Seat<'r> {
    room: &'r WaitingRoom,
    pub(super) place: WaitPlace,
    waiter: Waiter,
    turn: Arc<Notify>,
    counts: Arc<WaitCounts>,
    since: Instant,
    is_taken: bool,
}

impl Seat<'_> {
    /// Waits until the request may ask the store, or until `deadline`.
    pub(super) async fn wait(&self, deadline: Instant) -> WaitEnd {
        loop {
            let now = Instant::now();
            let (turn, woken) = self.with_queue(|queue| queue.turn(self.waiter, now));
            wake(woken);
            let until = match turn {
                Turn::Ask => return WaitEnd::Turn,
                Turn::At(at) => at.min(deadline),
                Turn::Other => deadline,
            };
            if now >= deadline {
                return match turn {
                    Turn::Other => WaitEnd::ExpiredBehind(self.turn_of_the_next(now)),
                    _ => WaitEnd::ExpiredNext,
                };
            }
            // A wake that comes before this is kept. The time is looked at again in any case.
            let _ = timeout_at(until, self.turn.notified()).await;
        }
    }

    /// Returns when another request of this client would get its turn: after all that wait now.
    fn turn_of_the_next(&self, now: Instant) -> Instant {
        let ahead = self.with_queue(|queue| queue.ahead(self.place.client));
        let (next, units) = ahead.unwrap_or((now, 0));
        (next + self.place.refill.time_of(units)).max(now + SOON)
    }

    /// Stays in the queue after the store has denied the request again, and expects to admit it at `next`.
    pub(super) fn denied(&self, (now, next): (Instant, Instant)) {
        let rest = self.place.refill.time_of(1).max(Duration::from_millis(1));
        wake(self.with_queue(|queue| queue.denied(self.waiter, next, rest, now)));
    }

    /// Gives the seat up for an admitted request, which asked at `asked_at`. `remaining` is what the client had
    /// left after that.
    pub(super) fn admitted(mut self, remaining: Option<u64>, asked_at: Instant, now: Instant) {
        let (refill, left) = (self.place.refill, remaining.unwrap_or(0));
        // From the time of the question on: the next question takes as long to reach the store.
        let next = |units: u64| asked_at + refill.time_of(units.saturating_sub(left));
        let woken = self.with_queue(|queue| queue.admitted(self.waiter, next, now));
        self.end(WaitOutcome::Admitted, woken, now);
    }

    /// Gives the seat up for a denied request. `next` is when the store would admit it.
    pub(super) fn refused(mut self, next: Option<Instant>, now: Instant) {
        let woken = self.with_queue(|queue| queue.leave(self.waiter, next, now));
        self.end(WaitOutcome::Denied, woken, now);
    }

    /// Gives the seat up for a seat in another queue.
    pub(super) fn move_on(mut self, now: Instant) {
        let woken = self.with_queue(|queue| queue.leave(self.waiter, None, now));
        self.free(woken);
    }

    fn with_queue<T: Default>(&self, act: impl FnOnce(&mut Queue<Arc<Notify>>) -> T) -> T {
        let mut queues = self.room.queues.lock();
        let id = &self.place.queue;
        let done = queues.get_mut(id).map(act);
        if queues.get(id).is_some_and(Queue::is_empty) {
            queues.remove(id);
        }
        done.unwrap_or_default()
    }

    fn end(&mut self, outcome: WaitOutcome, woken: Option<Arc<Notify>>, now: Instant) {
        self.counts
            .count(outcome, now.saturating_duration_since(self.since));
        self.free(woken);
    }

    fn free(&mut self, woken: Option<Arc<Notify>>) {
        self.is_taken = false;
        self.counts.leave();
        self.room.waiting.fetch_sub(1, Ordering::Relaxed);
        wake(woken);
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        if self.is_taken {
            let now = Instant::now();
            let woken = self.with_queue(|queue| queue.leave(self.waiter, None, now));
            self.end(WaitOutcome::Cancelled, woken, now);
        }
    }
}

fn wake(woken: Option<Arc<Notify>>) {
    if let Some(woken) = woken {
        woken.notify_one();
    }
}
