//! Caches the boundaries of periods that were computed last. Every request reads this cache. A read does
//! not write to memory, so readers on several processors do not wait for each other.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::Around;
use crate::Time;

/// The boundaries, and a version. The version is odd while a thread writes the boundaries.
#[derive(Default)]
pub(super) struct Memo {
    version: AtomicU64,
    starts: [AtomicU64; 6],
}

impl Memo {
    /// Returns the boundaries that were written last; `None` during a write.
    pub(super) fn read(&self) -> Option<Around> {
        let version = self.version.load(Ordering::Acquire);
        let starts = self.starts.each_ref();
        let starts = starts.map(|it| Time::from_micros(it.load(Ordering::Relaxed)));
        // All boundaries come from the same write if the version has not changed since the first load.
        fence(Ordering::Acquire);
        let is_whole = version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version;
        is_whole.then_some(Around { starts })
    }

    /// Replaces the boundaries. Does nothing if another thread is writing.
    pub(super) fn write(&self, around: &Around) {
        let version = self.version.load(Ordering::Relaxed);
        let (acquire, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
        let is_taken = !version.is_multiple_of(2)
            || self
                .version
                .compare_exchange(version, version + 1, acquire, relaxed)
                .is_err();
        if is_taken {
            return;
        }
        fence(Ordering::Release);
        for (place, start) in self.starts.iter().zip(&around.starts) {
            place.store(start.as_micros(), relaxed);
        }
        self.version.store(version + 2, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_returns_one_write_whole() {
        let memo = Memo::default();
        let written = |number: u64| Around {
            starts: std::array::from_fn(|it| Time::from_micros(number * 10 + it as u64)),
        };
        memo.write(&written(1));
        assert_eq!(memo.read(), Some(written(1)));
        std::thread::scope(|scope| {
            for writer in 0..2 {
                let memo = &memo;
                scope.spawn(move || {
                    for number in 0..50_000 {
                        memo.write(&written(number * 2 + writer));
                    }
                });
            }
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..50_000 {
                        if let Some(read) = memo.read() {
                            let number = read.starts[0].as_micros() / 10;
                            assert_eq!(read, written(number));
                        }
                    }
                });
            }
        });
    }
}
