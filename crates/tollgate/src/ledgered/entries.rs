//! The entries that requests write into the ledger, and how durably.

use std::borrow::Cow;
use std::sync::Arc;

use smallvec::SmallVec;
use tollgate_core::{Charge, Limit, Recorded, Time};
use tollgate_ledger::{Entry, Full, Kind, LedgerError, NewUse, Period, UseOf};
use tollgate_store::{Applied, StoreError};

use super::{LedgerSync, is_unrestored, unavailable};

/// The most bytes of a tenant or an action that are written, because databases index these columns.
const MOST_TEXT: usize = 1024;

/// A charge of a request whose usage is recorded.
pub(super) struct RecordedCharge<'q, 'r> {
    pub(super) charge: &'q Charge<'r>,
    pub(super) labels: Recorded<'q>,
    pub(super) place: usize,
}

/// Returns the recorded charges of a request. Unlimited charges are not counted, so they are not
/// recorded.
pub(super) fn recorded_charges<'q, 'r>(
    charges: &'q [Charge<'r>],
) -> impl Iterator<Item = RecordedCharge<'q, 'r>> {
    let charges = charges.iter().enumerate();
    charges.filter_map(|(place, charge)| {
        let labels = charge.recorded.filter(|_| charge.needs_state())?;
        Some(RecordedCharge {
            charge,
            labels,
            place,
        })
    })
}

/// Returns whether the usage of a charge has to be in the database before the request is answered.
pub(super) fn is_strict(charges: &[Charge<'_>]) -> bool {
    recorded_charges(charges).any(|line| line.labels.strict)
}

/// Changes a text so that databases accept it. An invalid name must not keep usage out of the ledger.
pub(super) fn writable(text: &str) -> Cow<'_, str> {
    if text.len() <= MOST_TEXT && !text.contains('\0') {
        return text.into();
    }
    let mut clean = text.replace('\0', "\u{fffd}");
    clean.truncate(clean.floor_char_boundary(MOST_TEXT));
    clean.into()
}

/// Returns the period of a charge at `now`. Only quotas are recorded.
pub(super) fn period_of(limit: &Limit, now: Time) -> Period {
    let (start, end) = match limit {
        Limit::Quota(quota) => {
            let period = quota.period_at(now);
            (period.start, period.end)
        }
        _ => (Time::default(), Time::MAX),
    };
    Period { start, end }
}

/// Converts an amount into a signed number, as the ledger has it. Amounts of requests are below 2^52.
pub(super) fn signed(amount: u64) -> i64 {
    i64::try_from(amount).unwrap_or(i64::MAX)
}

impl LedgerSync {
    /// Records admitted usage.
    pub(super) async fn record(
        &self,
        charges: &[Charge<'_>],
        applied: &Applied,
    ) -> Result<(), LedgerError> {
        if !is_strict(charges) {
            return self.record_in_memory(charges, applied).map_err(Into::into);
        }
        let entries = recorded_charges(charges).map(|line| Entry {
            amount: signed(line.charge.cost.saturating_mul(applied.granted)),
            ..self.entry(&line, applied.now)
        });
        let entries = entries.filter(|entry| entry.amount > 0).collect();
        self.ledger.write(entries).await
    }

    /// Records an answer if that needs no wait. Returns false, with nothing recorded, if counts must be
    /// restored, a rule is strict, or the queue is full.
    #[inline]
    pub(super) fn record_now(&self, charges: &[Charge<'_>], applied: &Applied) -> bool {
        if !applied.allowed {
            return !is_unrestored(applied);
        }
        !is_strict(charges)
            && !is_unrestored(applied)
            && self.record_in_memory(charges, applied).is_ok()
    }

    /// Records admitted usage in the memory of this process: all of it, or nothing.
    fn record_in_memory(&self, charges: &[Charge<'_>], applied: &Applied) -> Result<(), Full> {
        let lines = || {
            let lines = recorded_charges(charges);
            lines.filter(|line| line.charge.cost > 0 && applied.granted > 0)
        };
        let uses = lines().map(|line| {
            let Recorded { tenant, action, .. } = line.labels;
            self.new_use(&line, tenant, action, applied)
        });
        let uses: SmallVec<[NewUse<'_>; 2]> = uses.collect();
        let recorded = self.ledger.record_uses(&uses, || self.next_id());
        let Err(Full::Unfit(_)) = recorded else {
            return recorded;
        };
        // The ledger checks only texts that are new to it, so a check of every text before would be wasted.
        let clean =
            lines().map(|line| (writable(line.labels.tenant), writable(line.labels.action)));
        let clean: Vec<_> = clean.collect();
        let uses = lines().zip(&clean);
        let uses =
            uses.map(|(line, (tenant, action))| self.new_use(&line, tenant, action, applied));
        let uses: Vec<NewUse<'_>> = uses.collect();
        self.ledger.record_uses(&uses, || self.next_id())
    }

    fn new_use<'q>(
        &'q self,
        line: &RecordedCharge<'q, '_>,
        tenant: &'q str,
        action: &'q str,
        applied: &Applied,
    ) -> NewUse<'q> {
        NewUse {
            of: UseOf {
                namespace: &self.namespace,
                tenant,
                action,
                rule: line.labels.rule,
                allowance: line.charge.rule,
                key: line.charge.key.bits(),
                period: period_of(line.charge.limit, applied.now),
            },
            amount: signed(line.charge.cost.saturating_mul(applied.granted)),
            count: 1,
            at: applied.now,
        }
    }

    /// Makes an entry without an amount.
    pub(super) fn entry(&self, line: &RecordedCharge<'_, '_>, now: Time) -> Entry {
        Entry {
            id: self.next_id(),
            at: now,
            namespace: Arc::clone(&self.namespace),
            tenant: (&*writable(line.labels.tenant)).into(),
            action: (&*writable(line.labels.action)).into(),
            rule: line.labels.rule.into(),
            allowance: line.charge.rule.into(),
            key: line.charge.key.bits(),
            period: period_of(line.charge.limit, now),
            count: 1,
            ..Entry::default()
        }
    }

    /// Records that the costs of `charges` were given back, except costs of an earlier period.
    pub(super) async fn record_refund(
        &self,
        charges: &[Charge<'_>],
        charged_at: Time,
        now: Time,
    ) -> Result<(), StoreError> {
        let lines = recorded_charges(charges).filter(|line| {
            let limit = line.charge.limit;
            period_of(limit, charged_at) == period_of(limit, now)
        });
        let entries = lines.map(|line| Entry {
            kind: Kind::Correction,
            amount: -signed(line.charge.cost),
            count: 0,
            why: "refund".into(),
            ..self.entry(&line, now)
        });
        let entries = entries.filter(|entry| entry.amount < 0).collect();
        self.write(entries, is_strict(charges)).await
    }

    /// Records that usage was reset to zero.
    pub(super) async fn record_reset(
        &self,
        line: &RecordedCharge<'_, '_>,
        used: i64,
        now: Time,
    ) -> Result<(), StoreError> {
        let entry = Entry {
            kind: Kind::Correction,
            amount: -used,
            count: 0,
            why: "reset".into(),
            ..self.entry(line, now)
        };
        self.write(vec![entry], line.labels.strict).await
    }

    /// Writes entries. If `strict`, they are in the database when this returns.
    pub(super) async fn write(&self, entries: Vec<Entry>, strict: bool) -> Result<(), StoreError> {
        if entries.is_empty() {
            return Ok(());
        }
        let written = match strict {
            true => self.ledger.write(entries).await,
            false => entries
                .into_iter()
                .try_for_each(|entry| self.ledger.record(entry))
                .map_err(LedgerError::from),
        };
        written.map_err(unavailable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_no_database_takes_are_changed() {
        assert_eq!(writable("a\0b"), "a\u{fffd}b");
        assert_eq!(writable(&"ä".repeat(MOST_TEXT)).len(), MOST_TEXT);
    }
}
