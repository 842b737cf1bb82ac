//! The model of the fixed window: the sum of the events of the current window.

use super::Reference;

#[derive(Clone, Debug)]
pub(crate) struct FixedWindow {
    pub(crate) limit: u64,
    pub(crate) window: u64,
}

/// Costs, each with the first instant of the window in which it counts. A refund is a negative cost.
pub(crate) struct Account(Vec<(u64, i128)>);

impl FixedWindow {
    fn window_of(&self, at: u64) -> u64 {
        at - at % self.window
    }

    /// Returns the start of the window in force: the window of `at`, or a later window that has events.
    fn running(&self, account: &Account, at: u64) -> u64 {
        let written = account.0.iter().map(|(window, _)| *window).max();
        self.window_of(at).max(written.unwrap_or(0))
    }

    fn used(&self, account: &Account, at: u64) -> u64 {
        let running = self.running(account, at);
        let in_force = account.0.iter().filter(|(window, _)| *window == running);
        u64::try_from(in_force.map(|(_, cost)| *cost).sum::<i128>()).unwrap()
    }
}

impl Reference for FixedWindow {
    type Account = Account;

    fn capacity(&self) -> u64 {
        self.limit
    }

    fn open(&self) -> Account {
        Account(Vec::new())
    }

    fn charge(&self, account: &mut Account, cost: u64, at: u64) {
        let running = self.running(account, at);
        account.0.push((running, i128::from(cost)));
    }

    fn overdraw(&self, account: &mut Account, cost: u64, most: u64, at: u64) {
        let room = (self.limit + most).saturating_sub(self.used(account, at));
        self.charge(account, cost.min(room), at);
    }

    fn refund(&self, account: &mut Account, cost: u64, charged_at: u64, at: u64) {
        let running = self.running(account, at);
        if charged_at >= running {
            let back = cost.min(self.used(account, at));
            account.0.push((running, -i128::from(back)));
        }
    }

    fn carry_over(&self, account: &mut Account, to: &FixedWindow, share: bool, at: u64) {
        if to.window != self.window {
            let (used, running) = (self.used(account, at), self.running(account, at));
            // If the clock is before the window in force, act as if it stood at the end of that window.
            let seen = match running > at {
                true => running + self.window - 1,
                false => at,
            };
            *account = Account(vec![(to.window_of(seen), i128::from(used))]);
        }
        if share {
            let (latest, used) = (to.running(account, 0), to.used(account, 0));
            let share = super::share(used, self.limit, to.limit);
            let change = i128::from(share) - i128::from(used);
            account.0.push((latest, change));
        }
    }

    fn fits(&self, account: &Account, cost: u64, at: u64) -> bool {
        self.used(account, at) + cost <= self.limit
    }

    fn left(&self, account: &Account, at: u64) -> i128 {
        i128::from(self.limit) - i128::from(self.used(account, at))
    }

    fn is_forgotten(&self, account: &Account, at: u64) -> bool {
        self.used(account, at) == 0
    }
}
