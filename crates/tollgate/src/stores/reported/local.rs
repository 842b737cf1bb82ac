//! Local copies of allowances, and the store's time as seen here.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use tollgate_core::quota::Quota;
use tollgate_core::{Charge, Key, Limit, Mode, Time};
use tollgate_store::{AllowanceLevel, Applied, Ask, Balance, Clock, MemoryStore};

/// The most states. Long logs count as several states.
const MOST_STATES: usize = 1 << 20;
/// The most slots for the use of other instances. Further use joins the newest slot. The whole slot is then forgotten,
/// and noted again, when its oldest units may have left the window.
const MOST_SLOTS: usize = 64;

/// The store's time as seen here: the time of the last answer when it arrived, and the time since by the
/// instance's own clock. So it is behind the store by at most the time that this answer was on its way.
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

fn unsigned(amount: i64) -> u64 {
    u64::try_from(amount).unwrap_or(0)
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

    /// Notes units that this instance has taken from the store, without asking the local copy.
    pub(super) fn take(&self, charge: &Charge<'_>, units: u64, known: Option<&Others>) {
        self.store.report(charge, units);
        if known.is_some() {
            self.store.report(&of_own(charge), units);
        }
    }

    /// Gives units back that the store has counted already.
    pub(super) fn refund_reported(&self, charge: &Charge<'_>, units: u64, charged_at: Time) {
        self.refund(&[*charge, of_own(charge)], units, charged_at);
    }

    /// Brings the local copy to the level that the store has answered to a report. Returns false if there is no room for
    /// a copy. `charge` has a cost of 1.
    pub(super) fn sync(
        &self,
        charge: &Charge<'_>,
        level: &AllowanceLevel,
        since: Since,
        known: &mut Option<Box<Others>>,
    ) -> bool {
        if !self.store.has_room(charge.key) {
            return false;
        }
        let left = level.left.saturating_sub(signed(since.pending));
        let left = left.saturating_sub(signed(since.noted));
        match charge.limit {
            Limit::Quota(quota) => self.sync_quota(charge, quota, left, level.reset_at),
            Limit::SlidingLog(_) | Limit::SlidingCounter(_) | Limit::TwoWindow(_) => {
                self.sync_window(charge, level, since, known);
                true
            }
            _ => self.sync_level(charge, left),
        }
    }

    /// Moves whole units only, so that the part of the next unit that has refilled already is not lost.
    fn sync_level(&self, charge: &Charge<'_>, left: i64) -> bool {
        let Some(level) = self.store.report(charge, 0) else {
            return false;
        };
        let capacity = signed(charge.limit.capacity());
        let back = left - level.left;
        // Levels are whole units, so a part of a unit is not known. The copy of a bucket keeps one unit less, so that it
        // never has more than the store.
        let unsure = i64::from(!charge.limit.has_periods());
        if back >= capacity {
            // The allowance was reset elsewhere.
            self.store.reset(&[*charge]);
            self.store.report(charge, unsigned(capacity - left));
        } else if back > unsure {
            let units = unsigned(back - unsure);
            self.store.refund(&[*charge], units, level.now);
        } else if back < 0 {
            self.store.report(charge, back.unsigned_abs());
        }
        true
    }

    /// A quota may have more than its limit: amounts that were granted or carried over.
    fn sync_quota(&self, charge: &Charge<'_>, quota: &Quota, left: i64, reset_at: Time) -> bool {
        let now = self.store.clock().now();
        let capacity = signed(charge.limit.capacity());
        let used = (capacity - left).max(i64::from(reset_at > now));
        let balance = Balance {
            ends_at: quota.period_at(now).end,
            used: unsigned(used),
            extra: unsigned(left + used - capacity),
        };
        self.store.reset(&[*charge]);
        self.store.restore(&[*charge], &[balance]).is_ok()
    }

    /// In a sliding window it matters when a unit was used. The copy has the use of this instance at its own times. The
    /// use of the others is what the store counts beyond the reports of this instance. It is noted at the time at which
    /// this instance hears of it, and the oldest goes first. So the copy never loses a unit before the store does.
    fn sync_window(
        &self,
        charge: &Charge<'_>,
        level: &AllowanceLevel,
        since: Since,
        known: &mut Option<Box<Others>>,
    ) {
        let (own, theirs) = (of_own(charge), of_others(charge));
        let window = charge.limit.window();
        let used = |left: i64| unsigned(signed(charge.limit.capacity()) - left);
        let counted = |charge: &Charge<'_>| {
            let level = self.store.report(charge, 0);
            level.map_or(0, |it| used(it.left))
        };
        let total = used(level.left);
        if let Some(others) = known {
            self.store.report(&own, since.reported);
            let in_level = counted(&own).saturating_sub(since.noted);
            if let Some(of_others) = total.checked_sub(in_level) {
                let gone = |it: &Slot| it.heard_after + window <= level.now;
                // Units of this slot may have left the window in the store. Those that have not are noted again below.
                while let Some(slot) = others.slots.pop_front_if(|it| gone(it)) {
                    self.forget_others(charge, slot.units, slot.heard_at);
                }
                let mut noted = counted(&theirs);
                while noted > of_others
                    && let Some(slot) = others.slots.front_mut()
                {
                    let units = slot.units.min(noted - of_others);
                    slot.units -= units;
                    let (heard_at, is_empty) = (slot.heard_at, slot.units == 0);
                    if is_empty {
                        others.slots.pop_front();
                    }
                    self.forget_others(charge, units, heard_at);
                    noted = counted(&theirs).min(noted - units.min(noted));
                }
                self.note_others(charge, of_others.saturating_sub(noted), others);
                return;
            }
        }
        // The first level of this key, or the store has lost usage of this instance. It is not known when the units were
        // used.
        self.store.reset(&[*charge, own, theirs]);
        self.store.report(charge, since.pending);
        self.store.report(charge, since.noted);
        self.store.report(&own, since.noted);
        let mut others = Box::new(Others {
            slots: VecDeque::new(),
            heard_at: level.now - window,
        });
        self.note_others(charge, total, &mut others);
        *known = Some(others);
    }

    /// Notes use of other instances that this instance hears of now.
    fn note_others(&self, charge: &Charge<'_>, units: u64, others: &mut Others) {
        let heard_after = others.heard_at;
        if let Some(level) = self.store.report(&of_others(charge), units) {
            others.heard_at = level.now;
        }
        if units == 0 {
            return;
        }
        self.store.report(charge, units);
        let heard_at = self.store.clock().now();
        let is_full = others.slots.len() >= MOST_SLOTS;
        match others.slots.back_mut() {
            Some(last) if is_full => {
                last.units += units;
                last.heard_at = heard_at;
            }
            _ => others.slots.push_back(Slot {
                heard_after,
                heard_at,
                units,
            }),
        }
    }

    fn forget_others(&self, charge: &Charge<'_>, units: u64, heard_at: Time) {
        let both = [*charge, of_others(charge)];
        self.store.refund(&both, units, heard_at);
    }
}

/// Units of this instance around a report, as of the answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Since {
    /// The units of the report. They are in the level.
    pub(super) reported: u64,
    /// Units that were admitted here since the report left. They are in the copy, and not in the level.
    pub(super) pending: u64,
    /// Units that the store has taken since the report left. They are in the copy. They count as not in the level, because
    /// the level may be older.
    pub(super) noted: u64,
}

/// What this instance knows about the use of the others in a sliding window.
#[derive(Debug)]
pub(super) struct Others {
    /// The use that was heard of, oldest first.
    slots: VecDeque<Slot>,
    /// The store's time of the last level.
    heard_at: Time,
}

/// Units of other instances that the store has counted after one level and before the next.
#[derive(Debug)]
struct Slot {
    heard_after: Time,
    heard_at: Time,
    units: u64,
}

/// Returns a charge for the count of units that this instance has reported.
fn of_own<'a>(charge: &Charge<'a>) -> Charge<'a> {
    Charge {
        key: Key::from_bits(charge.key.bits() ^ 0x5bd1_e995),
        ..*charge
    }
}

/// Returns a charge for the count of units that other instances have used, as noted here.
fn of_others<'a>(charge: &Charge<'a>) -> Charge<'a> {
    Charge {
        key: Key::from_bits(charge.key.bits() ^ 0xa7c4_b3d1),
        ..*charge
    }
}
