//! Nodes of a YAML tree as texts, flags and numbers, the way the originals read them.

use tollgate_rules::document::{Node, Problems, wanted};

/// A text: whatever a scalar says. Nothing is the empty text.
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

/// A flag, in any of the words that YAML 1.1 has for it. Nothing is `false`.
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

/// A whole number of at most `max`. Other notations than the plain one are refused: `010` is ten to
/// one reader and eight to another.
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
