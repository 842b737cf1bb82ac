//! The model of the sliding log: it keeps every cost with its instant, and sums up those in the window.

use super::{Reference, scale, take_off};

#[derive(Clone, Debug)]
pub(crate) struct SlidingLog {
    pub(crate) limit: u64,
    pub(crate) window: u64,
}

#[derive(Default)]
pub(crate) struct Account {
    costs: Vec<Cost>,
    /// The latest instant of any event.
    seen: u64,
}

struct Cost {
    at: u64,
    amount: u64,
}

impl SlidingLog {
    fn used(&self, account: &Account, at: u64) -> u64 {
        let counting = account
            .costs
            .iter()
            .filter(|cost| cost.at + self.window > at);
        counting.map(|cost| cost.amount).sum()
    }

    /// Removes the costs that have left the window by `at`. So they do not count again if the clock goes
    /// back.
    fn leave(&self, account: &mut Account, at: u64) {
        account.seen = account.seen.max(at);
        for cost in &mut account.costs {
            if cost.at + self.window <= at {
                cost.amount = 0;
            }
        }
    }
}

impl Reference for SlidingLog {
    type Account = Account;

    fn capacity(&self) -> u64 {
        self.limit
    }

    fn open(&self) -> Account {
        Account::default()
    }

    fn charge(&self, account: &mut Account, amount: u64, at: u64) {
        self.leave(account, at);
        let at = account.seen;
        account.costs.push(Cost { at, amount });
    }

    fn overdraw(&self, account: &mut Account, cost: u64, most: u64, at: u64) {
        self.leave(account, at);
        let cost = cost.min(self.limit + most);
        let total: u64 = account.costs.iter().map(|cost| cost.amount).sum();
        // Usage that is already above the bound stays.
        let deepest = total.max(self.limit + most);
        let excess = (total + cost).saturating_sub(deepest);
        let oldest_first = account.costs.iter_mut();
        take_off(oldest_first.map(|cost| &mut cost.amount), excess);
        self.charge(account, cost, at);
    }

    fn refund(&self, account: &mut Account, cost: u64, charged_at: u64, at: u64) {
        self.leave(account, at);
        let newest_first = account.costs.iter_mut().rev();
        let not_newer = newest_first.filter(|cost| cost.at <= charged_at);
        take_off(not_newer.map(|cost| &mut cost.amount), cost);
    }

    fn carry_over(&self, account: &mut Account, to: &SlidingLog, share: bool, at: u64) {
        let scales = share && self.limit.min(to.limit) > 0;
        if scales || to.window != self.window {
            self.leave(account, at);
        }
        if scales {
            let newest_first = account.costs.iter_mut().rev();
            let amounts = newest_first.map(|cost| &mut cost.amount);
            scale(amounts, self.limit, to.limit);
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
