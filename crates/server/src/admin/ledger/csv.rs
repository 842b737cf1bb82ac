//! Lines of comma-separated values (RFC 4180), safe to open in a spreadsheet.
//!
//! A spreadsheet takes a cell that begins with `=`, `+`, `-` or `@` for a formula, and cells hold texts that
//! strangers chose. An apostrophe before such a text prevents that. A text that begins with an apostrophe
//! gets another one, so that a program that removes the first apostrophe always has the original text.

use std::fmt::Display;

/// First characters that need an apostrophe before them. Some spreadsheets treat the full-width forms like
/// the ASCII ones, and ignore white space before a formula.
const GUARDED: [char; 12] = [
    '=', '+', '-', '@', '＝', '＋', '－', '＠', '\'', '\t', '\r', '\n',
];

/// A file that is being written.
pub(super) struct Csv {
    writer: csv::Writer<Vec<u8>>,
}

impl Default for Csv {
    fn default() -> Csv {
        let mut builder = csv::WriterBuilder::new();
        builder.terminator(csv::Terminator::CRLF).flexible(true);
        let writer = builder.from_writer(Vec::new());
        Csv { writer }
    }
}

// Writing to a Vec cannot fail, and lines of any length are accepted: no result below is an error.
impl Csv {
    /// Writes the line that names the columns.
    pub(super) fn header(&mut self, columns: &[&str]) {
        let _ = self.writer.write_record(columns);
    }

    /// Writes any text.
    pub(super) fn text(&mut self, text: &str) {
        let _ = match text.trim_start_matches(' ').starts_with(GUARDED) {
            true => self.writer.write_field(format!("'{text}")),
            false => self.writer.write_field(text),
        };
    }

    /// Writes a number, or a word of this program.
    pub(super) fn number(&mut self, number: impl Display) {
        let _ = self.writer.write_field(number.to_string());
    }

    /// Writes a number, or an empty cell.
    pub(super) fn number_if_any(&mut self, number: Option<impl Display>) {
        let number = number.map_or_else(String::new, |number| number.to_string());
        self.number(number);
    }

    /// Ends the line.
    pub(super) fn end(&mut self) {
        let _ = self.writer.write_record(None::<&[u8]>);
    }

    /// Returns the lines that were ended.
    pub(super) fn into_text(self) -> String {
        let bytes = self.writer.into_inner().unwrap_or_default();
        String::from_utf8(bytes).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(text: &str) -> String {
        let mut csv = Csv::default();
        csv.number(0);
        csv.text(text);
        csv.end();
        let line = csv.into_text();
        line["0,".len()..line.len() - "\r\n".len()].to_owned()
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
    fn formulas_in_disguise_are_guarded() {
        for (text, expected) in [
            ("＝1+1", "'＝1+1"),
            ("＠sum", "'＠sum"),
            ("  =1+1", "'  =1+1"),
        ] {
            assert_eq!(cell(text), expected, "{text:?}");
        }
    }

    #[test]
    fn a_line_of_one_empty_text_is_not_an_empty_line() {
        let mut csv = Csv::default();
        csv.text("");
        csv.end();
        assert_eq!(csv.into_text(), "\"\"\r\n");
    }

    #[test]
    fn numbers_are_not_guarded() {
        let mut csv = Csv::default();
        csv.header(&["tenant", "used", "limit"]);
        csv.text("");
        csv.number(-5);
        csv.number_if_any(None::<u64>);
        csv.end();
        assert_eq!(csv.into_text(), "tenant,used,limit\r\n,-5,\r\n");
    }
}
