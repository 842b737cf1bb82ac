//! A store that acts at once, and whose answers to draws, reports and refunds can be held back.

#![allow(dead_code)] // No test file uses all of this.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::Semaphore;
use tollgate::{Answer, Applied, Ask, Charge, Reply, Store, Time};
use tollgate_store::AllowanceLevel;

use crate::common::Flaky;

#[derive(Clone)]
pub(crate) struct Late {
    pub(crate) store: Flaky,
    is_late: Arc<AtomicBool>,
    gate: Arc<Semaphore>,
    waiting: Arc<AtomicUsize>,
}

impl Late {
    pub(crate) fn new(store: Flaky) -> Late {
        Late {
            store,
            is_late: Arc::default(),
            gate: Arc::new(Semaphore::new(0)),
            waiting: Arc::default(),
        }
    }

    /// Holds back the answers to calls from now on.
    pub(crate) fn hold_back(&self) {
        self.is_late.store(true, Ordering::Relaxed);
    }

    /// Lets all answers arrive that were held back.
    pub(crate) async fn release(&self) {
        self.is_late.store(false, Ordering::Relaxed);
        self.gate
            .add_permits(self.waiting.swap(0, Ordering::Relaxed));
        pause().await;
    }

    /// Returns how many answers are held back.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    async fn answer(&self) {
        if self.is_late.load(Ordering::Relaxed) {
            self.waiting.fetch_add(1, Ordering::Relaxed);
            self.gate.acquire().await.unwrap().forget();
        }
    }
}

/// Lets all tasks run until they wait.
pub(crate) async fn pause() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

impl Store for Late {
    fn inner(&self) -> Option<&dyn Store> {
        Some(&self.store)
    }

    fn apply<'a>(&'a self, charges: &'a [Charge<'a>], ask: Ask) -> Reply<'a, Applied> {
        Answer::later(async move {
            let applied = self.store.apply(charges, ask).await;
            if let Ask::UpTo(_) = ask {
                self.answer().await;
            }
            applied
        })
    }

    fn peek<'a>(&'a self, charges: &'a [Charge<'a>], ask: Ask) -> Reply<'a, Applied> {
        self.store.peek(charges, ask)
    }

    fn refund<'a>(&'a self, charges: &'a [Charge<'a>], units: u64, at: Time) -> Reply<'a, Applied> {
        Answer::later(async move {
            let applied = self.store.refund(charges, units, at).await;
            self.answer().await;
            applied
        })
    }

    fn reset<'a>(&'a self, charges: &'a [Charge<'a>]) -> Reply<'a, ()> {
        self.store.reset(charges)
    }

    fn report<'a>(
        &'a self,
        charge: &'a Charge<'a>,
        units: u64,
    ) -> Reply<'a, Option<AllowanceLevel>> {
        Answer::later(async move {
            let level = self.store.report(charge, units).await;
            self.answer().await;
            level
        })
    }
}
