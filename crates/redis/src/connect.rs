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
    /// What the user may do.
    Rights,
    /// Those for the Sentinels.
    SentinelLogin,
    /// The certificate.
    Certificate,
    /// The database.
    Database,
    /// What answers is no Redis, or not in plain text.
    Protocol,
    /// It is a Redis, and no Sentinel.
    NoSentinel,
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
            ping(&mut connection).await?;
            Ok::<_, RedisError>(connection)
        };
        match timeout(options.connect_timeout, connecting).await {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(error)) if !error.is_timeout() => Err(refused(address, &error)),
            _ => Err(NoConnection::Unreachable {
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

/// Asks for a sign of life.
pub(crate) async fn ping(connection: &mut MultiplexedConnection) -> Result<(), RedisError> {
    let mut ping = Cmd::new();
    ping.arg("PING");
    let answer = connection.send_packed_command(&ping).await?;
    answer.extract_error().map(|_| ())
}

/// Asked for a master where there are no Sentinels: a mistake of ours, and an error as any.
fn unreachable_servers<T>() -> Result<T, NoConnection> {
    Err(NoConnection::Unreachable {
        address: "a master".to_owned(),
        what: "is only known to Sentinels".to_owned(),
    })
}

/// A failed attempt, in words that name what to look at.
pub(crate) fn refused(address: &Address, error: &RedisError) -> NoConnection {
    let address = address.to_string();
    let text = error.to_string();
    let Some(cause) = cause_of(error, &text) else {
        let what = format!("cannot be reached: {text}");
        return NoConnection::Unreachable { address, what };
    };
    let what = match cause {
        Cause::Login | Cause::SentinelLogin => format!("the login was refused ({text})"),
        Cause::Rights => format!("the user may not do what is needed ({text})"),
        Cause::NoSentinel => "what answers there is not a Sentinel".to_owned(),
        // What was not understood is not worth showing.
        Cause::Protocol if error.code().is_none() => "what answers there is not Redis".to_owned(),
        Cause::Protocol => format!("what answers there is not Redis ({text})"),
        Cause::Certificate | Cause::Database | Cause::Master | Cause::NotReady => text,
    };
    NoConnection::Refused {
        address,
        what,
        cause,
    }
}

/// What an error speaks of; none if nobody was there to speak.
fn cause_of(error: &RedisError, text: &str) -> Option<Cause> {
    let says = |words: &[&str]| words.iter().any(|word| text.contains(word));
    Some(match error.code() {
        Some("NOAUTH" | "WRONGPASS" | "DENIED") => Cause::Login,
        Some("NOPERM") => Cause::Rights,
        Some("LOADING" | "MASTERDOWN" | "CLUSTERDOWN" | "BUSY") => Cause::NotReady,
        Some("ERR") if says(&["max number of clients"]) => Cause::NotReady,
        Some("ERR") if says(&["DB index", "SELECT is not allowed"]) => Cause::Database,
        Some("ERR") if says(&["AUTH", "password"]) => Cause::Login,
        Some("ERR") if says(&["user executing the script", "ACL failure"]) => Cause::Rights,
        Some("ERR") if says(&["'SENTINEL'", "`SENTINEL`"]) => Cause::NoSentinel,
        Some(_) => Cause::Protocol,
        None => match error.kind() {
            redis::ErrorKind::AuthenticationFailed => Cause::Login,
            redis::ErrorKind::Parse => Cause::Protocol,
            _ if says(&["certificate"]) => Cause::Certificate,
            _ if says(&["InvalidMessage", "corrupt message"]) => Cause::Protocol,
            _ => return None,
        },
    })
}

/// How long to wait between attempts in the background.
pub(crate) const RETRY: Duration = Duration::from_millis(500);
