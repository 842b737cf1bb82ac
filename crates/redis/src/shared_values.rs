//! A few named texts that all instances share: the overrides of a deployment.
//!
//! They are the fields of one hash, and one more field counts the changes, so that an instance that
//! looks often has little to read. Requests never wait for any of this: it has a connection of its
//! own.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, FromRedisValue, Pipeline, Value};
use tokio::sync::Mutex;
use tokio::time::timeout;
use tollgate_core::Tag;
use tollgate_store::StoreError;

use crate::error::Failure;
use crate::name::Name;
use crate::node::Target;
use crate::options::Address;
use crate::store::{RedisStore, Shared, slot};

/// How long an answer may take. Nobody's request waits for it.
const PATIENCE: Duration = Duration::from_secs(2);

/// The field that counts the changes. No text is called so.
const EDITION: &str = "#";

/// KEYS[1] the hash; ARGV[1] the name, ARGV[2] the text, ARGV[3] how many there may be.
/// Replies with the edition, or -1 if there are too many.
const PUT: &str = "\
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 and redis.call('HLEN', KEYS[1]) > tonumber(ARGV[3]) then
  return -1
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return redis.call('HINCRBY', KEYS[1], '#', 1)";

/// KEYS[1] the hash; ARGV[1] the name, ARGV[2] the text it must have to go, or '' for any.
/// Replies with 1 if it was there and is gone.
const REMOVE: &str = "\
if ARGV[2] ~= '' and redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then
  return 0
end
local gone = redis.call('HDEL', KEYS[1], ARGV[1])
if gone == 1 then
  redis.call('HINCRBY', KEYS[1], '#', 1)
end
return gone";

/// Named texts in Redis. They stay until they are removed.
#[derive(Debug)]
pub struct SharedValues {
    shared: Arc<Shared>,
    key: Name,
    slot: u16,
    connection: Mutex<Option<(Address, MultiplexedConnection)>>,
}

impl RedisStore {
    /// The texts that the instances of `namespace` share.
    #[must_use]
    pub fn shared_values(&self, namespace: &str) -> SharedValues {
        let tag = Tag::default();
        SharedValues {
            key: self.shared.naming.overrides(tag.number(), namespace),
            slot: slot(tag),
            shared: Arc::clone(&self.shared),
            connection: Mutex::default(),
        }
    }
}

impl SharedValues {
    /// How often something was changed.
    ///
    /// # Errors
    /// If the server does not say.
    pub async fn edition(&self) -> Result<u64, StoreError> {
        let look = |ask: &mut Cmd| {
            ask.arg("HGET").arg(&*self.key).arg(EDITION);
        };
        let edition: Option<u64> = self.ask(look).await?;
        Ok(edition.unwrap_or(0))
    }

    /// All texts by name, and how often something was changed.
    ///
    /// # Errors
    /// If the server does not say, or there are more than `most`: they are not read then.
    pub async fn all(&self, most: usize) -> Result<(u64, Vec<(String, String)>), StoreError> {
        let count = |ask: &mut Cmd| {
            ask.arg("HLEN").arg(&*self.key);
        };
        let fields: usize = self.ask(count).await?;
        // One of the fields counts the changes.
        if fields > most.saturating_add(1) {
            let key = String::from_utf8_lossy(&self.key);
            let why = format!("{key} has {fields} fields, and {most} overrides at most: HDEL some");
            return Err(StoreError::Script(why.into()));
        }
        let look = |ask: &mut Cmd| {
            ask.arg("HGETALL").arg(&*self.key);
        };
        let mut all: Vec<(String, String)> = self.ask(look).await?;
        let edition = all.iter().position(|(name, _)| name == EDITION);
        let edition = edition.map(|place| all.swap_remove(place).1);
        all.sort_unstable();
        let edition = edition.and_then(|it| it.parse().ok());
        Ok((edition.unwrap_or(0), all))
    }

    /// Puts a text in the place of the one that had this name, unless there were more than `most`
    /// then: false if there would be.
    ///
    /// # Errors
    /// If the server does not say that it did.
    pub async fn put(&self, name: &str, text: &str, most: usize) -> Result<bool, StoreError> {
        let put = |ask: &mut Cmd| {
            ask.arg("EVAL").arg(PUT).arg(1).arg(&*self.key);
            ask.arg(name).arg(text).arg(most);
        };
        let edition: i64 = self.ask(put).await?;
        Ok(edition >= 0)
    }

    /// Removes the text of this name; if `only` is given, only if it is that one. Whether it did.
    ///
    /// # Errors
    /// If the server does not say that it did.
    pub async fn remove(&self, name: &str, only: Option<&str>) -> Result<bool, StoreError> {
        let remove = |ask: &mut Cmd| {
            ask.arg("EVAL").arg(REMOVE).arg(1).arg(&*self.key);
            ask.arg(name).arg(only.unwrap_or_default());
        };
        let gone: u8 = self.ask(remove).await?;
        Ok(gone == 1)
    }

    /// What the server that keeps the hash answers.
    async fn ask<T: FromRedisValue>(&self, words: impl Fn(&mut Cmd)) -> Result<T, StoreError> {
        let mut command = Cmd::new();
        words(&mut command);
        let mut kept = self.connection.lock().await;
        let (mut redirects, mut asking) = (0, false);
        loop {
            let answer = timeout(PATIENCE, self.send(&mut kept, &command, asking)).await;
            let failure = match answer.unwrap_or(Err(timed_out())) {
                Ok(value) => {
                    if asking {
                        // The hash is there for this question only.
                        *kept = None;
                    }
                    let read = redis::from_redis_value(value);
                    return read.map_err(|error| StoreError::Script(error.to_string().into()));
                }
                Err(failure) => failure,
            };
            match failure {
                Failure::Elsewhere {
                    address,
                    asking: only_now,
                } if redirects < 5 => {
                    redirects += 1;
                    if !only_now {
                        self.shared.topology_may_have_changed();
                    }
                    *kept = None;
                    let connected = timeout(PATIENCE, self.shared.connector.to(&address)).await;
                    if let Ok(Ok(connection)) = connected {
                        *kept = Some((address, connection));
                    }
                    asking = only_now && kept.is_some();
                }
                Failure::Failed { error, .. } => {
                    // A connection of its own is cheap: the next question gets a new one.
                    *kept = None;
                    return Err(error);
                }
                Failure::Elsewhere { .. } | Failure::Apart | Failure::UnknownScript => {
                    *kept = None;
                    let why = "the key of the overrides is on its way between servers";
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
        if kept.is_none() {
            let address = self.address().await?;
            let connection = self.shared.connector.to(&address).await;
            let connection = connection.map_err(|error| unavailable(&error))?;
            *kept = Some((address, connection));
        }
        let Some((address, connection)) = kept else {
            return Err(timed_out());
        };
        let answer = if asking {
            let mut both = Pipeline::with_capacity(2);
            both.cmd("ASKING").add_command(command.clone());
            let answers = connection.send_packed_commands(&both, 0, 2).await;
            answers.map(|mut answers| answers.pop().unwrap_or(Value::Nil))
        } else {
            connection.send_packed_command(command).await
        };
        let answer = answer.and_then(Value::extract_error);
        answer.map_err(|error| Failure::of(&error, address))
    }

    /// Where the hash is kept.
    async fn address(&self) -> Result<Address, Failure> {
        let map = self.shared.map.load_full();
        let node = map.node(self.slot).map_err(|error| {
            self.shared.topology_may_have_changed();
            failed(error)
        })?;
        match &node.target {
            Target::At(address) => Ok(address.clone()),
            Target::Master => {
                let master = self.shared.connector.master().await;
                master.map_err(|error| unavailable(&error))
            }
        }
    }
}

fn failed(error: StoreError) -> Failure {
    Failure::Failed {
        error,
        reconnect: true,
        refresh: false,
    }
}

fn timed_out() -> Failure {
    failed(StoreError::Timeout)
}

fn unavailable(error: &impl ToString) -> Failure {
    failed(StoreError::Unavailable(error.to_string().into()))
}
