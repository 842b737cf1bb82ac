//! Blocks: subjects that are denied before any rule.

use std::sync::Arc;

use tollgate_core::Keyring;

use crate::attributes::Attributes;
use crate::named_subject::SubjectMap;
use crate::overrides::{Override, Scope};

/// The attribute that names the key of an ad-hoc limit in a block. It is not an attribute of requests.
const AD_HOC_KEY: &str = "key";

/// The blocks in force, prepared for requests.
#[derive(Debug, Default)]
pub struct Blocks(SubjectMap<Arc<Override>>);

impl Blocks {
    /// Collects the blocks among `overrides`. Leaves out blocks of subjects that another keyring has
    /// hashed.
    #[must_use]
    pub fn new(overrides: &[Arc<Override>], keyring: &Keyring) -> Blocks {
        let blocks = overrides.iter().filter(|it| it.is_block());
        let blocks = blocks.filter_map(|it| match it.scope() {
            Scope::Subject(subject) => Some((subject, Arc::clone(it))),
            _ => None,
        });
        Blocks(SubjectMap::new(blocks, keyring))
    }

    /// Whether there are no blocks.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the block of a request with these attributes. If there are several, returns the block that
    /// ends last. `now` is in milliseconds since 1970; it is read only if a subject is blocked.
    #[must_use]
    pub fn find(
        &self,
        attributes: &Attributes<'_>,
        now: impl FnOnce() -> u64,
    ) -> Option<&Arc<Override>> {
        let mut last = None;
        self.0.visit(attributes, |it| keep_last(&mut last, it));
        last.filter(|it| !it.is_over(now()))
    }

    /// Returns the block of the key of an ad-hoc limit: one of the subject `key=…`.
    #[must_use]
    pub fn find_key(&self, key: &[u8], now: impl FnOnce() -> u64) -> Option<&Arc<Override>> {
        let mut last = None;
        let visit = |it| keep_last(&mut last, it);
        self.0.visit_one(AD_HOC_KEY, key, visit);
        last.filter(|it| !it.is_over(now()))
    }
}

fn keep_last<'b>(last: &mut Option<&'b Arc<Override>>, it: &'b Arc<Override>) {
    let end = |it: &Override| it.expires_at().unwrap_or(u64::MAX);
    if last.is_none_or(|known| end(known) < end(it)) {
        *last = Some(it);
    }
}
