//! The SQL that inserts many rows at once.
//!
//! There are few different statements, because the database prepares each of them once. PostgreSQL takes each
//! column as one array, of any length. SQLite has no arrays, so each value has its own placeholder, and there
//! are statements for a few numbers of rows only. The largest number is high, because each statement is a
//! message to the thread of the connection.

use std::collections::HashMap;
use std::sync::Arc;

use super::connection::Dialect;

/// The numbers of rows that SQLite has statements for. With the largest number, even the widest table
/// stays below SQLite's maximum of 32,766 values.
const SIZES: [usize; 6] = [1024, 256, 64, 16, 4, 1];
/// The most rows of one statement in PostgreSQL. Even with the longest texts, the statement stays far
/// below the largest message.
const MOST_OF_ARRAY: usize = 1024;
/// The sequence number of the last entry.
const LAST: &str = "(SELECT coalesce(max(seq), 0) FROM entries)";

/// Sums are capped at this value. It is below 2^62, so that two sums can be added. Only hundreds of the
/// largest amounts reach the cap. Without the cap, an overflow would make every later write fail.
pub(super) const MOST_SUM: i64 = (1 << 62) - 1;

/// The target of a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Table {
    Entries,
    /// Like `Entries`, and returns the ids of new entries.
    EntriesReturning,
    Balances,
    Holds,
    /// The range of sequence numbers of a period's entries. Written before the entries and after them.
    Periods,
    Audit,
}

/// A column and its type in PostgreSQL.
type Column = (&'static str, &'static str);

impl Table {
    /// Returns the columns that take values.
    pub(super) fn columns(self) -> Vec<Column> {
        let columns = match self {
            Table::Entries | Table::EntriesReturning => {
                "id bytea, at int8, namespace text, tenant text, action text, rule text, \
                 allowance text, key bytea, period_start int8, period_end int8, kind text, \
                 amount int8, count int8, hold bytea, hold_tag int8, hold_expires_at int8, \
                 hold_record text, who text, why text, idempotency_key text"
            }
            Table::Balances => {
                "key bytea, period_start int8, tenant text, action text, rule text, \
                 namespace text, allowance text, period_end int8, used int8, granted int8, \
                 corrections int8, requests int8, entries int8, last_at int8"
            }
            Table::Holds => {
                "hold bytea, key bytea, namespace text, tenant text, action text, rule text, \
                 allowance text, period_start int8, period_end int8, tag int8, reserved int8, \
                 expires_at int8, record text, ended_kind text, ended_amount int8"
            }
            Table::Periods => "namespace text, period_start int8",
            Table::Audit => "id bytea, at int8, namespace text, who text, what text, text text",
        };
        let columns = columns.split(", ");
        columns.filter_map(|it| it.split_once(' ')).collect()
    }

    /// Returns the columns that the database computes.
    fn computed(self) -> &'static [Column] {
        match self {
            Table::Periods => &[("from_seq", LAST), ("to_seq", LAST)],
            _ => &[],
        }
    }

    fn name(self) -> &'static str {
        match self {
            Table::Entries | Table::EntriesReturning => "entries",
            Table::Balances => "balances",
            Table::Holds => "holds",
            Table::Periods => "periods",
            Table::Audit => "audit",
        }
    }

    /// Returns the clause that says what happens to a row that exists already.
    fn conflict(self) -> String {
        match self {
            Table::Entries | Table::Audit => "ON CONFLICT (id) DO NOTHING".to_owned(),
            Table::EntriesReturning => "ON CONFLICT (id) DO NOTHING RETURNING id".to_owned(),
            Table::Balances => {
                let sums = ["used", "granted", "corrections", "requests", "entries"]
                    .map(|it| format!("{it} = {}", sum_of("balances", it)))
                    .join(", ");
                format!(
                    "ON CONFLICT (key, period_start, tenant, action, rule) DO UPDATE SET {sums}, \
                     period_end = excluded.period_end, last_at = CASE \
                     WHEN excluded.last_at > balances.last_at THEN excluded.last_at \
                     ELSE balances.last_at END"
                )
            }
            Table::Holds => {
                // Clients use ids again. An entry starts a new reservation if the old one with the same id
                // has ended, and the new one expires later. A late entry about the old reservation does not
                // expire later.
                let again = "holds.ended_kind IS NOT NULL AND excluded.reserved <> 0 \
                             AND excluded.expires_at > holds.expires_at";
                let sums = ["reserved", "ended_amount"].map(|it| {
                    let sum = sum_of("holds", it);
                    format!("{it} = CASE WHEN {again} THEN excluded.{it} ELSE {sum} END")
                });
                let others = ["action", "rule", "allowance", "period_start", "period_end"];
                let others = others.map(|it| {
                    format!("{it} = CASE WHEN {again} THEN excluded.{it} ELSE holds.{it} END")
                });
                format!(
                    "ON CONFLICT (hold, key) DO UPDATE SET {}, {}, \
                     expires_at = CASE WHEN excluded.expires_at > holds.expires_at \
                     THEN excluded.expires_at ELSE holds.expires_at END, \
                     record = CASE WHEN {again} OR holds.record = '' THEN excluded.record \
                     WHEN excluded.record <> '' AND excluded.ended_kind IS NOT NULL \
                     AND holds.ended_kind IS NULL THEN excluded.record ELSE holds.record END, \
                     ended_kind = CASE WHEN {again} THEN excluded.ended_kind \
                     ELSE coalesce(holds.ended_kind, excluded.ended_kind) END",
                    sums.join(", "),
                    others.join(", "),
                )
            }
            Table::Periods => {
                "ON CONFLICT (namespace, period_start) DO UPDATE SET to_seq = excluded.to_seq"
                    .to_owned()
            }
        }
    }
}

fn sum_of(table: &str, column: &str) -> String {
    let sum = format!("{table}.{column} + excluded.{column}");
    format!(
        "CASE WHEN {sum} > {MOST_SUM} THEN {MOST_SUM} \
         WHEN {sum} < -{MOST_SUM} THEN -{MOST_SUM} ELSE {sum} END"
    )
}

/// The statements that were made so far.
#[derive(Debug, Default)]
pub(crate) struct Statements(HashMap<(Table, Dialect, usize), Arc<str>>);

impl Statements {
    /// Returns a statement for up to `rows` rows, and how many rows it takes.
    pub(super) fn of(&mut self, table: Table, dialect: Dialect, rows: usize) -> (Arc<str>, usize) {
        let (size, marks) = match dialect {
            Dialect::Sqlite => {
                let size = SIZES.into_iter().find(|size| *size <= rows).unwrap_or(1);
                (size, size)
            }
            // One statement is enough for any number of rows.
            Dialect::Postgres => (rows.min(MOST_OF_ARRAY), 1),
        };
        let text = self.0.entry((table, dialect, marks));
        let text = text.or_insert_with(|| insert(table, dialect, marks).into());
        (Arc::clone(text), size)
    }
}

fn insert(table: Table, dialect: Dialect, rows: usize) -> String {
    let (columns, computed) = (table.columns(), table.computed());
    let names = columns.iter().chain(computed).map(|(name, _)| *name);
    let names: Vec<&str> = names.collect();
    let rows = match dialect {
        // Rows of separate values. The placeholders have no numbers, because SQLite would look up each
        // number.
        Dialect::Sqlite => {
            let marks = columns.iter().map(|_| "?");
            let marks = marks.chain(computed.iter().map(|(_, value)| *value));
            let row = format!("({})", marks.collect::<Vec<_>>().join(","));
            format!("VALUES {}", vec![row; rows].join(", "))
        }
        // Rows from one array per column, in order.
        Dialect::Postgres => {
            let given = names[..columns.len()].join(", ");
            let arrays = (1..).zip(&columns);
            let arrays = arrays.map(|(number, (_, kind))| format!("${number}::{kind}[]"));
            let arrays = arrays.collect::<Vec<_>>().join(", ");
            let computed: String = computed.iter().map(|(_, it)| format!(", {it}")).collect();
            format!(
                "SELECT {given}{computed} FROM unnest({arrays}) \
                 WITH ORDINALITY AS made ({given}, place) ORDER BY place"
            )
        }
    };
    let (name, names, conflict) = (table.name(), names.join(", "), table.conflict());
    format!("INSERT INTO {name} ({names}) {rows} {conflict}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_statements_cover_any_number_of_rows() {
        for (dialect, expected) in [(Dialect::Sqlite, SIZES.len()), (Dialect::Postgres, 1)] {
            let mut statements = Statements::default();
            for rows in 1..2100 {
                let mut left = rows;
                while left > 0 {
                    let (_, size) = statements.of(Table::Entries, dialect, left);
                    assert!((1..=left).contains(&size));
                    left -= size;
                }
            }
            assert_eq!(statements.0.len(), expected);
        }
    }

    #[test]
    fn no_statement_has_too_many_values() {
        use Table::*;
        for table in [Entries, EntriesReturning, Balances, Holds, Periods, Audit] {
            assert!(table.columns().len() * SIZES[0] < 32_766);
        }
    }

    #[test]
    fn placeholders_match_the_dialect() {
        let text = insert(Table::Balances, Dialect::Sqlite, 2);
        let row = "(?,?,?,?,?,?,?,?,?,?,?,?,?,?)";
        assert!(text.contains(&format!("VALUES {row}, {row} ON")), "{text}");
        let text = insert(Table::Periods, Dialect::Sqlite, 1);
        assert!(text.contains(&format!("VALUES (?,?,{LAST},{LAST}) ON")));
        let text = insert(Table::Periods, Dialect::Postgres, 1);
        let expected = format!(
            "SELECT namespace, period_start, {LAST}, {LAST} \
             FROM unnest($1::text[], $2::int8[]) WITH ORDINALITY"
        );
        assert!(text.contains(&expected), "{text}");
    }
}
