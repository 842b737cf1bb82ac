//! Counts by name, in a bounded number of rows. Names after the bound are counted together.

use hashbrown::HashMap;

/// How many requests were allowed and denied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counts {
    /// The requests that were allowed.
    pub allowed: u64,
    /// The requests that were denied.
    pub denied: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, is_allowed: bool) {
        match is_allowed {
            true => self.allowed += 1,
            false => self.denied += 1,
        }
    }

    /// Returns all requests.
    #[must_use]
    pub fn requests(self) -> u64 {
        self.allowed + self.denied
    }
}

/// Counts by name.
#[derive(Debug)]
pub(crate) struct Tally {
    rows: HashMap<Box<str>, Counts>,
    most: usize,
    /// The requests with names that have no row.
    pub(crate) other: Counts,
}

impl Tally {
    pub(crate) fn new(most: usize) -> Tally {
        Tally {
            rows: HashMap::new(),
            most,
            other: Counts::default(),
        }
    }

    pub(crate) fn add(&mut self, name: &str, is_allowed: bool) {
        if let Some(counts) = self.rows.get_mut(name) {
            return counts.add(is_allowed);
        }
        if self.rows.len() >= self.most {
            return self.other.add(is_allowed);
        }
        let mut counts = Counts::default();
        counts.add(is_allowed);
        self.rows.insert(name.into(), counts);
    }

    pub(crate) fn get(&self, name: &str) -> Counts {
        self.rows.get(name).copied().unwrap_or_default()
    }

    /// Returns the rows, by name.
    pub(crate) fn rows(&self) -> Vec<(&str, Counts)> {
        let rows = self.rows.iter();
        let mut rows: Vec<(&str, Counts)> = rows.map(|(name, counts)| (&**name, *counts)).collect();
        rows.sort_unstable_by_key(|(name, _)| *name);
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_after_the_bound_are_counted_together() {
        let mut tally = Tally::new(2);
        for name in ["a", "b", "c", "a", "d"] {
            tally.add(name, name == "a");
        }
        let one = Counts {
            allowed: 0,
            denied: 1,
        };
        let two = Counts {
            allowed: 2,
            denied: 0,
        };
        assert_eq!(tally.rows(), [("a", two), ("b", one)]);
        assert_eq!(
            tally.other,
            Counts {
                allowed: 0,
                denied: 2
            }
        );
        assert_eq!(tally.get("c"), Counts::default());
    }
}
