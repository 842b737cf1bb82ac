//! Threads that serve connections, each with a runtime of its own.
//!
//! A connection stays on the thread that it was given to, and so do the connections to upstreams that its
//! requests open. So a request wakes no other thread, and nothing that it touches moves to another core.

use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

thread_local! {
    /// The number of this thread among the workers, from 1; 0 on every other thread.
    static NUMBER: Cell<usize> = const { Cell::new(0) };
}

/// Returns how many workers there are: one for each core.
fn count() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Threads that serve connections. They end with the runtime that started them, so that what a request has
/// begun in the background can end after its connection.
#[derive(Debug)]
pub(crate) struct Workers {
    runtimes: Vec<Handle>,
    /// How many connections were given away.
    given: AtomicUsize,
}

impl Workers {
    /// Starts a thread for each core. Must be called within a runtime.
    pub(crate) fn start() -> io::Result<Workers> {
        let (mut runtimes, mut ends) = (Vec::new(), Vec::new());
        for number in 1..=count() {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let handle = runtime.handle().clone();
            let (end, ended) = oneshot::channel::<()>();
            let named = std::thread::Builder::new().name(format!("gateway-{number}"));
            named.spawn(move || {
                NUMBER.set(number);
                // An error means that the sender was dropped.
                let _ = runtime.block_on(ended);
            })?;
            runtimes.push(handle);
            ends.push(end);
        }
        tokio::spawn(async move {
            let _ends = ends;
            std::future::pending::<()>().await;
        });
        Ok(Workers {
            runtimes,
            given: AtomicUsize::new(0),
        })
    }

    /// Returns the runtime of the next connection.
    pub(crate) fn next(&self) -> &Handle {
        let turn = self.given.fetch_add(1, Ordering::Relaxed);
        &self.runtimes[turn % self.runtimes.len()]
    }
}

/// A value for each worker, and one for all other threads.
#[derive(Debug)]
pub(crate) struct PerWorker<T>(Box<[T]>);

impl<T: Default> Default for PerWorker<T> {
    fn default() -> PerWorker<T> {
        PerWorker((0..=count()).map(|_| T::default()).collect())
    }
}

impl<T> PerWorker<T> {
    /// Returns the value of this thread.
    #[inline]
    pub(crate) fn own(&self) -> &T {
        &self.0[NUMBER.get() % self.0.len()]
    }

    /// Returns the values of all threads.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[tokio::test]
    async fn connections_take_turns_and_each_thread_has_its_own_value() {
        let workers = Workers::start().unwrap();
        let numbers = std::sync::Arc::new(PerWorker::<AtomicUsize>::default());
        let mut threads = HashSet::new();
        for _ in 0..2 * count() {
            let numbers = std::sync::Arc::clone(&numbers);
            let working = workers.next().spawn(async move {
                numbers.own().fetch_add(1, Ordering::Relaxed);
                std::thread::current().id()
            });
            threads.insert(working.await.unwrap());
        }
        assert_eq!(threads.len(), count());
        let values = numbers.iter().map(|it| it.load(Ordering::Relaxed));
        let values: Vec<usize> = values.collect();
        assert_eq!(values[0], 0, "this thread is not a worker");
        assert_eq!(values[1..], vec![2; count()]);
    }
}
