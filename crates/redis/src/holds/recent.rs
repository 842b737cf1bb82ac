//! The holds that this process has made recently.
//!
//! The charges of a hold never change, so settling a hold that was made here need not read its record first.
//! The id may belong to another hold by now: clients use idempotency keys again hours later. So a call that
//! settles names the hold by its id and by the time when it was charged.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use tollgate_core::HoldId;
use tollgate_store::HoldRecord;

/// How many holds are remembered. The record of any other hold is read from Redis.
const MOST: usize = 10_000;

/// Records by id, as they were made. Their charges and their owners never change; the other fields may be out
/// of date.
#[derive(Debug, Default)]
pub(crate) struct RecentHolds(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    records: HashMap<HoldId, Arc<HoldRecord>>,
    /// The ids in the order in which the holds were made. Some of these holds may be forgotten already.
    order: VecDeque<HoldId>,
}

impl RecentHolds {
    pub(super) fn find(&self, id: HoldId) -> Option<Arc<HoldRecord>> {
        self.0.lock().records.get(&id).cloned()
    }

    pub(super) fn remember(&self, record: Arc<HoldRecord>) {
        let mut inner = self.0.lock();
        inner.order.push_back(record.id);
        inner.records.insert(record.id, record);
        while inner.order.len() > MOST {
            if let Some(id) = inner.order.pop_front() {
                inner.records.remove(&id);
            }
        }
    }

    pub(super) fn forget(&self, id: HoldId) {
        self.0.lock().records.remove(&id);
    }
}

#[cfg(test)]
mod tests {
    use tollgate_conformance::{hold_id, reservation};
    use tollgate_core::Time;

    use super::*;

    #[test]
    fn the_oldest_holds_are_forgotten_first() {
        let recent = RecentHolds::default();
        let id = |number: usize| hold_id(number as u128);
        for number in 0..=MOST {
            let new = reservation(number as u128);
            let record = HoldRecord::new(&new, 1, 0, Vec::new(), Time::default());
            recent.remember(Arc::new(record));
        }
        assert!(recent.find(id(0)).is_none());
        assert!(recent.find(id(1)).is_some() && recent.find(id(MOST)).is_some());
        recent.forget(id(1));
        assert!(recent.find(id(1)).is_none());
    }
}
