//! Checks a quota's promise. The crate and a model see the same random requests, overdrafts, refunds,
//! corrections and changes. The model goes from period to period.
//!
//! `calendars.rs` checks that the periods are right.
#![allow(clippy::unwrap_used, clippy::panic)] // A failing helper fails its test.

mod cases;

use cases::cases;
use proptest::prelude::*;
use proptest::sample::Index;
use tollgate_core::quota::{self, Quota, State};
use tollgate_core::{
    Admission, Anchor, Balance, Calendar, CarryOver, Denial, Limiting, Span, Time, Unit, Verdict,
    Zone,
};

#[derive(Clone, Debug)]
struct Numbers {
    limit: u64,
    grace: u64,
    rollover: u64,
    calendar: Calendar,
}

impl Numbers {
    fn quota(&self) -> Quota {
        let calendar = self.calendar.clone();
        quota::new(self.limit, self.grace, self.rollover, calendar).unwrap()
    }
}

/// The account of one period, and how many periods have begun since the last event.
#[derive(Clone, Copy, Debug)]
struct Account {
    /// The account counts charges from this instant on.
    since: Time,
    ends_at: Time,
    used: u64,
    extra: u64,
    idle: u32,
}

#[derive(Clone, Debug)]
struct Model {
    numbers: Numbers,
    account: Option<Account>,
}

impl Model {
    /// Moves on to the period of `now`, one period at a time.
    fn at(&self, now: Time) -> Account {
        let calendar = &self.numbers.calendar;
        let period = calendar.period_at(now);
        let fresh = Account {
            since: period.start,
            ends_at: period.end,
            used: 0,
            extra: 0,
            idle: 0,
        };
        let Some(mut account) = self.account else {
            return fresh;
        };
        while now >= account.ends_at {
            let left = (self.numbers.limit + account.extra).saturating_sub(account.used);
            let mut next = calendar.period_at(account.ends_at);
            if next.start < account.ends_at && next.end <= now {
                // The period of the account is of another calendar, and ended in the middle of this period.
                next = calendar.period_at(next.end);
            }
            account = Account {
                since: next.start,
                ends_at: next.end,
                used: 0,
                extra: left.min(self.numbers.rollover),
                idle: account.idle + 1,
            };
        }
        // A subject that was idle for two whole periods counts as new.
        if account.idle > 2 { fresh } else { account }
    }

    fn room(&self, now: Time) -> u64 {
        let (account, numbers) = (self.at(now), &self.numbers);
        (numbers.limit + numbers.grace + account.extra).saturating_sub(account.used)
    }

    fn write(&mut self, now: Time, change: impl FnOnce(&mut Account)) {
        let mut account = self.at(now);
        change(&mut account);
        self.account = Some(Account { idle: 0, ..account });
    }

    fn decide(&self, cost: u64, now: Time) -> Verdict {
        let available = self.room(now);
        let ends_at = self.at(now).ends_at;
        let end_after = |at| self.numbers.calendar.period_at(at).end;
        let ends = [ends_at, end_after(ends_at), end_after(end_after(ends_at))];
        let first = ends.into_iter().find(|at| cost <= self.room(*at));
        let admission = match first {
            _ if cost <= available => Admission::Allowed { delay: Span::ZERO },
            Some(at) => Admission::Denied(Denial::Until(at)),
            None => Admission::Denied(Denial::Never),
        };
        Verdict {
            admission,
            available,
        }
    }

    fn change(&mut self, to: &Numbers, how: CarryOver, now: Time) {
        let from = std::mem::replace(&mut self.numbers, to.clone());
        let Some(mut account) = self.account else {
            return;
        };
        if how == CarryOver::Reset {
            self.account = None;
            return self.write(now, |_| ());
        }
        if now >= account.ends_at {
            // The unused amount is computed with the numbers before the change.
            let before = Numbers {
                calendar: to.calendar.clone(),
                ..from.clone()
            };
            let turned = Model {
                numbers: before,
                account: self.account,
            };
            account = turned.at(now);
            account.extra = account.extra.min(to.rollover);
            account.idle = 0;
        } else if from.calendar != to.calendar {
            account.ends_at = to.calendar.period_at(now).end;
        }
        if how == CarryOver::Proportional && from.limit > 0 && to.limit > 0 {
            let share = (account.used * to.limit).div_ceil(from.limit);
            account.used = share.min(to.limit + to.grace + account.extra);
        }
        self.account = Some(account);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Ask(u64),
    Overdraw(u64, u64),
    Refund(Index, u64),
    Adjust(i64, i64),
    Change(Numbers, CarryOver),
    Forget,
}

#[derive(Clone, Copy, Debug)]
enum Pause {
    None,
    Percent(u32),
    ToTheEnd,
    JustBeforeTheEnd,
    Back(u32),
}

fn numbers() -> impl Strategy<Value = Numbers> {
    let calendars = [
        (1, Unit::Hour, Anchor::First, "Australia/Lord_Howe"),
        (2, Unit::Day, Anchor::First, "Europe/Berlin"),
        (1, Unit::Week, Anchor::Weekday(7), "UTC"),
        (1, Unit::Month, Anchor::Day(31), "America/New_York"),
    ];
    let calendars = calendars.map(|(every, unit, anchor, zone)| {
        Calendar::new(every, unit, anchor, Zone::named(zone).unwrap()).unwrap()
    });
    let amounts = (0..30u64, 0..6u64, prop_oneof![Just(0), 0..12u64]);
    (amounts, prop::sample::select(calendars.to_vec())).prop_map(
        |((limit, grace, rollover), calendar)| Numbers {
            limit,
            grace,
            rollover: rollover.min(limit),
            calendar,
        },
    )
}

fn pause() -> impl Strategy<Value = Pause> {
    prop_oneof![
        6 => Just(Pause::None),
        4 => (0..130u32).prop_map(Pause::Percent),
        1 => (100..500u32).prop_map(Pause::Percent),
        2 => Just(Pause::ToTheEnd),
        2 => Just(Pause::JustBeforeTheEnd),
        1 => (0..180u32).prop_map(Pause::Back),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let how = prop::sample::select(CarryOver::ALL.to_vec());
    prop_oneof![
        10 => (0..20u64).prop_map(Step::Ask),
        2 => (0..40u64, 0..10u64).prop_map(|(cost, most)| Step::Overdraw(cost, most)),
        2 => (any::<Index>(), 1..3u64).prop_map(|(which, part)| Step::Refund(which, part)),
        1 => (-20..20i64, -9..9i64).prop_map(|(used, extra)| Step::Adjust(used, extra)),
        1 => (numbers(), how).prop_map(|(to, how)| Step::Change(to, how)),
        1 => Just(Step::Forget),
    ]
}

/// One subject, counted by the crate and by the model.
struct Run {
    quota: Quota,
    state: Option<State>,
    model: Model,
    now: Time,
    charges: Vec<(u64, Time)>,
}

impl Run {
    fn new(numbers: &Numbers) -> Run {
        Run {
            quota: numbers.quota(),
            state: None,
            model: Model {
                numbers: numbers.clone(),
                account: None,
            },
            now: Time::from_micros(1_700_000_000_000_000),
            charges: Vec::new(),
        }
    }

    fn pause(&mut self, pause: Pause) {
        let part = |percent: u32| {
            Span::from_micros(self.quota.window().as_micros() / 100 * u64::from(percent))
        };
        let end = self.model.at(self.now).ends_at;
        self.now = match pause {
            Pause::None => self.now,
            Pause::Percent(percent) => self.now + part(percent),
            Pause::ToTheEnd => end,
            Pause::JustBeforeTheEnd => Time::from_micros(end.as_micros() - 1),
            Pause::Back(percent) => {
                Time::from_micros(self.now.as_micros() - part(percent).as_micros())
            }
        };
    }

    fn step(&mut self, step: &Step) {
        let (now, quota) = (self.now, self.quota.clone());
        let mut state = self.state.unwrap_or_default();
        match step {
            Step::Ask(cost) => {
                if quota.decide(&state, *cost, now).is_allowed() {
                    quota.charge(&mut state, *cost, now);
                    self.model.write(now, |account| account.used += cost);
                    self.charges.push((*cost, now));
                    self.state = Some(state);
                }
            }
            Step::Overdraw(cost, most) => {
                let capacity = self.model.numbers.limit + self.model.numbers.grace;
                let account = self.model.at(now);
                let deepest = (capacity + account.extra + most).max(account.used);
                let expected = (*cost).min(deepest - account.used);
                let taken = quota.overdraw(&mut state, *cost, *most, now);
                assert_eq!(taken, expected, "overdrawn by {most}");
                self.model.write(now, |account| account.used += expected);
                self.state = Some(state);
            }
            Step::Refund(which, part) => {
                if !self.charges.is_empty() && self.state.is_some() {
                    let (cost, at) = *which.get(&self.charges);
                    quota.refund(&mut state, cost / part, at, now);
                    if let Some(account) = self.model.account.as_mut().filter(|it| at >= it.since) {
                        account.used = account.used.saturating_sub(cost / part);
                    }
                    self.state = Some(state);
                }
            }
            Step::Adjust(used, extra) => {
                if self.state.is_some() {
                    let told = quota.adjust(&mut state, *used, *extra, now);
                    self.model.write(now, |account| {
                        account.used = account.used.saturating_add_signed(*used);
                        account.extra = account.extra.saturating_add_signed(*extra);
                    });
                    assert_eq!(told, balance(self.model.at(now)));
                    self.state = Some(state);
                }
            }
            Step::Change(to, how) => {
                let next = to.quota();
                if self.state.is_some() {
                    next.carry_over(&quota, &mut state, *how, now);
                    self.state = Some(state);
                }
                self.model.change(to, *how, now);
                self.quota = next;
            }
            Step::Forget => {
                // A store may forget an expired state now.
                if quota.expires_at(&state) <= now {
                    self.state = None;
                    self.model.account = None;
                }
            }
        }
    }

    fn same_answers(&self) {
        let state = self.state.unwrap_or_default();
        let available = self.model.room(self.now);
        let most = self.quota.capacity() + self.quota.rollover();
        let capacity = self.quota.capacity();
        for cost in [
            0,
            1,
            available,
            available + 1,
            capacity,
            capacity + 1,
            most,
            most + 1,
        ] {
            let verdict = self.quota.decide(&state, cost, self.now);
            let expected = self.model.decide(cost, self.now);
            assert_eq!(
                verdict, expected,
                "{cost} at {:?}; {:#?}",
                self.now, self.model
            );
            if let Some(at) = verdict.retry_at() {
                let before = Time::from_micros(at.as_micros() - 1);
                assert!(!self.quota.decide(&state, cost, before).is_allowed());
                assert!(self.quota.decide(&state, cost, at).is_allowed());
            }
        }
        let told = self.quota.balance(&state, self.now);
        assert_eq!(told, balance(self.model.at(self.now)));
        // An expired state decides like that of a subject never seen. A state lasts at least to the end of
        // its period.
        let expiry = self.quota.expires_at(&state);
        assert!(expiry >= Time::from_micros(state.parts().1));
        for cost in [1, capacity, capacity + 1] {
            for at in [expiry, expiry + Span::DAY] {
                let fresh = self.quota.decide(&State::default(), cost, at);
                assert_eq!(self.quota.decide(&state, cost, at), fresh, "at {at:?}");
            }
        }
    }
}

fn balance(account: Account) -> Balance {
    Balance {
        ends_at: account.ends_at,
        used: account.used,
        extra: account.extra,
    }
}

proptest! {
    #![proptest_config(cases(1_500, 50, "tests/proptest-regressions/quotas.txt"))]

    #[test]
    fn answers_as_the_model_does(
        first in numbers(),
        history in prop::collection::vec((pause(), step()), 1..40),
    ) {
        let mut run = Run::new(&first);
        for (pause, step) in &history {
            run.pause(*pause);
            run.step(step);
            run.same_answers();
        }
    }

    /// Checks the promise for any clock that moves forward.
    #[test]
    fn admits_its_limit_its_grace_and_what_was_carried_over_in_each_period(
        numbers in numbers(),
        asks in prop::collection::vec((pause(), 0..20u64), 1..120),
    ) {
        let (mut run, mut admitted) = (Run::new(&numbers), std::collections::BTreeMap::new());
        for (pause, cost) in asks {
            if !matches!(pause, Pause::Back(_)) {
                run.pause(pause);
            }
            let before = run.charges.len();
            run.step(&Step::Ask(cost));
            if run.charges.len() > before {
                *admitted.entry(numbers.calendar.period_at(run.now).start).or_insert(0) += cost;
            }
        }
        let most = numbers.limit + numbers.grace + numbers.rollover;
        prop_assert!(admitted.values().all(|sum| *sum <= most), "{:?}", admitted);
        // Only unused amounts are carried over, so the sum over all periods is at most the sum of the limits.
        let limits = numbers.limit + numbers.grace;
        let (first, last) = (admitted.keys().next(), admitted.keys().last());
        if let (Some(first), Some(last)) = (first, last) {
            let (mut at, mut periods) = (*first, 1);
            while at < *last {
                at = numbers.calendar.period_at(at).end;
                periods += 1;
            }
            prop_assert!(admitted.values().sum::<u64>() <= periods * limits);
        }
    }
}

#[test]
fn a_new_limit_in_mid_period_acts_at_once() {
    let days = Calendar::new(1, Unit::Day, Anchor::First, Zone::utc()).unwrap();
    let [five, ten] = [5, 10].map(|limit| quota::new(limit, 0, 0, days.clone()).unwrap());
    let (mut state, now) = (State::default(), Time::from_micros(1_700_000_000_000_000));
    five.charge(&mut state, 5, now);
    ten.carry_over(&five, &mut state, CarryOver::Keep, now);
    assert_eq!(ten.decide(&state, 1, now).available, 5);
    five.carry_over(&ten, &mut state, CarryOver::Proportional, now);
    assert_eq!(five.decide(&state, 1, now).available, 2);
}

#[test]
fn the_largest_numbers_are_counted_exactly() {
    const MOST: u64 = tollgate_core::MAX_AMOUNT;
    let days = Calendar::new(1, Unit::Day, Anchor::First, Zone::utc()).unwrap();
    let quota = quota::new(MOST, 0, 0, days.clone()).unwrap();
    let (mut state, now) = (State::default(), Time::from_micros(1_700_000_000_000_000));
    quota.adjust(&mut state, 0, i64::MAX, now);
    quota.charge(&mut state, 2 * MOST, now);
    assert_eq!(quota.overdraw(&mut state, u64::MAX, u64::MAX, now), 1);
    assert_eq!(state.parts().2, (1 << 53) - 1);
    assert!(quota::new(MOST, 1, 0, days.clone()).is_err());
    assert!(quota::new(1, MOST, 0, days.clone()).is_err());
    assert!(quota::new(u64::MAX, u64::MAX, u64::MAX, days).is_err());
}

/// Returns an hour of a day in November 2026, in UTC.
fn november(day: u64, hour: u64) -> Time {
    Time::from_micros((1_793_491_200 + ((day - 1) * 24 + hour) * 3600) * 1_000_000)
}

fn each(unit: Unit, zone: &str) -> Calendar {
    Calendar::new(1, unit, Anchor::First, Zone::named(zone).unwrap()).unwrap()
}

#[test]
fn a_refund_after_a_change_of_calendar_counts_if_its_charge_did() {
    let daily = quota::new(100, 0, 0, each(Unit::Day, "UTC")).unwrap();
    let monthly = quota::new(100, 0, 0, each(Unit::Month, "UTC")).unwrap();
    let mut state = State::default();
    daily.charge(&mut state, 60, november(1, 12));
    daily.charge(&mut state, 10, november(2, 12));
    monthly.carry_over(&daily, &mut state, CarryOver::Keep, november(2, 13));
    monthly.charge(&mut state, 50, november(2, 13));
    // Refund a charge of a day that had ended before the change.
    monthly.refund(&mut state, 60, november(1, 12), november(2, 14));
    assert_eq!(monthly.balance(&state, november(2, 14)).used, 60);
    // Refund a charge of the day of the change.
    monthly.refund(&mut state, 10, november(2, 12), november(2, 14));
    assert_eq!(monthly.balance(&state, november(2, 14)).used, 50);

    let elsewhere = quota::new(100, 0, 0, each(Unit::Day, "America/New_York")).unwrap();
    let mut state = State::default();
    daily.charge(&mut state, 60, november(3, 1));
    elsewhere.carry_over(&daily, &mut state, CarryOver::Keep, november(3, 6));
    elsewhere.refund(&mut state, 60, november(3, 1), november(3, 7));
    assert_eq!(elsewhere.balance(&state, november(3, 7)).used, 0);
}

#[test]
fn a_refund_after_the_end_of_its_period_is_carried_over() {
    let daily = quota::new(100, 0, 50, each(Unit::Day, "UTC")).unwrap();
    let mut state = State::default();
    daily.charge(&mut state, 90, november(1, 12));
    daily.refund(&mut state, 60, november(1, 12), november(2, 1));
    assert_eq!(daily.balance(&state, november(2, 1)).extra, 50);
}

#[test]
fn the_rest_of_a_period_is_carried_over_by_its_own_numbers() {
    let of = |limit| quota::new(limit, 0, 50, each(Unit::Day, "UTC")).unwrap();
    for (before, after, used, extra) in [(100, 200, 100, 0), (200, 50, 160, 40), (200, 20, 0, 20)] {
        let (before, after) = (of(before), of(after));
        let mut state = State::default();
        before.charge(&mut state, used, november(1, 12));
        after.carry_over(&before, &mut state, CarryOver::Keep, november(2, 1));
        assert_eq!(after.balance(&state, november(2, 1)).extra, extra);
    }
}

#[test]
fn a_closed_quota_admits_nothing_and_keeps_its_counts() {
    let open = quota::new(100, 10, 50, each(Unit::Day, "UTC")).unwrap();
    let closed = open.closed();
    let (mut state, now) = (State::default(), november(1, 12));
    open.adjust(&mut state, 300, 10_000, now);
    closed.carry_over(&open, &mut state, CarryOver::Keep, now);
    let verdict = closed.decide(&state, 1, now);
    assert_eq!(verdict.admission, Admission::Denied(Denial::Never));
    assert_eq!(
        (verdict.available, closed.capacity(), closed.limit()),
        (0, 0, 0)
    );
    assert!(closed.decide(&state, 0, now).is_allowed());
    open.carry_over(&closed, &mut state, CarryOver::Keep, now);
    assert_eq!(open.decide(&state, 1, now).available, 9_810);
}

#[test]
fn a_scaled_limit_can_be_configured() {
    use tollgate_core::Limit;
    let days = each(Unit::Day, "UTC");
    let most = tollgate_core::MAX_AMOUNT;
    let limits = [
        Limit::quota(1000, 100, 100, days.clone()).unwrap(),
        Limit::quota(most - 20, 10, 10, days.clone()).unwrap(),
        Limit::Quota(quota::new(7, 1, 1, days).unwrap().closed()),
        Limit::concurrency(20_000, Span::SECOND).unwrap(),
    ];
    for limit in limits {
        for (part, whole) in [(1, 10), (10, 1), (3, 7)] {
            let scaled = limit.scaled(part, whole);
            match &scaled {
                Limit::Quota(it) => {
                    let [limit, grace, rollover] = it.numbers();
                    let again = quota::new(limit, grace, rollover, it.calendar().clone()).unwrap();
                    let again = if it.is_closed() {
                        again.closed()
                    } else {
                        again
                    };
                    assert_eq!(*it, again);
                }
                Limit::Concurrency(it) => {
                    let again = Limit::concurrency(it.limit(), it.lease());
                    assert_eq!(again.as_ref(), Ok(&scaled));
                }
                other => panic!("{other:?} is neither"),
            }
        }
    }
}

#[test]
fn the_rollover_is_scaled_too() {
    let days = each(Unit::Day, "UTC");
    let limit = tollgate_core::Limit::quota(1000, 50, 100, days).unwrap();
    let tollgate_core::Limit::Quota(scaled) = limit.scaled(1, 10) else {
        panic!("a quota stays a quota");
    };
    assert_eq!(scaled.numbers(), [100, 5, 10]);
}
