//! The deployment that the entries of a namespace belong to: a few named texts. They say how the instances of
//! the deployment hash subjects. The ledger does not interpret them.
//!
//! Each change uses a connection of its own, and is one transaction under the lock of migrations. So if two
//! instances claim an empty ledger at the same time, one of them wins, and the other gets the texts of the
//! winner.

use std::sync::Arc;

use tokio::time::timeout;

use super::connection::{Connection, Purpose, connect, query_error};
use super::migrate::begin_alone;
use super::read::Query;
use super::value::{Row, Value, Values};
use crate::error::LedgerError;
use crate::ledger::Ledger;

/// Named texts.
pub type Texts = Vec<(String, String)>;

const SELECT: &str = "SELECT name, value FROM deployments WHERE namespace = $1 ORDER BY name";
const INSERT: &str =
    "INSERT INTO deployments (namespace, name, value) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING";
const DELETE: &str = "DELETE FROM deployments WHERE namespace = $1";

/// How to change the texts of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Sets the texts if there are none.
    IfNew,
    /// Adds texts with new names, and leaves the others as they are.
    Add,
    /// Replaces all texts.
    Replace,
}

impl Ledger {
    /// Returns the texts of the deployment of `namespace`; none if no instance has claimed the ledger.
    ///
    /// # Errors
    /// If the database does not answer.
    pub async fn deployment(&self, namespace: &str) -> Result<Texts, LedgerError> {
        self.read(Query::new(SELECT).with(namespace), read).await
    }

    /// Sets texts of the deployment of `namespace`. Returns all texts after the change.
    ///
    /// # Errors
    /// If the database does not answer. Then nothing was changed, unless the error [is
    /// unknown](LedgerError::is_unknown).
    pub async fn claim(
        &self,
        namespace: &str,
        texts: &[(String, String)],
        how: Claim,
    ) -> Result<Texts, LedgerError> {
        let options = self.options();
        let location: Arc<str> = options.database.location().into();
        let mut connection = connect(options, Purpose::Write).await?;
        let changing = change(&mut *connection, namespace, texts, how);
        let changed = timeout(options.write_timeout, changing).await;
        // If the server does not answer, do not wait for it.
        let _ = timeout(options.connect_timeout, connection.close()).await;
        match changed {
            Ok(changed) => changed.map_err(|error| query_error(&error, &location)),
            Err(_) => Err(LedgerError::Unknown {
                location,
                reason: format!("not written within {:?}", options.write_timeout).into(),
            }),
        }
    }
}

async fn change(
    connection: &mut dyn Connection,
    namespace: &str,
    texts: &[(String, String)],
    how: Claim,
) -> Result<Texts, sqlx::Error> {
    let begin = begin_alone(connection);
    connection.run(begin).await?;
    let known = fetch(connection, namespace).await?;
    if how == Claim::Replace {
        let values = Values::Each(vec![namespace.into()]);
        connection.execute(DELETE.into(), values).await?;
    }
    if how != Claim::IfNew || known.is_empty() {
        for (name, value) in texts {
            let row: Vec<Value> = vec![namespace.into(), (&**name).into(), (&**value).into()];
            connection.execute(INSERT.into(), Values::Each(row)).await?;
        }
    }
    let known = fetch(connection, namespace).await?;
    connection.run("COMMIT").await?;
    Ok(known)
}

async fn fetch(connection: &mut dyn Connection, namespace: &str) -> Result<Texts, sqlx::Error> {
    let values = Values::Each(vec![namespace.into()]);
    let rows = connection.fetch(SELECT.into(), values).await?;
    rows.iter().map(read).collect()
}

fn read(row: &Row) -> Result<(String, String), sqlx::Error> {
    Ok((row.text(0)?.to_string(), row.text(1)?.to_string()))
}
