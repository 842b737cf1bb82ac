//! Quotes texts for the three notations in a config: YAML scalars, patterns of `match`, and CEL.

use std::fmt::Write as _;

/// Names with a meaning of their own in CEL, now or perhaps later.
const RESERVED: &str = "all as attributes bool break bytes const contains continue double dyn else endsWith exists \
    exists_one false filter for function has if import in int let list loop map namespace null \
    null_type package return size startsWith string true type uint var void while";

/// Writes a YAML scalar, in quotes if it could be misread without them.
pub(crate) fn scalar(text: &str) -> String {
    const WORDS: [&str; 9] = ["null", "true", "false", "yes", "no", "on", "off", "y", "n"];
    let mut bytes = text.bytes();
    let is_word = bytes
        .next()
        .is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-'));
    let is_reserved = WORDS.iter().any(|it| it.eq_ignore_ascii_case(text));
    if is_word && !is_reserved {
        return text.to_owned();
    }
    if text.chars().all(is_printable) {
        return format!("'{}'", text.replace('\'', "''"));
    }
    double_quoted(text)
}

/// Writes a pattern of `match` that accepts `text` and nothing else.
pub(crate) fn literal_pattern(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(c, '*' | '?' | '\\') {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern
}

/// Writes a string in double quotes, for YAML and for CEL.
pub(crate) fn double_quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            c if is_printable(c) => quoted.push(c),
            c => {
                let _ = write!(quoted, "\\U{:08X}", u32::from(c));
            }
        }
    }
    quoted.push('"');
    quoted
}

/// Writes an attribute in CEL: its name, or a lookup if the name is not an identifier.
pub(crate) fn cel_attribute(name: &str) -> String {
    match is_identifier(name) {
        true => name.to_owned(),
        false => format!("attributes[{}]", double_quoted(name)),
    }
}

/// Whether CEL reads `name` as a variable.
pub(crate) fn is_identifier(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    name.bytes().all(is_plain)
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && !RESERVED.split(' ').any(|word| word == name)
}

/// Whether `c` is kept in quoted text. Other characters break lines or are invisible.
fn is_printable(c: char) -> bool {
    let hidden = ['\u{2028}', '\u{2029}', '\u{feff}', '\u{fffe}', '\u{ffff}'];
    !c.is_control() && !hidden.contains(&c)
}

/// Makes a text fit on one line of a comment.
pub(crate) fn comment(text: &str) -> String {
    text.replace(|c| !is_printable(c), " ")
}

/// Writes a duration of whole seconds in the largest unit that is exact.
pub(crate) fn window(seconds: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(86_400, "d"), (3_600, "h"), (60, "m")];
    for (length, unit) in UNITS {
        if seconds > 0 && seconds.is_multiple_of(length) {
            return format!("{}{unit}", seconds / length);
        }
    }
    format!("{seconds}s")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ambiguous_scalars_are_quoted() {
        assert_eq!(scalar("req.method"), "req.method");
        assert_eq!(scalar("null"), "'null'");
        assert_eq!(scalar("No"), "'No'");
        assert_eq!(scalar(""), "''");
        assert_eq!(scalar("10.0.0.1"), "'10.0.0.1'");
        assert_eq!(scalar("it's: #1"), "'it''s: #1'");
        assert_eq!(scalar("a\n\"b\\"), r#""a\U0000000A\"b\\""#);
    }

    #[test]
    fn reserved_names_are_looked_up() {
        assert_eq!(cel_attribute("user_id"), "user_id");
        assert_eq!(cel_attribute("req.method"), "attributes[\"req.method\"]");
        assert_eq!(cel_attribute("in"), "attributes[\"in\"]");
        assert_eq!(cel_attribute("string"), "attributes[\"string\"]");
    }

    #[test]
    fn window_uses_the_largest_exact_unit() {
        for (seconds, text) in [
            (1, "1s"),
            (60, "1m"),
            (90, "90s"),
            (7_200, "2h"),
            (604_800, "7d"),
        ] {
            assert_eq!(window(seconds), text);
        }
        assert_eq!(window(0), "0s");
    }
}
