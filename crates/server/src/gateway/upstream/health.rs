//! Whether a server of an upstream works: what requests and checks have found.
//!
//! A server is out after [`MAX_FAILURES`] failed requests in a row, for [`EJECTED_FOR`]. After that, the next
//! request tries it again. A server with health checks is also out after as many failed checks in a row,
//! until [`GOOD_CHECKS`] checks in a row were good.

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::gateway::bounds::{EJECTED_FOR, GOOD_CHECKS, MAX_FAILURES};

/// What is known of a server.
#[derive(Default)]
pub(crate) struct Health(Mutex<Known>);

#[derive(Default)]
struct Known {
    failed_requests: u32,
    ejected_until: Option<Instant>,
    failed_checks: u32,
    good_checks: u32,
    is_down: bool,
}

impl Health {
    /// Returns whether requests may go to the server.
    pub(crate) fn is_up(&self, now: Instant) -> bool {
        let known = self.0.lock();
        !known.is_down && known.ejected_until.is_none_or(|until| until <= now)
    }

    /// Notes that the server answered a request.
    #[inline]
    pub(crate) fn answered(&self) {
        let mut known = self.0.lock();
        known.failed_requests = 0;
        known.ejected_until = None;
    }

    /// Notes that the server did not answer a request. Returns whether this takes the server out.
    pub(crate) fn failed(&self, now: Instant) -> bool {
        let mut known = self.0.lock();
        known.failed_requests = known.failed_requests.saturating_add(1);
        let is_out = known.failed_requests >= MAX_FAILURES;
        if is_out {
            known.ejected_until = Some(now + EJECTED_FOR);
        }
        is_out
    }

    /// Notes the result of a check. Returns whether the server went out or came back, if it did.
    pub(crate) fn checked(&self, is_good: bool) -> Option<bool> {
        let mut known = self.0.lock();
        if !is_good {
            known.good_checks = 0;
            known.failed_checks = known.failed_checks.saturating_add(1);
            if known.failed_checks < MAX_FAILURES || known.is_down {
                return None;
            }
            known.is_down = true;
            return Some(false);
        }
        known.failed_checks = 0;
        known.good_checks = known.good_checks.saturating_add(1);
        if !known.is_down || known.good_checks < GOOD_CHECKS {
            return None;
        }
        known.is_down = false;
        known.failed_requests = 0;
        known.ejected_until = None;
        Some(true)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn server_is_out_for_a_while_after_failures_in_a_row() {
        let (health, start) = (Health::default(), Instant::now());
        assert!(!health.failed(start) && !health.failed(start));
        health.answered();
        assert!(!health.failed(start) && !health.failed(start) && health.is_up(start));
        assert!(health.failed(start) && !health.is_up(start));
        let later = start + EJECTED_FOR;
        assert!(!health.is_up(later - Duration::from_millis(1)) && health.is_up(later));
        // One more failure, and the server is out again.
        assert!(health.failed(later) && !health.is_up(later));
        health.answered();
        assert!(health.is_up(later));
    }

    #[tokio::test(start_paused = true)]
    async fn checks_take_a_server_out_and_bring_it_back() {
        let (health, now) = (Health::default(), Instant::now());
        assert_eq!([true, false, false].map(|it| health.checked(it)), [None; 3]);
        assert_eq!(health.checked(false), Some(false));
        assert!(!health.is_up(now));
        // Answers to earlier requests do not bring the server back.
        health.answered();
        assert!(!health.is_up(now));
        assert_eq!(
            [false, true, false, true].map(|it| health.checked(it)),
            [None; 4]
        );
        assert_eq!(health.checked(true), Some(true));
        assert!(health.is_up(now));
    }
}
