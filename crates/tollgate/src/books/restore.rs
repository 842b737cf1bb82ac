//! Counts that a store has lost, read from the ledger.

use tokio::sync::MutexGuard;
use tollgate_core::{Admission, Balance, Charge, Denial, Limit, Time};
use tollgate_store::{Applied, HoldStore, RETAIN, StoreError};

use super::{Books, STRIPES, unavailable};

/// How many periods back may matter for what was carried over into the present one.
const PERIODS: usize = 24;

/// What the books say of a count in the period in force.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Booked {
    pub(super) ends_at: Time,
    pub(super) used: i64,
    pub(super) extra: u64,
}

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
        let _alone = self.alone(key).await;
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
    pub(super) async fn alone(&self, key: u128) -> MutexGuard<'_, ()> {
        self.restoring[stripe(key)].lock().await
    }

    /// The same for two. In the order of their locks, so that nobody waits for each other.
    pub(super) async fn alone_with(
        &self,
        one: u128,
        other: u128,
    ) -> (MutexGuard<'_, ()>, Option<MutexGuard<'_, ()>>) {
        let (one, other) = (stripe(one), stripe(other));
        let first = self.restoring[one.min(other)].lock().await;
        let second = match one == other {
            true => None,
            false => Some(self.restoring[one.max(other)].lock().await),
        };
        (first, second)
    }

    /// How much of what is used in the period in force is set aside by reservations that have not ended.
    pub(super) async fn reserved_of(
        &self,
        charge: &Charge<'_>,
        now: Time,
    ) -> Result<u64, StoreError> {
        let reserved = self.ledger.reserved(charge.key.bits(), now).await;
        let reserved = reserved.map_err(|error| unavailable(&error))?;
        Ok(non_negative(reserved))
    }

    /// What the books say of a count.
    pub(crate) async fn balance_of(
        &self,
        charge: &Charge<'_>,
        now: Time,
    ) -> Result<Balance, StoreError> {
        let booked = self.booked_of(charge, now).await?;
        Ok(Balance {
            ends_at: booked.ends_at,
            used: non_negative(booked.used),
            extra: booked.extra,
        })
    }

    /// The same with the sum as it is: corrections by hand may have made it less than nothing.
    pub(super) async fn booked_of(
        &self,
        charge: &Charge<'_>,
        now: Time,
    ) -> Result<Booked, StoreError> {
        let Limit::Quota(quota) = charge.limit else {
            return Ok(Booked::default());
        };
        let read = self.ledger.history(charge.key.bits(), PERIODS).await;
        let mut periods = read.map_err(|error| unavailable(&error))?;
        periods.retain(|it| it.period.start <= now);
        let current = quota.period_at(now);
        let last_end = periods.iter().map(|it| it.period.end);
        let last_end = last_end.filter(|end| *end <= now).max().unwrap_or_default();
        // From the oldest on, as they have followed each other.
        let mut before = Balance::default();
        let (mut used, mut granted) = (0_i64, 0_i64);
        for chapter in periods.into_iter().rev() {
            let (period, booked) = (chapter.period, chapter.balance);
            if period.end > now {
                // Several, if the calendar has changed meanwhile: what was used stays used, in the period
                // that was in force then. One that has ended since took it along.
                if period.start != current.start && last_end > chapter.last_at {
                    continue;
                }
                used = used.saturating_add(booked.used);
                granted = granted.saturating_add(booked.granted);
                continue;
            }
            let last = Time::from_micros(period.end.as_micros().saturating_sub(1));
            let carried = quota.balance(&quota.restored(before, last), last).extra;
            before = Balance {
                ends_at: period.end,
                used: non_negative(booked.used),
                extra: carried.saturating_add_signed(booked.granted),
            };
        }
        let carried = quota.balance(&quota.restored(before, now), now);
        Ok(Booked {
            ends_at: carried.ends_at,
            used,
            // Less than nothing is granted where counters had less than was carried over.
            extra: carried.extra.saturating_add_signed(granted),
        })
    }
}

fn stripe(key: u128) -> usize {
    #[allow(clippy::cast_possible_truncation)] // Any of its bits will do.
    let bits = key as usize;
    bits % STRIPES
}

/// Corrections may take more away than there was.
fn non_negative(amount: i64) -> u64 {
    u64::try_from(amount).unwrap_or(0)
}
