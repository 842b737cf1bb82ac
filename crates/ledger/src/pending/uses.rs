//! Waiting uses in a compact form. Merging compares key, period and texts, which are next to each other
//! in memory.

use std::hash::{BuildHasher, Hasher};

use foldhash::fast::RandomState;
use tollgate_core::Time;

use crate::entry::{
    Entry, EntryError, EntryId, MOST_NAME, MOST_VALUE, Period, check_amount, check_text,
};

/// The counter and the labels of a use. Uses with the same key, period, tenant, action and rule are merged
/// into one entry while they wait. The database would add them to the same sum anyway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UseOf<'a> {
    /// As in [`Entry`]. Uses with the same key have the same namespace.
    pub namespace: &'a str,
    /// As in [`Entry`].
    pub tenant: &'a str,
    /// As in [`Entry`].
    pub action: &'a str,
    /// As in [`Entry`].
    pub rule: &'a str,
    /// As in [`Entry`]. Uses with the same key have the same allowance.
    pub allowance: &'a str,
    /// As in [`Entry`].
    pub key: u128,
    /// As in [`Entry`].
    pub period: Period,
}

impl<'a> UseOf<'a> {
    /// Returns the counter and the labels of `entry`.
    pub(crate) fn of(entry: &'a Entry) -> UseOf<'a> {
        UseOf {
            namespace: &entry.namespace,
            tenant: &entry.tenant,
            action: &entry.action,
            rule: &entry.rule,
            allowance: &entry.allowance,
            key: entry.key,
            period: entry.period,
        }
    }

    /// Returns a hash that is the same for uses that can be merged. The rule is not part of the hash: only
    /// rules that share a budget have the same key, and a comparison tells them apart.
    pub(super) fn hash(&self, hasher: &RandomState) -> u64 {
        let mut hash = hasher.build_hasher();
        hash.write_u128(self.key ^ u128::from(self.period.start.as_micros()));
        hash.write(self.tenant.as_bytes());
        hash.write(self.action.as_bytes());
        hash.finish()
    }

    /// Checks that an entry with these labels can be stored.
    pub(crate) fn check(&self) -> Result<(), EntryError> {
        if self.period.end < self.period.start {
            return Err(EntryError::Period);
        }
        check_text("namespace", self.namespace, MOST_NAME)?;
        check_text("tenant", self.tenant, MOST_VALUE)?;
        check_text("action", self.action, MOST_VALUE)?;
        check_text("rule", self.rule, MOST_NAME)?;
        check_text("allowance", self.allowance, MOST_NAME)
    }
}

/// A use to be recorded together with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewUse<'a> {
    /// The counter and the labels.
    pub of: UseOf<'a>,
    /// As in [`Entry`].
    pub amount: i64,
    /// As in [`Entry`].
    pub count: u32,
    /// As in [`Entry`].
    pub at: Time,
}

/// A use, or the sum of several.
#[derive(Debug)]
pub(crate) struct Use {
    key: u128,
    period: Period,
    amount: i64,
    count: u32,
    /// The end of each text in `texts`. The texts that are compared come first. All texts together have less
    /// than 2^16 bytes.
    ends: [u16; 5],
    texts: Box<str>,
    pub(super) at: Time,
    id: EntryId,
}

impl Use {
    pub(super) fn new(
        of: &UseOf<'_>,
        (amount, count): (i64, u32),
        at: Time,
        id: impl FnOnce() -> EntryId,
    ) -> Result<Use, EntryError> {
        of.check()?;
        let texts = [of.tenant, of.action, of.rule, of.allowance, of.namespace];
        let mut end = 0;
        let ends = texts.map(|text| {
            end += text.len();
            // Cannot overflow: the lengths are checked.
            u16::try_from(end).unwrap_or(u16::MAX)
        });
        Ok(Use {
            key: of.key,
            period: of.period,
            amount,
            count,
            ends,
            texts: texts.concat().into(),
            at,
            id: id(),
        })
    }

    /// Returns the counter and the labels of the use.
    pub(super) fn of(&self) -> UseOf<'_> {
        let mut start = 0;
        let [tenant, action, rule, allowance, namespace] = self.ends.map(|end| {
            let text = &self.texts[start..usize::from(end)];
            start = usize::from(end);
            text
        });
        UseOf {
            namespace,
            tenant,
            action,
            rule,
            allowance,
            key: self.key,
            period: self.period,
        }
    }

    pub(super) fn is_of(&self, of: &UseOf<'_>) -> bool {
        let mut start = 0;
        let mut texts = [of.tenant, of.action, of.rule].into_iter().zip(self.ends);
        self.key == of.key
            && self.period == of.period
            && texts.all(|(text, end)| {
                let own = self.texts.as_bytes().get(start..usize::from(end));
                start = usize::from(end);
                own.is_some_and(|own| is_same(own, text.as_bytes()))
            })
    }

    /// Adds to the sum. Returns false and adds nothing if the sum would be too large for an entry.
    pub(super) fn add(&mut self, amount: i64, count: u32) -> bool {
        let Some(sum) = self.sum(amount, count) else {
            return false;
        };
        (self.amount, self.count) = sum;
        true
    }

    /// Returns whether `amount` and `count` can be added to this use.
    pub(super) fn fits(&self, amount: i64, count: u32) -> bool {
        self.sum(amount, count).is_some()
    }

    fn sum(&self, amount: i64, count: u32) -> Option<(i64, u32)> {
        let amount = self.amount.checked_add(amount);
        let amount = amount.filter(|it| check_amount(*it).is_ok())?;
        Some((amount, self.count.checked_add(count)?))
    }
}

/// Returns whether both texts are equal, like `==`, but inlined: most texts are short, and each request
/// compares several.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    let ((ones, rest_of_one), (others, rest_of_other)) =
        (one.as_chunks::<8>(), other.as_chunks::<8>());
    one.len() == other.len()
        && ones.iter().zip(others).all(|(a, b)| a == b)
        && rest_of_one.iter().zip(rest_of_other).all(|(a, b)| a == b)
}

impl From<Use> for Entry {
    fn from(it: Use) -> Entry {
        let of = it.of();
        Entry {
            id: it.id,
            at: it.at,
            namespace: of.namespace.into(),
            tenant: of.tenant.into(),
            action: of.action.into(),
            rule: of.rule.into(),
            allowance: of.allowance.into(),
            key: it.key,
            period: it.period,
            amount: it.amount,
            count: it.count,
            ..Entry::default()
        }
    }
}
