//! An adaptive limit, as a config describes it: its least value, and which latency is slow.

use std::fmt;

use tollgate_core::Span;
use tollgate_core::adaptive::{Slow, TIMES};

use crate::document::{
    BadValue, Flag, Node, Problems, Read, Text, Value, Whole, percent, section, span,
};
use crate::schema;

/// How a concurrency limit follows the latency that clients report. The limit of the rule is the largest value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Adaptation {
    pub(crate) min: u64,
    pub(crate) slow: Slow,
}

/// The least limit, unless the config says otherwise.
const MIN: u64 = 5;
/// The longest latency that a config may call slow.
const SLOWEST: Span = Span::HOUR;

impl Adaptation {
    /// The least limit. If the limit of the rule is lower, that one counts.
    #[must_use]
    pub fn min(&self) -> u64 {
        self.min
    }

    /// Which latency is slow.
    #[must_use]
    pub fn slow(&self) -> Slow {
        self.slow
    }
}

impl Default for Adaptation {
    fn default() -> Adaptation {
        Adaptation {
            min: MIN,
            slow: Slow::Percent(200),
        }
    }
}

/// Shows an adaptation as `explain` and a comparison of configs tell it.
impl fmt::Display for Adaptation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "from {}, slow above ", self.min)?;
        match self.slow {
            Slow::Percent(percent) => write!(f, "{percent}% of the unloaded latency"),
            Slow::Above(span) => write!(f, "{span}"),
        }
    }
}

section! {
    /// A concurrency limit that follows the latency that clients report.
    pub(crate) struct RawAdaptation is "`adaptive`" {
        /// The least limit (default 5). The limit of the rule is the largest.
        min: Whole = "min",
        /// Which latency is slow: a percentage of the latency without load, 110% to 1000%, or a duration (default 200%).
        slow: Slowness = "slow",
    }
}

/// `true`, or the fields of `adaptive`; `None` for `false`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GivenAdaptation(pub(crate) Option<Adaptation>);

impl Read for GivenAdaptation {
    fn read(node: &Node, problems: &mut Problems<'_>) -> Option<GivenAdaptation> {
        if !matches!(&node.value, Value::Map(_)) {
            let Flag(is_adaptive) = Flag::read(node, problems)?;
            return Some(GivenAdaptation(is_adaptive.then(Adaptation::default)));
        }
        let raw = RawAdaptation::read(node, problems)?;
        let mut adaptation = Adaptation::default();
        if let Some(at) = raw.min.get() {
            adaptation.min = at.value.0;
            if at.value.0 == 0 {
                let help =
                    "write at least 1: a limit of 0 would never learn that the service is back";
                problems.report(at.place, "a `min` of 0 admits nothing", help);
            }
        }
        if let Some(Slowness(slow)) = raw.slow.value() {
            adaptation.slow = *slow;
        }
        Some(GivenAdaptation(Some(adaptation)))
    }
}

schema!(GivenAdaptation, "Adaptation", generator => {
    "anyOf": [generator.subschema_for::<Flag>(), generator.subschema_for::<RawAdaptation>()],
});

/// Which latency is slow: a percentage such as `200%`, or a duration such as `250ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slowness(pub Slow);

impl Read for Slowness {
    fn read(node: &Node, problems: &mut Problems<'_>) -> Option<Slowness> {
        let Text(text) = Text::read(node, problems)?;
        problems.accept(node.place, slowness(&text)).map(Slowness)
    }
}

schema!(Slowness, "Slowness", _generator => {
    "type": "string",
    "pattern": "^[0-9]+(_[0-9]+)*(%|us|ms|s|m|h)$",
    "examples": ["200%", "250ms"],
});

fn slowness(text: &str) -> Result<Slow, BadValue> {
    let help = format!(
        "write a percentage from {}% to {}%, or a duration such as 250ms",
        TIMES.start(),
        TIMES.end()
    );
    if text.ends_with('%') {
        let hundredths = u64::from(percent(text, u32::MAX / 100)?);
        let whole = hundredths / 100;
        return match hundredths % 100 == 0 && TIMES.contains(&whole) {
            true => Ok(Slow::Percent(whole)),
            false => Err(BadValue::new(format!("`{text}` is out of range"), help)),
        };
    }
    match span(text)? {
        span if span > Span::ZERO && span <= SLOWEST => Ok(Slow::Above(span)),
        _ => Err(BadValue::new(format!("`{text}` is out of range"), help)),
    }
}
