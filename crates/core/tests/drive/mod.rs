//! Sends the same events of one subject to a limit and to its model, side by side.

pub(crate) mod laws;
pub(crate) mod numbers;
pub(crate) mod steps;

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use tollgate_core::{CarryOver, Limiting, MAX_AMOUNT, Time, Verdict};

use crate::model::{Event, Model, Reference};
use steps::{Cost, Pause, Step};

/// No test goes beyond this instant, so that no promised instant saturates at [`Time::MAX`].
const LATEST: u64 = 1 << 51;

/// Numbers that make both a limit of the crate and its model.
pub(crate) trait Proven: Reference {
    type Limit: Limiting;

    /// Returns the limit, or `None` if the crate rejects the numbers.
    fn limit(&self) -> Option<Self::Limit>;

    /// Returns the same numbers with another capacity.
    fn resized(&self, capacity: u64) -> Self;
}

/// A subject, its limit and its model.
#[derive(Clone)]
pub(crate) struct Run<N: Proven> {
    pub(crate) limit: N::Limit,
    pub(crate) state: <N::Limit as Limiting>::State,
    pub(crate) numbers: N,
    pub(crate) now: u64,
    model: Model<N>,
    /// The instant that the latest denial promised.
    promised: Option<u64>,
    /// Every charge: its cost and instant.
    pub(crate) charges: Vec<(u64, u64)>,
}

impl<N: Proven> Run<N> {
    pub(crate) fn new(numbers: &N, now: u64) -> Run<N> {
        Run {
            limit: numbers
                .limit()
                .expect("only numbers the crate accepts are generated"),
            state: Default::default(),
            numbers: numbers.clone(),
            now,
            model: Model::new(numbers.clone()),
            promised: None,
            charges: Vec::new(),
        }
    }

    pub(crate) fn time(&self) -> Time {
        Time::from_micros(self.now)
    }

    /// Returns the crate's answer now.
    pub(crate) fn decide(&self, cost: u64) -> Verdict {
        self.limit.decide(&self.state, cost, self.time())
    }

    /// Returns the crate's answer at the instant `at`, if nothing is charged until then.
    pub(crate) fn decide_at(&self, cost: u64, at: Time) -> Verdict {
        self.limit.decide(&self.state, cost, at)
    }

    /// Asks for `cost`, and charges it if it is admitted.
    pub(crate) fn ask(&mut self, cost: u64) -> Verdict {
        let verdict = self.decide(cost);
        if verdict.is_allowed() {
            self.limit
                .charge(&mut self.state, cost, Time::from_micros(self.now));
            self.model.record(Event::Charged(cost), self.now);
            self.charges.push((cost, self.now));
        } else if let Some(at) = verdict.retry_at() {
            self.promised = Some(at.as_micros());
        }
        verdict
    }

    /// Overdraws, and checks that the amount left falls by as much as the crate says.
    pub(crate) fn overdraw(&mut self, cost: u64, most: u64) {
        let now = Time::from_micros(self.now);
        let before = self.model.left(self.now);
        let taken = self.limit.overdraw(&mut self.state, cost, most, now);
        self.model.record(Event::Overdrawn(cost, most), self.now);
        let after = self.model.left(self.now);
        assert_eq!(i128::from(taken), before - after, "{:#?}", self.model);
    }

    pub(crate) fn refund(&mut self, cost: u64, charged_at: u64) {
        let (charged, now) = (Time::from_micros(charged_at), Time::from_micros(self.now));
        self.limit.refund(&mut self.state, cost, charged, now);
        self.model
            .record(Event::Refunded(cost, charged_at), self.now);
    }

    pub(crate) fn change(&mut self, to: &N, how: CarryOver) {
        let limit = to
            .limit()
            .expect("only numbers the crate accepts are generated");
        let now = Time::from_micros(self.now);
        limit.carry_over(&self.limit, &mut self.state, how, now);
        self.model.record(Event::Changed(to.clone(), how), self.now);
        (self.limit, self.numbers) = (limit, to.clone());
    }

    pub(crate) fn after(numbers: &N, start: u64, history: &[Step<N>]) -> Run<N> {
        let mut run = Run::new(numbers, start);
        for step in history {
            run.step(step);
        }
        run
    }

    pub(crate) fn step(&mut self, step: &Step<N>) {
        match step {
            Step::Ask {
                pause,
                cost,
                overdraft,
            } => {
                self.pause(*pause);
                let cost = self.cost(*cost);
                if !self.ask(cost).is_allowed()
                    && let Some(most) = *overdraft
                {
                    self.overdraw(cost, self.cost(most));
                }
            }
            Step::Refund { pause, which, part } => {
                self.pause(*pause);
                if !self.charges.is_empty() {
                    let (cost, charged_at) = *which.get(&self.charges);
                    self.refund(cost / part, charged_at);
                }
            }
            Step::Change { pause, to, how } => {
                self.pause(*pause);
                self.change(to, *how);
            }
        }
    }

    pub(crate) fn pause(&mut self, pause: Pause) {
        let window = u128::from(self.limit.window().as_micros());
        let part = |part: u128, of: u64| u64::try_from(window * part / u128::from(of)).unwrap_or(0);
        let token = |count: u32| part(count.into(), self.limit.capacity().max(1));
        let now = match pause {
            Pause::None => self.now,
            Pause::Micros(micros) => self.now + micros,
            Pause::Tokens(count) => self.now + token(count),
            Pause::Windows(percent) => self.now + part(percent.into(), 100),
            Pause::UntilPromised => self.promised.map_or(self.now, |at| at.max(self.now)),
            Pause::UntilJustBefore => self.promised.map_or(self.now, |at| (at - 1).max(self.now)),
            Pause::Back(micros) => self.now.saturating_sub(micros),
            Pause::BackWindows(percent) => self.now.saturating_sub(part(percent.into(), 100)),
        };
        self.now = now.min(LATEST);
    }

    pub(crate) fn cost(&self, cost: Cost) -> u64 {
        let capacity = self.limit.capacity();
        match cost {
            Cost::Exactly(cost) => cost,
            Cost::Percent(percent) => capacity / 100 * percent + capacity % 100 * percent / 100,
            Cost::Capacity => capacity,
            Cost::JustAbove => capacity + 1,
            Cost::Huge => MAX_AMOUNT,
        }
    }

    /// Checks that crate and model give the same answers for several costs, and the same expiry.
    pub(crate) fn same_answers(&self) -> TestCaseResult {
        let capacity = self.limit.capacity();
        let available = self.decide(0).available;
        for cost in [0, 1, available, available + 1, capacity, capacity + 1] {
            prop_assert_eq!(
                self.decide(cost),
                self.model.decide(cost, self.now),
                "crate (left) and model (right), asked for {} at {}; {:#?}",
                cost,
                self.now,
                self.model
            );
        }
        prop_assert_eq!(
            self.limit.expires_at(&self.state),
            self.model.expires_at(),
            "expiry by crate (left) and model (right); {:#?}",
            self.model
        );
        Ok(())
    }
}
