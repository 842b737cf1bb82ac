//! Whether requests are open on a connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Counts the requests of a connection.
#[derive(Clone)]
pub(crate) struct Activity(Arc<Counts>);

struct Counts {
    started: AtomicU64,
    ended: AtomicU64,
    opened_at: Instant,
    /// When the last request ended, in microseconds after the connection was opened.
    idle_since: AtomicU64,
}

impl Default for Activity {
    fn default() -> Activity {
        Activity(Arc::new(Counts {
            started: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            opened_at: Instant::now(),
            idle_since: AtomicU64::new(0),
        }))
    }
}

/// Counts as one open request until it is dropped.
pub(crate) struct Active(Arc<Counts>);

impl Activity {
    pub(crate) fn start(&self) -> Active {
        self.0.started.fetch_add(1, Ordering::Relaxed);
        Active(Arc::clone(&self.0))
    }

    /// Returns once the connection had no request for `time`. Sets a timer about once in `time`, however many
    /// requests there are.
    pub(crate) async fn idle_for(&self, time: Duration) {
        let counts = &self.0;
        loop {
            let ended = counts.ended.load(Ordering::Acquire);
            let is_active = counts.started.load(Ordering::Relaxed) != ended;
            let since = match is_active {
                true => Instant::now(),
                false => {
                    let micros = counts.idle_since.load(Ordering::Relaxed);
                    counts.opened_at + Duration::from_micros(micros)
                }
            };
            let due = since + time;
            if Instant::now() >= due {
                return;
            }
            sleep_until(due).await;
        }
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        let micros = self.0.opened_at.elapsed().as_micros();
        let micros = u64::try_from(micros).unwrap_or(u64::MAX);
        self.0.idle_since.store(micros, Ordering::Relaxed);
        self.0.ended.fetch_add(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn connection_without_requests_becomes_idle() {
        Activity::default().idle_for(TIME).await;
    }

    #[tokio::test(start_paused = true)]
    async fn open_request_keeps_the_connection_active() {
        let activity = Activity::default();
        let active = activity.start();
        let idle = tokio::time::timeout(TIME * 100, activity.idle_for(TIME)).await;
        assert!(idle.is_err());
        drop(active);
        activity.idle_for(TIME).await;
    }

    #[tokio::test(start_paused = true)]
    async fn idle_time_counts_from_the_end_of_the_last_request() {
        let (activity, start) = (Activity::default(), Instant::now());
        let active = activity.start();
        let idle = tokio::time::timeout(TIME * 3 / 2, activity.idle_for(TIME)).await;
        assert!(idle.is_err());
        drop(active);
        activity.idle_for(TIME).await;
        // Timers have the precision of a millisecond.
        let late = start.elapsed() - TIME * 5 / 2;
        assert!(late <= Duration::from_millis(2), "{late:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn occasional_requests_keep_the_connection_active() {
        let activity = Activity::default();
        let requests = async {
            for _ in 0..100 {
                drop(activity.start());
                tokio::time::sleep(TIME / 2).await;
            }
        };
        tokio::select! {
            biased;
            () = requests => {}
            () = activity.idle_for(TIME) => panic!("the connection was in use"),
        }
    }
}
