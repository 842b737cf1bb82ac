//! Numbers for the attribute names in the rules. The values of a request are looked up once, and rules
//! refer to them by number.

use smallvec::SmallVec;

use crate::attributes::Attributes;

/// The number of an attribute name.
pub(crate) type AttributeId = u32;

/// The values of one request, by id.
pub(crate) type Values<'a> = SmallVec<[Option<&'a str>; INLINE]>;

/// How many values fit without an allocation.
pub(crate) const INLINE: usize = 16;

/// A hash table from names to numbers, with open addressing, at most a quarter full. It holds only
/// names of the policy, so a request cannot make its probe chains longer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Symbols {
    names: Vec<Box<str>>,
    /// Empty, or a power of two of entries.
    table: Vec<Option<Entry>>,
}

/// A name in the table: its number, and what is compared before the name itself.
#[derive(Clone, Copy, Debug)]
struct Entry {
    ends: Ends,
    id: AttributeId,
}

/// The length of a name, its first eight bytes and its last eight. They are all of a name of up to sixteen
/// bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ends {
    length: usize,
    first: u64,
    last: u64,
}

impl Ends {
    #[inline]
    fn of(name: &str) -> Ends {
        let (bytes, length) = (name.as_bytes(), name.len());
        if let (Some(first), Some(last)) = (bytes.first_chunk::<8>(), bytes.last_chunk::<8>()) {
            return Ends {
                length,
                first: u64::from_le_bytes(*first),
                last: u64::from_le_bytes(*last),
            };
        }
        // Shorter names: as many bytes as there are.
        let (first, last) = match (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
            (Some(first), Some(last)) => (
                u64::from(u32::from_le_bytes(*first)),
                u64::from(u32::from_le_bytes(*last)),
            ),
            _ => {
                let byte = |at: usize| bytes.get(at).map_or(0, |byte| u64::from(*byte));
                (byte(0) | byte(1) << 8, byte(2))
            }
        };
        Ends {
            length,
            first,
            last,
        }
    }

    /// Returns where to look for the name first.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // Only some of the bits are needed.
    fn start(self, mask: usize) -> usize {
        let mixed = self.first ^ self.last.rotate_left(29) ^ (self.length as u64) << 58;
        (mixed.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as usize & mask
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
                insert(&mut self.table, name, id);
            }
        } else {
            insert(&mut self.table, name, id);
        }
        id
    }

    pub(crate) fn name(&self, id: AttributeId) -> &str {
        self.names.get(id as usize).map_or("", |name| name)
    }

    /// Returns the number of a name that the rules use.
    #[inline(always)]
    pub(crate) fn find(&self, name: &str) -> Option<AttributeId> {
        if self.table.is_empty() {
            return None;
        }
        let (mask, ends) = (self.table.len() - 1, Ends::of(name));
        let mut at = ends.start(mask);
        while let Some(entry) = self.table[at] {
            if entry.ends == ends && (ends.length <= 16 || *self.names[entry.id as usize] == *name)
            {
                return Some(entry.id);
            }
            at = (at + 1) & mask;
        }
        None
    }

    /// Returns how many names there are.
    #[inline]
    pub(crate) fn count(&self) -> usize {
        self.names.len()
    }

    /// Puts the values of `attributes` into `values`, by id.
    #[inline]
    pub(crate) fn fill<'a>(&self, attributes: &Attributes<'a>, values: &mut [Option<&'a str>]) {
        for (name, value) in attributes.iter() {
            if let Some(place) = self.find(name).and_then(|id| values.get_mut(id as usize)) {
                *place = Some(value);
            }
        }
    }
}

fn insert(table: &mut [Option<Entry>], name: &str, id: AttributeId) {
    let (mask, ends) = (table.len() - 1, Ends::of(name));
    let mut at = ends.start(mask);
    while table[at].is_some() {
        at = (at + 1) & mask;
    }
    table[at] = Some(Entry { ends, id });
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

    /// Names with the same first and last characters have numbers of their own, and so have names of each length.
    #[test]
    fn similar_names_have_their_own_numbers() {
        let mut symbols = Symbols::default();
        let mut names: Vec<String> = (0..40).map(|length| "x".repeat(length)).collect();
        names.extend(["first-eight-last", "first-eigh1-last"].map(String::from));
        names.extend((0..9).map(|n| format!("12345678 and {n} and 12345678")));
        names.extend(["ab", "abc", "ac", "acb", "abcd", "abdc"].map(String::from));
        for (index, name) in names.iter().enumerate() {
            assert_eq!(symbols.intern(name) as usize, index, "{name}");
        }
        for (index, name) in names.iter().enumerate() {
            assert_eq!(symbols.find(name).map(|id| id as usize), Some(index));
        }
        for unknown in [
            "12345678 and 9 and 12345678",
            "abd",
            "first-eigh2-last",
            "y",
        ] {
            assert_eq!(symbols.find(unknown), None, "{unknown}");
        }
    }
}
