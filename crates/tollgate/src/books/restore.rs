//! Counts that a store has lost, read from the ledger.
//!
//! Whoever waits here is not bounded by the store, so everything has a bound: the wait for others who
//! restore, each answer of the ledger, and how many reservations come back with a count. Who is not served
//! in time is told so, and the failure policies of the rules decide.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::MutexGuard;
use tokio::time::{Instant, timeout};
use tollgate_core::{Admission, Balance, Charge, Denial, Enforcement, HoldId, Limit, Time};
use tollgate_ledger::HoldRow;
use tollgate_store::{
    Applied, Ask, HeldCharge, HoldRecord, HoldStore, RETAIN, Settle, Settled, StoreError,
};

use super::holds::record_of;
use super::{ATTEMPTS, Books, STRIPES, lost, unavailable};

/// How many periods back may matter for what was carried over into the present one.
const PERIODS: usize = 24;
/// How long an answer of the ledger is waited for, and those who restore the same count.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long nobody asks a ledger that did not answer in time.
const PAUSE: Duration = Duration::from_secs(1);
/// How many reservations of a count are looked at: the latest. Those that are not among them are found by
/// their id, and only whoever repeats one of them by its idempotency key makes another.
const MOST_HOLDS: usize = 10_000;
/// How many of them are read at a time, and how many are put at a time.
const PAGE: usize = 500;
const AT_ONCE: usize = 32;

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
        let _alone = self.alone(key).await?;
        if store.balance(charge).await?.is_some() {
            return Ok(());
        }
        let balance = self.in_time(self.balance_of(charge, now)).await?;
        // Reservations first: a count that stands is never without those that somebody may repeat.
        self.put_holds(store, key, now).await?;
        store
            .restore(std::slice::from_ref(charge), &[balance])
            .await
    }

    /// Puts the reservations of a counter back that somebody may repeat by their idempotency key. What
    /// ends or extends one names it by its id, and finds it in the ledger; so does whoever ends those that
    /// are overdue.
    async fn put_holds<S: HoldStore>(
        &self,
        store: &S,
        key: u128,
        now: Time,
    ) -> Result<(), StoreError> {
        let since = Time::from_micros(now.as_micros().saturating_sub(RETAIN.as_micros()));
        let (mut seen, mut after) = (0, None);
        while seen < MOST_HOLDS {
            let page = async {
                let page = self.ledger.holds_of(key, since, after, PAGE).await;
                page.map_err(|error| unavailable(&error))
            };
            let page = self.in_time(page).await?;
            let Some(last) = page.last() else {
                break;
            };
            after = Some((last.expires_at, last.hold));
            seen += page.len();
            let records: Vec<HoldRecord> = page.iter().filter_map(may_be_repeated).collect();
            for some in records.chunks(AT_ONCE) {
                let putting = some.iter().map(|record| store.put_hold(record));
                for put in join_all(putting).await {
                    match put {
                        Ok(_) => {}
                        // The count is worth more than the rest of them.
                        Err(error @ StoreError::TooManyHolds) => {
                            tracing::warn!(%error, "not all reservations of a count are restored");
                            return Ok(());
                        }
                        Err(error) => return Err(error),
                    }
                }
            }
        }
        Ok(())
    }

    /// As [`HoldStore::settle`], with counts restored first.
    pub(crate) async fn settle<S: HoldStore>(
        &self,
        store: &S,
        id: HoldId,
        how: Settle,
    ) -> Result<Settled, StoreError> {
        for _ in 0..ATTEMPTS {
            let record = match store.settle(id, how).await? {
                Settled::Unrestored(record) => record,
                settled => return Ok(settled),
            };
            let charges = record.charges.iter().map(HeldCharge::as_charge);
            let charges = charges.filter(Charge::needs_state).map(|charge| Charge {
                // Places in the request mean nothing here.
                enforcement: Enforcement::Enforce,
                ..charge
            });
            let charges: Vec<Charge<'_>> = charges.collect();
            self.peek(store, &charges, Ask::Exactly(0)).await?;
        }
        Err(lost())
    }

    /// What the ledger says, if it does so in time. If not, it is not asked for a moment: those who wait
    /// behind each other would wait ever longer.
    pub(super) async fn in_time<T>(
        &self,
        asking: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let silent = || StoreError::Unavailable("the ledger did not answer in time".into());
        if self
            .silent_until
            .lock()
            .is_some_and(|it| Instant::now() < it)
        {
            return Err(silent());
        }
        let answer = timeout(PATIENCE, asking).await;
        answer.unwrap_or_else(|_| {
            *self.silent_until.lock() = Some(Instant::now() + PAUSE);
            Err(silent())
        })
    }

    /// One at a time for each counter, as far as this process is concerned. Not for ever: whoever is
    /// before may wait for the ledger.
    pub(super) async fn alone(&self, key: u128) -> Result<MutexGuard<'_, ()>, StoreError> {
        let turn = timeout(PATIENCE, self.restoring[stripe(key)].lock()).await;
        turn.map_err(|_| {
            let why = "others wait for the ledger, and for the same count";
            StoreError::Unavailable(why.into())
        })
    }

    /// The same for several. In the order of their locks, so that nobody waits for each other.
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

/// A reservation of the ledger as it is to be found under its idempotency key, if it has one.
fn may_be_repeated(row: &HoldRow) -> Option<HoldRecord> {
    record_of(row).filter(|record| record.fingerprint != 0)
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
