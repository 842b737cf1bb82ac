//! PostgreSQL: how to connect, and how values are bound.

use std::pin::Pin;
use std::sync::Arc;

use sqlx::pool::PoolOptions;
use sqlx::postgres::{PgArguments, PgConnectOptions, PgConnection, PgExecutor};
use sqlx::{Arguments as _, AssertSqlSafe, ConnectOptions as _, Connection as _, PgPool};

use super::connection::{Connection, Dialect, READERS, Readers, Work, open_error};
use super::value::{Row, Value, Values};
use crate::error::OpenError;
use crate::options::{self, Options};

pub(super) async fn connect(
    url: &str,
    options: &Options,
) -> Result<Box<dyn Connection>, OpenError> {
    let location = options.database.location().into();
    let failed = |error| open_error(&error, &location);
    let mut connection = address(url)?.connect().await.map_err(failed)?;
    let settings = sqlx::raw_sql(AssertSqlSafe(settings(options)));
    settings.execute(&mut connection).await.map_err(failed)?;
    // The encoding must have every character: an entry that cannot be stored would block all entries after
    // it. SQL_ASCII stores any bytes as text.
    let encoding: String = sqlx::query_scalar("SELECT current_setting('server_encoding')")
        .fetch_one(&mut connection)
        .await
        .map_err(failed)?;
    if !["UTF8", "SQL_ASCII"].contains(&&*encoding) {
        return Err(OpenError::Encoding {
            location,
            encoding: encoding.into(),
        });
    }
    Ok(Box::new(connection))
}

pub(super) fn readers(url: &str, options: &Options) -> Result<Arc<dyn Readers>, OpenError> {
    let settings: Arc<str> = settings(options).into();
    let pool = PoolOptions::new()
        .max_connections(READERS)
        .acquire_timeout(options.connect_timeout)
        .after_connect(move |connection: &mut PgConnection, _| {
            let settings = AssertSqlSafe(Arc::clone(&settings));
            Box::pin(async move { sqlx::raw_sql(settings).execute(connection).await.map(drop) })
        });
    let pool: PgPool = pool.connect_lazy_with(address(url)?);
    Ok(Arc::new(pool))
}

fn address(url: &str) -> Result<PgConnectOptions, OpenError> {
    let options = options::parse(url).map_err(|reason| OpenError::Address {
        reason: reason.into(),
    })?;
    Ok(options
        .application_name("tollgate")
        .disable_statement_logging())
}

/// Returns statements that give the server the same time limit as this process. So an abandoned transaction
/// does not block others.
fn settings(options: &Options) -> String {
    let limit = options.write_timeout.as_millis().max(1);
    format!(
        "SET statement_timeout = {limit}; SET idle_in_transaction_session_timeout = {limit}; \
         SET synchronous_commit = on"
    )
}

impl Connection for PgConnection {
    fn dialect(&self) -> Dialect {
        Dialect::Postgres
    }

    fn run(&mut self, sql: &'static str) -> Work<'_, ()> {
        Box::pin(async move { sqlx::raw_sql(sql).execute(self).await.map(drop) })
    }

    fn execute(&mut self, sql: Arc<str>, values: Values) -> Work<'_, u64> {
        Box::pin(async move {
            let query = sqlx::query_with(AssertSqlSafe(sql), bind(&values)?);
            Ok(query.execute(self).await?.rows_affected())
        })
    }

    fn fetch(&mut self, sql: Arc<str>, values: Values) -> Work<'_, Vec<Row>> {
        Box::pin(fetch(self, sql, values))
    }

    fn close(self: Box<Self>) -> Work<'static, ()> {
        Box::pin(async move { (*self).close().await })
    }
}

impl Readers for PgPool {
    fn fetch(&self, sql: Arc<str>, values: Vec<Value>) -> Work<'_, Vec<Row>> {
        Box::pin(fetch(self, sql, Values::Each(values)))
    }

    fn close(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(self.close())
    }
}

async fn fetch<'e>(
    executor: impl PgExecutor<'e>,
    sql: Arc<str>,
    values: Values,
) -> Result<Vec<Row>, sqlx::Error> {
    let query = sqlx::query_with(AssertSqlSafe(sql), bind(&values)?);
    let rows = query.fetch_all(executor).await?;
    rows.iter().map(Row::read).collect()
}

fn bind(values: &Values) -> Result<PgArguments, sqlx::Error> {
    let mut arguments = PgArguments::default();
    match values {
        Values::Each(list) => {
            arguments.reserve(list.len(), list.len() * 16);
            for value in list {
                match value {
                    Value::Int(value) => arguments.add(value),
                    Value::Text(value) => arguments.add(value.as_deref()),
                    Value::Bits(value) => arguments.add(value.map(u128::to_be_bytes)),
                }
                .map_err(sqlx::Error::Encode)?;
            }
        }
        Values::Rows { list, width } => {
            arguments.reserve(*width, list.len() * 16);
            for (index, first) in list.iter().take(*width).enumerate() {
                let column = list.iter().skip(index).step_by(*width);
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
        }
    }
    Ok(arguments)
}
