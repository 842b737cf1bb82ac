//! The books of an engine, for those who operate it.

use tollgate_config::{Attributes, Config};
use tollgate_ledger::{Entry, EntryQuery, Ledger, UsageQuery, UsageRow};
use tollgate_redis::Finding;
use tollgate_store::{Clock, HoldStore};

use super::Books;
use super::accounts::{PostError, Posting, Standing};
use super::reconcile::{Reconciled, Repair};
use super::unavailable;
use crate::{Engine, SharedLimiter, engine};

/// The books of an engine.
#[derive(Clone, Copy)]
pub struct Accounts<'e> {
    engine: &'e Engine,
    books: &'e Books,
}

impl Engine {
    /// The books, if there is a ledger.
    #[must_use]
    pub fn accounts(&self) -> Option<Accounts<'_>> {
        let books = match self {
            Engine::Local(_) => None,
            Engine::Kept(limiter) => limiter.books.as_deref(),
            Engine::Shared(limiter) => limiter.books.as_deref(),
        };
        books.map(|books| Accounts {
            engine: self,
            books,
        })
    }

    /// Looks at the ledger of a validated config as an operator would, and makes and changes nothing
    /// there; `None` if there is none. Within a Tokio runtime.
    pub async fn inspect_ledger(config: &Config) -> Option<Finding> {
        let options = match engine::ledger(config) {
            Ok(options) => options?,
            Err(error) => {
                let help = "check the path and its permissions";
                return Some(Finding::bad("ledger", error.to_string(), help));
            }
        };
        let place = options.database.place();
        Some(match Ledger::inspect(&options).await {
            Ok(Some(version)) => {
                Finding::ok("ledger", format!("{place}: tables of version {version}"))
            }
            Ok(None) => Finding::ok("ledger", format!("{place}: new, made at the first start")),
            Err(error) => Finding::bad(
                "ledger",
                error.to_string(),
                "see to it before a start: without its ledger the server does not start",
            ),
        })
    }

    /// Ends reservations that should have ended a while ago and that only the books know of, and says how
    /// many there were. To be called every few seconds.
    ///
    /// # Errors
    /// If the store or the ledger cannot be asked.
    pub async fn sweep_books(&self) -> Result<usize, PostError> {
        match self {
            Engine::Local(_) => Ok(0),
            Engine::Kept(limiter) => limiter.sweep_books().await,
            Engine::Shared(limiter) => limiter.sweep_books().await,
        }
    }

    /// Writes what waits for the ledger, and takes nothing more. For the end of a process.
    pub async fn close(&self) {
        if let Some(accounts) = self.accounts() {
            accounts.ledger().close().await;
        }
    }
}

impl Accounts<'_> {
    /// The ledger.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        self.books.ledger()
    }

    /// What was used, by tenant, period, rule and action. The namespace of the query does not count.
    ///
    /// # Errors
    /// If the ledger cannot be asked.
    pub async fn usage(&self, query: &UsageQuery) -> Result<Vec<UsageRow>, PostError> {
        let query = UsageQuery {
            namespace: self.books.namespace.clone(),
            ..query.clone()
        };
        let rows = self.ledger().usage(&query).await;
        Ok(rows.map_err(|error| unavailable(&error))?)
    }

    /// The entries themselves, page by page. The namespace of the query does not count.
    ///
    /// # Errors
    /// If the ledger cannot be asked.
    pub async fn entries(&self, query: &EntryQuery) -> Result<Vec<(u64, Entry)>, PostError> {
        let query = EntryQuery {
            namespace: self.books.namespace.clone(),
            ..query.clone()
        };
        let entries = self.ledger().entries(&query).await;
        Ok(entries.map_err(|error| unavailable(&error))?)
    }

    /// Writes a correction or a grant into the books, and sets the counter accordingly.
    ///
    /// # Errors
    /// If there is no such counter, no reason, or nobody to ask.
    pub async fn post(
        &self,
        attributes: &Attributes<'_>,
        posting: &Posting<'_>,
    ) -> Result<Standing, PostError> {
        match self.engine {
            Engine::Local(_) => Err(PostError::NoLedger),
            Engine::Kept(limiter) => limiter.post(attributes, posting).await,
            Engine::Shared(limiter) => limiter.post(attributes, posting).await,
        }
    }

    /// Compares the counters with the books, of one tenant or of all, and repairs what differs if that is
    /// asked for.
    ///
    /// # Errors
    /// If the store or the ledger cannot be asked.
    pub async fn reconcile(
        &self,
        tenant: Option<&str>,
        repair: Repair,
        who: &str,
    ) -> Result<Reconciled, PostError> {
        match self.engine {
            Engine::Local(_) => Err(PostError::NoLedger),
            Engine::Kept(limiter) => limiter.reconcile(tenant, repair, who).await,
            Engine::Shared(limiter) => limiter.reconcile(tenant, repair, who).await,
        }
    }
}

impl<S: HoldStore, C: Clock> SharedLimiter<S, C> {
    /// The ledger, if there is one.
    #[must_use]
    pub fn ledger(&self) -> Option<&Ledger> {
        self.books.as_deref().map(Books::ledger)
    }

    fn books(&self) -> Result<&Books, PostError> {
        self.books.as_deref().ok_or(PostError::NoLedger)
    }

    /// See [`Accounts::post`].
    ///
    /// # Errors
    /// As there.
    pub async fn post(
        &self,
        attributes: &Attributes<'_>,
        posting: &Posting<'_>,
    ) -> Result<Standing, PostError> {
        let (books, live) = (self.books()?, self.current.hold());
        let posted = books.post(&self.store, &live, attributes, posting).await;
        // Who was refused may not be any more.
        self.forget_denials();
        posted
    }

    /// See [`Accounts::reconcile`].
    ///
    /// # Errors
    /// As there.
    pub async fn reconcile(
        &self,
        tenant: Option<&str>,
        repair: Repair,
        who: &str,
    ) -> Result<Reconciled, PostError> {
        let (books, live, now) = (self.books()?, self.current.hold(), self.clock.now());
        let how = (repair, who);
        let reconciled = books.reconcile(&self.store, &live, now, tenant, how).await;
        self.forget_denials();
        reconciled
    }

    /// See [`Engine::sweep_books`].
    ///
    /// # Errors
    /// As there.
    pub async fn sweep_books(&self) -> Result<usize, PostError> {
        match &self.books {
            Some(books) => Ok(books.sweep(&self.store, self.clock.now()).await?),
            None => Ok(0),
        }
    }
}
