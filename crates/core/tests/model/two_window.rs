//! The model of the two-window estimate: it keeps costs by the number of their window. The current window
//! counts whole. The window before it counts by its remaining share, as a fraction of the window.

use std::collections::BTreeMap;

use super::{Counts, Reference};

#[derive(Clone, Debug)]
pub(crate) struct TwoWindow {
    pub(crate) limit: u64,
    pub(crate) window: u64,
}

impl TwoWindow {
    /// Returns the resolution of time in microseconds: 1, or 1000 if the numbers are large.
    pub(crate) fn grain(&self) -> u64 {
        let product = u128::from(self.limit) * u128::from(self.window);
        if product < 1 << 52 { 1 } else { 1000 }
    }

    fn number(&self, at: u64) -> u64 {
        at / self.window
    }

    fn running(&self, account: &Counts, at: u64) -> u64 {
        self.number(at).max(account.latest)
    }

    fn count(&self, account: &Counts, number: Option<u64>) -> u64 {
        number
            .and_then(|number| account.counts.get(&number))
            .copied()
            .unwrap_or(0)
    }

    /// Returns the counts of the current window and of the window before it.
    fn counts(&self, account: &Counts, at: u64) -> (u64, u64) {
        let running = self.running(account, at);
        (
            self.count(account, Some(running)),
            self.count(account, running.checked_sub(1)),
        )
    }

    /// Returns the estimate in fractions of `1/window`.
    fn estimate(&self, account: &Counts, at: u64) -> u128 {
        let running = self.running(account, at);
        let passed = match running > self.number(at) {
            true => 0,
            false => (at - at % self.grain()) % self.window,
        };
        let (current, previous) = self.counts(account, at);
        u128::from(current) * u128::from(self.window)
            + u128::from(previous) * u128::from(self.window - passed)
    }

    /// Makes the estimate, rounded up, the count of the current window under `to`.
    fn move_to(&self, to: &TwoWindow, account: &mut Counts, at: u64) {
        let running = self.running(account, at);
        let estimate = self.estimate(account, at).div_ceil(u128::from(self.window));
        // If the clock is before the latest window, act as if it stood at the end of that window.
        let seen = match running > self.number(at) {
            true => (running + 1) * self.window - 1,
            false => at,
        };
        let latest = to.number(seen);
        let counts = BTreeMap::from([(latest, u64::try_from(estimate).unwrap())]);
        *account = Counts { counts, latest };
    }

    /// Returns the largest count that a window can count exactly. Multiplied by the ticks of the window, it
    /// is still exact in a double.
    fn most(&self) -> u64 {
        ((1 << 52) - 1) / (self.window / self.grain())
    }

    fn limit_in_fractions(&self) -> u128 {
        u128::from(self.limit) * u128::from(self.window)
    }
}

impl Reference for TwoWindow {
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
        account.latest = self.running(account, at);
        let estimate = self.estimate(account, at).div_ceil(u128::from(self.window));
        let deepest = u128::from((self.limit + most).min(self.most()));
        let taken = u128::from(cost).min(deepest.saturating_sub(estimate));
        self.charge(account, u64::try_from(taken).unwrap(), at);
    }

    fn refund(&self, account: &mut Counts, cost: u64, charged_at: u64, at: u64) {
        account.latest = self.running(account, at);
        let charged = self.number(charged_at).min(account.latest);
        // Windows before the previous window do not count, so a refund to them changes nothing.
        if let Some(count) = account.counts.get_mut(&charged) {
            *count = count.saturating_sub(cost);
        }
    }

    fn carry_over(&self, account: &mut Counts, to: &TwoWindow, share: bool, at: u64) {
        if self.window != to.window {
            self.move_to(to, account, at);
        }
        let [latest, previous] = [Some(account.latest), account.latest.checked_sub(1)];
        let counts = [latest, previous].map(|number| self.count(account, number));
        let counts = if share && self.limit.min(to.limit) > 0 {
            let share = |used: u64| {
                let parts = u128::from(used) * u128::from(to.limit);
                parts.div_ceil(u128::from(self.limit))
            };
            let most = u128::from(to.most());
            let first = share(counts[0]);
            let second = match first > most {
                true => share(counts[1]),
                false => share(counts[0] + counts[1]) - first,
            };
            [first.min(most), second.min(most)]
        } else {
            // A count that is above the old limit stays above the new limit by the same amount.
            counts.map(|count| {
                let above = count.saturating_sub(self.limit);
                u128::from(count.min(to.limit + above).min(to.most()))
            })
        };
        account.counts.clear();
        for (number, count) in [latest, previous].into_iter().zip(counts) {
            if let Some(number) = number {
                account.counts.insert(number, u64::try_from(count).unwrap());
            }
        }
    }

    fn fits(&self, account: &Counts, cost: u64, at: u64) -> bool {
        // A cost of 0 always fits.
        let cost_in_fractions = u128::from(cost) * u128::from(self.window);
        cost == 0 || self.estimate(account, at) + cost_in_fractions <= self.limit_in_fractions()
    }

    fn left(&self, account: &Counts, at: u64) -> i128 {
        let fractions = |it: u128| i128::try_from(it).unwrap();
        let left = fractions(self.limit_in_fractions()) - fractions(self.estimate(account, at));
        left.div_euclid(i128::from(self.window))
    }

    fn is_forgotten(&self, account: &Counts, at: u64) -> bool {
        self.counts(account, at) == (0, 0)
    }
}
