//! A line of the books, and what may stand in it.

use std::fmt;
use std::sync::Arc;

use tollgate_core::Time;

/// Amounts stay below this, above and below zero: 2^53.
pub const MOST_AMOUNT: i64 = 1 << 53;
/// The longest text that a request may bring, in bytes: tenant, action.
///
/// PostgreSQL has indexes of rows up to 2,704 bytes: tenant, action and rule together are just below.
pub const MOST_VALUE: usize = 1024;
/// The longest name of a config, in bytes: namespace, rule, allowance.
pub const MOST_NAME: usize = 512;
/// The longest text that is only kept, in bytes: who, why, an idempotency key.
pub const MOST_TEXT: usize = 4096;
/// The longest record of a reservation, in bytes.
pub const MOST_RECORD: usize = 64 * 1024;

/// Which entry it is. Writing an entry whose id is in the books changes nothing, so that replays are safe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryId(pub u128);

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

/// The time that an allowance is for: from `start` until just before `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Period {
    /// The first instant.
    pub start: Time,
    /// The first instant after it.
    pub end: Time,
}

/// What an entry is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Something was used.
    Use,
    /// Something was set aside; with an amount of 0, it is kept for longer.
    Reserve,
    /// What was set aside was used: the amount is the difference.
    Settle,
    /// Somebody has set right what is used.
    Correction,
    /// Somebody has given more to use.
    Grant,
    /// What was set aside came back because its time was over.
    Expiry,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 6] = [
        Kind::Use,
        Kind::Reserve,
        Kind::Settle,
        Kind::Correction,
        Kind::Grant,
        Kind::Expiry,
    ];

    /// The name in the books and in exports.
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

    /// The kind of that name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Whether it is about a reservation.
    #[must_use]
    pub const fn is_of_hold(self) -> bool {
        matches!(self, Kind::Reserve | Kind::Settle | Kind::Expiry)
    }

    /// Whether it ends a reservation.
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldNote {
    /// Which one.
    pub id: u128,
    /// Whatever its maker wants to find again with it.
    pub tag: u32,
    /// Until when it holds.
    pub expires_at: Time,
    /// Text of its maker, which the ledger keeps and does not read. That of an end takes the place of that
    /// of the beginning; an empty one takes no place.
    pub record: Arc<str>,
}

/// One line of the books. Never changed, never deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Which entry: the same one is kept once, however often it is written.
    pub id: EntryId,
    /// When it happened.
    pub at: Time,
    /// The deployment that it is of.
    pub namespace: Arc<str>,
    /// Whose it is; empty where the request named nobody.
    pub tenant: Arc<str>,
    /// What was done; empty where the request did not say.
    pub action: Arc<str>,
    /// The rule that asked for it.
    pub rule: Arc<str>,
    /// Whose counter it is: the rule's id, or its budget's.
    pub allowance: Arc<str>,
    /// The counter: a hash of allowance and subject.
    pub key: u128,
    /// The period that it counts in.
    pub period: Period,
    /// What it is about.
    pub kind: Kind,
    /// Adds to what is used; of a grant, to what may be used. May be negative.
    pub amount: i64,
    /// How many requests it stands for.
    pub count: u32,
    /// The reservation; for [`Kind::Reserve`], [`Kind::Settle`] and [`Kind::Expiry`], and only for them.
    pub hold: Option<HoldNote>,
    /// Who did it, where somebody did.
    pub who: Arc<str>,
    /// The reason, where one was given.
    pub why: Arc<str>,
    /// The key under which a client may say the same twice.
    pub idempotency_key: Option<Arc<str>>,
}

/// Why an entry cannot be kept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntryError {
    /// The amount is too large.
    #[error("the amount {amount} is not between -2^53 and 2^53: split it")]
    Amount {
        /// That amount.
        amount: i64,
    },
    /// A text is too long.
    #[error("`{field}` has {bytes} bytes and may have {most}: shorten it")]
    TooLong {
        /// Which text.
        field: &'static str,
        /// How long it is.
        bytes: usize,
        /// How long it may be.
        most: usize,
    },
    /// A text has a character that databases do not keep.
    #[error("`{field}` has a NUL character: leave it out")]
    Nul {
        /// Which text.
        field: &'static str,
    },
    /// The period ends before it starts.
    #[error("the period ends before it starts")]
    Period,
    /// It is about a reservation and names none, or the other way round.
    #[error("an entry of kind {kind} {}", if kind.is_of_hold() { "names a reservation" } else { "names no reservation" })]
    Hold {
        /// Its kind.
        kind: Kind,
    },
}

impl Entry {
    /// Whether it can be kept. The ledger asks before it takes an entry.
    ///
    /// # Errors
    /// If it cannot.
    pub fn check(&self) -> Result<(), EntryError> {
        check_amount(self.amount)?;
        if self.period.end < self.period.start {
            return Err(EntryError::Period);
        }
        if self.hold.is_some() != self.kind.is_of_hold() {
            return Err(EntryError::Hold { kind: self.kind });
        }
        check_text("namespace", &self.namespace, MOST_NAME)?;
        check_text("tenant", &self.tenant, MOST_VALUE)?;
        check_text("action", &self.action, MOST_VALUE)?;
        check_text("rule", &self.rule, MOST_NAME)?;
        check_text("allowance", &self.allowance, MOST_NAME)?;
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

    /// A use of 1.
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
            kind: Kind::Use,
            amount: 1,
            count: 1,
            hold: None,
            who: "".into(),
            why: "".into(),
            idempotency_key: None,
        }
    }

    #[test]
    fn kinds_have_names_that_lead_back() {
        for kind in Kind::ALL {
            assert_eq!(Kind::parse(kind.name()), Some(kind));
        }
        assert_eq!(Kind::parse("Use"), None);
    }

    #[test]
    fn the_largest_amounts_are_just_below_the_bound() {
        for (amount, is_right) in [
            (MOST_AMOUNT - 1, true),
            (1 - MOST_AMOUNT, true),
            (MOST_AMOUNT, false),
            (-MOST_AMOUNT, false),
            (i64::MIN, false),
            (i64::MAX, false),
        ] {
            let entry = Entry { amount, ..entry(1) };
            assert_eq!(entry.check().is_ok(), is_right, "{amount}");
        }
    }

    #[test]
    fn texts_are_bounded_and_have_no_nul() {
        let long: Arc<str> = "x".repeat(MOST_TEXT + 1).into();
        let error = Entry {
            why: long,
            ..entry(1)
        }
        .check();
        let expected = "`why` has 4097 bytes and may have 4096: shorten it";
        assert_eq!(error.unwrap_err().to_string(), expected);
        let error = Entry {
            tenant: "a\0b".into(),
            ..entry(1)
        }
        .check();
        assert_eq!(error, Err(EntryError::Nul { field: "tenant" }));
    }

    #[test]
    fn a_reservation_is_named_where_it_belongs() {
        let reserve = Entry {
            kind: Kind::Reserve,
            ..entry(1)
        };
        let error = reserve.check().unwrap_err();
        assert_eq!(
            error.to_string(),
            "an entry of kind reserve names a reservation"
        );
        let odd = Entry {
            hold: Some(HoldNote {
                id: 1,
                tag: 0,
                expires_at: Time::MAX,
                record: "".into(),
            }),
            ..entry(1)
        };
        assert_eq!(odd.check(), Err(EntryError::Hold { kind: Kind::Use }));
    }
}
