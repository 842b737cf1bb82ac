//! What is written in the books, and how durably.

use std::sync::Arc;

use tollgate_core::{Charge, Limit, Time};
use tollgate_ledger::{Entry, Full, Kind, LedgerError, Period, UseOf};
use tollgate_rules::{Durability, Resolution};
use tollgate_store::{Applied, HoldStore, StoreError};

use super::refund::Refund;
use super::{Books, unavailable};
use crate::active_config::ActiveConfig;
use crate::parties::{Parties, Party};

/// A charge of a request that is kept in the books.
pub(crate) struct Line<'q, 'r> {
    pub(crate) charge: &'q Charge<'r>,
    pub(crate) rule: &'q str,
    pub(crate) durability: Durability,
    pub(crate) place: usize,
}

/// The charges of a request that are kept in the books.
pub(crate) fn lines<'q, 'r>(
    live: &'q ActiveConfig,
    resolution: &'q Resolution<'r>,
) -> impl Iterator<Item = Line<'q, 'r>> {
    let charges = resolution.charges.iter().zip(&resolution.rules);
    // What is unlimited is not counted.
    let is_kept = |it: &Charge<'_>| it.ledgered && matches!(it.limit, Limit::Quota(_));
    let charges = charges.enumerate().filter(move |(_, (it, _))| is_kept(it));
    charges.map(|(place, (charge, rule))| {
        let rule = &live.rules().rules()[*rule as usize];
        Line {
            charge,
            rule: rule.id(),
            durability: rule.durability(),
            place,
        }
    })
}

/// Whether a rule wants to see it in the database before anybody is answered.
pub(crate) fn is_strict<'q, 'r: 'q>(mut lines: impl Iterator<Item = Line<'q, 'r>>) -> bool {
    lines.any(|line| line.durability == Durability::Strict)
}

/// The charges of a request that passed which something was taken from: those that only watch may have
/// refused it.
pub(crate) fn taken<'r>(charges: &[Charge<'r>], applied: &Applied) -> Vec<Charge<'r>> {
    let all = charges.iter().zip(&applied.outcomes);
    let taken = all.filter(|(_, outcome)| outcome.is_allowed());
    taken.map(|(charge, _)| *charge).collect()
}

/// The period of a charge at `now`. Only quotas are kept in the books.
pub(crate) fn period_of(limit: &Limit, now: Time) -> Period {
    let period = match limit {
        Limit::Quota(quota) => quota.period_at(now),
        _ => tollgate_core::Period {
            start: Time::default(),
            end: Time::MAX,
        },
    };
    Period {
        start: period.start,
        end: period.end,
    }
}

/// An amount as the books have it. Those of requests are below 2^52.
pub(crate) fn signed(amount: u64) -> i64 {
    i64::try_from(amount).unwrap_or(i64::MAX)
}

impl Books {
    /// Notes what was admitted. What cannot be noted is given back, unless it may have been.
    pub(crate) async fn note<S: HoldStore>(
        &self,
        store: &S,
        live: &ActiveConfig,
        resolution: &Resolution<'_>,
        applied: &Applied,
        parties: &Parties<'_, '_>,
    ) -> Result<(), StoreError> {
        let noted = match is_strict(lines(live, resolution)) {
            false => self
                .note_at_once(live, resolution, applied, parties)
                .map_err(LedgerError::from),
            true => {
                let entries = lines(live, resolution).map(|line| {
                    let amount = line.charge.cost.saturating_mul(applied.granted);
                    let entry = self.entry(&line, &parties.of(line.place), applied.now);
                    Entry {
                        amount: signed(amount),
                        ..entry
                    }
                });
                let entries = entries.filter(|entry| entry.amount > 0).collect();
                self.ledger.write(entries).await
            }
        };
        let Err(error) = noted else {
            return Ok(());
        };
        if !error.is_unknown() {
            let charges = taken(&resolution.charges, applied);
            store.refund(&charges, applied.granted, applied.now).await?;
        }
        Err(unavailable(&error))
    }

    /// Notes what was admitted in the memory of this process: all of it, or nothing.
    pub(crate) fn note_at_once(
        &self,
        live: &ActiveConfig,
        resolution: &Resolution<'_>,
        applied: &Applied,
        parties: &Parties<'_, '_>,
    ) -> Result<(), Full> {
        for (noted, line) in lines(live, resolution).enumerate() {
            if let Err(full) = self.use_up(&line, parties, applied, 1) {
                // What is added to an entry that waits needs no room.
                for line in lines(live, resolution).take(noted) {
                    let _ = self.use_up(&line, parties, applied, -1);
                }
                return Err(full);
            }
        }
        Ok(())
    }

    fn use_up(
        &self,
        line: &Line<'_, '_>,
        parties: &Parties<'_, '_>,
        applied: &Applied,
        times: i64,
    ) -> Result<(), Full> {
        let amount = line.charge.cost.saturating_mul(applied.granted);
        if amount == 0 {
            return Ok(());
        }
        let period = period_of(line.charge.limit, applied.now);
        let count = u32::from(times > 0);
        let amount = signed(amount) * times;
        let record = |party: &Party<'_>| {
            let of = UseOf {
                namespace: &self.namespace,
                tenant: &party.tenant,
                action: &party.action,
                rule: line.rule,
                allowance: line.charge.rule,
                key: line.charge.key.bits(),
                period,
            };
            self.ledger
                .record_use(&of, amount, count, applied.now, || self.next_id())
        };
        let party = parties.as_is(line.place);
        match record(&party) {
            // The ledger looks at what it has not seen yet: most need not be looked at here.
            Err(Full::Unfit(_)) => record(&party.writable()),
            recorded => recorded,
        }
    }

    /// A line without an amount.
    pub(crate) fn entry(&self, line: &Line<'_, '_>, party: &Party<'_>, now: Time) -> Entry {
        Entry {
            id: self.next_id(),
            at: now,
            namespace: Arc::clone(&self.namespace),
            tenant: (&*party.tenant).into(),
            action: (&*party.action).into(),
            rule: line.rule.into(),
            allowance: line.charge.rule.into(),
            key: line.charge.key.bits(),
            period: period_of(line.charge.limit, now),
            kind: Kind::Use,
            amount: 0,
            count: 1,
            hold: None,
            who: "".into(),
            why: "".into(),
            idempotency_key: None,
        }
    }

    /// Notes what was given back.
    pub(super) async fn note_refund(
        &self,
        live: &ActiveConfig,
        resolution: &Resolution<'_>,
        refund: &Refund<'_>,
        now: Time,
        parties: &Parties<'_, '_>,
    ) -> Result<(), StoreError> {
        let entries = lines(live, resolution).map(|line| {
            let entry = self.entry(&line, &parties.of(line.place), now);
            Entry {
                kind: Kind::Correction,
                amount: -signed(refund.given(line.place, now)),
                count: 0,
                why: "refund".into(),
                ..entry
            }
        });
        let strict = is_strict(lines(live, resolution));
        let entries = entries.filter(|entry| entry.amount < 0).collect();
        self.write(entries, strict).await
    }

    /// Notes that what was used was corrected to nothing.
    pub(super) async fn note_reset(
        &self,
        line: &Line<'_, '_>,
        used: i64,
        now: Time,
        party: &Party<'_>,
    ) -> Result<(), StoreError> {
        let entry = Entry {
            kind: Kind::Correction,
            amount: -used,
            count: 0,
            why: "reset".into(),
            ..self.entry(line, party, now)
        };
        let strict = line.durability == Durability::Strict;
        self.write(vec![entry], strict).await
    }

    /// Writes entries, in the database before this returns if that is asked for.
    pub(crate) async fn write(&self, entries: Vec<Entry>, strict: bool) -> Result<(), StoreError> {
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
        written.map_err(|error| unavailable(&error))
    }
}
