//! Connections to one server: opened, logged in, and known to answer.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo,
    RedisError, TlsCertificates, Value,
};
use tokio::time::timeout;

use crate::options::{Address, Login, Options, Servers};

/// Opens connections to the servers of a store.
#[derive(Clone, Debug)]
pub(crate) struct Connector {
    options: Arc<Options>,
}

/// Why there is no connection.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum NoConnection {
    /// Nobody answers there.
    #[error("{address} {what}")]
    Unreachable { address: String, what: String },
    /// Somebody answers, and not as asked.
    #[error("{address}: {what}")]
    Refused {
        address: String,
        what: String,
        cause: Cause,
    },
}

/// Which setting a refusal speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The user or the password.
    Login,
    /// Those for the Sentinels.
    SentinelLogin,
    /// The certificate.
    Certificate,
    /// The database.
    Database,
    /// What answers is no Redis, or not in plain text.
    Protocol,
    /// The name of the master.
    Master,
    /// It is a Redis that will be ready later.
    NotReady,
}

impl NoConnection {
    /// The same, said by a Sentinel, which has a login of its own.
    fn by_sentinel(mut self) -> NoConnection {
        if let NoConnection::Refused { cause, .. } = &mut self
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

    /// A connection to a server that keeps data.
    pub(crate) async fn to(
        &self,
        address: &Address,
    ) -> Result<MultiplexedConnection, NoConnection> {
        let options = &self.options;
        self.open(address, &options.login, options.database).await
    }

    /// A connection to a Sentinel.
    pub(crate) async fn to_sentinel(
        &self,
        address: &Address,
        login: &Login,
    ) -> Result<MultiplexedConnection, NoConnection> {
        let opened = self.open(address, login, 0).await;
        opened.map_err(NoConnection::by_sentinel)
    }

    async fn open(
        &self,
        address: &Address,
        login: &Login,
        database: u32,
    ) -> Result<MultiplexedConnection, NoConnection> {
        let client = self
            .client(address, login, database)
            .map_err(|error| refused(address, &error))?;
        let options = &self.options;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(options.connect_timeout))
            .set_response_timeout(Some(options.timeout))
            .set_pipeline_buffer_size(options.batch.max(64));
        let connecting = async {
            let mut connection = client
                .get_multiplexed_async_connection_with_config(&config)
                .await?;
            // Without a login nothing has been sent yet, and anything may have accepted.
            let mut ping = Cmd::new();
            ping.arg("PING");
            connection
                .send_packed_command(&ping)
                .await?
                .extract_error()?;
            Ok::<_, RedisError>(connection)
        };
        match timeout(options.connect_timeout, connecting).await {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(error)) => Err(refused(address, &error)),
            Err(_) => Err(NoConnection::Unreachable {
                address: address.to_string(),
                what: format!("does not answer within {:?}", options.connect_timeout),
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
        // Somebody else may have chosen one already, which is as good.
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

    /// Where the master is, by the first Sentinel that knows.
    pub(crate) async fn master(&self) -> Result<Address, NoConnection> {
        let Servers::Sentinel {
            sentinels,
            master,
            login,
        } = &self.options.servers
        else {
            unreachable_servers()?
        };
        let mut asked: FuturesUnordered<_> = sentinels
            .iter()
            .map(|sentinel| self.ask_sentinel(sentinel, login, master))
            .collect();
        let mut last = None;
        while let Some(answer) = asked.next().await {
            match answer {
                Ok(address) => return Ok(address),
                // A Sentinel that answers says more than one that does not.
                Err(error @ NoConnection::Refused { .. }) => last = Some(error),
                Err(error) => last = last.or(Some(error)),
            }
        }
        Err(last.unwrap_or_else(|| NoConnection::Unreachable {
            address: "no Sentinel".to_owned(),
            what: "is configured".to_owned(),
        }))
    }

    /// Where the master is, by this Sentinel.
    pub(crate) async fn ask_sentinel(
        &self,
        sentinel: &Address,
        login: &Login,
        master: &str,
    ) -> Result<Address, NoConnection> {
        let mut connection = self.to_sentinel(sentinel, login).await?;
        let mut question = Cmd::new();
        question.arg(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", master]);
        let answer = connection.send_packed_command(&question).await;
        let answer = answer.and_then(Value::extract_error);
        let answer = answer.map_err(|error| refused(sentinel, &error).by_sentinel())?;
        if answer == Value::Nil {
            return Err(NoConnection::Refused {
                address: sentinel.to_string(),
                what: format!("knows no master named `{master}`"),
                cause: Cause::Master,
            });
        }
        let (host, port): (String, u16) =
            redis::from_redis_value(answer).map_err(|error| refused(sentinel, &error.into()))?;
        Ok(Address { host, port })
    }
}

/// Asked for a master where there are no Sentinels: a mistake of ours, and an error as any.
fn unreachable_servers<T>() -> Result<T, NoConnection> {
    Err(NoConnection::Unreachable {
        address: "a master".to_owned(),
        what: "is only known to Sentinels".to_owned(),
    })
}

/// A failed attempt, in words that name what to look at.
fn refused(address: &Address, error: &RedisError) -> NoConnection {
    let address = address.to_string();
    let text = error.to_string();
    let cause = match error.code() {
        Some("NOAUTH" | "WRONGPASS" | "NOPERM") => Some(Cause::Login),
        Some("LOADING" | "MASTERDOWN" | "CLUSTERDOWN" | "BUSY") => Some(Cause::NotReady),
        Some("ERR") if text.contains("DB index") => Some(Cause::Database),
        Some("ERR") if text.contains("AUTH") || text.contains("password") => Some(Cause::Login),
        Some(_) => Some(Cause::Protocol),
        None if error.kind() == redis::ErrorKind::AuthenticationFailed => Some(Cause::Login),
        None if text.contains("certificate") => Some(Cause::Certificate),
        None if error.kind() == redis::ErrorKind::Parse => Some(Cause::Protocol),
        None if text.contains("InvalidMessage") || text.contains("corrupt message") => {
            Some(Cause::Protocol)
        }
        None => None,
    };
    let what = match (cause, error.detail()) {
        (Some(Cause::Login), _) => format!("the login was refused ({text})"),
        (Some(Cause::Protocol), _) => format!("what answers there is not Redis ({text})"),
        _ => text,
    };
    match cause {
        Some(cause) => NoConnection::Refused {
            address,
            what,
            cause,
        },
        None => NoConnection::Unreachable {
            address,
            what: format!("cannot be reached: {what}"),
        },
    }
}

/// How long to wait between attempts in the background.
pub(crate) const RETRY: Duration = Duration::from_millis(500);
