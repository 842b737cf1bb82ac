//! Calls to the admin door of a running server, the HTTP API for operators.

use std::time::Duration;

use serde_json::Value;

pub(crate) use crate::connect::{Call, Failure, list};
use crate::connect::{ConnectArgs, Door, SHORT};

/// The server to call, and how to connect to it.
#[derive(Clone, clap::Args)]
#[command(next_help_heading = "Connection")]
pub(crate) struct AdminArgs {
    /// The address of the server's admin door
    #[arg(long, value_name = "URL", env = "TOLLGATE_ADMIN_URL")]
    #[arg(default_value = "http://127.0.0.1:8082")]
    admin: String,

    #[command(flatten)]
    connect: ConnectArgs,
}

/// The timeout of a call that may read the whole ledger.
pub(crate) const LONG: Duration = Duration::from_secs(3600);

const HELP: &str = "give the address of the server's admin door with --admin; `server.admin` in the config or \
                    `serve --admin` opens this door";

impl AdminArgs {
    /// Returns the same with the address of another server.
    pub(crate) fn at(&self, admin: &str) -> AdminArgs {
        AdminArgs {
            admin: admin.to_owned(),
            ..self.clone()
        }
    }

    /// Returns the address of the server.
    pub(crate) fn address(&self) -> &str {
        &self.admin
    }

    /// Returns the JSON that the server answers. Errors are ready to print.
    pub(crate) fn call(&self, path: &str, call: &Call<'_>) -> Result<Value, String> {
        Ok(self.call_within(SHORT, path, call)?)
    }

    pub(crate) fn call_within(
        &self,
        timeout: Duration,
        path: &str,
        call: &Call<'_>,
    ) -> Result<Value, Failure> {
        let door = self.door(timeout)?;
        let response = door.call(path, call)?;
        Ok(door.json(path, response)?)
    }

    /// Returns the body of the answer as a stream.
    pub(crate) fn read(
        &self,
        path: &str,
        query: &[(&str, &str)],
    ) -> Result<impl std::io::Read + use<>, String> {
        let response = self.door(LONG)?.call(path, &Call::Get(query))?;
        Ok(response.into_body().into_reader())
    }

    fn door(&self, timeout: Duration) -> Result<Door<'_>, String> {
        self.connect.door(&self.admin, timeout, HELP)
    }
}
