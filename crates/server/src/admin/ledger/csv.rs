//! Lines of comma-separated values (RFC 4180), safe to open in a spreadsheet.
//!
//! A spreadsheet takes a cell that begins with `=`, `+`, `-` or `@` for a formula, and clients choose
//! some of the texts. An apostrophe before such a text prevents that. A text that begins with an
//! apostrophe gets another one, so that a program can always remove the first apostrophe.

use serde_json::Value;

/// First characters that need an apostrophe before them. Some spreadsheets treat the full-width forms
/// like the ASCII characters, and ignore white space before a formula.
const GUARDED: [char; 12] = [
    '=', '+', '-', '@', '＝', '＋', '－', '＠', '\'', '\t', '\r', '\n',
];

/// Writes a line for each row, with the cells that `columns` names, separated by commas. The header
/// has these names in snake case.
pub(super) fn lines(columns: &str, with_header: bool, rows: &[Value]) -> String {
    let mut builder = csv::WriterBuilder::new();
    let builder = builder.terminator(csv::Terminator::CRLF);
    let mut writer = builder.from_writer(Vec::new());
    // Writing to a Vec cannot fail, and all lines have the same number of cells. So no result here is
    // an error.
    if with_header {
        let mut header = String::new();
        for c in columns.chars() {
            if c.is_ascii_uppercase() {
                header.push('_');
            }
            header.push(c.to_ascii_lowercase());
        }
        let _ = writer.write_record(header.split(','));
    }
    for row in rows {
        let cells = columns.split(',').map(|name| match &row[name] {
            Value::String(text) if text.trim_start_matches(' ').starts_with(GUARDED) => {
                format!("'{text}")
            }
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            number => number.to_string(),
        });
        let _ = writer.write_record(cells);
    }
    let bytes = writer.into_inner().unwrap_or_default();
    String::from_utf8(bytes).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn texts_are_quoted_and_formulas_get_an_apostrophe() {
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
            // Formulas with full-width characters, or with blanks before them.
            ("＝1+1", "'＝1+1"),
            ("＠sum", "'＠sum"),
            ("  =1+1", "'  =1+1"),
        ] {
            let line = lines("used,tenant", false, &[json!({"used": 0, "tenant": text})]);
            assert_eq!(line, format!("0,{expected}\r\n"), "{text:?}");
        }
    }

    #[test]
    fn a_line_of_one_empty_text_is_not_an_empty_line() {
        assert_eq!(lines("a", false, &[json!({"a": ""})]), "\"\"\r\n");
    }

    #[test]
    fn numbers_are_not_guarded() {
        let row = json!({"tenant": "", "usedNow": -5, "limit": null});
        let text = lines("tenant,usedNow,limit", true, &[row]);
        assert_eq!(text, "tenant,used_now,limit\r\n,-5,\r\n");
    }
}
