//! Reads texts, flags and numbers from YAML nodes as the original programs read them.

use tollgate_rules::document::{Node, Place, Problems, wanted};

/// Reports a field that a map has twice.
pub(crate) fn duplicate(name: &str, place: Place, first: Place, problems: &mut Problems<'_>) {
    let line = problems.position(first).0;
    let help = format!("the first one is on line {line}: keep one of the two");
    problems.report(place, format!("`{name}` is given twice"), help);
}

/// Reads any scalar as text; null is the empty text.
pub(crate) fn text(node: &Node, what: &str, problems: &mut Problems<'_>) -> Option<String> {
    match node.text() {
        Some(_) if node.is_null() => Some(String::new()),
        Some(text) => Some(text.to_owned()),
        None => {
            wanted(what, "write a text", node, problems);
            None
        }
    }
}

/// Reads a flag in any spelling of YAML 1.1; null is `false`.
pub(crate) fn flag(node: &Node, problems: &mut Problems<'_>) -> Option<bool> {
    let word = node.text().filter(|_| node.is_plain());
    let lower = word.map(str::to_ascii_lowercase);
    match lower.as_deref() {
        Some("true" | "yes" | "on" | "y") => Some(true),
        Some("false" | "no" | "off" | "n" | "" | "~" | "null") => Some(false),
        _ => {
            wanted("`true` or `false`", "write true or false", node, problems);
            None
        }
    }
}

/// Reads a whole number of at most `max`. Only plain decimal digits are accepted: some YAML readers take
/// `010` for ten, and others for eight.
pub(crate) fn whole(node: &Node, max: u64, problems: &mut Problems<'_>) -> Option<u64> {
    let written = node.text().filter(|_| node.is_plain()).unwrap_or_default();
    let plain = written.bytes().all(|byte| byte.is_ascii_digit())
        && (written.len() == 1 || !written.starts_with('0'));
    let number = written.parse().ok().filter(|number| *number <= max);
    if number.is_none() || !plain {
        let help = format!("write a plain number such as 100, at most {max}");
        wanted("a whole number", &help, node, problems);
        return None;
    }
    number
}
