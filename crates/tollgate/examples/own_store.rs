//! A custom store: fixed windows in a map. [`Remembered`] wraps the store, so that a denied request
//! does not call it again before the retry time.
//!
//! The store is small on purpose. It has no reservations and no leases, never forgets a state, and does
//! not charge denied requests. The crate `tollgate-conformance` tests whether a store keeps the whole
//! contract of [`Store`].
//!
//! `cargo run -p tollgate --example own_store`

#![allow(clippy::print_stdout, reason = "the example shows what happens")]

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tollgate::algorithms::fixed_window::{FixedWindow, State};
use tollgate::{
    Answer, Applied, Ask, Attributes, Charge, Clock, Config, Immediate, Key, Limit, Limiter,
    Limiting, Outcome, Remembered, Reply, RuleBuilder, Span, Store, StoreError, SystemClock, Time,
};

type States = HashMap<Key, State>;

#[derive(Debug, Default)]
struct WindowStore {
    states: Mutex<States>,
    clock: SystemClock,
    asked: AtomicU64,
}

impl WindowStore {
    /// Runs `step` on all states at one instant.
    fn locked<T>(&self, step: impl FnOnce(&mut States, Time) -> T) -> T {
        let mut states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        step(&mut states, self.clock.now())
    }

    /// Decides all charges at one instant. Takes from all of them or from none. Without `take`, takes
    /// nothing.
    fn decide(&self, charges: &[Charge<'_>], ask: Ask, take: bool) -> Result<Applied, StoreError> {
        self.locked(|states, now| {
            let mut units = ask.units();
            let mut tried = attempt(states, charges, units, now)?;
            if let (Ask::UpTo(_), None) = (ask, &tried) {
                // As many units as the scarcest charge has left, and at least one.
                units = scarcest(states, charges, now)?.clamp(1, units);
                tried = attempt(states, charges, units, now)?;
            }
            let allowed = tried.is_some();
            let mut applied = Applied {
                now,
                allowed,
                granted: if allowed { units } else { 0 },
                ..Applied::default()
            };
            for charge in charges {
                let (window, before) = (window(charge)?, state(states, charge));
                let after = match (&tried, take) {
                    (Some(after), true) => state(after, charge),
                    _ => before,
                };
                applied.outcomes.push(Outcome {
                    admission: window.decide(&before, charge.cost * units, now).admission,
                    limit: window.capacity(),
                    remaining: window.decide(&after, 0, now).available,
                    reset_at: window.resets_at(&after),
                });
            }
            if let (Some(after), true) = (tried, take) {
                states.extend(after);
            }
            Ok(applied)
        })
    }
}

/// Takes `units` from a copy of the states, and returns the copy; `None` if an enforcing charge denies
/// the request.
fn attempt(
    states: &States,
    charges: &[Charge<'_>],
    units: u64,
    now: Time,
) -> Result<Option<States>, StoreError> {
    let mut after = States::new();
    for charge in charges {
        let (window, cost) = (window(charge)?, charge.cost * units);
        // Charges with the same key add up.
        let before = after.get(&charge.key).copied();
        let mut state = before.unwrap_or_else(|| state(states, charge));
        if window.decide(&state, cost, now).is_allowed() {
            window.charge(&mut state, cost, now);
            after.insert(charge.key, state);
        } else if charge.enforces() {
            return Ok(None);
        }
    }
    Ok(Some(after))
}

/// Returns how many units the request can get: as many as the scarcest charge can still pay for.
fn scarcest(states: &States, charges: &[Charge<'_>], now: Time) -> Result<u64, StoreError> {
    let mut least = u64::MAX;
    for charge in charges.iter().filter(|it| it.enforces() && it.cost > 0) {
        let available = window(charge)?
            .decide(&state(states, charge), 0, now)
            .available;
        least = least.min(available / charge.cost);
    }
    Ok(least)
}

fn state(states: &States, charge: &Charge<'_>) -> State {
    states.get(&charge.key).copied().unwrap_or_default()
}

/// Returns the fixed window of a charge. Other limits are not supported.
fn window<'a>(charge: &Charge<'a>) -> Result<&'a FixedWindow, StoreError> {
    match charge.limit {
        Limit::FixedWindow(window) => Ok(window),
        _ => Err(StoreError::Unsupported("limits other than fixed windows")),
    }
}

impl Store for WindowStore {
    fn name(&self) -> &'static str {
        "windows"
    }

    fn is_local(&self) -> bool {
        true
    }

    fn apply<'a>(&'a self, charges: &'a [Charge<'a>], ask: Ask) -> Reply<'a, Applied> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        Answer::Now(self.decide(charges, ask, true))
    }

    fn peek<'a>(&'a self, charges: &'a [Charge<'a>], ask: Ask) -> Reply<'a, Applied> {
        Answer::Now(self.decide(charges, ask, false))
    }

    fn refund<'a>(
        &'a self,
        charges: &'a [Charge<'a>],
        units: u64,
        charged_at: Time,
    ) -> Reply<'a, Applied> {
        let refunded = self.locked(|states, now| {
            for charge in charges {
                if let Some(state) = states.get_mut(&charge.key) {
                    window(charge)?.refund(state, charge.cost * units, charged_at, now);
                }
            }
            Ok(())
        });
        Answer::Now(refunded.and_then(|()| self.decide(charges, Ask::Exactly(0), false)))
    }

    fn reset<'a>(&'a self, charges: &'a [Charge<'a>]) -> Reply<'a, ()> {
        self.locked(|states, _| states.retain(|key, _| charges.iter().all(|it| it.key != *key)));
        Answer::Now(Ok(()))
    }
}

/// Every answer is ready at once, so that synchronous code can use the store.
impl Immediate for WindowStore {}

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let search = RuleBuilder::new("search", Limit::fixed_window(2, Span::from_secs(3600))?)
        .per(["user"])
        .build()?;
    let config = Config::from_rules([search])?;
    let clock = Arc::new(SystemClock::new());
    let store = Remembered::new(WindowStore::default(), Span::MINUTE, clock);
    let limiter = Limiter::builder(&config, store).build();

    let ann = Attributes::from([("user", "ann")]);
    let mut answers = Vec::new();
    for request in 1..=5 {
        let allowed = limiter.check_now(&ann).is_allowed();
        let asked = limiter.store().store().asked.load(Ordering::Relaxed);
        let said = if allowed { "allowed" } else { "denied" };
        println!("request {request}: {said}; the store was asked {asked} times");
        answers.push((allowed, asked));
    }
    assert_eq!(
        answers,
        [(true, 1), (true, 2), (false, 3), (false, 3), (false, 3)],
    );

    limiter.reset_now(&ann)?;
    assert_eq!(limiter.ask_now(&ann, Ask::UpTo(9)).granted(), 2);
    println!("after a reset: 2 of 9 units granted");
    Ok(())
}
