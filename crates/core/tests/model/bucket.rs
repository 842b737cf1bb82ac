//! The model of token bucket and GCRA: one level, computed from the whole log.

use super::{Reference, first};

/// The algorithm of the crate that the model is compared with. Both algorithms make the same decisions.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Name {
    TokenBucket,
    Gcra,
}

/// A bucket of `capacity`, into which `amount` flows in each `period`.
#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    pub(crate) name: Name,
    pub(crate) capacity: u64,
    pub(crate) amount: u64,
    pub(crate) period: u64,
}

/// The level at an instant, as if the bucket had no upper and lower bound. The unit is `1/period` of a
/// token, so each microsecond adds `amount` units. `amount` and `period` are in lowest terms.
pub(crate) struct Level {
    level: i128,
    at: u64,
}

/// Returns the same ratio in lowest terms.
fn lowest(amount: u64, period: u64) -> (u64, u64) {
    let mut common = (amount, period);
    while common.1 > 0 {
        common = (common.1, common.0 % common.1);
    }
    (amount / common.0, period / common.0)
}

impl Bucket {
    /// Returns amount and period in lowest terms.
    fn reduced(&self) -> (u64, u64) {
        lowest(self.amount, self.period)
    }

    /// Returns how many units of a level make a token.
    fn unit(&self) -> u64 {
        self.reduced().1 / lowest(self.amount, self.period / self.grain()).1
    }

    /// Returns the resolution of time in microseconds: 1, or 1000 if the numbers are large.
    pub(crate) fn grain(&self) -> u64 {
        let units = u128::from(self.capacity) * u128::from(self.reduced().1);
        if units < 1 << 53 { 1 } else { 1000 }
    }

    /// Returns whether both have the same capacity and rate.
    pub(crate) fn is(&self, other: &Bucket) -> bool {
        self.capacity == other.capacity && self.reduced() == other.reduced()
    }

    fn floor(&self, at: u64) -> u64 {
        at - at % self.grain()
    }

    fn tokens(&self, tokens: u64) -> i128 {
        i128::from(tokens) * i128::from(self.reduced().1)
    }

    /// Returns `most`, or fewer tokens if `most` cannot be counted exactly or do not refill within 71 years.
    fn most(&self, most: u64) -> u64 {
        let (rate, token) = lowest(self.amount, self.period / self.grain());
        let in_time = u128::from((1 << 51) / self.grain()) * u128::from(rate);
        let room = in_time.min((1 << 53) - 1) - u128::from(self.capacity) * u128::from(token);
        most.min(u64::try_from(room / u128::from(token)).unwrap())
    }

    pub(crate) fn full(&self) -> i128 {
        self.tokens(self.capacity)
    }

    /// Returns the level at `at`. It is at most the capacity. It can be below zero if the bucket is overdrawn
    /// or the clock went back.
    pub(crate) fn level(&self, level: &Level, at: u64) -> i128 {
        let passed = i128::from(self.floor(at)) - i128::from(level.at);
        (level.level + passed * i128::from(self.reduced().0)).min(self.full())
    }

    /// Returns the time from `at` until the bucket is full.
    pub(crate) fn until_full(&self, level: &Level, at: u64) -> u64 {
        let missing = (self.full() - self.level(level, at)).unsigned_abs();
        let ticks = missing.div_ceil(u128::from(self.reduced().0) * u128::from(self.grain()));
        let full_at = self.floor(at) + u64::try_from(ticks).unwrap() * self.grain();
        full_at.saturating_sub(at)
    }
}

impl Reference for Bucket {
    type Account = Level;

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn open(&self) -> Level {
        Level {
            level: self.full(),
            at: 0,
        }
    }

    fn charge(&self, account: &mut Level, cost: u64, at: u64) {
        let level = self.level(account, at) - self.tokens(cost);
        let at = self.floor(at);
        *account = Level { level, at };
    }

    fn overdraw(&self, account: &mut Level, cost: u64, most: u64, at: u64) {
        let (level, lowest) = (self.level(account, at), -self.tokens(self.most(most)));
        if level > lowest {
            let level = (level - self.tokens(cost)).max(lowest);
            let at = self.floor(at);
            *account = Level { level, at };
        }
    }

    fn refund(&self, account: &mut Level, cost: u64, charged_at: u64, at: u64) {
        // The part that has refilled since the charge is not given back again.
        let passed = self.floor(at).saturating_sub(self.floor(charged_at));
        let flowed = i128::from(passed) * i128::from(self.reduced().0);
        let charged = self.tokens(cost.min(self.capacity));
        account.level += (charged - flowed).max(0);
    }

    fn carry_over(&self, account: &mut Level, to: &Bucket, share: bool, at: u64) {
        // If the level is below zero, use the first instant at which it is zero.
        let seen = first(at, |at| self.level(account, at) >= 0);
        let missing = (self.full() - self.level(account, seen)).unsigned_abs();
        let missing = if share && self.capacity > 0 && to.capacity > 0 {
            let unit = u128::from(to.unit());
            let parts = missing * to.full().unsigned_abs();
            parts.div_ceil(self.full().unsigned_abs() * unit) * unit
        } else {
            let in_tokens = missing.div_ceil(u128::from(self.reduced().1));
            in_tokens.min(u128::from(to.capacity)) * u128::from(to.reduced().1)
        };
        *account = Level {
            level: to.full() - i128::try_from(missing).unwrap(),
            at: to.floor(seen),
        };
    }

    fn fits(&self, account: &Level, cost: u64, at: u64) -> bool {
        self.tokens(cost) <= self.level(account, at)
    }

    fn left(&self, account: &Level, at: u64) -> i128 {
        self.level(account, at)
            .div_euclid(i128::from(self.reduced().1))
    }

    fn is_forgotten(&self, account: &Level, at: u64) -> bool {
        self.level(account, at) == self.full()
    }
}
