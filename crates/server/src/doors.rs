//! All doors of a config: opened together before any request is served, and closed together.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tollgate::{Config, Engine};
use tollgate_config::Listen;

use crate::control::ControlPlane;
use crate::door_metrics::{self, ShownDoor};
use crate::gateway::{self, AccessLog, Gateway};
use crate::net::{ListenError, Listener, Workers};
use crate::{admin, fleet, grpc, http, resp};

/// How often expired state is removed: a little at a time, so that no request waits for it.
const SWEEP_EVERY: Duration = Duration::from_millis(50);

/// How often expired reservations are ended.
const HOLDS_EVERY: Duration = Duration::from_millis(250);
/// How many rounds follow each other without a pause while reservations are still overdue.
const HOLD_ROUNDS: usize = 64;
/// How often the ledger is asked for expired reservations that no store knows any more.
const LEDGER_EVERY: Duration = Duration::from_secs(10);
/// How often to check that the store and the ledger still belong to this deployment.
const FINGERPRINT_EVERY: Duration = Duration::from_secs(5);

/// Bound listeners, ready to serve.
#[derive(Debug)]
pub struct Doors {
    http: Listener,
    grpc: Option<Listener>,
    resp: Option<(Listener, resp::Options)>,
    admin: Option<Listener>,
    gateway: Option<(Listener, Option<Arc<AccessLog>>)>,
}

/// A door that cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("{door}: {error}")]
pub struct DoorError {
    /// The door's name in the config.
    pub door: &'static str,
    /// The cause.
    #[source]
    pub error: ListenError,
}

/// The address of a door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The door's name in the config.
    pub door: &'static str,
    /// Where the door listens.
    pub address: SocketAddr,
    /// Whether clients need TLS.
    pub tls: bool,
}

/// Displays a URL, as clients need it.
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
    /// Opens the doors of `config`.
    ///
    /// # Errors
    /// If an address cannot be bound, or a TLS or password file cannot be read. No door is open
    /// then.
    pub async fn open(config: &Config) -> Result<Doors, DoorError> {
        let server = &config.server;
        let http = open(config, "http", &server.http, http::PROTOCOLS).await?;
        let grpc = match &server.grpc {
            Some(grpc) => Some(open(config, "grpc", &grpc.listen, grpc::PROTOCOLS).await?),
            None => None,
        };
        let resp = match &server.resp {
            Some(resp) => {
                let listener = open(config, "resp", &resp.listen, &[]).await?;
                let options = resp::Options::of(resp).map_err(|error| DoorError {
                    door: "resp",
                    error: ListenError::Password(error),
                })?;
                Some((listener, options))
            }
            None => None,
        };
        let admin = match &server.admin {
            Some(admin) => Some(open(config, "admin", &admin.listen, http::PROTOCOLS).await?),
            None => None,
        };
        let gateway = match &server.gateway {
            Some(gateway) => Some(open_gateway(config, gateway).await?),
            None => None,
        };
        Ok(Doors {
            http,
            grpc,
            resp,
            admin,
            gateway,
        })
    }

    /// Returns the addresses of all doors.
    ///
    /// # Errors
    /// If the system does not report one.
    pub fn addresses(&self) -> io::Result<Vec<Address>> {
        let address = |(door, listener): (&'static str, &Listener)| {
            Ok(Address {
                door,
                address: listener.local_addr()?,
                tls: listener.is_encrypted(),
            })
        };
        self.listeners().into_iter().map(address).collect()
    }

    /// Returns the listeners, by the names of their doors.
    fn listeners(&self) -> Vec<(&'static str, &Listener)> {
        let mut listeners = vec![("http", &self.http)];
        listeners.extend(self.grpc.iter().map(|listener| ("grpc", listener)));
        listeners.extend(self.resp.iter().map(|(listener, _)| ("resp", listener)));
        listeners.extend(self.admin.iter().map(|listener| ("admin", listener)));
        let gateway = self.gateway.iter();
        listeners.extend(gateway.map(|(listener, _)| ("gateway", listener)));
        listeners
    }

    /// Returns the doors as the page of metrics shows them. Forward-auth counts as a door of its own, on the
    /// listener of the HTTP door.
    fn shown(&self, gateway: Option<&Arc<Gateway>>) -> Vec<ShownDoor> {
        let mut doors = Vec::new();
        for (name, listener) in self.listeners() {
            let statuses = match name {
                "grpc" => door_metrics::GRPC,
                "resp" => door_metrics::RESP,
                _ => door_metrics::HTTP,
            };
            doors.push(ShownDoor {
                name,
                statuses,
                metrics: Arc::clone(listener.metrics()),
                connections: Some(listener.connections()),
                gateway: gateway.filter(|_| name == "gateway").cloned(),
            });
            if name == "http" {
                let metrics = listener.http_metrics().auth.unwrap_or_default();
                doors.push(ShownDoor {
                    name: "auth",
                    statuses,
                    metrics,
                    connections: None,
                    gateway: None,
                });
            }
        }
        doors
    }

    /// Serves at all doors until `stop` is ready. The value of `stop` is the drain time: the doors report
    /// at once that they are not ready, and serve for this long. Then they close, and open requests
    /// finish, within [`STOP_TIMEOUT`](crate::net::STOP_TIMEOUT).
    ///
    /// While it serves, it removes expired state, watches the config file, and keeps overrides up to date.
    pub async fn serve(self, control: Arc<ControlPlane>, stop: impl Future<Output = Duration>) {
        let engine = Arc::clone(control.engine());
        let gateway = self
            .gateway
            .as_ref()
            .map(|(listener, log)| Gateway::new(&control, listener, log.clone()));
        control.show_doors(self.shown(gateway.as_ref()));
        if let Some(address) = self.admin.as_ref().and_then(|it| it.local_addr().ok()) {
            control.fleet().show_admin(address);
        }
        let (stopping, stopped) = watch::channel(None);
        let stop_of = || {
            let mut stopped = stopped.clone();
            async move {
                let drain = stopped.wait_for(Option::is_some).await;
                // An error means that the sender is gone.
                drain.ok().and_then(|drain| *drain).unwrap_or_default()
            }
        };
        let http = http::serve(self.http, Arc::clone(&control), stop_of());
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
                admin::serve(listener, Arc::clone(&control), stop_of()).await;
            }
        };
        let gateway = async {
            if let (Some((listener, _)), Some(gateway)) = (self.gateway, gateway) {
                gateway::serve(listener, gateway, stop_of()).await;
            }
        };
        let stop = async {
            stopping.send_replace(Some(stop.await));
        };
        let serving = async { tokio::join!(http, grpc, resp, admin, gateway, stop) };
        tokio::select! {
            _ = serving => {}
            () = every(SWEEP_EVERY, || async { engine.sweep(); }) => {}
            () = every(HOLDS_EVERY, || end_holds(&engine)) => {}
            () = every(LEDGER_EVERY, || end_ledger_holds(&engine)) => {}
            () = every(FINGERPRINT_EVERY, || engine.check_fingerprints()) => {}
            () = control.watch() => {}
            () = control.follow_overrides() => {}
            () = every(fleet::EVERY, || control.fleet().announce(&control)) => {}
        }
        control.fleet().leave().await;
    }
}

async fn open(
    config: &Config,
    door: &'static str,
    listen: &Listen,
    protocols: &[&str],
) -> Result<Listener, DoorError> {
    let listener = Listener::open(listen, protocols).await;
    let listener = listener.map_err(|error| DoorError { door, error })?;
    let max = config.server.max_connections_per_client;
    Ok(listener.with_bound_per_client(max, &config.subjects))
}

async fn open_gateway(
    config: &Config,
    gateway: &tollgate_config::Gateway,
) -> Result<(Listener, Option<Arc<AccessLog>>), DoorError> {
    let failed = |error| DoorError {
        door: "gateway",
        error,
    };
    gateway::check_all(&config.upstreams).map_err(|it| failed(ListenError::Upstream(it)))?;
    let log = gateway.access_log.as_ref().map(AccessLog::open).transpose();
    let log = log.map_err(|error| failed(ListenError::AccessLog(error)))?;
    let listener = open(config, "gateway", &gateway.listen, gateway::PROTOCOLS).await?;
    let workers = Workers::start().map_err(|error| failed(ListenError::Threads(error)))?;
    Ok((listener.with_workers(workers), log))
}

/// Runs `work` once in every `period`, for ever. Runs that were missed while the machine slept are
/// skipped.
async fn every<F: Future<Output = ()>>(period: Duration, work: impl Fn() -> F) {
    let mut ticks = tokio::time::interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        work().await;
    }
}

/// Ends expired reservations and leases, up to a bound. The next call ends more of them.
async fn end_holds(engine: &Engine) {
    for _ in 0..HOLD_ROUNDS {
        match engine.sweep_holds().await {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(%error, "expired reservations could not be ended; will try again");
                break;
            }
        }
    }
}

/// Ends expired reservations that only the ledger knows.
async fn end_ledger_holds(engine: &Engine) {
    if let Err(error) = engine.sweep_ledger().await {
        tracing::debug!(%error, "expired reservations of the ledger could not be ended; will try again");
    }
}
