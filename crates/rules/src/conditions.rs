//! Conditions on the attributes of a request, compiled from `match`.

use std::sync::Arc;

use crate::address::{self, NetworkMap};
use crate::pattern::Pattern;
use crate::symbols::AttributeId;

/// Conditions on attributes, all of which must hold.
pub(crate) type Conditions = Box<[(AttributeId, Accepted)]>;

/// The patterns that a condition accepts. A single pattern needs no list, and networks are looked
/// up, not searched.
#[derive(Debug)]
pub(crate) enum Accepted {
    Exact(Box<str>),
    One(Pattern),
    Any(Arc<[Pattern]>),
    Networks(NetworkMap<()>),
}

impl Accepted {
    #[inline]
    pub(crate) fn takes(&self, value: Option<&str>) -> bool {
        match (self, value) {
            (_, None) => false,
            (Accepted::Exact(text), Some(value)) => **text == *value,
            (_, Some(value)) => self.takes_by_pattern(value),
        }
    }

    fn takes_by_pattern(&self, value: &str) -> bool {
        match self {
            Accepted::Exact(text) => **text == *value,
            Accepted::One(pattern) => pattern.matches(value),
            Accepted::Any(patterns) => patterns.iter().any(|pattern| pattern.matches(value)),
            Accepted::Networks(networks) => address::parse_address(value)
                .is_some_and(|address| networks.all(address).next().is_some()),
        }
    }
}
