//! Reference models: what each algorithm promises, written to be obvious and not to be fast.
//!
//! A [`Model`] keeps every event that ever happened to a subject and forgets none. Each question is
//! answered by replaying the whole log in exact integers (fractions are kept over their common
//! denominator), and the instant of a retry is not computed but searched for: the first at which
//! the same question would be answered with yes. No code of the crate's algorithms is called; only
//! its types are used to phrase the answer.

pub(crate) mod bucket;
pub(crate) mod fixed_window;
pub(crate) mod leaky_bucket;
pub(crate) mod sliding_counter;
pub(crate) mod sliding_log;
pub(crate) mod two_window;

use std::fmt::Debug;

use tollgate_core::{Admission, CarryOver, Denial, Span, Time, Verdict};

/// Later than any instant an answer can name.
const FAR: u64 = 1 << 54;

/// Something that happened to a subject. Instants are microseconds since the epoch.
#[derive(Clone, Debug)]
pub(crate) enum Event<N> {
    /// It was admitted and charged.
    Charged { cost: u64, at: u64 },
    /// It was charged all the same, down to `most` below nothing.
    Overdrawn { cost: u64, most: u64, at: u64 },
    /// It got back what was charged earlier.
    Refunded { cost: u64, charged_at: u64, at: u64 },
    /// The numbers of its limit changed.
    Changed { to: N, how: CarryOver, at: u64 },
}

/// The numbers of one algorithm, and what they say about a log.
pub(crate) trait Reference: Clone + Debug {
    /// What a log amounts to.
    type Account;

    /// The most that can be admitted at once.
    fn capacity(&self) -> u64;

    /// The account of a subject never seen.
    fn open(&self) -> Self::Account;

    /// Enters an event that happened under these numbers.
    fn enter(&self, account: &mut Self::Account, event: &Event<Self>);

    /// Whether `cost`, which is not above the capacity, would be admitted at `at`.
    fn fits(&self, account: &Self::Account, cost: u64, at: u64) -> bool;

    /// How much is left at `at`, in whole units: below nothing if it is overdrawn.
    fn left(&self, account: &Self::Account, at: u64) -> i128;

    /// Whether nothing that happened counts any more at `at`.
    fn is_forgotten(&self, account: &Self::Account, at: u64) -> bool;

    /// How long one that is admitted at `at` has to wait for its turn.
    fn delay(&self, _account: &Self::Account, _at: u64) -> u64 {
        0
    }

    /// Whether a refusal means that a queue is full.
    fn queues(&self) -> bool {
        false
    }
}

/// Everything that happened to one subject.
#[derive(Clone, Debug)]
pub(crate) struct Model<N> {
    first: N,
    log: Vec<Event<N>>,
}

impl<N: Reference> Model<N> {
    pub(crate) fn new(numbers: N) -> Model<N> {
        Model {
            first: numbers,
            log: Vec::new(),
        }
    }

    pub(crate) fn record(&mut self, event: Event<N>) {
        self.log.push(event);
    }

    /// The numbers in force, and what the log amounts to.
    fn replay(&self) -> (N, N::Account) {
        let mut numbers = self.first.clone();
        let mut account = numbers.open();
        for event in &self.log {
            numbers.enter(&mut account, event);
            if let Event::Changed { to, .. } = event {
                numbers = to.clone();
            }
        }
        (numbers, account)
    }

    pub(crate) fn decide(&self, cost: u64, now: u64) -> Verdict {
        let (numbers, account) = self.replay();
        let admission = if cost > numbers.capacity() {
            Admission::Denied(Denial::Never)
        } else if numbers.fits(&account, cost, now) {
            Admission::Allowed {
                delay: Span::from_micros(numbers.delay(&account, now)),
            }
        } else {
            let at = Time::from_micros(first(now, |at| numbers.fits(&account, cost, at)));
            Admission::Denied(if numbers.queues() {
                Denial::QueueFull(at)
            } else {
                Denial::Until(at)
            })
        };
        Verdict {
            admission,
            available: u64::try_from(numbers.left(&account, now).max(0)).unwrap(),
        }
    }

    /// How much is left, in whole units: below nothing if it is overdrawn.
    pub(crate) fn left(&self, now: u64) -> i128 {
        let (numbers, account) = self.replay();
        numbers.left(&account, now)
    }

    pub(crate) fn expires_at(&self) -> Time {
        let (numbers, account) = self.replay();
        Time::from_micros(first(0, |at| numbers.is_forgotten(&account, at)))
    }
}

/// The first instant from `from` on at which `holds`, which then holds for ever.
fn first(from: u64, holds: impl Fn(u64) -> bool) -> u64 {
    let (mut low, mut high) = (from, FAR);
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}

/// The same share of `to` as `used` is of `from`, rounded up and at most all of it. What has no shares
/// stays as it is.
fn share(used: u64, from: u64, to: u64) -> u64 {
    if from == 0 || to == 0 {
        return used;
    }
    let parts = u128::from(used) * u128::from(to);
    u64::try_from(parts.div_ceil(u128::from(from)).min(u128::from(to))).unwrap()
}

/// Scales `amounts`, which come newest first, so that the newest of them together, however many, are
/// their share.
fn scale<'a>(amounts: impl Iterator<Item = &'a mut u64>, from: u64, to: u64) {
    let mut newer = 0;
    for amount in amounts {
        let with_it = newer + *amount;
        *amount = share(with_it, from, to) - share(newer, from, to);
        newer = with_it;
    }
}

/// Takes `cost` off `amounts` in the order given, as far as they reach.
fn take_off<'a>(amounts: impl Iterator<Item = &'a mut u64>, cost: u64) {
    let mut left = cost;
    for amount in amounts {
        let part = left.min(*amount);
        *amount -= part;
        left -= part;
    }
}
