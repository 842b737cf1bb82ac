//! Local copies of allowances, and the store's time as seen here.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use tollgate_core::{Charge, Limit, Mode, Time};
use tollgate_store::{Applied, Ask, Balance, Clock, MemoryStore};

/// The most states. Long logs count as several states.
const MOST_STATES: usize = 1 << 20;

/// The store's time as seen here: the time of the last answer when it arrived, and the time since by the
/// instance's own clock. So it is behind the store by at most the way of that answer.
#[derive(Clone)]
pub(super) struct StoreTime {
    clock: Arc<dyn Clock>,
    ahead: Arc<AtomicI64>,
}

impl StoreTime {
    pub(super) fn new(clock: Arc<dyn Clock>) -> StoreTime {
        StoreTime {
            clock,
            ahead: Arc::default(),
        }
    }

    /// Notes that an answer of the time `store_now` has arrived at `now`.
    pub(super) fn set(&self, store_now: Time, now: Time) {
        let ahead = signed(store_now.as_micros()) - signed(now.as_micros());
        self.ahead.store(ahead, Ordering::Relaxed);
    }
}

impl Clock for StoreTime {
    fn now(&self) -> Time {
        let ahead = self.ahead.load(Ordering::Relaxed);
        Time::from_micros(self.clock.now().as_micros().saturating_add_signed(ahead))
    }
}

fn signed(amount: u64) -> i64 {
    i64::try_from(amount).unwrap_or(i64::MAX)
}

/// Local copies of allowances: the same algorithms, with the use that is known here.
pub(super) struct Local {
    store: MemoryStore<StoreTime>,
}

impl Local {
    pub(super) fn new(time: StoreTime) -> Local {
        Local {
            store: MemoryStore::with_clock(MOST_STATES, time),
        }
    }

    /// Returns the charge as the local copy takes it. A ledger does not restore it.
    pub(super) fn charge<'a>(charge: &Charge<'a>) -> Charge<'a> {
        Charge {
            recorded: None,
            mode: Mode::Exact,
            ..*charge
        }
    }

    #[inline]
    pub(super) fn apply_into(&self, charges: &[Charge<'_>], ask: Ask, applied: &mut Applied) {
        self.store.apply_into(charges, ask, applied);
    }

    pub(super) fn peek(&self, charges: &[Charge<'_>], ask: Ask) -> Applied {
        self.store.peek(charges, ask)
    }

    pub(super) fn refund(&self, charges: &[Charge<'_>], units: u64, charged_at: Time) {
        self.store.refund(charges, units, charged_at);
    }

    pub(super) fn reset(&self, charges: &[Charge<'_>]) {
        self.store.reset(charges);
    }

    pub(super) fn sweep(&self) {
        tollgate_store::Store::sweep(&self.store);
    }

    /// Notes units that were taken without asking the local copy.
    pub(super) fn take(&self, charge: &Charge<'_>, units: u64) {
        self.store.report(charge, units);
    }

    /// Brings the local copy to the level `left`. Returns false if there is no room for a copy.
    ///
    /// `charge` has a cost of 1. Only whole units are moved. So what has refilled of the next unit is not lost.
    pub(super) fn set_level(&self, charge: &Charge<'_>, left: i64, reset_at: Time) -> bool {
        if !self.store.has_room(charge.key) {
            return false;
        }
        let Some(level) = self.store.report(charge, 0) else {
            return false;
        };
        let capacity = signed(charge.limit.capacity());
        if let Limit::Quota(quota) = charge.limit {
            // A quota may have more than its limit: amounts that were granted or carried over.
            let used = (capacity - left).max(i64::from(reset_at > level.now));
            let amount = |it: i64| u64::try_from(it).unwrap_or(0);
            let balance = Balance {
                ends_at: quota.period_at(level.now).end,
                used: amount(used),
                extra: amount(left + used - capacity),
            };
            self.store.reset(&[*charge]);
            return self.store.restore(&[*charge], &[balance]).is_ok();
        }
        let back = left - level.left;
        if back >= capacity {
            // The allowance was reset elsewhere.
            self.store.reset(&[*charge]);
            self.store
                .report(charge, u64::try_from(capacity - left).unwrap_or(0));
        } else if back > 0 {
            self.store
                .refund(&[*charge], back.unsigned_abs(), level.now);
        } else if back < 0 {
            self.store.report(charge, back.unsigned_abs());
        }
        true
    }
}
