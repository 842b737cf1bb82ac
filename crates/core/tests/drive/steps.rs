//! Makes random events. Their time and amount are relative to the numbers of the limit under test.

use std::fmt::Debug;

use proptest::prelude::*;
use proptest::sample::Index;
use tollgate_core::CarryOver;

#[derive(Clone, Debug)]
pub(crate) enum Step<N> {
    Ask {
        pause: Pause,
        cost: Cost,
        /// The most that a denied request may overdraw; `None` if a denied request is not charged.
        overdraft: Option<Cost>,
    },
    /// Gives back one of the charges so far, or a part of it.
    Refund {
        pause: Pause,
        which: Index,
        part: u64,
    },
    Change {
        pause: Pause,
        to: N,
        how: CarryOver,
    },
}

/// How the clock moves before an event.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pause {
    None,
    Micros(u64),
    /// About the time in which this many tokens refill.
    Tokens(u32),
    /// This many percent of a window.
    Windows(u32),
    UntilPromised,
    UntilJustBefore,
    Back(u64),
    BackWindows(u32),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Cost {
    Exactly(u64),
    Percent(u64),
    Capacity,
    JustAbove,
    Huge,
}

/// Makes a start instant: the epoch, an instant soon after it, or an instant of today.
pub(crate) fn start() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        0..5_000_000u64,
        1_700_000_000_000_000..1_700_000_100_000_000u64
    ]
}

pub(crate) fn cost() -> impl Strategy<Value = Cost> {
    prop_oneof![
        6 => (0..4u64).prop_map(Cost::Exactly),
        6 => (0..=100u64).prop_map(Cost::Percent),
        2 => Just(Cost::Capacity),
        1 => Just(Cost::JustAbove),
        1 => Just(Cost::Huge),
    ]
}

/// How a clock behaves.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Clock {
    /// The clock stands still or moves on.
    Onwards,
    /// The clock also steps back.
    Wandering,
}

impl Clock {
    fn pause(self) -> BoxedStrategy<Pause> {
        match self {
            Clock::Onwards => onwards().boxed(),
            Clock::Wandering => anywhere().boxed(),
        }
    }
}

fn onwards() -> impl Strategy<Value = Pause> {
    prop_oneof![
        6 => Just(Pause::None),
        3 => (0..4u64).prop_map(Pause::Micros),
        1 => (0..3000u64).prop_map(Pause::Micros),
        3 => (0..4u32).prop_map(Pause::Tokens),
        4 => (0..=110u32).prop_map(Pause::Windows),
        1 => (100..=100_000u32).prop_map(Pause::Windows),
        2 => Just(Pause::UntilPromised),
        2 => Just(Pause::UntilJustBefore),
    ]
}

fn anywhere() -> impl Strategy<Value = Pause> {
    prop_oneof![
        8 => onwards(),
        1 => (0..4u64).prop_map(Pause::Back),
        1 => (0..250u32).prop_map(Pause::BackWindows),
        1 => (0..5_000_000u64).prop_map(Pause::Back),
    ]
}

/// Makes a random history, with overdrafts after denials, with refunds, and with changes of numbers.
pub(crate) fn history<N: Clone + Debug>(
    clock: Clock,
    numbers: impl Strategy<Value = N>,
) -> impl Strategy<Value = Vec<Step<N>>> {
    let most = prop_oneof![3 => Just(Cost::Exactly(0)), 1 => cost()];
    let ask = (clock.pause(), cost(), prop::option::weighted(0.2, most)).prop_map(
        |(pause, cost, overdraft)| Step::Ask {
            pause,
            cost,
            overdraft,
        },
    );
    let refund = (clock.pause(), any::<Index>(), 1..3u64)
        .prop_map(|(pause, which, part)| Step::Refund { pause, which, part });
    let how = prop::sample::select(CarryOver::ALL.to_vec());
    let change =
        (clock.pause(), numbers, how).prop_map(|(pause, to, how)| Step::Change { pause, to, how });
    prop::collection::vec(prop_oneof![10 => ask, 2 => refund, 1 => change], 1..40)
}

/// Makes random requests, without refunds or changes.
pub(crate) fn asks(clock: Clock) -> impl Strategy<Value = Vec<(Pause, Cost)>> {
    prop::collection::vec((clock.pause(), cost()), 1..120)
}
