//! The deployment that the state of a namespace belongs to: a few named texts. They say how the instances of the
//! deployment hash subjects, lay out keys and read the time. Only the fields `layout` and `clock` are set here.
//!
//! The texts are one hash that does not expire. If several instances claim an empty store at the same time, one
//! of them wins, and the others get the texts of the winner.

use tollgate_store::StoreError;

use crate::key_name::VERSION;
use crate::options::ClockSource;
use crate::shared_values::SharedValues;
use crate::store::RedisStore;

/// Sets texts. KEYS[1] is the hash. ARGV[1] says how: `new` sets the texts if there are none, `add` adds texts
/// with new names, and `replace` replaces all texts. Names and texts follow. Returns all names and texts.
const CLAIM: &str = "\
if ARGV[1] == 'replace' then
  redis.call('DEL', KEYS[1])
end
if ARGV[1] ~= 'new' or redis.call('EXISTS', KEYS[1]) == 0 then
  for i = 2, #ARGV, 2 do
    redis.call('HSETNX', KEYS[1], ARGV[i], ARGV[i + 1])
  end
end
return redis.call('HGETALL', KEYS[1])";

/// The most fields of a hash that is read.
const MOST: usize = 1000;

/// Named texts.
type Texts = Vec<(String, String)>;

/// The texts of one namespace.
#[derive(Debug)]
pub struct Deployment {
    values: SharedValues,
    clock: &'static str,
}

impl RedisStore {
    /// Returns the deployment that the state of `namespace` belongs to.
    #[must_use]
    pub fn deployment(&self, namespace: &str) -> Deployment {
        Deployment {
            values: self.values_at(self.shared.naming.deployment(namespace)),
            clock: match self.shared.options.clock {
                ClockSource::Store => "store",
                ClockSource::Caller(_) => "caller",
            },
        }
    }

    /// With a reason, stops using the servers: every decision fails, so that failure policies decide. With
    /// `None`, uses the servers again.
    pub fn refuse(&self, reason: Option<&str>) {
        let reason = reason.map(|it| it.to_owned().into());
        self.shared.refused.store(reason);
    }
}

impl Deployment {
    /// Returns the name of the hash.
    #[must_use]
    pub fn name(&self) -> String {
        String::from_utf8_lossy(&self.values.key).into_owned()
    }

    /// Returns the texts that depend on this store: the layout of its keys, and its clock.
    #[must_use]
    pub fn own(&self) -> [(String, String); 2] {
        [("layout", VERSION), ("clock", self.clock)]
            .map(|(name, text)| (name.to_owned(), text.to_owned()))
    }

    /// Returns the texts; none if no instance has claimed the store.
    ///
    /// # Errors
    /// If the server does not answer, or the key holds other data.
    pub async fn read(&self) -> Result<Texts, StoreError> {
        let key = &*self.values.key;
        let fields: usize = self.values.ask(redis::cmd("HLEN").arg(key)).await?;
        if fields > MOST {
            return Err(StoreError::Foreign(self.name().into()));
        }
        self.values.ask(redis::cmd("HGETALL").arg(key)).await
    }

    /// Sets the texts if there are none. Returns all texts after the change.
    ///
    /// # Errors
    /// If the server does not confirm the change.
    pub async fn claim(&self, texts: &[(String, String)]) -> Result<Texts, StoreError> {
        self.change("new", texts).await
    }

    /// Adds texts with new names, and leaves the others as they are. Returns all texts.
    ///
    /// # Errors
    /// If the server does not confirm the change.
    pub async fn add(&self, texts: &[(String, String)]) -> Result<Texts, StoreError> {
        self.change("add", texts).await
    }

    /// Replaces all texts. Returns them.
    ///
    /// # Errors
    /// If the server does not confirm the change.
    pub async fn replace(&self, texts: &[(String, String)]) -> Result<Texts, StoreError> {
        self.change("replace", texts).await
    }

    async fn change(&self, how: &str, texts: &[(String, String)]) -> Result<Texts, StoreError> {
        let mut command = redis::cmd("EVAL");
        command.arg(CLAIM).arg(1).arg(&*self.values.key).arg(how);
        for (name, text) in texts {
            command.arg(name).arg(text);
        }
        self.values.ask(&command).await
    }
}
