//! An entry of the ledger, a note, and which values they may have.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tollgate_core::Time;

use crate::pending::UseOf;

/// Amounts are between -2^53 and 2^53, both excluded.
pub const MOST_AMOUNT: i64 = 1 << 53;
/// The longest text from a request (tenant, action), in bytes.
///
/// PostgreSQL cannot index a row of more than 2,704 bytes. Tenant, action and rule together stay just below
/// this maximum.
pub const MOST_VALUE: usize = 1024;
/// The longest name from a config (namespace, rule, allowance), in bytes.
pub const MOST_NAME: usize = 512;
/// The longest text that is stored but not indexed (who, why, an idempotency key), in bytes.
pub const MOST_TEXT: usize = 4096;
/// The longest record of a reservation, in bytes.
pub const MOST_RECORD: usize = 64 * 1024;

/// The id of an entry. Writing an entry again under the same id changes nothing, so that retries are safe.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct EntryId(#[serde(with = "hex")] pub u128);

impl From<u128> for EntryId {
    fn from(id: u128) -> EntryId {
        EntryId(id)
    }
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The period of an allowance: from `start` until just before `end`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Period {
    /// The first instant.
    #[serde(with = "micros")]
    pub start: Time,
    /// The first instant after the period.
    #[serde(with = "micros")]
    pub end: Time,
}

/// The kind of an entry.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Usage.
    #[default]
    Use,
    /// A reservation, or the extension of its time if the amount is 0.
    Reserve,
    /// The end of a reservation by a commit or a release. The amount is the difference to the reserved
    /// amount.
    Settle,
    /// A correction of the usage by an administrator.
    Correction,
    /// An addition to the limit by an administrator.
    Grant,
    /// The end of a reservation that has expired.
    Expiry,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 6] = [
        Kind::Use,
        Kind::Reserve,
        Kind::Settle,
        Kind::Correction,
        Kind::Grant,
        Kind::Expiry,
    ];

    /// Returns the name in the database and in exports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Use => "use",
            Kind::Reserve => "reserve",
            Kind::Settle => "settle",
            Kind::Correction => "correction",
            Kind::Grant => "grant",
            Kind::Expiry => "expiry",
        }
    }

    /// Returns the kind with that name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Whether the entry is about a reservation.
    #[must_use]
    pub const fn is_of_hold(self) -> bool {
        matches!(self, Kind::Reserve | Kind::Settle | Kind::Expiry)
    }

    /// Whether the entry ends a reservation.
    #[must_use]
    pub const fn ends_hold(self) -> bool {
        matches!(self, Kind::Settle | Kind::Expiry)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The reservation that an entry is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldNote {
    /// The id of the reservation.
    #[serde(with = "hex")]
    pub id: u128,
    /// A number that the ledger returns with the reservation.
    pub tag: u32,
    /// When the reservation expires.
    #[serde(with = "micros")]
    pub expires_at: Time,
    /// A text of the caller, which the ledger stores and does not read. The entry that ends the
    /// reservation replaces the text, unless its own text is empty.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub record: Arc<str>,
}

/// One entry of the ledger. Never changed, never deleted.
///
/// The serde form of this type is stored in spill files: read `spill/line.rs` before you change a field.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The id. Writing an entry again under the same id changes nothing.
    pub id: EntryId,
    /// The time of the request or the change.
    #[serde(with = "micros")]
    pub at: Time,
    /// The deployment.
    pub namespace: Arc<str>,
    /// The tenant; empty if the request named none.
    pub tenant: Arc<str>,
    /// The action; empty if the request named none.
    pub action: Arc<str>,
    /// The rule that charged the counter.
    pub rule: Arc<str>,
    /// The owner of the counter: the id of the rule, or of its budget.
    pub allowance: Arc<str>,
    /// The counter: a hash of allowance and subject.
    #[serde(with = "hex")]
    pub key: u128,
    /// The period that the entry counts in.
    #[serde(flatten)]
    pub period: Period,
    /// The kind.
    pub kind: Kind,
    /// The amount to add to the usage, or to the limit for a grant. May be negative.
    pub amount: i64,
    /// How many requests the entry stands for.
    pub count: u32,
    /// The reservation. Present exactly for [`Kind::Reserve`], [`Kind::Settle`] and [`Kind::Expiry`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<HoldNote>,
    /// The administrator, for a correction or a grant.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub who: Arc<str>,
    /// The reason, if one was given.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub why: Arc<str>,
    /// The idempotency key of the client, if it sent one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<Arc<str>>,
}

/// Why an entry or a note cannot be stored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntryError {
    /// The amount is too large.
    #[error("the amount {amount} is not between -2^53 and 2^53: split it")]
    Amount {
        /// The amount.
        amount: i64,
    },
    /// A text is too long.
    #[error("`{field}` has {bytes} bytes, and at most {most} are allowed: shorten it")]
    TooLong {
        /// Which text.
        field: &'static str,
        /// The text's length.
        bytes: usize,
        /// The maximum.
        most: usize,
    },
    /// A text has a character that databases do not store.
    #[error("`{field}` has a NUL character: remove it")]
    Nul {
        /// Which text.
        field: &'static str,
    },
    /// The period ends before it starts.
    #[error("the period ends before it starts")]
    Period,
    /// The entry lacks a reservation, or has one that its kind does not allow.
    #[error("an entry of kind {kind} {} name a reservation", if kind.is_of_hold() { "must" } else { "must not" })]
    Hold {
        /// The kind.
        kind: Kind,
    },
}

impl Entry {
    /// Checks that the entry can be stored.
    ///
    /// # Errors
    /// If the amount or a text is out of bounds, or the fields contradict each other.
    pub fn check(&self) -> Result<(), EntryError> {
        check_amount(self.amount)?;
        if self.hold.is_some() != self.kind.is_of_hold() {
            return Err(EntryError::Hold { kind: self.kind });
        }
        UseOf::of(self).check()?;
        check_text("who", &self.who, MOST_TEXT)?;
        check_text("why", &self.why, MOST_TEXT)?;
        if let Some(key) = &self.idempotency_key {
            check_text("idempotency_key", key, MOST_TEXT)?;
        }
        if let Some(hold) = &self.hold {
            check_text("record", &hold.record, MOST_RECORD)?;
        }
        Ok(())
    }
}

/// A note of one change by a person or a program. Never changed, never deleted. Notes are stored beside
/// the entries, and do not count in any sum.
///
/// In the spill file the id of a note is the field `note`, which no entry has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// The id. Writing a note again under the same id changes nothing.
    #[serde(rename = "note")]
    pub id: EntryId,
    /// The time of the change.
    #[serde(with = "micros")]
    pub at: Time,
    /// The deployment.
    pub namespace: Arc<str>,
    /// The person or program that made the change.
    pub who: Arc<str>,
    /// The kind of change, as words with dots between them: `override.set`.
    pub what: Arc<str>,
    /// The details. The ledger stores this text and does not read it.
    pub text: Arc<str>,
}

impl Note {
    /// Checks that the note can be stored.
    ///
    /// # Errors
    /// If a text is too long or has a NUL character.
    pub fn check(&self) -> Result<(), EntryError> {
        check_text("namespace", &self.namespace, MOST_NAME)?;
        check_text("who", &self.who, MOST_TEXT)?;
        check_text("what", &self.what, MOST_NAME)?;
        check_text("text", &self.text, MOST_RECORD)
    }
}

/// 128 bits as 32 hexadecimal digits: JSON numbers are too small.
mod hex {
    use super::*;

    pub(super) fn serialize<S: Serializer>(bits: &u128, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{bits:032x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u128, D::Error> {
        let digits = Cow::<str>::deserialize(from)?;
        u128::from_str_radix(&digits, 16).map_err(D::Error::custom)
    }
}

/// A time as microseconds since 1970.
mod micros {
    use super::*;

    pub(super) fn serialize<S: Serializer>(time: &Time, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(time.as_micros())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Time, D::Error> {
        u64::deserialize(from).map(Time::from_micros)
    }
}

pub(crate) fn check_amount(amount: i64) -> Result<(), EntryError> {
    if (1 - MOST_AMOUNT..MOST_AMOUNT).contains(&amount) {
        return Ok(());
    }
    Err(EntryError::Amount { amount })
}

pub(crate) fn check_text(field: &'static str, text: &str, most: usize) -> Result<(), EntryError> {
    if text.len() > most {
        return Err(EntryError::TooLong {
            field,
            bytes: text.len(),
            most,
        });
    }
    if text.as_bytes().contains(&0) {
        return Err(EntryError::Nul { field });
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns a use with amount 1.
    pub(crate) fn entry(id: u128) -> Entry {
        Entry {
            id: EntryId(id),
            at: Time::from_micros(1_000_000),
            namespace: "test".into(),
            tenant: "acme".into(),
            action: "search".into(),
            rule: "monthly".into(),
            allowance: "monthly".into(),
            key: 7,
            period: Period {
                start: Time::from_micros(0),
                end: Time::from_micros(2_000_000),
            },
            amount: 1,
            count: 1,
            ..Entry::default()
        }
    }

    /// Returns an entry like [`entry`], with a change.
    pub(crate) fn entry_with(id: u128, change: impl FnOnce(&mut Entry)) -> Entry {
        let mut entry = entry(id);
        change(&mut entry);
        entry
    }

    #[test]
    fn kinds_are_parsed_from_their_names() {
        for kind in Kind::ALL {
            assert_eq!(Kind::parse(kind.name()), Some(kind));
        }
        assert_eq!(Kind::parse("Use"), None);
    }

    #[test]
    fn amounts_are_bounded() {
        for (amount, is_valid) in [
            (MOST_AMOUNT - 1, true),
            (1 - MOST_AMOUNT, true),
            (MOST_AMOUNT, false),
            (-MOST_AMOUNT, false),
            (i64::MIN, false),
            (i64::MAX, false),
        ] {
            let entry = entry_with(1, |it| it.amount = amount);
            assert_eq!(entry.check().is_ok(), is_valid, "{amount}");
        }
    }

    #[test]
    fn texts_are_bounded_and_have_no_nul() {
        let long = entry_with(1, |it| it.why = "x".repeat(MOST_TEXT + 1).into());
        let expected = "`why` has 4097 bytes, and at most 4096 are allowed: shorten it";
        assert_eq!(long.check().unwrap_err().to_string(), expected);
        let nul = entry_with(1, |it| it.tenant = "a\0b".into());
        assert_eq!(nul.check(), Err(EntryError::Nul { field: "tenant" }));
    }

    #[test]
    fn only_entries_about_a_reservation_name_one() {
        let reserve = entry_with(1, |it| it.kind = Kind::Reserve);
        let expected = "an entry of kind reserve must name a reservation";
        assert_eq!(reserve.check().unwrap_err().to_string(), expected);
        let surplus = entry_with(1, |it| it.hold = Some(HoldNote::default()));
        assert_eq!(surplus.check(), Err(EntryError::Hold { kind: Kind::Use }));
    }
}
