//! Connections to one server: opened, logged in, and checked with a ping.

use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, IntoConnectionInfo, Pipeline,
    RedisConnectionInfo, RedisError, TlsCertificates, Value,
};
use tokio::time::timeout;

use crate::error::Failure;
use crate::options::{Address, Login, Options, Servers};

/// Why a connection could not be opened.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{what}")]
pub(crate) struct ConnectError {
    pub(crate) cause: Cause,
    /// The address, and what is wrong with it.
    what: String,
}

/// The setting to check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The address: no server answers.
    Unreachable,
    /// The user or the password.
    Login,
    /// The rights of the user.
    Rights,
    /// The user or the password for the Sentinels.
    SentinelLogin,
    /// The certificate.
    Certificate,
    /// The database.
    Database,
    /// The address: the server is not Redis, or expects TLS.
    Protocol,
    /// The mode: the server is Redis, not a Sentinel.
    NoSentinel,
    /// The name of the master.
    Master,
    /// No setting: the server is starting or busy.
    NotReady,
}

impl ConnectError {
    pub(crate) fn new(cause: Cause, what: impl Into<String>) -> ConnectError {
        let what = what.into();
        ConnectError { cause, what }
    }

    /// Returns the same error for a Sentinel, which has its own login.
    fn of_sentinel(mut self) -> ConnectError {
        if self.cause == Cause::Login {
            self.cause = Cause::SentinelLogin;
        }
        self
    }
}

impl Options {
    /// Connects to a server that has data.
    pub(crate) async fn connect(
        &self,
        address: &Address,
    ) -> Result<MultiplexedConnection, ConnectError> {
        self.open(address, &self.login, self.database).await
    }

    async fn open(
        &self,
        address: &Address,
        login: &Login,
        database: u32,
    ) -> Result<MultiplexedConnection, ConnectError> {
        let client = self
            .client(address, login, database)
            .map_err(|error| connect_error(address, &error))?;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.connect_timeout))
            .set_response_timeout(Some(self.timeout))
            .set_pipeline_buffer_size(self.batch.max(64));
        let connecting = async {
            let mut connection = client
                .get_multiplexed_async_connection_with_config(&config)
                .await?;
            // Without a login, nothing was sent so far: the program that accepted the connection may not be
            // Redis.
            ping(&mut connection).await?;
            Ok::<_, RedisError>(connection)
        };
        match timeout(self.connect_timeout, connecting).await {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(error)) if !error.is_timeout() => Err(connect_error(address, &error)),
            _ => {
                let tls = match self.tls {
                    None => "",
                    Some(_) => ", or does not speak TLS",
                };
                let what = format!("{address} does not answer in time{tls}");
                Err(ConnectError::new(Cause::Unreachable, what))
            }
        }
    }

    fn client(
        &self,
        address: &Address,
        login: &Login,
        database: u32,
    ) -> Result<Client, RedisError> {
        let (host, port) = (address.host.clone(), address.port);
        let at = match self.tls {
            None => ConnectionAddr::Tcp(host, port),
            Some(_) => ConnectionAddr::TcpTls {
                host,
                port,
                insecure: false,
                tls_params: None,
            },
        };
        let mut settings = RedisConnectionInfo::default().set_db(i64::from(database));
        if let Some(username) = &login.username {
            settings = settings.set_username(username);
        }
        if let Some(password) = &login.password {
            settings = settings.set_password(password);
        }
        let info = at
            .into_connection_info()?
            .set_redis_settings(settings)
            .set_tcp_settings(TcpSettings::default().set_nodelay(true));
        if self.tls.is_some() {
            // The process may have installed another provider already. That provider works too.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let Some(ca) = self.tls.as_ref().and_then(|tls| tls.ca.clone()) else {
            return Client::open(info);
        };
        let certificates = TlsCertificates {
            client_tls: None,
            root_cert: Some(ca),
        };
        Client::build_with_tls(info, certificates)
    }

    /// Returns the address of the master from the first Sentinel that knows it.
    pub(crate) async fn master(&self) -> Result<Address, ConnectError> {
        let Servers::Sentinel {
            sentinels,
            master,
            login,
        } = &self.servers
        else {
            let what = "a master is only known to Sentinels";
            return Err(ConnectError::new(Cause::Unreachable, what));
        };
        let mut answers: FuturesUnordered<_> = sentinels
            .iter()
            .map(|sentinel| self.ask_sentinel(sentinel, login, master))
            .collect();
        let mut last = None;
        while let Some(answer) = answers.next().await {
            match answer {
                Ok(address) => return Ok(address),
                // The error of a Sentinel that answers is more useful than that of a failed connection.
                Err(error) if error.cause != Cause::Unreachable => last = Some(error),
                Err(error) => last = last.or(Some(error)),
            }
        }
        let none = || ConnectError::new(Cause::Unreachable, "no Sentinel is configured");
        Err(last.unwrap_or_else(none))
    }

    /// Asks this Sentinel for the address of the master.
    pub(crate) async fn ask_sentinel(
        &self,
        sentinel: &Address,
        login: &Login,
        master: &str,
    ) -> Result<Address, ConnectError> {
        let connection = self.open(sentinel, login, 0).await;
        let mut connection = connection.map_err(ConnectError::of_sentinel)?;
        let mut command = redis::cmd("SENTINEL");
        command.arg(&["GET-MASTER-ADDR-BY-NAME", master]);
        let answer: Result<Option<(String, u16)>, _> = command.query_async(&mut connection).await;
        match answer.map_err(|error| connect_error(sentinel, &error).of_sentinel())? {
            Some((host, port)) => Ok(Address { host, port }),
            None => {
                let what = format!("{sentinel}: does not know a master named `{master}`");
                Err(ConnectError::new(Cause::Master, what))
            }
        }
    }
}

pub(crate) async fn ping(connection: &mut MultiplexedConnection) -> Result<(), RedisError> {
    redis::cmd("PING").query_async(connection).await
}

/// Sends a command to the server at `address`, with `ASKING` before it if the cluster slot is being moved there.
pub(crate) async fn send(
    connection: &mut MultiplexedConnection,
    address: &Address,
    command: &Cmd,
    asking: bool,
) -> Result<Value, Failure> {
    let answer = if asking {
        let mut both = Pipeline::with_capacity(2);
        both.cmd("ASKING").add_command(command.clone());
        let answers = connection.send_packed_commands(&both, 0, 2).await;
        answers.map(|mut answers| answers.pop().unwrap_or(Value::Nil))
    } else {
        connection.send_packed_command(command).await
    };
    let answer = answer.and_then(Value::extract_error);
    answer.map_err(|error| Failure::from_redis(&error, address))
}

/// Describes a failed attempt, and names the setting to check.
pub(crate) fn connect_error(address: &Address, error: &RedisError) -> ConnectError {
    let text = error.to_string();
    let cause = cause_of(error, &text);
    let what = match cause {
        Cause::Unreachable => {
            let what = format!("{address} cannot be reached: {text}");
            return ConnectError::new(cause, what);
        }
        Cause::Login | Cause::SentinelLogin => format!("the server rejected the login ({text})"),
        Cause::Rights => format!("the user lacks a right ({text})"),
        Cause::NoSentinel => "the server is not a Sentinel".to_owned(),
        // The answer was not understood, so its text does not help.
        Cause::Protocol if error.code().is_none() => "the server is not Redis".to_owned(),
        Cause::Protocol => format!("the server is not Redis ({text})"),
        Cause::Certificate | Cause::Database | Cause::Master | Cause::NotReady => text,
    };
    ConnectError::new(cause, format!("{address}: {what}"))
}

fn cause_of(error: &RedisError, text: &str) -> Cause {
    let has = |words: &[&str]| words.iter().any(|word| text.contains(word));
    match error.code() {
        Some("NOAUTH" | "WRONGPASS" | "DENIED") => Cause::Login,
        Some("NOPERM") => Cause::Rights,
        Some("LOADING" | "MASTERDOWN" | "CLUSTERDOWN" | "BUSY") => Cause::NotReady,
        Some("ERR") if has(&["max number of clients"]) => Cause::NotReady,
        Some("ERR") if has(&["DB index", "SELECT is not allowed"]) => Cause::Database,
        Some("ERR") if has(&["AUTH", "password"]) => Cause::Login,
        Some("ERR") if has(&["user executing the script", "ACL failure"]) => Cause::Rights,
        Some("ERR") if has(&["'SENTINEL'", "`SENTINEL`"]) => Cause::NoSentinel,
        Some(_) => Cause::Protocol,
        None => match error.kind() {
            redis::ErrorKind::AuthenticationFailed => Cause::Login,
            redis::ErrorKind::Parse => Cause::Protocol,
            _ if has(&["certificate"]) => Cause::Certificate,
            _ if has(&["InvalidMessage", "corrupt message"]) => Cause::Protocol,
            _ => Cause::Unreachable,
        },
    }
}

/// How long to wait between attempts in the background.
pub(crate) const RETRY: Duration = Duration::from_millis(500);
