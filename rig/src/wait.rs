//! Waits for a condition by polling, never for a fixed time.

use std::thread;
use std::time::Duration;

use crate::stopwatch::Stopwatch;

/// The pause between two polls.
const PAUSE: Duration = Duration::from_millis(5);

/// Calls `poll` until it returns a value; returns `None` after `limit`. Calls it at least once.
pub fn at_most<T>(limit: Duration, mut poll: impl FnMut() -> Option<T>) -> Option<T> {
    let stopwatch = Stopwatch::start();
    loop {
        let found = poll();
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
/// After `limit`; the message contains `what`.
pub fn until(what: &str, limit: Duration, mut condition: impl FnMut() -> bool) {
    let held = at_most(limit, || condition().then_some(()));
    assert!(held.is_some(), "not within {limit:?}: {what}");
}
