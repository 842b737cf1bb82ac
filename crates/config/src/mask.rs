//! The text of a config without its secrets, and back.
//!
//! A secret is replaced by a mask with a name that a keyed hash made. Whoever has another text of the
//! config with the same secret, and the key of the hash, can put the secret back. References such as
//! `${VAR}` are not secret and stay as written.

use std::collections::HashMap;
use std::ops::Range;

use tollgate_rules::EMPTY_HELP;
use tollgate_rules::document::{Problems, parse_document};

use crate::secrets;

const START: &str = "<secret ";
const END: char = '>';

/// Replaces the secrets in `text`. `name` names a secret; the name is the same for the same secret, and
/// does not reveal it.
///
/// ```
/// let text = "store: { redis: { url: redis://h, password: hunter2 } }\nrules: []\n";
/// let masked = tollgate_config::mask(text, &|_| "a1".to_owned());
/// assert_eq!(masked, "store: { redis: { url: redis://h, password: <secret a1> } }\nrules: []\n");
/// let again = "store: { redis: { password: hunter2 } }\n";
/// assert_eq!(tollgate_config::unmask(&masked, again, &|_| "a1".to_owned()).as_deref(), Ok(text));
/// ```
#[must_use]
pub fn mask(text: &str, name: &dyn Fn(&str) -> String) -> String {
    let mut masked = String::with_capacity(text.len());
    let mut after = 0;
    for place in places(text) {
        masked += &text[after..place.start];
        match is_comment(text, place.start) {
            // Nobody needs the secret of a comment.
            true => masked += "***",
            false => {
                masked += START;
                masked += &name(&text[place.clone()]);
                masked.push(END);
            }
        }
        after = place.end;
    }
    masked + &text[after..]
}

/// Puts the secrets of `current` back into `masked`. `name` must be as it was for [`mask`].
///
/// # Errors
/// The number of secrets that `current` does not have.
pub fn unmask(masked: &str, current: &str, name: &dyn Fn(&str) -> String) -> Result<String, usize> {
    let known = places(current).into_iter().map(|place| &current[place]);
    let known: HashMap<String, &str> = known.map(|secret| (name(secret), secret)).collect();
    let (mut text, mut rest, mut missing) = (String::with_capacity(masked.len()), masked, 0);
    while let Some((before, after)) = rest.split_once(START) {
        text += before;
        let Some((name, after)) = after.split_once(END) else {
            text += START;
            rest = after;
            break;
        };
        match known.get(name) {
            Some(secret) => text += secret,
            None => missing += 1,
        }
        rest = after;
    }
    match missing {
        0 => Ok(text + rest),
        missing => Err(missing),
    }
}

/// Returns the places of all secrets, in order, without overlaps.
fn places(text: &str) -> Vec<Range<usize>> {
    let mut problems = Problems::new(text);
    match parse_document(EMPTY_HELP, &mut problems) {
        Some(root) => secrets::hide(&root, &mut problems),
        None => secrets::hide_in_text(&mut problems),
    }
    let mut places: Vec<Range<usize>> = problems
        .secrets()
        .iter()
        .map(|place| place.start..place.end)
        .collect();
    let mut all_lines = Problems::new(text);
    secrets::hide_in_text(&mut all_lines);
    let of_lines = all_lines.secrets().iter();
    let in_comments = of_lines.filter(|place| is_comment(text, place.start));
    places.extend(in_comments.map(|place| place.start..place.end));
    places.sort_by_key(|place| place.start);
    let mut merged: Vec<Range<usize>> = Vec::with_capacity(places.len());
    for place in places {
        let is_whole = text.is_char_boundary(place.start) && text.is_char_boundary(place.end);
        match merged.last_mut() {
            Some(last) if place.start < last.end => last.end = last.end.max(place.end),
            _ if is_whole && !place.is_empty() => merged.push(place),
            _ => {}
        }
    }
    merged
}

/// Whether the line up to this place is a comment.
fn is_comment(text: &str, place: usize) -> bool {
    let line = text[..place].rfind('\n').map_or(0, |at| at + 1);
    text[line..place].trim_start().starts_with('#')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(secret: &str) -> String {
        blake3::hash(secret.as_bytes()).to_hex()[..16].to_owned()
    }

    #[test]
    fn secrets_are_masked_and_put_back() {
        let text = "# password: hunter1\nstore:\n  redis: { url: \"redis://app:hunter2@h\", sentinel_password: \"${PW}\" }\n\
            subjects: { hash_secret: 'hunter3 and more' } # kept\n\
            server: { admin: { address: 127.0.0.1:1, tokens: [{ name: ops, role: admin, sha256: hunter4 }] } }\n\
            rules: [{ id: a, match: { password: x } }]\n";
        let masked = mask(text, &name);
        assert!(!masked.contains("hunter"), "{masked}");
        assert!(
            masked.contains("${PW}") && masked.contains("password: x"),
            "{masked}"
        );
        assert!(masked.contains("name: ops, role: admin") && masked.contains("# kept"));
        let back = unmask(&masked, text, &name).unwrap();
        assert_eq!(back, text.replace(" hunter1", "***"));
        let other = text.replace("hunter3", "hunter5");
        assert_eq!(unmask(&masked, &other, &name), Err(1));
        assert_eq!(unmask("rules: []", "", &name).as_deref(), Ok("rules: []"));
    }

    #[test]
    fn a_text_without_secrets_stays_as_it_is() {
        let text = "version: 1\nrules: []\nsubjects: { hash_secret: \"${SECRET}\" }\n";
        assert_eq!(mask(text, &name), text);
    }
}
