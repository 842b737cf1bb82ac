//! A limiter on any store, with a ledger.

#![allow(dead_code)] // No test file uses all of this.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::ops::Deref;
use std::sync::Arc;

use tollgate::{
    Accounts, Attributes, Clock, Config, LedgerSync, Ledgered, Limiter, PostError, Posting,
    Reconciled, Repair, Standing, Store,
};
use tollgate_ledger::Ledger;

pub(crate) struct WithLedger<S> {
    limiter: Limiter<Ledgered<S>>,
    sync: Arc<LedgerSync>,
}

impl<S> Deref for WithLedger<S> {
    type Target = Limiter<Ledgered<S>>;

    fn deref(&self) -> &Self::Target {
        &self.limiter
    }
}

impl<S: Store> WithLedger<S> {
    pub(crate) fn new(
        config: &Config,
        store: S,
        ledger: Ledger,
        clock: impl Clock + Clone + 'static,
    ) -> WithLedger<S> {
        let sync = LedgerSync::new(ledger, &config.namespace, Arc::new(clock.clone()));
        let sync = Arc::new(sync);
        let store = Ledgered::new(store, Arc::clone(&sync));
        let limiter = Limiter::builder(config, store).clock(clock).build();
        WithLedger { limiter, sync }
    }

    pub(crate) fn inner(&self) -> &S {
        self.limiter.store().store()
    }

    pub(crate) fn ledger(&self) -> &Ledger {
        self.sync.ledger()
    }

    pub(crate) fn accounts(&self) -> Accounts<'_, Ledgered<S>> {
        Accounts::new(&self.limiter, &self.sync)
    }

    pub(crate) async fn post(
        &self,
        attributes: &Attributes<'_>,
        posting: &Posting<'_>,
    ) -> Result<Standing, PostError> {
        self.accounts().post(attributes, posting).await
    }

    pub(crate) async fn reconcile(
        &self,
        tenant: Option<&str>,
        repair: Repair,
        who: &str,
    ) -> Result<Reconciled, PostError> {
        self.accounts().reconcile(tenant, repair, who).await
    }

    pub(crate) async fn sweep_ledger(&self) -> Result<usize, PostError> {
        self.accounts().sweep().await
    }
}
