//! Tables for the terminal and for documents, targets of figures, and medians.

use std::fmt;

const MISSED: &str = "MISSED";

/// Rows under headings. All columns but the first are aligned to the right.
#[derive(Debug)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Makes a table with headings and no rows.
    #[must_use]
    pub fn new<const N: usize>(headings: [&str; N]) -> Table {
        Table {
            rows: vec![headings.map(str::to_owned).to_vec()],
        }
    }

    /// Adds a row.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(Vec::from(cells));
    }

    /// Adds a row with as many cells as there are.
    pub fn push(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Returns a line about each bar that was missed: the row, the figure, and the bar.
    #[must_use]
    pub fn missed(&self) -> Vec<String> {
        let mut missed = Vec::new();
        let heading = self.rows.first().and_then(|row| row.first());
        let heading = heading.map_or("", String::as_str);
        for row in &self.rows {
            for (place, cell) in row.iter().enumerate() {
                // A verdict stands after its figure and its bar.
                if cell == MISSED && place >= 2 {
                    let (name, figure, bar) = (&row[0], &row[place - 2], &row[place - 1]);
                    let line = format!("{heading} {name}: {figure}, bar {bar}");
                    missed.push(line.trim_start().to_owned());
                }
            }
        }
        missed
    }

    /// Returns the table in Markdown.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut text = String::new();
        for (number, row) in self.rows.iter().enumerate() {
            text += &format!("| {} |\n", row.join(" | "));
            if number == 0 {
                text += &format!("|{}\n", "---|".repeat(row.len()));
            }
        }
        text
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                match column {
                    0 => write!(f, "{cell:<width$}")?,
                    _ => write!(f, "  {cell:>width$}")?,
                }
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// The target of a ratio or a figure.
#[derive(Clone, Copy, Debug)]
pub enum Bar {
    /// No target.
    None,
    /// This much or more.
    AtLeast(f64),
    /// This much or less.
    AtMost(f64),
    /// Less than this.
    Below(f64),
}

impl Bar {
    /// Returns `met` or `MISSED`, or a dash if there is no target.
    #[must_use]
    pub fn verdict(self, value: f64) -> String {
        let met = match self {
            Bar::None => return "-".to_owned(),
            _ if value.is_nan() => return "not measured".to_owned(),
            Bar::AtLeast(bar) => value >= bar,
            Bar::AtMost(bar) => value <= bar,
            Bar::Below(bar) => value < bar,
        };
        if met { "met" } else { MISSED }.to_owned()
    }
}

impl fmt::Display for Bar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bar::None => f.write_str("-"),
            Bar::AtLeast(bar) => write!(f, ">= {bar}"),
            Bar::AtMost(bar) => write!(f, "<= {bar}"),
            Bar::Below(bar) => write!(f, "< {bar}"),
        }
    }
}

/// Returns a figure with this many decimals, or a dash if it was not measured.
#[must_use]
pub fn figure(value: f64, digits: usize) -> String {
    match value.is_nan() {
        true => "-".to_owned(),
        false => format!("{value:.digits$}"),
    }
}

/// Returns the middle value. If the number of values is even, returns the higher of the two middle values.
#[must_use]
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
