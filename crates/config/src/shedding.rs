//! The `adaptive` section of an upstream: how many requests it gets at the same time, and how much of that less
//! important requests may use.

use tollgate_core::adaptive::{MAX_LIMIT, Numbers, check_reserve};
use tollgate_rules::Slowness;
use tollgate_rules::document::{
    Flag, Node, Percent, Problems, Read, Value, Whole, schema, section,
};

use crate::fields::number_in;

/// The adaptive limit of an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Adaptive {
    /// The numbers of the limit.
    pub numbers: Numbers,
    /// The percentage of the limit that the least important requests may not use (default 30).
    pub reserve: u64,
}

impl Default for Adaptive {
    fn default() -> Adaptive {
        Adaptive {
            numbers: Numbers::default(),
            reserve: 30,
        }
    }
}

section! {
    /// A limit on the requests in flight to an upstream that follows its latency. Requests beyond it get 503.
    pub(crate) struct RawAdaptive is "`adaptive`" {
        /// The least limit, 1 to 1000000 (default 5).
        min: Whole = "min",
        /// The largest limit, 1 to 1000000 (default 1000).
        max: Whole = "max",
        /// The limit at the start (default 20). It doubles until the upstream is slow for the first time.
        start: Whole = "start",
        /// Which latency is slow: a percentage of the latency without load, 110% to 1000%, or a duration (default 200%).
        slow: Slowness = "slow",
        /// The part of the limit that the least important requests may not use, 0% to 50% (default 30%).
        reserve: Percent = "reserve",
    }
}

/// `true`, or the fields of `adaptive`; `None` for `false`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GivenAdaptive(pub(crate) Option<Adaptive>);

impl Read for GivenAdaptive {
    fn read(node: &Node, problems: &mut Problems<'_>) -> Option<GivenAdaptive> {
        if !matches!(&node.value, Value::Map(_)) {
            let Flag(is_adaptive) = Flag::read(node, problems)?;
            return Some(GivenAdaptive(is_adaptive.then(Adaptive::default)));
        }
        let raw = RawAdaptive::read(node, problems)?;
        let mut adaptive = Adaptive::default();
        let numbers = &mut adaptive.numbers;
        number_in(&raw.max, &mut numbers.max, 1..=MAX_LIMIT, problems);
        numbers.min = numbers.min.min(numbers.max);
        number_in(&raw.min, &mut numbers.min, 1..=numbers.max, problems);
        numbers.start = numbers.start.clamp(numbers.min, numbers.max);
        let most = numbers.min..=numbers.max;
        number_in(&raw.start, &mut numbers.start, most, problems);
        if let Some(Slowness(slow)) = raw.slow.value() {
            numbers.slow = *slow;
        }
        if let Some(at) = raw.reserve.get() {
            adaptive.reserve = u64::from(at.value.0 / 100);
            if check_reserve(adaptive.reserve).is_err() || at.value.0 % 100 != 0 {
                let message = "`reserve` is not a whole percentage from 0% to 50%";
                problems.report(at.place, message, "write a percentage such as 30%");
            }
        }
        Some(GivenAdaptive(Some(adaptive)))
    }
}

schema!(GivenAdaptive, "Adaptive", generator => {
    "anyOf": [generator.subschema_for::<Flag>(), generator.subschema_for::<RawAdaptive>()],
});
