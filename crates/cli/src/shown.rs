//! Texts of others on a terminal.

/// A text without what a terminal would obey: each control character is a space.
pub(crate) fn shown(text: &str) -> String {
    let shown = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::shown;

    #[test]
    fn a_terminal_has_nothing_to_obey() {
        assert_eq!(shown("a\u{1b}[31mb\r\nc\u{9b}d\u{7f}"), "a [31mb  c d ");
        assert_eq!(shown("naïve — 日本"), "naïve — 日本");
    }
}
