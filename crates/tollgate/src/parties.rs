//! Whom a request is about, charge by charge: what the books say of it.

use std::borrow::Cow;
use std::ops::Range;

use smallvec::SmallVec;
use tollgate_rules::Attributes;

/// The attributes behind each charge of a request.
pub(crate) struct Parties<'q, 'a>(SmallVec<[(Range<usize>, &'q Attributes<'a>); 1]>);

/// The most bytes of an attribute that are written down: databases index them.
const MOST_TEXT: usize = 1024;

/// The attributes that are written down.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Party<'a> {
    pub(crate) tenant: Cow<'a, str>,
    pub(crate) action: Cow<'a, str>,
}

impl<'a> Party<'a> {
    pub(crate) fn of(attributes: &Attributes<'a>) -> Party<'a> {
        Party {
            tenant: writable(attributes.get("tenant").unwrap_or_default()),
            action: writable(attributes.get("action").unwrap_or_default()),
        }
    }
}

/// A text as databases take it. What they do not take must not keep a request out of the books.
fn writable(text: &str) -> Cow<'_, str> {
    if text.len() <= MOST_TEXT && !text.contains('\0') {
        return Cow::Borrowed(text);
    }
    let mut clean = text.replace('\0', "\u{fffd}");
    let mut end = clean.len().min(MOST_TEXT);
    while !clean.is_char_boundary(end) {
        end -= 1;
    }
    clean.truncate(end);
    Cow::Owned(clean)
}

impl<'q, 'a> Parties<'q, 'a> {
    /// All charges are about one.
    pub(crate) fn one(attributes: &'q Attributes<'a>) -> Parties<'q, 'a> {
        let mut all = SmallVec::new();
        all.push((0..usize::MAX, attributes));
        Parties(all)
    }

    /// The charges at these places are about these.
    pub(crate) fn several(
        all: impl Iterator<Item = (Range<usize>, &'q Attributes<'a>)>,
    ) -> Parties<'q, 'a> {
        Parties(all.collect())
    }

    /// Whom the charge at `place` is about.
    pub(crate) fn of(&self, place: usize) -> Party<'a> {
        let found = self.0.iter().find(|(range, _)| range.contains(&place));
        found.map_or_else(Party::default, |(_, attributes)| Party::of(attributes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_database_takes_is_written_otherwise() {
        let long = "ä".repeat(MOST_TEXT);
        let attributes = Attributes::from([("tenant", "a\0b"), ("action", long.as_str())]);
        let party = Party::of(&attributes);
        assert_eq!(party.tenant, "a\u{fffd}b");
        assert_eq!(party.action.len(), MOST_TEXT);
    }
}
