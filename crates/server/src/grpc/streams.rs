//! Runs the requests of a connection: on the task of the connection, if they can be answered at once.
//!
//! Most requests can: their messages arrive with their headers, and the store is in this process. A
//! task for each request would cost more than the decision, and would wake other threads for a
//! microsecond of work. So the connection answers all requests that have arrived one after another,
//! and sends their answers in one write. A request that has to wait gets its own task.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Waker};

use hyper::rt::Executor;

use crate::http::activity::{Active, Activity};

type Stream = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The requests of one connection.
#[derive(Clone, Default)]
pub(super) struct Streams {
    /// The requests that were not polled yet.
    waiting: Arc<Mutex<Vec<(Stream, Active)>>>,
    /// Whether there are requests whose answers are not sent yet.
    pub(super) activity: Activity,
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Streams {
    fn execute(&self, stream: F) {
        let active = self.activity.start();
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.push((Box::pin(stream), active));
    }
}

impl Streams {
    /// Drives `connection` to its end. The connection puts its requests here.
    pub(super) async fn drive<T>(&self, connection: impl Future<Output = T>) -> T {
        let mut connection = pin!(connection);
        poll_fn(|context| {
            loop {
                let polled = connection.as_mut().poll(context);
                if polled.is_ready() || !self.answer() {
                    return polled;
                }
                // The connection has answers to send now.
            }
        })
        .await
    }

    /// Answers the requests that can be answered at once, and spawns a task for each other request.
    /// Returns whether there were any requests.
    fn answer(&self) -> bool {
        let waiting = {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *waiting)
        };
        let any = !waiting.is_empty();
        for (mut stream, active) in waiting {
            // A request that has to wait is polled again by its own task, which registers its waker.
            let mut context = Context::from_waker(Waker::noop());
            if stream.as_mut().poll(&mut context).is_pending() {
                tokio::spawn(async move {
                    stream.await;
                    drop(active);
                });
            }
        }
        any
    }
}
