//! Finds the rules that may apply to a request without checking all of them.
//!
//! A rule with conditions on exact values has a guard: the condition that it shares with the fewest
//! other rules. The index looks up the request's values of the guarded attributes. Only the rules found
//! by these values, and the rules without a guard, are checked, in the order of the file.
//!
//! A network is an exact value too: an address is looked up once for each prefix length that a guard has.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use smallvec::SmallVec;

use crate::address::{NetworkMap, parse_address};
use crate::pattern::Exact;
use crate::symbols::{AttributeId, Values};

/// Fewer rules than this are checked one by one, which is faster.
const FEW: usize = 8;

/// The rules that may concern a request.
pub(crate) type Candidates = SmallVec<[u32; 32]>;

/// Rules by the values that their guards accept.
#[derive(Debug, Default)]
pub(crate) struct Index {
    guards: Vec<Guard>,
    unguarded: Box<[u32]>,
}

#[derive(Debug)]
struct Guard {
    id: AttributeId,
    rules: HashMap<Box<str>, Vec<u32>, RandomState>,
    networks: NetworkMap<Vec<u32>>,
}

/// The conditions of a rule that ask for exact values.
pub(crate) type Guards<'r> = Vec<(AttributeId, Vec<Exact<'r>>)>;

impl Index {
    /// Makes an index of rules by the exact values that they ask for. `None` stands for a rule that the
    /// index must not find.
    pub(crate) fn new(rules: &[Option<Guards<'_>>]) -> Index {
        let mut shared: HashMap<(AttributeId, Exact<'_>), usize> = HashMap::new();
        let conditions = rules.iter().flatten().flatten();
        for (id, values) in conditions {
            for value in values {
                *shared.entry((*id, *value)).or_default() += 1;
            }
        }
        let mut index = Index::default();
        let mut unguarded = Vec::new();
        let few = rules.len() < FEW;
        for (place, rule) in (0..).zip(rules) {
            let Some(conditions) = rule else { continue };
            let most_shared = |(id, values): &&(AttributeId, Vec<Exact<'_>>)| {
                let shared = values.iter().map(|value| shared[&(*id, *value)]);
                shared.max().unwrap_or(0)
            };
            match conditions.iter().min_by_key(most_shared).filter(|_| !few) {
                Some((id, values)) => index.guard(*id, values, place),
                None => unguarded.push(place),
            }
        }
        index.unguarded = unguarded.into();
        index
    }

    fn guard(&mut self, id: AttributeId, values: &[Exact<'_>], rule: u32) {
        let known = self.guards.iter().position(|guard| guard.id == id);
        let place = known.unwrap_or_else(|| {
            self.guards.push(Guard {
                id,
                rules: HashMap::default(),
                networks: NetworkMap::default(),
            });
            self.guards.len() - 1
        });
        let Guard {
            rules, networks, ..
        } = &mut self.guards[place];
        for value in values {
            let of_value = match value {
                Exact::Text(text) => rules.entry((*text).into()).or_default(),
                Exact::Network(network) => networks.entry(*network),
            };
            // A value that is listed twice finds the rule once.
            if of_value.last() != Some(&rule) {
                of_value.push(rule);
            }
        }
    }

    /// Returns the rules that may concern a request with these values. `found` is the place for a list that
    /// depends on the values.
    #[inline]
    pub(crate) fn find<'f>(&'f self, values: &Values<'_>, found: &'f mut Candidates) -> &'f [u32] {
        if !self.guards.is_empty() {
            self.find_guarded(values, found);
            return found;
        }
        &self.unguarded
    }

    fn find_guarded(&self, values: &Values<'_>, found: &mut Candidates) {
        found.extend_from_slice(&self.unguarded);
        let before = found.len();
        for guard in &self.guards {
            let Some(value) = values[guard.id as usize] else {
                continue;
            };
            if let Some(rules) = guard.rules.get(value) {
                found.extend_from_slice(rules);
            }
            if !guard.networks.is_empty()
                && let Some(address) = parse_address(value)
            {
                for rules in guard.networks.all(address) {
                    found.extend_from_slice(rules);
                }
            }
        }
        if found.len() > before {
            found.sort_unstable();
            // Several networks of one rule may contain the address.
            found.dedup();
        }
    }
}
