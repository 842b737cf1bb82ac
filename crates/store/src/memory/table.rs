//! The states of one algorithm in one shard: a hash table of small entries.

use std::hash::Hash;

use hashbrown::{HashMap, HashTable};
use tollgate_core::backoff::Backoff;
use tollgate_core::concurrency::{self, Concurrency};
use tollgate_core::fair::{self, Fair};
use tollgate_core::fixed_window::FixedWindow;
use tollgate_core::leaky_bucket::LeakyBucket;
use tollgate_core::meter::Meter;
use tollgate_core::quota::Quota;
use tollgate_core::sliding_counter::{self, SlidingCounter};
use tollgate_core::sliding_log::{self, SlidingLog};
use tollgate_core::two_window::TwoWindow;
use tollgate_core::{CarryOver, Key, Limiting, Time};

use crate::contract::GRACE;

/// The 96 bits of a key that a shard stores. The other 32 bits decide which shard has the key.
///
/// The probability that two of ten million keys share these bits is below 10^-15.
#[derive(Clone, Copy)]
#[repr(C, packed(4))]
pub(super) struct Id {
    low: u64,
    high: u32,
}

impl Id {
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // The key is cut into words.
    pub(super) fn of(key: Key) -> Id {
        let bits = key.bits();
        Id {
            low: bits as u64,
            high: (bits >> 64) as u32,
        }
    }

    #[inline]
    fn is(self, other: Id) -> bool {
        self.low == other.low && self.high == other.high
    }

    /// Returns the hash. Keys are uniformly distributed, so their own bits are the hash.
    #[inline]
    fn hash(self) -> u64 {
        self.low
    }
}

/// An algorithm with states that a table can keep.
pub(super) trait Kept: Limiting + Eq + Hash {
    /// Whether a state can grow after it was inserted.
    const GROWS: bool = false;

    /// Returns the bytes that a state holds outside the table.
    fn heap_bytes(_state: &Self::State) -> usize {
        0
    }

    /// Makes room in a state, so that the next charge does not make the state grow.
    fn relieve(_state: &mut Self::State) {}
}

impl Kept for Meter {}
impl Kept for LeakyBucket {}
impl Kept for FixedWindow {}
impl Kept for TwoWindow {}
impl Kept for Backoff {}
impl Kept for Quota {}

impl Kept for SlidingCounter {
    fn heap_bytes(state: &sliding_counter::State) -> usize {
        state.heap_bytes()
    }
}

impl Kept for SlidingLog {
    const GROWS: bool = true;

    fn heap_bytes(state: &sliding_log::State) -> usize {
        state.heap_bytes()
    }

    fn relieve(state: &mut sliding_log::State) {
        if state.is_at_capacity() {
            state.coarsen();
        }
    }
}

impl Kept for Concurrency {
    const GROWS: bool = true;

    fn heap_bytes(state: &concurrency::State) -> usize {
        state.heap_bytes()
    }
}

impl Kept for Fair {
    const GROWS: bool = true;

    fn heap_bytes(state: &fair::State) -> usize {
        state.heap_bytes()
    }

    fn relieve(state: &mut fair::State) {
        state.close();
    }
}

struct Entry<S> {
    id: Id,
    /// The numbers that the state was written under, as an index into [`Numbers`].
    numbers: u32,
    state: S,
}

/// The states of one algorithm.
pub(super) struct Table<A: Kept> {
    entries: HashTable<Entry<A::State>>,
    numbers: Numbers<A>,
    /// The bucket at which the search for expired states continues.
    cursor: usize,
    /// Bytes that states hold outside the table.
    heap: usize,
}

impl<A: Kept> Table<A> {
    pub(super) fn new() -> Table<A> {
        Table {
            entries: HashTable::new(),
            numbers: Numbers::new(),
            cursor: 0,
            heap: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn heap(&self) -> usize {
        self.heap
    }

    pub(super) fn bytes(&self) -> usize {
        self.entries.allocation_size() + self.heap + self.numbers.bytes()
    }

    /// Returns the index of the state of `id`, valid until the next insertion or removal.
    #[inline]
    pub(super) fn find(&self, id: Id) -> Option<usize> {
        self.entries
            .find_bucket_index(id.hash(), |entry| entry.id.is(id))
    }

    /// Does the same as [`find`](Self::find), but tries `index` first.
    pub(super) fn find_at(&self, index: usize, id: Id) -> Option<usize> {
        match self.entries.get_bucket(index) {
            Some(entry) if entry.id.is(id) => Some(index),
            _ => self.find(id),
        }
    }

    /// Returns the state at `index`. If it was written under other numbers, converts it to the numbers of
    /// `limit`.
    #[inline]
    pub(super) fn state(
        &mut self,
        index: usize,
        limit: &A,
        how: CarryOver,
        now: Time,
    ) -> Option<&A::State> {
        let entry = self.entries.get_bucket(index)?;
        if self.numbers.get(entry.numbers)? != limit {
            self.carry_over(index, limit, how, now);
        }
        Some(&self.entries.get_bucket(index)?.state)
    }

    #[cold]
    fn carry_over(&mut self, index: usize, limit: &A, how: CarryOver, now: Time) {
        self.compact_many_numbers();
        let Table {
            entries,
            numbers,
            heap,
            ..
        } = self;
        if let Some(entry) = entries.get_bucket_mut(index)
            && let Some(from) = numbers.get(entry.numbers)
        {
            let before = A::heap_bytes(&entry.state);
            limit.carry_over(from, &mut entry.state, how, now);
            *heap = *heap + A::heap_bytes(&entry.state) - before;
            entry.numbers = numbers.index_of(limit);
        }
    }

    /// Returns the state at `index`, if it was written under the numbers of `limit`.
    #[inline]
    pub(super) fn state_in(&self, index: usize, limit: &A) -> Option<&A::State> {
        let entry = self.entries.get_bucket(index)?;
        (self.numbers.get(entry.numbers) == Some(limit)).then_some(&entry.state)
    }

    /// Changes the state of `id`, if it exists and was written under the numbers of `limit`. This is the most
    /// common case, and needs only one lookup.
    #[inline]
    pub(super) fn change_own<T>(
        &mut self,
        id: Id,
        limit: &A,
        change: impl FnOnce(&mut A::State) -> T,
    ) -> Option<T> {
        let entry = self.entries.find_mut(id.hash(), |entry| entry.id.is(id))?;
        if self.numbers.get(entry.numbers) != Some(limit) {
            return None;
        }
        let before = A::heap_bytes(&entry.state);
        let changed = change(&mut entry.state);
        self.heap = self.heap + A::heap_bytes(&entry.state) - before;
        Some(changed)
    }

    /// Returns the state of `id`, if it exists and was written under the numbers of `limit`. For changes after which
    /// the state has as much outside the table as before.
    #[inline]
    pub(super) fn own(&mut self, id: Id, limit: &A) -> Option<&mut A::State> {
        let entry = self.entries.find_mut(id.hash(), |entry| entry.id.is(id))?;
        (self.numbers.get(entry.numbers) == Some(limit)).then_some(&mut entry.state)
    }

    /// Returns a copy of the state at `index`, converted to the numbers of `limit`.
    pub(super) fn read(
        &self,
        index: usize,
        limit: &A,
        how: CarryOver,
        now: Time,
    ) -> Option<A::State> {
        let entry = self.entries.get_bucket(index)?;
        let from = self.numbers.get(entry.numbers)?;
        let mut state = entry.state.clone();
        if from != limit {
            limit.carry_over(from, &mut state, how, now);
        }
        Some(state)
    }

    /// Returns the state of `id` as text.
    pub(super) fn dump(&self, id: Id) -> Option<String> {
        let entry = self.entries.get_bucket(self.find(id)?)?;
        Some(format!("{:?}", entry.state))
    }

    /// Changes the state at `index`. The state must have been written under the numbers of the caller.
    #[inline]
    pub(super) fn change<T>(
        &mut self,
        index: usize,
        change: impl FnOnce(&mut A::State) -> T,
    ) -> Option<T> {
        let entry = self.entries.get_bucket_mut(index)?;
        let before = A::heap_bytes(&entry.state);
        let changed = change(&mut entry.state);
        self.heap = self.heap + A::heap_bytes(&entry.state) - before;
        Some(changed)
    }

    /// Returns whether the state of `id` was written under other numbers and has expired. Such a state is the same as a
    /// missing one.
    pub(super) fn has_expired_under_others(&self, id: Id, limit: &A, now: Time) -> bool {
        let entry = self
            .find(id)
            .and_then(|index| self.entries.get_bucket(index));
        entry.is_some_and(|entry| {
            let own = self.numbers.get(entry.numbers);
            own.is_some_and(|own| own != limit && own.expires_for(&entry.state, limit) <= now)
        })
    }

    /// Changes the state of `id`, if it exists, in the numbers that it was written under. An expired state of
    /// other numbers is first reset, and then changed in the numbers of `limit`.
    pub(super) fn change_as_written<T>(
        &mut self,
        id: Id,
        limit: &A,
        now: Time,
        change: impl FnOnce(&A, &mut A::State) -> T,
    ) -> Option<T> {
        let index = self.find(id)?;
        let entry = self.entries.get_bucket(index)?;
        let own = self.numbers.get(entry.numbers)?;
        if own != limit && own.expires_for(&entry.state, limit) <= now {
            self.carry_over(index, limit, CarryOver::Reset, now);
        }
        let entry = self.entries.get_bucket_mut(index)?;
        let own = self.numbers.get(entry.numbers)?;
        let before = A::heap_bytes(&entry.state);
        let changed = change(&own.asked_by(limit), &mut entry.state);
        self.heap = self.heap + A::heap_bytes(&entry.state) - before;
        Some(changed)
    }

    pub(super) fn insert(&mut self, id: Id, limit: &A, state: A::State) {
        self.compact_many_numbers();
        self.heap += A::heap_bytes(&state);
        let entry = Entry {
            id,
            numbers: self.numbers.index_of(limit),
            state,
        };
        self.entries
            .insert_unique(id.hash(), entry, |entry| entry.id.hash());
    }

    pub(super) fn remove(&mut self, id: Id) {
        if let Some(index) = self.find(id) {
            self.remove_at(index);
        }
    }

    fn remove_at(&mut self, index: usize) {
        if let Ok(entry) = self.entries.get_bucket_entry(index) {
            let (entry, _) = entry.remove();
            self.heap -= A::heap_bytes(&entry.state);
        }
    }

    /// Searches the next `steps` buckets, and forgets states that expired more than [`GRACE`] ago.
    pub(super) fn forget_expired(&mut self, steps: usize, now: Time) {
        let buckets = self.entries.num_buckets();
        if self.entries.is_empty() {
            return;
        }
        for _ in 0..steps.min(buckets) {
            self.cursor = if self.cursor + 1 < buckets {
                self.cursor + 1
            } else {
                0
            };
            let expired = self.entries.get_bucket(self.cursor).is_some_and(|entry| {
                let limit = self.numbers.get(entry.numbers);
                limit.is_none_or(|limit| limit.expires_at(&entry.state) + GRACE <= now)
            });
            if expired {
                self.remove_at(self.cursor);
            }
        }
    }

    /// Frees memory if the table is mostly empty.
    pub(super) fn shrink(&mut self) {
        if self.entries.num_buckets() > 64 && self.entries.len() < self.entries.num_buckets() / 8 {
            self.entries
                .shrink_to(self.entries.len() * 2, |entry| entry.id.hash());
            self.cursor = 0;
        }
    }

    /// Forgets numbers that no state uses, if there are many of them.
    fn compact_many_numbers(&mut self) {
        if self.numbers.len() > 64 && self.numbers.len() > 2 * self.entries.len() {
            self.compact_numbers();
        }
    }

    #[cold]
    fn compact_numbers(&mut self) {
        let mut kept = Numbers::new();
        for entry in &mut self.entries {
            if let Some(limit) = self.numbers.get(entry.numbers) {
                entry.numbers = kept.index_of(limit);
            }
        }
        self.numbers = kept;
    }
}

/// The distinct numbers under which the states of a table were written.
///
/// A state does not contain its numbers, so that it stays small. When the numbers of a limit change, the old
/// numbers are needed to convert the state.
struct Numbers<A> {
    known: Vec<A>,
    indexes: HashMap<A, u32>,
    /// The index that was returned last. It is tried first, because most tables see few different numbers.
    last: u32,
}

impl<A: Clone + Eq + Hash> Numbers<A> {
    fn new() -> Numbers<A> {
        Numbers {
            known: Vec::new(),
            indexes: HashMap::new(),
            last: 0,
        }
    }

    fn len(&self) -> usize {
        self.known.len()
    }

    fn bytes(&self) -> usize {
        self.known.capacity() * size_of::<A>() + self.indexes.allocation_size()
    }

    #[inline]
    fn get(&self, index: u32) -> Option<&A> {
        self.known.get(index as usize)
    }

    /// Returns the index of the numbers of `limit`. Adds the numbers if they are new.
    fn index_of(&mut self, limit: &A) -> u32 {
        if self.get(self.last) == Some(limit) {
            return self.last;
        }
        self.last = match self.indexes.get(limit) {
            Some(index) => *index,
            None => {
                // There are at most as many numbers as states, and a shard has fewer than 2^32 states.
                let index = u32::try_from(self.known.len()).unwrap_or(u32::MAX);
                self.known.push(limit.clone());
                self.indexes.insert(limit.clone(), index);
                index
            }
        };
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_core::{Rate, Span, gcra};

    #[test]
    fn an_entry_of_the_default_algorithm_is_28_bytes() {
        assert_eq!(size_of::<Entry<<Meter as Limiting>::State>>(), 28);
    }

    #[test]
    fn unused_numbers_are_forgotten() {
        let mut table = Table::<Meter>::new();
        for burst in 1..10_000 {
            let limit = gcra::new(Rate::new(1, Span::SECOND).unwrap(), burst).unwrap();
            let id = Id::of(Key::from_bits(u128::from(burst) * 0x9E37_79B9_7F4A_7C15));
            table.insert(id, &limit, limit_state(&limit));
            table.remove(id);
        }
        assert!(table.numbers.len() <= 65, "{} kept", table.numbers.len());
    }

    fn limit_state(limit: &Meter) -> <Meter as Limiting>::State {
        let mut state = Default::default();
        limit.charge(&mut state, 1, Time::from_micros(1));
        state
    }
}
