//! A limiter with a manual clock, on a store that a test can switch off.

#![allow(dead_code)] // No test file uses all of this.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use tollgate::{
    Answer, Ask, Attributes, Config, Decision, Limiter, ManualClock, MemoryStore, Remembered,
    Reply, Span, Store, StoreError, Time, Usage,
};
use tollgate_conformance::block_on;
use tollgate_core::concurrency::Holder;
use tollgate_core::{Charge, HoldId, Token};
use tollgate_store::{
    AllowanceLevel, Applied, Balance, Extended, Held, HoldRecord, NewHold, Settle, Settled,
};

/// A store that can be switched off, and that counts its calls.
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
    fn apply<'a>(&'a self, charges: &'a [Charge<'a>], ask: Ask) -> Reply<'a, Applied> {
        Answer::later(async move { self.answer(|| self.store.apply(charges, ask)) })
    }

    fn peek<'a>(&'a self, charges: &'a [Charge<'a>], ask: Ask) -> Reply<'a, Applied> {
        Answer::later(async move { self.answer(|| self.store.peek(charges, ask)) })
    }

    fn refund<'a>(
        &'a self,
        charges: &'a [Charge<'a>],
        units: u64,
        charged_at: Time,
    ) -> Reply<'a, Applied> {
        Answer::later(async move { self.answer(|| self.store.refund(charges, units, charged_at)) })
    }

    fn reset<'a>(&'a self, charges: &'a [Charge<'a>]) -> Reply<'a, ()> {
        Answer::later(async move { self.answer(|| self.store.reset(charges)) })
    }

    fn restore<'a>(&'a self, charges: &'a [Charge<'a>], to: &'a [Balance]) -> Reply<'a, ()> {
        Answer::later(async move { self.answer(|| self.store.restore(charges, to))? })
    }

    fn adjust<'a>(
        &'a self,
        charge: &'a Charge<'a>,
        used: i64,
        extra: i64,
    ) -> Reply<'a, Option<Balance>> {
        Answer::later(async move { self.answer(|| self.store.adjust(charge, used, extra)) })
    }

    fn balance<'a>(&'a self, charge: &'a Charge<'a>) -> Reply<'a, Option<Balance>> {
        Answer::later(async move { self.answer(|| self.store.balance(charge)) })
    }

    fn report<'a>(
        &'a self,
        charge: &'a Charge<'a>,
        units: u64,
    ) -> Reply<'a, Option<AllowanceLevel>> {
        Answer::later(async move { self.answer(|| self.store.report(charge, units)) })
    }

    fn usage<'a>(&'a self) -> Reply<'a, Usage> {
        Answer::later(async move { self.answer(|| self.store.usage()) })
    }

    fn hold<'a>(
        &'a self,
        charges: &'a [Charge<'a>],
        units: u64,
        new: &'a NewHold<'a>,
    ) -> Reply<'a, Held> {
        Answer::later(async move {
            self.answer(|| ())?;
            Store::hold(&*self.store, charges, units, new).await
        })
    }

    fn settle<'a>(&'a self, id: HoldId, how: Settle) -> Reply<'a, Settled> {
        Answer::later(async move {
            self.answer(|| ())?;
            Store::settle(&*self.store, id, how).await
        })
    }

    fn extend<'a>(&'a self, id: HoldId, ttl: Span, token: Option<Token>) -> Reply<'a, Extended> {
        Answer::later(async move {
            self.answer(|| ())?;
            Store::extend(&*self.store, id, ttl, token).await
        })
    }

    fn find_hold<'a>(&'a self, id: HoldId) -> Reply<'a, Option<Arc<HoldRecord>>> {
        Answer::later(async move {
            self.answer(|| ())?;
            Store::find_hold(&*self.store, id).await
        })
    }

    fn put_hold<'a>(&'a self, record: &'a HoldRecord) -> Reply<'a, bool> {
        Answer::later(async move {
            self.answer(|| ())?;
            Store::put_hold(&*self.store, record).await
        })
    }

    fn due_holds<'a>(&'a self, most: usize) -> Reply<'a, Vec<HoldId>> {
        Answer::later(async move {
            self.answer(|| ())?;
            Store::due_holds(&*self.store, most).await
        })
    }

    fn holders<'a>(&'a self, charge: &'a Charge<'a>, most: usize) -> Reply<'a, Vec<Holder>> {
        Answer::later(async move {
            self.answer(|| ())?;
            Store::holders(&*self.store, charge, most).await
        })
    }
}

pub(crate) struct Setup {
    pub(crate) limiter: Limiter<Arc<dyn Store>>,
    pub(crate) store: Flaky,
    pub(crate) clock: ManualClock,
    known_denials: Arc<AtomicU64>,
}

/// How the limiter of a test treats its store.
#[derive(Clone, Copy)]
pub(crate) struct Options {
    pub(crate) replicas: u32,
    pub(crate) fallback_factor: u32,
    /// How long denials are remembered; `None` if they are not.
    pub(crate) denial_cache: Option<Span>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            replicas: 1,
            fallback_factor: 10_000,
            denial_cache: Some(Span::SECOND),
        }
    }
}

pub(crate) const START: Time = Time::from_micros(1_700_000_000_000_000);

impl Setup {
    pub(crate) fn new(rules: &str) -> Setup {
        Setup::with_options(rules, Options::default())
    }

    pub(crate) fn with_options(rules: &str, options: Options) -> Setup {
        let clock = ManualClock::at(START);
        let store = Flaky {
            store: Arc::new(MemoryStore::with_clock(10_000, clock.clone())),
            down: Arc::default(),
            asked: Arc::default(),
        };
        let mut known_denials = Arc::default();
        let mut stack: Arc<dyn Store> = Arc::new(store.clone());
        if let Some(longest) = options.denial_cache {
            let remembered = Remembered::new(stack, longest, Arc::new(clock.clone()));
            known_denials = remembered.answered();
            stack = Arc::new(remembered);
        }
        let limiter = Limiter::builder(&config(rules), stack)
            .replicas(options.replicas)
            .fallback_factor(options.fallback_factor)
            .clock(clock.clone())
            .build();
        Setup {
            limiter,
            store,
            clock,
            known_denials,
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

    /// Returns how many of `times` checks are allowed.
    pub(crate) fn admitted(&self, user: &str, times: usize) -> usize {
        let checks = (0..times).filter(|_| self.check(user).is_allowed());
        checks.count()
    }

    pub(crate) fn asked(&self) -> usize {
        self.store.asked.load(Ordering::Relaxed)
    }

    pub(crate) fn known_denials(&self) -> u64 {
        self.known_denials.load(Ordering::Relaxed)
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
