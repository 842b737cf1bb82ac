//! Bounded waiting, as a config describes it: how long a request may wait for its turn under a rule, and how
//! many requests may wait. `tollgate` has the queues.

use tollgate_core::Span;

use crate::document::{Duration, Field, Problems, Whole};

/// The longest `max_wait`.
pub const LONGEST_MAX_WAIT: Span = Span::from_secs(30);
/// The largest `max_waiting`.
pub const LARGEST_MAX_WAITING: u32 = 100_000;
/// The default `max_waiting`.
pub const DEFAULT_MAX_WAITING: u32 = 1_000;

/// How long requests may wait for their turn under a rule, and how many of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The longest wait of a request.
    pub max_wait: Span,
    /// The most requests that wait for one bucket in one instance.
    pub max_waiting: u32,
}

impl Waiting {
    pub(crate) fn of(max_wait: Option<Duration>, max_waiting: Option<Whole>) -> Option<Waiting> {
        let most = max_waiting.map(|it| u32::try_from(it.0).unwrap_or(LARGEST_MAX_WAITING));
        Some(Waiting {
            max_wait: max_wait?.0,
            max_waiting: most.unwrap_or(DEFAULT_MAX_WAITING),
        })
    }
}

/// Reports a wait or a queue that is out of bounds.
pub(crate) fn check(
    max_wait: &Field<Duration>,
    max_waiting: &Field<Whole>,
    problems: &mut Problems<'_>,
) {
    if let Some(at) = max_wait.get() {
        let wait = at.value.0;
        if !(Span::from_millis(1)..=LONGEST_MAX_WAIT).contains(&wait) {
            let message = format!("{wait} is not between 1ms and {LONGEST_MAX_WAIT}");
            let help = "write how long a request may wait for its turn, such as 200ms";
            problems.report(at.place, message, help);
        }
    }
    if let Some(at) = max_waiting.get() {
        let most = at.value.0;
        if !(1..=u64::from(LARGEST_MAX_WAITING)).contains(&most) {
            let message = format!("{most} is not between 1 and {LARGEST_MAX_WAITING}");
            let help = "write how many requests may wait for one bucket, such as 1000";
            problems.report(at.place, message, help);
        }
    }
    if let (Some(key), true) = (max_waiting.key(), max_wait.is_absent()) {
        let message = "`max_waiting` without `max_wait` has no effect";
        let help = "add `max_wait: 200ms`, or remove `max_waiting`";
        problems.report(key, message, help);
    }
}
