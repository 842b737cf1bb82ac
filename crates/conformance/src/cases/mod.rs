//! Situations with known answers. Each case gets an empty store, with its clock at [`START`].

mod backoff;
mod change;
mod holds;
mod ledger;
mod quota;
mod report;
mod request;
mod settling;
mod single;
mod slots;

pub use backoff::*;
pub use change::*;
pub use holds::*;
pub use ledger::*;
pub use quota::*;
pub use report::*;
pub use request::*;
pub use settling::*;
pub use single::*;
pub use slots::*;

use tollgate_core::{Admission, Charge, Denial, Enforcement, Limit, Outcome, Span, Time};

use super::{Fixture, Kind, START, key};
use tollgate_store::{Applied, Ask, Store};

/// The capacity and the window that most cases use.
const CAPACITY: u64 = 10;
const WINDOW: Span = Span::SECOND;

/// Returns an enforcing charge of cost 1 for subject `number` under `limit`.
fn charge(number: u64, limit: &Limit) -> Charge<'_> {
    Charge {
        overflow: key(number + (1 << 32)),
        rule: "rule",
        ..Charge::new(key(number), limit)
    }
}

fn costing(cost: u64, charge: Charge<'_>) -> Charge<'_> {
    Charge { cost, ..charge }
}

fn enforced(enforcement: Enforcement, charge: Charge<'_>) -> Charge<'_> {
    Charge {
        enforcement,
        ..charge
    }
}

async fn apply(fixture: &impl Fixture, charges: &[Charge<'_>], ask: Ask) -> Applied {
    let applied = fixture.store().apply(charges, ask).await;
    checked(applied.expect("the store answers"), charges, ask)
}

async fn peek(fixture: &impl Fixture, charges: &[Charge<'_>], ask: Ask) -> Applied {
    let applied = fixture.store().peek(charges, ask).await;
    checked(applied.expect("the store answers"), charges, ask)
}

async fn refund(fixture: &impl Fixture, charges: &[Charge<'_>], units: u64, charged_at: Time) {
    let applied = fixture.store().refund(charges, units, charged_at).await;
    applied.expect("the store answers");
}

async fn reset(fixture: &impl Fixture, charges: &[Charge<'_>]) {
    let reset = fixture.store().reset(charges).await;
    reset.expect("the store answers");
}

/// Checks rules that are true for every answer, and returns the answer.
fn checked(applied: Applied, charges: &[Charge<'_>], ask: Ask) -> Applied {
    assert_eq!(applied.outcomes.len(), charges.len());
    let mut both = charges.iter().zip(&applied.outcomes);
    let enforcing_allow = both.all(|(charge, answer)| !charge.enforces() || answer.is_allowed());
    assert_eq!(applied.allowed, enforcing_allow, "{applied:?}");
    assert!(applied.granted <= ask.units(), "{applied:?}");
    assert!(applied.allowed || applied.granted == 0, "{applied:?}");
    for (charge, answer) in charges.iter().zip(&applied.outcomes) {
        assert_eq!(answer.limit, charge.limit.capacity());
        // A quota may have more than its limit, if an amount was carried over or granted.
        let has_more = matches!(charge.limit, Limit::Quota(_));
        assert!(has_more || answer.remaining <= answer.limit, "{answer:?}");
        assert!(answer.reset_at >= applied.now, "{answer:?}");
        if let Some(at) = retry_at(answer) {
            assert!(at > applied.now, "no wait in {applied:?}");
        }
    }
    applied
}

/// Takes `units` of `charge`, and fails if they are denied.
async fn take(fixture: &impl Fixture, charge: Charge<'_>, units: u64) -> Applied {
    let applied = apply(fixture, &[charge], Ask::Exactly(units)).await;
    assert!(applied.allowed, "{charge:?} denies {units}: {applied:?}");
    applied
}

/// Asks for `units` of `charge`, and fails unless they are denied.
async fn denied(fixture: &impl Fixture, charge: Charge<'_>, units: u64) -> Outcome {
    let applied = apply(fixture, &[charge], Ask::Exactly(units)).await;
    assert!(!applied.allowed, "{charge:?} allows {units}: {applied:?}");
    applied.outcomes[0]
}

/// Returns the amount left of `charge`.
async fn left(fixture: &impl Fixture, charge: Charge<'_>) -> u64 {
    peek(fixture, &[charge], Ask::Exactly(0)).await.outcomes[0].remaining
}

pub(crate) fn retry_at(outcome: &Outcome) -> Option<Time> {
    match outcome.admission {
        Admission::Denied(Denial::Until(at) | Denial::QueueFull(at)) => Some(at),
        _ => None,
    }
}

/// Returns the instant at which a denied outcome would be admitted.
fn promised(outcome: &Outcome) -> Time {
    retry_at(outcome).unwrap_or_else(|| panic!("no instant in {outcome:?}"))
}

fn just_before(time: Time) -> Time {
    back(time, Span::from_micros(1))
}

fn back(time: Time, span: Span) -> Time {
    Time::from_micros(time.as_micros() - span.as_micros())
}

/// Returns each kind with a subject number and a start time, and sets the clock to that time. Start
/// times are an hour apart.
fn kinds(fixture: &impl Fixture) -> impl Iterator<Item = (Kind, u64, Time)> {
    Kind::ALL.into_iter().zip(1..).map(|(kind, n)| {
        let start = START + Span::from_secs(3600 * n);
        fixture.set_time(start);
        (kind, n, start)
    })
}

/// Returns the items of [`kinds`], each with a limit of its kind: [`CAPACITY`] in `window`.
fn limits(fixture: &impl Fixture, window: Span) -> impl Iterator<Item = (Kind, u64, Time, Limit)> {
    kinds(fixture).map(move |(kind, n, start)| (kind, n, start, kind.limit(CAPACITY, window)))
}
