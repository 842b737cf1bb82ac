//! Waiting for a condition by asking again and again, never for a fixed time.

use std::thread;
use std::time::Duration;

use crate::stopwatch::Stopwatch;

/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(5);

/// The first value that `look` finds, or `None` after `limit`. It looks at least once.
pub fn at_most<T>(limit: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let stopwatch = Stopwatch::start();
    loop {
        let found = look();
        if found.is_some() || stopwatch.elapsed() >= limit {
            return found;
        }
        thread::sleep(PAUSE);
    }
}

/// Waits until `condition` holds.
///
/// # Panics
///
/// After `limit`; the message names `what` was waited for.
pub fn until(what: &str, limit: Duration, mut condition: impl FnMut() -> bool) {
    let held = at_most(limit, || condition().then_some(()));
    assert!(held.is_some(), "waited {limit:?} in vain: {what}");
}
