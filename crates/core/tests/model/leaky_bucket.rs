//! The model of the leaky bucket. The free room refills like a token bucket. Shaping also needs the time
//! until the bucket is empty.

use tollgate_core::CarryOver;

use super::Reference;
use super::bucket::{Bucket, Level};

#[derive(Clone, Debug)]
pub(crate) struct LeakyBucket {
    /// The room: the queue, plus the request being served.
    pub(crate) room: Bucket,
    pub(crate) sense: Sense,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Sense {
    Police,
    Shape { max_wait: Option<u64> },
}

impl Reference for LeakyBucket {
    type Account = Level;

    fn capacity(&self) -> u64 {
        self.room.capacity()
    }

    fn open(&self) -> Level {
        self.room.open()
    }

    fn charge(&self, account: &mut Level, cost: u64, at: u64) {
        self.room.charge(account, cost, at);
    }

    fn overdraw(&self, account: &mut Level, cost: u64, most: u64, at: u64) {
        self.room.overdraw(account, cost, most, at);
    }

    fn refund(&self, account: &mut Level, cost: u64, charged_at: u64, at: u64) {
        self.room.refund(account, cost, charged_at, at);
    }

    fn change(&self, account: &mut Level, to: &LeakyBucket, how: CarryOver, at: u64) {
        // If only the mode or the longest wait changes, the level stays as it is.
        if !to.room.is(&self.room) {
            self.room.change(account, &to.room, how, at);
        }
    }

    fn carry_over(&self, account: &mut Level, to: &LeakyBucket, share: bool, at: u64) {
        self.room.carry_over(account, &to.room, share, at);
    }

    fn fits(&self, account: &Level, cost: u64, at: u64) -> bool {
        let soon = match self.sense {
            Sense::Shape {
                max_wait: Some(most),
            } => self.delay(account, at) <= most,
            _ => true,
        };
        soon && self.room.fits(account, cost, at)
    }

    fn left(&self, account: &Level, at: u64) -> i128 {
        self.room.left(account, at)
    }

    fn is_forgotten(&self, account: &Level, at: u64) -> bool {
        self.room.is_forgotten(account, at)
    }

    fn delay(&self, account: &Level, at: u64) -> u64 {
        match self.sense {
            Sense::Police => 0,
            Sense::Shape { .. } => self.room.until_full(account, at),
        }
    }

    fn queues(&self) -> bool {
        matches!(self.sense, Sense::Shape { .. })
    }
}
