//! Values of descriptors. Each `*` in a value matches any run of characters.

use crate::write::{double_quoted, literal_pattern};

/// The values that a descriptor applies to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Values {
    /// Every value, each with its own count.
    Any,
    /// One value.
    One(String),
    /// The values that match a wildcard.
    Wild(Wildcard),
}

/// A value with one or more `*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wildcard {
    /// The wildcard as written.
    pub(super) text: String,
    prefix: String,
    /// The texts between two `*`, in order.
    middle: Vec<String>,
    suffix: String,
}

impl Values {
    /// Reads the `value` of a descriptor.
    pub(super) fn of(value: &str) -> Values {
        if value.is_empty() {
            Values::Any
        } else if let Some(wildcard) = Wildcard::of(value) {
            Values::Wild(wildcard)
        } else {
            Values::One(value.to_owned())
        }
    }

    /// Whether a value may belong to both. Also true for some wildcards that share no value.
    pub(super) fn may_meet(&self, other: &Values) -> bool {
        match (self, other) {
            (Values::Any, _) | (_, Values::Any) => true,
            (Values::One(a), Values::One(b)) => a == b,
            (Values::One(one), Values::Wild(wild)) | (Values::Wild(wild), Values::One(one)) => {
                wild.matches(one)
            }
            (Values::Wild(a), Values::Wild(b)) => a.may_meet(b),
        }
    }
}

impl Wildcard {
    fn of(value: &str) -> Option<Wildcard> {
        let (prefix, rest) = value.split_once('*')?;
        let (middle, suffix) = rest.rsplit_once('*').unwrap_or(("", rest));
        let middle = middle.split('*').filter(|part| !part.is_empty());
        let middle = middle.map(str::to_owned);
        Some(Wildcard {
            text: value.to_owned(),
            prefix: prefix.to_owned(),
            middle: middle.collect(),
            suffix: suffix.to_owned(),
        })
    }

    pub(super) fn matches(&self, value: &str) -> bool {
        let rest = value.strip_prefix(self.prefix.as_str());
        let mut rest = rest.and_then(|rest| rest.strip_suffix(self.suffix.as_str()));
        for part in &self.middle {
            rest = rest.and_then(|rest| Some(rest.split_once(part.as_str())?.1));
        }
        rest.is_some()
    }

    /// Whether the wildcard matches everything.
    pub(super) fn is_all(&self) -> bool {
        self.prefix.is_empty() && self.middle.is_empty() && self.suffix.is_empty()
    }

    /// Whether a value may match both wildcards: their prefixes and their suffixes must be compatible.
    fn may_meet(&self, other: &Wildcard) -> bool {
        let (a, b) = (self.prefix.as_str(), other.prefix.as_str());
        let (c, d) = (self.suffix.as_str(), other.suffix.as_str());
        (a.starts_with(b) || b.starts_with(a)) && (c.ends_with(d) || d.ends_with(c))
    }

    /// Returns the pattern of `match` for the values of this wildcard.
    pub(super) fn pattern(&self) -> String {
        let parts: Vec<String> = self.text.split('*').map(literal_pattern).collect();
        parts.join("*")
    }

    /// Returns a CEL condition that holds if the wildcard matches the value of `attribute`. `None` if
    /// the wildcard has several parts: CEL cannot express their order.
    pub(super) fn condition(&self, attribute: &str) -> Option<String> {
        let call =
            |function: &str, text: &str| format!("{attribute}.{function}({})", double_quoted(text));
        let (prefix, suffix) = (self.prefix.as_str(), self.suffix.as_str());
        match (prefix, self.middle.as_slice(), suffix) {
            ("", [], "") => Some("true".to_owned()),
            (prefix, [], "") => Some(call("startsWith", prefix)),
            ("", [], suffix) => Some(call("endsWith", suffix)),
            (prefix, [], suffix) => {
                let (starts, ends) = (call("startsWith", prefix), call("endsWith", suffix));
                let both = format!("{starts} && {ends}");
                if !overlap(prefix, suffix) {
                    return Some(both);
                }
                let least = prefix.chars().count() + suffix.chars().count();
                Some(format!("{both} && size({attribute}) >= {least}"))
            }
            ("", [part], "") => Some(call("contains", part)),
            _ => None,
        }
    }
}

/// Whether `prefix` and `suffix` can overlap: a text shorter than both together starts with `prefix`
/// and ends with `suffix`.
fn overlap(prefix: &str, suffix: &str) -> bool {
    suffix
        .char_indices()
        .map(|(at, c)| at + c.len_utf8())
        .any(|end| prefix.ends_with(&suffix[..end]))
        || suffix.starts_with(prefix)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn wild(text: &str) -> Wildcard {
        Wildcard::of(text).unwrap()
    }

    #[test]
    fn star_matches_any_run_of_characters() {
        for (text, value, expected) in [
            ("/api/*/action", "/api/7/action", true),
            ("/api/*/action", "/api//action", true),
            ("/api/*/action", "/api/action", false),
            ("a*b*c", "axbyc", true),
            ("a*b*c", "acb", false),
            ("*b*", "abc", true),
            ("*", "", true),
            ("a**", "a", true),
        ] {
            assert_eq!(wild(text).matches(value), expected, "{text} {value}");
        }
    }

    #[test]
    fn conditions_match_the_same_values() {
        for (text, expected) in [
            ("a*", r#"k.startsWith("a")"#),
            ("*a", r#"k.endsWith("a")"#),
            ("*a*", r#"k.contains("a")"#),
            (
                "a/*/b",
                r#"k.startsWith("a/") && k.endsWith("/b") && size(k) >= 4"#,
            ),
            ("a*b", r#"k.startsWith("a") && k.endsWith("b")"#),
        ] {
            assert_eq!(wild(text).condition("k").unwrap(), expected);
        }
        assert!(wild("a*b*c").condition("k").is_none());
    }

    #[test]
    fn overlap_of_prefix_and_suffix_is_found() {
        assert!(overlap("ab", "bc"));
        assert!(overlap("abc", "bc"));
        assert!(overlap("a", "ab"));
        assert!(overlap("ä", "ä"));
        assert!(!overlap("ab", "ca"));
    }

    #[test]
    fn patterns_escape_all_but_stars() {
        assert_eq!(wild(r"a?\*b").pattern(), r"a\?\\*b");
    }
}
