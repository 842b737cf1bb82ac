//! Leaky bucket: the free room refills like a token bucket. Shaping also needs the time until the bucket
//! is empty.

use super::bucket::{Bucket, Level};
use super::{Event, Reference};

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

    fn enter(&self, account: &mut Level, event: &Event<LeakyBucket>) {
        if matches!(event, Event::Changed { to, .. } if to.room.is(&self.room)) {
            return; // Another mode or longest wait leaves the level alone.
        }
        let event = match *event {
            Event::Charged { cost, at } => Event::Charged { cost, at },
            Event::Overdrawn { cost, most, at } => Event::Overdrawn { cost, most, at },
            Event::Refunded {
                cost,
                charged_at,
                at,
            } => Event::Refunded {
                cost,
                charged_at,
                at,
            },
            Event::Changed { ref to, how, at } => Event::Changed {
                to: to.room.clone(),
                how,
                at,
            },
        };
        self.room.enter(account, &event);
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
