//! Finds the subjects with the most requests, in a fixed amount of memory.
//!
//! A space-saving sketch (Metwally, Agrawal, El Abbadi 2005) follows [`PLACES`] keys. A new key
//! replaces the key with the smallest count, and inherits that count. So a count is never too small,
//! and at most 1/[`PLACES`] of all requests too large. Every key with a larger share than that is in
//! the sketch. All counts are halved from time to time, so that they show recent requests.
//!
//! The sketch samples about one request in [`ONE_IN`]. It skips a sample if another thread holds the
//! lock.
//!
//! One sketch follows the keys of all rules. Each rule that was sampled has a smaller sketch of its own, so that
//! a rule with little traffic has its busiest subjects too.

use std::cell::Cell;
use std::collections::HashMap;

use parking_lot::Mutex;
use tollgate_core::Key;

use crate::rule_outcome::RuleOutcome;

/// The number of keys that are followed.
const PLACES: usize = 128;
/// The number of keys of one rule that are followed in addition.
const PLACES_OF_RULE: usize = 32;
/// On average, one request of this many is sampled.
pub(crate) const ONE_IN: u32 = 64;
/// All counts of a sketch are halved after this many sampled keys for each of its places.
const HALVE_AFTER: u32 = 128;

pub(crate) struct HotKeys(Mutex<Sketches>);

struct Sketches {
    all: Sketch,
    of_rules: HashMap<u32, Sketch>,
}

struct Sketch {
    /// The most keys that are followed.
    room: usize,
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
        HotKeys(Mutex::new(Sketches {
            all: Sketch::new(PLACES),
            of_rules: HashMap::new(),
        }))
    }

    /// Makes a copy for the rules of the next config. `places` maps each old index of a rule to the new
    /// index; `None` if the rule does not exist any more.
    pub(crate) fn moved(&self, places: &[Option<u32>]) -> HotKeys {
        let sketches = self.0.lock();
        let now = |rule: u32| places.get(rule as usize).copied()?;
        let moved = |sketch: &Sketch| Sketch {
            room: sketch.room,
            places: sketch
                .places
                .iter()
                .filter_map(|place| {
                    let rule = now(place.rule)?;
                    Some(Place { rule, ..*place })
                })
                .collect(),
            seen: sketch.seen,
        };
        let of_rules = sketches.of_rules.iter();
        let of_rules = of_rules.filter_map(|(rule, sketch)| Some((now(*rule)?, moved(sketch))));
        HotKeys(Mutex::new(Sketches {
            all: moved(&sketches.all),
            of_rules: of_rules.collect(),
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
        let Some(mut sketches) = self.0.try_lock() else {
            return;
        };
        for outcome in outcomes {
            if let Some(key) = outcome.key {
                sketches.see(outcome.rule, key.into());
            }
        }
    }

    /// Returns the followed keys, the largest count first: rule, key, and approximate number of
    /// requests.
    pub(crate) fn most(&self) -> Vec<(u32, Key, u64)> {
        sorted(self.0.lock().all.places.clone())
    }

    /// Returns the followed keys of one rule, the largest count first.
    pub(crate) fn most_of(&self, rule: u32) -> Vec<(u32, Key, u64)> {
        let sketches = self.0.lock();
        let sketch = sketches.of_rules.get(&rule);
        let places = sketch.map(|it| it.places.clone());
        drop(sketches);
        sorted(places.unwrap_or_default())
    }
}

fn sorted(mut places: Vec<Place>) -> Vec<(u32, Key, u64)> {
    places.sort_by_key(|place| std::cmp::Reverse(place.count));
    let most = places.into_iter().map(|place| {
        let requests = u64::from(place.count) * u64::from(ONE_IN);
        (place.rule, place.key, requests)
    });
    most.collect()
}

impl Sketches {
    fn see(&mut self, rule: u32, key: Key) {
        self.all.see(rule, key);
        let of_rule = self.of_rules.entry(rule);
        let of_rule = of_rule.or_insert_with(|| Sketch::new(PLACES_OF_RULE));
        of_rule.see(rule, key);
    }
}

impl Sketch {
    fn new(room: usize) -> Sketch {
        Sketch {
            room,
            places: Vec::new(),
            seen: 0,
        }
    }

    fn see(&mut self, rule: u32, key: Key) {
        let known = |place: &&mut Place| place.key == key && place.rule == rule;
        if let Some(place) = self.places.iter_mut().find(known) {
            place.count += 1;
        } else if self.places.len() < self.room {
            let count = 1;
            self.places.push(Place { rule, key, count });
        } else if let Some(least) = self.places.iter_mut().min_by_key(|place| place.count) {
            let count = least.count + 1;
            *least = Place { rule, key, count };
        }
        self.seen += 1;
        if self.seen as usize >= HALVE_AFTER as usize * self.room {
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
        let hot = HotKeys::new();
        let mut sketch = hot.0.lock();
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
            assert!(sketch.all.places.len() <= PLACES, "{round}");
            assert!(sketch.of_rules[&0].places.len() <= PLACES_OF_RULE);
        }
        drop(sketch);
        let mut first: Vec<u128> = hot.most()[..10].iter().map(|it| it.1.bits()).collect();
        first.sort_unstable();
        assert_eq!(first, (0..10).collect::<Vec<u128>>());
    }

    #[test]
    fn one_key_of_two_rules_has_two_counts() {
        let hot = HotKeys::new();
        for _ in 0..5 {
            hot.0.lock().see(1, key(7));
        }
        hot.0.lock().see(2, key(7));
        let each = u64::from(ONE_IN);
        assert_eq!(hot.most(), [(1, key(7), 5 * each), (2, key(7), each)]);
    }

    #[test]
    fn rule_with_few_requests_has_its_own_busiest_keys() {
        let hot = HotKeys::new();
        for number in 0..1000 {
            // Every key of the first rule comes more often than those of the second.
            for _ in 0..2 {
                hot.0.lock().see(0, key(number % 200));
            }
            if number % 200 == 0 {
                hot.0.lock().see(1, key(7));
            }
        }
        let each = u64::from(ONE_IN);
        assert_eq!(hot.most_of(1), [(1, key(7), 5 * each)]);
        assert_eq!(hot.most_of(2), []);
        assert_eq!(hot.most_of(0).len(), PLACES_OF_RULE);
    }

    #[test]
    fn keys_follow_their_rule_to_its_new_index() {
        let hot = HotKeys::new();
        for rule in 0..3 {
            hot.0.lock().see(rule, key(rule));
        }
        let hot = hot.moved(&[Some(1), None, Some(0)]);
        let each = u64::from(ONE_IN);
        assert_eq!(hot.most(), [(1, key(0), each), (0, key(2), each)]);
        assert_eq!(hot.most_of(0), [(0, key(2), each)]);
        assert_eq!(hot.most_of(1), [(1, key(0), each)]);
        assert_eq!(hot.most_of(2), []);
    }

    #[test]
    fn old_hot_keys_are_forgotten() {
        let mut sketch = Sketch::new(PLACES);
        for _ in 0..1000 {
            sketch.see(0, key(1));
        }
        for number in 0..HALVE_AFTER * 128 * 12 {
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
