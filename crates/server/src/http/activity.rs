//! Whether anything happens on a connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Counts the requests of a connection.
#[derive(Clone, Default)]
pub(super) struct Activity(Arc<Counts>);

#[derive(Default)]
struct Counts {
    started: AtomicU64,
    ended: AtomicU64,
}

/// A request that is being answered.
pub(super) struct AtWork(Arc<Counts>);

impl Activity {
    pub(super) fn start(&self) -> AtWork {
        self.0.started.fetch_add(1, Ordering::Relaxed);
        AtWork(Arc::clone(&self.0))
    }

    /// Ready when there was no request for at least `time`, and at most twice that.
    pub(super) async fn ceases(&self, time: Duration) {
        let mut before = None;
        loop {
            let started = self.0.started.load(Ordering::Relaxed);
            let at_work = started != self.0.ended.load(Ordering::Relaxed);
            if !at_work && before == Some(started) {
                return;
            }
            before = Some(started).filter(|_| !at_work);
            tokio::time::sleep(time).await;
        }
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_requests_ceases() {
        Activity::default().ceases(TIME).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_at_work_keeps_it() {
        let activity = Activity::default();
        let at_work = activity.start();
        let ceased = tokio::time::timeout(TIME * 100, activity.ceases(TIME)).await;
        assert!(ceased.is_err());
        drop(at_work);
        activity.ceases(TIME).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_now_and_then_keeps_it() {
        let activity = Activity::default();
        let asking = async {
            for _ in 0..100 {
                drop(activity.start());
                tokio::time::sleep(TIME / 2).await;
            }
        };
        tokio::select! {
            biased;
            () = asking => {}
            () = activity.ceases(TIME) => panic!("it was asked all the time"),
        }
    }
}
