//! Where reservations and leases are made and ended: a store, a config, and the books.

use tollgate_core::{HoldId, Keyring, SubjectKind, Tag, Time};
use tollgate_rules::Attributes;
use tollgate_store::HoldStore;

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
    /// The time, where the store has not said it.
    pub(crate) now: Time,
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

/// 128 bits that nobody can guess.
pub(crate) fn random() -> u128 {
    let mut bytes = [0; 16];
    // Without entropy names repeat, and what is repeated is refused as such.
    let _ = getrandom::fill(&mut bytes);
    u128::from_le_bytes(bytes)
}

impl<S: HoldStore> Desk<'_, S> {
    /// The books, if one of these is kept in them.
    pub(super) fn books_of(&self, mut ledgered: impl Iterator<Item = bool>) -> Option<&Books> {
        self.books.filter(|_| ledgered.any(|it| it))
    }
}
