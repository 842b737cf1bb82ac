//! Sends events one after the other, and retries.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::{StatusCode, Uri};
use tokio::sync::{mpsc, watch};
use tollgate::{Clock, Event, SystemClock};
use tollgate_config::{HttpUrl, Webhook};

use super::message::{self, Signer};
use super::{Counts, Delivery, Pacing, WEBHOOK, WebhookError};
use crate::outbound::{Peer, Seldom, SendError};

/// How many undelivered events are named in the log when the server stops.
const NAMED: usize = 10;

/// Delivers events to a webhook.
pub(super) struct WebhookSender {
    peer: Peer,
    /// The URL for the log, without secrets.
    url: HttpUrl,
    target: Uri,
    signer: Signer,
    timeout: Duration,
    attempts: u32,
    pacing: Pacing,
    counts: Arc<Counts>,
    clock: SystemClock,
    failures: Seldom,
}

impl WebhookSender {
    pub(super) fn new(
        config: &Webhook,
        peer: Peer,
        pacing: Pacing,
        counts: Arc<Counts>,
    ) -> Result<WebhookSender, WebhookError> {
        let url = &config.url;
        let wrong = |what: &str| WebhookError(format!("{url}: {what}"));
        // The error is not passed on, because it would quote the secret.
        let target = Uri::try_from(url.target.expose());
        Ok(WebhookSender {
            peer,
            url: url.clone(),
            target: target.map_err(|_| wrong("the part after the host is not a path"))?,
            signer: Signer::new(&config.secret)
                .ok_or_else(|| wrong("failed to sign events with this secret"))?,
            timeout: config.timeout.into(),
            attempts: config.attempts,
            pacing,
            counts,
            clock: SystemClock::new(),
            failures: Seldom::default(),
        })
    }

    /// Sends events until every sender is gone, or the server stops.
    pub(super) async fn run(
        self,
        mut inbox: mpsc::Receiver<Arc<Event>>,
        mut stopped: watch::Receiver<bool>,
    ) {
        let mut time_is_over = stopped.clone();
        let time_is_over = async {
            // An error means that the server is gone.
            let _ = time_is_over.wait_for(|stopped| *stopped).await;
            tokio::time::sleep(self.pacing.stop).await;
        };
        let mut current = None;
        let work = async {
            loop {
                let next = tokio::select! {
                    // Events that wait are sent before the stop is checked.
                    biased;
                    next = inbox.recv() => next,
                    _ = stopped.wait_for(|stopped| *stopped) => None,
                };
                let Some(event) = next else { return };
                current = Some(Arc::clone(&event));
                let delivery = self.deliver(&event).await;
                self.counts.end(delivery);
                current = None;
            }
        };
        tokio::select! {
            () = work => {}
            () = time_is_over => {}
        }
        inbox.close();
        let mut left: Vec<Arc<Event>> = current.into_iter().collect();
        while let Ok(event) = inbox.try_recv() {
            left.push(event);
        }
        self.give_up(&left);
    }

    /// Tries to deliver an event, as often as allowed.
    async fn deliver(&self, event: &Event) -> Delivery {
        let body = message::body(event);
        for attempt in 1..=self.attempts {
            let sending = async {
                // Signed again for each attempt, because receivers reject old signatures.
                let now = self.clock.now();
                let request = self.signer.request(&self.target, event, &body, now)?;
                self.peer.status(request).await
            };
            let sent = tokio::time::timeout(self.timeout, sending).await;
            let error: SendError = match sent {
                Ok(Ok(status)) if status.is_success() => return Delivery::Delivered,
                Ok(Ok(status)) if !is_worth_another(status) => {
                    let why = format!("the receiver answered {status}");
                    let what = "an event was not delivered: the receiver rejects it";
                    self.log(event, &why, what);
                    return Delivery::Rejected;
                }
                Ok(Ok(status)) => format!("the receiver answered {status}").into(),
                Ok(Err(error)) => error,
                Err(_) => "the receiver did not answer in time".into(),
            };
            if attempt == self.attempts {
                let what = "an event was not delivered: no attempt is left";
                self.log(event, &error, what);
                break;
            }
            let (id, url) = (event.id, &self.url);
            tracing::debug!(target: WEBHOOK, %id, %url, attempt, %error, "an event will be sent again");
            tokio::time::sleep(self.pause(attempt)).await;
        }
        Delivery::Failed
    }

    /// Returns how long to wait before the next attempt. The time is random, so that instances that
    /// failed together do not come back together.
    fn pause(&self, attempts: u32) -> Duration {
        let doubled = 2u32.saturating_pow(attempts.saturating_sub(1));
        let longest = self.pacing.first.saturating_mul(doubled);
        let longest = longest.min(self.pacing.most);
        longest.mul_f64(0.5 + 0.5 * fastrand::f64())
    }

    fn log(&self, event: &Event, error: &dyn fmt::Display, what: &str) {
        if let Some(others) = self.failures.due() {
            let (id, url) = (event.id, &self.url);
            tracing::warn!(target: WEBHOOK, %id, %url, %error, others, "{what}");
        }
    }

    /// Counts and logs undelivered events.
    fn give_up(&self, left: &[Arc<Event>]) {
        if left.is_empty() {
            return;
        }
        for _ in left {
            self.counts.end(Delivery::Undelivered);
        }
        let ids = left.iter().take(NAMED).map(|event| event.id.to_string());
        let ids = ids.collect::<Vec<_>>().join(" ");
        let (count, url) = (left.len(), &self.url);
        tracing::warn!(target: WEBHOOK, %url, count, ids, "events were not delivered before the server stopped");
    }
}

/// Returns whether a retry may help after this status. A redirect is final, because events go only to
/// the URL in the config.
fn is_worth_another(status: StatusCode) -> bool {
    let passing = [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_MANY_REQUESTS];
    status.is_server_error() || passing.contains(&status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_failures_are_retried() {
        let again = |status: u16| is_worth_another(StatusCode::from_u16(status).unwrap());
        assert!([408, 429, 500, 502, 503, 504, 599].into_iter().all(again));
        assert!(
            ![301, 302, 307, 400, 401, 404, 410, 422]
                .into_iter()
                .any(again)
        );
    }
}
