//! Values of statements and rows, the same for both databases.

use std::sync::Arc;

use sqlx::{Decode, Type, TypeInfo as _, ValueRef as _};
use tollgate_core::Time;

use crate::entry::{Kind, Period};

/// One value of a statement or of a row. `None` is `NULL`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Int(Option<i64>),
    Text(Option<Arc<str>>),
    /// 128 bits as 16 bytes, the most significant byte first.
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
        // Times are below 2^53.
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

/// The values of a statement.
#[derive(Debug)]
pub(crate) enum Values {
    /// One value for each placeholder.
    Each(Vec<Value>),
    /// Rows of `width` values, one row after the other. PostgreSQL gets one array per column.
    Rows {
        list: Vec<Value>,
        #[cfg_attr(not(feature = "postgres"), allow(dead_code))]
        width: usize,
    },
}

/// One row of an answer.
#[derive(Debug)]
pub(crate) struct Row(Vec<Value>);

impl Row {
    /// Reads all columns of a row of either database.
    pub(super) fn read<R: sqlx::Row>(row: &R) -> Result<Row, sqlx::Error>
    where
        usize: sqlx::ColumnIndex<R>,
        for<'r> i64: Decode<'r, R::Database> + Type<R::Database>,
        for<'r> &'r str: Decode<'r, R::Database> + Type<R::Database>,
        for<'r> &'r [u8]: Decode<'r, R::Database> + Type<R::Database>,
    {
        let read = |column| {
            let raw = row.try_get_raw(column)?;
            if raw.is_null() {
                return Ok(Value::Text(None));
            }
            Ok(match raw.type_info().name() {
                name if name.contains("INT") => row.try_get::<i64, _>(column)?.into(),
                "TEXT" => row.try_get::<&str, _>(column)?.into(),
                _ => {
                    let bytes = row.try_get::<&[u8], _>(column)?.try_into();
                    let bytes = bytes.map_err(|_| wrong(column, "not 16 bytes"))?;
                    u128::from_be_bytes(bytes).into()
                }
            })
        };
        (0..row.len()).map(read).collect::<Result<_, _>>().map(Row)
    }

    pub(crate) fn int(&self, column: usize) -> Result<i64, sqlx::Error> {
        match self.0.get(column) {
            Some(Value::Int(Some(number))) => Ok(*number),
            _ => Err(wrong(column, "not an integer")),
        }
    }

    /// Returns the number in this column, which must not be below zero.
    pub(crate) fn natural(&self, column: usize) -> Result<u64, sqlx::Error> {
        let number = self.int(column)?;
        u64::try_from(number).map_err(|_| wrong(column, "a number below zero"))
    }

    pub(crate) fn time(&self, column: usize) -> Result<Time, sqlx::Error> {
        Ok(Time::from_micros(self.natural(column)?))
    }

    /// Returns a period: its start is in this column, and its end in the next.
    pub(crate) fn period(&self, column: usize) -> Result<Period, sqlx::Error> {
        Ok(Period {
            start: self.time(column)?,
            end: self.time(column + 1)?,
        })
    }

    /// Returns the number in this column, which must be below 2^32.
    pub(crate) fn small(&self, column: usize) -> Result<u32, sqlx::Error> {
        u32::try_from(self.int(column)?).map_err(|_| wrong(column, "not a number below 2^32"))
    }

    /// Returns the kind of entry that is named in this column.
    pub(crate) fn kind(&self, column: usize) -> Result<Kind, sqlx::Error> {
        let kind = Kind::parse(&self.text(column)?);
        kind.ok_or_else(|| wrong(column, "not a kind of entry"))
    }

    pub(crate) fn text(&self, column: usize) -> Result<Arc<str>, sqlx::Error> {
        self.text_if_any(column)?
            .ok_or_else(|| wrong(column, "NULL"))
    }

    pub(crate) fn text_if_any(&self, column: usize) -> Result<Option<Arc<str>>, sqlx::Error> {
        match self.0.get(column) {
            Some(Value::Text(text)) => Ok(text.clone()),
            _ => Err(wrong(column, "not a text")),
        }
    }

    pub(crate) fn bits(&self, column: usize) -> Result<u128, sqlx::Error> {
        self.bits_if_any(column)?
            .ok_or_else(|| wrong(column, "NULL"))
    }

    pub(crate) fn bits_if_any(&self, column: usize) -> Result<Option<u128>, sqlx::Error> {
        match self.0.get(column) {
            Some(Value::Bits(bits)) => Ok(*bits),
            // `Row::read` turns NULL into this.
            Some(Value::Text(None)) => Ok(None),
            _ => Err(wrong(column, "not bytes")),
        }
    }
}

/// Returns the error for a column with a value that this program never writes.
pub(crate) fn wrong(column: usize, problem: &str) -> sqlx::Error {
    sqlx::Error::ColumnDecode {
        index: column.to_string(),
        source: problem.into(),
    }
}
