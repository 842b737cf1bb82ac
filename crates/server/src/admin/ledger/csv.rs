//! Lines of comma-separated values as RFC 4180 has them.
//!
//! Texts of others may end up in a spreadsheet, which takes what begins with `=`, `+`, `-` or `@` for a
//! formula. An apostrophe before such a text keeps it one; one before a text that begins with an apostrophe
//! keeps the two apart, so that whoever takes it off again has the text as it was.

use std::fmt::{Display, Write};

/// A file that is being written.
#[derive(Default)]
pub(super) struct Csv {
    text: String,
    has_cells: bool,
}

impl Csv {
    /// The line that names the columns.
    pub(super) fn header(&mut self, columns: &[&str]) {
        for column in columns {
            self.number(column);
        }
        self.end();
    }

    /// A text, whatever is in it.
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

    /// A number, or a word of this program.
    pub(super) fn number(&mut self, number: impl Display) {
        self.separate();
        let _ = write!(self.text, "{number}");
    }

    /// A number, if there is one.
    pub(super) fn number_if_any(&mut self, number: Option<impl Display>) {
        match number {
            Some(number) => self.number(number),
            None => self.separate(),
        }
    }

    /// The end of a line.
    pub(super) fn end(&mut self) {
        self.text.push_str("\r\n");
        self.has_cells = false;
    }

    /// What was written.
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
    fn a_text_stays_a_text() {
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
    fn numbers_are_as_they_are() {
        let mut csv = Csv::default();
        csv.header(&["tenant", "used", "limit"]);
        csv.text("");
        csv.number(-5);
        csv.number_if_any(None::<u64>);
        csv.end();
        assert_eq!(csv.into_text(), "tenant,used,limit\r\n,-5,\r\n");
    }
}
