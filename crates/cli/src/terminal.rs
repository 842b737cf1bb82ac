//! Text and tables for a terminal.

/// A column: its name, and whether it holds numbers. Numbers are aligned to the right.
pub(crate) type Column = (&'static str, bool);

/// Replaces control characters by spaces: text from elsewhere must not control the terminal.
pub(crate) fn printable(text: &str) -> String {
    let printable = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().map(printable).collect()
}

/// Writes a text of an answer as a cell of a table: a dash if the text is empty or missing.
pub(crate) fn cell(text: &serde_json::Value) -> String {
    let text = text.as_str().filter(|text| !text.is_empty());
    text.unwrap_or("-").to_owned()
}

/// Whether to colour the output to `stream`: only on a terminal, and only without `NO_COLOR`.
pub(crate) fn has_colour(stream: &impl std::io::IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Writes a number of rules, such as `1 rule` or `2 rules`.
pub(crate) fn count_rules(count: usize) -> String {
    format!("{count} rule{}", if count == 1 { "" } else { "s" })
}

/// Writes a table with a line of names and a line for each row, without control characters.
pub(crate) fn table<const N: usize>(columns: [Column; N], rows: &[[String; N]]) -> String {
    let rows = rows.iter();
    let rows = rows.map(|row| row.each_ref().map(|cell| printable(cell)));
    let rows: Vec<[String; N]> = rows.collect();
    let names = columns.map(|(name, _)| name.to_owned());
    let widths: [usize; N] = std::array::from_fn(|column| {
        let cells = rows.iter().chain([&names]);
        let widths = cells.map(|row| row[column].chars().count());
        widths.max().unwrap_or(0)
    });
    let mut text = String::new();
    for row in [&names].into_iter().chain(&rows) {
        let mut line = String::new();
        for ((cell, width), (_, is_number)) in row.iter().zip(widths).zip(&columns) {
            line += &match is_number {
                true => format!("{cell:>width$}  "),
                false => format!("{cell:<width$}  "),
            };
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_become_spaces() {
        assert_eq!(printable("a\u{1b}[31mb\r\nc\u{9b}d\u{7f}"), "a [31mb  c d ");
        assert_eq!(printable("naïve — 日本"), "naïve — 日本");
    }

    #[test]
    fn numbers_are_aligned_to_the_right() {
        let rows = [
            ["acme".to_owned(), "5".to_owned(), "x".to_owned()],
            ["a\u{1b}b".to_owned(), "12345".to_owned(), String::new()],
        ];
        assert_eq!(
            table([("tenant", false), ("used", true), ("", false)], &rows),
            "tenant   used\nacme        5  x\na b     12345\n"
        );
    }
}
