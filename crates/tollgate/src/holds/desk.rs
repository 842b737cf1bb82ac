//! Where reservations and leases are made and ended: a store, a config, and the books.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_core::{HoldId, Keyring, SubjectKind, Tag};
use tollgate_rules::Attributes;
use tollgate_store::{Clock, HoldStore};

use crate::active_config::ActiveConfig;
use crate::books::Books;
use crate::denials::Denials;

/// Stands where attribute names do. No attribute starts so.
const NAME: &str = "@hold";
/// The attribute that keys are placed by, unless a rule says otherwise.
const TENANT: &str = "tenant";

/// What a hold needs of a limiter.
pub(crate) struct Desk<'a, S> {
    pub(crate) store: &'a S,
    pub(crate) live: &'a ActiveConfig,
    pub(crate) names: &'a Names,
    pub(crate) books: Option<&'a Books>,
    /// Forgotten where something is given back.
    pub(crate) denials: Option<&'a Denials>,
    /// Asked where the store has not said the time.
    pub(crate) clock: &'a dyn Clock,
}

/// Makes names for holds.
pub(crate) struct Names {
    holds: SubjectKind,
    tenants: SubjectKind,
}

impl Names {
    pub(crate) fn new(keyring: &Keyring) -> Names {
        Names {
            holds: keyring.kind([NAME]),
            // As the rules place what they keep by tenant.
            tenants: keyring.kind([TENANT]),
        }
    }

    /// The name of what a tenant has reserved under an idempotency key; without one a new name. It is
    /// placed with one of the charges, whose tags these are: by the tenant if one of them is, so that it
    /// does not depend on which rule comes first; a tag of its own would cost each a slot more.
    pub(crate) fn name(&self, tags: &[Tag], tenant: &str, key: Option<&str>) -> HoldId {
        let first = tags.first().copied().unwrap_or_default();
        let Some(key) = key else {
            return HoldId::new(random(), first);
        };
        let home = self.tenants.subject([tenant]).tag();
        let tag = if tags.contains(&home) { home } else { first };
        HoldId::new(self.holds.subject([tenant, key]).bits(), tag)
    }

    /// Tells requests apart that claim to be the same.
    #[allow(clippy::cast_possible_truncation)] // Half of a hash is a hash.
    pub(crate) fn fingerprint(&self, attributes: &Attributes<'_>, units: u64) -> u64 {
        let units = units.to_string();
        let mut all: Vec<(&str, &str)> = attributes.iter().collect();
        all.sort_unstable();
        let parts = all.iter().flat_map(|(name, value)| [*name, *value]);
        self.holds.subject(parts.chain([units.as_str()])).bits() as u64
    }
}

thread_local! {
    /// Random bits that were not handed out yet: to ask the system for every name would cost more than all
    /// the rest of a reservation.
    static POOL: RefCell<Vec<u128>> = const { RefCell::new(Vec::new()) };
}

/// How many names were made without entropy.
static UNGUARDED: AtomicU64 = AtomicU64::new(0);

/// 128 bits that nobody can guess.
pub(crate) fn random() -> u128 {
    POOL.with_borrow_mut(|pool| {
        if let Some(bits) = pool.pop() {
            return bits;
        }
        let mut bytes = [0; 512];
        if getrandom::fill(&mut bytes).is_err() {
            // Without entropy names can be guessed, but they are still told apart.
            let number = UNGUARDED.fetch_add(1, Ordering::Relaxed);
            return u128::from(std::process::id()) << 64 | u128::from(number);
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_names_the_same_hold_whichever_rule_comes_first() {
        let keyring = Keyring::new(b"a secret", "default");
        let names = Names::new(&keyring);
        let home = keyring.kind([TENANT]).subject(["acme"]).tag();
        let [one, two] = [1, 2].map(Tag::new);
        let name = |tags: &[Tag]| names.name(tags, "acme", Some("call-1"));
        assert_eq!(name(&[one, home]).tag(), home);
        assert_eq!(name(&[one, home]), name(&[home]));
        assert_eq!(name(&[one, home]), name(&[home, two]));
        // A hold is kept where one of its charges is.
        assert_eq!(name(&[two, one]).tag(), two);
        assert_eq!(name(&[two]).bits(), name(&[home]).bits());
        assert_eq!(name(&[]).tag(), Tag::default());
        let other = names.name(&[home], "acme", Some("call-2"));
        assert_ne!(other.bits(), name(&[home]).bits());
        assert_ne!(names.name(&[home], "", None), names.name(&[home], "", None));
    }
}
