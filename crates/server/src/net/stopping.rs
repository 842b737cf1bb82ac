//! The end of a server, as its connections see it.
//!
//! A server that is told to stop first drains: it is not ready any more, but serves as before. So load
//! balancers have time to choose another server. Then the listener closes, and connections end when
//! they have answered the requests that had begun to arrive. A connection without such a request stays
//! open for a [`LAST_CALL`], because the client may be sending a request right now.

use std::time::Duration;

use tokio::sync::watch;

/// How long idle connections stay open after the listener has closed.
pub const LAST_CALL: Duration = Duration::from_millis(250);

/// The state of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Serving,
    /// The server will stop soon. It still accepts connections.
    Draining,
    /// The server accepts no more connections.
    Stopping,
}

/// Tells a connection that the server stops. The server waits until every `Stopping` is dropped.
#[derive(Clone)]
pub(crate) struct Stopping(watch::Receiver<Stage>);

impl Stopping {
    /// Makes a `Stopping`, and the sender that tells it of the stop.
    pub(crate) fn channel() -> (watch::Sender<Stage>, Stopping) {
        let (sender, receiver) = watch::channel(Stage::Serving);
        (sender, Stopping(receiver))
    }

    /// Returns whether the server drains or stops. Costs one atomic load.
    #[inline]
    pub(crate) fn is_draining(&self) -> bool {
        self.0.has_changed().unwrap_or(true)
    }

    /// Returns whether the server stops. Costs one atomic load while the server serves.
    #[inline]
    pub(crate) fn is_stopping(&self) -> bool {
        self.is_draining() && *self.0.borrow() == Stage::Stopping
    }

    /// Waits until the server stops.
    pub(crate) async fn wait(&self) {
        // Wait with a clone: a receiver that has waited has seen the change, and `is_draining` would be false.
        let mut receiver = self.0.clone();
        // An error means that the server is gone.
        let _ = receiver.wait_for(|stage| *stage == Stage::Stopping).await;
    }

    /// Waits until the server stops and idle connections have to end.
    pub(crate) async fn last_call(&self) {
        self.wait().await;
        tokio::time::sleep(LAST_CALL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn stages_follow_each_other() {
        let (stage, stopping) = Stopping::channel();
        assert!(!stopping.is_draining() && !stopping.is_stopping());
        stage.send_replace(Stage::Draining);
        assert!(stopping.is_draining() && !stopping.is_stopping());
        // A connection that is accepted now also knows.
        assert!(stopping.clone().is_draining());
        let early = tokio::time::timeout(Duration::from_secs(60), stopping.wait()).await;
        assert!(early.is_err(), "draining is not stopping");
        assert!(stopping.is_draining());
        stage.send_replace(Stage::Stopping);
        assert!(stopping.is_draining() && stopping.is_stopping());
        stopping.last_call().await;
        drop(stage);
        assert!(stopping.is_draining() && stopping.is_stopping());
        stopping.last_call().await;
    }
}
