//! A limiter on a store that a test can switch off, and on a clock that it holds.

#![allow(dead_code)] // Each test file uses its share.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tollgate::{
    Ask, Attributes, Config, Decision, ManualClock, MemoryStore, SharedLimiter, SharedOptions,
    Span, Store, StoreError, Time, Usage,
};
use tollgate_conformance::block_on;
use tollgate_core::concurrency::Holder;
use tollgate_core::{Charge, HoldId, Token};
use tollgate_store::{
    Applied, Balance, Extended, Held, HoldRecord, HoldStore, NewHold, Settle, Settled,
};

/// A store that can be switched off, and counts what it is asked.
#[derive(Clone)]
pub(crate) struct Flaky {
    pub(crate) store: Arc<MemoryStore<ManualClock>>,
    pub(crate) down: Arc<AtomicBool>,
    pub(crate) asked: Arc<AtomicUsize>,
}

impl Flaky {
    fn answer<T>(&self, answer: impl FnOnce() -> T) -> Result<T, StoreError> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        if self.down.load(Ordering::Relaxed) {
            return Err(StoreError::Timeout);
        }
        Ok(answer())
    }
}

impl Store for Flaky {
    async fn apply(&self, charges: &[Charge<'_>], ask: Ask) -> Result<Applied, StoreError> {
        self.answer(|| self.store.apply(charges, ask))
    }

    async fn peek(&self, charges: &[Charge<'_>], ask: Ask) -> Result<Applied, StoreError> {
        self.answer(|| self.store.peek(charges, ask))
    }

    async fn refund(
        &self,
        charges: &[Charge<'_>],
        units: u64,
        charged_at: Time,
    ) -> Result<Applied, StoreError> {
        self.answer(|| self.store.refund(charges, units, charged_at))
    }

    async fn reset(&self, charges: &[Charge<'_>]) -> Result<(), StoreError> {
        self.answer(|| self.store.reset(charges))
    }

    async fn restore(&self, charges: &[Charge<'_>], to: &[Balance]) -> Result<(), StoreError> {
        self.answer(|| self.store.restore(charges, to))?
    }

    async fn adjust(
        &self,
        charge: &Charge<'_>,
        used: i64,
        extra: i64,
    ) -> Result<Option<Balance>, StoreError> {
        self.answer(|| self.store.adjust(charge, used, extra))
    }

    async fn balance(&self, charge: &Charge<'_>) -> Result<Option<Balance>, StoreError> {
        self.answer(|| self.store.balance(charge))
    }

    async fn usage(&self) -> Result<Usage, StoreError> {
        self.answer(|| self.store.usage())
    }
}

impl HoldStore for Flaky {
    async fn hold(
        &self,
        charges: &[Charge<'_>],
        units: u64,
        new: &NewHold<'_>,
    ) -> Result<Held, StoreError> {
        self.answer(|| ())?;
        HoldStore::hold(&*self.store, charges, units, new).await
    }

    async fn settle(&self, id: HoldId, how: Settle) -> Result<Settled, StoreError> {
        self.answer(|| ())?;
        HoldStore::settle(&*self.store, id, how).await
    }

    async fn extend(
        &self,
        id: HoldId,
        ttl: Span,
        token: Option<Token>,
    ) -> Result<Extended, StoreError> {
        self.answer(|| ())?;
        HoldStore::extend(&*self.store, id, ttl, token).await
    }

    async fn find_hold(&self, id: HoldId) -> Result<Option<Arc<HoldRecord>>, StoreError> {
        self.answer(|| ())?;
        HoldStore::find_hold(&*self.store, id).await
    }

    async fn put_hold(&self, record: &HoldRecord) -> Result<bool, StoreError> {
        self.answer(|| ())?;
        HoldStore::put_hold(&*self.store, record).await
    }

    async fn due_holds(&self, most: usize) -> Result<Vec<HoldId>, StoreError> {
        self.answer(|| ())?;
        HoldStore::due_holds(&*self.store, most).await
    }

    async fn holders(&self, charge: &Charge<'_>, most: usize) -> Result<Vec<Holder>, StoreError> {
        self.answer(|| ())?;
        HoldStore::holders(&*self.store, charge, most).await
    }
}

pub(crate) struct Setup {
    pub(crate) limiter: SharedLimiter<Flaky, ManualClock>,
    pub(crate) store: Flaky,
    pub(crate) clock: ManualClock,
}

pub(crate) const START: Time = Time::from_micros(1_700_000_000_000_000);

impl Setup {
    pub(crate) fn new(rules: &str) -> Setup {
        Setup::with_options(rules, SharedOptions::default())
    }

    pub(crate) fn with_options(rules: &str, options: SharedOptions) -> Setup {
        let clock = ManualClock::at(START);
        let store = Flaky {
            store: Arc::new(MemoryStore::with_clock(10_000, clock.clone())),
            down: Arc::default(),
            asked: Arc::default(),
        };
        let limiter =
            SharedLimiter::with_clock(&config(rules), store.clone(), options, clock.clone());
        Setup {
            limiter,
            store,
            clock,
        }
    }

    pub(crate) fn store_is_down(&self, down: bool) {
        self.store.down.store(down, Ordering::Relaxed);
    }

    pub(crate) fn ask(&self, user: &str, ask: Ask) -> Decision {
        block_on(self.limiter.ask(&Attributes::from([("user", user)]), ask))
    }

    pub(crate) fn check(&self, user: &str) -> Decision {
        self.ask(user, Ask::Exactly(1))
    }

    /// How many of `times` checks are allowed.
    pub(crate) fn admitted(&self, user: &str, times: usize) -> usize {
        let checks = (0..times).filter(|_| self.check(user).is_allowed());
        checks.count()
    }

    pub(crate) fn asked(&self) -> usize {
        self.store.asked.load(Ordering::Relaxed)
    }

    pub(crate) fn pass(&self, span: Span) {
        self.clock.advance(span);
    }

    pub(crate) fn counted(&self, policy: &str) -> u64 {
        let mut fallbacks = self.limiter.fallbacks();
        fallbacks.find(|(name, _)| *name == policy).unwrap().1
    }
}

pub(crate) fn config(rules: &str) -> Config {
    let text = format!("version: 1\nrules:\n{rules}");
    tollgate_config::parse("rules.yaml", &text, &|_| None).unwrap()
}
