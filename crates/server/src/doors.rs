//! All doors of a config: opened together, before anybody is served, and closed together.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tollgate::{Config, Engine};
use tollgate_config::Listen;

use crate::keeper::Keeper;
use crate::net::{ListenError, Listener};
use crate::{admin, grpc, http, resp};

/// How often expired state is forgotten: a little at a time, so that no request waits for it.
const SWEEP_EVERY: Duration = Duration::from_millis(50);

/// How often reservations whose time is over are ended.
const TEND_EVERY: Duration = Duration::from_millis(250);
/// How many times in a row, if there are more.
const TEND_ROUNDS: usize = 64;
/// How often the ledger is asked for reservations that no store knows any more.
const BOOKS_EVERY: Duration = Duration::from_secs(10);

/// Listeners that are bound, ready to serve.
pub struct Doors {
    http: Listener,
    grpc: Option<Listener>,
    resp: Option<(Listener, resp::Options)>,
    admin: Option<Listener>,
}

/// A door that cannot be opened, by its name in the config.
#[derive(Debug, thiserror::Error)]
#[error("{door}: {error}")]
pub struct DoorError {
    /// Which.
    pub door: &'static str,
    /// Why not.
    #[source]
    pub error: ListenError,
}

/// Where a door is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// Its name in the config.
    pub door: &'static str,
    /// Where it listens.
    pub address: SocketAddr,
    /// Whether clients need TLS.
    pub tls: bool,
}

/// A URL, for doors that clients give one.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match (self.door, self.tls) {
            ("resp", false) => "redis",
            ("resp", true) => "rediss",
            (_, false) => "http",
            (_, true) => "https",
        };
        write!(f, "{scheme}://{}", self.address)
    }
}

impl Doors {
    /// Listens wherever `config` says.
    ///
    /// # Errors
    /// If an address cannot be had, or a file of TLS or of a password cannot be read: none is open
    /// then.
    pub async fn open(config: &Config) -> Result<Doors, DoorError> {
        let server = &config.server;
        let http = open("http", &server.http, http::PROTOCOLS).await?;
        let grpc = match &server.grpc {
            Some(grpc) => Some(open("grpc", &grpc.listen, grpc::PROTOCOLS).await?),
            None => None,
        };
        let resp = match &server.resp {
            Some(resp) => {
                let listener = open("resp", &resp.listen, &[]).await?;
                let options = resp::Options::of(resp).map_err(|error| DoorError {
                    door: "resp",
                    error: ListenError::Password(error),
                })?;
                Some((listener, options))
            }
            None => None,
        };
        let admin = match &server.admin {
            Some(admin) => Some(open("admin", &admin.listen, http::PROTOCOLS).await?),
            None => None,
        };
        Ok(Doors {
            http,
            grpc,
            resp,
            admin,
        })
    }

    /// Where they are.
    ///
    /// # Errors
    /// If the system does not say.
    pub fn addresses(&self) -> io::Result<Vec<Address>> {
        let mut listeners = vec![("http", &self.http)];
        listeners.extend(self.grpc.iter().map(|listener| ("grpc", listener)));
        listeners.extend(self.resp.iter().map(|(listener, _)| ("resp", listener)));
        listeners.extend(self.admin.iter().map(|listener| ("admin", listener)));
        let address = |(door, listener): (&'static str, &Listener)| {
            Ok(Address {
                door,
                address: listener.local_addr()?,
                tls: listener.is_encrypted(),
            })
        };
        listeners.into_iter().map(address).collect()
    }

    /// Serves at all doors until `stop` is ready, then lets requests in flight finish. Meanwhile expired
    /// state is forgotten, the config file is watched, and overrides are looked after.
    pub async fn serve(self, keeper: Arc<Keeper>, stop: impl Future<Output = ()>) {
        let engine = Arc::clone(keeper.engine());
        let (stopping, stopped) = watch::channel(false);
        let stop_of = || {
            let mut stopped = stopped.clone();
            // An error would mean that nobody can stop it any more.
            async move { drop(stopped.wait_for(|stopped| *stopped).await) }
        };
        let http = http::serve(self.http, Arc::clone(&keeper), stop_of());
        let grpc = async {
            if let Some(listener) = self.grpc {
                grpc::serve(listener, Arc::clone(&engine), stop_of()).await;
            }
        };
        let resp = async {
            if let Some((listener, options)) = self.resp {
                resp::serve(listener, Arc::clone(&engine), options, stop_of()).await;
            }
        };
        let admin = async {
            if let Some(listener) = self.admin {
                admin::serve(listener, Arc::clone(&keeper), stop_of()).await;
            }
        };
        let stop = async {
            stop.await;
            stopping.send_replace(true);
        };
        let serving = async { tokio::join!(http, grpc, resp, admin, stop) };
        tokio::select! {
            _ = serving => {}
            () = sweep(&engine) => {}
            () = tend_holds(&engine) => {}
            () = tend_books(&engine) => {}
            () = keeper.watch() => {}
            () = keeper.overrides().keep() => {}
        }
    }
}

async fn open(
    door: &'static str,
    listen: &Listen,
    protocols: &[&str],
) -> Result<Listener, DoorError> {
    let listener = Listener::open(listen, protocols).await;
    listener.map_err(|error| DoorError { door, error })
}

/// Ends reservations and leases whose time is over, for ever.
async fn tend_holds(engine: &Engine) {
    let mut ticks = tokio::time::interval(TEND_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        // As many as there are, up to a bound: the rest is due at the next tick.
        for _ in 0..TEND_ROUNDS {
            match engine.sweep_holds().await {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) => {
                    tracing::debug!(%error, "reservations whose time is over wait to be ended");
                    break;
                }
            }
        }
    }
}

/// Ends reservations that only the ledger knows of any more, for ever.
async fn tend_books(engine: &Engine) {
    let mut ticks = tokio::time::interval(BOOKS_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if let Err(error) = engine.sweep_books().await {
            tracing::debug!(%error, "reservations of the ledger wait to be ended");
        }
    }
}

/// Forgets expired state now and then, for ever.
async fn sweep(engine: &Engine) {
    let mut ticks = tokio::time::interval(SWEEP_EVERY);
    // A machine that slept has nothing to catch up with.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        engine.sweep();
    }
}
