//! One shard: the states of a share of all keys, one table per algorithm, under one lock.

use tollgate_core::fixed_window::FixedWindow;
use tollgate_core::leaky_bucket::LeakyBucket;
use tollgate_core::meter::Meter;
use tollgate_core::sliding_counter::SlidingCounter;
use tollgate_core::sliding_log::SlidingLog;
use tollgate_core::two_window::TwoWindow;
use tollgate_core::{Admission, Charge, Limit, Limiting, Outcome, Span, Time, Verdict};

use super::table::{Id, Kept, Table};
use crate::contract::Outcomes;

/// Places looked at for expired states when a new key comes.
const SWEEP: usize = 8;
/// The same when the shard is full.
const SWEEP_FULL: usize = 64;
/// Bytes a state may hold outside its table for the price of one key.
const BYTES_PER_KEY: usize = 64;

/// The states of a share of the keys.
pub(super) struct Shard {
    meters: Table<Meter>,
    /// Apart, so that what most requests touch in all shards stays in the first cache.
    others: Box<Others>,
    max_keys: usize,
    /// Until when a state that strangers share may be live.
    shared_until: Time,
    /// Decisions made by a shared state.
    pub(super) shared: u64,
}

struct Others {
    leaky: Table<LeakyBucket>,
    windows: Table<FixedWindow>,
    logs: Table<SlidingLog>,
    counters: Table<SlidingCounter>,
    pairs: Table<TwoWindow>,
}

/// What a charge was told, and by which state.
#[derive(Clone, Copy)]
pub(super) struct Look {
    pub(super) verdict: Verdict,
    /// The cost it was asked for, with that of charges of the same key before it.
    pub(super) asked: u64,
    place: Place,
}

impl Look {
    /// Whether the state is one that strangers share.
    pub(super) fn is_shared(&self) -> bool {
        matches!(self.place, Place::Shared)
    }
}

/// Where a charge's state is.
#[derive(Clone, Copy)]
enum Place {
    /// It has one, at this index.
    Own(usize),
    /// It has none yet.
    New,
    /// It has none, and there is no room: strangers share one.
    Shared,
}

/// How a charge is written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Write {
    /// It was allowed.
    Charge,
    /// It was refused, and is counted all the same.
    ChargeDenied,
    /// Not at all.
    Nothing,
}

impl Write {
    /// How a charge is written, given the fate of the request.
    #[inline]
    pub(super) fn of(charge: &Charge<'_>, verdict: &Verdict, allowed: bool) -> Write {
        match (verdict.is_allowed(), charge.charge_denied) {
            (true, charge_denied) if allowed || charge_denied => Write::Charge,
            (false, true) => Write::ChargeDenied,
            _ => Write::Nothing,
        }
    }
}

/// Runs `$body` with the table and the numbers of `$limit`, whichever algorithm that is.
macro_rules! with_table {
    ($shard:expr, $limit:expr, |$table:ident, $numbers:ident| $body:expr, unlimited: $unlimited:expr) => {
        match $limit {
            Limit::Gcra($numbers) | Limit::TokenBucket($numbers) => {
                let $table = &mut $shard.meters;
                $body
            }
            Limit::LeakyBucket($numbers) => {
                let $table = &mut $shard.others.leaky;
                $body
            }
            Limit::FixedWindow($numbers) => {
                let $table = &mut $shard.others.windows;
                $body
            }
            Limit::SlidingLog($numbers) => {
                let $table = &mut $shard.others.logs;
                $body
            }
            Limit::SlidingCounter($numbers) => {
                let $table = &mut $shard.others.counters;
                $body
            }
            Limit::TwoWindow($numbers) => {
                let $table = &mut $shard.others.pairs;
                $body
            }
            Limit::Unlimited(_) => $unlimited,
        }
    };
}

impl Shard {
    pub(super) fn new(max_keys: usize) -> Shard {
        Shard {
            meters: Table::new(),
            others: Box::new(Others {
                leaky: Table::new(),
                windows: Table::new(),
                logs: Table::new(),
                counters: Table::new(),
                pairs: Table::new(),
            }),
            max_keys,
            shared_until: Time::default(),
            shared: 0,
        }
    }

    /// Decides and writes a request of a single charge, in one step where its key has a state. Tells
    /// the outcome, and returns whether the limit allows it.
    #[inline]
    pub(super) fn apply_one(
        &mut self,
        charge: &Charge<'_>,
        cost: u64,
        now: Time,
        outcomes: &mut Outcomes,
    ) -> bool {
        // Most limits are meters: they are decided in line, and the others by a call.
        if let Limit::Gcra(meter) | Limit::TokenBucket(meter) = charge.limit {
            let id = Id::of(charge.key);
            let own = apply_own(&mut self.meters, meter, id, charge, cost, now, outcomes);
            if let Some(allowed) = own {
                return allowed;
            }
        }
        self.apply_one_of_others(charge, cost, now, outcomes)
    }

    /// Where the state of a meter is that admits `cost` without delay, and what is available there.
    #[inline]
    pub(super) fn meter_admits(
        &self,
        charge: &Charge<'_>,
        cost: u64,
        now: Time,
    ) -> Option<(usize, u64)> {
        let (Limit::Gcra(meter) | Limit::TokenBucket(meter)) = charge.limit else {
            return None;
        };
        let index = self.meters.find(Id::of(charge.key))?;
        let state = self.meters.state_in(index, meter)?;
        Some((index, meter.admits(state, cost, now)?))
    }

    /// Takes `cost` from the meter at `index`, which admits it and has `available`.
    #[inline]
    pub(super) fn charge_meter(
        &mut self,
        charge: &Charge<'_>,
        (index, available): (usize, u64),
        cost: u64,
        now: Time,
        outcomes: &mut Outcomes,
    ) {
        if let Limit::Gcra(meter) | Limit::TokenBucket(meter) = charge.limit {
            self.meters.change(index, |state| {
                outcomes.push(charge_admitted(meter, state, available, cost, now));
            });
        }
    }

    #[inline(never)]
    fn apply_one_of_others(
        &mut self,
        charge: &Charge<'_>,
        cost: u64,
        now: Time,
        outcomes: &mut Outcomes,
    ) -> bool {
        let id = Id::of(charge.key);
        let own = with_table!(self, charge.limit, |table, numbers| apply_own(
            table, numbers, id, charge, cost, now, outcomes
        ), unlimited: None);
        own.unwrap_or_else(|| {
            let look = self.look(charge, cost, now);
            let allowed = !charge.enforces() || look.verdict.is_allowed();
            let write = Write::of(charge, &look.verdict, allowed);
            outcomes.push(self.write(charge, &look, cost, write, now));
            look.verdict.is_allowed()
        })
    }

    /// What the limit of `charge` says to `cost`. Takes nothing.
    pub(super) fn look(&mut self, charge: &Charge<'_>, cost: u64, now: Time) -> Look {
        let id = Id::of(charge.key);
        let own = with_table!(self, charge.limit, |table, numbers| look_own(
            table, numbers, id, cost, now
        ), unlimited: return UNLIMITED);
        own.unwrap_or_else(|| self.look_stranger(charge, cost, now))
    }

    /// The same for a key that has no state.
    #[cold]
    fn look_stranger(&mut self, charge: &Charge<'_>, cost: u64, now: Time) -> Look {
        if self.is_full() {
            self.forget_expired(SWEEP_FULL, now);
        } else {
            with_table!(self, charge.limit, |table, _numbers| table.forget_expired(SWEEP, now),
                unlimited: return UNLIMITED);
        }
        let place = if self.is_full() {
            Place::Shared
        } else {
            Place::New
        };
        let shared_is_live = now < self.shared_until;
        let id = Id::of(charge.overflow);
        with_table!(self, charge.limit, |table, numbers| {
            let state = starting_state(table, numbers, id, shared_is_live, now);
            Look { verdict: numbers.decide(&state, cost, now), asked: cost, place }
        }, unlimited: UNLIMITED)
    }

    /// Writes `charge` as told, and says how things stand then.
    pub(super) fn write(
        &mut self,
        charge: &Charge<'_>,
        look: &Look,
        cost: u64,
        write: Write,
        now: Time,
    ) -> Outcome {
        let write = if cost == 0 { Write::Nothing } else { write };
        let shared_is_live = now < self.shared_until;
        let is_full = matches!(charge.limit, Limit::SlidingLog(_)) && self.is_full();
        let (own, overflow) = (Id::of(charge.key), Id::of(charge.overflow));
        let (outcome, expires_at) = with_table!(self, charge.limit, |table, numbers| {
            match look.place {
                Place::Own(index) => write_at(table, numbers, index, own, look, cost, write, is_full, now),
                // An earlier charge of this request may have been of the same new key.
                Place::New => match table.find(own) {
                    Some(index) => {
                        write_at(table, numbers, index, own, look, cost, write, is_full, now)
                    }
                    None => {
                        let state = starting_state(table, numbers, overflow, shared_is_live, now);
                        write_new(table, numbers, own, state, look, cost, write, now)
                    }
                },
                Place::Shared => match table.find(overflow) {
                    Some(index) => {
                        table.state(index, numbers, now);
                        write_at(table, numbers, index, overflow, look, cost, write, is_full, now)
                    }
                    None => {
                        let state = Default::default();
                        write_new(table, numbers, overflow, state, look, cost, write, now)
                    }
                },
            }
        }, unlimited: return unlimited_outcome(now));
        if let Place::Shared = look.place {
            self.shared_until = self.shared_until.max(expires_at);
            self.shared += 1;
        }
        outcome
    }

    /// How things stand for `charge`, without touching anything.
    pub(super) fn peek(&mut self, charge: &Charge<'_>, cost: u64, now: Time) -> Outcome {
        let is_full = self.is_full();
        let shared_is_live = now < self.shared_until;
        with_table!(self, charge.limit, |table, numbers| {
            let state = match table.find(Id::of(charge.key)) {
                Some(index) => table.read(index, numbers, now).unwrap_or_default(),
                None => {
                    let overflow = Id::of(charge.overflow);
                    starting_state(table, numbers, overflow, shared_is_live || is_full, now)
                }
            };
            let verdict = numbers.decide(&state, cost, now);
            outcome_of(numbers, &state, verdict, 0, now).0
        }, unlimited: unlimited_outcome(now))
    }

    /// Gives `cost` back to `charge`, which took it at `charged_at`.
    pub(super) fn refund(&mut self, charge: &Charge<'_>, cost: u64, charged_at: Time, now: Time) {
        with_table!(self, charge.limit, |table, numbers| {
            if let Some(index) = table.find(Id::of(charge.key))
                && table.state(index, numbers, now).is_some()
            {
                table.change(index, |state| {
                    numbers.refund(state, cost, charged_at, now);
                });
            }
        }, unlimited: ());
    }

    /// Forgets the state of `charge`.
    pub(super) fn reset(&mut self, charge: &Charge<'_>) {
        with_table!(self, charge.limit, |table, _numbers| table.remove(Id::of(charge.key)),
            unlimited: ());
    }

    /// The state of `charge` in words.
    pub(super) fn dump(&mut self, charge: &Charge<'_>) -> Option<String> {
        with_table!(self, charge.limit, |table, _numbers| table.dump(Id::of(charge.key)),
            unlimited: None)
    }

    /// Looks at the next `steps` places of every table, forgets what has expired, and gives memory
    /// back.
    pub(super) fn sweep(&mut self, steps: usize, now: Time) {
        self.forget_expired(steps, now);
        self.meters.shrink();
        self.others.leaky.shrink();
        self.others.windows.shrink();
        self.others.logs.shrink();
        self.others.counters.shrink();
        self.others.pairs.shrink();
    }

    fn forget_expired(&mut self, steps: usize, now: Time) {
        self.meters.forget_expired(steps, now);
        self.others.leaky.forget_expired(steps, now);
        self.others.windows.forget_expired(steps, now);
        self.others.logs.forget_expired(steps, now);
        self.others.counters.forget_expired(steps, now);
        self.others.pairs.forget_expired(steps, now);
    }

    pub(super) fn keys(&self) -> usize {
        self.meters.len()
            + self.others.leaky.len()
            + self.others.windows.len()
            + self.others.logs.len()
            + self.others.counters.len()
            + self.others.pairs.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.meters.bytes()
            + self.others.leaky.bytes()
            + self.others.windows.bytes()
            + self.others.logs.bytes()
            + self.others.counters.bytes()
            + self.others.pairs.bytes()
            + size_of::<Others>()
    }

    /// Whether there is no room for one more key. What states hold outside their tables counts too.
    fn is_full(&self) -> bool {
        let heap = self.others.logs.heap() + self.others.counters.heap();
        self.keys() + heap / BYTES_PER_KEY >= self.max_keys
    }
}

/// Decides and writes `charge` if it is the whole request, its key has a state in these numbers, and
/// that state does not grow. The outcome is written where it is wanted: handing it up through the match over
/// algorithms would copy it twice.
#[inline]
fn apply_own<A: Kept>(
    table: &mut Table<A>,
    numbers: &A,
    id: Id,
    charge: &Charge<'_>,
    cost: u64,
    now: Time,
    outcomes: &mut Outcomes,
) -> Option<bool> {
    if A::GROWS {
        return None;
    }
    table.change_own(id, numbers, |state| {
        if cost > 0
            && let Some(available) = numbers.admits(state, cost, now)
        {
            outcomes.push(charge_admitted(numbers, state, available, cost, now));
            return true;
        }
        let (outcome, allowed) = apply_rarely(numbers, state, charge, cost, now);
        outcomes.push(outcome);
        allowed
    })
}

/// Takes `cost` from a state that admits it without delay and has `available`.
#[inline]
fn charge_admitted<A: Kept>(
    numbers: &A,
    state: &mut A::State,
    available: u64,
    cost: u64,
    now: Time,
) -> Outcome {
    numbers.charge(state, cost, now);
    Outcome {
        admission: AT_ONCE,
        limit: numbers.capacity(),
        remaining: available - cost,
        reset_at: numbers.expires_at(state).max(now),
    }
}

/// The rarer half of [`apply_own`]: a charge that is refused, has to wait, or costs nothing.
#[inline(never)]
fn apply_rarely<A: Kept>(
    numbers: &A,
    state: &mut A::State,
    charge: &Charge<'_>,
    cost: u64,
    now: Time,
) -> (Outcome, bool) {
    let verdict = numbers.decide(state, cost, now);
    let allowed = !charge.enforces() || verdict.is_allowed();
    let write = match cost {
        0 => Write::Nothing,
        _ => Write::of(charge, &verdict, allowed),
    };
    let (outcome, _) = write_state(numbers, state, verdict, cost, cost, write, now);
    (outcome, verdict.is_allowed())
}

fn look_own<A: Kept>(
    table: &mut Table<A>,
    numbers: &A,
    id: Id,
    cost: u64,
    now: Time,
) -> Option<Look> {
    let index = table.find(id)?;
    let state = table.state(index, numbers, now)?;
    Some(Look {
        verdict: numbers.decide(state, cost, now),
        asked: cost,
        place: Place::Own(index),
    })
}

/// The state a new key starts from: fresh, or, while strangers share one, a copy of theirs. The
/// key's subject may have drawn on that, so anything less would let it draw twice.
fn starting_state<A: Kept>(
    table: &Table<A>,
    numbers: &A,
    overflow: Id,
    shared_is_live: bool,
    now: Time,
) -> A::State {
    if !shared_is_live {
        return A::State::default();
    }
    let shared = table
        .find(overflow)
        .and_then(|index| table.read(index, numbers, now));
    shared.unwrap_or_default()
}

#[allow(clippy::too_many_arguments)]
fn write_at<A: Kept>(
    table: &mut Table<A>,
    numbers: &A,
    index: usize,
    id: Id,
    look: &Look,
    cost: u64,
    write: Write,
    is_full: bool,
    now: Time,
) -> (Outcome, Time) {
    // An insertion for another charge of this request may have moved the entry since the look.
    let Some(index) = table.find_at(index, id) else {
        return write_new(
            table,
            numbers,
            id,
            A::State::default(),
            look,
            cost,
            write,
            now,
        );
    };
    let mut told = (unlimited_outcome(now), now);
    table.change(index, |state| {
        if A::GROWS && is_full && write != Write::Nothing {
            A::relieve(state);
        }
        told = write_state(numbers, state, look.verdict, look.asked, cost, write, now);
    });
    told
}

#[allow(clippy::too_many_arguments)]
fn write_new<A: Kept>(
    table: &mut Table<A>,
    numbers: &A,
    id: Id,
    mut state: A::State,
    look: &Look,
    cost: u64,
    write: Write,
    now: Time,
) -> (Outcome, Time) {
    let told = write_state(
        numbers,
        &mut state,
        look.verdict,
        look.asked,
        cost,
        write,
        now,
    );
    if write != Write::Nothing {
        table.insert(id, numbers, state);
    }
    told
}

#[inline]
fn write_state<A: Kept>(
    numbers: &A,
    state: &mut A::State,
    verdict: Verdict,
    asked: u64,
    cost: u64,
    write: Write,
    now: Time,
) -> (Outcome, Time) {
    match write {
        Write::Nothing => outcome_of(numbers, state, verdict, 0, now),
        Write::Charge => {
            numbers.charge(state, cost, now);
            outcome_of(numbers, state, verdict, cost, now)
        }
        Write::ChargeDenied => {
            numbers.charge_denied(state, cost, now);
            let verdict = numbers.decide(state, asked, now);
            outcome_of(numbers, state, verdict, 0, now)
        }
    }
}

/// The outcome, and the instant at which the state expires.
#[inline]
fn outcome_of<A: Kept>(
    numbers: &A,
    state: &A::State,
    verdict: Verdict,
    taken: u64,
    now: Time,
) -> (Outcome, Time) {
    let expires_at = numbers.expires_at(state);
    let outcome = Outcome {
        admission: verdict.admission,
        limit: numbers.capacity(),
        remaining: verdict.available.saturating_sub(taken),
        reset_at: expires_at.max(now),
    };
    (outcome, expires_at)
}

const AT_ONCE: Admission = Admission::Allowed { delay: Span::ZERO };

const UNLIMITED: Look = Look {
    verdict: Verdict {
        admission: AT_ONCE,
        available: Outcome::UNLIMITED,
    },
    asked: 0,
    place: Place::New,
};

fn unlimited_outcome(now: Time) -> Outcome {
    Outcome {
        admission: AT_ONCE,
        limit: Outcome::UNLIMITED,
        remaining: Outcome::UNLIMITED,
        reset_at: now,
    }
}
