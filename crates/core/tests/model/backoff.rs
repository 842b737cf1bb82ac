//! The model of back-off. For each question, it replays every denial and every change.

use tollgate_core::backoff::Schedule;
use tollgate_core::{CarryOver, Span};

/// The most strikes that are counted.
const MOST: u128 = u32::MAX as u128;

/// Something that happened to a subject, at an instant in microseconds since the epoch.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// A denial by the watched limit or by the block.
    Denied(u64),
    /// The schedule changed.
    Changed(Schedule, CarryOver, u64),
}

#[derive(Clone, Debug)]
pub(crate) struct Model {
    first: Schedule,
    log: Vec<Event>,
}

/// The result of replaying a log: every denial that is not forgotten, and the end of the block.
#[derive(Default)]
struct Account {
    strikes: u128,
    /// The instants of strikes, and of denials by the block if there is a penalty.
    denials: Vec<u64>,
    block_ends: u64,
}

impl Account {
    fn latest(&self) -> Option<u64> {
        self.denials.iter().max().copied()
    }

    fn is_forgotten(&self, schedule: &Schedule, at: u64) -> bool {
        let quiet = |denial: u64| denial + schedule.forget.as_micros() <= at;
        self.latest().is_none_or(quiet) && !self.is_blocked(at)
    }

    fn is_blocked(&self, at: u64) -> bool {
        at < self.block_ends
    }

    fn deny(&mut self, schedule: &Schedule, at: u64) {
        let [base, max, penalty] =
            [schedule.base, schedule.max, schedule.penalty].map(Span::as_micros);
        if self.is_forgotten(schedule, at) {
            *self = Account::default();
        }
        if !self.is_blocked(at) {
            self.strikes = (self.strikes + 1).min(MOST);
            self.denials.push(at);
            if let Some(further) = self.strikes.checked_sub(u128::from(schedule.after) + 1) {
                let times = u32::try_from(further)
                    .ok()
                    .and_then(|further| u128::from(schedule.factor).checked_pow(further))
                    .and_then(|times| times.checked_mul(u128::from(base)));
                let block = times.map_or(max, |block| u64::try_from(block).unwrap_or(max).min(max));
                self.block_ends = at + block;
            }
        } else if penalty > 0 {
            self.denials.push(at);
            let longest = at + max;
            if self.block_ends < longest {
                self.block_ends = longest.min(self.block_ends + penalty);
            }
        }
    }

    fn change(&mut self, from: &Schedule, to: &Schedule, how: CarryOver, at: u64) {
        if how == CarryOver::Reset || self.is_forgotten(from, at) {
            *self = Account::default();
            return;
        }
        if how == CarryOver::Proportional && from.after > 0 && to.after > 0 {
            let [before, after] = [from, to].map(|it| u128::from(it.after));
            self.strikes = match self.strikes.checked_sub(before) {
                Some(further) => (after + further).min(MOST),
                None => (self.strikes * after).div_ceil(before),
            };
        }
        let latest = self.latest().unwrap_or(0).max(at) + to.max.as_micros();
        self.block_ends = self.block_ends.min(latest);
    }
}

impl Model {
    pub(crate) fn new(first: Schedule) -> Model {
        Model {
            first,
            log: Vec::new(),
        }
    }

    pub(crate) fn record(&mut self, event: Event) {
        self.log.push(event);
    }

    fn replay(&self) -> (Schedule, Account) {
        let (mut schedule, mut account) = (self.first, Account::default());
        for event in &self.log {
            match event {
                Event::Denied(at) => account.deny(&schedule, *at),
                Event::Changed(to, how, at) => {
                    account.change(&schedule, to, *how, *at);
                    schedule = *to;
                }
            }
        }
        (schedule, account)
    }

    /// Returns the end of the block at `at`, if there is one.
    pub(crate) fn blocked_until(&self, at: u64) -> Option<u64> {
        let (_, account) = self.replay();
        account.is_blocked(at).then_some(account.block_ends)
    }

    /// Returns the free denials that are left at `at`.
    pub(crate) fn free(&self, at: u64) -> u64 {
        let (schedule, account) = self.replay();
        let after = u64::from(schedule.after);
        match account {
            _ if account.is_forgotten(&schedule, at) => after,
            _ if account.is_blocked(at) => 0,
            _ => after.saturating_sub(u64::try_from(account.strikes).unwrap()),
        }
    }

    /// Returns the first instant at which no denial is remembered.
    pub(crate) fn forgotten_at(&self) -> u64 {
        let (schedule, account) = self.replay();
        let (mut low, mut high) = (0, 1 << 54);
        while low < high {
            let middle = low + (high - low) / 2;
            if account.is_forgotten(&schedule, middle) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        low
    }
}
