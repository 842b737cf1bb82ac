//! Tokens that were verified before, by their hash, until they expire.
//!
//! A signature costs far more than a lookup. The key of an entry is the whole BLAKE3 hash of the token, so
//! nobody can make a token that is taken for another. A change of the keys makes all entries invalid.
//!
//! Bounded: each shard has a young and an old half. A full young half becomes the old one, and the old one
//! is dropped. An entry that is found in the old half moves to the young one.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tollgate::Time;

use super::Pair;

const SHARDS: usize = 16;
/// The most entries of a half: 32,768 tokens in all.
const MAX_HALF: usize = 1024;

type Hash = [u8; 32];

#[derive(Default)]
pub(super) struct Verified([Mutex<Shard>; SHARDS]);

#[derive(Default)]
struct Shard {
    young: HashMap<Hash, Entry>,
    old: HashMap<Hash, Entry>,
}

#[derive(Clone)]
struct Entry {
    attributes: Arc<[Pair]>,
    expires: Time,
    /// The generation of the keys that verified the token.
    keys: u64,
}

impl Verified {
    fn shard(&self, hash: &Hash) -> &Mutex<Shard> {
        &self.0[usize::from(hash[0]) % SHARDS]
    }

    /// Returns the attributes of a token that these keys have verified, if it has not expired.
    pub(super) fn find(&self, hash: &Hash, keys: u64, now: Time) -> Option<Arc<[Pair]>> {
        let mut shard = self.shard(hash).lock();
        let is_valid = |entry: &Entry| entry.keys == keys && now < entry.expires;
        if let Some(entry) = shard.young.get(hash) {
            return is_valid(entry).then(|| Arc::clone(&entry.attributes));
        }
        let entry = shard.old.remove(hash).filter(is_valid)?;
        let attributes = Arc::clone(&entry.attributes);
        shard.add(*hash, entry);
        Some(attributes)
    }

    pub(super) fn add(&self, hash: Hash, keys: u64, expires: Time, attributes: Arc<[Pair]>) {
        let entry = Entry {
            attributes,
            expires,
            keys,
        };
        self.shard(&hash).lock().add(hash, entry);
    }
}

impl Shard {
    fn add(&mut self, hash: Hash, entry: Entry) {
        if self.young.len() >= MAX_HALF && !self.young.contains_key(&hash) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(hash, entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(number: u32) -> Hash {
        *blake3::hash(&number.to_le_bytes()).as_bytes()
    }

    #[test]
    fn entry_is_valid_until_it_expires_and_for_its_keys() {
        let verified = Verified::default();
        let expires = Time::from_micros(10);
        verified.add(hash(1), 7, expires, Arc::new([]));
        assert!(verified.find(&hash(1), 7, Time::from_micros(9)).is_some());
        assert!(verified.find(&hash(1), 7, expires).is_none());
        assert!(verified.find(&hash(1), 8, Time::from_micros(9)).is_none());
        assert!(verified.find(&hash(2), 7, Time::from_micros(9)).is_none());
    }

    #[test]
    fn entries_are_bounded_and_those_in_use_stay() {
        let verified = Verified::default();
        let (now, expires) = (Time::from_micros(1), Time::from_micros(10));
        verified.add(hash(0), 1, expires, Arc::new([]));
        for number in 1..200_000 {
            verified.add(hash(number), 1, expires, Arc::new([]));
            if number % 1000 == 0 {
                assert!(verified.find(&hash(0), 1, now).is_some(), "{number}");
            }
        }
        let shards = verified.0.iter().map(Mutex::lock);
        let held: usize = shards.map(|it| it.young.len() + it.old.len()).sum();
        assert!(held <= 2 * SHARDS * MAX_HALF, "{held}");
    }
}
