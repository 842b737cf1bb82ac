//! The clients that a fair bucket remembers, in two generations.
//!
//! A client moves to the current generation when it is admitted or denied. After [`MEMORY`] the current
//! generation becomes the previous one, and the one before it is forgotten. So forgetting costs nothing
//! per request, and the number of clients is bounded.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::{Asker, Fair, MAX_CLIENTS, MAX_LANES, MEMORY};
use crate::units::Time;

/// The id that clients of the first lane share when there are too many of them. The other lanes have the ids
/// below it.
pub(super) const SHARED: u64 = u64::MAX;

/// What a bucket knows of one client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Mark {
    /// What the client got, divided by its weight.
    pub(super) got: u64,
    pub(super) weight: u32,
    /// One more than the contention epoch in which the client was last denied; 0 for never.
    contended: u64,
}

impl Mark {
    /// Returns whether the client was denied in contention epoch `epoch`, or in one of the `epochs - 1` before it.
    #[inline]
    fn was_denied_within(self, epochs: u64, epoch: u64) -> bool {
        self.contended > 0 && self.contended + epochs > epoch + 1
    }
}

/// The sums of weights of one lane, of the current and the previous generation or epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Weights {
    known: [u64; 2],
    contending: [u64; 2],
    /// The highest level, in units, that a denied client needed. Clients that were ahead do not count.
    wanted: [u64; 2],
}

impl Weights {
    /// Returns the weights of all clients that are known.
    pub(super) fn known(self) -> u64 {
        self.known[0] + self.known[1]
    }

    /// Returns the weights of the clients that were denied in this contention epoch or the one before it.
    pub(super) fn contending(self) -> u64 {
        self.contending[0] + self.contending[1]
    }

    /// Returns the highest level that was wanted in this contention epoch or the one before it.
    pub(super) fn wanted(self) -> u64 {
        self.wanted[0].max(self.wanted[1])
    }

    /// Notes that a denied client needs this level.
    pub(super) fn want(&mut self, level: u64) {
        self.wanted[0] = self.wanted[0].max(level);
    }

    /// Begins new contention epochs.
    fn begin_epochs(&mut self, epochs: u64) {
        turn(&mut self.contending, epochs);
        turn(&mut self.wanted, epochs);
    }
}

/// Ids are keyed hashes already.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 ^= value;
    }
}

type Marks = HashMap<u64, Mark, BuildHasherDefault<IdHasher>>;

/// All clients of a bucket.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Clients {
    /// The number of the current generation.
    generation: u64,
    /// The number of the current contention epoch.
    epoch: u64,
    /// Whether clients that are not known share a mark in this generation.
    is_closed: bool,
    current: Marks,
    previous: Marks,
    weights: [Weights; MAX_LANES],
    /// How far the marks of the previous generation are above those of the current one, by lane.
    shift: [u64; MAX_LANES],
}

/// One client, read from the state at one instant. [`Clients::write`] writes it back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    id: u64,
    lane: usize,
    pub(super) mark: Mark,
    /// Whether the client was not known.
    pub(super) is_new: bool,
    /// The weight under which the sums count the client; 0 if they do not.
    counted: u64,
    /// The index of the generation that has the client.
    from: usize,
    /// How many generations and epochs have passed since the state was written.
    generations: u64,
    epochs: u64,
    generation: u64,
    epoch: u64,
    /// The sums of the client's lane at this instant.
    pub(super) weights: Weights,
}

impl Seen {
    /// Returns whether the client was denied in this contention epoch or the one before it.
    pub(super) fn is_contending(&self) -> bool {
        self.mark.was_denied_within(2, self.epoch)
    }

    /// Returns whether the client was denied within [`MEMORY`].
    pub(super) fn was_denied(&self, limit: &Fair) -> bool {
        self.mark
            .was_denied_within(limit.epochs_of_memory(), self.epoch)
    }

    /// Notes that the client is denied.
    pub(super) fn contend(&mut self) {
        let weight = u64::from(self.mark.weight);
        if self.mark.contended == self.epoch + 1 {
            return;
        }
        if self.mark.contended == self.epoch && self.mark.contended > 0 {
            let before = &mut self.weights.contending[1];
            *before = before.saturating_sub(weight);
        }
        self.mark.contended = self.epoch + 1;
        self.weights.contending[0] += weight;
    }
}

impl Clients {
    /// Returns how many clients are known.
    pub(super) fn len(&self) -> usize {
        self.current.len() + self.previous.len()
    }

    /// Returns the bytes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        // A table has up to 8 places for 7 entries, and a byte beside each place.
        let places = self.current.capacity() + self.previous.capacity();
        (places * 8).div_ceil(7) * (size_of::<(u64, Mark)>() + 1)
    }

    /// Returns the weights of the clients of a lane that are known when `generations` have begun since the
    /// last write.
    pub(super) fn known_in(&self, lane: usize, generations: u64) -> u64 {
        let mut known = self.weights[lane].known;
        turn(&mut known, generations);
        known[0] + known[1]
    }

    /// Returns the end of the time for which the clients are remembered.
    pub(super) fn until(&self) -> Time {
        match self.len() {
            0 => Time::default(),
            _ => Time::from_micros((self.generation + 2).saturating_mul(MEMORY.as_micros())),
        }
    }

    /// Returns how many generations have begun since the state was written. The virtual times of the
    /// lanes have to be shifted if there is one.
    pub(super) fn generations_until(&self, now: Time) -> u64 {
        generation_at(now).saturating_sub(self.generation)
    }

    /// Returns whether no generation and no epoch begins by `now`.
    #[inline]
    pub(super) fn are_current(&self, limit: &Fair, now: Time) -> bool {
        let generation_ends = (self.generation + 1).saturating_mul(MEMORY.as_micros());
        let epoch_ends = (self.epoch + 1).saturating_mul(limit.epoch());
        now.as_micros() < generation_ends.min(epoch_ends)
    }

    /// Returns the mark of the client of `limit`, and the client as a decision sees it, if the sums count the client
    /// in the current generation with its present weight. No generation and no epoch may have begun.
    #[inline]
    pub(super) fn known(&mut self, limit: &Fair) -> Option<(&mut Mark, Asker)> {
        let client = limit.client();
        let mark = self.current.get_mut(&limit.mark_id())?;
        if mark.weight != client.weight {
            return None;
        }
        let weights = self.weights.get(usize::from(client.lane))?;
        let asker = Asker {
            got: mark.got,
            is_new: false,
            is_contending: mark.was_denied_within(2, self.epoch),
            was_denied: mark.was_denied_within(limit.epochs_of_memory(), self.epoch),
            known: weights.known(),
            contending: weights.contending(),
            wanted: weights.wanted(),
        };
        Some((mark, asker))
    }

    /// Reads the client of `limit`. `shift` is how far virtual times move back if a new generation begins.
    pub(super) fn read(&self, limit: &Fair, shift: u64, now: Time) -> Seen {
        let client = limit.client();
        let lane = usize::from(client.lane);
        let generation = generation_at(now).max(self.generation);
        let epoch = limit.epoch_at(now).max(self.epoch);
        let (generations, epochs) = (generation - self.generation, epoch - self.epoch);
        let mut weights = self.weights[lane];
        turn(&mut weights.known, generations);
        weights.begin_epochs(epochs);
        let find = |id| self.find(id, generations, lane, shift);
        let mut id = limit.mark_id();
        let mut found = find(id);
        let is_closed = self.is_closed && generations == 0;
        if found.is_none() && (is_closed || self.len() >= MAX_CLIENTS) {
            id = SHARED - u64::from(client.lane);
            found = find(id);
        }
        let (mark, from) = found.unwrap_or_default();
        let mut seen = Seen {
            id,
            lane,
            mark,
            is_new: found.is_none(),
            counted: u64::from(mark.weight),
            from,
            generations,
            epochs,
            generation,
            epoch,
            weights,
        };
        seen.mark.weight = client.weight;
        // The sums count the client in the current generation from now on, with its present weight.
        let known = &mut seen.weights.known;
        known[from] = known[from].saturating_sub(seen.counted);
        known[0] += u64::from(client.weight);
        seen
    }

    /// Returns the mark of a client, and the index of its generation.
    fn find(&self, id: u64, generations: u64, lane: usize, shift: u64) -> Option<(Mark, usize)> {
        let lowered = |mark: &Mark, by: u64| Mark {
            got: mark.got.saturating_sub(by),
            ..*mark
        };
        match generations {
            0 => match self.current.get(&id) {
                Some(mark) => Some((*mark, 0)),
                None => {
                    let mark = self.previous.get(&id)?;
                    Some((lowered(mark, self.shift[lane]), 1))
                }
            },
            1 => Some((lowered(self.current.get(&id)?, shift), 1)),
            _ => None,
        }
    }

    /// Begins new generations and epochs, and writes a client. `shifts` is the shift of each lane.
    pub(super) fn write(&mut self, seen: &Seen, shifts: &[u64; MAX_LANES]) {
        if seen.generations > 0 {
            let before = std::mem::take(&mut self.current);
            self.previous = match seen.generations {
                1 => before,
                _ => Marks::default(),
            };
            self.is_closed = false;
            self.shift = *shifts;
            self.generation = seen.generation;
        }
        for weights in &mut self.weights {
            turn(&mut weights.known, seen.generations);
            weights.begin_epochs(seen.epochs);
        }
        self.epoch = seen.epoch;
        self.weights[seen.lane] = seen.weights;
        if seen.from == 1 {
            self.previous.remove(&seen.id);
        }
        self.current.insert(seen.id, seen.mark);
    }

    /// Makes clients that are not known share a mark, until the next generation begins.
    pub(super) fn close(&mut self) {
        self.is_closed = true;
    }

    /// Forgets the levels that clients wanted: the bucket gets other numbers.
    pub(super) fn forget_wanted(&mut self) {
        for weights in &mut self.weights {
            weights.wanted = [0; 2];
        }
    }

    /// Forgets all clients. Epochs may have another length from now on, so they are counted anew.
    pub(super) fn clear(&mut self) {
        *self = Clients {
            generation: self.generation,
            ..Clients::default()
        };
    }
}

fn generation_at(now: Time) -> u64 {
    now.as_micros() / MEMORY.as_micros()
}

/// Makes the current sum the previous one, once for each turn.
fn turn(sums: &mut [u64; 2], turns: u64) {
    match turns {
        0 => {}
        1 => *sums = [0, sums[0]],
        _ => *sums = [0, 0],
    }
}
