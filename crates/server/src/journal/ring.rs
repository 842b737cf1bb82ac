//! The latest records, in memory.

use std::collections::VecDeque;

use super::query::Query;
use super::record::{RecordedDenial, decode, head};

/// The latest records, the oldest first. The number of records is bounded.
pub(super) struct Ring {
    records: VecDeque<Box<[u8]>>,
    most: usize,
    /// The sequence number of the next record.
    next: u64,
}

/// Records after a position, for a reader that follows the journal.
pub(super) struct Following {
    pub(super) denials: Vec<RecordedDenial>,
    /// The position after the last record that was looked at.
    pub(super) next: u64,
    /// How many records the reader has missed, because it read too slowly.
    pub(super) missed: u64,
}

impl Ring {
    /// Makes an empty ring for `most` records. The first will have the sequence number `next`.
    pub(super) fn new(most: usize, next: u64) -> Ring {
        Ring {
            records: VecDeque::new(),
            most: most.max(1),
            next,
        }
    }

    /// Adds the next record, and forgets the oldest if the ring is full.
    pub(super) fn push(&mut self, record: &[u8]) {
        if self.records.len() == self.most {
            self.records.pop_front();
        }
        self.records.push_back(record.into());
        self.next += 1;
    }

    /// Returns the sequence number of the oldest record, or of the next one if there is none.
    pub(super) fn oldest(&self) -> u64 {
        self.next - self.records.len() as u64
    }

    /// Returns the sequence number of the next record.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    /// Returns the latest records that `query` wants, the newest first, at most `limit`.
    pub(super) fn find(&self, query: &Query, limit: usize) -> Vec<RecordedDenial> {
        let records = self.records.iter().rev();
        let wanted = records.filter_map(|record| wanted(query, record));
        wanted.take(limit).collect()
    }

    /// Returns the records from the sequence number `from` on that `query` wants, the oldest first. A number
    /// that this journal has not reached is from before a restart: then all records are new.
    pub(super) fn follow(&self, query: &Query, from: u64, limit: usize) -> Following {
        let from = if from > self.next { 0 } else { from };
        let (oldest, mut next) = (self.oldest(), self.next);
        // Sequence numbers start at 1. A reader that asks from 0 starts anew, and has missed nothing.
        let missed = if from == 0 {
            0
        } else {
            oldest.saturating_sub(from)
        };
        let skip = usize::try_from(from.saturating_sub(oldest)).unwrap_or(usize::MAX);
        let mut denials = Vec::new();
        for (record, seq) in self.records.iter().zip(oldest..).skip(skip) {
            if denials.len() == limit {
                next = seq;
                break;
            }
            denials.extend(wanted(query, record));
        }
        Following {
            denials,
            next,
            missed,
        }
    }
}

fn wanted(query: &Query, record: &[u8]) -> Option<RecordedDenial> {
    let head = head(record)?;
    let denial = query.may_want(&head, record).then(|| decode(record))??;
    query.wants(&denial).then_some(denial)
}
