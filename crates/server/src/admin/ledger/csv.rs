//! Lines of comma-separated values (RFC 4180).
//!
//! Texts of clients may end up in a spreadsheet, which takes a text that begins with `=`, `+`, `-`
//! or `@` for a formula. So such a text gets an apostrophe in front. A text that begins with an
//! apostrophe gets another one, so that a reader can remove exactly one.

use std::fmt::{Display, Write};

/// A file that is being written.
#[derive(Default)]
pub(super) struct Csv {
    text: String,
    has_cells: bool,
}

impl Csv {
    /// Writes the line with the names of the columns.
    pub(super) fn header(&mut self, columns: &[&str]) {
        for column in columns {
            self.number(column);
        }
        self.end();
    }

    /// Writes a text, escaped where needed.
    pub(super) fn text(&mut self, text: &str) {
        self.separate();
        let guard = match text.starts_with(['=', '+', '-', '@', '\'', '\t', '\r', '\n']) {
            true => "'",
            false => "",
        };
        // Writing to a String cannot fail.
        let _ = match text.contains([',', '"', '\r', '\n']) {
            true => write!(self.text, "\"{guard}{}\"", text.replace('"', "\"\"")),
            false => write!(self.text, "{guard}{text}"),
        };
    }

    /// Writes a number, or a word that needs no escapes.
    pub(super) fn number(&mut self, number: impl Display) {
        self.separate();
        let _ = write!(self.text, "{number}");
    }

    /// Writes a number, or nothing.
    pub(super) fn number_if_any(&mut self, number: Option<impl Display>) {
        match number {
            Some(number) => self.number(number),
            None => self.separate(),
        }
    }

    /// Ends the line.
    pub(super) fn end(&mut self) {
        self.text.push_str("\r\n");
        self.has_cells = false;
    }

    /// Returns what was written.
    pub(super) fn into_text(self) -> String {
        self.text
    }

    fn separate(&mut self) {
        if self.has_cells {
            self.text.push(',');
        }
        self.has_cells = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(text: &str) -> String {
        let mut csv = Csv::default();
        csv.text(text);
        csv.into_text()
    }

    #[test]
    fn texts_survive_escaping() {
        for (text, expected) in [
            ("acme", "acme"),
            ("", ""),
            ("a,b", "\"a,b\""),
            ("say \"no\"", "\"say \"\"no\"\"\""),
            ("two\r\nlines", "\"two\r\nlines\""),
            ("=1+1", "'=1+1"),
            ("+1", "'+1"),
            ("-1", "'-1"),
            ("@sum", "'@sum"),
            ("\tx", "'\tx"),
            ("=a,\"b\"", "\"'=a,\"\"b\"\"\""),
            ("'=1", "''=1"),
            ("日本", "日本"),
        ] {
            assert_eq!(cell(text), expected, "{text:?}");
        }
    }

    #[test]
    fn numbers_are_written_as_they_are() {
        let mut csv = Csv::default();
        csv.header(&["tenant", "used", "limit"]);
        csv.text("");
        csv.number(-5);
        csv.number_if_any(None::<u64>);
        csv.end();
        assert_eq!(csv.into_text(), "tenant,used,limit\r\n,-5,\r\n");
    }
}
