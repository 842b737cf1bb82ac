//! The usage in the ledger, and the changes that operators make there.

use std::sync::Arc;

use tollgate_config::Attributes;
use tollgate_ledger::{Entry, EntryQuery, Ledger, UsageQuery, UsageRow};
use tollgate_store::Store;

use crate::ledgered::{LedgerSync, PostError, Posting, Reconciled, Repair, Standing, unavailable};
use crate::limiter::Limiter;

/// The ledger behind a limiter: recorded usage, and corrections by operators.
#[derive(Debug)]
pub struct Accounts<'e, S = Arc<dyn Store>> {
    limiter: &'e Limiter<S>,
    sync: &'e LedgerSync,
}

impl<S> Copy for Accounts<'_, S> {}

impl<S> Clone for Accounts<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<'e, S: Store> Accounts<'e, S> {
    /// The ledger that `sync` keeps in step with the store of `limiter`.
    #[must_use]
    pub fn new(limiter: &'e Limiter<S>, sync: &'e LedgerSync) -> Accounts<'e, S> {
        Accounts { limiter, sync }
    }

    /// The ledger.
    #[must_use]
    pub fn ledger(&self) -> &'e Ledger {
        self.sync.ledger()
    }

    /// The usage by tenant, period, rule and action. The namespace of the query is ignored: it is that of the
    /// limiter.
    ///
    /// # Errors
    /// If the ledger does not answer.
    pub async fn usage(&self, query: &UsageQuery) -> Result<Vec<UsageRow>, PostError> {
        let query = UsageQuery {
            namespace: self.sync.namespace().clone(),
            ..query.clone()
        };
        let rows = self.ledger().usage(&query).await;
        Ok(rows.map_err(|error| unavailable(&error))?)
    }

    /// A page of ledger entries. The namespace of the query is ignored: it is that of the limiter.
    ///
    /// # Errors
    /// If the ledger does not answer.
    pub async fn entries(&self, query: &EntryQuery) -> Result<Vec<(u64, Entry)>, PostError> {
        let query = EntryQuery {
            namespace: self.sync.namespace().clone(),
            ..query.clone()
        };
        let entries = self.ledger().entries(&query).await;
        Ok(entries.map_err(|error| unavailable(&error))?)
    }

    /// Writes a correction or a grant into the ledger, and sets the counter accordingly.
    ///
    /// # Errors
    /// If there is no such counter, the reason is missing, or the store or the ledger does not answer.
    pub async fn post(
        &self,
        attributes: &Attributes<'_>,
        posting: &Posting<'_>,
    ) -> Result<Standing, PostError> {
        let (store, active) = (self.limiter.store(), self.limiter.active());
        self.sync.post(store, &active, attributes, posting).await
    }

    /// Compares the counters of one tenant, or of all tenants, with the ledger. Repairs differences if `repair`
    /// says so.
    ///
    /// # Errors
    /// If the store or the ledger does not answer.
    pub async fn reconcile(
        &self,
        tenant: Option<&str>,
        repair: Repair,
        who: &str,
    ) -> Result<Reconciled, PostError> {
        let (store, active) = (self.limiter.store(), self.limiter.active());
        let how = (repair, who);
        self.sync.reconcile(store, &active, tenant, how).await
    }

    /// Ends overdue reservations that only the ledger knows, and returns their number. Call this every few
    /// seconds.
    ///
    /// # Errors
    /// If the ledger does not answer.
    pub async fn sweep(&self) -> Result<usize, PostError> {
        Ok(self.sync.sweep(self.limiter.store()).await?)
    }
}
