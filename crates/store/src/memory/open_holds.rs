//! How many open holds each subject has, so that one subject cannot fill the table of records.
//!
//! Only subjects with open holds are here, so there are never more subjects than records. Locks are always
//! taken in this order: a part of the records, shards of states, a part of these counts.

use hashbrown::HashMap;
use parking_lot::{Mutex, MutexGuard};

use super::records::is_mostly_empty;
use crate::holds::OpenBound;

const PARTS: usize = 16;

/// The number of open holds by subject, in parts with a lock each.
#[derive(Default)]
pub(super) struct OpenHolds {
    parts: [Mutex<HashMap<u128, u64>>; PARTS],
}

impl OpenHolds {
    /// Counts one more open hold of a subject. Returns false, and counts nothing, if the subject has as many
    /// as it may have.
    pub(super) fn take(&self, bound: OpenBound) -> bool {
        let mut part = self.part(bound.subject);
        let count = part.get(&bound.subject).copied().unwrap_or(0);
        let fits = count < bound.most;
        if fits {
            part.insert(bound.subject, count + 1);
        }
        fits
    }

    /// Counts an open hold that was made before, without checking the bound.
    pub(super) fn add(&self, subject: u128) {
        *self.part(subject).entry(subject).or_insert(0) += 1;
    }

    /// Removes an open hold of a subject from the count.
    pub(super) fn remove(&self, subject: u128) {
        let mut part = self.part(subject);
        match part.get_mut(&subject) {
            Some(count) if *count > 1 => *count -= 1,
            _ => _ = part.remove(&subject),
        }
    }

    /// Releases memory that is not needed any more.
    pub(super) fn shrink(&self) {
        for part in &self.parts {
            let mut part = part.lock();
            let len = part.len();
            if is_mostly_empty(len, part.capacity()) {
                part.shrink_to(len * 2);
            }
        }
    }

    /// Returns about how many bytes the counts occupy.
    pub(super) fn bytes(&self) -> usize {
        let places = self.parts.iter().map(|part| part.lock().capacity());
        places.sum::<usize>() * size_of::<(u128, u64)>()
    }

    fn part(&self, subject: u128) -> MutexGuard<'_, HashMap<u128, u64>> {
        // Subjects are hashes, so their low bits spread them evenly.
        #[allow(clippy::cast_possible_truncation)]
        let place = subject as usize % PARTS;
        self.parts[place].lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_without_open_holds_is_forgotten() {
        let open = OpenHolds::default();
        let bound = |subject| OpenBound { subject, most: 2 };
        assert_eq!([0; 3].map(|_| open.take(bound(7))), [true, true, false]);
        assert!(open.take(bound(7 + 16)), "subjects are counted apart");
        open.remove(7);
        assert_eq!([0; 2].map(|_| open.take(bound(7))), [true, false]);
        for subject in [7, 7, 23] {
            open.remove(subject);
        }
        assert!(open.parts.iter().all(|part| part.lock().is_empty()));
        open.remove(7);
        open.add(7);
        assert_eq!([0; 2].map(|_| open.take(bound(7))), [true, false]);
    }
}
