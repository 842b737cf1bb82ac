//! The usage in the ledger. The changes that operators make there are in `ledgered/`.

use std::sync::Arc;

use tollgate_ledger::{Entry, EntryQuery, Ledger, UsageQuery, UsageRow};
use tollgate_store::Store;

use crate::ledgered::{LedgerSync, PostError, unavailable};
use crate::limiter::Limiter;

/// The ledger behind a limiter: recorded usage, and corrections by operators.
#[derive(Debug)]
pub struct Accounts<'e, S = Arc<dyn Store>> {
    pub(crate) limiter: &'e Limiter<S>,
    pub(crate) sync: &'e LedgerSync,
}

impl<S> Copy for Accounts<'_, S> {}

impl<S> Clone for Accounts<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<'e, S: Store> Accounts<'e, S> {
    /// Gives access to the ledger that `sync` keeps in step with the store of `limiter`.
    #[must_use]
    pub fn new(limiter: &'e Limiter<S>, sync: &'e LedgerSync) -> Accounts<'e, S> {
        Accounts { limiter, sync }
    }

    /// Returns the ledger.
    #[must_use]
    pub fn ledger(&self) -> &'e Ledger {
        self.sync.ledger()
    }

    /// Returns the usage by tenant, period, rule and action. Ignores the namespace of the query, and
    /// uses the limiter's own.
    ///
    /// # Errors
    /// If the ledger does not answer.
    pub async fn usage(&self, query: &UsageQuery) -> Result<Vec<UsageRow>, PostError> {
        let query = UsageQuery {
            namespace: self.sync.namespace().clone(),
            ..query.clone()
        };
        Ok(self.ledger().usage(&query).await.map_err(unavailable)?)
    }

    /// Returns a page of ledger entries. Ignores the namespace of the query, and uses the limiter's
    /// own.
    ///
    /// # Errors
    /// If the ledger does not answer.
    pub async fn entries(&self, query: &EntryQuery) -> Result<Vec<(u64, Entry)>, PostError> {
        let query = EntryQuery {
            namespace: self.sync.namespace().clone(),
            ..query.clone()
        };
        Ok(self.ledger().entries(&query).await.map_err(unavailable)?)
    }
}
