//! Counts that a store has lost, read from the ledger.

use tokio::sync::MutexGuard;
use tollgate_core::{Admission, Balance, Charge, Denial, Key, Limit, Time};
use tollgate_store::{Applied, HoldStore, RETAIN, StoreError};

use super::{Books, STRIPES, unavailable};

/// How many periods back may matter for what was carried over into the present one.
const PERIODS: usize = 24;

impl Books {
    /// Restores the counts of `charges` that the store has none of.
    pub(crate) async fn restore<S: HoldStore>(
        &self,
        store: &S,
        charges: &[Charge<'_>],
        applied: &Applied,
    ) -> Result<(), StoreError> {
        let unrestored = Admission::Denied(Denial::Unrestored);
        for (charge, outcome) in charges.iter().zip(&applied.outcomes) {
            if outcome.admission == unrestored {
                self.restore_one(store, charge, applied.now).await?;
            }
        }
        Ok(())
    }

    async fn restore_one<S: HoldStore>(
        &self,
        store: &S,
        charge: &Charge<'_>,
        now: Time,
    ) -> Result<(), StoreError> {
        let key = charge.key.bits();
        // Many may ask for one count at once: the first reads it for all.
        let _alone = self.alone(charge.key).await;
        if store.balance(charge).await?.is_some() {
            return Ok(());
        }
        let balance = self.balance_of(charge, now).await?;
        // Reservations first: a count that stands is never without them.
        let since = Time::from_micros(now.as_micros().saturating_sub(RETAIN.as_micros()));
        let holds = self.ledger.holds_of(key, since).await;
        for hold in holds.map_err(|error| unavailable(&error))? {
            self.put_hold(store, &hold).await?;
        }
        store
            .restore(std::slice::from_ref(charge), &[balance])
            .await
    }

    /// One at a time for each counter, as far as this process is concerned.
    pub(super) async fn alone(&self, key: Key) -> MutexGuard<'_, ()> {
        #[allow(clippy::cast_possible_truncation)] // Any of its bits will do.
        let stripe = key.bits() as usize % STRIPES;
        self.restoring[stripe].lock().await
    }

    /// What the books say of a count.
    pub(crate) async fn balance_of(
        &self,
        charge: &Charge<'_>,
        now: Time,
    ) -> Result<Balance, StoreError> {
        let Limit::Quota(quota) = charge.limit else {
            return Ok(Balance::default());
        };
        let read = self.ledger.history(charge.key.bits(), PERIODS).await;
        let mut periods = read.map_err(|error| unavailable(&error))?;
        periods.retain(|(period, _)| period.start <= now);
        // From the oldest on, as they have followed each other.
        let mut before = Balance::default();
        let (mut used, mut granted) = (0_i64, 0_i64);
        for (period, booked) in periods.into_iter().rev() {
            if period.end > now {
                // Several, if the calendar has changed meanwhile: what was used stays used.
                used = used.saturating_add(booked.used);
                granted = granted.saturating_add(booked.granted);
                continue;
            }
            let last = Time::from_micros(period.end.as_micros().saturating_sub(1));
            let carried = quota.balance(&quota.restored(before, last), last).extra;
            before = Balance {
                ends_at: period.end,
                used: non_negative(booked.used),
                extra: carried.saturating_add(non_negative(booked.granted)),
            };
        }
        let carried = quota.balance(&quota.restored(before, now), now);
        Ok(Balance {
            ends_at: carried.ends_at,
            used: non_negative(used),
            extra: carried.extra.saturating_add(non_negative(granted)),
        })
    }
}

/// Corrections may take more away than there was.
fn non_negative(amount: i64) -> u64 {
    u64::try_from(amount).unwrap_or(0)
}
