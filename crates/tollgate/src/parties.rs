//! Whom a request is about, charge by charge: what the books say of it.

use std::borrow::Cow;
use std::ops::Range;

use tollgate_rules::Attributes;

/// The attributes behind each charge of a request.
pub(crate) enum Parties<'q, 'a> {
    /// All charges are about one.
    One(&'q Attributes<'a>),
    /// The charges at these places are about these.
    Several(Vec<(Range<usize>, &'q Attributes<'a>)>),
}

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
        Party::as_is(attributes).writable()
    }

    /// The same, and databases may not take it.
    fn as_is(attributes: &Attributes<'a>) -> Party<'a> {
        Party {
            tenant: attributes.get("tenant").unwrap_or_default().into(),
            action: attributes.get("action").unwrap_or_default().into(),
        }
    }

    /// As databases take it. What they do not take must not keep a request out of the books.
    pub(crate) fn writable(self) -> Party<'a> {
        Party {
            tenant: writable(self.tenant),
            action: writable(self.action),
        }
    }
}

fn writable(text: Cow<'_, str>) -> Cow<'_, str> {
    if text.len() <= MOST_TEXT && !text.contains('\0') {
        return text;
    }
    let mut clean = text.replace('\0', "\u{fffd}");
    let mut end = clean.len().min(MOST_TEXT);
    while !clean.is_char_boundary(end) {
        end -= 1;
    }
    clean.truncate(end);
    Cow::Owned(clean)
}

impl<'a> Parties<'_, 'a> {
    /// Whom the charge at `place` is about.
    pub(crate) fn of(&self, place: usize) -> Party<'a> {
        self.as_is(place).writable()
    }

    /// The same, and databases may not take it.
    pub(crate) fn as_is(&self, place: usize) -> Party<'a> {
        match self {
            Parties::One(attributes) => Party::as_is(attributes),
            Parties::Several(all) => {
                let found = all.iter().find(|(range, _)| range.contains(&place));
                found.map_or_else(Party::default, |(_, attributes)| Party::as_is(attributes))
            }
        }
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
