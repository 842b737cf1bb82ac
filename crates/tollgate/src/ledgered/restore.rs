//! Counts that a store has lost, read from the ledger.
//!
//! The time limits of the store do not cover the waits for the ledger, so this module has its own
//! bounds:
//!
//! * how long a request waits for other requests that restore the same count
//! * how long a request waits for an answer of the ledger
//! * how many reservations are restored with a count
//!
//! A request that is not served in time gets an error, and the failure policies of its rules decide.

use std::time::Duration;

use futures_util::TryFutureExt as _;
use futures_util::future::join_all;
use tokio::sync::MutexGuard;
use tokio::time::{Instant, timeout};
use tollgate_core::quota::Quota;
use tollgate_core::{Balance, Charge, Limit, Time};
use tollgate_store::{Applied, HoldRecord, RETAIN, Store, StoreError};

use super::posting::PostError;
use super::reservations::record_of;
use super::{LedgerSync, STRIPES, UNRESTORED, unavailable};
use crate::accounts::Accounts;

/// How many earlier periods are read to compute the amount that is carried over into the current
/// period.
const PERIODS: usize = 24;
/// How long a request waits for an answer of the ledger, and for other requests that restore the same
/// count.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long the ledger is not asked again after it did not answer in time.
const PAUSE: Duration = Duration::from_secs(1);
/// How many reservations are restored with a count, the latest first. Earlier reservations are still
/// found by their id. But a client that repeats one of them by its idempotency key gets another
/// reservation.
const MOST_HOLDS: usize = 10_000;
/// How many reservations are read from the ledger at a time, and how many are put into the store at a
/// time.
const PAGE: usize = 500;
const AT_ONCE: usize = 32;

/// A count of the current period in the ledger.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LedgerCount {
    pub(super) ends_at: Time,
    pub(super) used: i64,
    pub(super) extra: u64,
}

impl LedgerSync {
    /// Restores the counts of those `charges` for which the store has no count.
    pub(super) async fn restore(
        &self,
        store: &dyn Store,
        charges: &[Charge<'_>],
        applied: &Applied,
    ) -> Result<(), StoreError> {
        for (charge, outcome) in charges.iter().zip(&applied.outcomes) {
            if outcome.admission != UNRESTORED {
                continue;
            }
            let (key, now) = (charge.key.bits(), applied.now);
            // Many requests may need one count at the same time. The first request reads the count for
            // all of them.
            let _alone = self.alone(key).await?;
            if store.balance(charge).await?.is_some() {
                continue;
            }
            let recorded = self.in_time(self.count_of(charge, now)).await?;
            let balance = Balance {
                ends_at: recorded.ends_at,
                used: non_negative(recorded.used),
                extra: recorded.extra,
            };
            // Reservations are put back before their count, so that a repeated request always finds its
            // reservation.
            self.put_holds(store, key, now).await?;
            let charge = std::slice::from_ref(charge);
            store.restore(charge, &[balance]).await?;
        }
        Ok(())
    }

    /// Puts back the reservations of a counter that a client may repeat by idempotency key. Other
    /// reservations need not be put back. Calls that end or extend them have their id, and the ledger
    /// finds them by that id.
    async fn put_holds(&self, store: &dyn Store, key: u128, now: Time) -> Result<(), StoreError> {
        let since = Time::from_micros(now.as_micros().saturating_sub(RETAIN.as_micros()));
        let (mut seen, mut after) = (0, None);
        while seen < MOST_HOLDS {
            let page = self.ledger.holds_of(key, since, after, PAGE);
            let page = self.in_time(page.map_err(unavailable)).await?;
            let Some(last) = page.last() else { break };
            after = Some((last.expires_at, last.hold));
            seen += page.len();
            // Only a reservation with an idempotency key has a fingerprint.
            let records = page.iter().filter_map(record_of);
            let records: Vec<HoldRecord> = records.filter(|it| it.fingerprint != 0).collect();
            for some in records.chunks(AT_ONCE) {
                let putting = some.iter().map(|it| store.put_hold(it).into_future());
                for put in join_all(putting).await {
                    match put {
                        Ok(_) => {}
                        // The count is more important than the remaining reservations.
                        Err(error @ StoreError::TooManyHolds) => {
                            tracing::warn!(%error, "some reservations of a count were not restored");
                            return Ok(());
                        }
                        Err(error) => return Err(error),
                    }
                }
            }
        }
        Ok(())
    }

    /// Waits for the answer of the ledger. If the answer does not come in time, returns an error, and
    /// does not ask the ledger again for a moment. Otherwise requests that wait for each other would
    /// wait longer and longer.
    pub(super) async fn in_time<T>(
        &self,
        asking: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let silent_until = *self.silent_until.lock();
        if silent_until.is_none_or(|it| it <= Instant::now()) {
            if let Ok(answer) = timeout(PATIENCE, asking).await {
                return answer;
            }
            *self.silent_until.lock() = Some(Instant::now() + PAUSE);
        }
        let silent = "the ledger did not answer in time";
        Err(StoreError::Ledger(silent.into()))
    }

    /// Locks a counter within this process. The wait has a limit, because the holder of the lock may
    /// wait for the ledger.
    pub(super) async fn alone(&self, key: u128) -> Result<MutexGuard<'_, ()>, StoreError> {
        let turn = timeout(PATIENCE, self.restoring[stripe(key)].lock()).await;
        turn.map_err(|_| {
            let why = "too many requests wait for the ledger to restore the same count";
            StoreError::Ledger(why.into())
        })
    }

    /// Locks several counters. The locks are taken in a fixed order, so that callers cannot deadlock.
    pub(super) async fn alone_all(
        &self,
        keys: impl Iterator<Item = u128>,
    ) -> Result<Vec<MutexGuard<'_, ()>>, StoreError> {
        let mut keys: Vec<u128> = keys.collect();
        keys.sort_unstable_by_key(|key| stripe(*key));
        keys.dedup_by_key(|key| stripe(*key));
        let mut alone = Vec::with_capacity(keys.len());
        for key in keys {
            alone.push(self.alone(key).await?);
        }
        Ok(alone)
    }

    /// Returns how much of the usage of the current period belongs to open reservations.
    pub(super) async fn reserved_of(
        &self,
        charge: &Charge<'_>,
        now: Time,
    ) -> Result<u64, StoreError> {
        let reserved = self.ledger.reserved(charge.key.bits(), now).await;
        reserved.map(non_negative).map_err(unavailable)
    }

    /// Reads the count from the ledger. Its usage may be negative, because of corrections.
    pub(super) async fn count_of(
        &self,
        charge: &Charge<'_>,
        now: Time,
    ) -> Result<LedgerCount, StoreError> {
        match charge.limit {
            Limit::Quota(quota) => self.count_at(charge.key.bits(), quota, now).await,
            _ => Ok(LedgerCount::default()),
        }
    }

    /// Reads the count of a counter of `quota` from the ledger.
    async fn count_at(
        &self,
        key: u128,
        quota: &Quota,
        now: Time,
    ) -> Result<LedgerCount, StoreError> {
        let periods = self.ledger.history(key, PERIODS).await;
        let mut periods = periods.map_err(unavailable)?;
        periods.retain(|it| it.period.start <= now);
        let current = quota.period_at(now);
        let last_end = periods.iter().map(|it| it.period.end);
        let last_end = last_end.filter(|end| *end <= now).max().unwrap_or_default();
        // The oldest period comes first, because each period carries over into the next.
        let mut before = Balance::default();
        let (mut used, mut granted) = (0_i64, 0_i64);
        for summed in periods.into_iter().rev() {
            let (period, recorded) = (summed.period, summed.balance);
            if period.end > now {
                // After a change of the calendar, the ledger has several periods that have not ended:
                // usage stays in the period in which it was recorded. Usage of a former calendar counts
                // until the first period that ends after it was recorded.
                if period.start != current.start && last_end > summed.last_at {
                    continue;
                }
                used = used.saturating_add(recorded.used);
                granted = granted.saturating_add(recorded.granted);
                continue;
            }
            let last = Time::from_micros(period.end.as_micros().saturating_sub(1));
            let carried = quota.balance(&quota.restored(before, last), last).extra;
            before = Balance {
                ends_at: period.end,
                used: non_negative(recorded.used),
                extra: carried.saturating_add_signed(recorded.granted),
            };
        }
        let carried = quota.balance(&quota.restored(before, now), now);
        Ok(LedgerCount {
            ends_at: carried.ends_at,
            used,
            // A grant is negative if a counter had less than the amount that was carried over.
            extra: carried.extra.saturating_add_signed(granted),
        })
    }
}

impl<S: Store> Accounts<'_, S> {
    /// Returns the units that a counter of `quota` has used at `now`, under all tenants, rules and actions, and the
    /// units that it has in addition to its limit: granted, or carried over. The counter has the key `key`.
    ///
    /// # Errors
    /// If the ledger does not answer.
    pub async fn used_and_extra(
        &self,
        key: u128,
        quota: &Quota,
        now: Time,
    ) -> Result<(i64, u64), PostError> {
        let count = self.sync.count_at(key, quota, now).await?;
        Ok((count.used, count.extra))
    }

    /// Returns the units that a counter of `quota` has in addition to its limit at `now`: granted, or
    /// carried over. The counter has the key `key`.
    ///
    /// # Errors
    /// If the ledger does not answer.
    pub async fn extra(&self, key: u128, quota: &Quota, now: Time) -> Result<u64, PostError> {
        let count = self.sync.count_at(key, quota, now).await?;
        Ok(count.extra)
    }
}

fn stripe(key: u128) -> usize {
    #[allow(clippy::cast_possible_truncation)] // Any bits of the key are good enough.
    let bits = key as usize;
    bits % STRIPES
}

/// Returns the amount, or 0 if the amount is negative. Corrections may take back more than was used.
fn non_negative(amount: i64) -> u64 {
    u64::try_from(amount).unwrap_or(0)
}
