//! Near-limit events on their way to a webhook.
//!
//! Decisions put events into a bounded queue without waiting. Events that do not fit are dropped,
//! counted and logged. One task sends the events in order. It retries a failed event, and the events
//! behind that one wait until it is delivered or given up.
//!
//! * `message`: the message and its signature.
//! * `delivery`: attempts, and what counts as delivered.

mod delivery;
mod message;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tollgate::{ActiveConfig, Engine, Event};

use self::delivery::WebhookSender;
pub use self::message::{EVENT_ID, SIGNATURE};
use crate::outbound::{Peer, Seldom};

/// The most events that wait to be sent.
pub const MAX_QUEUE: usize = 1024;

/// The target of log lines about deliveries.
pub const WEBHOOK: &str = "tollgate::webhook";

/// The waits between attempts and at the stop of the server.
#[derive(Clone, Copy)]
struct Pacing {
    /// The wait after the first attempt. The wait doubles with each further attempt.
    first: Duration,
    /// The longest wait between attempts.
    most: Duration,
    /// The time for the last events when the server stops.
    stop: Duration,
}

const PACING: Pacing = Pacing {
    first: Duration::from_millis(500),
    most: Duration::from_secs(30),
    stop: Duration::from_secs(2),
};

/// Why the webhook cannot be set up.
#[derive(Debug, thiserror::Error)]
#[error("events.webhook: {0}")]
pub struct WebhookError(String);

/// The result of sending an event.
#[derive(Clone, Copy)]
enum Delivery {
    /// The receiver accepted the event.
    Delivered,
    /// The receiver rejected the event.
    Rejected,
    /// All attempts failed.
    Failed,
    /// The queue was full.
    Dropped,
    /// The server stopped first.
    Undelivered,
}

/// The names of the results in metrics, in the order of [`Delivery`].
const DELIVERIES: [&str; 5] = ["delivered", "refused", "failed", "dropped", "undelivered"];

/// Sends events to a webhook.
pub struct Webhook {
    counts: Arc<Counts>,
    stopping: watch::Sender<bool>,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl std::fmt::Debug for Webhook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Webhook").finish_non_exhaustive()
    }
}

/// How many events had each result, and how many wait.
#[derive(Default)]
struct Counts {
    /// In the order of [`Delivery`].
    ended: [AtomicU64; DELIVERIES.len()],
    waiting: AtomicU64,
    drops: Seldom,
}

impl Counts {
    /// Counts the result of an event that waited.
    fn end(&self, delivery: Delivery) {
        self.ended[delivery as usize].fetch_add(1, Ordering::Relaxed);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Webhook {
    /// Starts to send the events of `engine` to the webhook of its config; `None` if there is none.
    /// Call it within a Tokio runtime.
    ///
    /// # Errors
    /// If the system's certificates are needed and cannot be read.
    pub fn start(engine: &Engine) -> Result<Option<Webhook>, WebhookError> {
        let live = engine.active();
        let Some(config) = &live.config().events.webhook else {
            return Ok(None);
        };
        let url = &config.url;
        let peer = Peer::new(&url.host, url.port, url.tls);
        let peer = peer.map_err(|error| WebhookError(format!("{url}: {error}")))?;
        Webhook::start_with(&live, config, peer, PACING).map(Some)
    }

    fn start_with(
        live: &ActiveConfig,
        config: &tollgate_config::Webhook,
        peer: Peer,
        pacing: Pacing,
    ) -> Result<Webhook, WebhookError> {
        let (queue, inbox) = mpsc::channel(MAX_QUEUE);
        let (stopping, stopped) = watch::channel(false);
        let counts: Arc<Counts> = Arc::default();
        let sender = WebhookSender::new(config, peer, pacing, Arc::clone(&counts))?;
        let task = tokio::spawn(sender.run(inbox, stopped));
        let waiting = Arc::clone(&counts);
        live.events().listen(move |event: &Arc<Event>| {
            waiting.waiting.fetch_add(1, Ordering::Relaxed);
            if queue.try_send(Arc::clone(event)).is_ok() {
                return;
            }
            waiting.end(Delivery::Dropped);
            if let Some(others) = waiting.drops.due() {
                let id = &event.id;
                tracing::warn!(target: WEBHOOK, %id, others, "an event was dropped: too many wait to be sent");
            }
        });
        Ok(Webhook {
            counts,
            stopping,
            task: Mutex::new(Some(task)),
        })
    }

    /// Gives waiting events a short time to be delivered. Counts and logs the events that are left.
    /// Sends nothing afterwards.
    pub async fn stop(&self) {
        self.stopping.send_replace(true);
        let task = self.task.lock().take();
        if let Some(task) = task {
            // The task does not panic, and nothing else ends it.
            let _ = task.await;
        }
    }

    /// Returns how many events had each result.
    pub fn deliveries(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let counts = DELIVERIES.into_iter().zip(&self.counts.ended);
        counts.map(|(name, count)| (name, count.load(Ordering::Relaxed)))
    }

    /// Returns how many events wait, including the one that is being sent.
    #[must_use]
    pub fn queue_length(&self) -> u64 {
        self.counts.waiting.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests;
