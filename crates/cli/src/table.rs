//! Tables on a terminal.

use crate::shown::shown;

/// A column: its name, and whether it has numbers, which stand on the right.
pub(crate) type Column = (&'static str, bool);

/// A line of names and one for each row, in columns. Nothing in it is obeyed by a terminal.
pub(crate) fn table<const N: usize>(columns: [Column; N], rows: &[[String; N]]) -> String {
    let rows: Vec<[String; N]> = rows
        .iter()
        .map(|row| row.each_ref().map(|cell| shown(cell)))
        .collect();
    let names = columns.map(|(name, _)| name.to_owned());
    let widths: Vec<usize> = (0..N)
        .map(|place| {
            let cells = rows.iter().chain([&names]);
            let widths = cells.map(|row| row[place].chars().count());
            widths.max().unwrap_or(0)
        })
        .collect();
    let mut text = String::new();
    for row in [&names].into_iter().chain(&rows) {
        let mut line = String::new();
        for ((cell, width), (_, is_number)) in row.iter().zip(&widths).zip(&columns) {
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
    use super::table;

    #[test]
    fn numbers_stand_on_the_right() {
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
