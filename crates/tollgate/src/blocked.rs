//! Blocked requests: denied before any rule, without a call of the store.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_config::{Attributes, Override};
use tollgate_core::Limit;
use tollgate_store::Store;

use crate::active_config::ActiveConfig;
use crate::decision::Decision;
use crate::snapshot::Snapshot;
use crate::striped::{STRIPES, stripe};
use crate::throttle::Throttled;

/// The attributes of blocked subjects that are counted by name. Operators choose the attributes of
/// blocks, so the others are counted together.
const COUNTED: [&str; 7] = [
    "api_key",
    "user",
    "ip",
    "tenant",
    "service_account",
    "key",
    "other",
];

/// How many requests blocks have denied, by the attribute of the subject. Each thread has its own
/// stripe.
#[derive(Default)]
pub(crate) struct BlockedCounts([Cells; STRIPES]);

#[derive(Default)]
#[repr(align(64))]
struct Cells([AtomicU64; COUNTED.len()]);

impl BlockedCounts {
    pub(crate) fn count(&self, block: &Override) {
        let attribute = block.subject().map_or("other", |it| it.attribute());
        let place = COUNTED.iter().position(|name| *name == attribute);
        let mine = stripe();
        let cells = &self.0[mine.index()].0;
        mine.add(&cells[place.unwrap_or(COUNTED.len() - 1)], 1);
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        COUNTED.into_iter().enumerate().map(|(place, name)| {
            let cells = self.0.iter().map(|it| it.0[place].load(Ordering::Relaxed));
            (name, cells.sum())
        })
    }
}

impl<S: Store, C: Deref<Target = ActiveConfig>> Snapshot<'_, S, C> {
    /// Returns the block of a request. Without blocks, this costs a look at two lengths.
    #[inline]
    pub(crate) fn block_of(&self, attributes: &Attributes<'_>) -> Option<&Arc<Override>> {
        let blocks = self.active.blocks();
        if blocks.is_empty() {
            return None;
        }
        blocks.find(attributes, || self.limiter.now_millis())
    }

    /// Makes the decision about a blocked request.
    #[cold]
    pub(crate) fn blocked(&self, block: &Arc<Override>) -> Decision {
        let mut decision = Decision::new(self.active.rules());
        decision.block(Arc::clone(block), self.limiter.clock.now());
        decision
    }

    /// Makes the decision about a blocked request, counts it and logs it.
    #[cold]
    pub(crate) fn deny_blocked(
        &self,
        block: &Arc<Override>,
        attributes: &Attributes<'_>,
    ) -> Decision {
        let decision = self.blocked(block);
        self.limiter.blocked.count(block);
        let from = (&*self.active, self.origin);
        self.limiter
            .denied_by_block(from, &decision, block, attributes);
        decision
    }

    /// Denies a blocked key of an ad-hoc limit: the subject `key=…`.
    #[inline]
    pub(crate) fn blocked_key(&self, key: &[u8], limit: &Limit) -> Option<Throttled> {
        let blocks = self.active.blocks();
        if blocks.is_empty() {
            return None;
        }
        let limiter = self.limiter;
        let block = blocks.find_key(key, || limiter.now_millis())?;
        limiter.blocked.count(block);
        limiter.throttles.count(Some(false));
        let denied = Throttled::blocked(limit, block.expires_at(), limiter.clock.now());
        let charge = self.active.keyed().throttle.charge(key, limit);
        let from = (&*self.active, self.origin);
        limiter.denied_throttle(from, &charge, &denied, None);
        Some(denied)
    }
}
