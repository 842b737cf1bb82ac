//! A few named texts that all instances share: the overrides of a deployment, or the versions of its config.
//!
//! The texts are the fields of one hash. One more field counts the changes, so that an instance that polls
//! has little to read. The commands use their own connection, so that requests never wait for them.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, FromRedisValue, Value};
use tokio::sync::Mutex;
use tokio::time::timeout;
use tollgate_core::Tag;
use tollgate_store::StoreError;

use crate::connect::{ConnectError, send};
use crate::error::Failure;
use crate::key_name::{KeyName, slot_of};
use crate::options::Address;
use crate::store::{RedisStore, Shared};

/// How long an answer may take. Requests never wait for these answers.
const PATIENCE: Duration = Duration::from_secs(2);

/// The field that counts the changes. No text has this name.
const EDITION: &str = "#";

/// Sets a text. KEYS[1] is the hash. ARGV[1] is the name, ARGV[2] the text, and ARGV[3] the highest number of
/// texts. Returns the edition, or -1 if there are too many texts.
const PUT: &str = "\
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 and redis.call('HLEN', KEYS[1]) > tonumber(ARGV[3]) then
  return -1
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return redis.call('HINCRBY', KEYS[1], '#', 1)";

/// Removes a text. KEYS[1] is the hash. ARGV[1] is the name, and ARGV[2] the text that must be there, or ''
/// for any text. Returns 1 if a text was removed, and 0 otherwise.
const REMOVE: &str = "\
if ARGV[2] ~= '' and redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then
  return 0
end
local gone = redis.call('HDEL', KEYS[1], ARGV[1])
if gone == 1 then
  redis.call('HINCRBY', KEYS[1], '#', 1)
end
return gone";

/// Named texts in Redis that do not expire.
#[derive(Debug)]
pub struct SharedValues {
    shared: Arc<Shared>,
    pub(crate) key: KeyName,
    slot: u16,
    connection: Mutex<Option<(Address, MultiplexedConnection)>>,
}

impl RedisStore {
    /// Returns the texts that the instances of `namespace` share.
    #[must_use]
    pub fn shared_values(&self, namespace: &str) -> SharedValues {
        self.values_at(self.shared.naming.overrides(namespace))
    }

    /// Returns the versions of the config that the instances of `namespace` share.
    #[must_use]
    pub fn shared_configs(&self, namespace: &str) -> SharedValues {
        self.values_at(self.shared.naming.configs(namespace))
    }

    /// Returns what the instances of `namespace` say of themselves.
    #[must_use]
    pub fn shared_instances(&self, namespace: &str) -> SharedValues {
        self.values_at(self.shared.naming.instances(namespace))
    }

    /// Returns the texts in the hash `key`, which has the default tag.
    pub(crate) fn values_at(&self, key: KeyName) -> SharedValues {
        SharedValues {
            key,
            slot: slot_of(Tag::default()),
            shared: Arc::clone(&self.shared),
            connection: Mutex::default(),
        }
    }
}

impl SharedValues {
    /// Returns the number of changes so far.
    ///
    /// # Errors
    /// If the server does not answer.
    pub async fn edition(&self) -> Result<u64, StoreError> {
        let mut command = redis::cmd("HGET");
        let edition: Option<u64> = self.ask(command.arg(&*self.key).arg(EDITION)).await?;
        Ok(edition.unwrap_or(0))
    }

    /// Returns the number of changes so far, and all texts by name.
    ///
    /// # Errors
    /// If the server does not answer, or has more than `most` texts. Too many texts are not read.
    pub async fn all(&self, most: usize) -> Result<(u64, Vec<(String, String)>), StoreError> {
        let fields: usize = self.ask(redis::cmd("HLEN").arg(&*self.key)).await?;
        // One of the fields counts the changes.
        if fields > most.saturating_add(1) {
            let key = String::from_utf8_lossy(&self.key);
            let why = format!(
                "{key} has {fields} fields, and at most {most} are allowed: remove some with HDEL"
            );
            return Err(StoreError::Script(why.into()));
        }
        let mut command = redis::cmd("HGETALL");
        let mut all: Vec<(String, String)> = self.ask(command.arg(&*self.key)).await?;
        let edition = all.iter().position(|(name, _)| name == EDITION);
        let edition = edition.map(|index| all.swap_remove(index).1);
        all.sort_unstable();
        let edition = edition.and_then(|it| it.parse().ok());
        Ok((edition.unwrap_or(0), all))
    }

    /// Returns the text of this name, if there is one.
    ///
    /// # Errors
    /// If the server does not answer.
    pub async fn get(&self, name: &str) -> Result<Option<String>, StoreError> {
        let mut command = redis::cmd("HGET");
        self.ask(command.arg(&*self.key).arg(name)).await
    }

    /// Sets the text of this name. Returns false and changes nothing if there would be more than `most` texts.
    ///
    /// # Errors
    /// If the server does not confirm the change. The text may still have been set.
    pub async fn put(&self, name: &str, text: &str, most: usize) -> Result<bool, StoreError> {
        let mut command = redis::cmd("EVAL");
        command.arg(PUT).arg(1).arg(&*self.key);
        let edition: i64 = self.ask(command.arg(name).arg(text).arg(most)).await?;
        Ok(edition >= 0)
    }

    /// Removes the text of this name. If `only` is given, removes the text only if it equals `only`. Returns
    /// whether a text was removed.
    ///
    /// # Errors
    /// If the server does not confirm the change. The text may still have been removed.
    pub async fn remove(&self, name: &str, only: Option<&str>) -> Result<bool, StoreError> {
        let mut command = redis::cmd("EVAL");
        command.arg(REMOVE).arg(1).arg(&*self.key);
        command.arg(name).arg(only.unwrap_or_default());
        Ok(self.ask::<u8>(&command).await? == 1)
    }

    /// Sends a command to the server that has the hash.
    pub(crate) async fn ask<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, StoreError> {
        let mut kept = self.connection.lock().await;
        let (mut redirects, mut asking) = (0, false);
        loop {
            let answer = timeout(PATIENCE, self.send(&mut kept, command, asking)).await;
            let failure = match answer.unwrap_or(Err(failed(StoreError::Timeout))) {
                Ok(value) => {
                    if asking {
                        // The cluster slot of the hash is being moved: this server was asked for this command
                        // only.
                        *kept = None;
                    }
                    let read = redis::from_redis_value(value);
                    return read.map_err(|error| StoreError::Script(error.to_string().into()));
                }
                Err(failure) => failure,
            };
            match failure {
                Failure::Moved {
                    address,
                    asking: only_now,
                } if redirects < 5 => {
                    redirects += 1;
                    if !only_now {
                        self.shared.topology_may_have_changed();
                    }
                    *kept = None;
                    let connecting = self.shared.options.connect(&address);
                    let connected = timeout(PATIENCE, connecting).await;
                    if let Ok(Ok(connection)) = connected {
                        *kept = Some((address, connection));
                    }
                    asking = only_now && kept.is_some();
                }
                Failure::Failed { error, .. } => {
                    // The next command gets a new connection.
                    *kept = None;
                    return Err(error);
                }
                Failure::Full => return Err(StoreError::Full),
                Failure::Moved { .. }
                | Failure::Split
                | Failure::UnknownScript
                | Failure::Elsewhen(_) => {
                    *kept = None;
                    let why = "the key is being moved between servers";
                    return Err(StoreError::Unavailable(why.into()));
                }
            }
        }
    }

    async fn send(
        &self,
        kept: &mut Option<(Address, MultiplexedConnection)>,
        command: &Cmd,
        asking: bool,
    ) -> Result<Value, Failure> {
        let (address, connection) = match kept {
            Some(connected) => connected,
            None => kept.insert(self.connect().await?),
        };
        send(connection, address, command, asking).await
    }

    /// Connects to the server that has the hash.
    async fn connect(&self) -> Result<(Address, MultiplexedConnection), Failure> {
        let shared = &self.shared;
        let map = shared.map.load_full();
        let node = map.node(self.slot).map_err(|error| {
            shared.topology_may_have_changed();
            failed(error)
        })?;
        let unavailable =
            |error: ConnectError| failed(StoreError::Unavailable(error.to_string().into()));
        let address = shared.address(&node.target).await.map_err(unavailable)?;
        let connection = shared.options.connect(&address).await;
        Ok((address, connection.map_err(unavailable)?))
    }
}

fn failed(error: StoreError) -> Failure {
    Failure::Failed {
        error,
        reconnect: true,
        refresh: false,
    }
}
