//! Reference models: the promise of each algorithm, written to be obvious, not fast.
//!
//! A [`Model`] keeps every event of a subject. To answer a question, the model replays the whole log in
//! exact integers (fractions have a common denominator). The model does not compute the instant of a
//! retry. It searches for the first instant at which the cost would be admitted. The model does not call
//! the crate's algorithms, and uses only the types of their answers.

pub(crate) mod bucket;
pub(crate) mod fixed_window;
pub(crate) mod leaky_bucket;
pub(crate) mod sliding_counter;
pub(crate) mod sliding_log;
pub(crate) mod two_window;

use std::collections::BTreeMap;
use std::fmt::Debug;

use tollgate_core::{Admission, CarryOver, Denial, Span, Time, Verdict};

/// Later than any instant in an answer.
const FAR: u64 = 1 << 54;

/// An event of a subject, and its instant in microseconds since the epoch.
#[derive(Clone, Debug)]
pub(crate) enum Event<N> {
    /// An admitted charge: the cost.
    Charged(u64),
    /// A charge that may overdraw: the cost, and how far the allowance may fall below zero.
    Overdrawn(u64, u64),
    /// A refund of an earlier charge: the cost, and the instant of the charge.
    Refunded(u64, u64),
    /// A change of the limit's numbers.
    Changed(N, CarryOver),
}

/// The numbers of one algorithm. The methods compute what the algorithm promises about a log.
pub(crate) trait Reference: Clone + Debug {
    /// The result of replaying a log.
    type Account;

    /// Returns the most that can be admitted at once.
    fn capacity(&self) -> u64;

    /// Returns the account of a subject never seen.
    fn open(&self) -> Self::Account;

    fn charge(&self, account: &mut Self::Account, cost: u64, at: u64);

    /// Charges `cost`, but does not take the account more than `most` below zero.
    fn overdraw(&self, account: &mut Self::Account, cost: u64, most: u64, at: u64);

    fn refund(&self, account: &mut Self::Account, cost: u64, charged_at: u64, at: u64);

    /// Changes the numbers to `to`.
    fn change(&self, account: &mut Self::Account, to: &Self, how: CarryOver, at: u64) {
        match how {
            CarryOver::Reset => *account = to.open(),
            CarryOver::Keep => self.carry_over(account, to, false, at),
            CarryOver::Proportional => self.carry_over(account, to, true, at),
        }
    }

    /// Carries over the used amount to the numbers `to`. If `share` is true, carries over its share of the
    /// capacity instead.
    fn carry_over(&self, account: &mut Self::Account, to: &Self, share: bool, at: u64);

    /// Returns whether `cost`, which is at most the capacity, would be admitted at `at`.
    fn fits(&self, account: &Self::Account, cost: u64, at: u64) -> bool;

    /// Returns the units left at `at`: below zero if overdrawn.
    fn left(&self, account: &Self::Account, at: u64) -> i128;

    /// Returns whether all events are forgotten at `at`.
    fn is_forgotten(&self, account: &Self::Account, at: u64) -> bool;

    /// Returns how long a request admitted at `at` waits for its turn.
    fn delay(&self, _account: &Self::Account, _at: u64) -> u64 {
        0
    }

    /// Returns whether a denial means that a queue is full.
    fn queues(&self) -> bool {
        false
    }
}

/// Costs by the number of their window or sub-bucket.
#[derive(Default)]
pub(crate) struct Counts {
    counts: BTreeMap<u64, u64>,
    /// The latest number of any event.
    latest: u64,
}

impl Counts {
    /// Adds `cost` to the window or sub-bucket number `running`, which becomes the latest.
    fn add(&mut self, cost: u64, running: u64) {
        self.latest = running;
        *self.counts.entry(running).or_default() += cost;
    }
}

/// All events of one subject.
#[derive(Clone, Debug)]
pub(crate) struct Model<N> {
    first: N,
    log: Vec<(Event<N>, u64)>,
}

impl<N: Reference> Model<N> {
    pub(crate) fn new(numbers: N) -> Model<N> {
        Model {
            first: numbers,
            log: Vec::new(),
        }
    }

    pub(crate) fn record(&mut self, event: Event<N>, at: u64) {
        self.log.push((event, at));
    }

    /// Returns the numbers in force, and the account of the whole log.
    fn replay(&self) -> (N, N::Account) {
        let mut numbers = self.first.clone();
        let mut account = numbers.open();
        for (event, at) in &self.log {
            match event {
                Event::Charged(cost) => numbers.charge(&mut account, *cost, *at),
                Event::Overdrawn(cost, most) => numbers.overdraw(&mut account, *cost, *most, *at),
                Event::Refunded(cost, charged) => {
                    numbers.refund(&mut account, *cost, *charged, *at);
                }
                Event::Changed(to, how) => {
                    numbers.change(&mut account, to, *how, *at);
                    numbers = to.clone();
                }
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

    /// Returns the units left: below zero if overdrawn.
    pub(crate) fn left(&self, now: u64) -> i128 {
        let (numbers, account) = self.replay();
        numbers.left(&account, now)
    }

    pub(crate) fn expires_at(&self) -> Time {
        let (numbers, account) = self.replay();
        Time::from_micros(first(0, |at| numbers.is_forgotten(&account, at)))
    }
}

/// Returns the first instant from `from` on at which `holds` is true. After this instant, `holds` must stay
/// true.
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

/// Scales `used` from the capacity `from` to the capacity `to`, rounded up. The result is at most `to`. If
/// `from` or `to` is 0, returns `used`.
fn share(used: u64, from: u64, to: u64) -> u64 {
    if from == 0 || to == 0 {
        return used;
    }
    let parts = u128::from(used) * u128::from(to);
    u64::try_from(parts.div_ceil(u128::from(from)).min(u128::from(to))).unwrap()
}

/// Scales `amounts`, which come newest first, so that each running sum is scaled and rounded up once.
fn scale<'a>(amounts: impl Iterator<Item = &'a mut u64>, from: u64, to: u64) {
    let mut newer = 0;
    for amount in amounts {
        let with_it = newer + *amount;
        *amount = share(with_it, from, to) - share(newer, from, to);
        newer = with_it;
    }
}

/// Subtracts `cost` from `amounts` in the order given, as far as possible.
fn take_off<'a>(amounts: impl Iterator<Item = &'a mut u64>, cost: u64) {
    let mut left = cost;
    for amount in amounts {
        let part = left.min(*amount);
        *amount -= part;
        left -= part;
    }
}
