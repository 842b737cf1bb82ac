//! Conditions of Limitador as conditions of Tollgate.
//!
//! Both are CEL, over other names: `descriptors[0].user` there is the attribute `user` here. So
//! names are replaced and the rest is kept, as long as it is a part of CEL that both have. What has
//! the form `entry == 'value'` becomes a `match`.

use std::collections::BTreeSet;

use super::tokens::{Token, tokens};
use crate::write::{cel_attribute, double_quoted, is_bare, literal_pattern};

/// Longer ones would not fit into a rule.
const MAX_BYTES: usize = 2048;
/// Functions and methods that both have.
const FUNCTIONS: [&str; 6] = ["size", "int", "uint", "double", "string", "bool"];
const METHODS: [&str; 4] = ["contains", "startsWith", "endsWith", "size"];
const WORDS: [&str; 4] = ["true", "false", "null", "in"];

/// What a limit calls itself, for conditions that ask.
#[derive(Clone, Copy, Debug)]
pub(super) struct Names<'n> {
    pub(super) name: Option<&'n str>,
    pub(super) id: Option<&'n str>,
}

/// Conditions, taken together.
#[derive(Debug, Default)]
pub(super) struct Conditions {
    /// Entries and the patterns that their values match.
    pub(super) matches: Vec<(String, Vec<String>)>,
    /// What else must hold.
    pub(super) when: Vec<String>,
    /// The entries that are read.
    pub(super) keys: BTreeSet<String>,
    /// Which of a request's descriptors are looked at.
    pub(super) descriptors: BTreeSet<u64>,
    /// Whether entries stand by their bare names, as before Limitador 2.
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
    /// A text that was not there before.
    Made(String),
}

impl Conditions {
    /// Adds a condition, or says why it cannot be carried over.
    pub(super) fn add(&mut self, text: &str, names: Names<'_>) -> Result<(), String> {
        if text.len() > MAX_BYTES {
            return Err(format!("it is longer than {MAX_BYTES} bytes"));
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

    /// The entry whose value a variable is, or why it cannot be carried over.
    pub(super) fn variable(&mut self, text: &str) -> Result<String, String> {
        if text.len() > MAX_BYTES {
            return Err(format!("it is longer than {MAX_BYTES} bytes"));
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
            _ => Err("only the value of an entry can be counted by".to_owned()),
        }
    }

    fn accept(&mut self, key: &str, patterns: Vec<String>) {
        // A second condition on the same entry is one more, not another value.
        if self.matches.iter().any(|(known, _)| known == key) {
            let name = cel_attribute(key);
            let texts: Vec<String> = patterns
                .iter()
                .map(|it| double_quoted(&plain(it)))
                .collect();
            self.when.push(format!("{name} in [{}]", texts.join(", ")));
        } else {
            self.matches.push((key.to_owned(), patterns));
        }
    }

    /// The pieces of an expression, its names replaced.
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
                    let [Token::Sign("."), Token::Name(field), after @ ..] = after else {
                        return Err("of `limit` only `name` and `id` are known".to_owned());
                    };
                    let text = match *field {
                        "name" => names.name,
                        "id" => names.id,
                        _ => return Err("of `limit` only `name` and `id` are known".to_owned()),
                    };
                    let made = text.map_or_else(|| "null".to_owned(), double_quoted);
                    pieces.push(Piece::Made(made));
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
                    // What follows `in` may stand in brackets without being its argument.
                    if !known && *name != "in" {
                        return Err(format!("Tollgate has nothing for `{name}` in it"));
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

/// What stands after `descriptors`: the key, which of them, and the rest.
fn entry<'a, 't>(after: &'a [Token<'t>]) -> Result<(String, u64, &'a [Token<'t>]), String> {
    let strange =
        || "descriptors are read as in `descriptors[0].key` or `descriptors[0]['key']`".to_owned();
    let [
        Token::Sign("["),
        Token::Number(number),
        Token::Sign("]"),
        after @ ..,
    ] = after
    else {
        return Err(strange());
    };
    let number = number.parse().map_err(|_| strange())?;
    match after {
        [Token::Sign("."), Token::Name(_), Token::Sign("("), ..] => Err(strange()),
        [Token::Sign("."), Token::Name(key), after @ ..] => Ok(((*key).to_owned(), number, after)),
        [
            Token::Sign("["),
            Token::Text(_, Some(key)),
            Token::Sign("]"),
            after @ ..,
        ] => Ok((key.clone(), number, after)),
        _ => Err(strange()),
    }
}

/// The parts of `a && b && c`: all of them must hold. What binds less is one part.
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
    let mut parts = Vec::with_capacity(ands.len() + 1);
    let mut start = 0;
    for and in ands {
        parts.push(&pieces[start..and]);
        start = and + 1;
    }
    parts.push(&pieces[start..]);
    parts
}

/// The entry and its values, of `entry == 'value'` and `entry in ['one', 'other']`.
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

/// A part of an expression, written for Tollgate; in brackets where it binds less than `&&`.
fn written(part: &[Piece<'_>]) -> Result<String, String> {
    let mut text = String::new();
    for piece in part {
        match piece {
            Piece::Entry {
                key,
                within_has: true,
            } => {
                if !is_bare(key) {
                    return Err(format!("has() cannot ask for `{key}`"));
                }
                text.push_str("attributes.");
                text.push_str(key);
            }
            Piece::Entry { key, .. } => text.push_str(&cel_attribute(key)),
            Piece::Made(made) => text.push_str(made),
            Piece::Token(token) => match token {
                Token::Name("in") => text.push_str(" in "),
                Token::Text(_, Some(value)) => text.push_str(&double_quoted(value)),
                Token::Name(word) | Token::Number(word) | Token::Text(word, _) => {
                    text.push_str(word);
                }
                Token::Sign(",") => text.push_str(", "),
                Token::Sign(sign @ ("(" | ")" | "[" | "]" | "{" | "}" | "." | "!")) => {
                    text.push_str(sign);
                }
                Token::Sign(sign) => {
                    text.push(' ');
                    text.push_str(sign);
                    text.push(' ');
                }
            },
        }
    }
    let text = text.trim();
    let loose = text.contains("||") || text.contains('?');
    Ok(if loose {
        format!("({text})")
    } else {
        text.to_owned()
    })
}

/// `key == 'value'` as it was written before Limitador 2: the key, whether it is equality, the value.
fn bare_comparison(text: &str) -> Option<(&str, bool, &str)> {
    let at = text.find("==").or_else(|| text.find("!="))?;
    let (key, rest) = text.split_at(at);
    let (key, value) = (key.trim(), rest[2..].trim());
    let quotes = value.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    let value = value.strip_prefix(quotes)?.strip_suffix(quotes)?;
    let plain = !value.contains(quotes) && !value.contains('\\');
    (is_bare_key(key) && plain).then_some((key, rest.starts_with("=="), value))
}

/// Whether it is a key by itself, and nothing of Limitador's own.
fn is_bare_key(text: &str) -> bool {
    let own = text == "descriptors" || text.starts_with("limit.") || text == "limit";
    !own && !WORDS.contains(&text) && tollgate_rules::is_attribute_name(text)
}

/// What a literal pattern stands for.
fn plain(pattern: &str) -> String {
    let mut text = String::with_capacity(pattern.len());
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        text.extend(if c == '\\' { chars.next() } else { Some(c) });
    }
    text
}
