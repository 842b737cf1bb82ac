//! The classes of requests by priority, the most important first.

use tollgate_rules::document::{Field, List, Problems, Short, Text};
use tollgate_rules::{ID_HELP, is_id};

/// The most classes.
const MAX_CLASSES: usize = 8;
/// The urgency of a request that names none (RFC 9218).
const USUAL_URGENCY: usize = 3;
/// The last urgency; 0 is the first.
const LAST_URGENCY: usize = 7;

/// The classes of requests, the most important first.
///
/// ```
/// let priorities = tollgate_config::Priorities::default();
/// assert_eq!(priorities.names(), ["high", "normal", "low"]);
/// assert_eq!(priorities.class_of(Some("low")), 2);
/// assert_eq!(priorities.class_of(None), 1);
/// assert_eq!(priorities.named_by("u=0, i"), Some("high"));
/// assert_eq!(priorities.named_by("low"), Some("low"));
/// assert_eq!(priorities.named_by("urgent"), None);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Priorities(Vec<String>);

impl Default for Priorities {
    fn default() -> Priorities {
        Priorities(["high", "normal", "low"].map(str::to_owned).to_vec())
    }
}

impl Priorities {
    /// The names of the classes, the most important first; at least one.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.0
    }

    /// Returns the class of requests that name none: the one in the middle, or the second of two.
    #[must_use]
    pub fn usual(&self) -> usize {
        self.0.len() / 2
    }

    /// Returns the class of a request with this `priority`. A request without one, or with an unknown one, is in the
    /// usual class.
    #[must_use]
    pub fn class_of(&self, priority: Option<&str>) -> usize {
        let found = priority.and_then(|name| self.0.iter().position(|known| known == name));
        found.unwrap_or(self.usual())
    }

    /// Returns the name of the class that a header names: a class, or an urgency such as `u=1` (RFC 9218). `None` if
    /// it names neither.
    #[must_use]
    pub fn named_by(&self, header: &str) -> Option<&str> {
        let class = match self.0.iter().position(|known| known == header) {
            Some(class) => class,
            None => self.class_of_urgency(urgency(header)?),
        };
        self.0.get(class).map(String::as_str)
    }

    /// Returns the class of an urgency. The usual urgency is in the usual class. Those above and below it are spread
    /// over the other classes.
    fn class_of_urgency(&self, urgency: usize) -> usize {
        let (usual, last) = (self.usual(), self.0.len() - 1);
        match urgency {
            USUAL_URGENCY => usual,
            above if above < USUAL_URGENCY => above * usual / USUAL_URGENCY,
            below => {
                let steps = LAST_URGENCY - USUAL_URGENCY;
                let below = below - USUAL_URGENCY;
                usual + (below * (last - usual)).div_ceil(steps)
            }
        }
    }
}

/// Reads the urgency of a `Priority` header: the member `u` of a list such as `u=1, i`. The last one counts.
fn urgency(header: &str) -> Option<usize> {
    let members = header.split(',').map(str::trim);
    let urgency = members.filter_map(|it| it.strip_prefix("u=")).next_back()?;
    // A member may have parameters.
    let digits = urgency.split(';').next().unwrap_or_default().trim();
    digits.parse().ok().filter(|it| *it <= LAST_URGENCY)
}

pub(crate) fn priorities(field: &Field<List<Text>>, problems: &mut Problems<'_>) -> Priorities {
    let Some(at) = field.get() else {
        return Priorities::default();
    };
    let given = &at.value.0;
    if !(1..=MAX_CLASSES).contains(&given.len()) {
        let message = format!("there are {} classes of priority", given.len());
        let help = format!("list 1 to {MAX_CLASSES}, the most important first");
        problems.report(at.place, message, help);
        return Priorities::default();
    }
    let mut names: Vec<String> = Vec::new();
    for at in given {
        let name = &at.value.0;
        if !is_id(name) {
            let message = format!("`{}` cannot be the name of a class", Short(name));
            problems.report(at.place, message, ID_HELP);
        }
        if names.contains(name) {
            let message = format!("`{}` is listed twice", Short(name));
            problems.report(at.place, message, "list it once");
        }
        names.push(name.clone());
    }
    Priorities(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(names: &[&str]) -> Priorities {
        Priorities(names.iter().map(|it| (*it).to_owned()).collect())
    }

    #[test]
    fn urgencies_are_spread_over_the_classes() {
        let classes = |names: &[&str]| {
            let priorities = of(names);
            let urgencies = 0..=LAST_URGENCY;
            let classes = urgencies.map(|it| priorities.class_of_urgency(it));
            classes.collect::<Vec<_>>()
        };
        assert_eq!(classes(&["only"]), [0; 8]);
        assert_eq!(classes(&["a", "b"]), [0, 0, 0, 1, 1, 1, 1, 1]);
        assert_eq!(classes(&["a", "b", "c"]), [0, 0, 0, 1, 2, 2, 2, 2]);
        assert_eq!(
            classes(&["a", "b", "c", "d", "e"]),
            [0, 0, 1, 2, 3, 3, 4, 4]
        );
        let all = ["a", "b", "c", "d", "e", "f", "g", "h"];
        assert_eq!(classes(&all), [0, 1, 2, 4, 5, 6, 7, 7]);
    }

    #[test]
    fn header_that_names_no_class_names_none() {
        let priorities = Priorities::default();
        for (header, expected) in [
            ("u=7", Some("low")),
            ("i, u=2", Some("high")),
            ("u=2, u=5", Some("low")),
            ("u=1;x", Some("high")),
            ("u=8", None),
            ("u=-1", None),
            ("u", None),
            ("i", None),
            ("", None),
            ("HIGH", None),
        ] {
            assert_eq!(priorities.named_by(header), expected, "{header}");
        }
    }
}
