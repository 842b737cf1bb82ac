//! Numbers for the attribute names in the rules. The values of a request are looked up once, and rules
//! refer to them by number.

use std::hash::BuildHasher;

use foldhash::fast::FixedState;
use smallvec::SmallVec;

use crate::attributes::Attributes;

/// The number of an attribute name.
pub(crate) type AttributeId = u32;

/// The values of one request, by id.
pub(crate) type Values<'a> = SmallVec<[Option<&'a str>; 16]>;

/// A hash table from names to numbers, with open addressing, at most a quarter full. It holds only
/// names of the policy, so a request cannot make its probe chains longer.
#[derive(Clone, Debug)]
pub(crate) struct Symbols {
    names: Vec<Box<str>>,
    table: Vec<Option<AttributeId>>,
    hasher: FixedState,
}

impl Default for Symbols {
    fn default() -> Symbols {
        Symbols {
            names: Vec::new(),
            table: Vec::new(),
            hasher: FixedState::with_seed(0),
        }
    }
}

impl Symbols {
    /// Returns the number of `name`. A new name gets the next number.
    pub(crate) fn intern(&mut self, name: &str) -> AttributeId {
        if let Some(id) = self.find(name) {
            return id;
        }
        let id = AttributeId::try_from(self.names.len()).unwrap_or(AttributeId::MAX);
        self.names.push(name.into());
        if self.names.len() * 4 > self.table.len() {
            self.table = vec![None; (self.names.len() * 8).next_power_of_two()];
            for (index, name) in self.names.iter().enumerate() {
                let id = AttributeId::try_from(index).unwrap_or(AttributeId::MAX);
                insert(&mut self.table, &self.hasher, name, id);
            }
        } else {
            insert(&mut self.table, &self.hasher, name, id);
        }
        id
    }

    pub(crate) fn name(&self, id: AttributeId) -> &str {
        self.names.get(id as usize).map_or("", |name| name)
    }

    /// Returns the number of a name that the rules use.
    #[inline]
    pub(crate) fn find(&self, name: &str) -> Option<AttributeId> {
        if self.table.is_empty() {
            return None;
        }
        let mask = self.table.len() - 1;
        let mut at = start(&self.hasher, name, mask);
        while let Some(id) = self.table[at] {
            if *self.names[id as usize] == *name {
                return Some(id);
            }
            at = (at + 1) & mask;
        }
        None
    }

    /// Puts the values of `attributes` into `values`, by id.
    #[inline]
    pub(crate) fn fill<'a>(&self, attributes: &Attributes<'a>, values: &mut Values<'a>) {
        values.resize(self.names.len(), None);
        for (name, value) in attributes.iter() {
            if let Some(id) = self.find(name) {
                values[id as usize] = Some(value);
            }
        }
    }
}

#[inline]
fn start(hasher: &FixedState, name: &str, mask: usize) -> usize {
    // The cast keeps only the low bits of the hash.
    #[allow(clippy::cast_possible_truncation)]
    let hash = hasher.hash_one(name) as usize;
    hash & mask
}

fn insert(table: &mut [Option<AttributeId>], hasher: &FixedState, name: &str, id: AttributeId) {
    let mask = table.len() - 1;
    let mut at = start(hasher, name, mask);
    while table[at].is_some() {
        at = (at + 1) & mask;
    }
    table[at] = Some(id);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_keep_their_numbers() {
        let mut symbols = Symbols::default();
        assert_eq!(symbols.find("a"), None);
        let names: Vec<String> = (0..1000).map(|n| format!("name{n}")).collect();
        for (index, name) in names.iter().enumerate() {
            assert_eq!(symbols.intern(name) as usize, index);
            assert_eq!(symbols.intern(name) as usize, index);
        }
        for (index, name) in names.iter().enumerate() {
            assert_eq!(symbols.find(name).map(|id| id as usize), Some(index));
            assert_eq!(symbols.name(AttributeId::try_from(index).unwrap()), name);
        }
        assert_eq!(symbols.find("name1000"), None);
    }
}
