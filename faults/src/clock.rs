//! A clock that can be set back.

use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::{Clock, Span, SystemClock, Time};

/// The time of the machine, minus the offset by which the clock was set back.
///
/// The offset is applied after [`SystemClock`], which would spread a step of ten seconds over hours.
#[derive(Debug, Default)]
pub struct OffsetClock {
    clock: SystemClock,
    back: AtomicU64,
}

impl OffsetClock {
    /// Sets the clock back by `span` at once.
    pub fn set_back(&self, span: Span) {
        self.back.fetch_add(span.as_micros(), Ordering::SeqCst);
    }
}

impl Clock for OffsetClock {
    fn now(&self) -> Time {
        let back = self.back.load(Ordering::SeqCst);
        Time::from_micros(self.clock.now().as_micros().saturating_sub(back))
    }
}
