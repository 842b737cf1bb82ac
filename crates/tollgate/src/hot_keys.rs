//! Finds the subjects with the most requests, in a fixed amount of memory.
//!
//! A space-saving sketch (Metwally, Agrawal, El Abbadi 2005) follows [`PLACES`] keys. A new key
//! replaces the key with the smallest count, and inherits that count. So a count is never too small,
//! and at most 1/[`PLACES`] of all requests too large. Every key with a larger share than that is in
//! the sketch. All counts are halved from time to time, so that they show recent requests.
//!
//! The sketch samples about one request in [`ONE_IN`]. It skips a sample if another thread holds the
//! lock.

use std::cell::Cell;

use parking_lot::Mutex;
use tollgate_core::Key;

use crate::rule_outcome::RuleOutcome;

/// The number of keys that are followed.
const PLACES: usize = 128;
/// On average, one request of this many is sampled.
pub(crate) const ONE_IN: u32 = 64;
/// All counts are halved after this many sampled keys.
const HALVE_AFTER: u32 = 1 << 14;

pub(crate) struct HotKeys(Mutex<Sketch>);

#[derive(Default)]
struct Sketch {
    places: Vec<Place>,
    seen: u32,
}

#[derive(Clone, Copy)]
struct Place {
    rule: u32,
    key: Key,
    count: u32,
}

impl HotKeys {
    pub(crate) fn new() -> HotKeys {
        HotKeys(Mutex::default())
    }

    /// Makes a copy for the rules of the next config. `places` maps each old index of a rule to the new
    /// index; `None` if the rule does not exist any more.
    pub(crate) fn moved(&self, places: &[Option<u32>]) -> HotKeys {
        let sketch = self.0.lock();
        let moved = sketch.places.iter().filter_map(|place| {
            let rule = places.get(place.rule as usize).copied()??;
            Some(Place { rule, ..*place })
        });
        HotKeys(Mutex::new(Sketch {
            places: moved.collect(),
            seen: sketch.seen,
        }))
    }

    /// Samples about one request in [`ONE_IN`].
    #[inline]
    pub(crate) fn sample(&self, outcomes: &[RuleOutcome]) {
        if is_due() {
            self.look(outcomes);
        }
    }

    #[cold]
    fn look(&self, outcomes: &[RuleOutcome]) {
        let Some(mut sketch) = self.0.try_lock() else {
            return;
        };
        for outcome in outcomes {
            if let Some(key) = outcome.key {
                sketch.see(outcome.rule, key.into());
            }
        }
    }

    /// Returns the followed keys, the largest count first: rule, key, and approximate number of
    /// requests.
    pub(crate) fn most(&self) -> Vec<(u32, Key, u64)> {
        let mut places = self.0.lock().places.clone();
        places.sort_by_key(|place| std::cmp::Reverse(place.count));
        let most = places.into_iter().map(|place| {
            let requests = u64::from(place.count) * u64::from(ONE_IN);
            (place.rule, place.key, requests)
        });
        most.collect()
    }
}

impl Sketch {
    fn see(&mut self, rule: u32, key: Key) {
        let known = |place: &&mut Place| place.key == key && place.rule == rule;
        if let Some(place) = self.places.iter_mut().find(known) {
            place.count += 1;
        } else if self.places.len() < PLACES {
            let count = 1;
            self.places.push(Place { rule, key, count });
        } else if let Some(least) = self.places.iter_mut().min_by_key(|place| place.count) {
            let count = least.count + 1;
            *least = Place { rule, key, count };
        }
        self.seen += 1;
        if self.seen == HALVE_AFTER {
            self.seen = 0;
            for place in &mut self.places {
                place.count /= 2;
            }
            self.places.retain(|place| place.count > 0);
        }
    }
}

/// Returns whether this thread samples the current request. The distance between samples varies. With a
/// fixed distance, a client with a regular rhythm would be sampled always or never.
#[inline]
fn is_due() -> bool {
    thread_local! {
        static LEFT: Cell<u32> = const { Cell::new(ONE_IN) };
        static STATE: Cell<u32> = const { Cell::new(0x9E37_79B9) };
    }
    LEFT.with(|left| {
        let rest = left.get().wrapping_sub(1);
        if rest != 0 {
            left.set(rest);
            return false;
        }
        let state = STATE
            .get()
            .wrapping_mul(1_664_525)
            .wrapping_add(1_013_904_223);
        STATE.set(state);
        // Uniform from 33 to 96. The low bits of this generator are not random enough.
        left.set(ONE_IN / 2 + 1 + (state >> 26));
        true
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u32) -> Key {
        Key::from_bits(u128::from(number))
    }

    #[test]
    fn keys_with_a_large_share_are_found_among_many_others() {
        let mut sketch = Sketch::default();
        // Ten keys have 4 % each; each other key comes once.
        let mut strangers = 1000;
        for round in 0..2000 {
            for hot in 0..10 {
                sketch.see(0, key(hot));
            }
            for _ in 0..15 {
                strangers += 1;
                sketch.see(0, key(strangers));
            }
            assert!(sketch.places.len() <= PLACES, "{round}");
        }
        let hot = HotKeys(Mutex::new(sketch));
        let mut first: Vec<u128> = hot.most()[..10].iter().map(|it| it.1.bits()).collect();
        first.sort_unstable();
        assert_eq!(first, (0..10).collect::<Vec<u128>>());
    }

    #[test]
    fn one_key_of_two_rules_has_two_counts() {
        let mut sketch = Sketch::default();
        for _ in 0..5 {
            sketch.see(1, key(7));
        }
        sketch.see(2, key(7));
        let hot = HotKeys(Mutex::new(sketch));
        let each = u64::from(ONE_IN);
        assert_eq!(hot.most(), [(1, key(7), 5 * each), (2, key(7), each)]);
    }

    #[test]
    fn keys_follow_their_rule_to_its_new_index() {
        let mut sketch = Sketch::default();
        for rule in 0..3 {
            sketch.see(rule, key(rule));
        }
        let hot = HotKeys(Mutex::new(sketch)).moved(&[Some(1), None, Some(0)]);
        let each = u64::from(ONE_IN);
        assert_eq!(hot.most(), [(1, key(0), each), (0, key(2), each)]);
    }

    #[test]
    fn old_hot_keys_are_forgotten() {
        let mut sketch = Sketch::default();
        for _ in 0..1000 {
            sketch.see(0, key(1));
        }
        for number in 0..HALVE_AFTER * 12 {
            sketch.see(0, key(2 + number % 4));
        }
        assert!(sketch.places.iter().all(|place| place.key != key(1)));
    }

    #[test]
    fn about_one_request_in_64_is_looked_at() {
        let due = (0..64_000).filter(|_| is_due()).count();
        assert!((900..1100).contains(&due), "{due}");
    }
}
