//! A store with a ledger behind it.
//!
//! Only the store allows or denies requests. The ledger has the durable record: usage that the store
//! has admitted under a recorded charge is written there. The store may lose a count, because its
//! process ended or its server restarted empty. Then the count is restored from the ledger before
//! anything is admitted.
//!
//! * A store without a state for a recorded charge answers *unrestored*, and changes nothing. [`Ledgered`]
//!   then reads the balance of the period from the ledger, puts it into the store, and asks again. If
//!   several callers restore at the same time, the store keeps the first balance.
//! * A request is recorded after it was admitted and before it is answered. If a rule is strict, the
//!   record is in the database. Otherwise it is in the memory of this process, which is flushed
//!   regularly.
//! * Usage that cannot be recorded is given back. The caller gets an error, so that the rule's failure
//!   policy answers.
//!
//! `entries.rs` writes entries, `restore.rs` reads counts back, and `reservations.rs` has the records
//! of reservations. The changes of operators (`posting.rs`, `reconcile.rs`) go through the whole stack
//! of stores.

mod entries;
mod posting;
mod reconcile;
mod reservations;
mod restore;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Mutex;
use tokio::time::Instant;
use tollgate_core::{
    Admission, Charge, Denial, Enforcement, HoldId, MAX_AMOUNT, Span, Time, Token,
};
use tollgate_ledger::{EntryId, Ledger, LedgerError};
use tollgate_store::{
    Answer, Applied, Ask, Clock, Extended, Held, HeldCharge, HoldRecord, NewHold, Purpose, Reply,
    Settle, Settled, Store, StoreError,
};

use entries::{recorded_charges, signed};
pub use posting::{PostError, Posted, Posting, Standing};
pub use reconcile::{Drift, MOST_DRIFTS, Reconciled, Repair};

use crate::holds::random;

/// How often a request is tried again after a count was restored. Once is enough, unless the store
/// loses the count again.
const ATTEMPTS: usize = 3;
/// The number of locks for restoring. With this many, two keys rarely wait for each other.
const STRIPES: usize = 64;

/// A store with a ledger behind it.
#[derive(Debug)]
pub struct Ledgered<S> {
    store: S,
    sync: Arc<LedgerSync>,
}

/// Keeps a ledger and the counts of a store in step.
pub struct LedgerSync {
    ledger: Ledger,
    namespace: Arc<str>,
    clock: Arc<dyn Clock>,
    /// The upper half of the ids of entries that only this process writes.
    instance: u64,
    written: AtomicU64,
    restoring: Box<[Mutex<()>]>,
    /// After the ledger did not answer in time, it is not asked again until this instant.
    silent_until: parking_lot::Mutex<Option<Instant>>,
}

impl std::fmt::Debug for LedgerSync {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LedgerSync")
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

impl LedgerSync {
    /// Records usage in `ledger`, under `namespace`.
    #[must_use]
    pub fn new(ledger: Ledger, namespace: &str, clock: Arc<dyn Clock>) -> LedgerSync {
        LedgerSync {
            ledger,
            namespace: namespace.into(),
            clock,
            // A random number, or the process id if the system has no entropy. Each instance should
            // have its own number, because the ledger ignores a second entry with the same id.
            instance: (random() >> 64) as u64,
            written: AtomicU64::new(0),
            restoring: (0..STRIPES).map(|_| Mutex::new(())).collect(),
            silent_until: parking_lot::Mutex::new(None),
        }
    }

    /// Returns the ledger.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Returns the namespace of the entries.
    #[must_use]
    pub fn namespace(&self) -> &Arc<str> {
        &self.namespace
    }

    /// Makes an id that no other entry has.
    fn next_id(&self) -> EntryId {
        let place = self.written.fetch_add(1, Ordering::Relaxed);
        EntryId(u128::from(self.instance) << 64 | u128::from(place))
    }
}

impl<S: Store> Ledgered<S> {
    /// Puts a ledger behind `store`.
    pub fn new(store: S, sync: Arc<LedgerSync>) -> Ledgered<S> {
        Ledgered { store, sync }
    }

    /// Returns the store in front of the ledger.
    #[must_use]
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Asks until no count is missing. After each answer, restores missing counts from the ledger.
    /// `first` is the first answer. `applied` finds the outcomes in an answer. If the store has no room for
    /// a count, a denial by another charge stands.
    async fn restored<'a, T>(
        &'a self,
        charges: &'a [Charge<'a>],
        first: Reply<'a, T>,
        ask: impl Fn() -> Reply<'a, T>,
        applied: fn(&T) -> Option<&Applied>,
    ) -> Result<T, StoreError> {
        let mut answer = first.await?;
        for _ in 0..ATTEMPTS {
            let Some(missing) = applied(&answer).filter(|it| is_unrestored(it)) else {
                return Ok(answer);
            };
            match self.sync.restore(&self.store, charges, missing).await {
                Err(StoreError::Full) if is_denied(charges, missing) => return Ok(answer),
                restored => restored?,
            }
            answer = ask().await?;
        }
        Err(lost())
    }

    /// Records admitted usage. If that fails, the usage is given back, unless the ledger may have recorded it.
    async fn record(&self, charges: &[Charge<'_>], applied: &Applied) -> Result<(), StoreError> {
        let Err(error) = self.sync.record(charges, applied).await else {
            return Ok(());
        };
        if !error.is_unknown() {
            // If a shadow charge has denied the request, nothing was taken from that charge.
            let both = charges.iter().zip(&applied.outcomes);
            let taken = both.filter(|(_, outcome)| outcome.is_allowed());
            let taken: Vec<Charge<'_>> = taken.map(|(charge, _)| *charge).collect();
            let refunded = self.store.refund(&taken, applied.granted, applied.now);
            refunded.await?;
        }
        Err(unavailable(error))
    }

    /// Makes a hold and records it. Restores missing counts first.
    async fn hold_recorded(
        &self,
        charges: &[Charge<'_>],
        units: u64,
        new: &NewHold<'_>,
    ) -> Result<Held, StoreError> {
        let is_reservation = new.purpose == Purpose::Reservation;
        let memo = match is_reservation {
            true => LedgerSync::memo(charges),
            false => String::new(),
        };
        let new = &NewHold {
            memo: &memo,
            ..*new
        };
        let ask = || self.store.hold(charges, units, new);
        let held = self.restored(charges, ask(), ask, denied).await?;
        match &held {
            Held::Taken { record, .. } if is_reservation => {
                let recorded = self.sync.record_reserved(record, new.idempotency_key);
                if let Err(error) = recorded.await {
                    self.store.settle(record.id, Settle::Release).await?;
                    return Err(error);
                }
            }
            Held::Taken { record, applied } => {
                if let Err(error) = self.sync.record(charges, applied).await {
                    let release = Settle::ReleaseLease { token: new.token };
                    self.store.settle(record.id, release).await?;
                    return Err(unavailable(error));
                }
            }
            // The process that made the hold may have ended before the hold was recorded.
            Held::Repeated(record) if record.is_open() => {
                let key = new.idempotency_key;
                self.sync.record_reserved(record, key).await?;
            }
            _ => {}
        }
        Ok(held)
    }

    /// Ends a hold and records the end. Restores missing counts first. If only the ledger knows the
    /// reservation, it is first put back into the store.
    async fn settle_recorded(&self, id: HoldId, how: Settle) -> Result<Settled, StoreError> {
        let mut settled = self.settle_restored(id, how).await?;
        if let Settled::Unknown = settled
            && !matches!(
                how,
                Settle::Expire | Settle::Undo | Settle::ReleaseLease { .. }
            )
            && self.sync.revive(&self.store, id).await?
        {
            settled = self.settle_restored(id, how).await?;
        }
        // The hold may have ended before without a record of it, because the process ended in between.
        if let Settled::Done(record) | Settled::Already(record) = &settled {
            self.sync.record_end(record).await?;
        }
        Ok(settled)
    }

    /// Ends a hold. Restores missing counts first.
    async fn settle_restored(&self, id: HoldId, how: Settle) -> Result<Settled, StoreError> {
        let settled = self.store.settle(id, how).await?;
        let Settled::Unrestored(record) = &settled else {
            return Ok(settled);
        };
        let charges = record.charges.iter().map(HeldCharge::as_charge);
        let charges = charges.filter(Charge::needs_state).map(|charge| Charge {
            // Indexes of other charges in the request are not valid here.
            enforcement: Enforcement::Enforce,
            ..charge
        });
        let charges: Vec<Charge<'_>> = charges.collect();
        let ask = || self.store.peek(&charges, Ask::Exactly(0));
        self.restored(&charges, ask(), ask, said).await?;
        match self.store.settle(id, how).await? {
            Settled::Unrestored(_) => Err(lost()),
            settled => Ok(settled),
        }
    }
}

fn said(applied: &Applied) -> Option<&Applied> {
    Some(applied)
}

/// Returns the outcomes of a hold that was denied; `None` if it was not.
fn denied(held: &Held) -> Option<&Applied> {
    match held {
        Held::Denied { applied, .. } => Some(applied),
        _ => None,
    }
}

fn is_recorded(charges: &[Charge<'_>]) -> bool {
    charges.iter().any(|it| it.recorded.is_some())
}

impl<S: Store> Store for Ledgered<S> {
    fn inner(&self) -> Option<&dyn Store> {
        Some(&self.store)
    }

    fn is_local(&self) -> bool {
        // The ledger may fail, and its counts outlive the process.
        false
    }

    fn records_usage(&self) -> bool {
        true
    }

    fn apply<'a>(&'a self, charges: &'a [Charge<'a>], ask: Ask) -> Reply<'a, Applied> {
        let first = self.store.apply(charges, ask);
        if !is_recorded(charges) {
            return first;
        }
        // Most requests do not wait: their counts are there, and their usage is flushed later.
        if let Answer::Now(Ok(applied)) = &first
            && self.sync.record_now(charges, applied)
        {
            return first;
        }
        Answer::later(async move {
            let ask = || self.store.apply(charges, ask);
            let applied = self.restored(charges, first, ask, said).await?;
            if applied.allowed {
                self.record(charges, &applied).await?;
            }
            Ok(applied)
        })
    }

    fn peek<'a>(&'a self, charges: &'a [Charge<'a>], ask: Ask) -> Reply<'a, Applied> {
        match self.store.peek(charges, ask) {
            Answer::Now(Ok(applied)) if !is_unrestored(&applied) => Answer::Now(Ok(applied)),
            first if !is_recorded(charges) => first,
            first => {
                let ask = move || self.store.peek(charges, ask);
                Answer::later(self.restored(charges, first, ask, said))
            }
        }
    }

    /// Gives nothing back that was used in an earlier period. For all charges of a counter together,
    /// never gives back more than was used. Reserved amounts do not count as used here, because their
    /// reservations settle them. The ledger records exactly the amount that is given back.
    fn refund<'a>(
        &'a self,
        charges: &'a [Charge<'a>],
        units: u64,
        charged_at: Time,
    ) -> Reply<'a, Applied> {
        if !is_recorded(charges) {
            return self.store.refund(charges, units, charged_at);
        }
        Answer::later(async move {
            // The peek restores a missing count, so that there is a count to refund.
            let now = self.peek(charges, Ask::Exactly(0)).await?.now;
            let (sync, store) = (&self.sync, &self.store);
            let keys = recorded_charges(charges).map(|line| line.charge.key.bits());
            let _alone = sync.alone_all(keys).await?;
            // The same charges, each with the whole amount that it gives back as its cost.
            let given = charges.iter().map(|charge| Charge {
                cost: charge.cost.saturating_mul(units).min(MAX_AMOUNT),
                ..*charge
            });
            let mut given: Vec<Charge<'_>> = given.collect();
            let mut left = HashMap::new();
            for line in recorded_charges(charges) {
                let left = match left.entry(line.charge.key) {
                    Entry::Occupied(known) => known.into_mut(),
                    Entry::Vacant(unknown) => {
                        let balance = store.balance(line.charge).await?.unwrap_or_default();
                        let reserved = sync.in_time(sync.reserved_of(line.charge, now)).await?;
                        unknown.insert(balance.used.saturating_sub(reserved))
                    }
                };
                let cost = &mut given[line.place].cost;
                *cost = (*cost).min(*left);
                *left -= *cost;
            }
            let applied = store.refund(&given, 1, charged_at).await?;
            let charged_at = charged_at.min(now);
            sync.record_refund(&given, charged_at, applied.now).await?;
            Ok(applied)
        })
    }

    /// Corrects recorded usage to zero, instead of deleting it. Reserved amounts stay reserved until
    /// their holders settle them.
    fn reset<'a>(&'a self, charges: &'a [Charge<'a>]) -> Reply<'a, ()> {
        if !is_recorded(charges) {
            return self.store.reset(charges);
        }
        Answer::later(async move {
            let now = self.peek(charges, Ask::Exactly(0)).await?.now;
            let (sync, store) = (&self.sync, &self.store);
            for line in recorded_charges(charges) {
                let _alone = sync.alone(line.charge.key.bits()).await?;
                let reserved = sync.reserved_of(line.charge, now).await?;
                if let Some(balance) = store.balance(line.charge).await? {
                    let used = signed(balance.used.saturating_sub(reserved));
                    store.adjust(line.charge, -used, 0).await?;
                    sync.record_reset(&line, used, now).await?;
                }
            }
            // These come last: if the ledger does not answer, they stay unchanged.
            let others = charges.iter().filter(|charge| charge.recorded.is_none());
            let others: Vec<Charge<'_>> = others.copied().collect();
            store.reset(&others).await
        })
    }

    fn hold<'a>(
        &'a self,
        charges: &'a [Charge<'a>],
        units: u64,
        new: &'a NewHold<'a>,
    ) -> Reply<'a, Held> {
        match is_recorded(charges) {
            true => Answer::later(self.hold_recorded(charges, units, new)),
            false => self.store.hold(charges, units, new),
        }
    }

    fn settle(&self, id: HoldId, how: Settle) -> Reply<'_, Settled> {
        Answer::later(self.settle_recorded(id, how))
    }

    fn extend(&self, id: HoldId, ttl: Span, token: Option<Token>) -> Reply<'_, Extended> {
        Answer::later(async move {
            let mut extended = self.store.extend(id, ttl, token).await?;
            if let Extended::Unknown = extended
                && self.sync.revive(&self.store, id).await?
            {
                extended = self.store.extend(id, ttl, token).await?;
            }
            if let Extended::Done(record) = &extended {
                self.sync.record_extended(record).await?;
            }
            Ok(extended)
        })
    }

    fn find_hold(&self, id: HoldId) -> Reply<'_, Option<Arc<HoldRecord>>> {
        Answer::later(async move {
            let found = self.store.find_hold(id).await?;
            if found.is_none() && self.sync.revive(&self.store, id).await? {
                return self.store.find_hold(id).await;
            }
            Ok(found)
        })
    }
}

/// Computes an id from `parts`, so that an entry that is written twice is stored once.
fn derived_id(parts: &[&[u8]]) -> EntryId {
    let mut hasher = blake3::Hasher::new_derive_key("tollgate ledger entry v1");
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    let mut half = [0; 16];
    half.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    EntryId(u128::from_le_bytes(half))
}

/// The answer for a charge that should have a state and has none.
const UNRESTORED: Admission = Admission::Denied(Denial::Unrestored);

fn is_unrestored(applied: &Applied) -> bool {
    applied.outcomes.iter().any(|it| it.admission == UNRESTORED)
}

/// Returns whether a charge denies the request for another reason than a missing count.
fn is_denied(charges: &[Charge<'_>], applied: &Applied) -> bool {
    let mut both = charges.iter().zip(&applied.outcomes);
    both.any(|(charge, it)| {
        charge.enforces() && it.is_decided() && !it.is_allowed() && it.admission != UNRESTORED
    })
}

fn lost() -> StoreError {
    StoreError::Unavailable("it keeps losing counts that are restored from the ledger".into())
}

/// Converts an error of the ledger into the error that callers of the store get.
#[allow(clippy::needless_pass_by_value, reason = "for `map_err`")]
pub(crate) fn unavailable(error: LedgerError) -> StoreError {
    StoreError::Ledger(error.to_string().into())
}
