//! The attributes of a request, as the closure of a layer sets them.

use std::borrow::Cow;

use http::request::Parts;
use smallvec::SmallVec;
use tollgate::{Ask, Attributes};

/// Collects the attributes of a request.
#[derive(Debug)]
pub struct RequestAttributes<'r> {
    parts: &'r Parts,
    pairs: SmallVec<[(Cow<'r, str>, Cow<'r, str>); 8]>,
    cost: u64,
}

impl<'r> RequestAttributes<'r> {
    pub(crate) fn new(parts: &'r Parts) -> RequestAttributes<'r> {
        RequestAttributes {
            parts,
            pairs: SmallVec::new(),
            cost: 1,
        }
    }

    /// Returns the request without its body.
    #[must_use]
    pub fn parts(&self) -> &'r Parts {
        self.parts
    }

    /// Adds an attribute, or replaces its value.
    pub fn set(&mut self, name: impl Into<Cow<'r, str>>, value: impl Into<Cow<'r, str>>) {
        self.pairs.push((name.into(), value.into()));
    }

    /// Adds an attribute with the value of a header. A header that is missing, given more than once, or not
    /// text sets nothing, so that the rules treat the attribute as missing.
    pub fn set_from_header(&mut self, name: impl Into<Cow<'r, str>>, header: &str) {
        let mut values = self.parts.headers.get_all(header).iter();
        if let (Some(value), None) = (values.next(), values.next())
            && let Ok(text) = value.to_str()
        {
            self.set(name, text);
        }
    }

    /// Sets how many units the request takes from each rule (default 1). A concurrency rule gives one slot, whatever
    /// the cost is.
    pub fn cost(&mut self, units: u64) {
        self.cost = units;
    }

    /// Returns how many units the request takes.
    pub(crate) fn units(&self) -> u64 {
        self.cost
    }

    pub(crate) fn ask(&self) -> Ask {
        Ask::Exactly(self.cost)
    }

    pub(crate) fn attributes(&self) -> Attributes<'_> {
        let pairs = self.pairs.iter();
        pairs.map(|(name, value)| (&**name, &**value)).collect()
    }
}
