//! Tables of comma-separated values. A table of tenants has the columns `tenant`, `plan`, `timezone`, and
//! columns such as `api-rate.burst`.
//!
//! Cells become nodes with positions, so that a table is read and checked like YAML. An empty cell
//! gives no value. Cells may be quoted, with `""` for a quote.
//!
//! This module has its own parser because messages give the line and column of a cell. The `csv` crate
//! gives the start of a record, but not the position of a quoted cell. It also accepts cells that this
//! parser rejects.
use tollgate_rules::document::{Node, Place, Problems};

/// The most columns. A table needs far fewer: one for each number that differs between tenants.
const MAX_COLUMNS: usize = 1_000;

const HEADER_HELP: &str = "start with a line of columns, such as tenant,plan,api-rate.burst";
const QUOTE_HELP: &str = "end the cell with one quote, and write two for a quote inside it";

/// A cell: its text and its position.
pub(crate) type Cell = (String, Place);

/// The position of a cell that cannot be read, and the reason.
pub(crate) type BadCell = (Place, &'static str);

/// The kind of a column.
enum Column {
    Tenant,
    /// A field of the tenant, by its name.
    Field(&'static str),
    /// A number: the index of its rule or budget, and its name.
    Number(usize, Node),
}

/// Reads the table of `problems.source()` as a map of names to tenants.
pub(crate) fn parse(problems: &mut Problems<'_>) -> Option<Node> {
    let mut rows = Rows::new(problems.source());
    let Some(header) = rows.next() else {
        problems.report(Place::default(), "the table is empty", HEADER_HELP);
        return None;
    };
    let (columns, allowances) = columns(&cells(header, problems)?, problems)?;
    let mut tenants = Vec::new();
    for row in rows {
        let row = cells(row, problems)?;
        if let [(text, _)] = row.as_slice()
            && text.is_empty()
        {
            continue;
        }
        let most = columns.len();
        if let Some((_, place)) = row.get(most) {
            let message = format!("this row has more cells than there are columns ({most})");
            problems.report(*place, message, "put cells that contain a comma in quotes");
            continue;
        }
        tenants.extend(tenant(&row, &columns, &allowances, problems));
    }
    Some(Node::map(Place::new(0, 0), tenants))
}

/// Returns the cells of a row, or reports why a cell cannot be read.
pub(crate) fn cells(
    row: Result<Vec<Cell>, BadCell>,
    problems: &mut Problems<'_>,
) -> Option<Vec<Cell>> {
    row.map_err(|(place, message)| problems.report(place, message, QUOTE_HELP))
        .ok()
}

/// Returns the kinds of the columns, and the rules and budgets that the columns name.
fn columns(header: &[Cell], problems: &mut Problems<'_>) -> Option<(Vec<Column>, Vec<Node>)> {
    if let Some((_, place)) = header.get(MAX_COLUMNS) {
        let message = format!("there are more than {MAX_COLUMNS} columns");
        let help = "remove columns: each is a number that differs by tenant";
        problems.report(*place, message, help);
        return None;
    }
    let mut allowances: Vec<Node> = Vec::new();
    let mut columns = Vec::with_capacity(header.len());
    for (index, (name, place)) in header.iter().enumerate() {
        if header[..index].iter().any(|(known, _)| known == name) {
            let message = format!("the column `{name}` is given twice");
            problems.report(*place, message, "keep one of the two");
        }
        columns.push(match name.as_str() {
            "tenant" => Column::Tenant,
            "plan" => Column::Field("plan"),
            "timezone" => Column::Field("timezone"),
            _ => {
                // An id may contain dots. The name of a number contains none.
                let Some((id, number)) = name.rsplit_once('.') else {
                    let message = format!("`{name}` is not the name of a column");
                    let help = "write tenant, plan, timezone, or a rule and its number, such as api-rate.burst";
                    problems.report(*place, message, help);
                    continue;
                };
                let known = allowances.iter().position(|node| node.text() == Some(id));
                let allowance = known.unwrap_or_else(|| {
                    allowances.push(Node::scalar(*place, id));
                    allowances.len() - 1
                });
                Column::Number(allowance, Node::scalar(*place, number))
            }
        });
    }
    if !columns.iter().any(|it| matches!(it, Column::Tenant)) {
        let place = header
            .first()
            .map_or_else(Place::default, |(_, place)| *place);
        problems.report(place, "there is no column `tenant`", HEADER_HELP);
    }
    problems.is_empty().then_some((columns, allowances))
}

/// Turns a row into an entry of a map of tenants.
fn tenant(
    row: &[Cell],
    columns: &[Column],
    allowances: &[Node],
    problems: &mut Problems<'_>,
) -> Option<(Node, Node)> {
    let start = row.first().map_or_else(Place::default, |(_, place)| *place);
    let mut name = None;
    let mut entries = Vec::new();
    let mut numbers: Vec<Vec<(Node, Node)>> = allowances.iter().map(|_| Vec::new()).collect();
    let given = row.iter().zip(columns);
    for ((text, place), column) in given.filter(|((text, _), _)| !text.is_empty()) {
        let cell = Node::scalar(*place, text);
        match column {
            Column::Tenant => name = Some(cell),
            Column::Field(field) => entries.push((Node::scalar(*place, field), cell)),
            Column::Number(allowance, number) => {
                numbers[*allowance].push((number.clone(), cell));
            }
        }
    }
    let Some(name) = name else {
        let help = "write the tenant's name, as requests carry it in the attribute `tenant`";
        problems.report(start, "this row has no tenant", help);
        return None;
    };
    let numbers = allowances.iter().zip(numbers);
    let numbers = numbers.filter(|(_, numbers)| !numbers.is_empty());
    let numbers: Vec<(Node, Node)> = numbers
        .map(|(id, numbers)| (id.clone(), Node::map(start, numbers)))
        .collect();
    if !numbers.is_empty() {
        let overrides = Node::map(start, numbers);
        entries.push((Node::scalar(start, "overrides"), overrides));
    }
    Some((name, Node::map(start, entries)))
}

/// The rows of a table.
pub(crate) struct Rows<'s> {
    source: &'s str,
    at: usize,
}

impl Iterator for Rows<'_> {
    type Item = Result<Vec<Cell>, BadCell>;

    fn next(&mut self) -> Option<Result<Vec<Cell>, BadCell>> {
        if self.at >= self.source.len() {
            return None;
        }
        let mut cells = Vec::new();
        loop {
            match self.cell() {
                Ok(cell) => cells.push(cell),
                Err(bad) => {
                    self.at = self.source.len();
                    return Some(Err(bad));
                }
            }
            let rest = &self.source[self.at..];
            if rest.starts_with(',') {
                self.at += 1;
                continue;
            }
            self.at += match rest {
                _ if rest.starts_with("\r\n") => 2,
                "" => 0,
                _ => 1,
            };
            return Some(Ok(cells));
        }
    }
}

impl<'s> Rows<'s> {
    pub(crate) fn new(source: &'s str) -> Rows<'s> {
        Rows { source, at: 0 }
    }

    /// Reads the next cell, up to the comma or the line end after it.
    fn cell(&mut self) -> Result<Cell, BadCell> {
        let spaced = &self.source[self.at..];
        let start = self.at + spaced.len() - spaced.trim_start_matches(' ').len();
        let rest = &self.source[start..];
        if let Some(quoted) = rest.strip_prefix('"') {
            let mut text = String::new();
            let mut from = 0;
            while let Some(quote) = quoted[from..].find('"') {
                text.push_str(&quoted[from..from + quote]);
                from += quote + 1;
                if quoted[from..].starts_with('"') {
                    text.push('"');
                    from += 1;
                    continue;
                }
                let after = start + 1 + from;
                let rest = &self.source[after..];
                self.at = after + rest.find([',', '\n']).unwrap_or(rest.len());
                if !self.source[after..self.at].trim().is_empty() {
                    let message = "there is text after the closing quote";
                    return Err((Place::new(after, self.at), message));
                }
                return Ok((text, Place::new(start, start + 1 + from)));
            }
            return Err((Place::new(start, start + 1), "a quote is not closed"));
        }
        let end = rest.find([',', '\n']).unwrap_or(rest.len());
        let text = rest[..end].trim();
        let lead = rest[..end].len() - rest[..end].trim_start().len();
        self.at = start + end;
        let from = start + lead;
        Ok((text.to_owned(), Place::new(from, from + text.len())))
    }
}
