//! The ledger's part in decisions.
//!
//! The store is the gate: it alone says yes or no. The ledger is the truth: what the gate has admitted
//! under a ledgered rule is written there, and where the gate has lost a count (its process ended, its
//! server came back empty) the count is restored from there before anything is admitted.
//!
//! * A store that has no state for a ledgered charge refuses as unrestored, and changes nothing. The
//!   balance of the period is then read, put where there is still nothing, and the request is asked
//!   again. Of several who restore at once, one wins.
//! * A request is noted after it was admitted and before it is answered: in the memory of this process,
//!   which is flushed every so often, or, if a rule is strict, in the database. What cannot be noted is
//!   given back, and the rule's failure policy answers.

pub(crate) mod accounts;
mod engine;
mod entries;
mod holds;
mod reconcile;
mod refund;
mod restore;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Mutex;
use tokio::time::Instant;
use tollgate_core::{Admission, Charge, Denial, Time};
use tollgate_ledger::{EntryId, Ledger, LedgerError};
use tollgate_rules::Resolution;
use tollgate_store::{Applied, Ask, HoldStore, StoreError};

pub use accounts::{PostError, Posted, Posting, Standing};
pub use engine::Accounts;
use entries::signed;
pub(crate) use entries::{is_strict, lines, taken};
pub use reconcile::{Drift, MOST_DRIFTS, Reconciled, Repair};
use refund::Refund;

use crate::active_config::ActiveConfig;
use crate::parties::Parties;

/// How often a request is asked again after a count was restored. Once is enough, unless the store loses
/// it again.
pub(crate) const ATTEMPTS: usize = 3;
/// Keys that are restored at the same time do not wait for each other, but by accident.
const STRIPES: usize = 64;

/// The ledger of an engine.
pub(crate) struct Books {
    ledger: Ledger,
    namespace: Arc<str>,
    /// Half of the ids of entries that only this process writes.
    instance: u64,
    written: AtomicU64,
    restoring: Box<[Mutex<()>]>,
    /// Until when the ledger is not asked for what is to be restored.
    silent_until: parking_lot::Mutex<Option<Instant>>,
}

/// What is given back.
#[derive(Clone, Copy)]
pub(crate) struct Given {
    pub(crate) units: u64,
    pub(crate) charged_at: Time,
}

impl Books {
    pub(crate) fn new(ledger: Ledger, namespace: &str) -> Books {
        let mut instance = [0; 8];
        // Without entropy the process has to do: an entry of the same id would not be written.
        if getrandom::fill(&mut instance).is_err() {
            instance = u64::from(std::process::id()).to_le_bytes();
        }
        Books {
            ledger,
            namespace: namespace.into(),
            instance: u64::from_le_bytes(instance),
            written: AtomicU64::new(0),
            restoring: (0..STRIPES).map(|_| Mutex::new(())).collect(),
            silent_until: parking_lot::Mutex::new(None),
        }
    }

    pub(crate) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// An id that no other entry has.
    fn next_id(&self) -> EntryId {
        let place = self.written.fetch_add(1, Ordering::Relaxed);
        EntryId(u128::from(self.instance) << 64 | u128::from(place))
    }

    /// As [`Store::apply`], with counts restored first and what was admitted noted.
    pub(crate) async fn apply<S: HoldStore>(
        &self,
        store: &S,
        live: &ActiveConfig,
        resolution: &Resolution<'_>,
        ask: Ask,
        parties: &Parties<'_, '_>,
    ) -> Result<Applied, StoreError> {
        let charges = &resolution.charges;
        for _ in 0..ATTEMPTS {
            let applied = store.apply(charges, ask).await?;
            if !is_unrestored(&applied) {
                if applied.allowed {
                    self.note(store, live, resolution, &applied, parties)
                        .await?;
                }
                return Ok(applied);
            }
            self.restore(store, charges, &applied).await?;
        }
        Err(lost())
    }

    /// As [`Store::peek`], with counts restored first.
    pub(crate) async fn peek<S: HoldStore>(
        &self,
        store: &S,
        charges: &[Charge<'_>],
        ask: Ask,
    ) -> Result<Applied, StoreError> {
        for _ in 0..ATTEMPTS {
            let applied = store.peek(charges, ask).await?;
            if !is_unrestored(&applied) {
                return Ok(applied);
            }
            self.restore(store, charges, &applied).await?;
        }
        Err(lost())
    }

    /// As [`Store::refund`], and noted.
    pub(crate) async fn refund<S: HoldStore>(
        &self,
        store: &S,
        live: &ActiveConfig,
        resolution: &Resolution<'_>,
        given: Given,
        parties: &Parties<'_, '_>,
    ) -> Result<Applied, StoreError> {
        // So that there is something to give back to.
        let charges = &resolution.charges;
        let now = self.peek(store, charges, Ask::Exactly(0)).await?.now;
        let mut refund = Refund::new(charges, given, now);
        let keys = lines(live, resolution).map(|line| line.charge.key.bits());
        let _alone = self.alone_all(keys).await?;
        for line in lines(live, resolution) {
            if !refund.knows(line.charge) {
                let balance = store.balance(line.charge).await?.unwrap_or_default();
                let reserved = self.in_time(self.reserved_of(line.charge, now)).await?;
                refund.may_give(line.charge, balance.used.saturating_sub(reserved));
            }
            refund.give(line.place);
        }
        let applied = store.refund(&refund.charges, 1, given.charged_at).await?;
        self.note_refund(live, resolution, &refund, applied.now, parties)
            .await?;
        Ok(applied)
    }

    /// As [`Store::reset`]; what is kept in the books is corrected instead of forgotten. What is reserved
    /// stays reserved: whoever holds it will settle it, and that takes nothing from others then.
    pub(crate) async fn reset<S: HoldStore>(
        &self,
        store: &S,
        live: &ActiveConfig,
        resolution: &Resolution<'_>,
        parties: &Parties<'_, '_>,
    ) -> Result<(), StoreError> {
        let charges = &resolution.charges;
        let now = self.peek(store, charges, Ask::Exactly(0)).await?.now;
        for line in lines(live, resolution) {
            let _alone = self.alone(line.charge.key.bits()).await?;
            let reserved = self.reserved_of(line.charge, now).await?;
            if let Some(balance) = store.balance(line.charge).await? {
                let used = signed(balance.used.saturating_sub(reserved));
                store.adjust(line.charge, -used, 0).await?;
                let party = parties.of(line.place);
                self.note_reset(&line, used, now, &party).await?;
            }
        }
        // Last, as the books may not be at hand: whoever is told so finds nothing changed.
        let others = charges.iter().filter(|charge| !charge.ledgered).copied();
        store.reset(&others.collect::<Vec<_>>()).await
    }
}

/// An id that follows from these: who writes the same again writes it once.
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

/// Whether a charge has no state, and should have one.
pub(crate) fn is_unrestored(applied: &Applied) -> bool {
    let unrestored = Admission::Denied(Denial::Unrestored);
    applied.outcomes.iter().any(|it| it.admission == unrestored)
}

pub(crate) fn lost() -> StoreError {
    StoreError::Unavailable("the store keeps losing what is restored from the ledger".into())
}

/// What a store's caller is told when the ledger fails.
pub(crate) fn unavailable(error: &LedgerError) -> StoreError {
    StoreError::Unavailable(format!("the ledger: {error}").into())
}
