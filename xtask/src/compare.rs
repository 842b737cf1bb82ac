//! Compares what the same benchmark printed in two checkouts.
//!
//! A benchmark prints tables whose columns are at least two spaces apart and, after the first, aligned to the
//! right. Figures are matched by their position, such as the third figure of the second row of the first
//! table. So texts and headings may differ between the checkouts, but the tables must have the same shape.

use std::fmt::Write as _;

use crate::shell::Failure;

/// Columns that are not measured. They are computed from other columns, or name the case of a row.
const NOT_MEASURED: [&str; 3] = ["", "ratio", "bar"];
const PART_OF_NAME: &str = "threads";

/// One measured value.
#[derive(Debug, PartialEq)]
struct Figure {
    /// The first line of the paragraph before the table.
    title: String,
    row: String,
    column: String,
    value: f64,
}

/// Returns a table with each figure of both checkouts, as medians over the runs. The table also has the ratio
/// of this checkout to the other: the median, the lowest and the highest over the runs.
pub(crate) fn report(before: &[String], after: &[String]) -> Result<String, Failure> {
    let before: Vec<Vec<Figure>> = before.iter().map(|text| figures(text)).collect();
    let after: Vec<Vec<Figure>> = after.iter().map(|text| figures(text)).collect();
    let count = after.first().map_or(0, Vec::len);
    if count == 0 || before.iter().chain(&after).any(|run| run.len() != count) {
        let counts = |runs: &[Vec<Figure>]| runs.iter().map(Vec::len).collect::<Vec<_>>();
        return Err(Failure::new(format!(
            "the runs printed different tables: {:?} figures there, {:?} here",
            counts(&before),
            counts(&after)
        )));
    }
    let runs = after.len();
    let mut text = format!(
        "Medians of {runs} runs in turn; the ratio is this checkout to the other, run by run\n"
    );
    let mut title = None;
    for index in 0..count {
        let figure = &after[0][index];
        if title.replace(&figure.title) != Some(&figure.title) {
            let _ = writeln!(text, "\n{}", figure.title);
            let headings = ["", "", "other", "this", "ratio", "lowest", "highest"];
            text += &line(headings.map(str::to_owned));
        }
        let values = |side: &[Vec<Figure>]| side.iter().map(|run| run[index].value).collect();
        let (other, this): (Vec<f64>, Vec<f64>) = (values(&before), values(&after));
        let mut ratios: Vec<f64> = this.iter().zip(&other).map(|(a, b)| a / b).collect();
        ratios.sort_by(f64::total_cmp);
        text += &line([
            figure.row.clone(),
            figure.column.clone(),
            median(other).to_string(),
            median(this).to_string(),
            format!("{:.3}", median(ratios.clone())),
            format!("{:.3}", ratios[0]),
            format!("{:.3}", ratios[runs - 1]),
        ]);
    }
    Ok(text)
}

fn line([row, column, other, this, ratio, lowest, highest]: [String; 7]) -> String {
    format!("{row:<46}{column:>24}{other:>12}{this:>12}{ratio:>9}{lowest:>9}{highest:>9}\n")
}

/// Returns the middle value. If the number of values is even, returns the mean of the two middle values.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    match values.len() % 2 {
        0 => (values[half - 1] + values[half]) / 2.0,
        _ => values[half],
    }
}

/// Returns the figures of all tables in `text`.
fn figures(text: &str) -> Vec<Figure> {
    let mut figures = Vec::new();
    let (mut title, mut is_paragraph) = (String::new(), false);
    let mut headings: Option<Vec<(usize, &str)>> = None;
    for line in text.lines() {
        let cells = cells(line);
        if cells.len() < 2 {
            // The first line of a paragraph names the tables after it.
            if !line.trim().is_empty() && !is_paragraph {
                line.trim().clone_into(&mut title);
            }
            is_paragraph = !line.trim().is_empty();
            headings = None;
            continue;
        }
        is_paragraph = false;
        let Some(headings) = &headings else {
            headings = Some(cells);
            continue;
        };
        let mut row = String::new();
        for (index, (end, cell)) in cells.into_iter().enumerate() {
            let heading = headings.iter().find(|(at, _)| *at == end);
            let heading = heading.map_or("", |(_, heading)| heading);
            if index == 0 {
                cell.clone_into(&mut row);
            } else if heading == PART_OF_NAME {
                let _ = write!(row, ", {heading} {cell}");
            } else if !NOT_MEASURED.contains(&heading)
                && let Ok(value) = cell.parse()
            {
                figures.push(Figure {
                    title: title.clone(),
                    row: row.clone(),
                    column: heading.to_owned(),
                    value,
                });
            }
        }
    }
    figures
}

/// Returns the cells of a line of a table, each with the column where it ends.
fn cells(line: &str) -> Vec<(usize, &str)> {
    let mut cells = Vec::new();
    let mut start = 0;
    for part in line.split("  ") {
        let cell = part.trim();
        let end = start + part.trim_end().len();
        if !cell.is_empty() {
            cells.push((line[..end].chars().count(), cell));
        }
        start += part.len() + 2;
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "\
Nanoseconds per check

The store: one charge;
and a second line
keys  threads  tollgate  governor  ratio     bar      
1           1        50       100   2.00  >= 1.5   met
10          2       100       100   1.00  >= 1.5  MISSED

Bytes per key
              reported  allocated
store, gcra       60.9       61.0
";

    #[test]
    fn figures_are_named_by_title_row_and_column() {
        let figures = figures(BEFORE);
        let names: Vec<_> = figures
            .iter()
            .map(|it| {
                (
                    it.title.as_str(),
                    it.row.as_str(),
                    it.column.as_str(),
                    it.value,
                )
            })
            .collect();
        assert_eq!(
            names,
            [
                ("The store: one charge;", "1, threads 1", "tollgate", 50.0),
                ("The store: one charge;", "1, threads 1", "governor", 100.0),
                ("The store: one charge;", "10, threads 2", "tollgate", 100.0),
                ("The store: one charge;", "10, threads 2", "governor", 100.0),
                ("Bytes per key", "store, gcra", "reported", 60.9),
                ("Bytes per key", "store, gcra", "allocated", 61.0),
            ]
        );
    }

    #[test]
    fn ratio_is_the_median_of_the_ratios_of_the_runs() {
        let run = |value: u32| format!("t\n\nkeys  ours\none   {value:>4}\n");
        let text = report(
            &[run(100), run(200), run(1000)],
            &[run(110), run(200), run(900)],
        );
        let text = text.expect("both have one figure");
        let row: Vec<&str> = text
            .lines()
            .last()
            .unwrap_or("")
            .split_whitespace()
            .collect();
        assert_eq!(
            row,
            ["one", "ours", "200", "200", "1.000", "0.900", "1.100"]
        );
    }

    #[test]
    fn tables_of_different_shape_are_an_error() {
        let failure = report(
            &[BEFORE.to_owned()],
            &["t\n\nkeys  ours\none      1\n".to_owned()],
        );
        let failure = failure
            .map(drop)
            .expect_err("the tables differ")
            .to_string();
        assert!(failure.contains("[6] figures there, [1] here"), "{failure}");
    }
}
