//! The instances of a deployment. Each writes a line about itself to the store every few seconds, and can read
//! the lines of all others. The lines are for people: no decision depends on them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::OnceLock;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tollgate::{Engine, Span, Time};
use tollgate_redis::{BreakerState, SharedValues};
use utoipa::ToSchema;

use crate::control::ControlPlane;
use crate::process::Process;

/// How often an instance writes its line.
pub(crate) const EVERY: Duration = Duration::from_secs(5);
/// An instance with an older line has crashed, or does not reach the store.
const SILENT: Span = Span::from_secs(20);
/// Older lines are removed.
const FORGOTTEN: Span = Span::from_secs(600);
/// The most lines. Further instances work, and are not listed.
const MAX_INSTANCES: usize = 1000;

/// The longest text about a problem in a line, in bytes.
const MAX_TEXT: usize = 200;
/// The most breakers of a store in a line.
const MAX_BREAKERS: usize = 8;

/// The lines of all instances on one store.
pub(crate) struct Fleet {
    /// `None` if state is in this process: then there is one instance.
    lines: Option<SharedValues>,
    /// The name of this instance: its machine and its process.
    name: String,
    /// The address of its admin door.
    admin: OnceLock<SocketAddr>,
}

/// What an instance says of itself. Counts are totals since its start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Line {
    /// The address of its admin door; null if it has none.
    #[schema(required = true)]
    admin: Option<String>,
    /// The version of the program.
    version: String,
    config_version: String,
    /// Null if the system does not tell.
    #[schema(required = true)]
    started_at_epoch_millis: Option<u64>,
    /// When it said this.
    at_epoch_millis: u64,
    /// The requests at its doors. A request is counted once, however many rules apply to it.
    allowed: u64,
    denied: u64,
    /// Requests for which the store failed: a failure policy decided, or nothing did.
    #[serde(default)]
    store_failed: u64,
    /// What is wrong with it, if anything; null for an instance of an older version.
    #[serde(default)]
    #[schema(required = true)]
    health: Option<Health>,
}

/// Whether the parts of an instance work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Health {
    /// `memory` or `redis`.
    store: String,
    /// Why the store cannot be used; null if it works.
    #[schema(required = true)]
    store_problem: Option<String>,
    /// The circuit breakers that are not closed: the server, and the state.
    breakers: BTreeMap<String, String>,
    /// Null without a ledger.
    #[schema(required = true)]
    ledger: Option<LedgerHealth>,
    /// Why its config file was rejected; null if it is in force.
    #[schema(required = true)]
    config_rejected: Option<String>,
}

/// Whether the ledger answers, and how far it is behind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LedgerHealth {
    connected: bool,
    lag_millis: u64,
}

impl Health {
    fn new(control: &ControlPlane) -> Health {
        let engine = control.engine();
        let mut breakers = BTreeMap::new();
        for (name, redis, _) in engine.redis_stores() {
            let states = redis.breakers().into_iter();
            let open = states.filter(|(_, state)| *state != BreakerState::Closed);
            for (server, state) in open.take(MAX_BREAKERS) {
                let server = match name {
                    Some(name) => format!("{name}: {server}"),
                    None => server,
                };
                breakers.insert(cut(server), state.name().to_owned());
            }
        }
        let store = match engine.redis() {
            Some(_) => "redis",
            None => "memory",
        };
        Health {
            store: store.to_owned(),
            store_problem: engine.store_problem().map(cut),
            breakers,
            ledger: engine.accounts().map(|accounts| {
                let status = accounts.ledger().status();
                let lag = status.lag(control.now()).map_or(0, Span::as_micros);
                LedgerHealth {
                    connected: status.is_connected,
                    lag_millis: lag / 1000,
                }
            }),
            config_rejected: control.status().refused.map(cut),
        }
    }
}

/// Cuts a text that goes into a line.
fn cut(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(MAX_TEXT));
    text
}

/// An instance of the deployment.
#[derive(Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Instance {
    /// Its machine and its process.
    name: String,
    /// Whether this instance answers.
    is_this: bool,
    /// `up`, or `silent` if it has said nothing for 20 seconds: it has crashed, or does not reach the store.
    state: &'static str,
    #[serde(flatten)]
    line: Line,
}

/// The instances that share a store and a namespace.
#[derive(Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct FleetBody {
    instances: Vec<Instance>,
    /// Why other instances are missing; null if the list is complete.
    #[schema(required = true)]
    problem: Option<String>,
}

impl Fleet {
    pub(crate) fn new(engine: &Engine) -> Fleet {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname");
        let host = host.as_deref().map_or("?", str::trim);
        // Containers often have the same host and process number.
        let random = fastrand::u32(..);
        Fleet {
            lines: engine.shared_instances(),
            name: format!("{host}/{}/{random:08x}", std::process::id()),
            admin: OnceLock::new(),
        }
    }

    /// Sets the address of the admin door. Only the first call has an effect.
    pub(crate) fn show_admin(&self, address: SocketAddr) {
        let _ = self.admin.set(address);
    }

    /// Writes the line of this instance.
    pub(crate) async fn announce(&self, control: &ControlPlane) {
        let Some(lines) = &self.lines else { return };
        let text = serde_json::json!(self.line(control)).to_string();
        match lines.put(&self.name, &text, MAX_INSTANCES).await {
            // About once a minute.
            Ok(true) if fastrand::u8(..12) > 0 => {}
            Ok(_) => self.forget_old(control.now()).await,
            Err(error) => {
                tracing::debug!(%error, "failed to list this instance in the store; will try again");
            }
        }
    }

    /// Removes the line of this instance, which stops.
    pub(crate) async fn leave(&self) {
        if let Some(lines) = &self.lines
            && let Err(error) = lines.remove(&self.name, None).await
        {
            tracing::debug!(%error, "failed to remove this instance from the list; it stays listed for some minutes");
        }
    }

    /// Removes the lines of instances that have been gone for a long time.
    async fn forget_old(&self, now: Time) {
        let Some(lines) = &self.lines else { return };
        let Ok((_, all)) = lines.all(MAX_INSTANCES).await else {
            return;
        };
        for (name, text) in all {
            let is_old = serde_json::from_str(&text).map_or(true, |line: Line| {
                line.age(now) > FORGOTTEN.as_micros() / 1000
            });
            if is_old {
                // A line that has changed meanwhile stays.
                let _ = lines.remove(&name, Some(&text)).await;
            }
        }
    }

    /// Returns all instances, this one first.
    pub(crate) async fn list(&self, control: &ControlPlane) -> FleetBody {
        let now = control.now();
        let mut instances = vec![Instance {
            name: self.name.clone(),
            is_this: true,
            state: "up",
            line: self.line(control),
        }];
        let all = match &self.lines {
            None => Ok(Vec::new()),
            Some(lines) => lines.all(MAX_INSTANCES).await.map(|(_, all)| all),
        };
        let (all, problem) = match all {
            Ok(all) => (all, None),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        instances.extend(all.into_iter().filter_map(|(name, text)| {
            // A newer version may write lines that this one cannot read.
            let line: Line = serde_json::from_str(&text).ok()?;
            let age = line.age(now);
            let is_shown = name != self.name && age <= FORGOTTEN.as_micros() / 1000;
            is_shown.then_some(Instance {
                name,
                is_this: false,
                state: match age > SILENT.as_micros() / 1000 {
                    true => "silent",
                    false => "up",
                },
                line,
            })
        }));
        FleetBody { instances, problem }
    }

    fn line(&self, control: &ControlPlane) -> Line {
        let live = control.engine().active();
        let requests = control.requests();
        Line {
            admin: self.admin.get().map(SocketAddr::to_string),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            config_version: live.rules().version().to_owned(),
            started_at_epoch_millis: Process::read().started_ticks.map(|ticks| ticks * 10),
            at_epoch_millis: control.now().as_micros() / 1000,
            allowed: requests.allowed,
            denied: requests.denied,
            store_failed: requests.store_failed,
            health: Some(Health::new(control)),
        }
    }
}

impl Line {
    /// Returns the age of the line, in milliseconds.
    fn age(&self, now: Time) -> u64 {
        (now.as_micros() / 1000).saturating_sub(self.at_epoch_millis)
    }
}
