//! Counters that many threads count in at once.
//!
//! Each thread counts in its own stripe, so that threads do not share cache lines. A reader adds up the
//! stripes. The last stripe is for threads that find no free one.
//!
//! Only one thread writes to a stripe of its own. So it adds with a load and a store, which take a few
//! nanoseconds less than an atomic addition. When a thread ends, its stripe is free for another thread.

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// How many stripes there are.
pub(crate) const STRIPES: usize = 16;
/// The stripe that all threads without one of their own share.
const COMMON: usize = STRIPES - 1;

/// `N` counters, by their places.
///
/// ```
/// let counters = tollgate::Striped::<2>::default();
/// std::thread::scope(|threads| {
///     for _ in 0..4 {
///         threads.spawn(|| counters.add(1, 10));
///     }
/// });
/// assert_eq!(counters.sums(), [0, 40]);
/// ```
pub struct Striped<const N: usize>(Box<[Stripe<N>]>);

/// The counters of one stripe, on cache lines of their own.
#[repr(align(64))]
struct Stripe<const N: usize>([AtomicU64; N]);

impl<const N: usize> Default for Striped<N> {
    fn default() -> Striped<N> {
        let stripe = |_| Stripe([const { AtomicU64::new(0) }; N]);
        Striped((0..STRIPES).map(stripe).collect())
    }
}

impl<const N: usize> fmt::Debug for Striped<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Striped").field(&self.sums()).finish()
    }
}

impl<const N: usize> Striped<N> {
    /// Adds `count` to the counter at `place`. A place that does not exist is ignored.
    #[inline]
    pub fn add(&self, place: usize, count: u64) {
        let mine = stripe();
        let stripe = self.0.get(mine.index());
        if let Some(cell) = stripe.and_then(|stripe| stripe.0.get(place)) {
            mine.add(cell, count);
        }
    }

    /// Returns all counters.
    #[must_use]
    pub fn sums(&self) -> [u64; N] {
        let mut sums = [0; N];
        for stripe in &self.0 {
            for (sum, cell) in sums.iter_mut().zip(&stripe.0) {
                *sum += cell.load(Ordering::Relaxed);
            }
        }
        sums
    }
}

/// The stripe of the current thread. It stays on this thread.
#[derive(Clone, Copy)]
pub(crate) struct Mine(usize);

impl Mine {
    #[inline]
    pub(crate) fn index(self) -> usize {
        self.0
    }

    /// Adds to a cell of this stripe.
    #[inline]
    pub(crate) fn add(self, cell: &AtomicU64, count: u64) {
        if self.0 == COMMON {
            cell.fetch_add(count, Ordering::Relaxed);
        } else {
            let sum = cell.load(Ordering::Relaxed).wrapping_add(count);
            cell.store(sum, Ordering::Relaxed);
        }
    }
}

/// The stripes that threads own, one bit each.
static OWNED: AtomicU32 = AtomicU32::new(0);

/// The stripe that a thread owns until it ends.
struct Owner(Cell<usize>);

/// Before the first use.
const UNKNOWN: usize = usize::MAX;

impl Owner {
    #[cold]
    fn claim(&self) -> usize {
        // Acquire: the additions of the thread that owned the stripe before are seen.
        let claimed = OWNED.fetch_update(Ordering::Acquire, Ordering::Relaxed, |owned| {
            let free = owned.trailing_ones();
            ((free as usize) < COMMON).then_some(owned | 1 << free)
        });
        let index = claimed.map_or(COMMON, |owned| owned.trailing_ones() as usize);
        self.0.set(index);
        index
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let index = self.0.get();
        if index < COMMON {
            OWNED.fetch_and(!(1 << index), Ordering::Release);
        }
    }
}

/// Returns the stripe of this thread.
#[inline]
pub(crate) fn stripe() -> Mine {
    thread_local! {
        static OWNER: Owner = const { Owner(Cell::new(UNKNOWN)) };
    }
    let index = OWNER.try_with(|owner| match owner.0.get() {
        UNKNOWN => owner.claim(),
        index => index,
    });
    // A thread that is ending has given its stripe back.
    Mine(index.unwrap_or(COMMON))
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;

    /// More threads than stripes, twice in a row, so that threads share a stripe and take over others.
    #[test]
    fn no_count_is_lost_when_threads_share_and_take_over_stripes() {
        const THREADS: usize = 3 * STRIPES;
        let counters = Striped::<2>::default();
        for _ in 0..2 {
            let start = Barrier::new(THREADS);
            thread::scope(|threads| {
                for _ in 0..THREADS {
                    threads.spawn(|| {
                        start.wait();
                        for _ in 0..1000 {
                            counters.add(1, 3);
                        }
                    });
                }
            });
        }
        assert_eq!(counters.sums(), [0, 2 * 3 * 1000 * THREADS as u64]);
    }

    #[test]
    fn threads_that_live_at_the_same_time_do_not_own_the_same_stripe() {
        let (count, start) = (STRIPES / 2, Barrier::new(STRIPES / 2));
        let mut owned: Vec<usize> = thread::scope(|threads| {
            let spawned: Vec<_> = (0..count)
                .map(|_| {
                    threads.spawn(|| {
                        let index = stripe().index();
                        start.wait();
                        index
                    })
                })
                .collect();
            let joined = spawned.into_iter().map(|it| it.join().unwrap());
            joined.filter(|index| *index != COMMON).collect()
        });
        let all = owned.len();
        owned.sort_unstable();
        owned.dedup();
        assert_eq!(owned.len(), all);
    }
}
