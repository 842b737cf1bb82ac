//! What goes into statements and comes out of rows, the same for both databases.

use std::sync::Arc;

use sqlx::postgres::{PgArguments, PgRow};
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{Arguments as _, Row as _};
use tollgate_core::Time;

/// One value of a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Int(Option<i64>),
    Text(Option<Arc<str>>),
    /// 128 bits, the highest first.
    Bits(Option<u128>),
}

impl From<i64> for Value {
    fn from(value: i64) -> Value {
        Value::Int(Some(value))
    }
}

impl From<u32> for Value {
    fn from(value: u32) -> Value {
        Value::Int(Some(value.into()))
    }
}

impl From<usize> for Value {
    fn from(value: usize) -> Value {
        Value::Int(Some(i64::try_from(value).unwrap_or(i64::MAX)))
    }
}

impl From<Time> for Value {
    fn from(value: Time) -> Value {
        // Below 2^53.
        Value::Int(Some(i64::try_from(value.as_micros()).unwrap_or(i64::MAX)))
    }
}

impl From<&Arc<str>> for Value {
    fn from(value: &Arc<str>) -> Value {
        Value::Text(Some(Arc::clone(value)))
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Value {
        Value::Text(Some(value.into()))
    }
}

impl From<u128> for Value {
    fn from(value: u128) -> Value {
        Value::Bits(Some(value))
    }
}

pub(super) fn sqlite(values: Vec<Value>) -> Result<SqliteArguments, sqlx::Error> {
    let mut arguments = SqliteArguments::default();
    arguments.reserve(values.len(), 0);
    for value in values {
        match value {
            Value::Int(value) => arguments.add(value),
            Value::Text(value) => arguments.add(value),
            Value::Bits(value) => arguments.add(value.map(|it| it.to_be_bytes().to_vec())),
        }
        .map_err(sqlx::Error::Encode)?;
    }
    Ok(arguments)
}

pub(super) fn postgres(values: Vec<Value>) -> Result<PgArguments, sqlx::Error> {
    let mut arguments = PgArguments::default();
    arguments.reserve(values.len(), values.len() * 16);
    for value in values {
        match value {
            Value::Int(value) => arguments.add(value),
            Value::Text(value) => arguments.add(value.as_deref()),
            Value::Bits(value) => {
                let bytes = value.map(u128::to_be_bytes);
                arguments.add(bytes.as_ref().map(<[u8; 16]>::as_slice))
            }
        }
        .map_err(sqlx::Error::Encode)?;
    }
    Ok(arguments)
}

/// Rows of `width` values each, as an array for each column.
pub(super) fn arrays(values: &[Value], width: usize) -> Result<PgArguments, sqlx::Error> {
    let mut arguments = PgArguments::default();
    arguments.reserve(width, values.len() * 16);
    for (place, first) in values.iter().take(width).enumerate() {
        let column = values.iter().skip(place).step_by(width);
        match first {
            Value::Int(_) => {
                let numbers = column.map(|value| match value {
                    Value::Int(number) => *number,
                    _ => None,
                });
                arguments.add(numbers.collect::<Vec<_>>())
            }
            Value::Text(_) => {
                let texts = column.map(|value| match value {
                    Value::Text(text) => text.as_deref(),
                    _ => None,
                });
                arguments.add(texts.collect::<Vec<_>>())
            }
            Value::Bits(_) => {
                let bytes = column.map(|value| match value {
                    Value::Bits(bits) => bits.map(u128::to_be_bytes),
                    _ => None,
                });
                arguments.add(bytes.collect::<Vec<_>>())
            }
        }
        .map_err(sqlx::Error::Encode)?;
    }
    Ok(arguments)
}

/// One row of an answer.
pub(crate) enum Row {
    Sqlite(SqliteRow),
    Postgres(PgRow),
}

impl Row {
    pub(crate) fn int(&self, column: usize) -> Result<i64, sqlx::Error> {
        match self {
            Row::Sqlite(row) => row.try_get(column),
            Row::Postgres(row) => row.try_get(column),
        }
    }

    /// A number that is never below zero.
    pub(crate) fn natural(&self, column: usize) -> Result<u64, sqlx::Error> {
        let number = self.int(column)?;
        u64::try_from(number).map_err(|_| wrong(column, "a number below zero"))
    }

    pub(crate) fn time(&self, column: usize) -> Result<Time, sqlx::Error> {
        Ok(Time::from_micros(self.natural(column)?))
    }

    pub(crate) fn text(&self, column: usize) -> Result<Arc<str>, sqlx::Error> {
        match self {
            Row::Sqlite(row) => row.try_get::<&str, _>(column).map(Arc::from),
            Row::Postgres(row) => row.try_get::<&str, _>(column).map(Arc::from),
        }
    }

    pub(crate) fn text_if_any(&self, column: usize) -> Result<Option<Arc<str>>, sqlx::Error> {
        let text: Option<&str> = match self {
            Row::Sqlite(row) => row.try_get(column)?,
            Row::Postgres(row) => row.try_get(column)?,
        };
        Ok(text.map(Arc::from))
    }

    pub(crate) fn bits(&self, column: usize) -> Result<u128, sqlx::Error> {
        self.bits_if_any(column)?
            .ok_or_else(|| wrong(column, "nothing"))
    }

    pub(crate) fn bits_if_any(&self, column: usize) -> Result<Option<u128>, sqlx::Error> {
        let bytes: Option<&[u8]> = match self {
            Row::Sqlite(row) => row.try_get(column)?,
            Row::Postgres(row) => row.try_get(column)?,
        };
        let Some(bytes) = bytes else { return Ok(None) };
        let bytes = bytes.try_into().map_err(|_| wrong(column, "no 16 bytes"))?;
        Ok(Some(u128::from_be_bytes(bytes)))
    }
}

/// That column has what this program does not write.
pub(crate) fn wrong(column: usize, what: &str) -> sqlx::Error {
    sqlx::Error::ColumnDecode {
        index: column.to_string(),
        source: what.into(),
    }
}
