//! Conditions on the attributes of a request, compiled from `match`.

use std::sync::Arc;

use crate::address::{self, NetworkMap};
use crate::pattern::Pattern;
use crate::symbols::AttributeId;

/// Conditions on attributes, all of which must hold.
pub(crate) type Conditions = Box<[(AttributeId, Accepted)]>;

/// The values that a condition accepts. The common forms are compared inline, and networks are looked up, not
/// searched.
#[derive(Debug)]
pub(crate) enum Accepted {
    Exact(Box<str>),
    /// One of these texts.
    Texts(Box<[Box<str>]>),
    /// A text that begins like this.
    Prefix(Box<str>),
    One(Pattern),
    Any(Arc<[Pattern]>),
    Networks(NetworkMap<()>),
}

impl Accepted {
    #[inline(always)]
    pub(crate) fn takes(&self, value: Option<&str>) -> bool {
        let Some(value) = value else { return false };
        let bytes = value.as_bytes();
        match self {
            Accepted::Exact(text) => is_same(text.as_bytes(), bytes),
            Accepted::Texts(texts) => texts.iter().any(|text| is_same(text.as_bytes(), bytes)),
            Accepted::Prefix(text) => {
                let head = bytes.get(..text.len());
                head.is_some_and(|head| is_same(text.as_bytes(), head))
            }
            _ => self.takes_by_pattern(value),
        }
    }

    #[inline(never)]
    fn takes_by_pattern(&self, value: &str) -> bool {
        match self {
            Accepted::One(pattern) => pattern.matches(value),
            Accepted::Any(patterns) => patterns.iter().any(|pattern| pattern.matches(value)),
            Accepted::Networks(networks) => address::parse_address(value)
                .is_some_and(|address| networks.all(address).next().is_some()),
            // These are compared inline.
            Accepted::Exact(_) | Accepted::Texts(_) | Accepted::Prefix(_) => false,
        }
    }
}

/// Whether two texts are the same. For texts of 4 to 16 bytes, which most are, this takes two comparisons and no
/// call.
#[inline(always)]
fn is_same(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    if a.len() <= 16 {
        if let (Some(a_first), Some(b_first)) = (a.first_chunk::<8>(), b.first_chunk::<8>()) {
            return a_first == b_first && a.last_chunk::<8>() == b.last_chunk::<8>();
        }
        if let (Some(a_first), Some(b_first)) = (a.first_chunk::<4>(), b.first_chunk::<4>()) {
            return a_first == b_first && a.last_chunk::<4>() == b.last_chunk::<4>();
        }
    }
    a == b
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts of each length, and texts that differ in one byte.
    #[test]
    fn same_texts_are_found_whatever_their_length() {
        for length in 0..40 {
            let text = vec![b'x'; length];
            assert!(is_same(&text, &text.clone()));
            assert!(!is_same(&text, &vec![b'x'; length + 1]));
            for at in 0..length {
                let mut other = text.clone();
                other[at] = b'y';
                assert!(!is_same(&text, &other), "byte {at} of {length}");
            }
        }
    }

    #[test]
    fn prefix_takes_values_that_begin_with_it() {
        let exports = Accepted::Prefix("export-".into());
        assert!(exports.takes(Some("export-")) && exports.takes(Some("export-all")));
        for other in [None, Some(""), Some("export"), Some("exports-all")] {
            assert!(!exports.takes(other), "{other:?}");
        }
        let everything = Accepted::Prefix("".into());
        assert!(everything.takes(Some("")) && !everything.takes(None));
    }
}
