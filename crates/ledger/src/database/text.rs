//! The statements that write many rows at once.
//!
//! They are made for a few numbers of rows only, and kept: the database knows them by their text, and has
//! prepared each once.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;

use super::connection::Dialect;

/// Numbers of rows that there are statements for. With the most columns, the first stays well below the
/// 32,766 values that SQLite takes.
const SIZES: [usize; 5] = [256, 64, 16, 4, 1];

/// A sum stops here: below 2^62, so that two of them are a number. Only thousands of the largest amounts
/// get there; a sum that blocked the books for good would be worse.
pub(super) const MOST_SUM: i64 = (1 << 62) - 1;

/// What is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Table {
    Entries,
    /// The same, and the answer is the ids of those that were new.
    EntriesAnswered,
    Balances,
    Holds,
    Audit,
}

impl Table {
    pub(super) fn columns(self) -> &'static [&'static str] {
        match self {
            Table::Entries | Table::EntriesAnswered => &[
                "id",
                "at",
                "namespace",
                "tenant",
                "action",
                "rule",
                "allowance",
                "key",
                "period_start",
                "period_end",
                "kind",
                "amount",
                "count",
                "hold",
                "hold_tag",
                "hold_expires_at",
                "hold_record",
                "who",
                "why",
                "idempotency_key",
            ],
            Table::Balances => &[
                "key",
                "period_start",
                "tenant",
                "action",
                "rule",
                "namespace",
                "allowance",
                "period_end",
                "used",
                "granted",
                "corrections",
                "requests",
                "entries",
            ],
            Table::Holds => &[
                "hold",
                "key",
                "namespace",
                "tenant",
                "action",
                "rule",
                "allowance",
                "period_start",
                "period_end",
                "tag",
                "reserved",
                "expires_at",
                "record",
                "ended_kind",
                "ended_amount",
            ],
            Table::Audit => &["id", "at", "namespace", "who", "what", "text"],
        }
    }

    fn name(self) -> &'static str {
        match self {
            Table::Entries | Table::EntriesAnswered => "entries",
            Table::Balances => "balances",
            Table::Holds => "holds",
            Table::Audit => "audit",
        }
    }

    /// What is to be done about rows that are there.
    fn conflict(self) -> String {
        match self {
            Table::Entries | Table::Audit => "ON CONFLICT (id) DO NOTHING".to_owned(),
            Table::EntriesAnswered => "ON CONFLICT (id) DO NOTHING RETURNING id".to_owned(),
            Table::Balances => {
                let sums = ["used", "granted", "corrections", "requests", "entries"]
                    .map(|it| sum("balances", it))
                    .join(", ");
                format!(
                    "ON CONFLICT (key, period_start, tenant, action, rule) DO UPDATE SET {sums}, \
                     period_end = excluded.period_end"
                )
            }
            Table::Holds => {
                let sums = ["reserved", "ended_amount"]
                    .map(|it| sum("holds", it))
                    .join(", ");
                format!(
                    "ON CONFLICT (hold, key) DO UPDATE SET {sums}, \
                     expires_at = CASE WHEN excluded.expires_at > holds.expires_at \
                     THEN excluded.expires_at ELSE holds.expires_at END, \
                     record = CASE WHEN holds.record = '' THEN excluded.record \
                     WHEN excluded.record <> '' AND excluded.ended_kind IS NOT NULL \
                     AND holds.ended_kind IS NULL THEN excluded.record ELSE holds.record END, \
                     ended_kind = coalesce(holds.ended_kind, excluded.ended_kind)"
                )
            }
        }
    }
}

fn sum(table: &str, column: &str) -> String {
    let sum = format!("{table}.{column} + excluded.{column}");
    format!(
        "{column} = CASE WHEN {sum} > {MOST_SUM} THEN {MOST_SUM} \
         WHEN {sum} < -{MOST_SUM} THEN -{MOST_SUM} ELSE {sum} END"
    )
}

/// The statements that were made so far.
#[derive(Debug, Default)]
pub(crate) struct Texts(HashMap<(Table, Dialect, usize), Arc<str>>);

impl Texts {
    /// The statement that writes as many of `rows` rows as one does, and how many these are.
    pub(super) fn of(&mut self, table: Table, dialect: Dialect, rows: usize) -> (Arc<str>, usize) {
        let size = SIZES.into_iter().find(|size| *size <= rows).unwrap_or(1);
        let text = self.0.entry((table, dialect, size));
        let text = text.or_insert_with(|| insert(table, dialect, size).into());
        (Arc::clone(text), size)
    }
}

fn insert(table: Table, dialect: Dialect, rows: usize) -> String {
    let columns = table.columns();
    let mut text = format!(
        "INSERT INTO {} ({}) VALUES ",
        table.name(),
        columns.join(", ")
    );
    let mut number = 0;
    for row in 0..rows {
        text.push_str(if row == 0 { "(" } else { ", (" });
        for column in 0..columns.len() {
            if column > 0 {
                text.push(',');
            }
            number += 1;
            // SQLite looks names of values up one by one, and these have none.
            let _ = match dialect {
                Dialect::Sqlite => write!(text, "?"),
                Dialect::Postgres => write!(text, "${number}"),
            };
        }
        text.push(')');
    }
    text.push(' ');
    text.push_str(&table.conflict());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_few_statements_and_all_rows_are_written() {
        let mut texts = Texts::default();
        for rows in 1..600 {
            let mut left = rows;
            while left > 0 {
                let (_, size) = texts.of(Table::Entries, Dialect::Postgres, left);
                assert!(size <= left);
                left -= size;
            }
        }
        assert_eq!(texts.0.len(), SIZES.len());
    }

    #[test]
    fn no_statement_has_more_values_than_a_database_takes() {
        for table in [Table::Entries, Table::Balances, Table::Holds] {
            assert!(table.columns().len() * SIZES[0] < 32_766);
        }
    }

    #[test]
    fn values_are_marked_as_the_database_wants() {
        let text = insert(Table::Balances, Dialect::Postgres, 2);
        assert!(
            text.contains("($1,$2,$3,") && text.contains(",$26)"),
            "{text}"
        );
        let text = insert(Table::Balances, Dialect::Sqlite, 1);
        assert!(
            text.contains("VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?) ON"),
            "{text}"
        );
    }
}
