//! Decides and writes one charge in one table, in two steps or in one.
//!
//! A request decides all its charges before it writes any state. So it keeps a [`Look`] for each charge: the
//! verdict, and where the state is. This file does not know the other charges or the bound on keys.

use tollgate_core::{Admission, Charge, Limit, OnDenied, Outcome, Span, Time, Verdict};

use super::table::{Id, Kept, Table};
use crate::contract::Outcomes;

/// The verdict on a charge, and where the state of the charge is.
#[derive(Clone, Copy)]
pub(super) struct Look {
    pub(super) verdict: Verdict,
    /// The cost that was asked for, including the costs of earlier charges of the same key.
    pub(super) asked: u64,
    pub(super) place: Place,
}

impl Look {
    /// Returns whether the charge uses the state that new subjects share.
    pub(super) fn is_shared(&self) -> bool {
        matches!(self.place, Place::Shared)
    }
}

/// Where the state of a charge is.
#[derive(Clone, Copy)]
pub(super) enum Place {
    /// The charge has its own state, at this index of the table.
    Own(usize),
    /// The charge has no state yet.
    New,
    /// The charge has no state, and the store is full: new subjects share a state.
    Shared,
}

/// What a request writes to the state of a charge.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Write {
    /// The cost of an allowed request.
    Charge,
    /// The cost of a denied request, if denied requests are charged.
    ChargeDenied,
    /// That the charge has denied a request.
    NoteDenied,
    /// Nothing.
    Nothing,
}

/// What the result of a request means for one of its charges.
#[derive(Clone, Copy)]
pub(super) struct RequestResult {
    /// Whether the request passes. For a candidate: whether the request would pass if the candidate
    /// replaced its charge.
    pub(super) passes: bool,
    /// Whether the charge that this one watches denies the request.
    pub(super) struck: bool,
}

impl RequestResult {
    /// Returns the result of a request with one charge.
    pub(super) fn alone(charge: &Charge<'_>, verdict: &Verdict) -> RequestResult {
        RequestResult {
            passes: !charge.enforces() || verdict.is_allowed(),
            struck: false,
        }
    }
}

impl Write {
    /// Returns what to write to the state of a charge, given the result of the request.
    #[inline]
    pub(super) fn of(charge: &Charge<'_>, verdict: &Verdict, result: RequestResult) -> Write {
        if verdict.is_unrestored() {
            return Write::Nothing;
        }
        match (verdict.is_allowed(), charge.on_denied) {
            // Only a hold takes a slot.
            _ if matches!(charge.limit, Limit::Concurrency(_)) => Write::Nothing,
            (false, OnDenied::Charge | OnDenied::Strike(_)) => Write::ChargeDenied,
            (false, OnDenied::Note) => Write::NoteDenied,
            (true, OnDenied::Strike(_)) if result.struck => Write::ChargeDenied,
            // A request takes nothing from a back-off.
            (true, _) if charge.limit.is_companion() => Write::Nothing,
            (true, on_denied) if result.passes || on_denied == OnDenied::Charge => Write::Charge,
            _ => Write::Nothing,
        }
    }
}

/// Decides and writes the only `charge` of a request. Does so only if its key has a state that was written
/// under these numbers and cannot grow. Adds the outcome to `outcomes`, because returning the outcome
/// through the match over algorithms would copy it twice.
#[inline]
pub(super) fn apply_own<A: Kept>(
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
#[inline(always)]
pub(super) fn charge_admitted<A: Kept>(
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
        reset_at: numbers.resets_at(state).max(now),
    }
}

/// Decides and writes the rare cases of [`apply_own`]: a charge that is denied, has to wait, or costs
/// nothing.
#[inline(never)]
fn apply_rarely<A: Kept>(
    numbers: &A,
    state: &mut A::State,
    charge: &Charge<'_>,
    cost: u64,
    now: Time,
) -> (Outcome, bool) {
    let verdict = numbers.decide(state, cost, now);
    let write = match cost {
        0 => Write::Nothing,
        _ => Write::of(charge, &verdict, RequestResult::alone(charge, &verdict)),
    };
    let (outcome, _) = write_state(numbers, state, verdict, cost, cost, write, now);
    (outcome, verdict.is_allowed())
}

pub(super) fn look_own<A: Kept>(
    table: &mut Table<A>,
    numbers: &A,
    charge: &Charge<'_>,
    cost: u64,
    now: Time,
) -> Option<Look> {
    let index = table.find(Id::of(charge.key))?;
    let state = table.state(index, numbers, charge.carry_over, now)?;
    Some(Look {
        verdict: numbers.decide(state, cost, now),
        asked: cost,
        place: Place::Own(index),
    })
}

/// Returns the first state of a new key. While the shared state is in use, this is a copy of the shared
/// state: the subject may have used it, and an empty state would give the subject a second allowance.
/// Otherwise, this is an empty state.
pub(super) fn starting_state<A: Kept>(
    table: &Table<A>,
    numbers: &A,
    charge: &Charge<'_>,
    shared_is_live: bool,
    now: Time,
) -> A::State {
    if !shared_is_live {
        return A::State::default();
    }
    let shared = table
        .find(Id::of(charge.overflow))
        .and_then(|index| table.read(index, numbers, charge.carry_over, now));
    shared.unwrap_or_default()
}

#[allow(clippy::too_many_arguments)]
pub(super) fn write_at<A: Kept>(
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
    // An insertion for another charge of the request may have moved the entry since the verdict.
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
    let mut written = (unlimited_outcome(now), now);
    table.change(index, |state| {
        if A::GROWS && is_full && write != Write::Nothing {
            A::relieve(state);
        }
        written = write_state(numbers, state, look.verdict, look.asked, cost, write, now);
    });
    written
}

#[allow(clippy::too_many_arguments)]
pub(super) fn write_new<A: Kept>(
    table: &mut Table<A>,
    numbers: &A,
    id: Id,
    mut state: A::State,
    look: &Look,
    cost: u64,
    write: Write,
    now: Time,
) -> (Outcome, Time) {
    let written = write_state(
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
    written
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
            numbers.overdraw(state, cost, 0, now);
            let verdict = numbers.decide(state, asked, now);
            outcome_of(numbers, state, verdict, 0, now)
        }
        Write::NoteDenied => {
            numbers.note_denied(state, cost, now);
            let verdict = numbers.decide(state, asked, now).after_denial(now);
            outcome_of(numbers, state, verdict, 0, now)
        }
    }
}

/// Returns the outcome, and the instant at which the state expires.
#[inline]
pub(super) fn outcome_of<A: Kept>(
    numbers: &A,
    state: &A::State,
    verdict: Verdict,
    taken: u64,
    now: Time,
) -> (Outcome, Time) {
    let outcome = Outcome {
        admission: verdict.admission,
        limit: numbers.capacity(),
        remaining: numbers.left(state, verdict.available, taken, now),
        reset_at: numbers.resets_at(state).max(now),
    };
    (outcome, numbers.expires_at(state))
}

pub(super) const AT_ONCE: Admission = Admission::Allowed { delay: Span::ZERO };

pub(super) const UNLIMITED: Look = Look {
    verdict: Verdict {
        admission: AT_ONCE,
        available: Outcome::UNLIMITED,
    },
    asked: 0,
    place: Place::New,
};

/// Returns the verdict on a charge when its usage has to be restored first.
pub(super) fn unrestored(cost: u64) -> Look {
    Look {
        verdict: Verdict::unrestored(),
        asked: cost,
        place: Place::New,
    }
}

pub(super) fn unlimited_outcome(now: Time) -> Outcome {
    Outcome {
        admission: AT_ONCE,
        limit: Outcome::UNLIMITED,
        remaining: Outcome::UNLIMITED,
        reset_at: now,
    }
}
