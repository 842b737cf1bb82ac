//! A clock that can be set back.

use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::{Clock, Span, SystemClock, Time};

/// The machine's time, less what it was set back by.
///
/// The step comes after [`SystemClock`], which would spread one of ten seconds over hours.
#[derive(Debug, Default)]
pub struct OffsetClock {
    clock: SystemClock,
    back: AtomicU64,
}

impl OffsetClock {
    /// Sets it back by `span`, at once.
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
