//! Near-limit events on their way to a webhook.
//!
//! Decisions put events into a bounded queue without waiting. Events that do not fit are dropped,
//! counted and logged. One task sends them in order: a failed event is retried, and those behind it
//! wait until it is delivered or given up.
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
use tollgate::{Clock, Engine, Event, SystemClock};

use self::delivery::WebhookSender;
pub use self::message::{EVENT_ID, SIGNATURE};
use crate::outbound::{Peer, Seldom};

/// The most events that wait to be sent.
pub const MAX_QUEUE: usize = 1024;

/// The target of log lines about deliveries.
pub const WEBHOOK: &str = "tollgate::webhook";

/// How long to wait between attempts, and for the last events when the server stops.
#[derive(Clone, Copy)]
struct Pacing {
    /// After the first attempt. It doubles with each further one.
    first: Duration,
    /// The longest wait.
    most: Duration,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Delivery {
    /// The receiver has it.
    Delivered,
    /// The receiver rejected it.
    Rejected,
    /// All attempts failed.
    Failed,
    /// The queue was full.
    Dropped,
    /// The server stopped first.
    Undelivered,
}

impl Delivery {
    const ALL: [Delivery; 5] = [
        Delivery::Delivered,
        Delivery::Rejected,
        Delivery::Failed,
        Delivery::Dropped,
        Delivery::Undelivered,
    ];

    /// The name in metrics.
    const fn name(self) -> &'static str {
        match self {
            Delivery::Delivered => "delivered",
            Delivery::Rejected => "refused",
            Delivery::Failed => "failed",
            Delivery::Dropped => "dropped",
            Delivery::Undelivered => "undelivered",
        }
    }
}

/// Sends events to a webhook.
pub struct Webhook {
    counts: Arc<Counts>,
    stopping: watch::Sender<bool>,
    task: Mutex<Option<JoinHandle<()>>>,
}

/// The results so far.
#[derive(Default)]
struct Counts {
    /// In the order of [`Delivery::ALL`].
    ended: [AtomicU64; Delivery::ALL.len()],
    waiting: AtomicU64,
    trouble: Seldom,
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
        Webhook::start_with(engine, peer, PACING).map(Some)
    }

    fn start_with(engine: &Engine, peer: Peer, pacing: Pacing) -> Result<Webhook, WebhookError> {
        let live = engine.active();
        let Some(config) = &live.config().events.webhook else {
            return Err(WebhookError("there is no webhook".to_owned()));
        };
        let (queue, inbox) = mpsc::channel(MAX_QUEUE);
        let (stopping, stopped) = watch::channel(false);
        let counts: Arc<Counts> = Arc::default();
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let courier = WebhookSender::new(config, peer, pacing, Arc::clone(&counts), clock)?;
        let task = tokio::spawn(courier.run(inbox, stopped));
        let waiting = Arc::clone(&counts);
        live.events()
            .listen(move |event| hand_over(&queue, &waiting, event));
        Ok(Webhook {
            counts,
            stopping,
            task: Mutex::new(Some(task)),
        })
    }

    /// Gives waiting events a short time to be delivered. The rest is counted and logged, and
    /// nothing is sent afterwards.
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
        let counts = Delivery::ALL.iter().zip(&self.counts.ended);
        counts.map(|(delivery, count)| (delivery.name(), count.load(Ordering::Relaxed)))
    }

    /// Returns how many events wait, including the one that is being sent.
    #[must_use]
    pub fn queue_length(&self) -> u64 {
        self.counts.waiting.load(Ordering::Relaxed)
    }
}

/// Puts an event into the queue without waiting.
fn hand_over(queue: &mpsc::Sender<Arc<Event>>, counts: &Counts, event: &Arc<Event>) {
    counts.waiting.fetch_add(1, Ordering::Relaxed);
    if queue.try_send(Arc::clone(event)).is_err() {
        counts.end(Delivery::Dropped);
        if let Some(others) = counts.trouble.due() {
            let id = &event.id;
            tracing::warn!(target: WEBHOOK, %id, others, "an event was dropped: too many wait to be sent");
        }
    }
}

#[cfg(test)]
mod tests;
