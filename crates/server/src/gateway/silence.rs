//! A timer that fires when nothing was heard for a while, or when a request takes too long in all.
//!
//! The timer is set when the first wait begins, and set again only when it fires too early. So a part of a
//! body costs a look at the clock, and not a timer. The requests of a connection to an upstream share a timer.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

/// Fires after a silence, or at a deadline.
pub(super) struct Silence {
    limit: Duration,
    deadline: Option<Instant>,
    heard_at: Instant,
    timer: Option<Timer>,
}

/// A timer that may still be set for an earlier silence.
pub(super) type Timer = Pin<Box<Sleep>>;

impl Silence {
    /// Makes a timer that fires after a silence of `limit`, and at `deadline`.
    pub(super) fn new(limit: Duration, deadline: Option<Instant>) -> Silence {
        Silence {
            limit,
            deadline,
            heard_at: Instant::now(),
            timer: None,
        }
    }

    /// Uses a timer that was used before.
    pub(super) fn with_timer(mut self, timer: Option<Timer>) -> Silence {
        self.timer = timer;
        self
    }

    /// Returns the timer, to be used again.
    pub(super) fn into_timer(self) -> Option<Timer> {
        self.timer
    }

    /// Ends the silence. The next silence begins now.
    pub(super) fn heard(&mut self) {
        self.heard_at = Instant::now();
    }

    /// Ends the silence at an earlier time.
    pub(super) fn heard_at(&mut self, at: Instant) {
        self.heard_at = self.heard_at.max(at);
    }

    /// Is ready once the silence has lasted too long, or the deadline has come.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            let silent = self.heard_at + self.limit;
            let due = self.deadline.map_or(silent, |it| it.min(silent));
            let timer = match &mut self.timer {
                Some(timer) => timer,
                None => self.timer.insert(Box::pin(sleep_until(due))),
            };
            if timer.deadline() > due {
                timer.as_mut().reset(due);
            }
            ready!(timer.as_mut().poll(context));
            if Instant::now() >= due {
                return Poll::Ready(());
            }
            timer.as_mut().reset(due);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn silence_counts_from_what_was_heard_last() {
        let (start, mut silence) = (Instant::now(), Silence::new(SECOND * 3, None));
        for _ in 0..5 {
            let early = tokio::time::timeout(SECOND * 2, poll_fn(|it| silence.poll(it))).await;
            assert!(early.is_err());
            silence.heard();
        }
        poll_fn(|it| silence.poll(it)).await;
        assert_eq!(start.elapsed(), SECOND * 13);
    }

    #[tokio::test(start_paused = true)]
    async fn timer_of_an_earlier_silence_is_used_again() {
        let (start, mut long) = (Instant::now(), Silence::new(SECOND * 9, None));
        let early = tokio::time::timeout(SECOND, poll_fn(|it| long.poll(it))).await;
        assert!(early.is_err());
        // Set too late: at 9 s.
        let mut short = Silence::new(SECOND * 2, None).with_timer(long.into_timer());
        poll_fn(|it| short.poll(it)).await;
        assert_eq!(start.elapsed(), SECOND * 3);
        // Set too early: at 3 s, and it has fired.
        let mut long = Silence::new(SECOND * 9, None).with_timer(short.into_timer());
        poll_fn(|it| long.poll(it)).await;
        assert_eq!(start.elapsed(), SECOND * 12);
    }

    #[tokio::test(start_paused = true)]
    async fn deadline_comes_in_spite_of_what_is_heard() {
        let start = Instant::now();
        let mut silence = Silence::new(SECOND * 3, Some(start + SECOND * 5));
        let early = tokio::time::timeout(SECOND * 2, poll_fn(|it| silence.poll(it))).await;
        assert!(early.is_err());
        silence.heard();
        poll_fn(|it| silence.poll(it)).await;
        assert_eq!(start.elapsed(), SECOND * 5);
    }
}
