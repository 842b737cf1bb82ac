//! The attributes of a request: names and values.

use smallvec::SmallVec;

/// The attributes of one request, such as `tenant`, `api_key`, `action`. All values are text. A
/// name occurs once: giving it again replaces the value.
///
/// ```
/// use tollgate_rules::Attributes;
///
/// let request = Attributes::new().with("tenant", "acme").with("action", "search");
/// assert_eq!(request.get("tenant"), Some("acme"));
/// assert_eq!(request.get("plan"), None);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes<'a>(SmallVec<[(&'a str, &'a str); INLINE]>);

/// How many attributes fit without an allocation.
const INLINE: usize = 8;

impl<'a> Attributes<'a> {
    /// Starts without attributes.
    #[inline]
    #[must_use]
    pub fn new() -> Attributes<'a> {
        Attributes::default()
    }

    /// Adds an attribute, or replaces its value.
    #[inline]
    #[must_use]
    pub fn with(mut self, name: &'a str, value: &'a str) -> Attributes<'a> {
        self.push(name, value);
        self
    }

    /// Adds an attribute, or replaces its value.
    #[inline]
    pub fn push(&mut self, name: &'a str, value: &'a str) {
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some(known) => known.1 = value,
            None => self.0.push((name, value)),
        }
    }

    /// Returns the value of an attribute.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&'a str> {
        let found = self.0.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| *value)
    }

    /// Returns all attributes, in the order in which their names were first given.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&'a str, &'a str)> + '_ {
        self.0.iter().copied()
    }

    /// The number of attributes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no attributes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<'a, const N: usize> From<[(&'a str, &'a str); N]> for Attributes<'a> {
    #[inline]
    fn from(pairs: [(&'a str, &'a str); N]) -> Attributes<'a> {
        let is_new =
            |(at, (name, _)): (usize, &(&str, &str))| pairs[..at].iter().all(|it| it.0 != *name);
        if N > INLINE || !pairs.iter().enumerate().all(is_new) {
            return pairs.into_iter().collect();
        }
        // Filled in place, without a check for each pair whether there is room.
        let mut places = [("", ""); INLINE];
        for (place, pair) in places.iter_mut().zip(pairs) {
            *place = pair;
        }
        Attributes(SmallVec::from_buf_and_len(places, N))
    }
}

impl<'a> FromIterator<(&'a str, &'a str)> for Attributes<'a> {
    #[inline]
    fn from_iter<I: IntoIterator<Item = (&'a str, &'a str)>>(pairs: I) -> Attributes<'a> {
        let mut attributes = Attributes::new();
        attributes.extend(pairs);
        attributes
    }
}

impl<'a> Extend<(&'a str, &'a str)> for Attributes<'a> {
    #[inline]
    fn extend<I: IntoIterator<Item = (&'a str, &'a str)>>(&mut self, pairs: I) {
        for (name, value) in pairs {
            self.push(name, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_value_replaces_an_earlier_one_in_its_place() {
        let request = Attributes::from([("a", "1"), ("b", "2"), ("a", "3")]);
        let pairs: Vec<_> = request.iter().collect();
        assert_eq!(pairs, [("a", "3"), ("b", "2")]);
    }
}
