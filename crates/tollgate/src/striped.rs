//! Counters that many threads count in at once.
//!
//! Each thread counts in its own stripe, so that threads do not share cache lines. A reader adds up the
//! stripes.

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// How many stripes there are. If there are more threads, some threads share a stripe.
pub(crate) const STRIPES: usize = 16;

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
        let cell = self.0.get(stripe()).and_then(|stripe| stripe.0.get(place));
        if let Some(cell) = cell {
            cell.fetch_add(count, Ordering::Relaxed);
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

/// Returns the stripe of this thread.
#[inline]
pub(crate) fn stripe() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    MINE.with(|mine| {
        if mine.get() == usize::MAX {
            mine.set(NEXT.fetch_add(1, Ordering::Relaxed) % STRIPES);
        }
        mine.get()
    })
}
