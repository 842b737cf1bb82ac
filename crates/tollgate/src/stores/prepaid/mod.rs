//! Leased mode: requests are decided from units that were drawn before.
//!
//! A *slice* is a number of units of one key that this instance has drawn from the store. Until the slice ends,
//! the instance admits requests from it without a call. The limit of a leased charge is
//! [prepaid](tollgate_core::Limit::prepaid): it leaves room for the time between a draw and a use. So the
//! admitted units keep the promise of the configured limit, whatever other instances do. `docs/modes.md` has the
//! proof.
//!
//! * **Only the store denies.** If slices cover every charge of a request, the request is admitted here. Otherwise
//!   the store decides the charges that no slice covers, in one step. If it denies, the units of the covered charges
//!   are put back. A request with an exact charge goes to the store as a whole.
//! * **Draws are ordinary calls** (`apply` with [`Ask::UpTo`]) of one charge, and no request waits for them.
//!   Units that were not used go back as an ordinary refund.
//! * **A lost answer, a crash or a pause** loses units until they refill. No unit is used twice, or after the end
//!   of its slice.
//! * **Changes**: other numbers (a reload, an override, an emergency scale) and a reset end the outstanding
//!   slices of a key here at once. In other instances they end after `slice` at the latest.
//!
//! `slices.rs` has the slices of one key, `table.rs` all keys, `background.rs` the calls that no request waits
//! for.

mod background;
mod counts;
#[cfg(test)]
mod model;
mod slices;
mod table;

use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;
use tollgate_core::{Admission, Charge, Enforcement, Limit, Mode, OnDenied, Outcome, Span, Time};
use tollgate_store::{Answer, Applied, Ask, Clock, Guarantee, Outcomes, Reply, Store, StoreError};

pub use self::counts::PrepaidUsage;
use self::counts::{Count, Counts};
use self::slices::Use;
use self::table::{Draw, Table};
use crate::stores::background::{Calls, OwnedCharge};

/// A store for leased rules. It draws units from the inner store in advance, and decides charges with these units.
pub struct Prepaid<S> {
    shared: Arc<Shared<S>>,
}

/// The parts that calls in the background need too.
struct Shared<S> {
    store: S,
    /// The instance's own clock, which never goes back.
    clock: Arc<dyn Clock>,
    /// How many instances draw from the store.
    instances: u64,
    table: Table,
    counts: Counts,
    calls: Calls,
}

impl<S> fmt::Debug for Prepaid<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prepaid").finish_non_exhaustive()
    }
}

impl<S: Store + 'static> Prepaid<S> {
    /// Draws from `store`, which `instances` instances share. `clock` is a monotonic clock of this instance: it
    /// measures how long a slice may be used.
    pub fn new(store: S, clock: Arc<dyn Clock>, instances: u32) -> Prepaid<S> {
        Prepaid {
            shared: Arc::new(Shared {
                store,
                clock,
                instances: u64::from(instances.max(1)),
                table: Table::new(),
                counts: Counts::default(),
                calls: Calls::default(),
            }),
        }
    }

    /// Returns the store that units are drawn from.
    #[must_use]
    pub fn store(&self) -> &S {
        &self.shared.store
    }

    /// Returns what leased mode has done, and what is outstanding.
    #[must_use]
    pub fn prepaid_usage(&self) -> PrepaidUsage {
        let [
            covered,
            asked,
            draws,
            drawn_units,
            returned_units,
            lost_units,
        ] = self.shared.counts.sums();
        let (keys, usable_units) = self.shared.table.outstanding(self.shared.clock.now());
        PrepaidUsage {
            covered,
            asked,
            draws,
            drawn_units,
            returned_units,
            lost_units,
            keys,
            usable_units,
        }
    }

    /// Gives all unused units back to the store, also those of draws that are on their way. Call this at the end of
    /// a process, within a bound of time.
    pub async fn close(&self) {
        self.shared.give_all_back().await;
    }

    /// Uses units for each charge that a slice covers. Writes the decision to `applied` if all charges are covered.
    #[inline]
    fn cover(&self, charges: &[Charge<'_>], units: u64, applied: &mut Applied) -> Covered {
        // The request is admitted at this instant. The clock is read before units are used, so a process that
        // was paused reads a later time, and does not use an old slice.
        let now = self.shared.clock.now();
        let mut uses = Uses::new();
        let mut draws: SmallVec<[Draw; 1]> = SmallVec::new();
        applied.outcomes.clear();
        let mut are_all_covered = true;
        for charge in charges {
            if let Limit::Unlimited(_) = charge.limit {
                applied.outcomes.push(unlimited());
                uses.push(None);
                continue;
            }
            let (table, cost) = (&self.shared.table, charge.cost.saturating_mul(units));
            match table.spend(charge, cost, self.shared.instances, now) {
                Some((used, outcome, draw)) => {
                    applied.outcomes.push(outcome);
                    uses.push(Some((used, outcome)));
                    draws.extend(draw);
                }
                None => {
                    applied.outcomes.push(unlimited());
                    uses.push(None);
                    are_all_covered = false;
                }
            }
        }
        self.start(draws);
        // The earliest draw: a refund of this request counts what has refilled since then.
        let drawn_at = uses.iter().flatten().map(|(used, _)| used.drawn_at).min();
        match drawn_at {
            Some(drawn_at) if are_all_covered => {
                self.settle(applied, drawn_at, units);
                self.shared.counts.add(Count::Covered, 1);
                Covered::All
            }
            Some(_) => Covered::Some(Box::new(uses)),
            None => Covered::Nothing,
        }
    }

    fn settle(&self, applied: &mut Applied, drawn_at: Time, units: u64) {
        applied.now = drawn_at;
        applied.allowed = true;
        applied.granted = units;
        applied.guarantee = Guarantee::Atomic;
        for outcome in &mut applied.outcomes {
            outcome.reset_at = outcome.reset_at.max(drawn_at);
        }
    }

    /// Puts units back that were not used after all.
    fn put_back(&self, charge: &Charge<'_>, used: &Use) {
        if self.shared.table.put_back(charge.key, used) {
            return;
        }
        match charge.mode {
            // The slice has ended, and its units count as used in the store. Nobody can use these until they refill.
            Mode::Leased { .. } if charge.limit.refills() => {
                self.shared.counts.add(Count::LostUnits, used.units);
            }
            Mode::Leased { slice } => {
                let charge = Arc::new(OwnedCharge::of(charge, slice));
                self.shared.give_back_at(&charge, used.units, used.drawn_at);
            }
            _ => {}
        }
    }

    fn start(&self, draws: impl IntoIterator<Item = Draw>) {
        for draw in draws {
            self.shared.draw(draw);
        }
    }

    /// Lets the store decide the charges that no slice covers.
    fn let_store_decide<'a>(
        &'a self,
        charges: &'a [Charge<'a>],
        ask: Ask,
        covered: Covered,
    ) -> Reply<'a, Applied> {
        self.shared.counts.add(Count::Asked, 1);
        match covered {
            Covered::Some(uses) if can_split(charges, &uses) => {
                Answer::later(self.decide_rest(charges, ask, *uses))
            }
            covered => {
                if let Covered::Some(uses) = covered {
                    for (charge, used) in charges.iter().zip(uses.iter()) {
                        if let Some((used, _)) = used {
                            self.put_back(charge, used);
                        }
                    }
                }
                self.shared.store.apply(charges, ask).map(move |answer| {
                    if let Ok(applied) = &answer {
                        self.learn(charges, ask.units(), applied);
                    }
                    answer
                })
            }
        }
    }

    /// Asks the store for the charges that no slice covers. If it denies the request, the units of the others are
    /// put back, unless they count denied requests.
    async fn decide_rest(
        &self,
        charges: &[Charge<'_>],
        ask: Ask,
        uses: Uses,
    ) -> Result<Applied, StoreError> {
        let both = || charges.iter().zip(&uses);
        let rest: SmallVec<[Charge<'_>; 6]> = both()
            .filter(|(_, used)| used.is_none())
            .map(|(charge, _)| *charge)
            .collect();
        let answer = self.shared.store.apply(&rest, ask).await;
        let granted = answer.as_ref().map_or(0, |applied| applied.granted);
        let is_denied = matches!(&answer, Ok(applied) if !applied.allowed);
        // The call may have taken longer than the slices last. Then they must not be used any more.
        let now = self.shared.clock.now();
        let is_late = granted > 0 && uses.iter().flatten().any(|(used, _)| used.ends_at <= now);
        let unused = if is_late {
            ask.units()
        } else {
            ask.units() - granted
        };
        let mut told = Outcomes::new();
        for (charge, used) in both() {
            let Some((used, outcome)) = used else {
                continue;
            };
            let mut units = charge.cost.saturating_mul(unused).min(used.units);
            if is_denied && charge.counts_denied() {
                units = 0;
            }
            self.put_back(charge, &Use { units, ..*used });
            let remaining = outcome.remaining.saturating_add(units);
            told.push(Outcome {
                remaining,
                ..*outcome
            });
        }
        let mut applied = answer?;
        self.learn(&rest, ask.units(), &applied);
        if is_late {
            return self.decide_all_again(charges, ask, &rest, &applied).await;
        }
        applied.guarantee = Guarantee::Compensated;
        let mut decided = std::mem::take(&mut applied.outcomes).into_iter();
        let mut told = told.into_iter();
        for (_, used) in both() {
            // The earliest draw, as in `cover`. A denial has taken nothing, and its waits count from now.
            if let Some((used, _)) = used
                && applied.allowed
            {
                applied.now = applied.now.min(used.drawn_at);
            }
            let next = if used.is_some() {
                told.next()
            } else {
                decided.next()
            };
            applied.outcomes.extend(next);
        }
        Ok(applied)
    }

    /// Gives back what a request has taken for some charges, and lets the store decide all of them.
    #[cold]
    async fn decide_all_again(
        &self,
        charges: &[Charge<'_>],
        ask: Ask,
        taken: &[Charge<'_>],
        applied: &Applied,
    ) -> Result<Applied, StoreError> {
        // A shadow that would have denied has taken nothing.
        let taken = taken.iter().zip(&applied.outcomes);
        let taken: SmallVec<[Charge<'_>; 6]> = taken
            .filter(|(_, outcome)| outcome.is_allowed())
            .map(|(charge, _)| *charge)
            .collect();
        let refunded = self
            .shared
            .store
            .refund(&taken, applied.granted, applied.now);
        refunded.await?;
        let applied = self.shared.store.apply(charges, ask).await?;
        self.learn(charges, ask.units(), &applied);
        Ok(applied)
    }

    fn learn(&self, charges: &[Charge<'_>], units: u64, applied: &Applied) {
        let now = self.shared.clock.now();
        for (charge, outcome) in charges.iter().zip(&applied.outcomes) {
            let Mode::Leased { slice } = charge.mode else {
                continue;
            };
            let asked = charge.cost.saturating_mul(units);
            let (draw, back) =
                self.shared
                    .table
                    .learn(charge, slice, asked, outcome, self.shared.instances, now);
            if let Some(back) = back {
                self.shared.give_back(&back);
            }
            self.start(draw);
        }
    }

    /// Ends the slices of these charges here, also if their rule is exact by now.
    fn fence(&self, charges: &[Charge<'_>]) {
        for charge in charges {
            self.shared.table.fence(charge.key);
        }
    }
}

/// The units that were used for each charge of a request, and its outcome; `None` for a charge that no slice covers.
type Uses = SmallVec<[Option<(Use, Outcome)>; 6]>;

/// Which charges of a request slices cover.
enum Covered {
    All,
    Some(Box<Uses>),
    Nothing,
}

/// Returns whether the covered charges of a request can be decided apart from the others. They cannot if a charge
/// refers to another by its index. A charge with a ledger is recorded at the time at which the store decides it, and
/// other charges at the time of their draw.
fn can_split(charges: &[Charge<'_>], uses: &Uses) -> bool {
    let refers = |it: &Charge<'_>| {
        matches!(it.enforcement, Enforcement::Instead(_))
            || matches!(it.on_denied, OnDenied::Strike(_))
    };
    let mut both = charges.iter().zip(uses);
    both.all(|(charge, used)| !refers(charge) && (used.is_some() || charge.recorded.is_none()))
}

/// Returns whether slices may decide a request: every charge is leased or without a limit, at least one is
/// leased, and the request asks for units and has no time of its own.
#[inline]
fn is_leased(charges: &[Charge<'_>], ask: Ask) -> bool {
    let mut leased = false;
    for charge in charges {
        match (charge.mode, charge.limit) {
            (Mode::Leased { .. }, _) => leased = true,
            (_, Limit::Unlimited(_)) => {}
            _ => return false,
        }
        if charge.at != Time::default() {
            return false;
        }
    }
    leased && ask.units() > 0
}

/// Returns the outcome of a charge without a limit.
fn unlimited() -> Outcome {
    Outcome {
        admission: Admission::Allowed { delay: Span::ZERO },
        limit: Outcome::UNLIMITED,
        remaining: Outcome::UNLIMITED,
        reset_at: Time::default(),
    }
}

impl<S: Store + 'static> Store for Prepaid<S> {
    fn inner(&self) -> Option<&dyn Store> {
        Some(&self.shared.store)
    }

    fn apply<'a>(&'a self, charges: &'a [Charge<'a>], ask: Ask) -> Reply<'a, Applied> {
        if !is_leased(charges, ask) {
            return self.shared.store.apply(charges, ask);
        }
        let mut applied = Applied::default();
        match self.cover(charges, ask.units(), &mut applied) {
            Covered::All => Answer::Now(Ok(applied)),
            covered => self.let_store_decide(charges, ask, covered),
        }
    }

    fn apply_into<'a>(
        &'a self,
        charges: &'a [Charge<'a>],
        ask: Ask,
        applied: &mut Applied,
    ) -> Option<Reply<'a, Applied>> {
        if !is_leased(charges, ask) {
            return self.shared.store.apply_into(charges, ask, applied);
        }
        match self.cover(charges, ask.units(), applied) {
            Covered::All => None,
            covered => Some(self.let_store_decide(charges, ask, covered)),
        }
    }

    fn peek<'a>(&'a self, charges: &'a [Charge<'a>], ask: Ask) -> Reply<'a, Applied> {
        if is_leased(charges, ask) {
            let now = self.shared.clock.now();
            let mut applied = Applied::default();
            let mut drawn_at = Time::MAX;
            let covered = charges.iter().all(|charge| match charge.limit {
                Limit::Unlimited(_) => {
                    applied.outcomes.push(unlimited());
                    true
                }
                _ => {
                    let cost = charge.cost.saturating_mul(ask.units());
                    let looked = self.shared.table.look(charge, cost, now);
                    looked.is_some_and(|(at, outcome)| {
                        drawn_at = drawn_at.min(at);
                        applied.outcomes.push(outcome);
                        true
                    })
                }
            });
            if covered {
                self.settle(&mut applied, drawn_at, ask.units());
                return Answer::Now(Ok(applied));
            }
        }
        self.shared.store.peek(charges, ask)
    }

    fn refund<'a>(
        &'a self,
        charges: &'a [Charge<'a>],
        units: u64,
        charged_at: Time,
    ) -> Reply<'a, Applied> {
        for charge in charges {
            self.shared.table.forget_used(charge.key);
        }
        self.shared.store.refund(charges, units, charged_at)
    }

    fn reset<'a>(&'a self, charges: &'a [Charge<'a>]) -> Reply<'a, ()> {
        // A draw may reach the store before or after the reset. So slices end before the call, and draws that
        // were sent during the call are not used.
        self.fence(charges);
        self.shared.store.reset(charges).map(move |answer| {
            self.fence(charges);
            answer
        })
    }

    fn sweep(&self) {
        let back = self.shared.table.sweep(self.shared.clock.now());
        for back in back {
            self.shared.give_back(&back);
        }
        self.shared.store.sweep();
    }
}
