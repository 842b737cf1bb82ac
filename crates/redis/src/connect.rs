//! Connections to one server: opened, logged in, and checked with a ping.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo,
    RedisError, TlsCertificates,
};
use tokio::time::timeout;

use crate::options::{Address, Login, Options, Servers};

/// Opens connections to the servers of a store.
#[derive(Clone, Debug)]
pub(crate) struct Connector {
    options: Arc<Options>,
}

/// Why a connection could not be opened.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    /// No server answers at the address.
    #[error("{address} {what}")]
    Unreachable { address: String, what: String },
    /// A server answers with an error.
    #[error("{address}: {what}")]
    Rejected {
        address: String,
        what: String,
        cause: Cause,
    },
}

/// Which setting to check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
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
    /// None: the server is starting or busy.
    NotReady,
}

impl ConnectError {
    /// Returns the same error for a Sentinel, which has its own login.
    fn of_sentinel(mut self) -> ConnectError {
        if let ConnectError::Rejected { cause, .. } = &mut self
            && *cause == Cause::Login
        {
            *cause = Cause::SentinelLogin;
        }
        self
    }
}

impl Connector {
    pub(crate) fn new(options: Arc<Options>) -> Connector {
        Connector { options }
    }

    /// Connects to a server that has data.
    pub(crate) async fn to(
        &self,
        address: &Address,
    ) -> Result<MultiplexedConnection, ConnectError> {
        let options = &self.options;
        self.open(address, &options.login, options.database).await
    }

    /// Connects to a Sentinel.
    pub(crate) async fn to_sentinel(
        &self,
        address: &Address,
        login: &Login,
    ) -> Result<MultiplexedConnection, ConnectError> {
        let opened = self.open(address, login, 0).await;
        opened.map_err(ConnectError::of_sentinel)
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
        let options = &self.options;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(options.connect_timeout))
            .set_response_timeout(Some(options.timeout))
            .set_pipeline_buffer_size(options.batch.max(64));
        let connecting = async {
            let mut connection = client
                .get_multiplexed_async_connection_with_config(&config)
                .await?;
            // Without a login nothing was sent yet, and any program may have accepted the connection.
            ping(&mut connection).await?;
            Ok::<_, RedisError>(connection)
        };
        match timeout(options.connect_timeout, connecting).await {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(error)) if !error.is_timeout() => Err(connect_error(address, &error)),
            _ => Err(ConnectError::Unreachable {
                address: address.to_string(),
                what: match options.tls {
                    None => "does not answer in time".to_owned(),
                    Some(_) => "does not answer in time, or does not speak TLS".to_owned(),
                },
            }),
        }
    }

    fn client(
        &self,
        address: &Address,
        login: &Login,
        database: u32,
    ) -> Result<Client, RedisError> {
        let (host, port) = (address.host.clone(), address.port);
        let at = match self.options.tls {
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
        let Some(tls) = &self.options.tls else {
            return Client::open(info);
        };
        // The program may have installed a provider already, which serves as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
        match &tls.ca {
            None => Client::open(info),
            Some(ca) => {
                let certificates = TlsCertificates {
                    client_tls: None,
                    root_cert: Some(ca.clone()),
                };
                Client::build_with_tls(info, certificates)
            }
        }
    }

    /// Returns the address of the master from the first Sentinel that knows it.
    pub(crate) async fn master(&self) -> Result<Address, ConnectError> {
        let Servers::Sentinel {
            sentinels,
            master,
            login,
        } = &self.options.servers
        else {
            return Err(ConnectError::Unreachable {
                address: "a master".to_owned(),
                what: "is only known to Sentinels".to_owned(),
            });
        };
        let mut answers: FuturesUnordered<_> = sentinels
            .iter()
            .map(|sentinel| self.ask_sentinel(sentinel, login, master))
            .collect();
        let mut last = None;
        while let Some(answer) = answers.next().await {
            match answer {
                Ok(address) => return Ok(address),
                // The error of a Sentinel that answers says more than that of one that does not.
                Err(error @ ConnectError::Rejected { .. }) => last = Some(error),
                Err(error) => last = last.or(Some(error)),
            }
        }
        Err(last.unwrap_or_else(|| ConnectError::Unreachable {
            address: "no Sentinel".to_owned(),
            what: "is configured".to_owned(),
        }))
    }

    /// Asks this Sentinel for the address of the master.
    pub(crate) async fn ask_sentinel(
        &self,
        sentinel: &Address,
        login: &Login,
        master: &str,
    ) -> Result<Address, ConnectError> {
        let mut connection = self.to_sentinel(sentinel, login).await?;
        let mut command = redis::cmd("SENTINEL");
        command.arg(&["GET-MASTER-ADDR-BY-NAME", master]);
        let answer: Result<Option<(String, u16)>, _> = command.query_async(&mut connection).await;
        match answer.map_err(|error| connect_error(sentinel, &error).of_sentinel())? {
            Some((host, port)) => Ok(Address { host, port }),
            None => Err(ConnectError::Rejected {
                address: sentinel.to_string(),
                what: format!("knows no master named `{master}`"),
                cause: Cause::Master,
            }),
        }
    }
}

pub(crate) async fn ping(connection: &mut MultiplexedConnection) -> Result<(), RedisError> {
    redis::cmd("PING").query_async(connection).await
}

/// Describes a failed attempt, and names the setting to check.
pub(crate) fn connect_error(address: &Address, error: &RedisError) -> ConnectError {
    let address = address.to_string();
    let text = error.to_string();
    let Some(cause) = cause_of(error, &text) else {
        let what = format!("cannot be reached: {text}");
        return ConnectError::Unreachable { address, what };
    };
    let what = match cause {
        Cause::Login | Cause::SentinelLogin => format!("the server rejected the login ({text})"),
        Cause::Rights => format!("the user lacks a right ({text})"),
        Cause::NoSentinel => "the server is not a Sentinel".to_owned(),
        // The answer was not understood, so its text does not help.
        Cause::Protocol if error.code().is_none() => "the server is not Redis".to_owned(),
        Cause::Protocol => format!("the server is not Redis ({text})"),
        Cause::Certificate | Cause::Database | Cause::Master | Cause::NotReady => text,
    };
    ConnectError::Rejected {
        address,
        what,
        cause,
    }
}

/// Returns which setting an error is about; `None` if no server answered.
fn cause_of(error: &RedisError, text: &str) -> Option<Cause> {
    let has = |words: &[&str]| words.iter().any(|word| text.contains(word));
    Some(match error.code() {
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
            _ => return None,
        },
    })
}

/// How long to wait between attempts in the background.
pub(crate) const RETRY: Duration = Duration::from_millis(500);
