//! Compares back-off with its model: both see the same random denials, clocks and schedules.

#![allow(clippy::unwrap_used, clippy::panic)] // A failing helper fails its test.

mod cases;
#[path = "model/backoff.rs"]
mod model;

use cases::cases;
use model::{Event, Model};
use proptest::prelude::*;
use tollgate_core::backoff::{self, Backoff, Schedule, State};
use tollgate_core::{Admission, CarryOver, Denial, Limiting, Span, Time};

const START: u64 = 1_700_000_000_000_000;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// The clock moves on.
    Wait(u64),
    /// The clock moves to the end of the block, or to just before it.
    ToTheEnd {
        just_before: bool,
    },
    /// The clock moves to the instant at which the state is forgotten, or to just before it.
    ToOblivion {
        just_before: bool,
    },
    Back(u64),
    Deny,
    Change(Schedule, CarryOver),
}

fn span() -> impl Strategy<Value = Span> {
    let micros = prop_oneof![
        4 => 1..40u64,
        3 => 1..5_000u64,
        2 => prop::sample::select(vec![1_000_000, 60_000_000, 86_400_000_000]),
        1 => 1..=Span::MAX.as_micros(),
    ];
    micros.prop_map(Span::from_micros)
}

fn schedule() -> impl Strategy<Value = Schedule> {
    let after = prop_oneof![4 => 0..4u32, 1 => Just(u32::MAX)];
    let factor = prop_oneof![1..4u32, 1..=100u32];
    let penalty = prop_oneof![Just(Span::ZERO), span()];
    (after, span(), factor, span(), span(), penalty).prop_map(
        |(after, base, factor, more, forget, penalty)| Schedule {
            after,
            base,
            factor,
            max: base.max(more),
            forget,
            penalty,
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        10 => Just(Step::Deny),
        3 => (0..50u64).prop_map(Step::Wait),
        1 => (0..100_000_000u64).prop_map(Step::Wait),
        3 => any::<bool>().prop_map(|just_before| Step::ToTheEnd { just_before }),
        1 => any::<bool>().prop_map(|just_before| Step::ToOblivion { just_before }),
        1 => (0..100u64).prop_map(Step::Back),
        1 => (0..10_000_000_000u64).prop_map(Step::Back),
        1 => (schedule(), prop::sample::select(CarryOver::ALL.to_vec()))
            .prop_map(|(to, how)| Step::Change(to, how)),
    ]
}

/// A subject under a back-off and under its model.
struct Run {
    backoff: Backoff,
    state: State,
    model: Model,
    now: u64,
}

impl Run {
    fn new(schedule: Schedule) -> Run {
        Run {
            backoff: backoff::new(schedule).unwrap(),
            state: State::default(),
            model: Model::new(schedule),
            now: START,
        }
    }

    fn time(&self) -> Time {
        Time::from_micros(self.now)
    }

    fn blocked_until(&self) -> Option<u64> {
        match self.backoff.decide(&self.state, 1, self.time()).admission {
            Admission::Denied(Denial::Until(at)) => Some(at.as_micros()),
            Admission::Allowed { delay: Span::ZERO } => None,
            other => panic!("{other:?}"),
        }
    }

    fn step(&mut self, step: &Step) {
        let earlier = |just_before: bool| u64::from(just_before);
        let forgotten = self.backoff.expires_at(&self.state).as_micros();
        let to = match *step {
            Step::Wait(micros) => self.now + micros,
            Step::ToTheEnd { just_before } => self
                .blocked_until()
                .map_or(self.now, |at| at - earlier(just_before)),
            Step::ToOblivion { just_before } => {
                forgotten.saturating_sub(earlier(just_before)).max(self.now)
            }
            Step::Back(micros) => self.now - micros,
            Step::Deny => {
                let now = self.time();
                self.backoff.overdraw(&mut self.state, 1, 0, now);
                self.model.record(Event::Denied(self.now));
                self.now
            }
            Step::Change(schedule, how) => {
                let (to, now) = (backoff::new(schedule).unwrap(), self.time());
                to.carry_over(&self.backoff, &mut self.state, how, now);
                self.model.record(Event::Changed(schedule, how, self.now));
                self.backoff = to;
                self.now
            }
        };
        // Stay far from the latest instant, so that no promised instant saturates.
        self.now = to.min(1 << 51);
    }
}

/// Returns an instant as answers show it: at most the latest instant.
fn told(micros: u64) -> u64 {
    Time::from_micros(micros).as_micros()
}

proptest! {
    #![proptest_config(cases(4_000, 100, "tests/proptest-regressions/backoff.txt"))]

    #[test]
    fn answers_as_the_model_does(first in schedule(), steps in prop::collection::vec(step(), 1..60)) {
        let mut run = Run::new(first);
        for step in &steps {
            run.step(step);
            prop_assert_eq!(run.blocked_until(), run.model.blocked_until(run.now).map(told));
            let free = run.backoff.decide(&run.state, 1, run.time()).available;
            prop_assert_eq!(free, run.model.free(run.now));
            let expires = run.backoff.expires_at(&run.state).as_micros();
            prop_assert_eq!(expires, told(run.model.forgotten_at()));
        }
    }

    #[test]
    fn blocks_end_when_promised_and_only_denials_lengthen_them(
        first in schedule(),
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut run = Run::new(first);
        for step in &steps {
            let (_, before, _) = run.state.parts();
            let forgotten = run.backoff.expires_at(&run.state) <= run.time();
            run.step(step);
            let (_, after, last) = run.state.parts();
            let max = run.backoff.schedule().max.as_micros();
            match step {
                Step::Deny => {
                    prop_assert!(after >= before || forgotten, "a denial shortens a block");
                    prop_assert!(after <= before.max(run.now + max), "longer than the longest");
                }
                Step::Change(..) => {
                    prop_assert!(after <= before, "a change lengthens a block");
                    prop_assert!(after <= last.max(run.now) + max);
                }
                _ => prop_assert_eq!(after, before, "the clock alone changes a block"),
            }
            if let Some(until) = run.blocked_until() {
                let at = |micros| run.backoff.decide(&run.state, 1, Time::from_micros(micros));
                prop_assert_eq!(at(until - 1).retry_at(), Some(Time::from_micros(until)));
                prop_assert!(at(until).is_allowed());
            }
        }
    }

    #[test]
    fn only_denials_count_and_are_forgotten_in_time(
        first in schedule(),
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut run = Run::new(first);
        for step in &steps {
            run.step(step);
        }
        let (backoff, before) = (&run.backoff, run.state);
        let mut state = before;
        backoff.charge(&mut state, 7, run.time());
        backoff.refund(&mut state, 7, run.time(), run.time());
        prop_assert_eq!(state, before);
        prop_assert!(backoff.decide(&state, 0, run.time()).is_allowed(), "nothing is asked for");
        // From its expiry on, a state decides like that of a subject never seen.
        let expiry = backoff.expires_at(&state);
        prop_assume!(expiry < Time::MAX);
        let later = expiry.max(run.time());
        let mut fresh = State::default();
        for _ in 0..3 {
            prop_assert_eq!(backoff.decide(&state, 1, later), backoff.decide(&fresh, 1, later));
            backoff.overdraw(&mut state, 1, 0, later);
            backoff.overdraw(&mut fresh, 1, 0, later);
            prop_assert_eq!(state, fresh);
        }
    }
}
