//! Async mode: requests are decided here, and what was admitted is reported to the store later.
//!
//! This instance keeps a local copy of each allowance that it decides. Every `flush` it reports what it has
//! admitted ([`Store::report`]). The answer is the shared level, which the local copy then takes over. So a
//! decision knows all use of this instance, and the use of the others up to their last reports.
//! `docs/modes.md` has the bound on what all instances together admit beyond a limit.
//!
//! * **A decision uses a level that was read at most two times `flush` ago.** Without such a level, the store
//!   decides. The store also decides keys with fewer than two requests per `flush`, because a local copy would
//!   save no calls for them.
//! * **The store counts every report**, even if the level falls below zero. An instance that reads a level below
//!   zero denies until units have refilled. So the rate holds in the long run.
//! * **A report is sent once.** If its answer is lost, the store may have counted it or not. If the store has
//!   certainly not counted it, its units are part of the next report.
//! * **Other charges** of the request (exact or leased) are decided by the wrapped store after those of async
//!   rules. If it denies, the units are taken back here, and the decision says `compensated`.
//!
//! `table.rs` has the keys, `local.rs` the local copies, `background.rs` the reports.

mod background;
mod counts;
mod local;
mod table;

use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;
use tollgate_core::{Charge, Enforcement, Limit, Mode, OnDenied, Outcome, Span, Time};
use tollgate_store::{
    AllowanceLevel, Answer, Applied, Ask, Balance, Clock, Guarantee, Held, NewHold, Outcomes,
    Reply, Store, StoreError,
};

pub use self::counts::ReportedUsage;
use self::counts::{Count, Counts};
use self::local::{Local, StoreTime};
use self::table::{Report, Table};
use crate::stores::background::{Calls, OwnedCharge};

/// A store that decides async charges from local copies, and reports them later.
pub struct Reported<S> {
    shared: Arc<Shared<S>>,
}

/// The parts that calls in the background need too.
struct Shared<S> {
    store: S,
    /// The instance's own clock, which never goes back.
    clock: Arc<dyn Clock>,
    time: StoreTime,
    local: Local,
    table: Table,
    counts: Counts,
    calls: Calls,
}

impl<S> fmt::Debug for Reported<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reported").finish_non_exhaustive()
    }
}

/// The charges of a request, as they are decided here.
type Charges<'a> = SmallVec<[Charge<'a>; 6]>;

/// Which charges of a request are decided.
enum Decided {
    All,
    /// Those of async rules. They allow the request.
    Some,
    Nothing,
}

/// Returns the `flush` of a charge that an instance may decide.
#[inline]
fn flush_of(charge: &Charge<'_>) -> Option<Span> {
    match charge.mode {
        Mode::Async { flush }
            if charge.on_denied == OnDenied::Nothing && charge.limit.can_be_async() =>
        {
            Some(flush)
        }
        _ => None,
    }
}

/// Returns whether a charge is decided here: it is async, or has no limit.
fn is_here(charge: &Charge<'_>) -> bool {
    flush_of(charge).is_some() || matches!(charge.limit, Limit::Unlimited(_))
}

/// Returns whether a request can be decided here, at least in part. It cannot if a charge depends on another, if
/// the store counts denied requests, or if the request brings its own time.
fn can_decide(charges: &[Charge<'_>], ask: Ask) -> bool {
    let fits = |it: &Charge<'_>| {
        it.at == Time::default()
            && !it.sees_denied()
            && !matches!(it.enforcement, Enforcement::Instead(_))
    };
    ask.units() > 0 && charges.iter().all(fits)
}

impl<S: Store + 'static> Reported<S> {
    /// Reports to `store`. `clock` is a monotonic clock of this instance.
    pub fn new(store: S, clock: Arc<dyn Clock>) -> Reported<S> {
        let time = StoreTime::new(Arc::clone(&clock));
        Reported {
            shared: Arc::new(Shared {
                store,
                clock,
                local: Local::new(time.clone()),
                time,
                table: Table::new(),
                counts: Counts::default(),
                calls: Calls::default(),
            }),
        }
    }

    /// Returns the store that gets the reports.
    #[must_use]
    pub fn store(&self) -> &S {
        &self.shared.store
    }

    /// Returns what async mode has done, and what waits for a report.
    #[must_use]
    pub fn reported_usage(&self) -> ReportedUsage {
        let [
            decided,
            asked,
            reports,
            reported_units,
            overdrawn_units,
            unconfirmed_units,
        ] = self.shared.counts.sums();
        let (keys, pending_units) = self.shared.table.outstanding(self.shared.clock.now());
        ReportedUsage {
            decided,
            asked,
            reports,
            reported_units,
            overdrawn_units,
            unconfirmed_units,
            keys,
            pending_units,
        }
    }

    /// Sends the reports that are due. Call this several times per `flush`; [`Store::sweep`] calls it too.
    pub fn report_due(&self) {
        self.shared.report_due();
    }

    /// Reports everything that was admitted, and waits for the answers. Call this at the end of a process, within a
    /// bound of time.
    pub async fn close(&self) {
        self.shared.report_all().await;
    }

    /// Sends reports when they are due, until the store is dropped. Must be called within a Tokio runtime.
    #[cfg(feature = "wait")]
    pub fn keep_reporting(&self) {
        let shared = Arc::downgrade(&self.shared);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(background::TICK.into()).await;
                let Some(shared) = shared.upgrade() else {
                    return;
                };
                shared.report_due();
            }
        });
    }

    /// Decides the async charges of a request from their local copies. Writes the decision to `applied`.
    #[inline]
    fn decide(&self, charges: &[Charge<'_>], ask: Ask, applied: &mut Applied) -> Decided {
        let shared = &*self.shared;
        if !can_decide(charges, ask) {
            return Decided::Nothing;
        }
        let here = charges.iter().filter(|it| is_here(it));
        let here: Charges<'_> = here.map(Local::charge).collect();
        let now = shared.clock.now();
        let keys = charges.iter().filter(|it| flush_of(it).is_some());
        let mut locked = shared.table.lock(keys.clone().map(|it| it.key));
        for charge in keys {
            let entry = locked.entry(charge.key);
            let is_ready = entry.is_some_and(|entry| {
                (entry.is_asked, entry.asked_at) = (true, now);
                flush_of(charge).is_some_and(|flush| entry.is_ready(charge, flush, now))
            });
            if !is_ready {
                return Decided::Nothing;
            }
        }
        shared.local.apply_into(&here, ask, applied);
        if applied.now >= Time::MAX {
            return Decided::Nothing;
        }
        if applied.allowed {
            for (charge, outcome) in here.iter().zip(&applied.outcomes) {
                // A shadow that would have denied has taken nothing, and neither has a charge without a limit.
                let is_taken = outcome.is_allowed();
                let is_taken = is_taken && !matches!(charge.limit, Limit::Unlimited(_));
                if let Some(entry) = locked.entry(charge.key).filter(|_| is_taken) {
                    let units = charge.cost.saturating_mul(applied.granted);
                    entry.pending = entry.pending.saturating_add(units);
                }
            }
        }
        drop(locked);
        shared.counts.add(Count::Decided, 1);
        if here.len() == charges.len() {
            return Decided::All;
        }
        applied.guarantee = Guarantee::Compensated;
        if applied.allowed {
            return Decided::Some;
        }
        // The store is not asked.
        let mut outcomes = std::mem::take(&mut applied.outcomes).into_iter();
        let all = charges.iter().map(|charge| match is_here(charge) {
            true => outcomes.next().unwrap_or(Outcome::UNDECIDED),
            false => Outcome::UNDECIDED,
        });
        applied.outcomes = all.collect();
        Decided::All
    }

    /// Lets the store decide the whole request, and learns from its answer.
    fn let_store_decide<'a>(&'a self, charges: &'a [Charge<'a>], ask: Ask) -> Reply<'a, Applied> {
        self.shared.counts.add(Count::Asked, 1);
        self.shared.store.apply(charges, ask).map(move |answer| {
            if let Ok(applied) = &answer {
                self.learn(charges, applied);
            }
            if !can_decide(charges, ask) {
                // A denied request may have taken units too, and an allowed one only some of its units.
                for charge in charges {
                    self.shared.doubt(charge.key);
                }
            }
            answer
        })
    }

    /// Lets the store decide the other charges of a request that the local copies allow. What the store does not
    /// grant is taken back here.
    async fn decide_rest(
        &self,
        charges: &[Charge<'_>],
        ask: Ask,
        here: Applied,
    ) -> Result<Applied, StoreError> {
        let rest = charges.iter().filter(|it| !is_here(it)).copied();
        let rest: Charges<'_> = rest.collect();
        let ask = match ask {
            Ask::Exactly(_) => ask,
            Ask::UpTo(_) => Ask::UpTo(here.granted),
        };
        let answer = self.shared.store.apply(&rest, ask).await;
        let granted = answer.as_ref().map_or(0, |applied| applied.granted);
        let unused = here.granted - granted.min(here.granted);
        let mut decided_here = here.outcomes.iter();
        let mut told_here = Outcomes::new();
        for charge in charges.iter().filter(|it| is_here(it)) {
            let Some(outcome) = decided_here.next() else {
                continue;
            };
            let mut outcome = *outcome;
            if unused > 0 && outcome.is_allowed() && flush_of(charge).is_some() {
                self.shared.take_back(charge, unused, here.now);
                let units = charge.cost.saturating_mul(unused);
                outcome.remaining = outcome.remaining.saturating_add(units);
            }
            told_here.push(outcome);
        }
        let mut applied = answer?;
        let mut told_here = told_here.into_iter();
        let mut told = std::mem::take(&mut applied.outcomes).into_iter();
        for charge in charges {
            let next = match is_here(charge) {
                true => told_here.next(),
                false => told.next(),
            };
            applied.outcomes.extend(next);
        }
        if applied.allowed {
            applied.now = applied.now.min(here.now);
        }
        applied.guarantee = Guarantee::Compensated;
        Ok(applied)
    }

    /// Learns from a request that the store has decided: its keys may be decided here soon.
    fn learn(&self, charges: &[Charge<'_>], applied: &Applied) {
        let shared = &self.shared;
        let now = shared.clock.now();
        // Reports are sent after all charges are noted, so that the levels in their answers include all charges.
        let mut reports: SmallVec<[Report; 1]> = SmallVec::new();
        for (charge, outcome) in charges.iter().zip(&applied.outcomes) {
            let Some(flush) = flush_of(charge).filter(|_| charge.at == Time::default()) else {
                continue;
            };
            let report = {
                let mut shard = shared.table.shard(charge.key);
                let Some(entry) = shard.entry(charge.key) else {
                    shared.table.add(&mut shard, charge.key, flush, now);
                    continue;
                };
                let is_ready = entry.is_ready(charge, flush, now);
                let is_taken = applied.allowed && outcome.is_allowed();
                // The level of a report that is on its way may be older than this decision.
                if is_taken && (is_ready || entry.is_reporting) {
                    shared.note(entry, charge, applied.granted);
                }
                if is_ready {
                    continue;
                }
                let is_busy = now < entry.asked_at + flush || entry.charge.is_some();
                (entry.is_asked, entry.asked_at) = (true, now);
                let own = entry.charge.as_ref();
                let is_same = own.is_some_and(|it| *it.limit() == *charge.limit);
                if is_busy && (!is_same || entry.flush != flush) {
                    entry.charge = Some(Arc::new(OwnedCharge::of(charge, flush)));
                    (entry.flush, entry.known_until) = (flush, Time::default());
                    entry.others = None;
                }
                match is_busy && now >= entry.due_at {
                    true => entry.take_report(now, shared.time.now()),
                    false => None,
                }
            };
            reports.extend(report);
        }
        for report in reports {
            shared.start(Some(report));
        }
    }

    /// Returns whether local copies can answer for all of these charges now.
    fn are_here(&self, charges: &[Charge<'_>]) -> bool {
        let (shared, now) = (&*self.shared, self.shared.clock.now());
        !shared.table.is_empty()
            && charges.iter().all(|charge| match flush_of(charge) {
                Some(flush) => {
                    let mut shard = shared.table.shard(charge.key);
                    let entry = shard.entry(charge.key);
                    entry.is_some_and(|it| it.is_ready(charge, flush, now))
                }
                None => matches!(charge.limit, Limit::Unlimited(_)),
            })
    }

    /// Forgets the local copies of these charges, and what was not reported.
    fn forget(&self, charges: &[Charge<'_>]) {
        for charge in charges {
            if self.shared.table.forget(charge.key) {
                self.shared.local.reset(std::slice::from_ref(charge));
            }
        }
    }
}

impl<S: Store + 'static> Store for Reported<S> {
    fn inner(&self) -> Option<&dyn Store> {
        Some(&self.shared.store)
    }

    fn apply<'a>(&'a self, charges: &'a [Charge<'a>], ask: Ask) -> Reply<'a, Applied> {
        let mut applied = Applied::default();
        match self.apply_into(charges, ask, &mut applied) {
            None => Answer::Now(Ok(applied)),
            Some(answer) => answer,
        }
    }

    fn apply_into<'a>(
        &'a self,
        charges: &'a [Charge<'a>],
        ask: Ask,
        applied: &mut Applied,
    ) -> Option<Reply<'a, Applied>> {
        if !charges.iter().any(|it| flush_of(it).is_some()) {
            self.shared.report_switched(charges);
            return self.shared.store.apply_into(charges, ask, applied);
        }
        applied.guarantee = Guarantee::Atomic;
        applied.unanswered = None;
        match self.decide(charges, ask, applied) {
            Decided::All => None,
            Decided::Some => {
                let here = std::mem::take(applied);
                Some(Answer::later(self.decide_rest(charges, ask, here)))
            }
            Decided::Nothing => Some(self.let_store_decide(charges, ask)),
        }
    }

    fn peek<'a>(&'a self, charges: &'a [Charge<'a>], ask: Ask) -> Reply<'a, Applied> {
        if self.are_here(charges) && charges.iter().all(|it| it.at == Time::default()) {
            let charges: Charges<'_> = charges.iter().map(Local::charge).collect();
            return Answer::Now(Ok(self.shared.local.peek(&charges, ask)));
        }
        self.shared.store.peek(charges, ask)
    }

    fn refund<'a>(
        &'a self,
        charges: &'a [Charge<'a>],
        units: u64,
        charged_at: Time,
    ) -> Reply<'a, Applied> {
        if self.shared.table.is_empty() {
            return self.shared.store.refund(charges, units, charged_at);
        }
        for charge in charges.iter().filter(|it| flush_of(it).is_none()) {
            self.shared.doubt(charge.key);
        }
        if !charges.iter().any(|it| flush_of(it).is_some()) {
            return self.shared.store.refund(charges, units, charged_at);
        }
        let reported = charges.iter().filter(|it| {
            flush_of(it).is_none() || !self.shared.take_pending(it, units, charged_at)
        });
        let reported: Charges<'a> = reported.copied().collect();
        if reported.len() == charges.len() {
            return self.shared.store.refund(charges, units, charged_at);
        }
        Answer::later(async move {
            if !reported.is_empty() {
                self.shared
                    .store
                    .refund(&reported, units, charged_at)
                    .await?;
            }
            self.peek(charges, Ask::Exactly(0)).await
        })
    }

    fn reset<'a>(&'a self, charges: &'a [Charge<'a>]) -> Reply<'a, ()> {
        // A report may reach the store before or after the reset. So keys are forgotten before the call, and again
        // after it, because a request may have asked the store in between.
        self.forget(charges);
        self.shared.store.reset(charges).map(move |answer| {
            self.forget(charges);
            answer
        })
    }

    fn adjust<'a>(
        &'a self,
        charge: &'a Charge<'a>,
        used: i64,
        extra: i64,
    ) -> Reply<'a, Option<Balance>> {
        if !self.shared.has(charge.key) {
            return self.shared.store.adjust(charge, used, extra);
        }
        Answer::later(async move {
            self.shared.report_key(charge.key).await;
            let adjusted = self.shared.store.adjust(charge, used, extra).await;
            // The local copy reads the new level before it decides again.
            self.shared.doubt(charge.key);
            adjusted
        })
    }

    fn report<'a>(
        &'a self,
        charge: &'a Charge<'a>,
        units: u64,
    ) -> Reply<'a, Option<AllowanceLevel>> {
        self.shared.store.report(charge, units).map(move |answer| {
            self.shared.doubt(charge.key);
            answer
        })
    }

    fn balance<'a>(&'a self, charge: &'a Charge<'a>) -> Reply<'a, Option<Balance>> {
        if !self.shared.has(charge.key) {
            return self.shared.store.balance(charge);
        }
        Answer::later(async move {
            self.shared.report_key(charge.key).await;
            self.shared.store.balance(charge).await
        })
    }

    fn hold<'a>(
        &'a self,
        charges: &'a [Charge<'a>],
        units: u64,
        new: &'a NewHold<'a>,
    ) -> Reply<'a, Held> {
        self.shared
            .store
            .hold(charges, units, new)
            .map(move |held| {
                if let Ok(Held::Taken { .. }) = &held {
                    self.shared.note_held(charges, units);
                }
                held
            })
    }

    fn sweep(&self) {
        self.report_due();
        self.shared.local.sweep();
        self.shared.store.sweep();
    }
}
