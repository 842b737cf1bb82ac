//! The ids of reservations and leases, and the tokens of leases.

use std::cell::RefCell;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_config::Attributes;
use tollgate_core::{HoldId, Keyring, Subject, SubjectKind, Tag};

/// Used as an attribute name in hashes. No attribute starts with `@`.
const NAME: &str = "@hold";
/// The attribute that chooses the cluster slot of a key, unless a rule names another.
const TENANT: &str = "tenant";

/// The text of [`HoldName::Unheld`].
const UNHELD: &str = "unheld";

/// Names a reservation or a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldName {
    /// The id of a hold in the store.
    Held(HoldId),
    /// The request was allowed without a hold: no rule applies to it, or the store failed and a failure
    /// policy allowed it. Ending such a hold does nothing.
    Unheld,
}

/// The text is not the id of a reservation or a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is not the id of a reservation or lease: use the `id` of the answer unchanged")]
pub struct BadHoldName;

impl fmt::Display for HoldName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HoldName::Held(id) => id.fmt(f),
            HoldName::Unheld => f.write_str(UNHELD),
        }
    }
}

impl FromStr for HoldName {
    type Err = BadHoldName;

    fn from_str(text: &str) -> Result<HoldName, BadHoldName> {
        if text == UNHELD {
            return Ok(HoldName::Unheld);
        }
        text.parse().map(HoldName::Held).map_err(|_| BadHoldName)
    }
}

/// The secret that proves the ownership of a lease.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct LeaseToken(pub(crate) u128);

impl fmt::Display for LeaseToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for LeaseToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LeaseToken(***)")
    }
}

impl FromStr for LeaseToken {
    type Err = BadHoldName;

    fn from_str(text: &str) -> Result<LeaseToken, BadHoldName> {
        let is_right = text.len() == 32 && text.bytes().all(|it| it.is_ascii_hexdigit());
        let token = is_right.then(|| u128::from_str_radix(text, 16).ok());
        token.flatten().map(LeaseToken).ok_or(BadHoldName)
    }
}

/// Makes ids for holds.
pub(crate) struct HoldNames {
    holds: SubjectKind,
    tenants: SubjectKind,
}

impl HoldNames {
    pub(crate) fn new(keyring: &Keyring) -> HoldNames {
        HoldNames {
            holds: keyring.kind([NAME]),
            tenants: keyring.kind([TENANT]),
        }
    }

    /// Returns the id of a reservation of a tenant under an idempotency key, or a new id without a key.
    /// `tags` are the tags of the reservation's charges. The hold takes one of them, because another
    /// tag would add a cluster slot to each request. It takes the tag of the tenant if `tags` has that,
    /// so that the order of the rules does not matter.
    pub(crate) fn name(&self, tags: &[Tag], tenant: &str, key: Option<&str>) -> HoldId {
        let first = tags.first().copied().unwrap_or_default();
        let Some(key) = key else {
            return HoldId::new(random(), first);
        };
        let home = self.tenant(tenant).tag();
        let tag = if tags.contains(&home) { home } else { first };
        HoldId::new(self.holds.subject([tenant, key]).bits(), tag)
    }

    /// Returns the subject of a tenant.
    pub(crate) fn tenant(&self, tenant: &str) -> Subject {
        self.tenants.subject([tenant])
    }

    /// Hashes a request. The hash shows whether two requests with one idempotency key differ.
    #[allow(clippy::cast_possible_truncation)] // Half of the hash is enough.
    pub(crate) fn fingerprint(&self, attributes: &Attributes<'_>, units: u64) -> u64 {
        let units = units.to_string();
        let mut all: Vec<(&str, &str)> = attributes.iter().collect();
        all.sort_unstable();
        let parts = all.iter().flat_map(|(name, value)| [*name, *value]);
        self.holds.subject(parts.chain([units.as_str()])).bits() as u64
    }
}

thread_local! {
    /// Random bits for the next ids. A system call for each id would take longer than everything else
    /// in a reservation.
    static POOL: RefCell<Vec<u128>> = const { RefCell::new(Vec::new()) };
}

/// How many ids were made without entropy from the system.
static UNGUARDED: AtomicU64 = AtomicU64::new(0);

/// Returns 128 random bits that cannot be guessed, unless the system has no entropy.
pub(crate) fn random() -> u128 {
    POOL.with_borrow_mut(|pool| {
        if let Some(bits) = pool.pop() {
            return bits;
        }
        let mut bytes = [0; 512];
        if getrandom::fill(&mut bytes).is_err() {
            // Without entropy, ids can be guessed, but no two ids of this process are equal.
            let number = UNGUARDED.fetch_add(1, Ordering::Relaxed);
            return u128::from(std::process::id()) << 64 | u128::from(number);
        }
        let (blocks, _) = bytes.as_chunks::<16>();
        pool.extend(blocks.iter().map(|it| u128::from_le_bytes(*it)));
        pool.pop().unwrap_or_default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_under_a_key_does_not_depend_on_the_order_of_rules() {
        let keyring = Keyring::new(b"a secret", "default");
        let names = HoldNames::new(&keyring);
        let home = keyring.kind([TENANT]).subject(["acme"]).tag();
        let [one, two] = [1, 2].map(Tag::new);
        let name = |tags: &[Tag]| names.name(tags, "acme", Some("call-1"));
        assert_eq!(name(&[one, home]).tag(), home);
        assert_eq!(name(&[one, home]), name(&[home]));
        assert_eq!(name(&[one, home]), name(&[home, two]));
        // A hold has the tag of one of its charges.
        assert_eq!(name(&[two, one]).tag(), two);
        assert_eq!(name(&[two]).bits(), name(&[home]).bits());
        assert_eq!(name(&[]).tag(), Tag::default());
        let other = names.name(&[home], "acme", Some("call-2"));
        assert_ne!(other.bits(), name(&[home]).bits());
        assert_ne!(names.name(&[home], "", None), names.name(&[home], "", None));
    }
}
