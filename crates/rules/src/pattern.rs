//! The values that a `match` accepts: text, text with `*` (any characters) and `?` (any one character),
//! and for the attribute `ip` also addresses and networks.
//!
//! A backslash escapes `*`, `?` and itself. A pattern matches only whole values, and matching allocates
//! nothing. The common forms (`a`, `a*`, `*a`, `*`) are plain comparisons.

use std::fmt;

use ipnet::IpNet;

use crate::address;
use crate::document::BadValue;

/// The attribute that holds the path of a request.
const PATH: &str = "path";

/// A value to match, or a glob of values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    written: Box<str>,
    shape: Shape,
    /// For a path: the same pattern without the slash at its end.
    bare: Option<Shape>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Shape {
    Exact(Box<str>),
    Prefix(Box<str>),
    Suffix(Box<str>),
    Glob(Box<[Token]>),
    /// An address in this network, in any notation.
    Network(IpNet),
}

/// A value that an index can look up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Exact<'p> {
    Text(&'p str),
    Network(IpNet),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    Char(char),
    One,
    Run,
}

/// A backslash before a character that needs no escape, or at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StrayBackslash;

impl From<StrayBackslash> for BadValue {
    fn from(_: StrayBackslash) -> BadValue {
        let help = "write `\\\\` for a backslash, and a backslash only before `*`, `?` and `\\`";
        let message = "a `\\` stands before a character that has no special meaning";
        BadValue::new(message, help)
    }
}

impl Pattern {
    /// Reads a value or a glob.
    ///
    /// # Errors
    /// If a backslash stands before a character that needs no escape, or at the end.
    pub fn parse(written: &str) -> Result<Pattern, StrayBackslash> {
        let mut tokens: Vec<Token> = Vec::new();
        let mut chars = written.chars();
        while let Some(c) = chars.next() {
            match c {
                '*' if tokens.last() == Some(&Token::Run) => {}
                '*' => tokens.push(Token::Run),
                '?' => tokens.push(Token::One),
                '\\' => match chars.next() {
                    Some(escaped @ ('*' | '?' | '\\')) => tokens.push(Token::Char(escaped)),
                    _ => return Err(StrayBackslash),
                },
                other => tokens.push(Token::Char(other)),
            }
        }
        let shape = match tokens.as_slice() {
            tokens if let Some(text) = literal(tokens) => Shape::Exact(text),
            [head @ .., Token::Run] if let Some(text) = literal(head) => Shape::Prefix(text),
            [Token::Run, tail @ ..] if let Some(text) = literal(tail) => Shape::Suffix(text),
            _ => Shape::Glob(tokens.into()),
        };
        Ok(Pattern {
            written: written.into(),
            shape,
            bare: None,
        })
    }

    /// Reads a glob of paths. A path and the same path with a slash at its end count as the same path.
    /// So `/a/*` matches `/a` and everything below it, and `/a/` matches `/a`.
    ///
    /// # Errors
    /// If a backslash stands before a character that needs no escape, or at the end.
    ///
    /// ```
    /// let below = tollgate_rules::Pattern::path("/v1/*").unwrap();
    /// assert!(below.matches("/v1/users") && below.matches("/v1/") && below.matches("/v1"));
    /// assert!(!below.matches("/v10"));
    /// ```
    pub fn path(written: &str) -> Result<Pattern, StrayBackslash> {
        let mut pattern = Pattern::parse(written)?;
        let bare = written.strip_suffix('*').unwrap_or(written);
        if let Some(bare) = bare.strip_suffix('/').filter(|bare| !bare.is_empty()) {
            pattern.bare = Some(Pattern::parse(bare)?.shape);
        }
        Ok(pattern)
    }

    /// Reads a value or a glob of the attribute `attribute`. For `ip`, an address and a network match
    /// every notation of an address.
    pub(crate) fn of(attribute: &str, written: &str) -> Result<Pattern, BadValue> {
        if attribute == PATH {
            return Ok(Pattern::path(written)?);
        }
        let mut pattern = Pattern::parse(written)?;
        if attribute == address::ATTRIBUTE
            && let Shape::Exact(text) = &pattern.shape
            && let Some(network) = address::matched_network(text)?
        {
            pattern.shape = Shape::Network(network);
        }
        Ok(pattern)
    }

    /// Returns the value or the network that the pattern matches; `None` if the pattern has wildcards.
    pub(crate) fn exact(&self) -> Option<Exact<'_>> {
        match &self.shape {
            _ if self.bare.is_some() => None,
            Shape::Exact(text) => Some(Exact::Text(text)),
            Shape::Network(network) => Some(Exact::Network(*network)),
            Shape::Prefix(_) | Shape::Suffix(_) | Shape::Glob(_) => None,
        }
    }

    /// Returns the prefix, if the pattern matches every value that begins with it, and no other value.
    pub(crate) fn prefix(&self) -> Option<&str> {
        match &self.shape {
            Shape::Prefix(text) if self.bare.is_none() => Some(text),
            _ => None,
        }
    }

    /// Whether `value` matches as a whole.
    #[inline]
    #[must_use]
    pub fn matches(&self, value: &str) -> bool {
        let bare = self.bare.as_ref();
        self.shape.matches(value) || bare.is_some_and(|bare| bare.matches(value))
    }
}

impl Shape {
    #[inline]
    fn matches(&self, value: &str) -> bool {
        match self {
            Shape::Exact(text) => **text == *value,
            Shape::Prefix(text) => value.starts_with(&**text),
            Shape::Suffix(text) => value.ends_with(&**text),
            Shape::Glob(tokens) => glob(tokens, value),
            Shape::Network(network) => {
                address::parse_address(value).is_some_and(|address| network.contains(&address))
            }
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.written)
    }
}

fn literal(tokens: &[Token]) -> Option<Box<str>> {
    let chars = tokens.iter().map(|token| match token {
        Token::Char(c) => Some(*c),
        Token::One | Token::Run => None,
    });
    chars
        .collect::<Option<String>>()
        .map(String::into_boxed_str)
}

/// Matches greedily. On failure, goes back to the last `*` and lets it take one character more.
fn glob(tokens: &[Token], value: &str) -> bool {
    let (mut at, mut rest) = (0, value);
    let mut retry: Option<(usize, &str)> = None;
    loop {
        let mut after = rest.chars();
        let next = after.next();
        match (tokens.get(at), next) {
            (None, None) => return true,
            (Some(Token::Run), _) => {
                at += 1;
                retry = Some((at, rest));
                continue;
            }
            (Some(Token::One), Some(_)) => {
                at += 1;
                rest = after.as_str();
                continue;
            }
            (Some(Token::Char(wanted)), Some(found)) if *wanted == found => {
                at += 1;
                rest = after.as_str();
                continue;
            }
            _ => {}
        }
        let Some((from, taken)) = retry else {
            return false;
        };
        let mut longer = taken.chars();
        if longer.next().is_none() {
            return false;
        }
        at = from;
        rest = longer.as_str();
        retry = Some((from, rest));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matches(pattern: &str, value: &str) -> bool {
        Pattern::parse(pattern).unwrap().matches(value)
    }

    /// Matches by the definition of a pattern, as a recursion.
    fn naive(pattern: &[char], value: &[char]) -> bool {
        match (pattern, value) {
            ([], []) => true,
            (['*', rest @ ..], _) => {
                naive(rest, value) || (!value.is_empty() && naive(pattern, &value[1..]))
            }
            (['?', rest @ ..], [_, value @ ..]) => naive(rest, value),
            (['\\', c, rest @ ..], [v, value @ ..]) => c == v && naive(rest, value),
            ([c, rest @ ..], [v, value @ ..]) if *c != '\\' => c == v && naive(rest, value),
            _ => false,
        }
    }

    #[test]
    fn stars_and_question_marks() {
        assert!(matches("/v1/*", "/v1/users"));
        assert!(!matches("/v1/*", "/v2/users"));
        assert!(matches("*.png", "a.png"));
        assert!(matches("*", ""));
        assert!(matches("a?c", "aäc"));
        assert!(!matches("a?c", "ac"));
        assert!(matches("*a*b*", "xxaxxbxx"));
        assert!(matches("", ""));
        assert!(!matches("", "a"));
    }

    #[test]
    fn a_backslash_escapes_wildcards() {
        assert!(matches(r"\*", "*"));
        assert!(!matches(r"\*", "x"));
        assert!(matches(r"a\\b", r"a\b"));
        assert_eq!(Pattern::parse(r"a\n"), Err(StrayBackslash));
        assert_eq!(Pattern::parse(r"a\"), Err(StrayBackslash));
    }

    #[test]
    fn only_the_attribute_ip_has_networks() {
        let network = Pattern::of("ip", "10.0.0.0/8").unwrap();
        for value in ["10.1.2.3", "10.1.2.3:80", "::ffff:10.1.2.3", " 10.1.2.3"] {
            assert!(network.matches(value), "{value}");
        }
        for value in ["11.1.2.3", "10.0.0.0/8", "somebody", "", "fd00::1"] {
            assert!(!network.matches(value), "{value}");
        }
        let path = Pattern::of("path", "10.0.0.0/8").unwrap();
        assert!(path.matches("10.0.0.0/8") && !path.matches("10.1.2.3"));
        let glob = Pattern::of("ip", "10.*").unwrap();
        assert!(glob.matches("10.1.2.3"));
        assert!(Pattern::of("ip", "10.0.0.0/40").is_err());
    }

    #[test]
    fn slash_at_the_end_of_a_path_makes_no_difference() {
        let matches = |pattern: &str, value: &str| Pattern::path(pattern).unwrap().matches(value);
        for (pattern, value) in [
            ("/a/*", "/a"),
            ("/a/*", "/a/"),
            ("/a/*", "/a/b"),
            ("/a/", "/a"),
            ("/a/", "/a/"),
            ("/*/b/*", "/x/b"),
            ("/*", "/"),
            ("/*", "/a"),
            ("/", "/"),
        ] {
            assert!(matches(pattern, value), "{pattern} {value}");
        }
        for (pattern, value) in [("/a/*", "/ab"), ("/a", "/a/"), ("/a/", "/ab"), ("/*", "a")] {
            assert!(!matches(pattern, value), "{pattern} {value}");
        }
        let exact = Pattern::of("path", "/a").unwrap();
        assert_eq!(exact.exact(), Some(Exact::Text("/a")));
        assert_eq!(Pattern::of("path", "/a/").unwrap().exact(), None);
        assert!(!Pattern::of("action", "/a/").unwrap().matches("/a"));
    }

    #[test]
    fn many_stars_match_in_bounded_time() {
        let pattern = "a*".repeat(50) + "b";
        assert!(!matches(&pattern, &"a".repeat(5_000)));
    }

    proptest! {
        #[test]
        fn agrees_with_the_definition(pattern in r"([abä*?]|\\[*?\\]){0,8}", value in r"[abä*?\\]{0,10}") {
            let wanted: Vec<char> = pattern.chars().collect();
            let found: Vec<char> = value.chars().collect();
            prop_assert_eq!(matches(&pattern, &value), naive(&wanted, &found));
        }

        #[test]
        fn no_pattern_panics(pattern in ".{0,30}", value in ".{0,30}") {
            if let Ok(pattern) = Pattern::parse(&pattern) {
                let _ = pattern.matches(&value);
            }
        }
    }
}
