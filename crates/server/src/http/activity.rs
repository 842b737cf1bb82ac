//! Whether requests are open on a connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Counts the requests of a connection.
#[derive(Clone, Default)]
pub(crate) struct Activity(Arc<Counts>);

#[derive(Default)]
struct Counts {
    started: AtomicU64,
    ended: AtomicU64,
}

/// Counts as one open request until it is dropped.
pub(crate) struct Active(Arc<Counts>);

impl Activity {
    pub(crate) fn start(&self) -> Active {
        self.0.started.fetch_add(1, Ordering::Relaxed);
        Active(Arc::clone(&self.0))
    }

    /// Returns once the connection had no request for a while: at least `time`, and at most twice that.
    pub(crate) async fn idle_for(&self, time: Duration) {
        let mut before = None;
        loop {
            let started = self.0.started.load(Ordering::Relaxed);
            let is_active = started != self.0.ended.load(Ordering::Relaxed);
            if !is_active && before == Some(started) {
                return;
            }
            before = Some(started).filter(|_| !is_active);
            tokio::time::sleep(time).await;
        }
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::Relaxed);
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
