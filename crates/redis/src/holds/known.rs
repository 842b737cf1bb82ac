//! The holds that this process has made of late. What they were charged never changes, so who settles
//! one that was made here need not ask for its record first. Its name may be another's by now, as an
//! idempotency key is used again hours later: who settles says which one is meant, by when it was charged.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use tollgate_core::HoldId;
use tollgate_store::HoldRecord;

/// How many are remembered. Of the others the record is read.
const MOST: usize = 10_000;

/// Records by id, as they were made: only their charges and their owner are to be believed.
#[derive(Debug, Default)]
pub(crate) struct Known(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    records: HashMap<HoldId, Arc<HoldRecord>>,
    /// In the order in which they came; some may have gone.
    order: VecDeque<HoldId>,
}

impl Known {
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
    use tollgate_core::{Span, Tag, Time, Token};
    use tollgate_store::{NewHold, Purpose};

    use super::*;

    #[test]
    fn the_oldest_are_forgotten_first() {
        let known = Known::default();
        let id = |number: usize| HoldId::new(number as u128, Tag::default());
        for number in 0..=MOST {
            let new = NewHold {
                id: id(number),
                ttl: Span::SECOND,
                purpose: Purpose::Reservation,
                token: Token::NONE,
                owner: "",
                memo: "",
                fingerprint: 0,
                wait: None,
            };
            let record = HoldRecord::new(&new, 1, 0, Vec::new(), Time::default());
            known.remember(Arc::new(record));
        }
        assert!(known.find(id(0)).is_none());
        assert!(known.find(id(1)).is_some() && known.find(id(MOST)).is_some());
        known.forget(id(1));
        assert!(known.find(id(1)).is_none());
    }
}
