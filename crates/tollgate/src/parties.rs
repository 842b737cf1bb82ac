//! Whom a request is about, charge by charge: what the books say of it.

use std::ops::Range;

use smallvec::SmallVec;
use tollgate_rules::Attributes;

/// The attributes behind each charge of a request.
pub(crate) struct Parties<'q, 'a>(SmallVec<[(Range<usize>, &'q Attributes<'a>); 1]>);

/// The attributes that are written down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Party<'a> {
    pub(crate) tenant: &'a str,
    pub(crate) action: &'a str,
}

impl<'a> Party<'a> {
    pub(crate) fn of(attributes: &Attributes<'a>) -> Party<'a> {
        Party {
            tenant: attributes.get("tenant").unwrap_or_default(),
            action: attributes.get("action").unwrap_or_default(),
        }
    }
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
