//! Where the requests of a connection run: on the connection's own task, if they can be answered at
//! once.
//!
//! Most can, as their messages have come with their heads and the store is in this process. A task
//! for each would cost more than its decision, and wake other threads for work of a microsecond. So
//! all requests that have arrived are answered in a row, and their answers leave in one write. A
//! request that has to wait gets a task of its own.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Waker};

use hyper::rt::Executor;

type Stream = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The requests of one connection that nobody has looked at yet.
#[derive(Clone, Default)]
pub(super) struct Streams(Arc<Mutex<Vec<Stream>>>);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Streams {
    fn execute(&self, stream: F) {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.push(Box::pin(stream));
    }
}

impl Streams {
    /// Drives `connection`, which puts its requests here, to its end.
    pub(super) async fn drive<T>(&self, connection: impl Future<Output = T>) -> T {
        let mut connection = pin!(connection);
        poll_fn(|context| {
            loop {
                let polled = connection.as_mut().poll(context);
                if polled.is_ready() || !self.answer() {
                    return polled;
                }
                // What was answered is to be sent.
            }
        })
        .await
    }

    /// Answers what can be answered at once, and gives the others tasks. Whether there was anything.
    fn answer(&self) -> bool {
        let waiting = {
            let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *waiting)
        };
        let any = !waiting.is_empty();
        for mut stream in waiting {
            // Whoever has to wait says so again on its own task, and is woken there.
            let mut context = Context::from_waker(Waker::noop());
            if stream.as_mut().poll(&mut context).is_pending() {
                tokio::spawn(stream);
            }
        }
        any
    }
}
