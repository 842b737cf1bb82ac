//! The model of the sliding counter: it keeps costs by the number of their sub-bucket, and sums up the last
//! N + 1 sub-buckets.

use super::{Counts, Reference, scale, take_off};

#[derive(Clone, Debug)]
pub(crate) struct SlidingCounter {
    pub(crate) limit: u64,
    pub(crate) window: u64,
    pub(crate) buckets: u32,
}

impl SlidingCounter {
    /// Returns the microseconds in a sub-bucket. N sub-buckets cover the window.
    fn length(&self) -> u64 {
        self.window.div_ceil(u64::from(self.buckets))
    }

    fn number(&self, at: u64) -> u64 {
        at / self.length()
    }

    fn running(&self, account: &Counts, at: u64) -> u64 {
        self.number(at).max(account.latest)
    }

    /// Returns the number of the oldest sub-bucket that counts at `at`.
    fn oldest(&self, account: &Counts, at: u64) -> u64 {
        self.running(account, at)
            .saturating_sub(u64::from(self.buckets))
    }

    fn used(&self, account: &Counts, at: u64) -> u64 {
        account
            .counts
            .range(self.oldest(account, at)..)
            .map(|(_, count)| count)
            .sum()
    }

    /// Moves each sub-bucket that counts, whole, into a sub-bucket of `to`: the one that contains its last
    /// instant.
    fn move_to(&self, to: &SlidingCounter, account: &mut Counts, at: u64) {
        if (self.length(), self.buckets) == (to.length(), to.buckets) {
            return;
        }
        let last_instant = |number: u64| (number + 1) * self.length() - 1;
        // If the clock is before the latest sub-bucket, act as if it stood at the end of that sub-bucket.
        let seen = match account.latest > self.number(at) {
            true => last_instant(account.latest),
            false => at,
        };
        let mut moved = Counts {
            latest: to.number(seen),
            ..Counts::default()
        };
        for (number, count) in account.counts.range(self.oldest(account, at)..) {
            let place = to.number(last_instant(*number).min(seen));
            *moved.counts.entry(place).or_default() += count;
        }
        *account = moved;
    }
}

impl Reference for SlidingCounter {
    type Account = Counts;

    fn capacity(&self) -> u64 {
        self.limit
    }

    fn open(&self) -> Counts {
        Counts::default()
    }

    fn charge(&self, account: &mut Counts, cost: u64, at: u64) {
        account.add(cost, self.running(account, at));
    }

    fn overdraw(&self, account: &mut Counts, cost: u64, most: u64, at: u64) {
        let cost = cost.min(self.limit + most);
        let used = self.used(account, at);
        // Usage that is already above the bound stays.
        let deepest = used.max(self.limit + most);
        let excess = (used + cost).saturating_sub(deepest);
        let oldest = self.oldest(account, at);
        let oldest_first = account.counts.range_mut(oldest..);
        take_off(oldest_first.map(|(_, count)| count), excess);
        self.charge(account, cost, at);
    }

    fn refund(&self, account: &mut Counts, cost: u64, charged_at: u64, at: u64) {
        let (oldest, newest) = (self.oldest(account, at), self.number(charged_at));
        if oldest <= newest {
            let newest_first = account.counts.range_mut(oldest..=newest).rev();
            take_off(newest_first.map(|(_, count)| count), cost);
        }
    }

    fn carry_over(&self, account: &mut Counts, to: &SlidingCounter, share: bool, at: u64) {
        self.move_to(to, account, at);
        if share {
            let newest_first = account.counts.values_mut().rev();
            scale(newest_first, self.limit, to.limit);
        }
    }

    fn fits(&self, account: &Counts, cost: u64, at: u64) -> bool {
        self.used(account, at) + cost <= self.limit
    }

    fn left(&self, account: &Counts, at: u64) -> i128 {
        i128::from(self.limit) - i128::from(self.used(account, at))
    }

    fn is_forgotten(&self, account: &Counts, at: u64) -> bool {
        self.used(account, at) == 0
    }
}
