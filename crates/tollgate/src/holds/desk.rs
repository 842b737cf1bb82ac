//! Where reservations and leases are made and ended: a store, a config, and the books.

use std::cell::RefCell;

use tollgate_core::{HoldId, Keyring, SubjectKind, Tag};
use tollgate_rules::Attributes;
use tollgate_store::{Clock, HoldStore};

use crate::books::Books;
use crate::live::Live;

/// Stands where attribute names do. No attribute starts so.
const NAME: &str = "@hold";

/// What a hold needs of a limiter.
pub(crate) struct Desk<'a, S> {
    pub(crate) store: &'a S,
    pub(crate) live: &'a Live,
    pub(crate) names: &'a Names,
    pub(crate) books: Option<&'a Books>,
    /// Asked where the store has not said the time.
    pub(crate) clock: &'a dyn Clock,
}

/// Makes names for holds.
pub(crate) struct Names(SubjectKind);

impl Names {
    pub(crate) fn new(keyring: &Keyring) -> Names {
        Names(keyring.kind([NAME]))
    }

    /// The name of what a tenant has reserved under an idempotency key; without one a new name.
    pub(crate) fn name(&self, tag: Tag, tenant: &str, key: Option<&str>) -> HoldId {
        let id = match key {
            Some(key) => self.0.subject([tenant, key]).bits(),
            None => random(),
        };
        HoldId::new(id, tag)
    }

    /// Tells requests apart that claim to be the same.
    #[allow(clippy::cast_possible_truncation)] // Half of a hash is a hash.
    pub(crate) fn fingerprint(&self, attributes: &Attributes<'_>, units: u64) -> u64 {
        let units = units.to_string();
        let mut all: Vec<(&str, &str)> = attributes.iter().collect();
        all.sort_unstable();
        let parts = all.iter().flat_map(|(name, value)| [*name, *value]);
        self.0.subject(parts.chain([units.as_str()])).bits() as u64
    }
}

thread_local! {
    /// Random bits that were not handed out yet: to ask the system for every name would cost more than all
    /// the rest of a reservation.
    static POOL: RefCell<Vec<u128>> = const { RefCell::new(Vec::new()) };
}

/// 128 bits that nobody can guess.
pub(crate) fn random() -> u128 {
    POOL.with_borrow_mut(|pool| {
        if let Some(bits) = pool.pop() {
            return bits;
        }
        let mut bytes = [0; 512];
        // Without entropy names repeat, and what is repeated is refused as such.
        let _ = getrandom::fill(&mut bytes);
        let (blocks, _) = bytes.as_chunks::<16>();
        pool.extend(blocks.iter().map(|it| u128::from_le_bytes(*it)));
        pool.pop().unwrap_or_default()
    })
}

impl<S: HoldStore> Desk<'_, S> {
    /// The books, if one of these is kept in them.
    pub(super) fn books_of(&self, mut ledgered: impl Iterator<Item = bool>) -> Option<&Books> {
        self.books.filter(|_| ledgered.any(|it| it))
    }
}
