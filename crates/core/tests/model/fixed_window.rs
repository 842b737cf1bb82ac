//! Fixed window: the sum of the events of the current window.

use tollgate_core::CarryOver;

use super::{Event, Reference, share};

#[derive(Clone, Debug)]
pub(crate) struct FixedWindow {
    pub(crate) limit: u64,
    pub(crate) window: u64,
}

/// Costs with the first instant of the window that each counts in. A refund is a negative cost.
pub(crate) struct Account(Vec<(u64, i128)>);

impl FixedWindow {
    fn window_of(&self, at: u64) -> u64 {
        at - at % self.window
    }

    /// Returns the window in force: that of the clock, or a later one that was already written to.
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

    fn enter(&self, account: &mut Account, event: &Event<FixedWindow>) {
        match *event {
            Event::Charged { cost, at } => {
                let running = self.running(account, at);
                account.0.push((running, i128::from(cost)));
            }
            Event::Overdrawn { cost, most, at } => {
                let running = self.running(account, at);
                let room = (self.limit + most).saturating_sub(self.used(account, at));
                account.0.push((running, i128::from(cost.min(room))));
            }
            Event::Refunded {
                cost,
                charged_at,
                at,
            } => {
                let running = self.running(account, at);
                if charged_at >= running {
                    let back = cost.min(self.used(account, at));
                    account.0.push((running, -i128::from(back)));
                }
            }
            Event::Changed {
                ref to,
                how: CarryOver::Reset,
                ..
            } => *account = to.open(),
            Event::Changed { ref to, how, at } => {
                if to.window != self.window {
                    let used = self.used(account, at);
                    let running = self.running(account, at);
                    // A clock behind the window in force is treated as if it stood at its end.
                    let seen = if running > at {
                        running + self.window - 1
                    } else {
                        at
                    };
                    *account = Account(vec![(to.window_of(seen), i128::from(used))]);
                }
                if how == CarryOver::Proportional {
                    let latest = to.running(account, 0);
                    let used = to.used(account, 0);
                    let share = share(used, self.limit, to.limit);
                    account
                        .0
                        .push((latest, i128::from(share) - i128::from(used)));
                }
            }
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
