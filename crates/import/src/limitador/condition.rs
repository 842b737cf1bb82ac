//! Converts conditions of Limitador into conditions of Tollgate.
//!
//! Both are CEL with different names: `descriptors[0].user` in Limitador is the attribute `user` in
//! Tollgate. So names are replaced, and all other text is kept, as long as both programs support it. A
//! condition of the form `entry == 'value'` becomes a `match`.

use std::collections::BTreeSet;

use super::tokens::{Token, tokens};
use crate::emit::MAX_WHEN;
use crate::write::{cel_attribute, double_quoted, is_identifier, literal_pattern};

/// Functions and methods that both programs support.
const FUNCTIONS: [&str; 6] = ["size", "int", "uint", "double", "string", "bool"];
const METHODS: [&str; 4] = ["contains", "startsWith", "endsWith", "size"];
const WORDS: [&str; 4] = ["true", "false", "null", "in"];

/// The name and the id of a limit, for conditions that read `limit.name` or `limit.id`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Names<'n> {
    pub(super) name: Option<&'n str>,
    pub(super) id: Option<&'n str>,
}

/// The conditions of one limit. All must hold.
#[derive(Debug, Default)]
pub(super) struct Conditions {
    /// Entries with patterns. Each entry must match one of its patterns.
    pub(super) matches: Vec<(String, Vec<String>)>,
    /// The other conditions, in CEL.
    pub(super) when: Vec<String>,
    /// All entries that the conditions read.
    pub(super) keys: BTreeSet<String>,
    /// The indexes of the descriptors that the conditions read.
    pub(super) descriptors: BTreeSet<u64>,
    /// Whether an entry is written without `descriptors[0]`, as before Limitador 2.
    pub(super) bare: bool,
}

/// A piece of an expression: an entry, or anything else.
#[derive(Clone, Debug)]
enum Piece<'t> {
    Entry {
        key: String,
        within_has: bool,
    },
    Token(Token<'t>),
    /// Text that replaces part of the original.
    Replaced(String),
}

impl Conditions {
    /// Adds a condition. The error says why it cannot be converted.
    pub(super) fn add(&mut self, text: &str, names: Names<'_>) -> Result<(), String> {
        if text.len() > MAX_WHEN {
            return Err(format!("the condition is longer than {MAX_WHEN} bytes"));
        }
        if let Some((key, equal, value)) = bare_comparison(text) {
            self.bare = true;
            self.keys.insert(key.to_owned());
            if equal {
                self.accept(key, vec![literal_pattern(value)]);
            } else {
                let (key, value) = (cel_attribute(key), double_quoted(value));
                self.when.push(format!("{key} != {value}"));
            }
            return Ok(());
        }
        let pieces = self.pieces(text, names)?;
        for part in conjunction(&pieces) {
            match equality(part) {
                Some((key, patterns)) => self.accept(key, patterns),
                None => self.when.push(written(part)?),
            }
        }
        Ok(())
    }

    /// Returns the entry that a variable reads. The error says why it cannot be converted.
    pub(super) fn variable(&mut self, text: &str) -> Result<String, String> {
        if text.len() > MAX_WHEN {
            return Err(format!("the variable is longer than {MAX_WHEN} bytes"));
        }
        if is_bare_key(text.trim()) {
            self.bare = true;
            self.keys.insert(text.trim().to_owned());
            return Ok(text.trim().to_owned());
        }
        let nameless = Names {
            name: None,
            id: None,
        };
        match self.pieces(text, nameless)?.as_slice() {
            [Piece::Entry { key, .. }] => Ok(key.clone()),
            _ => Err("a variable must be the value of an entry".to_owned()),
        }
    }

    fn accept(&mut self, key: &str, patterns: Vec<String>) {
        // `match` accepts any one of the listed values. A second condition on the same entry must also
        // hold, so it goes into `when`.
        if self.matches.iter().any(|(known, _)| known == key) {
            let name = cel_attribute(key);
            let texts = patterns.iter().map(|it| double_quoted(&plain(it)));
            let texts = texts.collect::<Vec<_>>().join(", ");
            self.when.push(format!("{name} in [{texts}]"));
        } else {
            self.matches.push((key.to_owned(), patterns));
        }
    }

    /// Splits an expression, and replaces its names.
    fn pieces<'t>(&mut self, text: &'t str, names: Names<'_>) -> Result<Vec<Piece<'t>>, String> {
        let tokens = tokens(text)?;
        let mut pieces = Vec::with_capacity(tokens.len());
        let mut rest = tokens.as_slice();
        while let Some((first, after)) = rest.split_first() {
            let dotted = matches!(pieces.last(), Some(Piece::Token(Token::Sign("."))));
            match first {
                Token::Name("descriptors") if !dotted => {
                    let (key, descriptor, after) = entry(after)?;
                    self.descriptors.insert(descriptor);
                    self.keys.insert(key.clone());
                    let within_has = matches!(
                        pieces.as_slice(),
                        [
                            ..,
                            Piece::Token(Token::Name("has")),
                            Piece::Token(Token::Sign("("))
                        ]
                    );
                    pieces.push(Piece::Entry { key, within_has });
                    rest = after;
                    continue;
                }
                Token::Name("limit") if !dotted => {
                    let (text, after) = match after {
                        [Token::Sign("."), Token::Name("name"), after @ ..] => (names.name, after),
                        [Token::Sign("."), Token::Name("id"), after @ ..] => (names.id, after),
                        _ => {
                            return Err("only `limit.name` and `limit.id` are supported".to_owned());
                        }
                    };
                    let text = text.map_or_else(|| "null".to_owned(), double_quoted);
                    pieces.push(Piece::Replaced(text));
                    rest = after;
                    continue;
                }
                Token::Name(name) => {
                    let called = matches!(after.first(), Some(Token::Sign("(")));
                    let known = match (dotted, called) {
                        (true, true) => METHODS.contains(name),
                        (true, false) => false,
                        (false, true) => FUNCTIONS.contains(name) || *name == "has",
                        (false, false) => WORDS.contains(name),
                    };
                    // `in (…)` is not a call.
                    if !known && *name != "in" {
                        return Err(format!("Tollgate does not support `{name}` in conditions"));
                    }
                    pieces.push(Piece::Token(first.clone()));
                }
                other => pieces.push(Piece::Token(other.clone())),
            }
            rest = after;
        }
        Ok(pieces)
    }
}

/// Reads the tokens after `descriptors`. Returns the key, the index of the descriptor, and the tokens
/// that follow.
fn entry<'a, 't>(after: &'a [Token<'t>]) -> Result<(String, u64, &'a [Token<'t>]), String> {
    let unsupported =
        || "write `descriptors[0].key` or `descriptors[0]['key']` to read a descriptor".to_owned();
    let [
        Token::Sign("["),
        Token::Number(number),
        Token::Sign("]"),
        after @ ..,
    ] = after
    else {
        return Err(unsupported());
    };
    let number = number.parse().map_err(|_| unsupported())?;
    match after {
        [Token::Sign("."), Token::Name(_), Token::Sign("("), ..] => Err(unsupported()),
        [Token::Sign("."), Token::Name(key), after @ ..] => Ok(((*key).to_owned(), number, after)),
        [
            Token::Sign("["),
            Token::Text(_, Some(key)),
            Token::Sign("]"),
            after @ ..,
        ] => Ok((key.clone(), number, after)),
        _ => Err(unsupported()),
    }
}

/// Splits `a && b && c` into its parts. An expression with `||` or `?` outside brackets is one part.
fn conjunction<'p, 't>(pieces: &'p [Piece<'t>]) -> Vec<&'p [Piece<'t>]> {
    let mut depth = 0usize;
    let mut ands = Vec::new();
    for (index, piece) in pieces.iter().enumerate() {
        let Piece::Token(Token::Sign(sign)) = piece else {
            continue;
        };
        match *sign {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth = depth.saturating_sub(1),
            "||" | "?" if depth == 0 => return vec![pieces],
            "&&" if depth == 0 => ands.push(index),
            _ => {}
        }
    }
    ands.push(pieces.len());
    let starts = std::iter::once(0).chain(ands.iter().map(|and| and + 1));
    let parts = starts.zip(&ands).map(|(start, end)| &pieces[start..*end]);
    parts.collect()
}

/// Returns the entry and its values, if the part is `entry == 'value'` or `entry in ['one', 'other']`.
fn equality<'p>(part: &'p [Piece<'_>]) -> Option<(&'p str, Vec<String>)> {
    let text = |piece: &Piece<'_>| match piece {
        Piece::Token(Token::Text(_, Some(value))) => Some(literal_pattern(value)),
        _ => None,
    };
    match part {
        [
            Piece::Entry { key, .. },
            Piece::Token(Token::Sign("==")),
            value,
        ]
        | [
            value,
            Piece::Token(Token::Sign("==")),
            Piece::Entry { key, .. },
        ] => Some((key, vec![text(value)?])),
        [
            Piece::Entry { key, .. },
            Piece::Token(Token::Name("in")),
            Piece::Token(Token::Sign("[")),
            values @ ..,
            Piece::Token(Token::Sign("]")),
        ] => {
            let mut patterns = Vec::new();
            for (index, piece) in values.iter().enumerate() {
                if index % 2 == 0 {
                    patterns.push(text(piece)?);
                } else if !matches!(piece, Piece::Token(Token::Sign(","))) {
                    return None;
                }
            }
            (values.len() % 2 == 1).then_some((key.as_str(), patterns))
        }
        _ => None,
    }
}

/// Writes a part of an expression for Tollgate, in brackets if it binds less than `&&`.
fn written(part: &[Piece<'_>]) -> Result<String, String> {
    let mut written = String::new();
    for piece in part {
        match piece {
            Piece::Entry {
                key,
                within_has: true,
            } => {
                if !is_identifier(key) {
                    return Err(format!(
                        "has() needs a CEL identifier, and `{key}` is not one: rename the key here and in Envoy"
                    ));
                }
                written.push_str("attributes.");
                written.push_str(key);
            }
            Piece::Entry { key, .. } => written.push_str(&cel_attribute(key)),
            Piece::Replaced(text) => written.push_str(text),
            Piece::Token(token) => match token {
                Token::Name("in") => written.push_str(" in "),
                Token::Text(_, Some(value)) => written.push_str(&double_quoted(value)),
                Token::Name(word) | Token::Number(word) | Token::Text(word, _) => {
                    written.push_str(word);
                }
                Token::Sign(",") => written.push_str(", "),
                Token::Sign(sign @ ("(" | ")" | "[" | "]" | "{" | "}" | "." | "!")) => {
                    written.push_str(sign);
                }
                Token::Sign(sign) => {
                    written.push(' ');
                    written.push_str(sign);
                    written.push(' ');
                }
            },
        }
    }
    let text = written.trim();
    Ok(match text.contains("||") || text.contains('?') {
        true => format!("({text})"),
        false => text.to_owned(),
    })
}

/// Reads `key == 'value'` or `key != 'value'`, the syntax before Limitador 2. Returns the key, whether
/// the operator is `==`, and the value.
fn bare_comparison(text: &str) -> Option<(&str, bool, &str)> {
    let at = text.find("==").or_else(|| text.find("!="))?;
    let (key, rest) = text.split_at(at);
    let (key, value) = (key.trim(), rest[2..].trim());
    let quotes = value.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    let value = value.strip_prefix(quotes)?.strip_suffix(quotes)?;
    let plain = !value.contains(quotes) && !value.contains('\\');
    (is_bare_key(key) && plain).then_some((key, rest.starts_with("=="), value))
}

/// Whether `text` is the key of an entry, and not a name of Limitador.
fn is_bare_key(text: &str) -> bool {
    let own = text == "descriptors" || text.starts_with("limit.") || text == "limit";
    !own && !WORDS.contains(&text) && tollgate_rules::is_attribute_name(text)
}

/// Returns the text that a pattern without wildcards matches.
fn plain(pattern: &str) -> String {
    let mut text = String::with_capacity(pattern.len());
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        text.extend(if c == '\\' { chars.next() } else { Some(c) });
    }
    text
}
