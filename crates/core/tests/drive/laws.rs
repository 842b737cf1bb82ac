//! The laws that hold for every algorithm.

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use tollgate_core::{Admission, CarryOver, Denial, Limiting, Span, Time};

use super::steps::{Cost, Pause, Step};
use super::{LATEST, Proven, Run};

/// Checks that crate and model give the same answers after every step.
pub(crate) fn answers_as_the_model_does<N: Proven>(
    numbers: &N,
    start: u64,
    history: &[Step<N>],
) -> TestCaseResult {
    let mut run = Run::new(numbers, start);
    for step in history {
        run.step(step);
        run.same_answers()?;
    }
    Ok(())
}

/// Checks that the instant promised by a denial is exact. Until the microsecond before it, denials promise
/// the same instant. At this instant, the same cost is admitted. A cost that can never be admitted gets no
/// promise.
pub(crate) fn denies_until_exactly_the_promised_instant<N: Proven>(
    run: &Run<N>,
    cost: u64,
    permille: u64,
) -> TestCaseResult {
    let verdict = run.decide(cost);
    prop_assert_eq!(cost > run.limit.capacity(), is_never(verdict.admission));
    if is_never(verdict.admission) {
        for later in [run.now + 1, LATEST, Time::MAX.as_micros()] {
            prop_assert!(is_never(
                run.decide_at(cost, Time::from_micros(later)).admission
            ));
        }
    } else if let Some(promised) = verdict.retry_at().filter(|at| *at < Time::MAX) {
        prop_assert!(promised > run.time());
        let wait = u128::from(promised.since(run.time()).as_micros() - 1);
        let between = u64::try_from(wait * u128::from(permille) / 1000).unwrap();
        let just_before = Time::from_micros(promised.as_micros() - 1);
        for early in [run.time() + Span::from_micros(between), just_before] {
            prop_assert_eq!(
                run.decide_at(cost, early).admission,
                verdict.admission,
                "at {:?}",
                early
            );
        }
        prop_assert!(
            run.decide_at(cost, promised).is_allowed(),
            "denied at {promised:?}"
        );
    }
    Ok(())
}

fn is_never(admission: Admission) -> bool {
    matches!(admission, Admission::Denied(Denial::Never))
}

/// Checks that a decision changes nothing, and that a charge takes exactly its cost.
pub(crate) fn takes_exactly_what_it_admits<N: Proven>(
    run: &mut Run<N>,
    cost: u64,
) -> TestCaseResult {
    let before = run.state.clone();
    let verdict = run.decide(cost);
    prop_assert_eq!(&run.state, &before);
    prop_assert_eq!(run.decide(cost), verdict);
    run.ask(cost);
    if verdict.is_allowed() {
        prop_assert_eq!(run.decide(0).available, verdict.available - cost);
    } else {
        prop_assert_eq!(&run.state, &before);
    }
    Ok(())
}

/// Checks refunds. After an immediate refund, the subject has as much as before the charge. If the cost is
/// charged again, the subject has as much as if there had been no refund. After a later refund, the subject
/// never has more than without the charge.
pub(crate) fn a_refund_undoes_a_charge<N: Proven>(
    run: &Run<N>,
    cost: u64,
    pause: Pause,
) -> TestCaseResult {
    let (mut never, mut charged) = (run.clone(), run.clone());
    if !charged.ask(cost).is_allowed() {
        return Ok(());
    }
    let mut again = charged.clone();
    again.refund(cost, again.now);
    same_from_now_on(&again, &never)?;
    prop_assert!(again.ask(cost).is_allowed());
    same_from_now_on(&again, &charged)?;

    charged.pause(pause);
    charged.refund(cost, run.now);
    never.now = charged.now;
    for later in [0, 1, charged.limit.window().as_micros()] {
        let at = Time::from_micros(charged.now + later);
        let (got, fair) = (charged.decide_at(0, at), never.decide_at(0, at));
        prop_assert!(got.available <= fair.available, "at {:?}", at);
    }
    Ok(())
}

/// Checks that `left` and `right` make the same decisions now and later.
fn same_from_now_on<N: Proven>(left: &Run<N>, right: &Run<N>) -> TestCaseResult {
    let window = left.limit.window().as_micros();
    for later in [0, 1, window / 3, window, 3 * window] {
        let at = Time::from_micros(left.now + later);
        for cost in [0, 1, left.limit.capacity()] {
            prop_assert_eq!(
                left.decide_at(cost, at),
                right.decide_at(cost, at),
                "{} at {:?}",
                cost,
                at
            );
        }
    }
    Ok(())
}

/// Checks the expiry of a state. From its expiry on, a state decides like that of a subject never seen. A
/// microsecond earlier it decides differently, unless the capacity is 0.
pub(crate) fn is_forgotten_exactly_at_its_expiry<N: Proven>(run: &Run<N>) -> TestCaseResult {
    let fresh = Run::new(&run.numbers, run.now);
    let expiry = run.limit.expires_at(&run.state);
    if expiry == Time::MAX {
        return Ok(());
    }
    let costs = [0, 1, run.limit.capacity()];
    let alike = |at| {
        costs
            .iter()
            .all(|cost| run.decide_at(*cost, at) == fresh.decide_at(*cost, at))
    };
    for later in [Span::ZERO, Span::from_micros(1), run.limit.window()] {
        prop_assert!(alike(expiry + later), "{:?} after {:?}", later, expiry);
    }
    if run.limit.capacity() > 0
        && let Some(before) = expiry.as_micros().checked_sub(1)
    {
        prop_assert!(
            !alike(Time::from_micros(before)),
            "forgotten before {expiry:?}"
        );
    }
    Ok(())
}

/// Checks that at the instant of a change, a larger capacity never admits less, and a smaller capacity never
/// admits more. This is true under `keep` and under `proportional`. One exception: if two counts are rounded
/// up, a larger capacity may have one unit less.
pub(crate) fn a_change_acts_in_its_own_direction<N: Proven>(
    run: &Run<N>,
    capacity: u64,
    cost: Cost,
) -> TestCaseResult {
    let to = run.numbers.resized(capacity);
    if to.limit().is_none() {
        return Ok(());
    }
    for (how, rounding) in [(CarryOver::Keep, 0), (CarryOver::Proportional, 1)] {
        let mut changed = run.clone();
        changed.change(&to, how);
        in_its_own_direction(run, &changed, rounding, cost)?;
    }
    Ok(())
}

fn in_its_own_direction<N: Proven>(
    run: &Run<N>,
    changed: &Run<N>,
    rounding: u64,
    cost: Cost,
) -> TestCaseResult {
    let raised = changed.limit.capacity() > run.limit.capacity();
    let rounding = if raised { rounding } else { 0 };
    let (smaller, larger) = match changed.limit.capacity() < run.limit.capacity() {
        true => (changed, run),
        false => (run, changed),
    };
    let (less, more) = (smaller.decide(0).available, larger.decide(0).available);
    prop_assert!(less <= more + rounding, "{less} and {more}");
    if rounding > 0 {
        return Ok(());
    }
    for cost in [1, smaller.cost(cost).max(1)] {
        let (less, more) = (smaller.decide(cost), larger.decide(cost));
        // There is room, but the wait is too long, so the capacity does not matter. The missing amount is
        // rounded up to a whole token, so a change may lengthen a wait by the time of one token.
        if matches!(more.admission, Admission::Denied(Denial::QueueFull(_)))
            && cost <= more.available
        {
            continue;
        }
        prop_assert!(
            !less.is_allowed() || more.is_allowed(),
            "{cost}: {less:?}, {more:?}"
        );
    }
    Ok(())
}

/// Checks the amount that a subject has left after a change, if it has used `used`. Under `keep`, this is
/// the new capacity less `used`. Under `proportional`, the used share is exact to the unit. After a reset,
/// it is the whole capacity.
pub(crate) fn a_change_leaves_what_it_says<N: Proven>(
    fresh: &Run<N>,
    used: u64,
    capacity: u64,
) -> TestCaseResult {
    let (to, from) = (fresh.numbers.resized(capacity), fresh.limit.capacity());
    let Some(limit) = to.limit() else {
        return Ok(());
    };
    if limit == fresh.limit {
        return Ok(()); // The numbers do not change.
    }
    let capacity = limit.capacity();
    let mut spent = fresh.clone();
    if !spent.ask(used).is_allowed() {
        return Ok(());
    }
    let kept = capacity.saturating_sub(used);
    let share = match (from, capacity) {
        (0, _) | (_, 0) => kept,
        _ => {
            let parts = u128::from(from - used) * u128::from(capacity);
            u64::try_from(parts / u128::from(from)).unwrap()
        }
    };
    let left = [kept, share, capacity];
    for (how, left) in CarryOver::ALL.into_iter().zip(left) {
        let mut changed = spent.clone();
        changed.change(&to, how);
        prop_assert_eq!(changed.decide(0).available, left, "{:?}", how);
        // A wait that is too long does not depend on the amount left.
        if left > 0
            && !matches!(
                changed.decide(1).admission,
                Admission::Denied(Denial::QueueFull(_))
            )
        {
            prop_assert!(changed.ask(left).is_allowed(), "{:?}", how);
        }
    }
    Ok(())
}
